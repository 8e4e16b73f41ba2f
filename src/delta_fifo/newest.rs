//! State after all queued deltas.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::{Delta, known::Known};
use crate::object::{KeyRef, Object};

/// Keys of several objects.
pub(super) type KeySet<'a> = HashSet<KeyRef<'a>, RandomState>;

/// Newest delta of each queued key, and the known state of all other keys. The deltas are in the order in which their keys entered
/// the queue.
pub(super) struct Newest<'a> {
    deltas: Vec<&'a Delta>,
    at: HashMap<KeyRef<'a>, usize, RandomState>,
    known: &'a Known,
}

impl<'a> Newest<'a> {
    /// Collects the newest delta of each key. `queued` yields the oldest delta first.
    pub(super) fn new(known: &'a Known, queued: impl Iterator<Item = &'a Delta>) -> Self {
        let mut newest = Self { deltas: Vec::new(), at: HashMap::default(), known };
        for delta in queued {
            let next = newest.deltas.len();
            let at = *newest.at.entry(delta.object.key()).or_insert(next);
            if at == next { newest.deltas.push(delta) } else { newest.deltas[at] = delta }
        }
        newest
    }

    /// Returns the newest queued delta of a key.
    pub(super) fn get(&self, key: KeyRef<'_>) -> Option<&'a Delta> {
        self.at.get(&key).map(|&at| self.deltas[at])
    }

    /// Returns the object that a key has after all queued deltas.
    pub(super) fn state(&self, key: KeyRef<'_>) -> Option<&'a Object> {
        match self.get(key) {
            Some(delta) => Some(&delta.object).filter(|_| !delta.kind.is_deletion()),
            None => self.known.get(key),
        }
    }

    /// Returns the newest state of each queued object, except deleted objects.
    pub(super) fn queued(&self) -> impl Iterator<Item = &'a Object> {
        self.deltas.iter().filter(|delta| !delta.kind.is_deletion()).map(|delta| &delta.object)
    }

    /// Returns the known objects without a queued delta, in no particular order.
    pub(super) fn unqueued(&self) -> impl Iterator<Item = &'a Object> {
        self.known.iter().filter(|object| self.get(object.key()).is_none())
    }
}
