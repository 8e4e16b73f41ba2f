//! Objects that say of themselves that they are not to be shown.

use super::{Form, Identity, Object, keep::identity_json, scan::TypeMeta};

/// The annotation by which an object opts out, if its value is `"true"` and nothing else: it is neither cached nor sent.
pub const IGNORE_ANNOTATION: &str = "deltabus.dev/ignore";

impl Object {
    /// Makes what is known of an object that opts out: what identifies it and its version. It travels as far as the
    /// queue, which ends with it what was shown of the object; see
    /// [`DeltaKind::OptedOut`](crate::delta_fifo::DeltaKind::OptedOut).
    pub fn opted_out(identity: Identity<'_>, type_meta: &TypeMeta) -> Self {
        let json = identity_json(identity, type_meta);
        Self::lay_out(identity, Form::OptedOut, json.len(), &[], |room| room.put(json.as_bytes()))
    }

    /// Returns whether this is all that is to be known of an object, because it opts out.
    pub fn opts_out(&self) -> bool {
        matches!(self.form(), Form::OptedOut)
    }
}
