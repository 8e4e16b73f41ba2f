//! `[handlers.<name>]`: destinations of changes.

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{
    DataFormat, DeliveryOrder, ExecOptions, FileOptions, KafkaOptions, NatsOptions, WebhookOptions, WhenFull,
    report::{Section, recheck},
    schema,
    text::{Format, Optional, Text, means_entry},
};
use crate::delivery::{attempts::Retry, pace::Rate};

/// Destination of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::fold_into_variants)]
pub struct HandlerConfig {
    /// Type of the handler, with the options of that type.
    #[serde(flatten)]
    pub sink: SinkConfig,
    /// Enables the handler.
    #[serde(default = "super::text::yes")]
    pub enabled: bool,
    /// Names and globs of the `[resources.*]` entries whose changes the handler gets; `!` before a name or glob
    /// excludes, with precedence. Default: all. []: the handler gets only events that other handlers give up.
    #[serde(default = "super::text::all")]
    #[schemars(transform = Format::ResourceNames)]
    pub resources: Vec<String>,
    /// Name of the handler that gets the events given up by this handler. Default "": they are dropped and counted.
    #[serde(default, with = "Optional")]
    pub dead_letter: Option<String>,
    /// Maximum number of deliveries per second, minute or hour. Default "": no limit.
    #[serde(default, with = "Text::<Option<Rate>>")]
    pub rate_limit: Option<Rate>,
    /// Size of one delivery, and time that an event waits for others. Default for `webhook`: single events. Default for all other
    /// sinks: the waiting events, up to 1000 events and 8MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Batch")]
    pub batch: Option<Batch>,
    /// Jinja template of the text that is sent for each event, with format = "template". It can use `object`, `old`, `type`,
    /// `cause`, `changes`, `changed_by`, `cluster`, `id`, `subject` and `time`. An unknown name is an error. The template is
    /// tried when the configuration is loaded.
    #[serde(default, with = "Optional")]
    pub template: Option<String>,
    /// Options that `[defaults.handlers]` can set for all handlers.
    #[serde(flatten)]
    pub options: HandlerOptions,
}

/// Size of one delivery, and time that an event waits for others.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Batch {
    /// Maximum number of events in one delivery.
    #[schemars(range(min = 1))]
    #[educe(Default = 50)]
    pub max_events: u64,
    /// Maximum bytes of objects in one delivery. A larger event is sent alone.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 512 << 10)]
    pub max_bytes: u64,
    /// Time that an event waits for others. "0s": a delivery takes only the events that already wait.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(1))]
    pub timeout: Duration,
}

impl HandlerConfig {
    /// Returns the configured size of a delivery, or the default of the sink.
    pub fn batch(&self) -> Batch {
        let preferred = match self.sink {
            SinkConfig::Webhook(_) => Batch { max_events: 1, ..Batch::WHAT_WAITS },
            _ => Batch::WHAT_WAITS,
        };
        self.batch.clone().unwrap_or(preferred)
    }

    /// Returns the maximum number of concurrent deliveries.
    pub fn concurrency(&self) -> u32 {
        let is_one = self.options.order == DeliveryOrder::Total || !self.sink.is_concurrent();
        if is_one { 1 } else { self.options.concurrency }
    }

    /// Returns true if the format, the template or the rule of the handler uses the author of a change.
    pub fn asks_who_changed(&self) -> bool {
        let mentions = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("changed_by"));
        let sends = match self.options.format {
            DataFormat::Diff => true,
            DataFormat::Template => mentions(&self.template),
            _ => false,
        };
        sends || mentions(&self.options.when) || mentions(&self.options.once_key)
    }

    /// Checks the options of the handler's type. Reads no files and no secrets.
    pub(super) fn check_sink(&self, at: &mut Section<'_>) {
        match &self.sink {
            SinkConfig::Webhook(webhook) => webhook.check(self.batch().max_events > 1, at),
            SinkConfig::Kafka(kafka) => kafka.check(at),
            SinkConfig::Nats(nats) => nats.check(at),
            SinkConfig::Exec(exec) => exec.check(at),
            SinkConfig::File(file) if file.rotate.is_some() && !file.can_find_closed() => {
                let message = "with `rotate`, closed files are found by their names: expected %Y, %m, %d, %H, %M or %S for \
                               the time, and / only between them";
                at.error(&["path"], message);
            }
            SinkConfig::Stdout | SinkConfig::File(_) | SinkConfig::Blackhole => {}
        }
    }

    /// Checks the options of the handler's type again, because a program may have changed them after loading.
    ///
    /// # Errors
    /// Returns all errors.
    pub(crate) fn recheck_sink(&self) -> Result<(), String> {
        recheck(|at| self.check_sink(at))
    }

    /// Returns true if this handler gets the changes of the `[resources.*]` entry with this name.
    pub fn takes(&self, resource: &str) -> bool {
        means_entry(&self.resources, resource)
    }
}

/// Type of a handler, with the options of that type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SinkConfig {
    /// Standard output: coloured lines on a terminal, else one JSON event per line.
    Stdout,
    /// Files with one JSON event per line.
    File(FileOptions),
    /// Sink that counts and drops events, for dry runs and measurements.
    Blackhole,
    /// HTTP server that gets requests.
    Webhook(WebhookOptions),
    /// NATS, with or without a `JetStream` stream.
    Nats(NatsOptions),
    /// Kafka, in programs that are built with the feature `kafka`.
    Kafka(KafkaOptions),
    /// Program that is run for each delivery, with events as JSON lines on its standard input. The engine must be started
    /// with `--allow-exec`.
    Exec(ExecOptions),
}

impl SinkConfig {
    /// Returns true if the sink takes several deliveries at a time. `concurrency` applies only to such sinks.
    pub fn is_concurrent(&self) -> bool {
        matches!(self, Self::Webhook(_) | Self::Nats(_) | Self::Kafka(_))
    }
}

impl Batch {
    /// Default of all sinks except `webhook`: one delivery takes the waiting events, up to these limits.
    pub const WHAT_WAITS: Self = Self { max_events: 1_000, max_bytes: 8 << 20, timeout: Duration::ZERO };
}

/// Options that every handler inherits from `[defaults.handlers]`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct HandlerOptions {
    /// Kinds of events that are sent: `added`, `updated`, `deleted`, `removed`, `synced`. Default: all but `synced`.
    #[schemars(length(min = 1))]
    #[educe(Default = vec![EventType::Added, EventType::Updated, EventType::Deleted, EventType::Removed])]
    pub on: Vec<EventType>,
    /// Paths of which at least one must differ in an update. Default []: every update is sent.
    #[schemars(transform = Format::ChangedPath)]
    pub changed: Vec<String>,
    /// CEL expression over `object`, `old`, `type`, `changes`, `changed_by` and `cluster` that must be true. Default "": no
    /// condition.
    #[serde(with = "Optional")]
    #[schemars(transform = Format::Rule)]
    pub when: Option<String>,
    /// Sends at most one event of a key within this time, and suppresses the others. The time is that of the changes. "0s": no limit.
    #[serde(with = "Text::<Duration>")]
    pub once_per: Duration,
    /// Jinja template of the key of an event, for `once_per`. It can use the names of `template`. Default "": the type, namespace and
    /// name of the object.
    #[serde(with = "Optional")]
    pub once_key: Option<String>,
    /// Treatment of objects that already exist at the start: `skip` them, or `send` them with the cause `initial`. Default: `skip`.
    pub initial: Initial,
    /// Sends the changes that happened while the process was down, including deletions. Needs `[state] dir`. A change that a list
    /// reveals has the cause `downtime`; a change from a watch has the cause `watch`. If any handler of the same resource types has
    /// `catch_up = false`, the cause is always `downtime`.
    #[educe(Default = true)]
    pub catch_up: bool,
    /// Interval at which cached objects are delivered again; also needs `resync` of the resource. "0s": never.
    #[serde(with = "Text::<Duration>")]
    pub resync: Duration,
    /// Delivers unchanged objects again after a relist, like the informers of client-go.
    pub deliver_unchanged: bool,
    /// Restriction of concurrent deliveries. `per-object`: concurrent deliveries never contain events of the same object. `total`:
    /// there is only one delivery at a time. `none`: no restriction.
    pub order: DeliveryOrder,
    /// Maximum number of concurrent deliveries, if the sink takes several and `order` is not `total`.
    #[schemars(range(min = 1, max = 1024))]
    #[educe(Default = 8)]
    pub concurrency: u32,
    /// Time limit for one attempt, if the sink waits for a response.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(10))]
    pub timeout: Duration,
    /// Data of an event: `cloudevents` (object and previous object), `object`, `ref` (no object), or for updates a `patch` (RFC
    /// 6902), a `merge_patch` (RFC 7386) or a `diff` (changed paths). With `template`, the output of the template is sent instead
    /// of a `CloudEvent`. Handlers that a program adds ignore this option.
    pub format: DataFormat,
    /// Retries of failed deliveries.
    pub retry: Retry,
    /// Events that wait in memory for this handler.
    pub buffer: Buffer,
}

impl HandlerOptions {
    /// Returns true if `once_per` suppresses events.
    pub(crate) fn is_throttled(&self) -> bool {
        !self.once_per.is_zero()
    }
}

/// Kind of an event, the last part of its `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventType {
    /// New object.
    Added,
    /// Changed object.
    Updated,
    /// Deletion that the server reported.
    Deleted,
    /// Object that left the selection and may still exist.
    Removed,
    /// End of the initial state of a type.
    Synced,
}

/// Treatment of objects that already exist at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Initial {
    /// Existing objects are not sent.
    #[default]
    Skip,
    /// Existing objects are sent as `added`, with cause `initial`.
    Send,
}

/// Events that wait in memory for a handler.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Buffer {
    /// Maximum number of waiting events. With `coalesce`, a full buffer counts only the events of objects that are not in the
    /// cache, such as deletions. In addition, up to two events of each cached object may wait.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub max_events: u64,
    /// Maximum size of the waiting events. With `coalesce`, a full buffer first drops previous objects of updates. It then counts
    /// only data that is not in the cache.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub max_bytes: u64,
    /// Behaviour at `max_events` or `max_bytes`: `coalesce` keeps the newest state of each object; `drop_oldest` drops events.
    /// Every loss is counted.
    pub when_full: WhenFull,
}
