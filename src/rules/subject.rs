//! A change, as rules read it.

use std::{borrow::Cow, sync::OnceLock};

#[cfg(feature = "rules")]
use crate::object::ChangedBy;
use crate::{journal::ChangeKind, object::Object};

/// A change of an object.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) kind: ChangeKind,
    pub(super) object: State<'a>,
    pub(super) before: Before<'a>,
}

/// Previous object of a change.
#[derive(Debug)]
pub(super) enum Before<'a> {
    /// No previous object exists.
    Nothing,
    /// The previous object is unknown.
    Unknown,
    /// The previous object equals the object.
    Same,
    /// The previous object.
    Different(State<'a>),
}

impl<'a> Subject<'a> {
    /// Creates a change. `old` is the previous object of an update, or `None` if it is unknown; other kinds ignore `old`.
    pub(super) fn new(kind: ChangeKind, old: Option<&'a Object>, object: &'a Object) -> Self {
        let before = match (kind, old) {
            (ChangeKind::Unchanged, _) => Before::Same,
            (ChangeKind::Updated, None) => Before::Unknown,
            (ChangeKind::Updated, Some(old)) => Before::Different(State::new(old)),
            _ => Before::Nothing,
        };
        Self { kind, object: State::new(object), before }
    }

    /// Returns the writer of the change; see [`Record::changed_by`](crate::journal::Record::changed_by).
    #[cfg(feature = "rules")]
    pub(super) fn changed_by(&self) -> Option<ChangedBy<'_>> {
        let object = self.object.object;
        match &self.before {
            Before::Nothing if self.kind == ChangeKind::Added => object.changed_by_since(None),
            Before::Nothing => None,
            Before::Unknown | Before::Same => object.changed_by(),
            Before::Different(old) => object.changed_by_since(Some(old.object)),
        }
    }

    /// Returns the previous object, if there is one and it is known.
    #[cfg(feature = "rules")]
    pub(super) fn old(&self) -> Option<&State<'a>> {
        match &self.before {
            Before::Nothing | Before::Unknown => None,
            Before::Same => Some(&self.object),
            Before::Different(old) => Some(old),
        }
    }
}

/// One state of an object. Its body is unpacked on first use.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) object: &'a Object,
    json: OnceLock<Cow<'a, [u8]>>,
}

impl<'a> State<'a> {
    fn new(object: &'a Object) -> Self {
        Self { object, json: OnceLock::new() }
    }

    pub(super) fn json(&self) -> &[u8] {
        self.json.get_or_init(|| self.object.json())
    }
}
