//! Items that wait for their time, the earliest first.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

/// When an item is ready, and its place among those that are ready at the same time.
type Slot = (Duration, u64);

/// Items by ready time; each at most once, with the earliest time that it was given.
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
    /// Lets an item wait until `ready_at`, unless it is ready earlier anyhow. Returns whether it is the first now.
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

    /// Takes the first item out if it is ready by `now`; with its time.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<(T, Duration)> {
        let ((ready_at, _), item) = self.by_time.first_entry().filter(|first| first.key().0 <= now)?.remove_entry();
        self.slots.remove(&item);
        Some((item, ready_at))
    }

    /// Returns when the first item is ready.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.by_time.first_key_value().map(|((ready_at, _), _)| *ready_at)
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }
}
