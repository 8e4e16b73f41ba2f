//! `[handlers.<name>]`: where changes go.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Compress, DeliveryOrder, ExecSink, FileFsync, FormatSettings, KafkaSink, NatsSink, WebhookSink, WhenFull, schema,
    text::{AsText, Optional, means_entry},
};
use crate::delivery::{attempts::RetryPolicy, pace::Rate};

/// One place that changes are sent to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::fold_into_variants)]
pub struct HandlerConfig {
    /// What it is: `type` and the options of that type.
    #[serde(flatten)]
    pub sink: SinkConfig,
    /// Whether it is started.
    #[serde(default = "super::text::yes")]
    pub enabled: bool,
    /// The `[resources.*]` entries whose changes it gets: names and globs, `!` before one excludes and wins. Default
    /// all; none where it only takes what other handlers give up on.
    #[serde(default = "super::text::all")]
    #[schemars(schema_with = "schema::resource_names")]
    pub resources: Vec<String>,
    /// Name of the handler that gets what this one gives up on. Default "": it is dropped and counted.
    #[serde(default, with = "Optional")]
    pub dead_letter: Option<String>,
    /// How often it is asked to deliver, at most: so many times a second, minute or hour. Default "": as often as there
    /// is something.
    #[serde(default, with = "Optional")]
    #[schemars(schema_with = "schema::rate")]
    pub rate_limit: Option<Rate>,
    /// What goes out in one delivery, and how long an event waits for others. Default: `webhook` gets single events,
    /// all others what waits, up to 1000 events and 8MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Batch")]
    pub batch: Option<Batch>,
    /// With format = "template", what is sent of each event: a text in Jinja's language with `object`, `old`, `type`,
    /// `cause`, `changes`, `changed_by`, `cluster`, `id`, `subject` and `time`. It is strict about unknown names, and tried
    /// at load.
    #[serde(default, with = "Optional")]
    pub template: Option<String>,
    /// What `[defaults.handlers]` can set for all handlers.
    #[serde(flatten)]
    pub options: HandlerDefaults,
}

/// What goes out in one delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Batch {
    /// Events in one delivery.
    #[schemars(range(min = 1))]
    pub max_events: u64,
    /// Bytes of objects in one delivery, unless one event has more.
    #[serde(with = "AsText::<u64>")]
    pub max_bytes: u64,
    /// How long an event waits for others. "0s": a delivery takes what is there.
    #[serde(with = "AsText::<Duration>")]
    pub timeout: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self { max_events: 50, max_bytes: 512 << 10, timeout: Duration::from_secs(1) }
    }
}

impl HandlerConfig {
    /// Returns what goes out in one delivery: what is configured, else what the sink likes best.
    pub fn batch(&self) -> Batch {
        let preferred = match self.sink {
            SinkConfig::Webhook(_) => Batch { max_events: 1, ..Batch::WHAT_WAITS },
            _ => Batch::WHAT_WAITS,
        };
        self.batch.clone().unwrap_or(preferred)
    }

    /// Returns how many deliveries may be under way at a time.
    pub fn concurrency(&self) -> u32 {
        let is_one = self.options.order == DeliveryOrder::Total || !self.sink.is_concurrent();
        if is_one { 1 } else { self.options.concurrency }
    }

    /// Returns whether it sends or asks who changed an object: by its format, its template or its rule.
    pub fn asks_who_changed(&self) -> bool {
        let mentions = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("changed_by"));
        let sends = match self.options.format {
            FormatSettings::Diff => true,
            FormatSettings::Template => mentions(&self.template),
            _ => false,
        };
        sends && self.sink != SinkConfig::Blackhole || mentions(&self.options.when)
    }

    /// Returns whether this handler gets the changes of the `[resources.*]` entry of this name.
    pub fn takes(&self, resource: &str) -> bool {
        means_entry(&self.resources, resource)
    }
}

/// What a handler is, and the options of that type alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SinkConfig {
    /// Standard output: coloured lines on a terminal, else one JSON event a line.
    Stdout,
    /// Files, one JSON event a line.
    File(FileSink),
    /// Counts and drops: for dry runs and measurements.
    Blackhole,
    /// An HTTP server.
    Webhook(WebhookSink),
    /// NATS, with or without a stream of `JetStream`.
    Nats(NatsSink),
    /// Kafka; in programs that are built with the feature `kafka`.
    Kafka(KafkaSink),
    /// A program that is run for each delivery, events as JSON lines on its standard input; only where the engine is
    /// started with `--allow-exec`.
    Exec(ExecSink),
}

impl SinkConfig {
    /// Returns the name of the type, as the configuration writes it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::File(_) => "file",
            Self::Blackhole => "blackhole",
            Self::Webhook(_) => "webhook",
            Self::Nats(_) => "nats",
            Self::Kafka(_) => "kafka",
            Self::Exec(_) => "exec",
        }
    }

    /// Returns whether it takes several deliveries at a time; `concurrency` is for such sinks.
    pub fn is_concurrent(&self) -> bool {
        matches!(self, Self::Webhook(_) | Self::Nats(_) | Self::Kafka(_))
    }
}

impl Batch {
    /// For sinks that take what there is.
    pub const WHAT_WAITS: Self = Self { max_events: 1_000, max_bytes: 8 << 20, timeout: Duration::ZERO };
}

/// Options of a handler of type `file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct FileSink {
    /// The file. %Y, %m, %d, %H … (strftime, UTC) stand for the time, so that each day or hour has its own. Required.
    #[schemars(schema_with = "schema::path_template")]
    pub path: String,
    /// When a file is closed and a next one begun, apart from what `path` says. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rotate")]
    pub rotate: Option<Rotate>,
    /// When what was written is forced to the disk: `always` (every batch), `never` (the system decides), or an interval.
    #[serde(default, with = "AsText::<FileFsync>")]
    pub fsync: FileFsync,
    /// Permissions of the files, in octal. Who may read the files may enter the directories that deltabus makes for them.
    #[serde(default, with = "AsText::<Permissions>")]
    pub permissions: Permissions,
}

/// Permissions of a file: nine bits, the owner's reading and writing among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(pub u32);

impl Default for Permissions {
    fn default() -> Self {
        Self(0o640)
    }
}

/// When a file is closed, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rotate {
    /// A file is closed before it grows beyond this.
    #[serde(with = "AsText::<u64>")]
    pub max_bytes: u64,
    /// Closed files that are kept; the oldest goes first. 0 = all.
    pub keep: u32,
    /// How a closed file is compressed.
    pub compress: Compress,
}

impl Default for Rotate {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, keep: 30, compress: Compress::Zstd }
    }
}

impl Default for FileFsync {
    fn default() -> Self {
        Self::Interval(Duration::from_secs(1))
    }
}

/// Options that every handler inherits from `[defaults.handlers]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HandlerDefaults {
    /// The kinds of event that are sent: `added`, `updated`, `deleted`, `removed`, `synced`.
    #[schemars(length(min = 1))]
    pub on: Vec<EventType>,
    /// Of an update, at least one of these paths has to differ from the state before. Default []: it does not matter.
    #[schemars(schema_with = "schema::changed_paths")]
    pub changed: Vec<String>,
    /// A CEL expression over `object`, `old`, `type`, `changes`, `changed_by` and `cluster` that has to be true. Default "":
    /// there is none.
    #[serde(with = "Optional")]
    #[schemars(schema_with = "schema::rule")]
    pub when: Option<String>,
    /// Objects that exist already at the start: `skip` them, or `send` them (cause `initial`).
    pub initial: Initial,
    /// Whether it is told, after the process was down, what happened meanwhile, deletions included. Where a handler is not,
    /// that has the cause `downtime` for every handler of the same types, though a watch brings it. Needs `[state] dir`.
    pub catch_up: bool,
    /// How often this handler wants cached objects delivered again; needs `resync` on the resource too. "0s": never.
    #[serde(with = "AsText::<Duration>")]
    pub resync: Duration,
    /// Whether a relist delivers unchanged objects again, as client-go's informers do.
    pub deliver_unchanged: bool,
    /// Which events are never in two deliveries at a time: those of one object (`per-object`), any (`total`), `none`.
    pub order: DeliveryOrder,
    /// Deliveries under way at a time, where the sink takes several and `order` is not `total`.
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: u32,
    /// What one attempt may take, where the sink waits for an answer.
    #[serde(with = "AsText::<Duration>")]
    pub timeout: Duration,
    /// What the data of an event is: `cloudevents` (object and old state), `object`, of updates a `patch` (RFC 6902),
    /// `merge_patch` (RFC 7386) or `diff` (changed paths), `ref` (no object), or, in place of a `CloudEvent`, what a
    /// `template` makes of it. For handlers of the configuration.
    pub format: FormatSettings,
    /// How a failed delivery is repeated.
    pub retry: RetrySettings,
    /// What waits in memory for this handler.
    pub buffer: Buffer,
}

impl Default for HandlerDefaults {
    fn default() -> Self {
        use EventType::{Added, Deleted, Removed, Updated};
        Self {
            on: vec![Added, Updated, Deleted, Removed],
            changed: Vec::new(),
            when: None,
            initial: Initial::Skip,
            catch_up: true,
            resync: Duration::ZERO,
            deliver_unchanged: false,
            order: DeliveryOrder::PerObject,
            concurrency: 8,
            timeout: Duration::from_secs(10),
            format: FormatSettings::CloudEvents,
            retry: RetrySettings::default(),
            buffer: Buffer::default(),
        }
    }
}

/// Kind of an event, the last part of its `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// A new object.
    Added,
    /// A changed object.
    Updated,
    /// The server said that the object is gone.
    Deleted,
    /// It left what is shown, and may live on.
    Removed,
    /// The initial state of a type is complete.
    Synced,
}

/// What happens to objects that exist already at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Initial {
    /// They are not sent.
    #[default]
    Skip,
    /// They are sent as `added`, with cause `initial`.
    Send,
}

/// How a failed delivery is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetrySettings {
    /// Pause after the first failure; doubles with each further one. More than "0s".
    #[serde(with = "AsText::<Duration>")]
    pub initial: Duration,
    /// The pause grows no further than this. At least `initial`.
    #[serde(with = "AsText::<Duration>")]
    pub max: Duration,
    /// Whether the pause is drawn at random from the upper half of its length, so that many do not come at once.
    pub jitter: bool,
    /// After so long the event goes to `dead_letter`, or is dropped and counted.
    #[serde(with = "AsText::<Duration>")]
    pub give_up_after: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        let RetryPolicy { initial, max, jitter, give_up_after } = RetryPolicy::default();
        Self { initial, max, jitter, give_up_after }
    }
}

/// What waits in memory for a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Buffer {
    /// Events that wait. With `coalesce`, once full, those of objects that are gone; of others the newest state waits besides.
    #[schemars(range(min = 1))]
    pub max_events: u64,
    /// Bytes that wait. With `coalesce`, once full, of what the cache does not hold: states before a change go first.
    #[serde(with = "AsText::<u64>")]
    pub max_bytes: u64,
    /// What happens at either bound: `coalesce` keeps the newest state of each object, `drop_oldest` and `drop_newest`
    /// drop events. Every loss is counted.
    pub when_full: WhenFull,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { max_events: 10_000, max_bytes: 64 << 20, when_full: WhenFull::Coalesce }
    }
}
