//! Configuration: TOML files and environment variables, merged and checked as a whole.
//!
//! ```text
//! files, environment ─layers─▶ merged tree + positions ─structure─▶ tree without mistakes ─▶ Config ─meaning─▶ Loaded
//! ```
//!
//! The structs of this module are the file format: their fields are the keys, their docs are the descriptions that
//! `deltabus schema` prints, and their `Default`s are the defaults. `structure` checks a file against the JSON Schema that is
//! generated from them, so nothing is written twice. `meaning` checks rules that a schema cannot express, on references,
//! cycles and contradictions. Both report all errors at once, each with the origin of the value.

mod engine;
mod error;
mod exec;
mod external;
mod fields;
mod format;
mod handler;
mod http;
mod kafka;
mod key_path;
mod layers;
mod meaning;
mod nats;
mod redact;
mod report;
mod resource;
pub(crate) mod secret;
pub(crate) mod schema;
mod state;
mod structure;
mod telemetry;
mod test_case;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod webhook;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use engine::{Cluster, Kube, Log, LogFormat, Reload};
pub use engine::{LogLevel, Rediscover};
pub use error::{ConfigErrors, Finding, ValueOrigin};
pub(crate) use external::External;
pub(crate) use handler::HandlerConfig;
pub use handler::{Batch, Buffer, EventType, HandlerOptions, Initial, SinkConfig};
pub use http::Http;
pub(crate) use http::check_token;
pub(crate) use http::{HttpAuth, HttpScope};
#[cfg(test)]
pub(crate) use http::{HttpTls, HttpToken};
pub(crate) use layers::{FlagValue, files, merge};
pub(crate) use redact::{Redact, RedactedPath, SecretValues};
pub use resource::{Cache, Mode, OnMissing, OnRemoved, ResourceConfig};
pub(crate) use resource::{ResourceDefaults, TypePattern};
pub(crate) use state::StateConfig;
pub(crate) use telemetry::Telemetry;
pub(crate) use test_case::TestCase;

use crate::discovery::WantedEntry;
pub use crate::{
    cloud_event::DataFormat,
    delivery::attempts::Retry,
    delta_fifo::QueueOrder,
    handler::{
        client_tls::ClientTls,
        file::{FileFsync, FileOptions, Permissions},
    },
    journal::WhenFull,
    object::packer::Compression,
};
/// Types of options, defined in other modules.
pub(crate) use crate::{
    delivery::schedule::DeliveryOrder,
    handler::{exec::ExecOptions, kafka::KafkaOptions, nats::NatsOptions, webhook::WebhookOptions},
    indexer::Recreated,
    journal::Fsync,
    reflector::StreamingLists,
    subscribe::SubscribeOptions,
    supervisor::Supervision,
};
use key_path::KeyPath;
use report::Report;
use text::Text;

/// Version of the file format that this program reads.
pub(crate) const CONFIG_VERSION: u32 = 1;

/// Complete configuration, with all defaults filled in and all inheritance resolved.
///
/// **Invariants** of every value that [`Config::load`] or [`Config::from_toml_str`] returned: names match
/// `[a-z][a-z0-9_]*`; every `dead_letter` names another handler, without cycles; there is at least one resource.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Config {
    /// Version of the file format. A newer version is refused.
    #[schemars(range(min = 1))]
    #[educe(Default = CONFIG_VERSION)]
    pub config_version: u32,
    /// Time limit for the delivery of accepted events during a stop.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub shutdown_timeout: Duration,
    /// Cluster that is watched.
    pub cluster: Cluster,
    /// Access to the API server, and the way its objects are read.
    pub kube: Kube,
    /// Restarts of units and handlers.
    pub supervision: Supervision,
    /// HTTP server of the engine.
    pub http: Http,
    /// Streams of events over HTTP.
    pub subscribe: SubscribeOptions,
    /// State that survives a restart.
    pub state: StateConfig,
    /// Level and format of the log.
    pub log: Log,
    /// Traces of the engine's own work.
    pub telemetry: Telemetry,
    /// Reload of a changed configuration.
    pub reload: Reload,
    /// Values that are redacted.
    pub redact: Redact,
    /// Watched resources: entries by name.
    #[schemars(transform = schema::names)]
    pub resources: BTreeMap<String, ResourceConfig>,
    /// Destinations of changes: handlers by name.
    #[schemars(transform = schema::names)]
    pub handlers: BTreeMap<String, HandlerConfig>,
    /// Set if the engine must record who changed each object. Only an embedding program can set it, not a file.
    #[serde(skip)]
    pub notes_who_changed: bool,
    /// Tests of the events that handlers get for a change, run by `deltabus test`. The tests of all files are run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestCase>,
}

/// Loaded configuration with its warnings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Configuration.
    pub config: Config,
    /// Allowed but suspicious settings, in the order of the files.
    pub warnings: Vec<Finding>,
    positions: layers::Positions,
}

impl Loaded {
    /// Creates a finding about a value, with its origin. Keys are a path: `["resources", "pods", "match", "[0]"]`.
    pub fn finding(&self, keys: &[&str], message: impl Into<String>) -> Finding {
        self.positions.finding(&KeyPath::new(keys), message.into())
    }
}

impl Config {
    /// Loads files and directories. From a directory, it loads the `*.toml` files in the order of their names. Each file is merged
    /// into the previous ones. The variables of `environment` that begin with `DELTABUS__` are merged last.
    ///
    /// Tables are merged key by key, lists and scalars are replaced, and `[[tests]]` are concatenated. The error contains the
    /// first hundred errors and the number of further ones. This function reads files, so it blocks the thread.
    pub fn load<P: AsRef<Path>>(
        paths: &[P],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigErrors> {
        Self::load_with(paths, environment, &[])
    }

    /// Loads files like [`Config::load`], and then overrides options by flags of the command line.
    pub(crate) fn load_with<P: AsRef<Path>>(
        paths: &[P],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &[FlagValue],
    ) -> Result<Loaded, ConfigErrors> {
        let mut layers = layers::Layers::of(paths);
        layers.add_environment(environment);
        for flag in flags {
            layers.add_flag(flag);
        }
        resolve(layers, ConfigPlace::Here)
    }

    /// Loads files like [`Config::load`], but for another machine. Ignores this machine's environment variables. Does not check the
    /// files and secrets that the configuration names. Also returns the text of each file. Blocks the thread.
    pub fn load_for_elsewhere<P: AsRef<Path>>(paths: &[P]) -> Result<(Loaded, Vec<(PathBuf, String)>), ConfigErrors> {
        let mut layers = layers::Layers::of(paths);
        let texts = std::mem::take(&mut layers.texts);
        Ok((resolve(layers, ConfigPlace::Elsewhere)?, texts))
    }

    /// Reads files like [`Config::load`]. The secrets and files that they name may be missing.
    pub(crate) fn load_without_secrets<P: AsRef<Path>>(
        paths: &[P],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigErrors> {
        let mut layers = layers::Layers::of(paths);
        layers.add_environment(environment);
        resolve(layers, ConfigPlace::Elsewhere)
    }

    /// Checks files like [`Config::load`], or like [`Config::load_for_elsewhere`] without an environment. Returns all errors, and the
    /// parts of the configuration that have none. Blocks the thread.
    pub(crate) fn check<P: AsRef<Path>>(
        paths: &[P],
        environment: Option<impl IntoIterator<Item = (OsString, OsString)>>,
    ) -> CheckedConfig {
        let mut layers = layers::Layers::of(paths);
        let place = if environment.is_some() { ConfigPlace::Here } else { ConfigPlace::Elsewhere };
        layers.add_environment(environment.into_iter().flatten());
        CheckedConfig::of(layers, place)
    }

    /// Parses a configuration from the text of one file, without the environment. Drops warnings.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigErrors> {
        let mut layers = layers::Layers::default();
        layers.add_text("configuration", text);
        resolve(layers, ConfigPlace::Here).map(|loaded| loaded.config)
    }

    /// Returns true if the engine must record who changed the objects of this entry. This is so if the embedding program requests
    /// it, or if a handler uses the author of changes and gets changes of this entry, directly or as dead letters.
    pub fn asks_who_changed(&self, entry: &str) -> bool {
        let mut asking = self.handlers.iter().filter(|(_, handler)| handler.enabled && handler.asks_who_changed());
        self.notes_who_changed || asking.any(|(name, _)| self.gets(name, entry, self.handlers.len()))
    }

    /// Returns true if a handler gets the changes of an entry: directly, or as dead letters that passed through at most `steps`
    /// other handlers.
    fn gets(&self, name: &str, entry: &str, steps: usize) -> bool {
        let mut givers =
            self.handlers.iter().filter(|(_, other)| other.enabled && other.dead_letter.as_deref() == Some(name));
        self.handlers.get(name).is_some_and(|handler| handler.takes(entry))
            || steps > 0 && givers.any(|(giver, _)| self.gets(giver, entry, steps - 1))
    }

    /// Returns the pattern at this position of the entry's `match`, as written; an empty text if there is none.
    pub fn pattern(&self, entry: &str, position: usize) -> &str {
        let entry = self.resources.get(entry);
        entry.and_then(|entry| entry.patterns.get(position)).map_or("", TypePattern::as_str)
    }

    /// Returns for each entry of `[resources]` the patterns of the types to watch, the excluded types and the namespaces.
    pub fn wanted(&self) -> Vec<WantedEntry> {
        let patterns = |list: &[TypePattern]| list.iter().map(|pattern| pattern.pattern().clone()).collect();
        let wanted = |(name, resource): (&String, &ResourceConfig)| WantedEntry {
            entry: name.clone(),
            patterns: patterns(&resource.patterns),
            exclude: patterns(&resource.exclude),
            namespaces: resource.namespaces.clone(),
        };
        self.resources.iter().map(wanted).collect()
    }

    /// Returns the configuration as TOML; [`Config::from_toml_str`] turns it into an equal configuration.
    ///
    /// # Panics
    ///
    /// Panics if a number exceeds TOML's range, `i64`. No loaded configuration has one.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_tree()).expect("a table is TOML")
    }

    /// Returns the configuration as TOML that users may see: [`Config::to_toml`] with `***` in place of the locations of secrets,
    /// and without the secret parts of URLs.
    ///
    /// # Panics
    ///
    /// See [`Config::to_toml`].
    pub fn show(&self) -> String {
        let mut tree = self.to_tree();
        secret::mask(&mut tree);
        toml::to_string(&tree).expect("a table is TOML")
    }

    fn to_tree(&self) -> toml::Table {
        let mut tree = toml::Table::try_from(self).expect("numbers are in TOML's range");
        // With `secrets = "metadata"` in `[redact]`, no file may set `mode = "full"` for Secrets. An entry of Secrets that has this
        // mode has it only by default. The output leaves the mode out, because loading the output would otherwise fail.
        let unsaid = |resource: &ResourceConfig| {
            self.redact.secrets == SecretValues::Metadata
                && resource.mode == Mode::Full
                && resource.patterns.iter().any(TypePattern::names_secrets)
        };
        for (name, _) in self.resources.iter().filter(|(_, resource)| unsaid(resource)) {
            if let Some(entry) = tree.get_mut("resources").and_then(|entries| entries.get_mut(name)?.as_table_mut()) {
                entry.remove("mode");
            }
        }
        tree
    }
}

/// Returns the environment variables of this process that override options. [`Config::load`] refuses a variable that is
/// not UTF-8.
pub(crate) fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| layers::overrides(name)).collect()
}

/// Machine that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigPlace {
    /// This machine. The named files and secrets must exist on it.
    Here,
    /// Another machine. Files and secrets are not checked.
    Elsewhere,
}

/// Configuration of which some parts may have errors. It lacks these parts.
#[derive(Debug)]
pub(crate) struct CheckedConfig {
    /// The parts without errors, and the warnings.
    pub(crate) loaded: Loaded,
    /// All errors, in no order.
    pub(crate) errors: Vec<Finding>,
}

impl CheckedConfig {
    fn of(layers: layers::Layers, place: ConfigPlace) -> Self {
        let (mut tree, mut report) = match layers.merged() {
            Ok(merged) => merged,
            // Without one of the layers, further checks would report what it contains as missing.
            Err(errors) => return Self { loaded: Loaded::default(), errors },
        };
        structure::check(schema::schema().as_value(), &mut tree, &mut report);
        inherit(&mut tree);
        let config = match serde_json::from_value::<Config>(Value::Object(tree)) {
            Ok(config) => {
                meaning::check(&config, place, &mut report);
                config
            }
            // An error that the schema check did not find is also reported, but its message is less helpful.
            Err(error) => {
                report.errors.push(Finding::new(ValueOrigin::Nowhere, String::new(), error.to_string()));
                Config::default()
            }
        };
        let Report { positions, errors, mut warnings, .. } = report;
        // An inherited mistake is reported once, even if several entries inherit it.
        warnings.sort();
        warnings.dedup();
        Self { loaded: Loaded { config, warnings, positions }, errors }
    }
}

fn resolve(layers: layers::Layers, place: ConfigPlace) -> Result<Loaded, ConfigErrors> {
    let CheckedConfig { loaded, errors } = CheckedConfig::of(layers, place);
    if errors.is_empty() { Ok(loaded) } else { Err(ConfigErrors::new(errors, loaded.warnings)) }
}

/// Fills missing values of entries from `[defaults]`.
fn inherit(tree: &mut Map<String, Value>) {
    let Some(Value::Object(defaults)) = tree.remove("defaults") else { return };
    for (section, defaults) in defaults {
        let (Value::Object(defaults), Some(Value::Object(entries))) = (defaults, tree.get_mut(&section)) else {
            continue;
        };
        for entry in entries.values_mut().filter_map(Value::as_object_mut) {
            let own = std::mem::replace(entry, defaults.clone());
            layers::merge(entry, own);
        }
    }
}
