//! `[redact]`: values that must not travel (D11).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Mode, schema,
    text::{Optional, means_entry},
};
use crate::{
    object::{FieldPath, PathStep, ResourceType},
    redact::{Fingerprint, Only, Redaction, Rule, Treatment, is_secrets},
    secret::SecretRef,
};

/// Values that are replaced or cut where objects come in: before the cache, the journal and every handler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Redact {
    /// What becomes of the values of Secrets: `hmac`, a digest stands for each, which shows that it changed and not what it
    /// is; `drop`, they are cut; `metadata`, they are never fetched.
    pub secrets: SecretValues,
    /// The key of the digests: text of at least 16 bytes, the same for all replicas; read at the start and at each reload.
    /// Default: one made at random for each run, so that digests differ after a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub hmac_key: Option<SecretRef>,
    /// Further values that a digest stands for. Default none.
    pub paths: Vec<RedactedPath>,
    /// Which key makes the digests of an engine at work; the engine says so.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) key: Option<Fingerprint>,
    /// What conditions call `cluster`; the engine says so.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) cluster: String,
}

/// What becomes of the values of Secrets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SecretValues {
    /// A digest stands for each.
    #[default]
    Hmac,
    /// They are cut.
    Drop,
    /// They are never fetched.
    Metadata,
}

/// Values of some entries that a digest stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedactedPath {
    /// Names of `[resources.*]` and globs; `!` before one excludes and wins.
    #[serde(default = "super::text::all")]
    #[schemars(schema_with = "schema::resource_names")]
    pub resources: Vec<String>,
    /// Where the values are, for instance "data.*". What stands there becomes text, whatever it was. Required.
    #[schemars(schema_with = "schema::field_path")]
    pub path: String,
    /// In which objects: a CEL expression over `object`, as it came, and `cluster`; where it cannot be evaluated, the values are
    /// redacted. Default "": in all.
    #[serde(rename = "where", default, with = "Optional", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::condition")]
    pub only_where: Option<String>,
}

impl Redact {
    /// Returns whether a digest may stand for anything.
    pub fn makes_digests(&self) -> bool {
        self.secrets == SecretValues::Hmac || !self.paths.is_empty()
    }

    /// Returns what is done to the objects of a type that an entry watches.
    pub fn of(&self, entry: &str, resource: &ResourceType, mode: Mode) -> Redaction {
        let is_secrets = is_secrets(resource);
        if !is_secrets && self.paths.is_empty() {
            return Redaction::default();
        }
        let metadata_only = is_secrets && self.secrets == SecretValues::Metadata;
        let mut rules = Vec::new();
        if is_secrets {
            // Where no values are asked for, there should be none: if there are, they go.
            let wants_digests = self.secrets == SecretValues::Hmac && mode == Mode::Full;
            rules = Rule::of_secrets(if wants_digests { Treatment::Hmac } else { Treatment::Drop });
        }
        let of_entry = self.paths.iter().filter(|wanted| means_entry(&wanted.resources, entry));
        // Loading the configuration has refused what is no path.
        rules.extend(of_entry.filter_map(|wanted| {
            let path = FieldPath::parse(&wanted.path).ok()?;
            let only = wanted.only_where.clone();
            let only = only.map(|expression| Only { expression, cluster: self.cluster.clone() });
            Some(Rule { base64: is_base64(resource, &path), path, treatment: Treatment::Hmac, only })
        }));
        Redaction::new(metadata_only, rules, self.key.as_ref())
    }
}

/// Returns whether the API wants base64 at a path: what stands there must be, or nobody can decode the object.
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

    /// The paths of the rules, `-` before those that are cut, `=` before those that stay base64.
    fn rules(redact: &Redact, entry: &str, plural: &str, mode: Mode) -> Vec<String> {
        let said = |rule: &Rule| {
            let cut = if rule.treatment == Treatment::Drop { "-" } else { "" };
            format!("{cut}{}{}", if rule.base64 { "=" } else { "" }, rule.path)
        };
        redact.of(entry, &resource(plural), mode).rules.iter().map(said).collect()
    }

    #[test]
    fn d11_secrets_have_rules_whatever_is_configured_and_other_types_have_none() {
        for text in ["", "secrets = \"drop\"", "secrets = \"metadata\""] {
            let redact = redact(text);
            assert_eq!(redact.of("a", &resource("secrets"), Mode::Full).rules.len(), 3, "{text}");
            assert_eq!(redact.of("a", &resource("pods"), Mode::Full), Redaction::default(), "{text}");
            let of_a_group = ResourceType { group: "acme.io".into(), ..resource("secrets") };
            assert_eq!(redact.of("a", &of_a_group, Mode::Full), Redaction::default(), "{text}");
        }
        assert!(rules(&redact(""), "a", "secrets", Mode::Full)[0].starts_with("=data"));
        assert!(rules(&redact(""), "a", "secrets", Mode::Metadata)[0].starts_with("-="), "there should be none");
        assert!(rules(&redact("secrets = \"drop\""), "a", "secrets", Mode::Full)[0].starts_with("-="));
    }

    #[test]
    fn d11_paths_are_those_of_the_entries_that_they_name() {
        let redact =
            redact("paths = [{ resources = [\"conf*\", \"!config_b\"], path = \"data.*\" }, { path = \"spec.x\" }]");
        let of = |entry| rules(&redact, entry, "configmaps", Mode::Full);
        assert_eq!(of("config_a"), ["data[*]", "spec.x"]);
        assert_eq!(of("config_b"), ["spec.x"]);
        assert_eq!(of("pods"), ["spec.x"]);
    }

    #[test]
    fn d11_a_path_has_the_condition_of_its_own_table() {
        let redact = Redact {
            cluster: "prod".to_owned(),
            ..redact("paths = [{ path = \"a\", where = \"cluster == 'x'\" }, { path = \"b\", where = \"\" }]")
        };
        let rules = redact.of("a", &resource("pods"), Mode::Full).rules;
        let only = Only { expression: "cluster == 'x'".to_owned(), cluster: "prod".to_owned() };
        assert_eq!(rules.into_iter().map(|rule| rule.only).collect::<Vec<_>>(), [Some(only), None]);
    }

    #[test]
    fn d11_what_the_api_wants_as_base64_stays_base64() {
        let redact = redact("paths = [{ path = \"data.*\" }, { path = \"binaryData.*\" }]");
        assert_eq!(rules(&redact, "a", "configmaps", Mode::Full), ["data[*]", "=binaryData[*]"]);
        assert_eq!(rules(&redact, "a", "secrets", Mode::Full)[3..], ["=data[*]", "binaryData[*]"]);
    }

    #[test]
    fn d11_another_key_is_another_redaction_where_digests_are_made() {
        let with_key = |text: &str, key: &[u8]| {
            let key = crate::redact::Key::new(key).unwrap().fingerprint();
            Redact { key: Some(key), ..redact(text) }.of("a", &resource("secrets"), Mode::Full)
        };
        let [one, other] = [b"0123456789abcdef", b"fedcba9876543210"];
        assert_ne!(with_key("", one), with_key("", other));
        assert_eq!(with_key("secrets = \"drop\"", one), with_key("secrets = \"drop\"", other));
    }
}
