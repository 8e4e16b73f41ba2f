//! What must not travel: values that are replaced or cut where objects come in (D11).
//!
//! A [`Redactor`] is the pure function; it works on every object before the cache, the journal, handlers and logs see it. Of a
//! Secret nothing but the names of its keys stays:
//!
//! - `hmac`: each value becomes an HMAC-SHA256 over the object's uid, the path and the value. That it changed can be seen, what
//!   it is cannot; two objects with one value do not look alike.
//! - `drop`: the values are cut.
//!
//! What stands in the place of a value of a Secret's `data` is base64, as the API demands, so that typed decoding goes on.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

use crate::object::{FieldPath, Object, ResourceType, Step};

/// What stands before the digest, so that everybody sees what it is.
const MARK: &str = "hmac-sha256:";

/// The key of all digests: the same key makes the same digest of the same value. At least 16 bytes.
#[derive(Clone)]
pub struct Key(Arc<[u8]>);

/// A key that is too short to keep anything secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a key of at least 16 bytes, found {0}")]
pub struct KeyTooShort(pub usize);

impl Key {
    /// Shortest key in bytes.
    pub const LEN_MIN: usize = 16;

    /// Makes a key.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooShort> {
        if bytes.len() < Self::LEN_MIN { Err(KeyTooShort(bytes.len())) } else { Ok(Self(bytes.into())) }
    }

    /// Returns what tells this key from others, and nothing else of it.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.digest("", "the key itself", &Value::Null))
    }

    /// Returns what stands for a value.
    fn digest(&self, owner: &str, path: &str, value: &Value) -> String {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // Lengths keep ("a", "bc") and ("ab", "c") apart.
        for part in [owner, path, &value.to_string()] {
            hmac.update(&(part.len() as u64).to_be_bytes());
            hmac.update(part.as_bytes());
        }
        let digest = hmac.finalize().into_bytes();
        digest.iter().fold(MARK.to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

/// Tells one [`Key`] from another; the key cannot be had from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(String);

/// What becomes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Treatment {
    /// It is replaced by a digest.
    #[default]
    Hmac,
    /// It is cut.
    Drop,
}

/// Values of some types that must not travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Where they are.
    pub path: FieldPath,
    /// What becomes of them.
    pub treatment: Treatment,
    /// They are bytes in base64, and what replaces them must be.
    pub base64: bool,
}

impl Rule {
    /// Returns the rules for Secrets: their values, and what `kubectl apply` keeps of them.
    ///
    /// # Panics
    /// Never: the paths are right.
    pub fn of_secrets(treatment: Treatment) -> Vec<Self> {
        let rule = |path: &str, treatment, base64| Self {
            path: FieldPath::parse(path).expect("a path that is written right"),
            treatment,
            base64,
        };
        vec![
            rule("data[*]", treatment, true),
            rule("stringData[*]", treatment, false),
            rule("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", Treatment::Drop, false),
        ]
    }
}

/// All that is done about the values of one type. Two that are equal make the same of the same object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redaction {
    /// The values are not even fetched: metadata alone is.
    pub metadata_only: bool,
    /// What is taken out.
    pub rules: Vec<Rule>,
    /// Which key makes the digests; `None` where there are none.
    pub key: Option<Fingerprint>,
}

impl Redaction {
    /// Puts together what is done; `key` counts only where something becomes a digest.
    pub fn new(metadata_only: bool, rules: Vec<Rule>, key: Option<&Fingerprint>) -> Self {
        let makes_digests = rules.iter().any(|rule| rule.treatment == Treatment::Hmac);
        Self { metadata_only, rules, key: key.filter(|_| makes_digests).cloned() }
    }
}

/// Returns whether a type is the Secrets of the core group.
pub fn is_secrets(resource: &ResourceType) -> bool {
    resource.group.is_empty() && resource.plural == "secrets"
}

/// An object whose values cannot be taken out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to redact: {0}")]
pub struct RedactError(String);

impl RedactError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Takes values out of the objects of one type.
#[derive(Clone, Debug)]
pub struct Redactor {
    key: Key,
    rules: Arc<[Rule]>,
    /// What is a digest already stays one.
    spares_digests: bool,
}

impl Redactor {
    /// Makes a redactor of the rules for a type.
    pub fn new(key: Key, rules: &[Rule]) -> Self {
        Self { key, rules: rules.into(), spares_digests: false }
    }

    /// Returns one for objects that other rules were applied to, or none: what is a digest already stays as it is,
    /// whatever key made it.
    #[must_use]
    pub fn sparing_digests(self) -> Self {
        Self { spares_digests: true, ..self }
    }

    /// Returns the object without what must not travel; `None` where there is nothing of it. What it makes depends on
    /// the object and the key alone.
    ///
    /// # Errors
    /// Bytes that are no JSON: the object must not be shown then. What is said of them names a place, no content.
    pub fn apply(&self, object: &Object) -> Result<Option<Object>, RedactError> {
        let mut value = object.value().map_err(RedactError::new)?;
        let owner = match object.uid() {
            "" => object.key().to_string(),
            uid => uid.to_owned(),
        };
        let mut changed = false;
        for rule in &*self.rules {
            changed |= self.redact(&mut value, rule.path.steps(), &mut String::new(), rule, &owner);
        }
        if !changed {
            return Ok(None);
        }
        Object::from_json(value.to_string().as_bytes()).map(Some).map_err(RedactError::new)
    }

    /// Follows `steps` from `value`; returns whether something was replaced or cut.
    fn redact(&self, value: &mut Value, steps: &[Step], path: &mut String, rule: &Rule, owner: &str) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return self.replace(value, path, rule, owner);
        };
        let len = path.len();
        let mut changed = false;
        match (step, value) {
            (Step::Member(name), Value::Object(members)) => {
                if rest.is_empty() && rule.treatment == Treatment::Drop {
                    return members.remove(&**name).is_some();
                }
                if let Some(member) = members.get_mut(&**name) {
                    push(path, name);
                    changed = self.redact(member, rest, path, rule, owner);
                }
            }
            (Step::Each, Value::Object(members)) => {
                if rest.is_empty() && rule.treatment == Treatment::Drop {
                    let had = !members.is_empty();
                    members.clear();
                    return had;
                }
                for (name, member) in members {
                    path.truncate(len);
                    push(path, name);
                    changed |= self.redact(member, rest, path, rule, owner);
                }
            }
            (Step::Each, Value::Array(items)) => {
                if rest.is_empty() && rule.treatment == Treatment::Drop {
                    let had = !items.is_empty();
                    items.clear();
                    return had;
                }
                for (at, item) in items.iter_mut().enumerate() {
                    path.truncate(len);
                    push(path, &at.to_string());
                    changed |= self.redact(item, rest, path, rule, owner);
                }
            }
            _ => {}
        }
        path.truncate(len);
        changed
    }

    fn replace(&self, value: &mut Value, path: &str, rule: &Rule, owner: &str) -> bool {
        if self.spares_digests && is_digest(value, rule.base64) {
            return false;
        }
        let digest = self.key.digest(owner, path, value);
        *value = Value::String(if rule.base64 { STANDARD.encode(digest) } else { digest });
        true
    }
}

fn is_digest(value: &Value, base64: bool) -> bool {
    let Value::String(text) = value else { return false };
    let text = if base64 { STANDARD.decode(text).unwrap_or_default() } else { text.as_bytes().to_vec() };
    let digest = text.strip_prefix(MARK.as_bytes());
    digest.is_some_and(|digest| digest.len() == 64 && digest.iter().all(u8::is_ascii_hexdigit))
}

fn push(path: &mut String, step: &str) {
    path.push('\0'); // no name has one
    path.push_str(step);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key() -> Key {
        Key::new(b"0123456789abcdef").unwrap()
    }

    fn object(value: &Value) -> Object {
        Object::from_json(value.to_string().as_bytes()).unwrap()
    }

    fn secret(uid: &str, data: &Value) -> Object {
        object(&json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
            "metadata": { "name": "db", "namespace": "n", "uid": uid, "resourceVersion": "7", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"password\":\"aHVudGVyMg==\"}}", "team": "a",
            }},
        }))
    }

    fn redacted(object: &Object, treatment: Treatment) -> Value {
        let redactor = Redactor::new(key(), &Rule::of_secrets(treatment));
        redactor.apply(object).unwrap().expect("there is something to take out").value().unwrap()
    }

    #[test]
    fn d11_a_secret_keeps_the_names_of_its_keys_and_a_digest_that_is_base64() {
        let before = secret("u1", &json!({ "password": "aHVudGVyMg==", "user": "cm9vdA==" }));
        let after = redacted(&before, Treatment::Hmac);
        assert!(!after.to_string().contains("aHVudGVyMg") && !after.to_string().contains("last-applied"));
        assert_eq!(after["metadata"]["annotations"], json!({ "team": "a" }));
        for name in ["password", "user"] {
            let digest = STANDARD.decode(after["data"][name].as_str().unwrap()).unwrap();
            let digest = String::from_utf8(digest).unwrap();
            assert_eq!((digest.len(), digest.starts_with(MARK)), (MARK.len() + 64, true), "{digest}");
        }
        assert_eq!(after["type"], "Opaque");
        let typed: k8s_openapi::api::core::v1::Secret = serde_json::from_value(after).unwrap();
        assert_eq!(typed.data.unwrap().len(), 2, "typed decoding goes on");
    }

    #[test]
    fn d11_a_digest_tells_a_change_and_nothing_else() {
        let digest = |uid: &str, name: &str, value: &str| {
            redacted(&secret(uid, &json!({ name: value })), Treatment::Hmac)["data"][name].clone()
        };
        let first = digest("u1", "a", "eA==");
        assert_eq!(first, digest("u1", "a", "eA=="), "the same value looks the same");
        for (other, what) in [
            (digest("u1", "a", "eQ=="), "another value"),
            (digest("u2", "a", "eA=="), "another object"),
            (digest("u1", "b", "eA=="), "another place"),
        ] {
            assert_ne!(first, other, "{what}");
        }
        let other_key =
            Redactor::new(Key::new(b"another key of some length").unwrap(), &Rule::of_secrets(Treatment::Hmac));
        let other = other_key.apply(&secret("u1", &json!({ "a": "eA==" }))).unwrap().unwrap().value().unwrap();
        assert_ne!(first, other["data"]["a"], "another key");
    }

    #[test]
    fn d11_dropped_values_are_gone() {
        let after = redacted(&secret("u1", &json!({ "password": "aHVudGVyMg==" })), Treatment::Drop);
        assert_eq!(after["data"], json!({}));
    }

    #[test]
    fn d11_configured_paths_reach_into_arrays_and_whole_trees() {
        let before = object(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
            "spec": { "containers": [
                { "name": "a", "env": [{ "name": "X", "value": "secret" }, { "name": "Y" }] },
                { "name": "b", "args": { "deep": ["secret"] } },
            ]},
        }));
        let rule = |path: &str, treatment| Rule { path: FieldPath::parse(path).unwrap(), treatment, base64: false };
        let rules = [
            rule("spec.containers[*].env[*].value", Treatment::Hmac),
            rule("spec.containers[*].args", Treatment::Hmac),
            rule("spec.nowhere[*].to", Treatment::Hmac),
        ];
        let after = Redactor::new(key(), &rules).apply(&before).unwrap().unwrap().value().unwrap();
        assert!(!after.to_string().contains("secret"), "{after}");
        let digest = after["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap();
        assert!(digest.starts_with(MARK));
        assert_eq!(after["spec"]["containers"][0]["env"][1], json!({ "name": "Y" }), "what is not there is not made");
        assert!(after["spec"]["containers"][1]["args"].as_str().unwrap().starts_with(MARK));
        let untouched = object(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" } }));
        assert!(Redactor::new(key(), &rules).apply(&untouched).unwrap().is_none());
    }

    #[test]
    fn d11_what_is_a_digest_already_can_be_spared_and_nothing_else_is() {
        let before = secret("u1", &json!({ "password": "aHVudGVyMg==", "empty": "" }));
        let rules = Rule::of_secrets(Treatment::Hmac);
        let first = Redactor::new(key(), &rules).apply(&before).unwrap().unwrap();
        let other = Redactor::new(Key::new(b"another key of some length").unwrap(), &rules).sparing_digests();
        assert!(other.apply(&first).unwrap().is_none(), "a digest of a digest tells of no change");
        let redacted = other.apply(&before).unwrap().unwrap().value().unwrap();
        assert!(!redacted.to_string().contains("aHVudGVyMg"), "{redacted}");
        let like = STANDARD.encode(format!("{MARK}hunter2"));
        let redacted = other.apply(&secret("u1", &json!({ "a": like }))).unwrap().unwrap().value().unwrap();
        assert_ne!(redacted["data"]["a"], like.as_str());
    }

    #[test]
    fn d11_a_fingerprint_tells_keys_apart_and_counts_only_where_there_are_digests() {
        let (one, other) = (key().fingerprint(), Key::new(b"another key of some length").unwrap().fingerprint());
        assert_eq!(one, key().fingerprint());
        assert_ne!(one, other);
        let redaction = |treatment, key| Redaction::new(false, Rule::of_secrets(treatment), Some(key));
        assert_ne!(redaction(Treatment::Hmac, &one), redaction(Treatment::Hmac, &other));
        assert_eq!(redaction(Treatment::Drop, &one), redaction(Treatment::Drop, &other));
    }

    #[test]
    fn d11_debug_output_shows_no_key_and_short_keys_are_refused() {
        assert_eq!(format!("{:?}", key()), "Key(***)");
        assert_eq!(Key::new(b"short").unwrap_err().to_string(), "expected a key of at least 16 bytes, found 5");
    }
}
