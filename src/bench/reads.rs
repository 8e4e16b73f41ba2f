//! Reads of a cache at the full speed of one thread, and the time of single reads.

use std::{hint::black_box, time::Duration};

use super::{
    figures::{Reads, per_second, percentile},
    measure::monotonic,
};
use crate::{
    lister::{LabelSelector, Lister, Selector},
    object::ObjectKey,
    simulator::Random,
};

/// Number of random keys to read. The objects of so many keys do not fit into a processor's caches.
const KEYS: usize = 1 << 17;
/// Number of reads after which the clock is checked.
const ROUND: usize = 256;
/// Number of keys per call, for reads of several keys.
const AT_ONCE: usize = 64;
/// Interval of timed reads: one read in this number is timed.
const TIMED: usize = 64;

/// A cache, and the keys and selector to read it with.
pub(super) struct Reading {
    lister: Lister,
    keys: Vec<ObjectKey>,
    selector: Option<Selector>,
}

impl Reading {
    /// Chooses random keys, and a selector for a label of the first object. Returns `None` for an empty cache.
    pub(super) fn new(lister: Lister) -> Option<Self> {
        let objects = lister.list(&Selector::all());
        let mut random = Random::new(1);
        let keys = (0..KEYS).filter_map(|_| random.pick(&objects)).map(|object| object.key().to_owned());
        let keys: Vec<_> = keys.collect();
        let first = objects.first()?.value().ok()?;
        let label = first["metadata"]["labels"].as_object().and_then(|labels| labels.iter().next());
        let selector =
            label.and_then(|(name, value)| LabelSelector::parse(&format!("{name}={}", value.as_str()?)).ok());
        Some(Self { lister, keys, selector: selector.map(Selector::from) })
    }

    /// Runs each kind of read for the time `within`. If `by_key_only` is true, runs only reads by key.
    pub(super) fn run(&self, within: Duration, by_key_only: bool) -> Reads {
        let mut took = Vec::new();
        let read = |key: &ObjectKey| drop(black_box(self.lister.get(key.as_ref())));
        let by_key = self.repeat(ROUND, within, |keys| {
            for (at, key) in keys.iter().enumerate() {
                if at % TIMED == 0 {
                    let before = monotonic();
                    read(key);
                    took.push(monotonic() - before);
                } else {
                    read(key);
                }
            }
            keys.len()
        });
        took.sort_unstable();
        let at = |permille| percentile(&took, permille);
        let reads = Reads { by_key, p50_nanos: at(500), p99_nanos: at(990), p999_nanos: at(999), ..Reads::default() };
        if by_key_only {
            return reads;
        }
        Reads {
            found: self.repeat(AT_ONCE, within, |keys| {
                self.lister
                    .snapshot(|query| keys.iter().filter(|key| black_box(query.find(key.as_ref())).is_some()).count())
            }),
            by_keys: self.repeat(AT_ONCE, within, |keys| {
                black_box(self.lister.get_all(keys.iter().map(ObjectKey::as_ref))).len()
            }),
            by_index: self.repeat(1, within, |keys| {
                let namespace = keys.first().map_or("", |key| key.as_ref().namespace);
                black_box(self.lister.namespace(namespace).list(&Selector::all())).len()
            }),
            by_selector: self.by_selector(within),
            ..reads
        }
    }

    fn by_selector(&self, within: Duration) -> f64 {
        let Some(selector) = &self.selector else { return 0.0 };
        let all = usize::try_from(self.lister.len()).unwrap_or(usize::MAX);
        self.repeat(1, within, |_| {
            black_box(self.lister.list(selector));
            all
        })
    }

    /// Calls `read` repeatedly for the time `within`, each time with the next `count` keys. `read` returns a number of objects. The
    /// result is the number of objects per second.
    fn repeat(&self, count: usize, within: Duration, mut read: impl FnMut(&[ObjectKey]) -> usize) -> f64 {
        let mut rounds = self.keys.chunks(count).cycle();
        let (began, mut objects, mut nanos) = (monotonic(), 0, 0);
        while u128::from(nanos) < within.as_nanos() {
            objects += read(rounds.next().unwrap_or_default()) as u64;
            nanos = monotonic() - began;
        }
        per_second(objects, nanos)
    }
}
