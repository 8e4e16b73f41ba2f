//! Names and meanings of all metrics, as OpenMetrics text with base units. Labels contain no object names.
//!
//! This module counts nothing itself: a scrape reads the same views as `/v1/resources` and `/v1/handlers`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet, text::encode},
    metrics::{
        MetricType::{self, Counter, Gauge},
        info::Info,
    },
    registry::{Registry, Unit},
};

use crate::{
    build_info,
    delivery::status::{HandlerState, HandlerView},
    histogram::{Histogram, HistogramSnapshot},
    journal::JournalHealth,
    process::Usage,
    status::{ReloadCounts, Timings, UnitView},
    subscribe::SubscribeCounts,
};

type Labels = Vec<(&'static str, String)>;

/// Value of a sample.
#[derive(Clone, Debug)]
enum Value {
    Whole(u64),
    Float(f64),
    Histogram(HistogramSnapshot),
}

impl Value {
    fn of(histogram: &Histogram) -> Self {
        Self::Histogram(histogram.snapshot())
    }

    /// Combines the value with that of another unit of the same type. Adds numbers and histograms. Of two ages, keeps the higher
    /// one.
    fn join(&mut self, other: Self) {
        match (self, other) {
            (Self::Whole(sum), Self::Whole(more)) => *sum += more,
            (Self::Float(age), Self::Float(other)) => *age = age.max(other),
            (Self::Histogram(all), Self::Histogram(more)) => all.add(&more),
            _ => unreachable!("the values of a family are of one kind"),
        }
    }
}

/// Samples of one family. A family without samples is not written.
#[derive(Debug)]
struct Family {
    kind: MetricType,
    samples: BTreeMap<Labels, Value>,
}

impl Family {
    fn encode_value(&self, value: &Value, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match (value, self.kind) {
            (Value::Whole(count), Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
            (Value::Whole(count), _) => encoder.encode_gauge(count),
            (Value::Float(number), Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(number, None),
            (Value::Float(number), _) => encoder.encode_gauge(number),
            (Value::Histogram(snapshot), _) => {
                let buckets: Vec<_> = snapshot.buckets().collect();
                encoder.encode_histogram::<NoLabelSet>(snapshot.sum(), snapshot.count(), &buckets, None)
            }
        }
    }
}

impl EncodeMetric for Family {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.samples.iter().try_for_each(|(labels, value)| match labels[..] {
            [] => self.encode_value(value, &mut encoder),
            _ => self.encode_value(value, &mut encoder.encode_family(labels)?),
        })
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }

    fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// Renders all metrics for one scrape. The units of one type share one set of labels. A separate set for each watched namespace
/// would be too many.
pub(crate) fn render(
    resources: &[UnitView],
    handlers: &[HandlerView],
    journal: &JournalHealth,
    reloads: &ReloadCounts,
    streams: SubscribeCounts,
    timings: &Timings,
) -> String {
    let mut root = Registry::default();
    register_process(&mut root, Usage::now());
    let registry = root.sub_registry_with_prefix("deltabus");
    register_build(registry);
    register_resources(registry, resources);
    register_timings(registry, timings);
    register_handlers(registry, handlers);
    register_journal(registry, journal);
    register_reloads(registry, reloads);
    register_streams(registry, streams);
    let mut text = String::new();
    encode(&mut text, &root).expect("writing to a string succeeds");
    text
}

/// Converts OpenMetrics text to the older Prometheus format (0.0.4). In this format, the name of a counter family ends in `_total`,
/// like the names of its samples. The format has no type `info`, no unit and no end marker.
pub(crate) fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            if let Some(help) = help.take() {
                writeln!(text, "# HELP {name}{suffix} {help}").expect("writing to a string succeeds");
            }
            writeln!(text, "# TYPE {name}{suffix} {kind}").expect("writing to a string succeeds");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Registers a family. If `name` ends in `_seconds` or `_bytes`, this ending becomes the unit of measure. Combines values that have
/// the same labels.
fn register(
    registry: &mut Registry,
    kind: MetricType,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, Value)>,
) {
    let mut samples = BTreeMap::<Labels, Value>::new();
    for (labels, value) in values {
        match samples.get_mut(&labels) {
            Some(known) => known.join(value),
            None => drop(samples.insert(labels, value)),
        }
    }
    let family = Family { kind, samples };
    if let Some(name) = name.strip_suffix("_seconds") {
        registry.register_with_unit(name, help, Unit::Seconds, family);
    } else if let Some(name) = name.strip_suffix("_bytes") {
        registry.register_with_unit(name, help, Unit::Bytes, family);
    } else {
        registry.register(name, help, family);
    }
}

/// Returns the only sample of a family: `value`, without labels.
fn single(value: Value) -> [(Labels, Value); 1] {
    [(Labels::new(), value)]
}

/// Registers the metrics `process_*` that every Prometheus client has. They have no `# UNIT` line. Values that the operating system
/// does not provide are left out.
fn register_process(registry: &mut Registry, usage: Usage) {
    let Usage { cpu_seconds, resident_bytes, virtual_bytes, threads, open_fds, max_fds, started } = usage;
    let families = [
        (Counter, "process_cpu_seconds", "User and system CPU time of this process", Some(cpu_seconds)),
        (Gauge, "process_resident_memory_bytes", "Resident memory of this process", resident_bytes.map(float)),
        (Gauge, "process_virtual_memory_bytes", "Virtual memory of this process", virtual_bytes.map(float)),
        (Gauge, "process_threads", "Threads of this process", threads.map(float)),
        (Gauge, "process_open_fds", "Open file descriptors of this process", open_fds.map(float)),
        (Gauge, "process_max_fds", "File descriptors that this process may have open", max_fds.map(float)),
        (Gauge, "process_start_time_seconds", "Start of this process, since the Unix epoch", started),
    ];
    for (kind, name, help, value) in families {
        let samples = value.map(|value| (Labels::new(), Value::Float(value))).into_iter().collect();
        registry.register(name, help, Family { kind, samples });
    }
}

fn register_build(registry: &mut Registry) {
    let labels = vec![
        ("version", build_info::VERSION.to_owned()),
        ("commit", build_info::COMMIT.to_owned()),
        ("features", build_info::FEATURES.join(",")),
        ("target", build_info::target()),
    ];
    registry.register("build", "Build of this engine", Info::new(labels));
}

fn register_timings(registry: &mut Registry, Timings { watch_open, event_age, batch_events }: &Timings) {
    let opened = "Time from the request for a watch to the head of its answer, for watches that open";
    let age = "Age of a watch event when it is applied, from its decoding to the publication of its batch";
    for (name, help, histogram) in [
        ("watch_open_duration_seconds", opened, watch_open),
        ("applied_event_age_seconds", age, event_age),
        ("batch_events", "Events per batch for the cache", batch_events),
    ] {
        register(registry, MetricType::Histogram, name, help, single(Value::of(histogram)));
    }
}

/// Registers the metrics of the journal. If the journal has no directory, registers none, because all values would be zero.
fn register_journal(registry: &mut Registry, journal: &JournalHealth) {
    if !journal.stored {
        return;
    }
    let whole = |value: u64| Value::Whole(value);
    let kept = journal.last.0.saturating_sub(journal.first.0.saturating_sub(1));
    let undurable = journal.last.0.saturating_sub(journal.durable.0);
    let last_sync = Value::Float(journal.last_sync.as_secs_f64());
    let syncs = Value::Histogram(journal.sync_duration.clone());
    let writable = "1 while the journal accepts changes; at 0, nothing is read from the API server";
    for (kind, name, help, value) in [
        (Gauge, "journal_writable", writable, whole(journal.not_writable.is_none().into())),
        (Gauge, "journal_disk_bytes", "Approximate size of the state directory", whole(journal.disk_bytes)),
        (Gauge, "journal_records", "Approximate number of changes kept", whole(kept)),
        (Gauge, "journal_undurable_records", "Changes written and not yet synced to disk", whole(undurable)),
        (Gauge, "journal_last_sync_seconds", "Duration of the last fsync", last_sync),
        (MetricType::Histogram, "journal_fsync_duration_seconds", "Duration of an fsync", syncs),
        (Counter, "journal_syncs", "Fsyncs", whole(journal.syncs)),
        (Counter, "journal_failures", "Failures to write the state", whole(journal.failures)),
    ] {
        register(registry, kind, name, help, single(value));
    }
}

/// Family with a whole number for each unit or handler: type, name, help, and the function that returns the number.
type NumberOf<T> = (MetricType, &'static str, &'static str, fn(&T) -> u64);

const NUMBERS_OF_UNITS: [NumberOf<UnitView>; 11] = [
    (Gauge, "objects", "Objects in the cache", |view| view.objects),
    (Gauge, "object_bytes", "Size of the objects in the cache", |view| view.bytes),
    (Gauge, "queue_deltas", "Deltas between reflector and indexer", |view| view.queue_length),
    (Gauge, "queue_bytes", "Size of the objects between reflector and indexer", |view| view.queue_bytes),
    (Counter, "unit_restarts", "Restarts of a unit's actors", |view| view.restarts),
    (Counter, "lists", "Lists requested from the API server", |view| view.lists),
    (Counter, "watches", "Watches opened at the API server", |view| view.watches),
    (Counter, "watch_stalls", "Streams closed because no data arrived", |view| view.stalls),
    (
        Counter,
        "unreadable_answers",
        "Lists and watches aborted because they were malformed or had an object longer than max_frame",
        |view| view.unreadable,
    ),
    (
        Counter,
        "list_confirmations",
        "Second lists requested because the first one would have deleted most of the cache",
        |view| view.confirmations,
    ),
    (Counter, "skipped_documents", "Documents of another type, without a name, or nested too deeply", |view| {
        view.skipped
    }),
];

fn register_resources(registry: &mut Registry, views: &[UnitView]) {
    for (kind, name, help, number) in NUMBERS_OF_UNITS {
        let samples = views.iter().map(|view| (labels(view), Value::Whole(number(view))));
        register(registry, kind, name, help, samples);
    }
    let took = views.iter().map(|view| (labels(view), Value::of(&view.list_duration)));
    let help = "Duration of complete lists and streaming lists, from the first request to the last object";
    register(registry, MetricType::Histogram, "list_duration_seconds", help, took);
    let mut synced = BTreeMap::new();
    for view in views {
        *synced.entry(labels(view)).or_insert(true) &= view.synced;
    }
    let synced = synced.into_iter().map(|(labels, synced)| (labels, Value::Whole(synced.into())));
    register(registry, Gauge, "synced", "1 once the initial state is complete in the cache", synced);
    let events = views.iter().flat_map(|view| {
        view.events.by_type().map(|(kind, count)| (with(labels(view), "type", kind), Value::Whole(count)))
    });
    register(registry, Counter, "events", "Changes applied to the cache", events);
    let states: BTreeSet<_> = views.iter().map(|view| with(labels(view), "state", view.state.as_ref())).collect();
    let states = states.into_iter().map(|state| (state, Value::Whole(1)));
    register(registry, Gauge, "unit_state", "1 for the current state of a unit", states);
    let lag = views.iter().map(|view| (labels(view), Value::Float(view.lag_seconds)));
    register(registry, Gauge, "queue_lag_seconds", "Age of the oldest delta not yet applied", lag);
    let age = views.iter().filter_map(|view| Some((labels(view), Value::Float(view.last_activity_seconds?))));
    let help = "Time since the server last sent anything, bookmarks included";
    register(registry, Gauge, "watch_last_activity_age_seconds", help, age);
}

fn labels(view: &UnitView) -> Labels {
    let group = view.api_version.split_once('/').map_or("", |(group, _)| group);
    vec![("name", view.name.clone()), ("group", group.to_owned()), ("resource", view.plural.clone())]
}

fn with(mut labels: Labels, name: &'static str, value: &str) -> Labels {
    labels.push((name, value.to_owned()));
    labels
}

const NUMBERS_OF_HANDLERS: [NumberOf<HandlerView>; 9] = [
    (Counter, "handler_filtered", "Events that `changed`, `when` and `once_per` refused", |view| view.filtered),
    (Counter, "handler_rule_errors", "Events whose `when` could not be evaluated", |view| view.rule_errors),
    (Counter, "handler_key_errors", "Events whose `once_key` could not be rendered", |view| view.key_errors),
    (Gauge, "handler_paused", "1 while the handler is paused", |view| (view.state == HandlerState::Paused).into()),
    (Gauge, "handler_in_flight", "Deliveries in progress, including those that wait for a retry", |view| {
        view.in_flight
    }),
    (
        Gauge,
        "handler_rate_limited",
        "1 while a delivery waits for rate_limit or for a delay that the sink asked for",
        |view| view.rate_limited.into(),
    ),
    (Gauge, "handler_queue_events", "Events waiting for a handler", |view| view.queued),
    (Gauge, "handler_up", "1 once the handler has started", |view| (view.state != HandlerState::Starting).into()),
    (Gauge, "handler_synced", "1 once the handler has handled the whole initial state", |view| view.synced.into()),
];

fn register_handlers(registry: &mut Registry, handlers: &[HandlerView]) {
    let labels = |view: &HandlerView| vec![("handler", view.name.clone())];
    let outcomes = handlers.iter().flat_map(|view| {
        let counts = [
            ("delivered", view.delivered),
            ("retried", view.retried),
            ("dead_letter", view.dead_lettered),
            ("dropped", view.dropped),
        ];
        counts.map(|(outcome, count)| (with(labels(view), "outcome", outcome), Value::Whole(count)))
    });
    let help = "Events that a handler has finished, by outcome; retries count attempts";
    register(registry, Counter, "handler_events", help, outcomes);
    let forms = handlers.iter().flat_map(|view| {
        let counts = [("without_old", view.without_old), ("reference", view.references), ("none", view.too_large)];
        counts.map(|(form, count)| (with(labels(view), "form", form), Value::Whole(count)))
    });
    let help = "Events that were too large for the sink, by the form that it accepted; none: given up";
    register(registry, Counter, "handler_oversize_events", help, forms);
    for (kind, name, help, number) in NUMBERS_OF_HANDLERS {
        let samples = handlers.iter().map(|view| (labels(view), Value::Whole(number(view))));
        register(registry, kind, name, help, samples);
    }
    let lag =
        handlers.iter().map(|view| (labels(view), Value::Float(view.oldest_undelivered_age_seconds.unwrap_or(0.0))));
    register(registry, Gauge, "handler_lag_seconds", "Age of the oldest event not yet delivered", lag);
    let ages = handlers.iter().map(|view| (labels(view), Value::of(&view.timings.event_age)));
    let help = "Age of an event when it is delivered, from its append to the journal in this run";
    register(registry, MetricType::Histogram, "handler_event_age_seconds", help, ages);
    let calls = handlers.iter().flat_map(|view| {
        let calls = [("delivered", &view.timings.delivered_calls), ("failed", &view.timings.failed_calls)];
        calls.map(|(outcome, took)| (with(labels(view), "outcome", outcome), Value::of(took)))
    });
    let help = "Time from a call of the handler to its return";
    register(registry, MetricType::Histogram, "handler_call_duration_seconds", help, calls);
    let events = handlers.iter().map(|view| (labels(view), Value::of(&view.timings.call_events)));
    let help = "Events per call of the handler";
    register(registry, MetricType::Histogram, "handler_batch_events", help, events);
}

fn register_reloads(registry: &mut Registry, reloads: &ReloadCounts) {
    let results = [("applied", reloads.applied), ("refused", reloads.refused)];
    let samples = results.map(|(result, count)| (vec![("result", result.to_owned())], Value::Whole(count)));
    let help = "Configuration reloads of the running engine, by result";
    register(registry, Counter, "config_reloads", help, samples);
    let last = reloads.last_applied.and_then(|at| u64::try_from(at.as_second()).ok());
    let last = last.map(|seconds| (Labels::new(), Value::Whole(seconds)));
    let help = "Time of the last successful reload of the running engine, since the Unix epoch";
    register(registry, Gauge, "config_last_reload_success_timestamp_seconds", help, last);
}

fn register_streams(registry: &mut Registry, streams: SubscribeCounts) {
    for (kind, name, help, count) in [
        (Gauge, "subscribers", "Streams of /v1/events that are open", streams.subscribers),
        (Counter, "subscriber_events", "Events sent to streams, counted once per subscriber", streams.events),
        (Counter, "subscriber_gaps", "Gaps reported to streams", streams.gaps),
        (Counter, "subscribers_refused", "Streams refused because of [subscribe] max_subscribers", streams.refused),
    ] {
        register(registry, kind, name, help, single(Value::Whole(count)));
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes, threads and files stay below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{object::ResourceType, status::UnitStatus};

    fn rendered(resources: &[UnitView], journal: &JournalHealth) -> String {
        let (reloads, streams) = (ReloadCounts::default(), SubscribeCounts::default());
        to_prometheus(&render(resources, &[], journal, &reloads, streams, &Timings::default()))
    }

    #[test]
    fn histogram_has_cumulative_buckets_sum_and_count() {
        let took = Histogram::new(&[0.001, 0.5]);
        took.observe_many(0.001, 2);
        took.observe(Duration::from_millis(250));
        took.observe(Duration::from_secs(3));
        let journal = JournalHealth { stored: true, sync_duration: took.snapshot(), ..JournalHealth::default() };
        let text = rendered(&[], &journal);
        let expected = "# HELP deltabus_journal_fsync_duration_seconds Duration of an fsync.\n\
            # TYPE deltabus_journal_fsync_duration_seconds histogram\n\
            deltabus_journal_fsync_duration_seconds_sum 3.252\n\
            deltabus_journal_fsync_duration_seconds_count 4\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"0.001\"} 2\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"0.5\"} 3\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"+Inf\"} 4\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("deltabus_list_duration_seconds"), "a family without samples is left out: {text}");
    }

    /// Returns two units of one type, like a type whose namespaces are watched one by one.
    fn two_units() -> [UnitView; 2] {
        let [group, version, kind, plural] = ["apps", "v1", "Deployment", "deployments"].map(str::to_owned);
        let deployments = ResourceType { group, version, kind, plural, namespaced: true };
        ["team-a", "team-b"].map(|namespace| {
            let view = UnitStatus::new("all", &deployments, Some(namespace)).view();
            view.list_duration.observe(Duration::from_millis(500));
            view
        })
    }

    const LABELS: &str = "name=\"all\",group=\"apps\",resource=\"deployments\"";

    fn check(text: &str, samples: &[(&str, &str)]) {
        for (sample, value) in samples {
            let line = format!("deltabus_{sample}{{{LABELS}}} {value}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn units_of_one_type_share_metric_rows() {
        let [mut first, mut second] = two_units();
        (first.objects, first.bytes, first.queue_length, first.queue_bytes) = (2, 20, 3, 30);
        (second.objects, second.bytes, second.queue_length, second.queue_bytes) = (5, 50, 0, 0);
        (first.lag_seconds, first.synced, first.last_activity_seconds) = (4.5, false, Some(7.5));
        (second.lag_seconds, second.synced, second.last_activity_seconds) = (0.0, true, Some(0.5));
        let text = rendered(&[first.clone(), second.clone()], &JournalHealth::default());
        check(&text, &[("objects", "7"), ("object_bytes", "70"), ("queue_deltas", "3"), ("queue_bytes", "30")]);
        check(&text, &[("queue_lag_seconds", "4.5"), ("watch_last_activity_age_seconds", "7.5"), ("synced", "0")]);
        first.synced = true;
        check(&rendered(&[first, second], &JournalHealth::default()), &[("synced", "1")]);
    }

    #[test]
    fn histograms_with_equal_labels_are_added() {
        let text = rendered(&two_units(), &JournalHealth::default());
        check(&text, &[("list_duration_seconds_sum", "1.0"), ("list_duration_seconds_count", "2")]);
        let [below, above] = [("0.1", 0), ("0.5", 2)].map(|(bound, count)| {
            format!("deltabus_list_duration_seconds_bucket{{le=\"{bound}\",{LABELS}}} {count}\n")
        });
        assert!(text.contains(&below) && text.contains(&above), "{text}");
    }
}
