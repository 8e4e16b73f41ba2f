//! Redaction: confidential values are replaced or removed when objects arrive.
//!
//! A [`Redactor`] is a pure function. It is applied to every object before the cache, the journal, handlers and logs receive the
//! object. A value has one of these treatments:
//!
//! - `hmac`: the value becomes an HMAC-SHA256 of the object's uid, the path and the value. The field's name remains. Changes of
//!   the value are visible, but the value is not. The same value in two objects gives different digests.
//! - `drop`: the field is removed, with its name and value.
//!
//! A rule may have a condition on the original object. If the condition cannot be evaluated, the rule applies.
//!
//! Digests in a Secret's `data` are base64, as the API requires, so that typed decoding still works.
//!
//! Reasons: `docs/decisions/0017-secrets-do-not-travel.md`.

mod copies;

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

use copies::Copies;

use crate::{
    journal::ChangeKind,
    object::{FieldPath, Object, PathStep, ResourceType},
    rules::{RuleError, RuleVerdict, Rules},
};

/// Prefix of a digest, so that readers recognize it.
const MARK: &str = "hmac-sha256:";

/// Paths in the form of [`Redactor::redact`] that no rule redacts, because they identify the object.
const IDENTITY: [&str; 6] = [
    "\0apiVersion",
    "\0kind",
    "\0metadata\0name",
    "\0metadata\0namespace",
    "\0metadata\0uid",
    "\0metadata\0resourceVersion",
];

/// Key of all digests, at least 16 bytes. With the same key, the same value at the same path of the same object has the same
/// digest.
#[derive(Clone)]
pub(crate) struct Key(Arc<[u8]>);

impl Key {
    /// Makes a key.
    ///
    /// # Errors
    /// Fails if the key is too short to be secure.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, String> {
        match bytes.len() {
            len @ ..16 => Err(format!("expected a key of at least 16 bytes, found {len}")),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// Returns a value that identifies this key without revealing it.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.digest("", "the key itself", &Value::Null))
    }

    /// Returns the digest of a value.
    fn digest(&self, owner: &str, path: &str, value: &Value) -> String {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // The lengths distinguish ("a", "bc") from ("ab", "c").
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

/// Identifier of a [`Key`]. The key cannot be derived from its fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(String);

/// Treatment of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Treatment {
    /// Replaces the value with a digest.
    #[default]
    Hmac,
    /// Removes the field, with its name and value.
    Drop,
}

/// Rule for confidential values of some types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Path of the values.
    pub path: FieldPath,
    /// Treatment of the values.
    pub treatment: Treatment,
    /// Set if the values are bytes in base64. A replacement must then be base64 too.
    pub base64: bool,
    /// Condition on the objects; `None`: all objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
}

/// Objects for which a CEL expression is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Only {
    /// The expression, over `object` and `cluster`.
    pub expression: String,
    /// Value of `cluster` in the expression.
    pub cluster: String,
}

impl Rule {
    /// Returns the rules for Secrets: for the values, and for the annotation in which `kubectl apply` keeps a copy of the values.
    /// If the values are removed, their names are also removed from `managedFields`.
    ///
    /// # Panics
    /// Never: the paths are valid.
    pub fn of_secrets(treatment: Treatment) -> Vec<Self> {
        let rule = |path: &str, treatment, base64| Self {
            path: FieldPath::parse(path).expect("the path is valid"),
            treatment,
            base64,
            only: None,
        };
        let mut rules = vec![
            rule("data[*]", treatment, true),
            rule("stringData[*]", treatment, false),
            rule("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", Treatment::Drop, false),
        ];
        if treatment == Treatment::Drop {
            let names = ["f:data", "f:stringData"].map(|name| format!("metadata.managedFields[*].fieldsV1['{name}']"));
            rules.extend(names.map(|path| rule(&path, Treatment::Drop, false)));
        }
        rules
    }
}

/// Complete redaction of one type. Equal redactions give equal results for the same object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redaction {
    /// Set if only the metadata of objects is fetched, without the values.
    pub metadata_only: bool,
    /// Rules for the values.
    pub rules: Vec<Rule>,
    /// Key of the digests; `None` if there are no digests.
    pub key: Option<Fingerprint>,
    /// Set if copies of the values are redacted too. Releases up to 0.2 did not redact them.
    #[serde(default)]
    pub copies: bool,
}

impl Redaction {
    /// Makes a redaction; `key` is ignored if no value becomes a digest.
    pub fn new(metadata_only: bool, rules: Vec<Rule>, key: Option<&Fingerprint>) -> Self {
        let makes_digests = rules.iter().any(|rule| rule.treatment == Treatment::Hmac);
        let copies = !rules.is_empty();
        Self { metadata_only, rules, key: key.filter(|_| makes_digests).cloned(), copies }
    }
}

/// Returns true if the type is the Secrets of the core group.
pub(crate) fn is_secrets(resource: &ResourceType) -> bool {
    resource.group.is_empty() && resource.plural == "secrets"
}

/// Error: an object could not be redacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to redact: {0}")]
pub(crate) struct RedactError(String);

impl RedactError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Redacts the objects of one type.
#[derive(Clone, Debug)]
pub(crate) struct Redactor {
    key: Key,
    rules: Arc<[(Rule, Option<Rules>)]>,
    /// Set if the objects are already redacted. Existing digests then remain, and conditions are ignored.
    is_for_redacted: bool,
}

impl Redactor {
    /// Makes a redactor of the rules for a type.
    ///
    /// # Errors
    /// Fails if a condition is invalid.
    pub(crate) fn new(key: Key, rules: &[Rule]) -> Result<Self, RuleError> {
        let ready = |rule: &Rule| {
            let condition = rule.only.as_ref().map(|only| Rules::condition(&only.expression, &only.cluster));
            Ok((rule.clone(), condition.transpose()?))
        };
        let rules = rules.iter().map(ready).collect::<Result<_, RuleError>>()?;
        Ok(Self { key, rules, is_for_redacted: false })
    }

    /// Returns a redactor for objects that are already redacted, by any rules. Existing digests remain, whatever their
    /// key. Conditions are ignored, because they might read digests: every rule applies.
    #[must_use]
    pub(crate) fn for_redacted(self) -> Self {
        Self { is_for_redacted: true, ..self }
    }

    /// Returns the redacted object; `None` if nothing was changed. The same redactor gives the same result for the same object.
    /// `doubt` is called with each rule whose condition cannot be evaluated; the rule then applies.
    ///
    /// # Errors
    /// Fails if the object is not valid JSON. The caller must then not show the object. The error has a position, but no content.
    pub(crate) fn apply(&self, object: &Object, mut doubt: impl FnMut(&Rule)) -> Result<Option<Object>, RedactError> {
        // All conditions are evaluated before the first change.
        let holds = |(rule, condition): &&(Rule, Option<Rules>)| {
            let Some(condition) = condition.as_ref().filter(|_| !self.is_for_redacted) else { return true };
            match condition.judge(ChangeKind::Added, None, object) {
                RuleVerdict::Match => true,
                RuleVerdict::NotTrue | RuleVerdict::NotChanged => false,
                // The error may contain values, so it is not reported.
                RuleVerdict::Error(_) | RuleVerdict::Exceeded(_) => {
                    doubt(rule);
                    true
                }
            }
        };
        let rules: Vec<_> = self.rules.iter().filter(holds).map(|(rule, _)| rule).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let mut value = object.value().map_err(RedactError::new)?;
        let owner = match object.uid() {
            "" => object.key().to_string(),
            uid => uid.to_owned(),
        };
        let copies = Copies::of(&value, &rules);
        let mut changed = false;
        for rule in &rules {
            changed |= self.redact(&mut value, rule.path.steps(), &mut String::new(), rule, &owner);
        }
        if let Some(copies) = copies {
            let is_digested = rules.iter().any(|rule| rule.treatment == Treatment::Hmac);
            changed |= copies.redact(&mut value, |name, value| {
                let path = ["", "metadata", "annotations", name].join("\0");
                *value = Value::String(self.key.digest(&owner, &path, value));
                is_digested
            });
        }
        if !changed {
            return Ok(None);
        }
        Object::from_json(value.to_string().as_bytes()).map(Some).map_err(RedactError::new)
    }

    /// Follows `steps` from `value`; returns true if a value was replaced or removed.
    fn redact(&self, value: &mut Value, steps: &[PathStep], path: &mut String, rule: &Rule, owner: &str) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return self.replace(value, path, rule, owner);
        };
        let mut follow = |name: &str, value: &mut Value| {
            let len = path.len();
            path.push('\0'); // no name contains this
            path.push_str(name);
            let changed = self.redact(value, rest, path, rule, owner);
            path.truncate(len);
            changed
        };
        let is_cut = rest.is_empty() && rule.treatment == Treatment::Drop;
        match (step, value) {
            (PathStep::Member(name), Value::Object(members)) if is_cut => members.remove(&**name).is_some(),
            (PathStep::Member(name), Value::Object(members)) => {
                members.get_mut(&**name).is_some_and(|member| follow(name, member))
            }
            (PathStep::Each, Value::Object(members)) if is_cut => !std::mem::take(members).is_empty(),
            (PathStep::Each, Value::Object(members)) => {
                members.iter_mut().fold(false, |changed, (name, member)| follow(name, member) | changed)
            }
            (PathStep::Each, Value::Array(items)) if is_cut => !std::mem::take(items).is_empty(),
            (PathStep::Each, Value::Array(items)) => {
                items.iter_mut().enumerate().fold(false, |changed, (at, item)| follow(&at.to_string(), item) | changed)
            }
            // The path expects a list or an object. Text in its place may contain the values, so all of it is redacted.
            (PathStep::Each, value) if is_text(value) && !IDENTITY.contains(&path.as_str()) => match rule.treatment {
                Treatment::Hmac => self.replace(value, path, rule, owner),
                Treatment::Drop => {
                    *value = Value::Null;
                    true
                }
            },
            _ => false,
        }
    }

    fn replace(&self, value: &mut Value, path: &str, rule: &Rule, owner: &str) -> bool {
        if self.is_for_redacted && is_digest(value, rule.base64) {
            return false;
        }
        let digest = self.key.digest(owner, path, value);
        *value = Value::String(if rule.base64 { STANDARD.encode(digest) } else { digest });
        true
    }
}

/// Returns true for a string or a number.
fn is_text(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

fn is_digest(value: &Value, base64: bool) -> bool {
    let Value::String(text) = value else { return false };
    let text = if base64 { STANDARD.decode(text).unwrap_or_default() } else { text.as_bytes().to_vec() };
    let digest = text.strip_prefix(MARK.as_bytes());
    digest.is_some_and(|digest| digest.len() == 64 && digest.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests;
