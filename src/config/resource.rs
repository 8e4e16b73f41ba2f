//! `[resources.<name>]`: what is watched.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::{schema, text};
use crate::discovery::{Pattern, PatternError};

/// One entry of what is watched: types, and how their objects are selected, kept and queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resource {
    /// The types, as kubectl spells them: plural, short name or kind, alone ("pods", "po", "Pod"), with their group
    /// ("deployments.apps"), or with version and group ("deployments.v1.apps"). Required.
    #[serde(rename = "match")]
    #[schemars(schema_with = "schema::type_patterns")]
    pub patterns: Vec<TypePattern>,
    /// Label selector, applied by the server, for instance "app in (web,api),!legacy". Default "": all.
    #[serde(default)]
    #[schemars(schema_with = "schema::label_selector")]
    pub labels: String,
    /// Field selector, applied by the server, for instance "status.phase!=Succeeded". Default "": all.
    #[serde(default)]
    #[schemars(schema_with = "schema::field_selector")]
    pub fields: String,
    /// Indexes beside that of the namespace: paths such as "spec.nodeName", "metadata.uid", `labels['app']`, and
    /// "owner". Default none.
    #[serde(default)]
    #[schemars(schema_with = "schema::indexes")]
    pub index: Vec<String>,
    /// `full` objects, or `metadata` alone (`PartialObjectMetadata`: far less to transfer and to keep). Secrets are always
    /// watched as `metadata`.
    #[serde(default)]
    pub mode: Mode,
    /// What `[defaults.resources]` can set for all entries.
    #[serde(flatten)]
    pub options: ResourceOptions,
}

/// Options that every entry inherits from `[defaults.resources]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResourceOptions {
    /// Paths cut from an object before it is stored or sent.
    #[schemars(schema_with = "schema::field_paths")]
    pub drop: Vec<String>,
    /// How often cached objects are delivered again, with cause `resync`, to handlers that ask for it. "0s": never.
    #[serde(with = "text::duration")]
    #[schemars(schema_with = "schema::duration")]
    pub resync: Duration,
    /// Order of the queue: `stream` keeps the order of arrival across objects, `per-key` groups the changes of an object.
    pub order: QueueOrder,
    /// Bytes that wait in the queue; at the bound nothing more is read from the server.
    #[serde(with = "text::size")]
    #[schemars(schema_with = "schema::size")]
    pub fifo_max_bytes: u64,
    /// What an object is that a list shows under a known name with a new uid: `delete-add` (the old one was deleted, the
    /// new one added) or `update`.
    pub recreated: Recreated,
    /// What to do if a type does not exist: `wait` for it (its CRD may come), `warn` and go on without it, or `fail`.
    pub on_missing: OnMissing,
}

impl Default for ResourceOptions {
    fn default() -> Self {
        Self {
            drop: vec![
                "metadata.managedFields".to_owned(),
                "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']".to_owned(),
            ],
            resync: Duration::ZERO,
            order: QueueOrder::Stream,
            fifo_max_bytes: 64 << 20,
            recreated: Recreated::DeleteAdd,
            on_missing: OnMissing::Wait,
        }
    }
}

/// How much of an object is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All of it.
    #[default]
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
}

/// Order of the queue between reflector and indexer (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// As it arrived (F-20 … F-24, F-40).
    #[default]
    Stream,
    /// The classical `DeltaFIFO` (F-10 … F-17).
    PerKey,
}

/// What a known name with a new uid means in a list (D-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recreated {
    /// The old object was deleted, the new one added.
    #[default]
    DeleteAdd,
    /// The object was updated.
    Update,
}

/// What to do if the server does not serve a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnMissing {
    /// Wait for it.
    #[default]
    Wait,
    /// Say so and go on without it.
    Warn,
    /// Refuse to start.
    Fail,
}

/// One type as kubectl spells it: a plural, short name or kind, and behind a dot its group, or version and group.
///
/// Which of `deployments.v1.apps`' parts are version and group only discovery can say, as with kubectl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TypePattern {
    text: String,
    pattern: Pattern,
}

/// A type pattern that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypePatternError {
    /// It holds a `*`.
    #[error("wildcards are not supported yet, found {0:?}: name each type, such as \"pods\" or \"deployments.apps\"")]
    Wildcard(String),
    /// It is not a name with an optional group.
    #[error(transparent)]
    Malformed(#[from] PatternError),
}

impl TypePattern {
    /// Reads a pattern; a trailing dot stands for the core group (`pods.v1.`).
    pub fn parse(text: &str) -> Result<Self, TypePatternError> {
        if text.contains('*') {
            return Err(TypePatternError::Wildcard(text.to_owned()));
        }
        Ok(Self { text: text.to_owned(), pattern: Pattern::parse(text)? })
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns what it means.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns whether this spells the core group's Secrets.
    pub fn names_secrets(&self) -> bool {
        let Pattern::Type { name, rest } = &self.pattern else { return false };
        matches!(&**name, "secrets" | "secret") && matches!(rest.as_deref(), None | Some("" | "v1" | "v1."))
    }
}

impl Serialize for TypePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl fmt::Display for TypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_kept_as_it_was_written() {
        for (text, meant) in [("pods", "pods"), ("Pod", "pod"), ("Deployment.V1.apps", "deployment.v1.apps")] {
            let pattern = TypePattern::parse(text).unwrap();
            assert_eq!((pattern.as_str(), &*pattern.pattern().to_string()), (text, meant));
        }
        for text in ["", ".", "pods..v1", ".apps", "pods/log", "a b", "-pods", "pods-", "pods.v1.."] {
            assert!(matches!(TypePattern::parse(text), Err(TypePatternError::Malformed(_))), "{text}");
        }
        for text in ["*", "*.apps", "pods.*"] {
            assert!(matches!(TypePattern::parse(text), Err(TypePatternError::Wildcard(_))), "{text}");
        }
    }

    #[test]
    fn secrets_are_known_in_every_spelling() {
        for (text, expected) in [
            ("secrets", true),
            ("Secret", true),
            ("SECRETS.v1.", true),
            ("secrets.v1", true),
            ("secrets.acme.io", false),
            ("secretstores", false),
        ] {
            assert_eq!(TypePattern::parse(text).unwrap().names_secrets(), expected, "{text}");
        }
    }
}
