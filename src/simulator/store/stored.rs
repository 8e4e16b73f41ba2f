//! One state of one object, serialised once for all lists and watches.

use std::{ops::Range, sync::OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value};
use strum::AsRefStr;

use super::super::{selector::SelectorFacts, types::TypeInfo};
use crate::{object::ObjectKey, serve::kube_api::metadata_of};

/// Order of the members of `metadata` in objects of built-in types, as in the Go structs. Other members come last.
const TYPED_METADATA: [&str; 14] = [
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

/// Kind of a change, with its name in a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "UPPERCASE")]
pub(crate) enum HistoryKind {
    Added,
    Modified,
    /// The object was deleted; the step has its last state, with the deletion's version.
    Deleted,
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
    /// Splits an object; the key comes from `metadata`. Returns `None` for a value without `metadata`.
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
    names.sort_unstable_by_key(|name| (if info.typed { rank(name) } else { 0 }, *name));
    names
}

/// One state of one object, with its JSON in one buffer.
#[derive(Debug)]
pub struct Stored {
    key: ObjectKey,
    version: u64,
    json: Bytes,
    /// Offset of `"metadata"` in the JSON.
    metadata: usize,
    /// Range of the version's digits in the JSON.
    digits: Range<usize>,
    facts: OnceLock<SelectorFacts>,
}

impl Stored {
    /// Serialises a state under its version.
    pub(super) fn new(info: &TypeInfo, version: u64, raw: RawObject) -> Self {
        let (group_version, kind) = (info.resource.api_version(), &info.resource.kind);
        let head = if info.typed {
            format!(r#"{{"kind":"{kind}","apiVersion":"{group_version}","#)
        } else {
            format!(r#"{{"apiVersion":"{group_version}","kind":"{kind}","#)
        };
        Self::lay_out(raw.key, version, [head.as_bytes(), &raw.before, &raw.after])
    }

    /// Returns the same state with another version, for a deletion.
    pub(in crate::simulator) fn restamped(&self, version: u64) -> Self {
        let (head, before) = (&self.json[..self.metadata], &self.json[self.metadata..self.digits.start]);
        Self::lay_out(self.key.clone(), version, [head, before, &self.json[self.digits.end..]])
    }

    /// Joins three parts: the text before `"metadata"`, the text up to the version, and the text after the version.
    fn lay_out(key: ObjectKey, version: u64, [head, before, after]: [&[u8]; 3]) -> Self {
        let digits = version.to_string();
        let json = [head, before, digits.as_bytes(), after].concat().into();
        let start = head.len() + before.len();
        let digits = start..start + digits.len();
        Self { key, version, json, metadata: head.len(), digits, facts: OnceLock::new() }
    }

    /// Returns the identity within the type.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns the resource version of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the object's JSON.
    pub fn json(&self) -> Bytes {
        self.json.clone()
    }

    /// Returns the JSON from `"metadata"` to the end, without `apiVersion` and `kind`. A list item is `{` and this text (A-7).
    pub(crate) fn json_from_metadata(&self) -> &[u8] {
        &self.json[self.metadata..]
    }

    /// Returns the raw text of `metadata`.
    pub(crate) fn metadata(&self) -> &str {
        metadata_of(&self.json)
    }

    /// Decodes the object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// Returns the fields that selectors use, decoded at the first call.
    pub(crate) fn facts(&self, info: &TypeInfo) -> &SelectorFacts {
        self.facts.get_or_init(|| SelectorFacts::of(info, &self.value()))
    }

    /// Returns the size of this state in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.json.len() + size_of::<Self>()
    }
}
