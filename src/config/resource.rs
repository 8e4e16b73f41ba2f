//! `[resources.<name>]`: watched types.

use std::{fmt, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Compression, QueueOrder, Recreated,
    text::{Format, Text},
};
use crate::{
    discovery::{Pattern, PatternError},
    lister::FieldSelector,
    object::ResourceType,
    redact::is_secrets,
    scope::Namespaces,
};

const LAST_APPLIED: &str = "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";

/// Watched types, and the way their objects are selected, kept and queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceConfig {
    /// Types, spelled as for kubectl: plural, short name or kind, alone ("pods", "po", "Pod"), with their group
    /// ("deployments.apps"), or with version and group ("deployments.v1.apps"). "*.cert-manager.io" means all types of a group,
    /// present and future, "crd:*" all types that a CRD defines, and "*" all types. Required. If several entries match a type, a name
    /// has precedence over a group, a group over "crd:*", and this over "*". Entries with equal precedence need disjoint `namespaces`.
    #[serde(rename = "match")]
    #[schemars(with = "Vec<String>", length(min = 1), transform = Format::TypePattern)]
    pub patterns: Vec<TypePattern>,
    /// Types that `match` selects and this entry leaves out, in the same spelling. Default: none.
    #[serde(default)]
    #[schemars(with = "Vec<String>", transform = Format::TypePattern)]
    pub exclude: Vec<TypePattern>,
    /// Namespaces whose objects are included: names, and globs of whole names. `!` before a name or glob excludes, with
    /// precedence. For instance `["*", "!kube-system", "!*-sandbox"]`. If only plain names are included, the engine
    /// needs rights only in the named namespaces. Cluster-scoped types are always included. Default: all.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(min = 1), transform = Format::Namespace)]
    pub namespaces: Namespaces,
    /// Label selector on Namespace objects, for instance "team=payments". Only matching namespaces of `namespaces` are
    /// included; the engine follows changes of their labels. Default "": all.
    #[serde(default)]
    #[schemars(transform = Format::LabelSelector)]
    pub namespace_selector: String,
    /// Label selector that the server applies, for instance "app in (web,api),!legacy". Default "": all objects.
    #[serde(default)]
    #[schemars(transform = Format::LabelSelector)]
    pub labels: String,
    /// Field selector that the server applies, for instance "status.phase!=Succeeded". Default "": all objects.
    #[serde(default)]
    #[schemars(transform = Format::FieldSelector)]
    pub fields: String,
    /// Indexes in addition to the index by namespace: paths such as "spec.nodeName", "metadata.uid", `labels['app']`, and
    /// "owner". Default: none.
    #[serde(default)]
    #[schemars(transform = Format::Index)]
    pub index: Vec<String>,
    /// Extent of the objects: `full`, or only `metadata` (`PartialObjectMetadata`), which takes far less traffic and memory.
    /// The values of Secrets are redacted: see `[redact]`.
    #[serde(default)]
    pub mode: Mode,
    /// Content of the cache: `full` keeps everything that is fetched; `none` keeps only the identity and version of
    /// each object. With `none`, objects cannot be read, an update has no old state, and a deletion shows only name and
    /// uid.
    #[serde(default)]
    pub cache: Cache,
    /// `true` lets objects hide themselves with the annotation `deltabus.dev/ignore: "true"`. Any writer of an object can then
    /// hide it. RBAC types and Secrets are hidden only if `match` names them. Default: false.
    #[serde(default)]
    pub ignore_annotation: bool,
    /// Options that `[defaults.resources]` can set for all entries.
    #[serde(flatten)]
    pub options: ResourceDefaults,
}

impl ResourceConfig {
    /// Returns true if objects of a type that this entry watches may hide themselves: see `ignore_annotation`.
    pub(crate) fn heeds_ignore_annotation(&self, resource: &ResourceType) -> bool {
        let is_sensitive = is_secrets(resource) || resource.group == "rbac.authorization.k8s.io";
        let is_named = || self.patterns.iter().any(|pattern| pattern.pattern().names(resource));
        self.ignore_annotation && (!is_sensitive || is_named())
    }

    /// Returns the name of the only watched object, if `fields` has `metadata.name=NAME`.
    pub(crate) fn object_name(&self) -> Option<String> {
        // Loading the configuration has refused invalid selectors.
        let fields = FieldSelector::parse(&self.fields).ok()?;
        fields.name().filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

/// Options that every entry inherits from `[defaults.resources]`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct ResourceDefaults {
    /// Paths that are removed from an object before it is stored or sent.
    #[schemars(transform = Format::FieldPath)]
    #[educe(Default = vec!["metadata.managedFields".to_owned(), LAST_APPLIED.to_owned()])]
    pub drop: Vec<String>,
    /// Paths that may change without an event. An update that changes only these paths, `metadata.resourceVersion` and
    /// `metadata.managedFields` refreshes the cache, but is not delivered. Default: none; every update is an event.
    #[schemars(transform = Format::IgnoredPath)]
    pub ignore_changes: Vec<String>,
    /// Interval at which cached objects are delivered again, with cause `resync`, to handlers that ask for it. "0s": never.
    #[serde(with = "Text::<Duration>")]
    pub resync: Duration,
    /// Order of the queue: `stream` keeps the order of arrival across objects, `per-key` groups the changes of an object.
    pub order: QueueOrder,
    /// Maximum bytes that wait in the queue. At the limit, the engine stops reading from the server.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub fifo_max_bytes: u64,
    /// Treatment of an object that a list shows with a known name and a new uid: `delete-add` reports the old object as `deleted`
    /// and the new one as `added`; `update` reports the new one as `updated`.
    pub recreated: Recreated,
    /// Compression of bodies in the cache and in the state directory. `zstd` is the smallest. `lz4` is larger, but faster to read
    /// for objects that differ much. Both use a dictionary of the type. `none` does not compress.
    pub compression: Compression,
    /// Behaviour if a type does not exist: `wait` for its CRD, `warn` and continue without it, or `fail`.
    pub on_missing: OnMissing,
    /// Treatment of the objects of a type whose CRD is deleted: `drain` reports each of them as `deleted`; `keep` leaves them in
    /// the cache unchanged.
    pub on_removed: OnRemoved,
}

/// Fetched part of each object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Mode {
    /// Whole object.
    #[default]
    Full,
    /// `PartialObjectMetadata` only.
    Metadata,
}

/// Content of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Everything that is fetched.
    #[default]
    Full,
    /// Identity and version of an object, without its body.
    None,
}

/// Behaviour if the server does not serve a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnMissing {
    /// Waits for the type.
    #[default]
    Wait,
    /// Warns and continues without the type.
    Warn,
    /// Refuses to start.
    Fail,
}

/// Treatment of the objects of a type that is no longer served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnRemoved {
    /// Each cached object is reported as `deleted`.
    #[default]
    Drain,
    /// Objects stay in the cache unchanged.
    Keep,
}

/// Pattern of types, spelled as for kubectl. It has one of these forms:
/// - a plural, short name or kind; alone, with a group, or with a version and a group
/// - `*.GROUP`: all types of a group
/// - `crd:*`: all types that a CRD defines
/// - `*`: all types
///
/// Only discovery can decide which parts of `deployments.v1.apps` are version and group, as with kubectl.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TypePattern {
    text: String,
    pattern: Pattern,
}

impl TypePattern {
    /// Parses a pattern; a trailing dot stands for the core group (`pods.v1.`).
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Ok(Self { text: text.to_owned(), pattern: Pattern::parse(text)? })
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the parsed pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns true if the pattern names Secrets of the core group. A wildcard names no type.
    pub fn names_secrets(&self) -> bool {
        let Pattern::Type { name, rest } = &self.pattern else { return false };
        matches!(&**name, "secrets" | "secret") && matches!(rest.as_deref(), None | Some("" | "v1" | "v1."))
    }
}

impl TryFrom<String> for TypePattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::parse(&text)
    }
}

impl From<TypePattern> for String {
    fn from(pattern: TypePattern) -> Self {
        pattern.text
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
    fn pattern_keeps_its_original_text() {
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
    fn sensitive_types_are_hidden_only_if_named() {
        let resource = |group: &str, kind: &str, plural: &str| ResourceType {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        let rbac = "rbac.authorization.k8s.io";
        let types = [
            resource("", "Pod", "pods"),
            resource("", "Secret", "secrets"),
            resource(rbac, "Role", "roles"),
            resource(rbac, "ClusterRoleBinding", "clusterrolebindings"),
            resource("acme.io", "Secret", "secrets"),
        ];
        let check = |options: &str, expected: [bool; 5]| {
            let entry: ResourceConfig = toml::from_str(options).unwrap();
            assert_eq!(types.each_ref().map(|resource| entry.heeds_ignore_annotation(resource)), expected, "{options}");
        };
        check("match = ['*']", [false; 5]);
        check("match = ['secrets']\nignore_annotation = false", [false; 5]);
        let on = |patterns: &str| format!("match = {patterns}\nignore_annotation = true");
        check(&on("['*']"), [true, false, false, false, true]);
        check(&on("['*', '*.rbac.authorization.k8s.io', 'secrets.acme.io']"), [true, false, false, false, true]);
        check(&on("['*', 'Secret', 'roles.rbac.authorization.k8s.io']"), [true, true, true, false, true]);
        check(
            &on("['secrets.v1.', 'clusterrolebinding.v1.rbac.authorization.k8s.io']"),
            [true, true, false, true, true],
        );
    }

    #[test]
    fn secrets_are_recognized_in_every_spelling() {
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
