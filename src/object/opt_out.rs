//! Objects that opt out of deltabus by an annotation.

use super::{Form, Identity, Object, keep::identity_json, scan::TypeMeta};

/// Annotation by which an object opts out, if its value is exactly `"true"`. Such an object is neither cached nor sent.
pub const IGNORE_ANNOTATION: &str = "deltabus.dev/ignore";

impl Object {
    /// Creates the placeholder of an object that opts out: its identity and version. It goes as far as the queue, which
    /// then withdraws the object from consumers that saw it; see
    /// `DeltaKind::OptedOut`.
    pub fn opted_out(identity: Identity<'_>, type_meta: &TypeMeta) -> Self {
        let json = identity_json(identity, type_meta);
        Self::lay_out(identity, Form::OptedOut, json.len(), &[], |room| room.put(json.as_bytes()))
    }

    /// Returns true if this is the placeholder of an object that opts out.
    pub fn opts_out(&self) -> bool {
        matches!(self.form(), Form::OptedOut)
    }
}
