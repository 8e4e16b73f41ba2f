//! Additions of a program to the configuration: its own entries, indexes and transforms.

use std::collections::BTreeMap;

use k8s_openapi::Resource as Typed;
use serde_json::json;

use super::{EngineError, redaction::DigestKey};
use crate::{
    config::{Config, ResourceConfig, TypePattern},
    discovery::Pattern,
    indexer::index_func::IndexFunc,
    journal::store::Store,
    list_watch::transform::Transform,
};

/// Returns the spelling of a type in `match` of a configuration: `pods`, `deployments.v1.apps`.
pub(super) fn pattern_of<K: Typed>() -> String {
    let plural = K::URL_PATH_SEGMENT;
    if K::GROUP.is_empty() { plural.to_owned() } else { format!("{plural}.{}.{}", K::VERSION, K::GROUP) }
}

/// Additions of a program; see the module. They survive every reload of the files.
#[derive(Clone, Debug, Default)]
pub(super) struct Library {
    /// Configuration without the additions of the program.
    pub(super) base: Config,
    pub(super) entries: BTreeMap<String, ResourceConfig>,
    pub(super) indexes: BTreeMap<String, Vec<IndexFunc>>,
    pub(super) transforms: BTreeMap<String, Transform>,
    /// Set if the program needs to know who changed objects.
    pub(super) notes_who_changed: bool,
    /// Key of the digests; `None` until [`Library::config`] has read it.
    pub(super) key: Option<DigestKey>,
    /// Value of `cluster` in rules.
    pub(super) cluster: String,
}

impl Library {
    /// Adds an entry for one type, and returns its name. If the type already has an entry, returns that name and changes
    /// nothing.
    ///
    /// # Errors
    /// Fails if `pattern` is invalid.
    pub(super) fn watch(
        &mut self,
        pattern: &str,
        options: impl FnOnce(&mut ResourceConfig),
    ) -> Result<String, EngineError> {
        let refused = |error: String| EngineError::Configuration(error);
        let parsed = TypePattern::parse(pattern).map_err(|error| refused(error.to_string()))?;
        let names = |resource: &ResourceConfig| {
            resource.patterns.iter().any(|known| is_same(known.pattern(), parsed.pattern()))
        };
        let mut known = self.base.resources.iter().chain(&self.entries);
        if let Some((name, _)) = known.find(|(_, resource)| names(resource)) {
            return Ok(name.clone());
        }
        let mut resource: ResourceConfig =
            serde_json::from_value(json!({ "match": [pattern] })).map_err(|error| refused(error.to_string()))?;
        options(&mut resource);
        let name = self.free_name(pattern);
        self.entries.insert(name.clone(), resource);
        Ok(name)
    }

    /// Returns a free name for an entry: `deployments.apps` → `deployments_apps`, with a number if that is taken.
    fn free_name(&self, pattern: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let mut base: String = pattern.chars().map(plain).collect();
        if !base.starts_with(|c: char| c.is_ascii_lowercase()) {
            base.insert_str(0, "all");
        }
        let taken = |name: &String| self.base.resources.contains_key(name) || self.entries.contains_key(name);
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(base)
    }

    /// Sets the value of `cluster` in rules, both in these additions and in `config`.
    pub(super) fn name_cluster(&mut self, cluster: &str, config: &mut Config) {
        cluster.clone_into(&mut self.cluster);
        cluster.clone_into(&mut config.redact.cluster);
    }

    /// Returns the configuration with the program's additions, checked like a file. Also reads the key of the digests. The read
    /// blocks the thread.
    ///
    /// # Errors
    /// Fails on errors in the configuration, on a name that both a file and the program use, and on an unreadable key.
    pub(super) fn config(&mut self) -> Result<Config, EngineError> {
        let mut config = self.whole()?;
        let home = config.state.dir.as_deref().map(Store::home);
        let key =
            DigestKey::load(&config.redact, home.as_deref(), self.key.as_ref()).map_err(EngineError::Configuration)?;
        config.redact.key = Some(key.fingerprint());
        config.notes_who_changed = self.notes_who_changed;
        config.redact.cluster.clone_from(&self.cluster);
        self.key = Some(key);
        Ok(config)
    }

    fn whole(&self) -> Result<Config, EngineError> {
        let mut config = self.base.clone();
        for (name, resource) in &self.entries {
            if config.resources.insert(name.clone(), resource.clone()).is_some() {
                return Err(EngineError::Configuration(format!(
                    "the program itself has an entry [resources.{name}]: use another name"
                )));
            }
        }
        if self.entries.is_empty() {
            return Ok(config); // the check refuses an empty configuration, but a program can add types later
        }
        Config::from_toml_str(&config.to_toml()).map_err(|errors| EngineError::Configuration(errors.to_string()))
    }
}

/// Returns true if two patterns surely mean the same type, even before discovery. An example is `pods` and `pods.v1.`.
fn is_same(one: &Pattern, other: &Pattern) -> bool {
    let (Pattern::Type { name, rest }, Pattern::Type { name: other_name, rest: other_rest }) = (one, other) else {
        return one == other;
    };
    let within = |outer: &str, inner: &str| outer.split_once('.').is_some_and(|(_, group)| group == inner);
    name == other_name
        && match (rest.as_deref(), other_rest.as_deref()) {
            (Some(one), Some(other)) => one == other || within(one, other) || within(other, one),
            _ => true,
        }
}
