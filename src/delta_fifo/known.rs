//! What the consumer of a queue has, as far as it was popped.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use super::{Delta, is_same_state};
use crate::object::{Keep, KeyRef, Object};

/// The state after what was popped: one pointer an object, found by its key; no key is copied.
#[derive(Default)]
pub(super) struct Known {
    table: HashTable<Object>,
    hasher: RandomState,
}

impl Known {
    pub(super) fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.table.find(self.hasher.hash_one(key), |object| object.key() == key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.table.iter()
    }

    /// Takes another form of a state that it has.
    pub(super) fn replace(&mut self, form: &Object) {
        let hash = self.hasher.hash_one(form.key());
        let is_it = |known: &Object| known.key() == form.key();
        if let Some(known) = self.table.find_mut(hash, is_it)
            && is_same_state(known, form)
        {
            *known = Object::clone(form);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Applies a batch, of whose objects no more is kept than `keep` says.
    ///
    /// Every key is looked up before any is changed, first the entries of all, then the objects: reading alone, the
    /// processor fetches many of them from memory at once; with the counting of references in between it would wait for each.
    pub(super) fn apply(&mut self, deltas: &[Delta], keep: &Keep) {
        let hashes: Vec<u64> = deltas.iter().map(|delta| self.hasher.hash_one(delta.object.key())).collect();
        let entries: Vec<_> = hashes.iter().map(|hash| self.table.find(*hash, |_| true)).collect();
        let is_known = |((hash, delta), entry): &((&u64, &Delta), Option<&Object>)| {
            let is_it = |object: &Object| object.key() == delta.object.key();
            entry.is_some_and(|object| is_it(object) || self.table.find(**hash, is_it).is_some())
        };
        let known = hashes.iter().zip(deltas).zip(entries).filter(is_known).count();
        let Self { table, hasher } = self;
        keep.look_at(deltas.iter().filter(|delta| !delta.kind.is_deletion()).map(|delta| &delta.object));
        table.reserve(deltas.len() - known, |object| hasher.hash_one(object.key()));
        for (hash, delta) in hashes.into_iter().zip(deltas) {
            let key = delta.object.key();
            let entry = table.entry(hash, |object| object.key() == key, |object| hasher.hash_one(object.key()));
            match entry {
                Entry::Occupied(entry) if delta.kind.is_deletion() => {
                    entry.remove();
                }
                Entry::Occupied(mut entry) => *entry.get_mut() = keep.of(&delta.object),
                Entry::Vacant(_) if delta.kind.is_deletion() => {}
                Entry::Vacant(entry) => {
                    entry.insert(keep.of(&delta.object));
                }
            }
        }
    }
}

impl FromIterator<Object> for Known {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut known = Self::default();
        let deltas = objects.into_iter().map(|object| Delta { kind: super::DeltaKind::Replaced, object });
        known.apply(&deltas.collect::<Vec<_>>(), &Keep::Whole);
        known
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Known({} objects)", self.len())
    }
}
