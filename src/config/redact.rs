//! `[redact]`: values that are redacted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Mode,
    text::{Format, Optional, means_entry},
};
use crate::{
    object::{FieldPath, PathStep, ResourceType},
    redact::{Fingerprint, Only, Redaction, Rule, Treatment, is_secrets},
    secret::SecretRef,
};

/// Values that are replaced or removed when objects arrive: before the cache, the journal and every handler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Redact {
    /// Treatment of the values of Secrets. `hmac` replaces each by a digest, which shows changes but not the value. `drop`
    /// removes keys and values. `metadata` never fetches them.
    pub secrets: SecretValues,
    /// Key of the digests: text of at least 16 bytes, the same for all replicas, read at the start and at each reload.
    /// Default: a random key, kept in `[state] dir`. Without that directory, digests differ after a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub hmac_key: Option<SecretRef>,
    /// Further values that are replaced by digests. Default: none.
    pub paths: Vec<RedactedPath>,
    /// Fingerprint of the key, set by a running engine.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) key: Option<Fingerprint>,
    /// Value of `cluster` in conditions, set by a running engine.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) cluster: String,
}

/// Treatment of the values of Secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SecretValues {
    /// Digests replace the values.
    #[default]
    Hmac,
    /// Keys and values are removed.
    Drop,
    /// Values are never fetched.
    Metadata,
}

/// Path whose values are replaced by digests, in the objects of some entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedactedPath {
    /// Names and globs of `[resources.*]` entries; `!` before a name or glob excludes, with precedence.
    #[serde(default = "super::text::all")]
    #[schemars(transform = Format::ResourceNames)]
    pub resources: Vec<String>,
    /// Path of the values, for instance "data.*". The digest is text, whatever the value was. Required.
    #[schemars(transform = Format::FieldPath)]
    pub path: String,
    /// CEL expression over `object` and `cluster`: only objects for which it is true are redacted. `object` is the object before
    /// redaction. If the expression cannot be evaluated, the values are redacted. Default "": all objects.
    #[serde(rename = "where", default, with = "Optional", skip_serializing_if = "Option::is_none")]
    #[schemars(transform = Format::Condition)]
    pub only_where: Option<String>,
}

impl RedactedPath {
    /// Returns true if the values of this entry's objects are redacted.
    pub(crate) fn means(&self, entry: &str) -> bool {
        means_entry(&self.resources, entry)
    }
}

impl Redact {
    /// Returns true if digests may replace any values.
    pub fn makes_digests(&self) -> bool {
        self.secrets == SecretValues::Hmac || !self.paths.is_empty()
    }

    /// Returns the redaction for objects of a type that an entry watches.
    pub fn of(&self, entry: &str, resource: &ResourceType, mode: Mode) -> Redaction {
        let is_secrets = is_secrets(resource);
        if !is_secrets && self.paths.is_empty() {
            return Redaction::default();
        }
        let metadata_only = is_secrets && self.secrets == SecretValues::Metadata;
        let mut rules = Vec::new();
        if is_secrets {
            // If no digests are wanted, the values are cut. This includes metadata: a server may send values although metadata was
            // requested.
            let wants_digests = self.secrets == SecretValues::Hmac && mode == Mode::Full;
            rules = Rule::of_secrets(if wants_digests { Treatment::Hmac } else { Treatment::Drop });
        }
        let of_entry = self.paths.iter().filter(|wanted| wanted.means(entry));
        // Invalid paths were refused when the configuration was loaded.
        rules.extend(of_entry.filter_map(|wanted| {
            let path = FieldPath::parse(&wanted.path).ok()?;
            let only = wanted.only_where.clone();
            let only = only.map(|expression| Only { expression, cluster: self.cluster.clone() });
            Some(Rule { base64: is_base64(resource, &path), path, treatment: Treatment::Hmac, only })
        }));
        Redaction::new(metadata_only, rules, self.key.as_ref())
    }
}

/// Returns true if the API requires base64 at a path; clients could not decode an object with other text there.
fn is_base64(resource: &ResourceType, path: &FieldPath) -> bool {
    let holder = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "secrets") => "data",
        ("", "configmaps") => "binaryData",
        _ => return false,
    };
    matches!(path.steps().first(), Some(PathStep::Member(first)) if **first == *holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(plural: &str) -> ResourceType {
        ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: plural.to_uppercase(),
            plural: plural.into(),
            namespaced: true,
        }
    }

    fn redact(text: &str) -> Redact {
        toml::from_str(text).unwrap()
    }

    /// Returns the paths of the rules. `-` marks a path that is cut; `=` marks a path whose values are base64.
    fn rules(redact: &Redact, entry: &str, plural: &str, mode: Mode) -> Vec<String> {
        let said = |rule: &Rule| {
            let cut = if rule.treatment == Treatment::Drop { "-" } else { "" };
            format!("{cut}{}{}", if rule.base64 { "=" } else { "" }, rule.path)
        };
        redact.of(entry, &resource(plural), mode).rules.iter().map(said).collect()
    }

    #[test]
    fn only_secrets_are_redacted_by_default() {
        // Where values are cut, their names are cut from `managedFields` too.
        for (text, count) in [("", 3), ("secrets = \"drop\"", 5), ("secrets = \"metadata\"", 5)] {
            let redact = redact(text);
            assert_eq!(redact.of("a", &resource("secrets"), Mode::Full).rules.len(), count, "{text}");
            assert_eq!(redact.of("a", &resource("pods"), Mode::Full), Redaction::default(), "{text}");
            let of_a_group = ResourceType { group: "acme.io".into(), ..resource("secrets") };
            assert_eq!(redact.of("a", &of_a_group, Mode::Full), Redaction::default(), "{text}");
        }
        assert!(rules(&redact(""), "a", "secrets", Mode::Full)[0].starts_with("=data"));
        assert!(rules(&redact(""), "a", "secrets", Mode::Metadata)[0].starts_with("-="), "there should be none");
        assert!(rules(&redact("secrets = \"drop\""), "a", "secrets", Mode::Full)[0].starts_with("-="));
    }

    #[test]
    fn redacted_paths_apply_to_named_entries() {
        let redact =
            redact("paths = [{ resources = [\"conf*\", \"!config_b\"], path = \"data.*\" }, { path = \"spec.x\" }]");
        let of = |entry| rules(&redact, entry, "configmaps", Mode::Full);
        assert_eq!(of("config_a"), ["data[*]", "spec.x"]);
        assert_eq!(of("config_b"), ["spec.x"]);
        assert_eq!(of("pods"), ["spec.x"]);
    }

    #[test]
    fn redacted_path_has_its_own_condition() {
        let redact = Redact {
            cluster: "prod".to_owned(),
            ..redact("paths = [{ path = \"a\", where = \"cluster == 'x'\" }, { path = \"b\", where = \"\" }]")
        };
        let rules = redact.of("a", &resource("pods"), Mode::Full).rules;
        let only = Only { expression: "cluster == 'x'".to_owned(), cluster: "prod".to_owned() };
        assert_eq!(rules.into_iter().map(|rule| rule.only).collect::<Vec<_>>(), [Some(only), None]);
    }

    #[test]
    fn base64_values_stay_base64() {
        let redact = redact("paths = [{ path = \"data.*\" }, { path = \"binaryData.*\" }]");
        assert_eq!(rules(&redact, "a", "configmaps", Mode::Full), ["data[*]", "=binaryData[*]"]);
        assert_eq!(rules(&redact, "a", "secrets", Mode::Full)[3..], ["=data[*]", "binaryData[*]"]);
    }

    #[test]
    fn different_key_gives_different_redaction() {
        let with_key = |text: &str, key: &[u8]| {
            let key = crate::redact::Key::new(key).unwrap().fingerprint();
            Redact { key: Some(key), ..redact(text) }.of("a", &resource("secrets"), Mode::Full)
        };
        let [one, other] = [b"0123456789abcdef", b"fedcba9876543210"];
        assert_ne!(with_key("", one), with_key("", other));
        assert_eq!(with_key("secrets = \"drop\"", one), with_key("secrets = \"drop\"", other));
    }
}
