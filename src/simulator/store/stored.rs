//! One state of one object, serialised once for all lists and watches.

use std::sync::OnceLock;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::super::{selector::SelectorFacts, types::TypeInfo};
use crate::object::ObjectKey;

/// Order of `metadata` members in the Go structs; other members come last.
pub(super) const TYPED_METADATA: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryKind {
    Added,
    Modified,
    /// The object was deleted; the state is its last one, with the deletion's version.
    Deleted,
}

impl HistoryKind {
    /// Returns the text before the object in a watch frame.
    pub(in crate::simulator) fn prefix(self) -> &'static str {
        match self {
            Self::Added => r#"{"type":"ADDED","object":"#,
            Self::Modified => r#"{"type":"MODIFIED","object":"#,
            Self::Deleted => r#"{"type":"DELETED","object":"#,
        }
    }
}

/// JSON of an object without the digits of its resourceVersion.
#[derive(Clone, Debug)]
pub struct RawObject {
    /// Identity within the type.
    pub key: ObjectKey,
    /// Text from `"metadata":{` to the opening quote of the version.
    pub before: Vec<u8>,
    /// Text from the closing quote of the version to the closing brace of the object.
    pub after: Vec<u8>,
}

impl RawObject {
    /// Splits an object; the key comes from `metadata`. `None` unless it is an object with metadata.
    pub(crate) fn of_value(info: &TypeInfo, object: &Value) -> Option<Self> {
        let object = object.as_object()?;
        let metadata = object.get("metadata")?.as_object()?;
        let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let ordered = metadata_order(info, metadata).into_iter().map(|name| match name {
            "resourceVersion" => (name.to_owned(), HOLE.into()),
            _ => (name.to_owned(), metadata[name].clone()),
        });
        let mut members: Vec<_> = object.iter().collect();
        if !info.typed {
            members.sort_by_key(|(name, _)| *name);
        }
        members.retain(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
        let members = members.into_iter().map(|(name, value)| (name.clone(), value.clone()));
        let whole: Map<_, _> = [("metadata".to_owned(), ordered.collect())].into_iter().chain(members).collect();
        let json = Value::Object(whole).to_string();
        let (before, after) = json.strip_prefix('{')?.split_once(HOLE)?;
        Some(Self { key, before: before.into(), after: after.into() })
    }
}

/// Placeholder of the version; it occurs nowhere else in an object.
const HOLE: &str = "\u{fffe}";

fn metadata_order<'a>(info: &TypeInfo, metadata: &'a Map<String, Value>) -> Vec<&'a str> {
    let present = metadata.keys().map(String::as_str).filter(|name| *name != "resourceVersion");
    let mut names: Vec<&str> = present.chain(["resourceVersion"]).collect();
    let rank = |name: &str| TYPED_METADATA.iter().position(|typed| *typed == name).unwrap_or(TYPED_METADATA.len());
    if info.typed {
        names.sort_by_key(|name| rank(name));
    } else {
        names.sort_unstable();
    }
    names
}

/// One state of one object, as one allocation with a watch frame. All other forms are slices of it.
#[derive(Debug)]
pub struct Stored {
    key: ObjectKey,
    version: u64,
    kind: HistoryKind,
    /// `{"type":…,"object":{…}}` and a newline.
    frame: Bytes,
    /// Offset of the object in `frame`.
    object: usize,
    /// Offset of its `"metadata"` in `frame`.
    metadata: usize,
    /// Range of the version's digits in `frame`.
    digits: std::ops::Range<usize>,
    facts: OnceLock<SelectorFacts>,
}

impl Stored {
    /// Serialises a state under its version.
    pub(super) fn new(info: &TypeInfo, kind: HistoryKind, version: u64, raw: RawObject) -> Self {
        let (group_version, type_kind) = (info.resource.api_version(), &info.resource.kind);
        let head = if info.typed {
            format!(r#"{{"kind":"{type_kind}","apiVersion":"{group_version}","#)
        } else {
            format!(r#"{{"apiVersion":"{group_version}","kind":"{type_kind}","#)
        };
        Self::lay_out(raw.key, kind, version, [head.as_bytes(), &raw.before, &raw.after, b"}\n"])
    }

    /// Returns the same state with another version and kind of change, for a deletion.
    pub(in crate::simulator) fn restamped(&self, kind: HistoryKind, version: u64) -> Self {
        let (head, before) = (&self.frame[self.object..self.metadata], &self.frame[self.metadata..self.digits.start]);
        Self::lay_out(self.key.clone(), kind, version, [head, before, &self.frame[self.digits.end..], b""])
    }

    /// Joins four parts: the text before `"metadata"`, the text up to the version, the text after the version, and the end.
    fn lay_out(key: ObjectKey, kind: HistoryKind, version: u64, [head, before, after, end]: [&[u8]; 4]) -> Self {
        let (prefix, digits) = (kind.prefix(), version.to_string());
        let frame = [prefix.as_bytes(), head, before, digits.as_bytes(), after, end].concat();
        let (object, metadata) = (prefix.len(), prefix.len() + head.len());
        let start = metadata + before.len();
        let digits = start..start + digits.len();
        Self { key, version, kind, frame: frame.into(), object, metadata, digits, facts: OnceLock::new() }
    }

    /// Returns the identity within the type.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns the resource version of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the object's JSON, a slice of the frame.
    pub fn json(&self) -> Bytes {
        self.frame.slice(self.object..self.frame.len() - 2)
    }

    /// Returns the object without its opening brace, `apiVersion` and `kind`: the rest of a list item (A-7).
    pub(crate) fn json_from_metadata(&self) -> Bytes {
        self.frame.slice(self.metadata..self.frame.len() - 2)
    }

    /// Returns the watch frame for a kind of change: one piece for the state's own kind, otherwise two.
    pub(crate) fn frame(&self, kind: HistoryKind) -> (Option<Bytes>, Bytes) {
        if kind == self.kind {
            (None, self.frame.clone())
        } else {
            (Some(Bytes::from_static(kind.prefix().as_bytes())), self.frame.slice(self.object..))
        }
    }

    /// Returns the raw text of `metadata`.
    pub(crate) fn metadata(&self) -> &str {
        #[derive(Deserialize)]
        struct Outline<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        let outline: Result<Outline<'_>, _> = serde_json::from_slice(&self.frame[self.object..self.frame.len() - 2]);
        outline.map_or("{}", |outline| outline.metadata.get())
    }

    /// Decodes the object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json()).unwrap_or_default()
    }

    /// Returns the fields that selectors use, decoded at the first call.
    pub(crate) fn facts(&self, info: &TypeInfo) -> &SelectorFacts {
        self.facts.get_or_init(|| SelectorFacts::of(info, &self.value()))
    }

    /// Returns the size of this state in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.frame.len() + size_of::<Self>()
    }
}
