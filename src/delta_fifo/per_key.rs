//! Classic order: deltas are grouped by key (F-10 … F-17).

use std::{collections::VecDeque, hash::BuildHasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::{BATCH_LEN_MAX, Delta, DeltaKind, Deltas, Load, Popped, bytes_of};
use crate::object::{KeyRef, Object, ResourceVersion};

/// Queued keys with their deltas, in the order of each key's oldest delta.
///
/// **Invariants:** a key is in `keys` once, with at least one delta (F-10). `places` holds the position of each key, counted
/// from the first key that was ever queued. `places` stores no keys; a lookup reads the key from a delta.
#[derive(Default)]
pub(super) struct PerKeyQueue {
    keys: VecDeque<KeyDeltas>,
    places: HashTable<u64>,
    /// Position of the first key in `keys`, counted as in `places`.
    first: u64,
    hasher: RandomState,
    pub(super) load: Load,
    /// Set while a Replace is queued: the number of keys in its batch, and the version of the list.
    replace: Option<(usize, ResourceVersion)>,
    /// Version of the last pushed event. `None` after a batch with this version was handed out.
    last: Option<Reached>,
    /// Version up to which all events were handed out.
    version: ResourceVersion,
}

struct KeyDeltas {
    deltas: Vec<Delta>,
    bytes: usize,
}

enum Reached {
    Object(Object),
    Version(ResourceVersion),
}

impl KeyDeltas {
    fn newest(&self) -> &Delta {
        self.deltas.last().expect("a queued key has deltas")
    }

    fn key(&self) -> KeyRef<'_> {
        self.newest().object.key()
    }
}

impl PerKeyQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.replace.is_none() && self.last.is_none()
    }

    pub(super) fn contains(&self, key: KeyRef<'_>) -> bool {
        self.place(key).is_some()
    }

    fn place(&self, key: KeyRef<'_>) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        let place = self.places.find(hash, |&place| self.keys[index(place, self.first)].key() == key)?;
        Some(index(*place, self.first))
    }

    /// Notes a version that the stream reached without a delta.
    pub(super) fn reach_version(&mut self, version: ResourceVersion) {
        self.last = Some(Reached::Version(version));
    }

    /// Notes the version of an event, whether or not the event is queued.
    pub(super) fn reach(&mut self, object: &Object) {
        if !object.resource_version().is_empty() {
            self.last = Some(Reached::Object(object.clone()));
        }
    }

    /// Appends a delta to its key. Two deletions in a row become one (F-11).
    pub(super) fn append(&mut self, delta: Delta, shared: bool) {
        let bytes = bytes_of(&delta, shared);
        let Some(at) = self.place(delta.object.key()) else { return self.append_key(delta, bytes) };
        let entry = &mut self.keys[at];
        let newest = entry.deltas.last_mut().expect("a queued key has deltas");
        if delta.kind.is_deletion() && newest.kind.is_deletion() {
            // a deleted object cannot opt out
            if newest.kind == DeltaKind::Tombstone && !matches!(delta.kind, DeltaKind::OptedOut { .. }) {
                let before = bytes_of(newest, false);
                *newest = delta;
                entry.bytes = entry.bytes - before + bytes;
                self.load.bytes = self.load.bytes - before + bytes;
            }
            return;
        }
        entry.deltas.push(delta);
        entry.bytes += bytes;
        self.load.bytes += bytes;
        self.load.len += 1;
    }

    fn append_key(&mut self, delta: Delta, bytes: usize) {
        let hash = self.hasher.hash_one(delta.object.key());
        self.keys.push_back(KeyDeltas { deltas: vec![delta], bytes });
        let Self { keys, first, hasher, .. } = self;
        let place = *first + (keys.len() - 1) as u64;
        self.places.insert_unique(hash, place, |&place| hasher.hash_one(keys[index(place, *first)].key()));
        self.load.bytes += bytes;
        self.load.len += 1;
    }

    /// Appends a list (F-13, F-14). `shared` has a flag for each delta: true if the cache or another delta also holds the object.
    ///
    /// After the list, each queued key is either listed or deleted. The next batch therefore takes all queued keys.
    pub(super) fn push_replace(&mut self, deltas: Vec<Delta>, shared: &[bool], version: ResourceVersion) {
        for (delta, shared) in deltas.into_iter().zip(shared) {
            self.append(delta, *shared);
        }
        self.replace = Some((self.keys.len(), version.clone()));
        self.reach_version(version);
    }

    /// Returns the newest delta of each key.
    pub(super) fn newest(&self) -> impl Iterator<Item = &Delta> {
        self.keys.iter().map(KeyDeltas::newest)
    }

    /// Takes the next batch. If a Replace is queued, the batch has all keys of the Replace. Otherwise the batch has the oldest
    /// keys, as many as fit.
    pub(super) fn pop(&mut self) -> Option<Popped> {
        if self.is_empty() {
            return None;
        }
        let replace = self.replace.take();
        let count = replace.as_ref().map_or_else(|| self.batch_len(), |(count, _)| *count);
        let mut deltas = Vec::new();
        for _ in 0..count {
            deltas.append(&mut self.pop_key().deltas);
        }
        let has_replace = replace.is_some();
        if let Some((_, version)) = replace {
            self.version = version;
        }
        let mut resume_version = None;
        if self.keys.is_empty()
            && let Some(last) = self.last.take()
        {
            self.version = match last {
                Reached::Object(object) => object.resource_version().into(),
                Reached::Version(version) => version,
            };
            resume_version = Some(self.version.clone());
        }
        let store_version = Some(self.version.clone());
        Some((Deltas { deltas, store_version, resume_version, ..<_>::default() }, has_replace))
    }

    fn batch_len(&self) -> usize {
        let mut total = 0;
        let fits = |entry: &&KeyDeltas| {
            let first = total == 0;
            total += entry.deltas.len();
            first || total <= BATCH_LEN_MAX
        };
        self.keys.iter().take_while(fits).count()
    }

    fn pop_key(&mut self) -> KeyDeltas {
        let place = self.first;
        let hash = self.hasher.hash_one(self.keys[0].key());
        if let Ok(entry) = self.places.find_entry(hash, |&candidate| candidate == place) {
            entry.remove();
        }
        let key = self.keys.pop_front().expect("the caller counted the keys");
        self.first += 1;
        self.load.len -= key.deltas.len();
        self.load.bytes -= key.bytes;
        key
    }
}

/// Returns the index in `keys` for a position in `places`.
fn index(place: u64, first: u64) -> usize {
    usize::try_from(place - first).expect("a queue is shorter than the address space")
}

impl std::fmt::Debug for PerKeyQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PerKeyQueue({} keys, {} deltas)", self.keys.len(), self.load.len)
    }
}
