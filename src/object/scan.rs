//! The way in for bytes from outside: a lazy scan that finds an object's identity, cuts the drop paths and leaves
//! the rest undecoded.
//!
//! One pass over the bytes walks the object's members and those of `metadata`; every other container is skipped 64
//! bytes at a time (`block`). What is promised:
//!
//! - The identity is what `serde_json` would read, or there is an error. Keys and values may be escaped in any way and come
//!   in any order. Of members with the same key the last one counts, as in [`serde_json::Value`]; drop paths cut all of
//!   them.
//! - All bytes that stay are valid UTF-8, and at most 127 brackets are open at once, the same as `serde_json` reads: no object is
//!   accepted whose nesting keeps it from being decoded.
//! - In containers that are skipped the ends of strings and the number of brackets are checked, and nothing else: a
//!   literal `tru`, a missing comma or `[1}` in there is accepted as it is and found by whoever decodes the object. To check all would
//!   cost four times the scan. The API server does not send such bytes, and TLS does not damage them.
//! - No input makes it panic or recurse, and its cost is linear.

mod block;
mod cursor;
mod cut;
mod paths;
mod read;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Cow;

pub(super) use block::is_ascii;
pub(crate) use block::{Nesting, Progress};
pub(crate) use cursor::{JsonCursor, JsonText, text};
pub(crate) use cut::Scanned;
pub(crate) use paths::PathTree;
pub(crate) use read::annotations_of;
pub use read::{OwnerReference, Plucker};

use super::{ChangedBy, FieldPath, IGNORE_ANNOTATION, Identity, Object};

/// What a scan does to every object of one resource type, made ready once.
///
/// What identifies an object stays whatever the drop paths say: `apiVersion`, `kind`, and name, namespace, uid and
/// resourceVersion of `metadata`.
#[derive(Clone, Debug, Default)]
pub struct ScanPlan {
    drop: PathTree,
    types: Option<TypeJson>,
    heeds_opt_out: bool,
    notes_who_changed: bool,
}

/// The `apiVersion` and `kind` of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMeta {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `Pod`.
    pub kind: String,
}

/// A [`TypeMeta`] and its JSON.
#[derive(Clone, Debug)]
struct TypeJson {
    meta: TypeMeta,
    /// `"v1"`
    api_version: Box<[u8]>,
    /// `"Pod"`
    kind: Box<[u8]>,
    /// `"apiVersion":"v1","kind":"Pod",`
    both: Box<[u8]>,
    /// Where `"kind"` begins in `both`.
    kind_from: usize,
}

/// Why bytes are not an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The bytes are not JSON, or not the JSON that was expected.
    #[error("malformed JSON at byte {at}: expected {expected}")]
    Malformed {
        /// Offset of the first byte that does not fit.
        at: usize,
        /// What was expected there.
        expected: &'static str,
    },
    /// The bytes end inside the document.
    #[error("truncated JSON after {0} bytes")]
    Truncated(usize),
    /// More than 127 brackets are open at once: nobody could decode it.
    #[error("JSON nested more than 127 levels deep at byte {0}")]
    TooDeep(usize),
    /// An object without a name (K-4).
    #[error("object without metadata.name")]
    Nameless,
    /// An object without `apiVersion` or `kind`, and a plan that does not say them.
    #[error("object without apiVersion and kind")]
    Typeless,
}

impl ScanPlan {
    /// Makes a plan that cuts the values at the paths `drop`.
    ///
    /// `type_meta` is the `apiVersion` and `kind` every object carries afterwards: spliced in where missing, replaced
    /// where the server answered with another one (`PartialObjectMetadata`). Without it they stay as they are.
    pub fn new(drop: &[FieldPath], type_meta: Option<TypeMeta>) -> Self {
        let mut drop = PathTree::new(drop);
        for path in [
            &["apiVersion"][..],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "uid"],
            &["metadata", "resourceVersion"],
        ] {
            drop.spare(path);
        }
        Self { drop, types: type_meta.map(TypeJson::new), ..Self::default() }
    }

    /// Returns the `apiVersion` and `kind` every object carries afterwards, if the plan says them.
    pub fn type_meta(&self) -> Option<&TypeMeta> {
        self.types.as_ref().map(|types| &types.meta)
    }

    /// Returns the same plan by which objects can opt out, whatever it cuts: see [`IGNORE_ANNOTATION`].
    #[must_use]
    pub fn heeding_opt_out(self) -> Self {
        Self { heeds_opt_out: true, ..self }
    }

    /// Returns the same plan that notes who changed an object, whatever it cuts: see [`Object::changed_by`].
    #[must_use]
    pub fn noting_who_changed(self) -> Self {
        Self { notes_who_changed: true, ..self }
    }

    /// Returns the same plan with another type.
    #[must_use]
    pub fn with_type_meta(mut self, type_meta: TypeMeta) -> Self {
        self.types = Some(TypeJson::new(type_meta));
        self
    }
}

impl TypeJson {
    fn new(meta: TypeMeta) -> Self {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (api_version, kind) = (quoted(&meta.api_version), quoted(&meta.kind));
        let first = format!("\"apiVersion\":{api_version},");
        Self {
            both: format!("{first}\"kind\":{kind},").into_bytes().into(),
            kind_from: first.len(),
            api_version: api_version.into_bytes().into(),
            kind: kind.into_bytes().into(),
            meta,
        }
    }
}

impl TypeMeta {
    /// Makes a type of its two parts.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }
}

/// Scans one JSON object, and nothing but whitespace around it.
pub fn scan_object(json: &[u8], plan: &ScanPlan) -> Result<Object, ScanError> {
    let mut cursor = JsonCursor::new(json);
    let mut scanned = Scanned::default();
    scanned.scan(&mut cursor, plan)?;
    cursor.end()?;
    scanned.object(plan)
}
