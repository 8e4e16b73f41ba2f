//! What must not travel: values that are replaced or cut where objects come in (D11).
//!
//! A [`Redactor`] is the pure function; it works on every object before the cache, the journal, handlers and logs see it. Of a
//! Secret nothing but the names of its keys stays:
//!
//! - `hmac`: each value becomes an HMAC-SHA256 over the object's uid, the path and the value. That it changed can be seen, what
//!   it is cannot; two objects with one value do not look alike.
//! - `drop`: the values are cut.
//!
//! A rule may have a condition: it is judged of the object as it came, and one that cannot be evaluated holds.
//!
//! What stands in the place of a value of a Secret's `data` is base64, as the API demands, so that typed decoding goes on.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

use crate::{
    object::{FieldPath, Object, PathStep, ResourceType},
    rules::{Condition, RuleError},
};

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
    /// Of which objects; `None`: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
}

/// Objects of which a CEL expression is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Only {
    /// The expression, over `object` and `cluster`.
    pub expression: String,
    /// What it calls `cluster`.
    pub cluster: String,
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
            only: None,
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
    rules: Arc<[(Rule, Option<Condition>)]>,
    /// The objects were redacted before: what is a digest already stays one, and conditions say nothing of them.
    is_for_redacted: bool,
}

impl Redactor {
    /// Makes a redactor of the rules for a type.
    ///
    /// # Errors
    /// A condition that cannot be used.
    pub fn new(key: Key, rules: &[Rule]) -> Result<Self, RuleError> {
        let ready = |rule: &Rule| {
            let condition = rule.only.as_ref().map(|only| Condition::compile(&only.expression, &only.cluster));
            Ok((rule.clone(), condition.transpose()?))
        };
        let rules = rules.iter().map(ready).collect::<Result<_, RuleError>>()?;
        Ok(Self { key, rules, is_for_redacted: false })
    }

    /// Returns one for objects that other rules were applied to, or none: what is a digest already stays as it is,
    /// whatever key made it. What a condition reads may be a digest too: every rule holds.
    #[must_use]
    pub fn for_redacted(self) -> Self {
        Self { is_for_redacted: true, ..self }
    }

    /// Returns the object without what must not travel; `None` where there is nothing of it. What it makes depends on
    /// the object and the key alone. `doubt` is told each rule whose condition cannot be evaluated; the rule holds.
    ///
    /// # Errors
    /// Bytes that are no JSON: the object must not be shown then. What is said of them names a place, no content.
    pub fn apply(&self, object: &Object, mut doubt: impl FnMut(&Rule)) -> Result<Option<Object>, RedactError> {
        // All are judged before the first changes anything.
        let holds = |(rule, condition): &(Rule, Option<Condition>)| {
            let Some(condition) = condition.as_ref().filter(|_| !self.is_for_redacted) else { return true };
            // The error may have values in it: nobody is told.
            condition.is_true(object).unwrap_or_else(|_| {
                doubt(rule);
                true
            })
        };
        let held: Vec<_> = self.rules.iter().map(holds).collect();
        let rules: Vec<_> =
            self.rules.iter().zip(held).filter(|(_, holds)| *holds).map(|((rule, _), _)| rule).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let mut value = object.value().map_err(RedactError::new)?;
        let owner = match object.uid() {
            "" => object.key().to_string(),
            uid => uid.to_owned(),
        };
        let mut changed = false;
        for rule in rules {
            changed |= self.redact(&mut value, rule.path.steps(), &mut String::new(), rule, &owner);
        }
        if !changed {
            return Ok(None);
        }
        Object::from_json(value.to_string().as_bytes()).map(Some).map_err(RedactError::new)
    }

    /// Follows `steps` from `value`; returns whether something was replaced or cut.
    fn redact(&self, value: &mut Value, steps: &[PathStep], path: &mut String, rule: &Rule, owner: &str) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return self.replace(value, path, rule, owner);
        };
        let mut follow = |name: &str, value: &mut Value| {
            let len = path.len();
            path.push('\0'); // no name has one
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

fn is_digest(value: &Value, base64: bool) -> bool {
    let Value::String(text) = value else { return false };
    let text = if base64 { STANDARD.decode(text).unwrap_or_default() } else { text.as_bytes().to_vec() };
    let digest = text.strip_prefix(MARK.as_bytes());
    digest.is_some_and(|digest| digest.len() == 64 && digest.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests;
