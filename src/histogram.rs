//! Histograms of the metrics. They use atomics, so that counting needs no lock and no allocation.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A distribution of values over buckets.
///
/// Any thread may count. A snapshot taken during a count may include the value in its bucket, but not yet in the sum.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Upper bounds of the buckets, inclusive and ascending.
    bounds: &'static [f64],
    /// One counter for each bound, then one for larger values.
    counts: Box<[AtomicU64]>,
    /// Sum of the values, as the bits of an `f64`.
    sum: AtomicU64,
}

/// State of a [`Histogram`] at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSnapshot {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Makes an empty histogram with these ascending upper bounds.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Counts a duration in seconds.
    pub fn observe(&self, took: Duration) {
        self.observe_many(took.as_secs_f64(), 1);
    }

    /// Counts a number of items.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub fn observe_count(&self, count: usize) {
        self.observe_many(count as f64, 1);
    }

    /// Counts a value that occurs `times` times.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub fn observe_many(&self, value: f64, times: u64) {
        if times == 0 {
            return;
        }
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(times, Relaxed);
        let add = |bits| (f64::from_bits(bits) + value * times as f64).to_bits();
        self.sum.update(Relaxed, Relaxed, add);
    }

    /// Returns the current state.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum: f64::from_bits(self.sum.load(Relaxed)),
        }
    }
}

impl HistogramSnapshot {
    /// Adds the counts and the sum of `other`, which must have the same bounds. If `self` is the default value, without buckets, it
    /// becomes a copy of `other`.
    pub fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            *self = other.clone();
            return;
        }
        self.sum += other.sum;
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Returns the upper bound and the number of values of each bucket. The last bound is infinity. The counts are not cumulative.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied())
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(histogram: &Histogram) -> Vec<u64> {
        histogram.snapshot().buckets().map(|(_, count)| count).collect()
    }

    #[test]
    fn value_counts_in_first_bucket_that_holds_it() {
        let check = |value: f64, expected: [u64; 4]| {
            let histogram = Histogram::new(&[0.001, 0.5, 10.0]);
            histogram.observe_many(value, 1);
            assert_eq!(counts(&histogram), expected, "{value}");
        };
        check(0.0, [1, 0, 0, 0]);
        check(0.001, [1, 0, 0, 0]);
        check(0.001_000_1, [0, 1, 0, 0]);
        check(0.5, [0, 1, 0, 0]);
        check(10.0, [0, 0, 1, 0]);
        check(10.5, [0, 0, 0, 1]);
        check(f64::INFINITY, [0, 0, 0, 1]);
    }

    #[test]
    fn sum_and_count_follow_values() {
        let histogram = Histogram::new(&[1.0]);
        histogram.observe_many(0.25, 4);
        histogram.observe_many(9.0, 0);
        histogram.observe(Duration::from_millis(1_500));
        let mut snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.sum()), (5, 2.5));
        assert_eq!(snapshot.buckets().collect::<Vec<_>>(), [(1.0, 4), (f64::INFINITY, 1)]);
        snapshot.add(&histogram.snapshot());
        assert_eq!((snapshot.count(), snapshot.sum()), (10, 5.0));
        let mut empty = HistogramSnapshot::default();
        empty.add(&snapshot);
        assert_eq!(empty, snapshot);
    }

    #[test]
    fn threads_lose_no_value() {
        let histogram = Histogram::new(&[1.0]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| histogram.observe_many(0.5, 2)));
            }
        });
        assert_eq!((histogram.snapshot().count(), histogram.snapshot().sum()), (8_000, 4_000.0));
    }
}
