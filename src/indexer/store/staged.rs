//! What a batch changes, until it is published.

use hashbrown::{HashTable, hash_table::Entry};

/// Values found by 32-bit hashes made elsewhere; those that share one are told apart by what they are.
pub(super) struct Staged<T>(HashTable<(u32, T)>);

impl<T> Default for Staged<T> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

/// Returns the hash as the table wants it: it tells values in one place apart by the first bits, and places by the last.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << u32::BITS | u64::from(hash)
}

impl<T> Staged<T> {
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        let (_, found) = self.0.find(spread(hash), |(of, value)| *of == hash && is_it(value))?;
        Some(found)
    }

    /// Finds, or puts what is made in its place.
    pub(super) fn find_or_insert(&mut self, hash: u32, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
        let is_it = |(of, value): &(u32, T)| *of == hash && is_it(value);
        let found = self.0.entry(spread(hash), is_it, |(of, _)| spread(*of));
        let (_, value) = found.or_insert_with(|| (hash, make())).into_mut();
        value
    }

    /// Returns all that share a hash.
    pub(super) fn sharing(&self, hash: u32) -> impl Iterator<Item = &T> {
        self.0.iter_hash(spread(hash)).filter(move |(of, _)| *of == hash).map(|(_, value)| value)
    }

    /// Puts `value` in the place of the one that is the same to `is_same`.
    pub(super) fn put(&mut self, hash: u32, value: T, is_same: impl Fn(&T, &T) -> bool) {
        let is_it = |(of, found): &(u32, T)| *of == hash && is_same(&value, found);
        match self.0.entry(spread(hash), is_it, |(of, _)| spread(*of)) {
            Entry::Occupied(mut found) => found.get_mut().1 = value,
            Entry::Vacant(place) => drop(place.insert((hash, value))),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().map(|(hash, value)| (*hash, value))
    }

    /// Takes all out, and keeps room for some of as many again.
    pub(super) fn take(&mut self, kept_room: usize) -> Vec<(u32, T)> {
        let all = self.0.drain().collect();
        self.0.shrink_to(kept_room, |(hash, _)| spread(*hash));
        all
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
