//! Results of a run, and the figures derived from them.

use serde::{Deserialize, Serialize};

use super::orders::{EventsCost, Stamp, Synced};

/// Results of one run: one engine, from its start to its end. A value that was not measured is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Run {
    /// Average JSON size of an object as the server sends it, in bytes.
    pub object_bytes: u64,
    /// Cost of the first sync.
    pub synced: Synced,
    /// Changes per second during the sync.
    pub flow: f64,
    /// Number of changes after the sync; 0 for a live cluster, where this number is unknown.
    pub changes: u64,
    pub events: EventsCost,
    /// Latency of single changes.
    pub latency: Latency,
    /// Reads while nothing changes.
    pub reads: Reads,
    /// Figures of reads during changes, which come as fast as the engine accepts them; and the number of events delivered per
    /// second meanwhile.
    pub reads_beside_writer: (Reads, f64),
}

/// Latency of single changes from the server's socket to the handler; nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
    pub changes: usize,
}

impl Latency {
    /// Computes the latencies of the changes that are both in `sent` and in `arrived`. A change has the same version in both lists.
    pub(crate) fn of(sent: &[Stamp], mut arrived: Vec<Stamp>) -> Self {
        arrived.sort_unstable();
        let took = sent.iter().filter_map(|(version, at)| {
            let found = arrived.binary_search_by_key(version, |(version, _)| *version).ok()?;
            Some(arrived[found].1.saturating_sub(*at))
        });
        let mut took: Vec<u64> = took.collect();
        took.sort_unstable();
        let [p50, p90, p99, max] = [500, 900, 990, 1000].map(|permille| percentile(&took, permille));
        Self { p50, p90, p99, max, changes: took.len() }
    }
}

/// Returns a percentile of sorted values, or 0 for an empty slice. A `permille` of 500 is the median.
pub(super) fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Reads of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reads {
    /// Reads per second by randomly drawn keys.
    pub by_key: f64,
    /// Median duration of one read by key, in nanoseconds, including the clock's overhead.
    pub p50_nanos: u64,
    /// 99th percentile of one read by key.
    pub p99_nanos: u64,
    /// 99.9th percentile of one read by key.
    pub p999_nanos: u64,
    /// Reads by key per second, if 64 reads share one snapshot.
    pub found: f64,
    /// Reads by key per second, if one call reads 64 keys.
    pub by_keys: f64,
    /// Number of objects per second that are read through the index of namespaces.
    pub by_index: f64,
    /// Number of objects per second that lists with a label selector examine.
    pub by_selector: f64,
}

/// One figure of a run.
pub struct Figure {
    /// Name in documents.
    pub key: &'static str,
    /// Displayed name.
    pub title: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Number of decimal places.
    pub decimals: usize,
    /// Function that computes the figure. The result is 0 or not finite if the figure was not measured.
    of: fn(&Run) -> f64,
}

impl Figure {
    /// Returns the figure of a run; `None` if it was not measured.
    pub(super) fn value(&self, run: &Run) -> Option<f64> {
        Some((self.of)(run)).filter(|value| value.is_finite() && *value > 0.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

/// Returns a rate per second.
pub(crate) fn per_second(count: u64, nanos: u64) -> f64 {
    float(count) * 1e9 / float(nanos)
}

fn per_object(run: &Run, value: u64) -> f64 {
    float(value) / float(run.synced.objects)
}

fn per_event(run: &Run, value: u64) -> f64 {
    float(value) / float(if run.changes > 0 { run.changes } else { run.events.delivered })
}

const fn figure(
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    decimals: usize,
    of: fn(&Run) -> f64,
) -> Figure {
    Figure { key, title, unit, decimals, of }
}

/// All figures, in the order of the table. See `docs/benchmarks.md` for their meaning.
pub const FIGURES: [Figure; 30] = [
    figure("objectBytes", "JSON of an object, as received", "bytes", 0, |run| float(run.object_bytes)),
    figure("keptBytes", "JSON of an object, as cached, uncompressed", "bytes", 0, |run| float(run.synced.object_bytes)),
    figure("syncSeconds", "first sync", "s", 2, |run| float(run.synced.wall_nanos) / 1e9),
    figure("syncCpuMicrosPerObject", "first sync, CPU per object", "µs", 1, |run| {
        per_object(run, run.synced.cpu_nanos) / 1e3
    }),
    figure("changesPerSecondWhileSyncing", "first sync, changes meanwhile (--flow)", "per s", 0, |run| run.flow),
    figure("peakMegabytes", "first sync, peak memory", "MB", 0, |run| float(run.synced.resident_peak) / 1e6),
    figure("residentMegabytes", "memory after the sync", "MB", 0, |run| float(run.synced.resident) / 1e6),
    figure("residentBytesPerObject", "memory after the sync, per object", "bytes", 0, |run| {
        per_object(run, run.synced.resident)
    }),
    figure("bodyBytesPerObject", "compressed JSON in it, per object", "bytes", 0, |run| {
        per_object(run, run.synced.bodies)
    }),
    figure("residentMegabytesAfterEvents", "memory after the events", "MB", 0, |run| float(run.events.resident) / 1e6),
    figure("residentBytesPerObjectAfterEvents", "memory after the events, per object", "bytes", 0, |run| {
        per_object(run, run.events.resident)
    }),
    // Not measured for a single event: the time from the first event to the last is then 0.
    figure("eventsPerSecond", "events delivered", "per s", 0, |run| {
        per_second(run.events.delivered, run.events.wall_nanos)
    }),
    figure("cpuMicrosPerEvent", "CPU per event", "µs", 1, |run| per_event(run, run.events.cpu_nanos) / 1e3),
    figure("deliveredPercent", "changes delivered as separate events", "%", 1, |run| {
        100.0 * float(run.events.delivered) / float(run.changes)
    }),
    figure("writtenBytesPerEvent", "written to disk per event (--state)", "bytes", 0, |run| {
        per_event(run, run.events.written)
    }),
    figure("latencyP50Micros", "latency, API server to handler, p50", "µs", 0, |run| float(run.latency.p50) / 1e3),
    figure("latencyP90Micros", "latency, API server to handler, p90", "µs", 0, |run| float(run.latency.p90) / 1e3),
    figure("latencyP99Micros", "latency, API server to handler, p99", "µs", 0, |run| float(run.latency.p99) / 1e3),
    figure("latencyMaxMicros", "latency, API server to handler, maximum", "µs", 0, |run| float(run.latency.max) / 1e3),
    figure("readsPerSecond", "reads by key, one thread", "per s", 0, |run| run.reads.by_key),
    figure("readP50Nanos", "time of a read by key, p50", "ns", 0, |run| float(run.reads.p50_nanos)),
    figure("readP99Nanos", "time of a read by key, p99", "ns", 0, |run| float(run.reads.p99_nanos)),
    figure("readsPerSecondInSnapshot", "reads by key, 64 per snapshot", "per s", 0, |run| run.reads.found),
    figure("readsPerSecondOfManyKeys", "reads by key, 64 per call", "per s", 0, |run| run.reads.by_keys),
    figure("indexObjectsPerSecond", "objects read through an index", "per s", 0, |run| run.reads.by_index),
    figure("selectorObjectsPerSecond", "objects checked by a label selector", "per s", 0, |run| run.reads.by_selector),
    figure("writerEventsPerSecond", "reads during changes: changes applied", "per s", 0, |run| {
        run.reads_beside_writer.1
    }),
    figure("readsPerSecondBesideWriter", "reads during changes: reads by key", "per s", 0, |run| {
        run.reads_beside_writer.0.by_key
    }),
    figure("readP99NanosBesideWriter", "reads during changes: time of a read, p99", "ns", 0, |run| {
        float(run.reads_beside_writer.0.p99_nanos)
    }),
    figure("readP999NanosBesideWriter", "reads during changes: time of a read, p99.9", "ns", 0, |run| {
        float(run.reads_beside_writer.0.p999_nanos)
    }),
];

/// One figure, summarized over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Median of the runs.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

/// Returns the figure with this name.
pub(super) fn named(key: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.key == key)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns a run with every figure.
    pub(in crate::bench) fn run() -> Run {
        let reads = Reads {
            by_key: 5e6,
            p50_nanos: 150,
            p99_nanos: 400,
            p999_nanos: 900,
            found: 7e6,
            by_keys: 9e6,
            by_index: 2e6,
            by_selector: 3e5,
        };
        Run {
            object_bytes: 9_100,
            synced: Synced {
                objects: 20_000,
                wall_nanos: 400_000_000,
                cpu_nanos: 200_000_000,
                resident: 42_000_000,
                resident_peak: 50_000_000,
                bodies: 9_480_000,
                object_bytes: 5_600,
            },
            flow: 1_000.0,
            changes: 50_000,
            events: EventsCost {
                delivered: 49_000,
                wall_nanos: 500_000_000,
                cpu_nanos: 450_000_000,
                resident: 43_000_000,
                written: 5_000_000,
            },
            latency: Latency { p50: 250_000, p90: 400_000, p99: 900_000, max: 3_000_000, changes: 600 },
            reads,
            reads_beside_writer: (Reads { by_key: 4e6, p99_nanos: 600, ..reads }, 90_000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn value(run: &Run, key: &str) -> Option<f64> {
        named(key).unwrap().value(run)
    }

    #[test]
    fn figures_match_their_names() {
        let run = testing::run();
        for (key, expected) in [
            ("syncSeconds", 0.4),
            ("syncCpuMicrosPerObject", 10.0),
            ("changesPerSecondWhileSyncing", 1_000.0),
            ("peakMegabytes", 50.0),
            ("residentBytesPerObject", 2_100.0),
            ("residentBytesPerObjectAfterEvents", 2_150.0),
            ("bodyBytesPerObject", 474.0),
            ("eventsPerSecond", 98_000.0),
            ("cpuMicrosPerEvent", 9.0),
            ("deliveredPercent", 98.0),
            ("writtenBytesPerEvent", 100.0),
            ("latencyP50Micros", 250.0),
            ("latencyMaxMicros", 3_000.0),
            ("readsPerSecond", 5e6),
            ("readsPerSecondInSnapshot", 7e6),
            ("readP99NanosBesideWriter", 600.0),
            ("writerEventsPerSecond", 90_000.0),
        ] {
            assert_eq!(value(&run, key), Some(expected), "{key}");
        }
        let keys: BTreeSet<_> = FIGURES.iter().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), FIGURES.len());
    }

    #[test]
    fn unmeasured_values_have_no_figure() {
        let run = Run::default();
        assert!(FIGURES.iter().all(|figure| figure.value(&run).is_none()), "and nothing is divided by zero");
        let watched = Run { changes: 0, ..testing::run() };
        assert_eq!(value(&watched, "deliveredPercent"), None);
        assert!(value(&watched, "cpuMicrosPerEvent").unwrap() > 9.0, "by events where changes are not counted");
    }

    #[test]
    fn latency_joins_by_version_and_ignores_missing_arrivals() {
        let sent: Vec<Stamp> = (0..1_000).map(|version| (version, 10 * version)).collect();
        let mut arrived: Vec<Stamp> = sent.iter().map(|(version, at)| (*version, at + version + 1)).collect();
        arrived.reverse();
        let latency = Latency::of(&sent, arrived.clone());
        assert_eq!((latency.p50, latency.p90, latency.p99, latency.max), (500, 900, 990, 1_000));
        assert_eq!(Latency::of(&sent, arrived.split_off(500)).changes, 500);
        assert_eq!(Latency::of(&sent, vec![(5_000, 1)]), Latency::default());
    }
}
