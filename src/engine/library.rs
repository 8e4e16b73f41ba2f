//! What a program adds to the configuration: entries, indexes and transforms of its own.

use std::collections::BTreeMap;

use serde_json::json;

use super::{EngineError, options::Extras, redaction::DigestKey};
use crate::{
    config::{Config, ResourceConfig, TypePattern},
    discovery::Pattern,
    indexer::index_func::IndexFunc,
    journal::store::Store,
    list_watch::transform::Transform,
};

/// See the module. It outlives every reload of the files.
#[derive(Clone, Debug, Default)]
pub(super) struct Library {
    /// The configuration without what the program adds.
    pub(super) base: Config,
    pub(super) entries: BTreeMap<String, ResourceConfig>,
    pub(super) indexes: BTreeMap<String, Vec<IndexFunc>>,
    pub(super) transforms: BTreeMap<String, Transform>,
    /// It asks who changed objects.
    pub(super) notes_who_changed: bool,
    /// What makes digests, once the configuration was asked for.
    pub(super) key: Option<DigestKey>,
    /// What rules call `cluster`.
    pub(super) cluster: String,
}

impl Library {
    /// Adds an entry for one type, and returns its name; where the type has one, that is returned and nothing changes
    ///
    ///
    /// # Errors
    /// Where `pattern` is none.
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

    /// `deployments.apps` → `deployments_apps`, with a number behind it if that is taken.
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

    /// Notes what rules call `cluster`, in a configuration too that was made before that was known.
    pub(super) fn name_cluster(&mut self, cluster: &str, config: &mut Config) {
        cluster.clone_into(&mut self.cluster);
        cluster.clone_into(&mut config.redact.cluster);
    }

    /// Returns the whole configuration, checked as a file would be, and reads the key that it names. Blocks for that.
    ///
    /// # Errors
    /// What is wrong with it, where a file names an entry as the program does, and a key that cannot be read.
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
                    "[resources.{name}] is the program's own: use another name"
                )));
            }
        }
        if self.entries.is_empty() {
            return Ok(config); // a program may name what it watches later
        }
        Config::from_toml_str(&config.to_toml()).map_err(|errors| EngineError::Configuration(errors.to_string()))
    }

    /// Returns what is added to an entry.
    pub(super) fn extras(&self, entry: &str) -> Extras {
        let indexes = self.indexes.get(entry).cloned().unwrap_or_default();
        Extras { indexes, transform: self.transforms.get(entry).cloned(), key: self.key.clone() }
    }
}

/// Returns whether two patterns mean one type, as far as that can be said before discovery: `pods` and `pods.v1.` do.
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
