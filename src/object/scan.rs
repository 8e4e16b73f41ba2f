//! Entry point for bytes from outside: a lazy scan that finds an object's identity, cuts the drop paths and leaves
//! the rest undecoded.
//!
//! One pass over the bytes walks the members of the object, of `metadata`, and of the containers on drop paths. All other
//! containers are skipped 64 bytes at a time (`block`). Guarantees:
//!
//! - If the scan succeeds, the identity is the one that `serde_json` would read. Keys and values may be escaped in any way and come
//!   in any order. The last of several members with the same key counts, as in [`serde_json::Value`]; drop paths cut all of them.
//! - All remaining bytes are valid UTF-8, and at most 127 brackets are open at once. `serde_json` has the same limit, so
//!   no accepted object is nested too deeply to be decoded.
//! - Skipped containers are checked only for ends of strings and the number of brackets. A literal `tru`, a missing comma
//!   or `[1}` is accepted there, and fails when the object is decoded. Numbers are checked only for their characters, so
//!   `1-2` is accepted anywhere. A full check would cost four times the scan. The API server does not send such bytes, and
//!   TLS protects them.
//! - No input causes a panic or recursion, and the cost is linear.
//!
//! Reasons: `docs/decisions/0003-own-scan-of-json.md`.

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
pub(crate) use cut::{Scanned, without};
pub(crate) use paths::PathTree;
pub(crate) use read::Plucker;
pub(crate) use read::annotations_of;

use super::{
    FieldPath, IGNORE_ANNOTATION, Identity, Object,
    changed_by::{NotedParts, note},
};

/// Prepared settings of the scan for all objects of one resource type.
///
/// Drop paths never remove the identity: `apiVersion`, `kind`, and name, namespace, uid and resourceVersion of
/// `metadata`.
#[derive(Clone, Debug, Default)]
pub struct ScanPlan {
    drop: PathTree,
    types: Option<TypeJson>,
    /// Set to let objects opt out: see [`IGNORE_ANNOTATION`]. The annotation counts even if the plan cuts it.
    pub heeds_opt_out: bool,
    /// Set to note the writers of each object, even if the plan cuts `managedFields`: see [`Object::changed_by`].
    pub notes_who_changed: bool,
}

/// The `apiVersion` and `kind` of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMeta {
    /// API version, such as `v1` or `apps/v1`.
    pub api_version: String,
    /// Kind, such as `Pod`.
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
    /// Offset of `"kind"` in `both`.
    kind_from: usize,
}

/// Reason why bytes are not an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The bytes are not JSON, or not the expected JSON.
    #[error("malformed JSON at byte {at}: expected {expected}")]
    Malformed {
        /// Offset of the first wrong byte.
        at: usize,
        /// Expected text at this offset.
        expected: &'static str,
    },
    /// The bytes end within the document.
    #[error("truncated JSON after {0} bytes")]
    Truncated(usize),
    /// More than 127 brackets are open at once, so `serde_json` could not decode the object.
    #[error("JSON nested more than 127 levels deep at byte {0}")]
    TooDeep(usize),
    /// An object without a name (K-4).
    #[error("object without metadata.name")]
    Nameless,
    /// The object has no `apiVersion` or `kind`, and the plan has none either.
    #[error("object without apiVersion and kind")]
    Typeless,
}

impl ScanPlan {
    /// Creates a plan that cuts the values at the paths `drop`.
    ///
    /// `type_meta` is the `apiVersion` and `kind` of every resulting object. A missing type is added. A different type that
    /// the server sent (`PartialObjectMetadata`) is replaced. With `None` the type stays unchanged.
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

    /// Returns the `apiVersion` and `kind` that the plan sets, if any.
    pub fn type_meta(&self) -> Option<&TypeMeta> {
        self.types.as_ref().map(|types| &types.meta)
    }

    /// Sets the `apiVersion` and `kind` of the resulting objects.
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
    /// Creates a type from its two parts.
    pub fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }
}

/// Scans one JSON object; only whitespace may surround it.
pub fn scan_object(json: &[u8], plan: &ScanPlan) -> Result<Object, ScanError> {
    let mut cursor = JsonCursor::new(json);
    let mut scanned = Scanned::default();
    scanned.scan(&mut cursor, plan)?;
    cursor.end()?;
    scanned.object(plan, NotedParts::WithFields)
}
