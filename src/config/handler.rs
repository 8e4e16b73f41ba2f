//! `[handlers.<name>]`: where changes go.

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{
    DeliveryOrder, ExecSink, FileSink, FormatSettings, KafkaSink, NatsSink, WebhookSink, WhenFull, schema,
    text::{Optional, Text, means_entry},
};
use crate::delivery::{attempts::RetryPolicy as Retry, pace::Rate};

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
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Batch {
    /// Events in one delivery.
    #[schemars(range(min = 1))]
    #[educe(Default = 50)]
    pub max_events: u64,
    /// Bytes of objects in one delivery, unless one event has more.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 512 << 10)]
    pub max_bytes: u64,
    /// How long an event waits for others. "0s": a delivery takes what is there.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(1))]
    pub timeout: Duration,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    /// Returns whether it takes several deliveries at a time; `concurrency` is for such sinks.
    pub fn is_concurrent(&self) -> bool {
        matches!(self, Self::Webhook(_) | Self::Nats(_) | Self::Kafka(_))
    }
}

impl Batch {
    /// For sinks that take what there is.
    pub const WHAT_WAITS: Self = Self { max_events: 1_000, max_bytes: 8 << 20, timeout: Duration::ZERO };
}

/// Options that every handler inherits from `[defaults.handlers]`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct HandlerDefaults {
    /// The kinds of event that are sent: `added`, `updated`, `deleted`, `removed`, `synced`.
    #[schemars(length(min = 1))]
    #[educe(Default = vec![EventType::Added, EventType::Updated, EventType::Deleted, EventType::Removed])]
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
    #[educe(Default = true)]
    pub catch_up: bool,
    /// How often this handler wants cached objects delivered again; needs `resync` on the resource too. "0s": never.
    #[serde(with = "Text::<Duration>")]
    pub resync: Duration,
    /// Whether a relist delivers unchanged objects again, as client-go's informers do.
    pub deliver_unchanged: bool,
    /// Which events are never in two deliveries at a time: those of one object (`per-object`), any (`total`), `none`.
    pub order: DeliveryOrder,
    /// Deliveries under way at a time, where the sink takes several and `order` is not `total`.
    #[schemars(range(min = 1, max = 1024))]
    #[educe(Default = 8)]
    pub concurrency: u32,
    /// What one attempt may take, where the sink waits for an answer.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(10))]
    pub timeout: Duration,
    /// What the data of an event is: `cloudevents` (object and old state), `object`, of updates a `patch` (RFC 6902),
    /// `merge_patch` (RFC 7386) or `diff` (changed paths), `ref` (no object), or, in place of a `CloudEvent`, what a
    /// `template` makes of it. For handlers of the configuration.
    pub format: FormatSettings,
    /// How a failed delivery is repeated.
    pub retry: Retry,
    /// What waits in memory for this handler.
    pub buffer: Buffer,
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

/// What waits in memory for a handler.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Buffer {
    /// Events that wait. With `coalesce`, once full, those of objects that are gone; of others the newest state waits besides.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub max_events: u64,
    /// Bytes that wait. With `coalesce`, once full, of what the cache does not hold: states before a change go first.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub max_bytes: u64,
    /// What happens at either bound: `coalesce` keeps the newest state of each object, `drop_oldest` and `drop_newest`
    /// drop events. Every loss is counted.
    pub when_full: WhenFull,
}
