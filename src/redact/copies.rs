//! Copies of redacted values in the annotations and `managedFields` of the same object.
//!
//! Tools keep whole objects in annotations, as `kapp.k14s.io/original` does, or repeat single values there. Such a text is a copy
//! if one of these is true:
//!
//! - It is JSON and has a value at a redacted path. This finds earlier values too.
//! - It contains a redacted value of at least [`LONG`] bytes, plain or in base64.
//! - It equals a shorter value. Only in Secrets, because elsewhere short values such as `true` are too common.
//! - It is compressed: the search cannot read it.
//!
//! Strings in JSON and text in base64 are searched in the same way.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use serde_json::Value;

use super::{Rule, is_digest, is_text};
use crate::object::PathStep;

/// Length from which a value is searched for within other text.
const LONG: usize = 8;
/// Bytes of a value that are compared. They limit the memory of the search.
const COMPARED: usize = 256;
/// Layers of encoded text that are decoded. Deeper text counts as a copy.
pub(super) const LAYERS: usize = 8;
/// First bytes of gzip, zip and zstd data.
const COMPRESSED: [&[u8]; 3] = [b"\x1f\x8b\x08", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"];

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const BASE64: [GeneralPurpose; 2] =
    [GeneralPurpose::new(&alphabet::STANDARD, LENIENT), GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT)];

/// Values of one object that are about to be redacted.
#[derive(Default)]
struct Values {
    /// Values of at least [`LONG`] bytes.
    long: HashSet<Vec<u8>>,
    /// Shorter values.
    short: HashSet<Vec<u8>>,
}

impl Values {
    fn insert(&mut self, value: &[u8]) {
        match value {
            [] => {}
            short if short.len() < LONG => drop(self.short.insert(short.to_owned())),
            long => drop(self.long.insert(long[..long.len().min(COMPARED)].to_owned())),
        }
    }

    /// Adds all texts and numbers in `value`, in the forms in which a copy may show them. `public` are values that are shown anyway.
    fn collect(&mut self, value: &Value, base64: bool, public: &[&Value]) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => self.insert(number.to_string().as_bytes()),
            Value::String(_) if is_digest(value, base64) => {}
            Value::String(text) => {
                let decoded = if base64 { STANDARD.decode(text).ok() } else { None };
                let plain = decoded.as_deref().unwrap_or(text.as_bytes()).trim_ascii();
                if !public.iter().any(|value| value.as_str().is_some_and(|text| text.as_bytes() == plain)) {
                    self.insert(plain);
                    let encoded = if base64 { text.clone() } else { STANDARD.encode(text) };
                    self.insert(encoded.trim_end_matches('=').as_bytes());
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, base64, public)),
            Value::Object(members) => members.values().for_each(|member| self.collect(member, base64, public)),
        }
    }
}

/// Search for copies of the values that some rules redact in one object.
pub(super) struct Copies<'a> {
    rules: &'a [&'a Rule],
    /// Values that are searched for in other text; `None` if there are none.
    long: Option<AhoCorasick>,
    /// Values that a whole text must equal.
    short: HashSet<Vec<u8>>,
}

impl<'a> Copies<'a> {
    /// Prepares the search in an object with its original values. Returns `None` if the object can have no copies.
    pub(super) fn of(object: &Value, rules: &'a [&'a Rule]) -> Option<Self> {
        let metadata = object.get("metadata")?;
        metadata.get("annotations").or_else(|| metadata.get("managedFields"))?;
        let mut values = Values::default();
        let public = ["name", "namespace"].map(|member| &metadata[member]);
        for rule in rules {
            visit(object, rule.path.steps(), &mut |value| {
                values.collect(value, rule.base64, &public);
                false
            });
        }
        let is_secret = object["apiVersion"] == "v1" && object["kind"] == "Secret";
        let long = (!values.long.is_empty()).then(|| {
            // The automaton for few patterns would take a kilobyte for each of their bytes.
            let search = AhoCorasick::builder().kind(Some(AhoCorasickKind::NoncontiguousNFA)).build(values.long);
            search.expect("the values of an object fit into the search")
        });
        Some(Self { rules, long, short: if is_secret { values.short } else { HashSet::new() } })
    }

    /// Cuts copies from the keys of `metadata.managedFields`, and calls `replace` with the name and the value of each annotation
    /// that contains a copy. An annotation is removed if `replace` returns false. Returns true if the object was changed.
    pub(super) fn redact(&self, object: &mut Value, mut replace: impl FnMut(&str, &mut Value) -> bool) -> bool {
        let Some(metadata) = object.get_mut("metadata") else { return false };
        let mut changed = false;
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.retain(|name, value| {
                let is_copy = self.are_in_value(value, 0);
                changed |= is_copy;
                !is_copy || replace(name, value)
            });
        }
        if let Some(Value::Array(entries)) = metadata.get_mut("managedFields") {
            let fields = entries.iter_mut().filter_map(|entry| entry.get_mut("fieldsV1"));
            changed = fields.fold(changed, |changed, fields| self.cut_keys(fields) | changed);
        }
        changed
    }

    fn is_value(&self, text: &[u8]) -> bool {
        let text = text.trim_ascii();
        let unpadded = || text.iter().rposition(|byte| *byte != b'=').map_or(&[][..], |last| &text[..=last]);
        self.long.as_ref().is_some_and(|long| long.is_match(text))
            || self.short.contains(text)
            || self.short.contains(unpadded())
    }

    /// Returns true if a text contains a copy. `layers` is the number of encodings around the text.
    fn are_in(&self, text: &[u8], layers: usize) -> bool {
        if self.is_value(text) || COMPRESSED.iter().any(|magic| layers > 0 && text.starts_with(magic)) {
            return true;
        }
        let text = text.trim_ascii();
        if matches!(text, [b'{' | b'[' | b'"', ..])
            && let Ok(value) = serde_json::from_slice::<Value>(text)
        {
            return layers == LAYERS || self.are_in_value(&value, layers + 1);
        }
        let decoded = BASE64.iter().filter(|_| text.len() >= LONG).find_map(|base64| base64.decode(text).ok());
        decoded.is_some_and(|decoded| layers == LAYERS || self.are_in(&decoded, layers + 1))
    }

    fn are_in_value(&self, value: &Value, layers: usize) -> bool {
        match value {
            Value::Null | Value::Bool(_) => false,
            Value::Number(number) => self.is_value(number.to_string().as_bytes()),
            Value::String(text) => self.are_in(text.as_bytes(), layers),
            Value::Array(items) => items.iter().any(|item| self.are_in_value(item, layers)),
            Value::Object(members) => {
                let is_redacted = |rule: &&Rule| visit(value, rule.path.steps(), &mut |found| !found.is_null());
                self.rules.iter().any(is_redacted)
                    || members
                        .iter()
                        .any(|(name, member)| self.are_in(name.as_bytes(), layers) || self.are_in_value(member, layers))
            }
        }
    }

    /// Removes the keys with copies from `fieldsV1`. Keys of lists contain values: `v:"x"`, `k:{"name":"x"}`. Returns true if keys
    /// were removed.
    fn cut_keys(&self, fields: &mut Value) -> bool {
        let Value::Object(members) = fields else { return false };
        let before = members.len();
        members.retain(|key, _| {
            let listed = key.strip_prefix("v:").or_else(|| key.strip_prefix("k:"));
            !listed.is_some_and(|listed| self.are_in(listed.as_bytes(), 0))
        });
        let changed = members.len() != before;
        members.values_mut().fold(changed, |changed, below| self.cut_keys(below) | changed)
    }
}

/// Calls `found` for each value at a path until it returns true. Returns true if it did. Follows paths as
/// [`Redactor`](super::Redactor) does.
fn visit(value: &Value, steps: &[PathStep], found: &mut impl FnMut(&Value) -> bool) -> bool {
    match (steps.split_first(), value) {
        (None, _) => found(value),
        (Some((PathStep::Member(name), rest)), Value::Object(members)) => {
            members.get(&**name).is_some_and(|member| visit(member, rest, found))
        }
        (Some((PathStep::Each, rest)), Value::Object(members)) => {
            members.values().any(|member| visit(member, rest, found))
        }
        (Some((PathStep::Each, rest)), Value::Array(items)) => items.iter().any(|item| visit(item, rest, found)),
        (Some((PathStep::Each, _)), value) if is_text(value) => found(value),
        _ => false,
    }
}
