//! State of the consumer after the popped batches.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use super::{Delta, is_same_state};
use crate::object::{Keep, KeyRef, Object};

/// Largest capacity at which the table does not shrink, in entries.
const KEPT_ROOM: usize = 1 << 10;

/// The state after the popped batches: one pointer per object, found by its key. Keys are not copied.
#[derive(Default)]
pub(super) struct Known {
    table: HashTable<Object>,
    hasher: RandomState,
}

impl Known {
    pub(super) fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.table.find(self.hasher.hash_one(key), |object| object.has_key(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.table.iter()
    }

    pub(super) fn get_mut(&mut self, key: KeyRef<'_>) -> Option<&mut Object> {
        self.table.find_mut(self.hasher.hash_one(key), |object| object.has_key(key))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Applies a batch; `keep` selects the stored part of each object. If an object has the same state as before, its stored form
    /// stays, unless `initial` is set. The indexer follows the same rule, so both hold the same bodies.
    pub(super) fn apply(&mut self, deltas: &[Delta], keep: &Keep, initial: bool) {
        // The processor fetches many objects in parallel while the code only reads. So all keys are found before any is changed.
        let absent = deltas.iter().filter(|delta| self.get(delta.object.key()).is_none()).count();
        keep.look_at(deltas.iter().filter(|delta| !delta.kind.is_deletion()).map(|delta| &delta.object));
        let Self { table, hasher } = self;
        let hash_of = |object: &Object| hasher.hash_one(object.key());
        table.reserve(absent, hash_of);
        for Delta { kind, object } in deltas {
            match table.entry(hash_of(object), |known| known.has_key(object.key()), hash_of) {
                Entry::Occupied(known) if kind.is_deletion() => drop(known.remove()),
                Entry::Occupied(known) if !initial && is_same_state(known.get(), object) => {}
                Entry::Occupied(mut known) => *known.get_mut() = keep.of(object),
                Entry::Vacant(_) if kind.is_deletion() => {}
                Entry::Vacant(place) => drop(place.insert(keep.of(object))),
            }
        }
        if table.capacity() > KEPT_ROOM && table.len() < table.capacity() / 8 {
            table.shrink_to(table.len() * 2, hash_of);
        }
    }
}

impl FromIterator<Object> for Known {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut known = Self::default();
        let deltas = objects.into_iter().map(|object| Delta { kind: super::DeltaKind::Replaced, object });
        known.apply(&deltas.collect::<Vec<_>>(), &Keep::Whole, true);
        known
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Known({} objects)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta_fifo::{DeltaKind, tests::object};

    #[test]
    fn large_deletion_shrinks_known_table() {
        let objects: Vec<_> = (0..4_000).map(|n| object(&format!("n/{n}"), "u", "1")).collect();
        let mut known: Known = objects.iter().cloned().collect();
        assert!(known.table.capacity() >= 4_000);
        let (kept, gone) = objects.split_at(10);
        let deleted = |object: &Object| Delta { kind: DeltaKind::Deleted, object: object.clone() };
        known.apply(&gone.iter().map(deleted).collect::<Vec<_>>(), &Keep::Whole, false);
        assert!(known.len() == 10 && known.table.capacity() < 100, "{}", known.table.capacity());
        assert!(kept.iter().all(|object| known.get(object.key()).is_some()));
        assert!(gone.iter().all(|object| known.get(object.key()).is_none()));
    }
}
