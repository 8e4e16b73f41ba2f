//! Delayed items, the earliest first.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

/// Ready time of an item, and its rank among items with the same time.
type Slot = (Duration, u64);

/// Items by ready time. Each item occurs at most once, with its earliest time.
#[derive(Debug)]
pub(super) struct Delayed<T> {
    by_time: BTreeMap<Slot, T>,
    slots: HashMap<T, Slot>,
    put: u64,
}

impl<T> Default for Delayed<T> {
    fn default() -> Self {
        Self { by_time: BTreeMap::new(), slots: HashMap::new(), put: 0 }
    }
}

impl<T: Clone + Eq + Hash> Delayed<T> {
    /// Delays an item until `ready_at`, unless it already has an earlier time. Returns true if it is now the first
    /// item.
    pub(super) fn put(&mut self, item: T, ready_at: Duration) -> bool {
        if let Some(slot) = self.slots.get(&item) {
            if slot.0 <= ready_at {
                return false;
            }
            self.by_time.remove(slot);
        }
        let slot = (ready_at, self.put);
        self.put += 1;
        self.slots.insert(item.clone(), slot);
        self.by_time.insert(slot, item);
        self.by_time.first_key_value().is_some_and(|(first, _)| *first == slot)
    }

    /// Removes the first item if it is ready by `now`. Returns it with its time.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<(T, Duration)> {
        let ((ready_at, _), item) = self.by_time.first_entry().filter(|first| first.key().0 <= now)?.remove_entry();
        self.slots.remove(&item);
        Some((item, ready_at))
    }

    /// Returns the time at which the first item is ready.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.by_time.first_key_value().map(|((ready_at, _), _)| *ready_at)
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }
}
