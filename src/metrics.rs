//! Every metric's name and meaning in one place. OpenMetrics text, base units, no object names in labels.
//!
//! Nothing is counted here: a scrape reads the same views as `/v1/resources` and `/v1/handlers`.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Write as _},
    sync::atomic::AtomicU64,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text::encode},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};

use crate::{
    build_info,
    delivery::status::{HandlerState, HandlerView},
    histogram::{Histogram, Snapshot},
    journal::JournalHealth,
    process::Usage,
    status::{ReloadCounts, Timings, UnitView},
    subscribe::SubscribeCounts,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ResourceLabels {
    name: String,
    group: String,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    name: String,
    group: String,
    resource: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    name: String,
    group: String,
    resource: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct HandlerLabels {
    handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    handler: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormLabels {
    handler: String,
    form: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

/// Renders all metrics for one scrape. Units of one type are shown together: where namespaces are watched one by one, the
/// labels would be too many.
pub fn render(
    resources: &[UnitView],
    handlers: &[HandlerView],
    journal: &JournalHealth,
    reloads: ReloadCounts,
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

/// Rewrites OpenMetrics text as the older Prometheus format (0.0.4) has it: a counter's family is named as its samples
/// are, there is no type `info`, no unit and no end.
pub fn to_prometheus(open_metrics: &str) -> String {
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

/// Histograms of one family, by their labels. Those with the same labels are added.
#[derive(Debug)]
struct Histograms<L>(BTreeMap<L, Snapshot>);

impl<L: Ord> Histograms<L> {
    fn of<'a>(histograms: impl Iterator<Item = (L, &'a Histogram)>) -> Self {
        let mut family: BTreeMap<L, Snapshot> = BTreeMap::new();
        for (labels, histogram) in histograms {
            family.entry(labels).or_default().add(&histogram.snapshot());
        }
        Self(family)
    }
}

impl<L: EncodeLabelSet + Debug> EncodeMetric for Histograms<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, snapshot)| snapshot.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl EncodeMetric for Snapshot {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets: Vec<_> = self.buckets().collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum(), self.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The families that every Prometheus client has, under their own names. What the system does not tell is left out.
fn register_process(registry: &mut Registry, usage: Usage) {
    let Usage { cpu_seconds, resident_bytes, virtual_bytes, threads, open_fds, max_fds, started } = usage;
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(cpu_seconds);
    registry.register("process_cpu_seconds", "User and system CPU time of this process", cpu);
    let started_help = "Start of this process, since the Unix epoch";
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory of this process", resident_bytes.map(float)),
        ("process_virtual_memory_bytes", "Virtual memory of this process", virtual_bytes.map(float)),
        ("process_threads", "Threads of this process", threads.map(float)),
        ("process_open_fds", "Open file descriptors of this process", open_fds.map(float)),
        ("process_max_fds", "File descriptors that this process may have open", max_fds.map(float)),
        ("process_start_time_seconds", started_help, started),
    ];
    for (name, help, value) in gauges {
        let Some(value) = value else { continue };
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
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

fn register_timings(registry: &mut Registry, timings: &Timings) {
    let help = "Time from the request for a watch to the head of its answer, of those that open";
    registry.register_with_unit("watch_open_duration", help, Unit::Seconds, timings.watch_open.snapshot());
    let help = "Age of an event of a watch when it is applied: from its bytes read and decoded to its batch published";
    registry.register_with_unit("applied_event_age", help, Unit::Seconds, timings.event_age.snapshot());
    registry.register("batch_events", "Events of a batch for the cache", timings.batch_events.snapshot());
}

/// What there is without a directory is all zeros, and left out.
fn register_journal(registry: &mut Registry, journal: &JournalHealth) {
    if !journal.stored {
        return;
    }
    let gauge = |value: i64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        gauge
    };
    let counter = |value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        counter
    };
    let seconds = Gauge::<f64, AtomicU64>::default();
    seconds.set(journal.last_sync.as_secs_f64());
    let writable = gauge(i64::from(journal.not_writable.is_none()));
    registry.register("journal_writable", "1 while changes are taken; 0 stops reading the API server", writable);
    let bytes = gauge(signed(journal.disk_bytes));
    registry.register_with_unit("journal_disk", "Size of the state directory, about", Unit::Bytes, bytes);
    let kept = gauge(signed(journal.last.0.saturating_sub(journal.first.0.saturating_sub(1))));
    registry.register("journal_records", "Changes kept, about", kept);
    let undurable = gauge(signed(journal.last.0.saturating_sub(journal.durable.0)));
    registry.register("journal_undurable_records", "Changes written and not forced to the disk yet", undurable);
    registry.register_with_unit("journal_last_sync", "What the last fsync took", Unit::Seconds, seconds);
    let took = journal.sync_duration.clone();
    registry.register_with_unit("journal_fsync_duration", "What an fsync took", Unit::Seconds, took);
    registry.register("journal_syncs", "Fsyncs", counter(journal.syncs));
    registry.register("journal_failures", "Times the state could not be written", counter(journal.failures));
}

fn register_resources(registry: &mut Registry, views: &[UnitView]) {
    let gauge = |value: fn(&UnitView) -> i64| {
        let family = Family::<ResourceLabels, Gauge>::default();
        for view in views {
            family.get_or_create(&resource_labels(view)).inc_by(value(view));
        }
        family
    };
    let counter = |value: fn(&UnitView) -> u64| {
        let family = Family::<ResourceLabels, Counter>::default();
        for view in views {
            family.get_or_create(&resource_labels(view)).inc_by(value(view));
        }
        family
    };
    registry.register("objects", "Objects in the cache", gauge(|view| signed(view.objects)));
    registry.register_with_unit(
        "object",
        "Objects in the cache, by size",
        Unit::Bytes,
        gauge(|view| signed(view.bytes)),
    );
    registry.register("queue_deltas", "Deltas between reflector and indexer", gauge(|view| signed(view.queue_length)));
    registry.register_with_unit(
        "queue",
        "Objects between reflector and indexer, by size",
        Unit::Bytes,
        gauge(|view| signed(view.queue_bytes)),
    );
    registry.register("unit_restarts", "Restarts of a unit's actors", counter(|view| view.restarts));
    registry.register("lists", "Lists asked of the API server", counter(|view| view.lists));
    let took = Histograms::of(views.iter().map(|view| (resource_labels(view), &*view.list_duration)));
    let help = "Time from the first request of a list, streaming lists included, to its last object, of complete ones";
    registry.register_with_unit("list_duration", help, Unit::Seconds, took);
    registry.register("watches", "Watches opened at the API server", counter(|view| view.watches));
    registry.register("watch_stalls", "Streams given up because nothing came", counter(|view| view.stalls));
    registry.register(
        "unreadable_answers",
        "Lists and watches given up because they were malformed or had an object longer than max_frame",
        counter(|view| view.unreadable),
    );
    registry.register(
        "list_confirmations",
        "Second lists asked for, because the first would have deleted most of what is cached",
        counter(|view| view.confirmations),
    );
    registry.register("skipped_documents", "Documents of another type or without a name", counter(|view| view.skipped));
    register_states(registry, views);
}

fn register_states(registry: &mut Registry, views: &[UnitView]) {
    let synced = Family::<ResourceLabels, Gauge>::default();
    for view in views {
        synced.get_or_create(&resource_labels(view)).set(1);
    }
    for view in views.iter().filter(|view| !view.synced) {
        synced.get_or_create(&resource_labels(view)).set(0);
    }
    registry.register("synced", "1 once the initial state is complete in the cache", synced);
    let events = Family::<EventLabels, Counter>::default();
    let states = Family::<StateLabels, Gauge>::default();
    let seconds = Family::<ResourceLabels, Gauge<f64, AtomicU64>>::default();
    let lag = Family::<ResourceLabels, Gauge<f64, AtomicU64>>::default();
    for view in views {
        let ResourceLabels { name, group, resource } = resource_labels(view);
        let counts = view.events;
        for (r#type, count) in counts.by_type() {
            let labels = EventLabels { name: name.clone(), group: group.clone(), resource: resource.clone(), r#type };
            events.get_or_create(&labels).inc_by(count);
        }
        states.get_or_create(&StateLabels { name, group, resource, state: view.state.as_str() }).set(1);
        raise(&lag.get_or_create(&resource_labels(view)), view.lag_seconds);
        if let Some(age) = view.last_activity_seconds {
            raise(&seconds.get_or_create(&resource_labels(view)), age);
        }
    }
    registry.register("events", "Changes applied to the cache", events);
    registry.register("unit_state", "1 for the state a unit is in", states);
    registry.register_with_unit("queue_lag", "Age of the oldest delta not yet applied", Unit::Seconds, lag);
    registry.register_with_unit(
        "watch_last_activity_age",
        "Time since the server last sent anything, bookmarks included",
        Unit::Seconds,
        seconds,
    );
}

fn register_handlers(registry: &mut Registry, handlers: &[HandlerView]) {
    let outcomes = Family::<OutcomeLabels, Counter>::default();
    let queued = Family::<HandlerLabels, Gauge>::default();
    let up = Family::<HandlerLabels, Gauge>::default();
    let synced = Family::<HandlerLabels, Gauge>::default();
    let filtered = Family::<HandlerLabels, Counter>::default();
    let rule_errors = Family::<HandlerLabels, Counter>::default();
    let oversize = Family::<FormLabels, Counter>::default();
    let paused = Family::<HandlerLabels, Gauge>::default();
    let in_flight = Family::<HandlerLabels, Gauge>::default();
    let rate_limited = Family::<HandlerLabels, Gauge>::default();
    let lag = Family::<HandlerLabels, Gauge<f64, AtomicU64>>::default();
    for status in handlers {
        let labels = HandlerLabels { handler: status.name.clone() };
        for (outcome, count) in [
            ("delivered", status.delivered),
            ("retried", status.retried),
            ("dead_letter", status.dead_lettered),
            ("dropped", status.dropped),
        ] {
            let labels = OutcomeLabels { handler: status.name.clone(), outcome };
            outcomes.get_or_create(&labels).inc_by(count);
        }
        for (form, count) in
            [("without_old", status.without_old), ("reference", status.references), ("none", status.too_large)]
        {
            let labels = FormLabels { handler: status.name.clone(), form };
            oversize.get_or_create(&labels).inc_by(count);
        }
        filtered.get_or_create(&labels).inc_by(status.filtered);
        rule_errors.get_or_create(&labels).inc_by(status.rule_errors);
        paused.get_or_create(&labels).set((status.state == HandlerState::Paused).into());
        in_flight.get_or_create(&labels).set(signed(status.in_flight));
        rate_limited.get_or_create(&labels).set(status.rate_limited.into());
        queued.get_or_create(&labels).set(signed(status.queued));
        up.get_or_create(&labels).set((status.state != HandlerState::Starting).into());
        synced.get_or_create(&labels).set(status.synced.into());
        lag.get_or_create(&labels).set(status.oldest_undelivered_age_seconds.unwrap_or(0.0));
    }
    registry.register("handler_events", "Events a handler is done with, by outcome; retries count attempts", outcomes);
    registry.register("handler_filtered", "Events that `changed` and `when` refused", filtered);
    let help = "Events of which `when` could not be evaluated, and that were refused for it";
    registry.register("handler_rule_errors", help, rule_errors);
    let help = "Events that were too large for the sink, by the form in which it took them; none: given up";
    registry.register("handler_oversize_events", help, oversize);
    registry.register("handler_paused", "1 while somebody has paused the handler", paused);
    registry.register("handler_in_flight", "Deliveries under way, those included that wait to be repeated", in_flight);
    let help = "1 while a delivery waits for rate_limit, or until the sink wants more";
    registry.register("handler_rate_limited", help, rate_limited);
    registry.register("handler_queue_events", "Events waiting for a handler", queued);
    registry.register("handler_up", "1 once the handler has started", up);
    registry.register("handler_synced", "1 once the handler is done with the initial state of all it takes", synced);
    registry.register_with_unit("handler_lag", "Age of the oldest event not yet delivered", Unit::Seconds, lag);
    register_handler_timings(registry, handlers);
}

fn register_handler_timings(registry: &mut Registry, handlers: &[HandlerView]) {
    let labels = |view: &HandlerView| HandlerLabels { handler: view.name.clone() };
    let ages = handlers.iter().map(|view| (labels(view), &view.timings.event_age));
    let help =
        "Age of an event when it is delivered: from its append to the journal, in this run, to the handler's answer";
    registry.register_with_unit("handler_event_age", help, Unit::Seconds, Histograms::of(ages));
    let calls = handlers.iter().flat_map(|view| {
        let calls = [("delivered", &view.timings.delivered_calls), ("failed", &view.timings.failed_calls)];
        calls.map(|(outcome, took)| (OutcomeLabels { handler: view.name.clone(), outcome }, took))
    });
    let help = "Time from a call of the handler to its answer";
    registry.register_with_unit("handler_call_duration", help, Unit::Seconds, Histograms::of(calls));
    let events = handlers.iter().map(|view| (labels(view), &view.timings.call_events));
    registry.register("handler_batch_events", "Events of a call of the handler", Histograms::of(events));
}

fn register_reloads(registry: &mut Registry, reloads: ReloadCounts) {
    let results = Family::<ReloadLabels, Counter>::default();
    for (result, count) in [("applied", reloads.applied), ("refused", reloads.refused)] {
        results.get_or_create(&ReloadLabels { result }).inc_by(count);
    }
    registry.register("config_reloads", "Configurations given to the running engine, by result", results);
    if let Some(at) = reloads.last_applied {
        let last = Gauge::<i64>::default();
        last.set(at.as_second());
        let help = "When a configuration was last applied to the running engine, since the Unix epoch";
        registry.register_with_unit("config_last_reload_success_timestamp", help, Unit::Seconds, last);
    }
}

fn register_streams(registry: &mut Registry, streams: SubscribeCounts) {
    let subscribers = Gauge::<i64>::default();
    subscribers.set(signed(streams.subscribers));
    registry.register("subscribers", "Streams of /v1/events that are open", subscribers);
    let counter = |value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        counter
    };
    let help = "Events handed to streams: one to each subscriber is one";
    registry.register("subscriber_events", help, counter(streams.events));
    let help = "Times a stream was told that it misses events";
    registry.register("subscriber_gaps", help, counter(streams.gaps));
    let help = "Streams refused because of [subscribe] max_subscribers";
    registry.register("subscribers_refused", help, counter(streams.refused));
}

/// Shows the largest of several values.
fn raise(gauge: &Gauge<f64, AtomicU64>, value: f64) {
    gauge.set(gauge.get().max(value));
}

fn resource_labels(view: &UnitView) -> ResourceLabels {
    let group = view.api_version.split_once('/').map_or("", |(group, _)| group);
    ResourceLabels { name: view.name.clone(), group: group.to_owned(), resource: view.plural.clone() }
}

#[expect(clippy::cast_precision_loss, reason = "bytes, threads and files stay below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{object::ResourceType, status::UnitStatus};

    fn rendered(resources: &[UnitView], journal: &JournalHealth) -> String {
        let (reloads, streams) = (ReloadCounts::default(), SubscribeCounts::default());
        to_prometheus(&render(resources, &[], journal, reloads, streams, &Timings::default()))
    }

    #[test]
    fn histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let took = Histogram::new(&[0.001, 0.5]);
        took.observe_many(0.001, 2);
        took.observe(Duration::from_millis(250));
        took.observe(Duration::from_secs(3));
        let journal = JournalHealth { stored: true, sync_duration: took.snapshot(), ..JournalHealth::default() };
        let text = rendered(&[], &journal);
        let expected = "# HELP deltabus_journal_fsync_duration_seconds What an fsync took.\n\
            # TYPE deltabus_journal_fsync_duration_seconds histogram\n\
            deltabus_journal_fsync_duration_seconds_sum 3.252\n\
            deltabus_journal_fsync_duration_seconds_count 4\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"0.001\"} 2\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"0.5\"} 3\n\
            deltabus_journal_fsync_duration_seconds_bucket{le=\"+Inf\"} 4\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("deltabus_list_duration_seconds"), "a family without samples is left out: {text}");
    }

    /// Two units of one type, as where namespaces are watched one by one.
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
    fn units_of_one_type_are_shown_together() {
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
