//! The configuration: TOML files and environment variables, merged and checked as a whole.
//!
//! ```text
//! files, environment ─layers─▶ merged tree + positions ─structure─▶ tree without mistakes ─▶ Config ─meaning─▶ Loaded
//! ```
//!
//! The structs of this module are the file format: their fields are the keys, their docs the descriptions that
//! `deltabus schema` prints, their `Default`s the defaults. The JSON Schema made of them is what `structure` checks a
//! file against, so nothing is written down twice. What no schema can say (references, cycles, contradictions) is in
//! `meaning`. Both collect: all mistakes are reported at once, each with the place that set the offending value.

mod engine;
mod error;
mod exec;
mod external;
pub(crate) mod format;
mod handler;
mod http;
pub(crate) mod kafka;
mod key_path;
mod layers;
mod meaning;
pub(crate) mod nats;
mod oddities;
mod redact;
mod resource;
pub(crate) mod secret;
pub mod schema;
mod state;
mod structure;
mod telemetry;
mod test_case;
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

pub use engine::{Cluster, Kube, Log, LogFormat, LogLevel, Rediscover, Reload, Supervision};
pub use error::{ConfigErrors, Finding, ValueOrigin, nearest};
pub use exec::ExecSink;
pub use external::External;
pub use format::FormatSettings;
pub use handler::{Batch, Buffer, EventType, HandlerConfig, HandlerDefaults, Initial, SinkConfig};
pub(crate) use http::check_token;
pub use http::{Http, HttpAuth, HttpScope, HttpTls, HttpToken};
pub use kafka::KafkaSink;
pub(crate) use layers::files;
pub use nats::NatsSink;
pub use redact::{Redact, RedactedPath, SecretValues};
pub use resource::{Cache, Mode, OnMissing, OnRemoved, ResourceConfig, ResourceDefaults, TypePattern};
pub use state::StateConfig;
pub use telemetry::Telemetry;
pub use test_case::TestCase;
pub use webhook::{WebhookMethod, WebhookSink};

use crate::discovery::WantedEntry;
/// Options that a stage reads as they are written.
pub use crate::{
    backoff::BackoffConfig as Backoff,
    delivery::attempts::RetryPolicy as Retry,
    delivery::schedule::DeliveryOrder,
    delta_fifo::QueueOrder,
    handler::{
        client_tls::ClientTls,
        file::{FileCompression as Compress, FileFsync, FileOptions as FileSink, Permissions, Rotate},
        kafka::KafkaSasl as Sasl,
        nats::{ExpectLast, JetStreamOptions as NatsJetStream, NatsAuth},
        webhook::{Auth as WebhookAuth, TlsOptions as WebhookTls},
    },
    indexer::Recreated,
    journal::{Fsync as Commit, OnFull, WhenFull},
    object::packer::Compression,
    reflector::StreamingLists,
    subscribe::SubscribeOptions as Subscribe,
};
use text::Text;

/// The version of the file format that this program reads.
pub const CONFIG_VERSION: u32 = 1;

/// A whole configuration, with every default filled in and every inheritance resolved.
///
/// **Invariants**, of a value that [`Config::load`] or [`Config::from_toml_str`] returned: names match
/// `[a-z][a-z0-9_]*`; every `dead_letter` names another handler, without cycles; there is at least one resource.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Config {
    /// Version of the file format. A newer one is refused.
    #[schemars(range(min = 1))]
    #[educe(Default = CONFIG_VERSION)]
    pub config_version: u32,
    /// How long a stop may take to deliver what was accepted.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub shutdown_timeout: Duration,
    /// The cluster that is watched.
    pub cluster: Cluster,
    /// How the API server is reached and how its objects are read.
    pub kube: Kube,
    /// How units and handlers are restarted.
    pub supervision: Supervision,
    /// Where HTTP is served.
    pub http: Http,
    /// How streams of events are served.
    pub subscribe: Subscribe,
    /// What outlives a restart.
    pub state: StateConfig,
    /// What is logged, and how.
    pub log: Log,
    /// Traces of the engine's own work.
    pub telemetry: Telemetry,
    /// How a changed configuration is applied.
    pub reload: Reload,
    /// What must not travel.
    pub redact: Redact,
    /// What is watched: entries by name.
    #[schemars(transform = schema::names)]
    pub resources: BTreeMap<String, ResourceConfig>,
    /// Where changes go: handlers by name.
    #[schemars(transform = schema::names)]
    pub handlers: BTreeMap<String, HandlerConfig>,
    /// Who changed objects is noted of all of them, for the program that runs the engine; no file says it.
    #[serde(skip)]
    pub notes_who_changed: bool,
    /// What handlers are sent where an object changes: `deltabus test` tries it. The tests of all files count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestCase>,
}

/// A configuration that was loaded, and what was noticed on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is allowed and odd, in the order of the files.
    pub warnings: Vec<Finding>,
    positions: layers::Positions,
}

impl Loaded {
    /// Says something of a value of the configuration, at the place that set it: `["resources", "pods", "match", "[0]"]`.
    pub fn finding(&self, keys: &[&str], message: impl Into<String>) -> Finding {
        self.positions.finding(keys, message.into())
    }
}

impl Config {
    /// Loads files, and directories (their `*.toml` in the order of their names), each merged into those before it, and
    /// then the variables of `environment` that begin with `DELTABUS__`.
    ///
    /// Tables are merged key by key, lists and scalars replaced, `[[tests]]` put one behind the other. The error holds the
    /// first hundred mistakes, and the number of others. Reads files: blocks.
    pub fn load<P: AsRef<Path>>(
        paths: &[P],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigErrors> {
        let mut layers = layers::Layers::of(paths);
        layers.add_environment(environment);
        resolve(layers, ConfigPlace::Here)
    }

    /// Loads files as [`Config::load`] does, for another machine: without the environment of this one, and without looking
    /// at the files and secrets that they name. Returns the text of each file with it. Reads files: blocks.
    pub fn load_for_elsewhere<P: AsRef<Path>>(paths: &[P]) -> Result<(Loaded, Vec<(PathBuf, String)>), ConfigErrors> {
        let mut layers = layers::Layers::of(paths);
        let texts = std::mem::take(&mut layers.texts);
        Ok((resolve(layers, ConfigPlace::Elsewhere)?, texts))
    }

    /// Reads a configuration from the text of one file, without the environment. Warnings are left out.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigErrors> {
        let mut layers = layers::Layers::default();
        layers.add_text("configuration", text);
        resolve(layers, ConfigPlace::Here).map(|loaded| loaded.config)
    }

    /// Returns whether who changed the objects of an entry is to be noted: a handler asks that gets its changes, or takes
    /// what one gives up on.
    pub fn asks_who_changed(&self, entry: &str) -> bool {
        let mut asking = self.handlers.iter().filter(|(_, handler)| handler.enabled && handler.asks_who_changed());
        self.notes_who_changed || asking.any(|(name, _)| self.gets(name, entry, self.handlers.len()))
    }

    /// Returns whether a handler gets the changes of an entry, or what another one gives up on, so many steps away.
    fn gets(&self, name: &str, entry: &str, steps: usize) -> bool {
        let mut givers =
            self.handlers.iter().filter(|(_, other)| other.enabled && other.dead_letter.as_deref() == Some(name));
        self.handlers.get(name).is_some_and(|handler| handler.takes(entry))
            || steps > 0 && givers.any(|(giver, _)| self.gets(giver, entry, steps - 1))
    }

    /// Returns a pattern of `match` as it was written; empty where there is none.
    pub fn pattern(&self, entry: &str, position: usize) -> &str {
        let entry = self.resources.get(entry);
        entry.and_then(|entry| entry.patterns.get(position)).map_or("", TypePattern::as_str)
    }

    /// Returns what each entry of `[resources]` asks the server for.
    pub fn wanted(&self) -> Vec<WantedEntry> {
        self.resources.iter().map(|(name, resource)| resource.wanted(name)).collect()
    }

    /// Writes the configuration as TOML from which [`Config::from_toml_str`] makes an equal one.
    ///
    /// # Panics
    ///
    /// If a number is beyond TOML's range, `i64`: no loaded configuration has one.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_tree()).expect("a table is TOML")
    }

    /// Writes the configuration for people: as [`Config::to_toml`], but `***` for where secrets are.
    ///
    /// # Panics
    ///
    /// As [`Config::to_toml`].
    pub fn show(&self) -> String {
        let mut tree = self.to_tree();
        secret::mask(&mut tree);
        toml::to_string(&tree).expect("a table is TOML")
    }

    fn to_tree(&self) -> toml::Table {
        let mut tree = toml::Table::try_from(self).expect("numbers are in TOML's range");
        // Nobody asked for Secrets in full: where their values are never fetched, that would not load.
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

/// Returns the variables of this process's environment that override options. [`Config::load`] refuses one that is not
/// UTF-8.
pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| layers::overrides(name)).collect()
}

/// Machine that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigPlace {
    /// This one: what the configuration names must be here.
    Here,
    /// Another one.
    Elsewhere,
}

fn resolve(layers: layers::Layers, place: ConfigPlace) -> Result<Loaded, ConfigErrors> {
    let (mut tree, mut positions) = layers.merge().map_err(|errors| ConfigErrors::new(errors, Vec::new()))?;
    let names = meaning::Names::of(&tree);
    let structure::StructureReport { mut errors, meant, shortened } =
        structure::check(schema::schema().as_value(), &mut tree, &positions);
    positions.set_shortened(shortened);
    inherit(&mut tree);
    let (config, mut warnings) = match serde_json::from_value::<Config>(Value::Object(tree)) {
        Ok(config) => {
            let (more, warnings) = meaning::check(&config, place, &names, &meant, &positions);
            errors.extend(more);
            (config, warnings)
        }
        // The schema let something through: it is an error all the same, only less well told.
        Err(error) => {
            errors.push(Finding::new(ValueOrigin::Nowhere, String::new(), error.to_string()));
            (Config::default(), Vec::new())
        }
    };
    // What is inherited is wrong once, however many inherit it.
    warnings.sort();
    warnings.dedup();
    if errors.is_empty() {
        Ok(Loaded { config, warnings, positions })
    } else {
        Err(ConfigErrors::new(errors, warnings))
    }
}

/// Fills what entries leave open from `[defaults]`.
fn inherit(tree: &mut Map<String, Value>) {
    let Some(Value::Object(defaults)) = tree.remove("defaults") else { return };
    for (section, defaults) in &defaults {
        let entries = tree.get_mut(section).and_then(Value::as_object_mut);
        entries.into_iter().flat_map(Map::values_mut).for_each(|entry| fill(entry, defaults));
    }
}

fn fill(value: &mut Value, defaults: &Value) {
    let (Value::Object(table), Value::Object(defaults)) = (value, defaults) else { return };
    for (key, default) in defaults {
        match table.get_mut(key) {
            Some(set) => fill(set, default),
            None => drop(table.insert(key.clone(), default.clone())),
        }
    }
}
