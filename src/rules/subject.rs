//! One state of an object, as rules read it.

use std::{borrow::Cow, sync::OnceLock};

use super::Before;
use crate::object::Object;

/// One state of an object. Its body is unpacked on first use.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    object: &'a Object,
    json: OnceLock<Cow<'a, [u8]>>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(object: &'a Object) -> Self {
        Self { object, json: OnceLock::new() }
    }

    /// Returns the previous object. The result has no meaning if the previous object is unknown or does not exist.
    pub(super) fn before(before: Before<'a>, object: &'a Object) -> Self {
        Self::new(if let Before::State(old) = before { old } else { object })
    }

    #[cfg(feature = "rules")]
    pub(super) fn object(&self) -> &'a Object {
        self.object
    }

    pub(super) fn json(&self) -> &[u8] {
        self.json.get_or_init(|| self.object.json())
    }
}
