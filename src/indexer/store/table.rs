//! One version of a cache, and the batches that lead from one version to the next.

use std::sync::Arc;

use hashbrown::{HashTable, hash_table::Entry};
use left_right::Absorb;

use super::{super::posting::Posting, Meta};
use crate::object::{KeyRef, Object};

/// What is found by a 64-bit hash made elsewhere: 16 bytes and one of control for a pointer. Those that share a hash are
/// told apart by what they are.
#[derive(Clone)]
pub(super) struct Hashed<T>(HashTable<(u64, T)>);

impl<T> Default for Hashed<T> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

impl<T> Hashed<T> {
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        let (_, found) = self.0.find(hash, |(of, value)| *of == hash && is_it(value))?;
        Some(found)
    }

    /// Finds many at once: first the entries of all, then what these point to. Reading alone, the processor waits for
    /// several of them together, the more the less there is to do for each.
    pub(super) fn find_all<'t, K>(&'t self, wanted: &[(u64, K)], is_it: impl Fn(&K, &T) -> bool) -> Vec<Option<&'t T>> {
        let mut found: Vec<_> = wanted.iter().map(|(hash, _)| self.find(*hash, |_| true)).collect();
        for ((hash, key), found) in wanted.iter().zip(&mut found) {
            if found.is_some_and(|value| !is_it(key, value)) {
                *found = self.find(*hash, |value| is_it(key, value)); // another one shares the hash
            }
        }
        found
    }

    /// Finds, or puts what is made in its place.
    pub(super) fn find_or_insert(&mut self, hash: u64, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
        let found = self.0.entry(hash, |(of, value)| *of == hash && is_it(value), |(of, _)| *of);
        let (_, value) = found.or_insert_with(|| (hash, make())).into_mut();
        value
    }

    /// Returns all that share a hash.
    pub(super) fn sharing(&self, hash: u64) -> impl Iterator<Item = &T> {
        self.0.iter_hash(hash).filter(move |(of, _)| *of == hash).map(|(_, value)| value)
    }

    /// Puts `value` in the place of the one that is the same to `is_same`.
    pub(super) fn put(&mut self, hash: u64, value: T, is_same: impl Fn(&T, &T) -> bool) {
        match self.0.entry(hash, |(of, found)| *of == hash && is_same(&value, found), |(of, _)| *of) {
            Entry::Occupied(mut found) => found.get_mut().1 = value,
            Entry::Vacant(place) => drop(place.insert((hash, value))),
        }
    }

    pub(super) fn remove(&mut self, hash: u64, is_it: impl Fn(&T) -> bool) {
        if let Ok(found) = self.0.find_entry(hash, |(of, value)| *of == hash && is_it(value)) {
            found.remove();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.0.iter().map(|(hash, value)| (*hash, value))
    }

    pub(super) fn reserve(&mut self, additions: usize) {
        self.0.reserve(additions, |(hash, _)| *hash);
    }

    /// Takes all out, and keeps room for some of as many again.
    pub(super) fn take(&mut self, kept_room: usize) -> Vec<(u64, T)> {
        let all = self.0.drain().collect();
        self.0.shrink_to(kept_room, |(hash, _)| *hash);
        all
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts hashes that several share.
    #[cfg(test)]
    pub(super) fn collisions(&self) -> usize {
        let is_first = |hash, value| self.sharing(hash).next().is_some_and(|first| std::ptr::eq(first, value));
        self.iter().filter(|&(hash, value)| is_first(hash, value) && self.sharing(hash).nth(1).is_some()).count()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What a batch makes of one key.
#[derive(Clone)]
pub(super) enum Change {
    Put(Object),
    /// With the state it had, which says whose it was.
    Remove(Object),
}

impl Change {
    pub(super) fn key(&self) -> KeyRef<'_> {
        match self {
            Self::Put(object) | Self::Remove(object) => object.key(),
        }
    }

    /// Returns the state it leads to.
    pub(super) fn state(&self) -> Option<&Object> {
        match self {
            Self::Put(object) => Some(object),
            Self::Remove(_) => None,
        }
    }
}

/// Everything a reader sees: objects by key, postings by index and value.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) objects: Hashed<Object>,
    pub(super) postings: Hashed<Arc<Posting>>,
    pub(super) meta: Arc<Meta>,
}

impl Table {
    pub(super) fn new(meta: Arc<Meta>) -> Self {
        Self { objects: Hashed::default(), postings: Hashed::default(), meta }
    }

    pub(super) fn object(&self, hash: u64, key: KeyRef<'_>) -> Option<&Object> {
        self.objects.find(hash, |object| object.key() == key)
    }

    pub(super) fn posting(&self, hash: u64, index: u32, value: &str) -> Option<&Arc<Posting>> {
        self.postings.find(hash, |posting| posting.is_of(index, value))
    }

    /// Applies what a batch holds: to the first copy in clones, to the second itself.
    fn apply(
        &mut self,
        objects: impl Iterator<Item = (u64, Change)>,
        postings: impl Iterator<Item = (u64, Arc<Posting>)>,
        meta: Arc<Meta>,
    ) {
        for (hash, change) in objects {
            match change {
                Change::Put(new) => self.objects.put(hash, new, |new, object| object.key() == new.key()),
                Change::Remove(old) => self.objects.remove(hash, |object| object.key() == old.key()),
            }
        }
        for (hash, new) in postings {
            match new.len() {
                0 => self.postings.remove(hash, |posting| posting.is_of(new.index, &new.value)),
                _ => self.postings.put(hash, new, |new, posting| posting.is_of(new.index, &new.value)),
            }
        }
        self.meta = meta;
    }

    pub(super) fn objects(&self, wanted: &[(u64, KeyRef<'_>)]) -> Vec<Option<&Object>> {
        self.objects.find_all(wanted, |key, object| object.key() == *key)
    }

    /// Makes room for what `changes` adds. All are found before the first is changed, which is what takes the time.
    fn prepare(&mut self, changes: &[(u64, Change)]) {
        let found = self.objects.find_all(changes, |change, object| object.key() == change.key());
        let additions = found.iter().filter(|found| found.is_none()).count();
        self.objects.reserve(additions);
    }
}

/// What one publish shows: each key and each posting once. A posting without objects goes.
pub(super) struct Batch {
    pub(super) objects: Vec<(u64, Change)>,
    pub(super) postings: Vec<(u64, Arc<Posting>)>,
    pub(super) meta: Arc<Meta>,
}

impl Absorb<Batch> for Table {
    fn absorb_first(&mut self, batch: &mut Batch, _: &Self) {
        self.prepare(&batch.objects);
        self.apply(batch.objects.iter().cloned(), batch.postings.iter().cloned(), Arc::clone(&batch.meta));
    }

    fn absorb_second(&mut self, batch: Batch, _: &Self) {
        self.prepare(&batch.objects);
        self.apply(batch.objects.into_iter(), batch.postings.into_iter(), batch.meta);
    }

    fn sync_with(&mut self, first: &Self) {
        self.clone_from(first);
    }
}
