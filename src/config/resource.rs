//! `[resources.<name>]`: what is watched.

use std::{fmt, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::{
    Compression, QueueOrder, Recreated, schema,
    text::{self, Text},
};
use crate::{
    discovery::{Pattern, PatternError, WantedEntry},
    scope::Namespaces,
};

const LAST_APPLIED: &str = "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";

/// One entry of what is watched: types, and how their objects are selected, kept and queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceConfig {
    /// The types, as kubectl spells them: plural, short name or kind, alone ("pods", "po", "Pod"), with their group
    /// ("deployments.apps"), or with version and group ("deployments.v1.apps"); all of a group, present and future
    /// ("*.cert-manager.io"), or all ("*"). Required. A type belongs to one entry: a name goes before a group, a group
    /// before "*"; entries that name it equally closely need disjoint `namespaces`.
    #[serde(rename = "match")]
    #[schemars(schema_with = "schema::type_patterns")]
    pub patterns: Vec<TypePattern>,
    /// Types that `match` means and that this entry leaves out, in the same spelling. Default none.
    #[serde(default)]
    #[schemars(schema_with = "schema::excluded_types")]
    pub exclude: Vec<TypePattern>,
    /// The namespaces whose objects are shown: names and globs of whole names, `!` before one excludes and wins; for
    /// instance `["*", "!kube-system", "!*-sandbox"]`. Names alone need rights in those namespaces only. Types without
    /// namespaces are shown whatever it says. Default all.
    #[serde(default, with = "text::namespaces")]
    #[schemars(schema_with = "schema::namespaces")]
    pub namespaces: Namespaces,
    /// Label selector on the Namespace objects, followed as their labels change: of `namespaces`, those that match it are
    /// shown. For instance "team=payments". Default "": all.
    #[serde(default)]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: String,
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
    /// `full` objects, or `metadata` alone (`PartialObjectMetadata`: far less to transfer and to keep). The values of
    /// Secrets are redacted: see `[redact]`.
    #[serde(default)]
    pub mode: Mode,
    /// What is kept of objects: `full`, all that is fetched, or `none`, only what tells one version from the next. Without
    /// bodies nothing can be read back, an update has no old state, and a deletion shows the object's name and uid.
    #[serde(default)]
    pub cache: Cache,
    /// What `[defaults.resources]` can set for all entries.
    #[serde(flatten)]
    pub options: ResourceDefaults,
}

/// Options that every entry inherits from `[defaults.resources]`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct ResourceDefaults {
    /// Paths cut from an object before it is stored or sent.
    #[schemars(schema_with = "schema::field_paths")]
    #[educe(Default = vec!["metadata.managedFields".to_owned(), LAST_APPLIED.to_owned()])]
    pub drop: Vec<String>,
    /// Paths that may change without an event: an update that touches nothing but these, `metadata.resourceVersion` and
    /// `metadata.managedFields` refreshes what is cached, and nobody is told. Default none: every update is an event.
    #[schemars(schema_with = "schema::ignored_paths")]
    pub ignore_changes: Vec<String>,
    /// How often cached objects are delivered again, with cause `resync`, to handlers that ask for it. "0s": never.
    #[serde(with = "Text::<Duration>")]
    pub resync: Duration,
    /// Order of the queue: `stream` keeps the order of arrival across objects, `per-key` groups the changes of an object.
    pub order: QueueOrder,
    /// Bytes that wait in the queue; at the bound nothing more is read from the server.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub fifo_max_bytes: u64,
    /// What an object is that a list shows under a known name with a new uid: `delete-add` (the old one was deleted, the
    /// new one added) or `update`.
    pub recreated: Recreated,
    /// How bodies are packed in the cache and in the state directory: `zstd`, the smallest, or `lz4`, which is larger and
    /// reads objects that differ much in less time, both with a dictionary of the type; or `none`.
    pub compression: Compression,
    /// What to do if a type does not exist: `wait` for it (its CRD may come), `warn` and go on without it, or `fail`.
    pub on_missing: OnMissing,
    /// What to do with the objects of a type that goes away, because its CRD was deleted: `drain` (each of them is
    /// `deleted`) or `keep` them as they were.
    pub on_removed: OnRemoved,
}

impl ResourceConfig {
    /// Returns what discovery needs to know of the entry of this name.
    pub fn wanted(&self, name: &str) -> WantedEntry {
        let patterns = |list: &[TypePattern]| list.iter().map(|pattern| pattern.pattern().clone()).collect();
        WantedEntry {
            entry: name.to_owned(),
            patterns: patterns(&self.patterns),
            exclude: patterns(&self.exclude),
            namespaces: self.namespaces.clone(),
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

/// What is kept of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// All that is fetched.
    #[default]
    Full,
    /// What identifies an object and its version; no bodies.
    None,
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

/// What to do with the objects of a type that is not served any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnRemoved {
    /// Each of them is deleted.
    #[default]
    Drain,
    /// They stay as they were.
    Keep,
}

/// One type as kubectl spells it: a plural, short name or kind, and behind a dot its group, or version and group; or all
/// types of a group, `*.GROUP`, or all, `*`.
///
/// Which of `deployments.v1.apps`' parts are version and group only discovery can say, as with kubectl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TypePattern {
    text: String,
    pattern: Pattern,
}

impl TypePattern {
    /// Reads a pattern; a trailing dot stands for the core group (`pods.v1.`).
    pub fn parse(text: &str) -> Result<Self, PatternError> {
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

    /// Returns whether this names the core group's Secrets; a wildcard names nothing.
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
        for (text, meant) in [
            ("pods", "pods"),
            ("Pod", "pod"),
            ("Deployment.V1.apps", "deployment.v1.apps"),
            ("*", "*"),
            ("*.Apps", "*.apps"),
        ] {
            let pattern = TypePattern::parse(text).unwrap();
            assert_eq!((pattern.as_str(), &*pattern.pattern().to_string()), (text, meant));
        }
        for text in ["", ".", "pods..v1", ".apps", "pods/log", "a b", "-pods", "pods-", "pods.v1..", "pods.*"] {
            assert!(TypePattern::parse(text).is_err(), "{text}");
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
            ("*", false),
        ] {
            assert_eq!(TypePattern::parse(text).unwrap().names_secrets(), expected, "{text}");
        }
    }
}
