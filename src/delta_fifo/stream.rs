//! Order of arrival across keys (F-20 … F-24, F-40).

use std::collections::{HashSet, VecDeque};

use super::{BATCH_LEN_MAX, Delta, DeltaKind, Deltas, KeyMap, Known, List, Popped, bytes_of};
use crate::object::{KeyRef, Object, ResourceVersion};

/// All deltas in the order of arrival. A Replace is one element.
#[derive(Debug, Default)]
pub(super) struct StreamQueue {
    items: VecDeque<Item>,
    len: usize,
    bytes: usize,
}

#[derive(Debug)]
enum Item {
    Delta(Delta),
    Bookmark(ResourceVersion),
    Replace(Box<Replace>),
}

/// A list: its deletions, then its items.
#[derive(Debug)]
struct Replace {
    deltas: Vec<Delta>,
    version: ResourceVersion,
    bytes: usize,
}

/// Newest queued delta of every queued key, in the order of the keys' first deltas.
#[derive(Default)]
struct Newest<'a> {
    deltas: Vec<&'a Delta>,
    at: KeyMap<'a, usize>,
}

impl<'a> Newest<'a> {
    fn note(&mut self, delta: &'a Delta) {
        let next = self.deltas.len();
        let at = *self.at.entry(delta.object.key()).or_insert(next);
        if at == next { self.deltas.push(delta) } else { self.deltas[at] = delta }
    }

    fn get(&self, key: KeyRef<'_>) -> Option<&'a Delta> {
        self.at.get(&key).map(|&at| self.deltas[at])
    }
}

impl StreamQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, delta: Delta) {
        self.len += 1;
        self.bytes += bytes_of(&delta, false);
        self.items.push_back(Item::Delta(delta));
    }

    /// Appends a bookmark. It replaces a bookmark directly before it.
    pub(super) fn push_bookmark(&mut self, version: ResourceVersion) {
        match self.items.back_mut() {
            Some(Item::Bookmark(last)) => *last = version,
            _ => self.items.push_back(Item::Bookmark(version)),
        }
    }

    /// Visits every object in the state after all queued deltas.
    pub(super) fn for_each_present(&self, known: &Known, visit: &mut dyn FnMut(&Object)) {
        let newest = self.newest();
        newest.deltas.iter().filter(|delta| !delta.kind.is_deletion()).for_each(|delta| visit(&delta.object));
        known.iter().filter(|object| newest.get(object.key()).is_none()).for_each(visit);
    }

    /// Appends a list (F-22). Its deltas are deletions, removals of the items that opt out, and the items. Deletions of queued
    /// keys come first, in the order of the keys' first deltas, then deletions of known keys.
    pub(super) fn push_replace(&mut self, list: List<'_>, known: &Known, share: bool) {
        let newest = self.newest();
        let version = list.version.clone();
        let queued = newest.deltas.iter().filter(|delta| !delta.kind.is_deletion()).map(|delta| &delta.object);
        let gone = list.gone(queued, |key| newest.get(key).is_some(), known);
        let (mut deltas, mut bytes) = (Vec::with_capacity(gone.len() + list.items.len()), 0);
        let mut put = |delta: Delta, shared: bool| {
            bytes += bytes_of(&delta, shared);
            deltas.push(delta);
        };
        for object in gone {
            put(Delta { kind: DeltaKind::Tombstone, object }, true);
        }
        list.listed(|key| newest.get(key), known, share, put);
        self.len += deltas.len();
        self.bytes += bytes;
        self.items.push_back(Item::Replace(Box::new(Replace { deltas, version, bytes })));
    }

    /// Appends every known object that has no queued change (F-24). Deltas of an earlier resync do not count as changes, because
    /// each round has its own handlers (S-11).
    pub(super) fn push_resync(&mut self, known: &Known, round: u32) {
        let newest = self.newest();
        let unchanged = |key| newest.get(key).is_none_or(|delta| delta.kind.is_sync());
        let unqueued = known.iter().filter(|object| unchanged(object.key()));
        let kind = DeltaKind::Sync { round };
        let syncs: Vec<Delta> = unqueued.map(|o| Delta { kind, object: o.clone() }).collect();
        for delta in syncs {
            self.push(delta);
        }
    }

    fn newest(&self) -> Newest<'_> {
        let mut newest = Newest::default();
        for item in &self.items {
            match item {
                Item::Delta(delta) => newest.note(delta),
                Item::Bookmark(_) => {}
                Item::Replace(replace) => replace.deltas.iter().for_each(|delta| newest.note(delta)),
            }
        }
        newest
    }

    /// Takes a Replace, or as many elements before the next Replace as fit into a batch (F-40).
    pub(super) fn pop(&mut self) -> Option<Popped> {
        if let Item::Replace(_) = self.items.front()? {
            let Some(Item::Replace(replace)) = self.items.pop_front() else { unreachable!("it was just seen") };
            self.len -= replace.deltas.len();
            self.bytes -= replace.bytes;
            let deltas = Deltas {
                deltas: replace.deltas,
                store_version: Some(replace.version.clone()),
                resume_version: Some(replace.version),
                ..Deltas::default()
            };
            return Some(Popped { deltas, replace: true });
        }
        let len = self.batch_len();
        Some(Popped { deltas: self.take(len), replace: false })
    }

    /// Returns the number of elements in the next batch. It ends before a Replace, at a repeated key, or at the size limit.
    fn batch_len(&self) -> usize {
        let mut keys = HashSet::with_hasher(foldhash::fast::RandomState::default());
        if self.items.len() > 1 {
            keys.reserve(self.items.len().min(BATCH_LEN_MAX));
        }
        for (at, item) in self.items.iter().enumerate() {
            let fits = match item {
                Item::Delta(delta) => keys.len() < BATCH_LEN_MAX && keys.insert(delta.object.key()),
                Item::Bookmark(_) => true,
                Item::Replace(_) => false,
            };
            if !fits {
                return at;
            }
        }
        self.items.len()
    }

    fn take(&mut self, count: usize) -> Deltas {
        let mut batch = Deltas { deltas: Vec::with_capacity(count), ..Deltas::default() };
        // Version that the stream has reached: that of the last bookmark, or of the delta at this index.
        let mut bookmark = None;
        let mut versioned = None;
        for item in self.items.drain(..count) {
            match item {
                Item::Delta(delta) => {
                    self.len -= 1;
                    self.bytes -= bytes_of(&delta, false);
                    if !delta.kind.is_sync() && !delta.object.resource_version().is_empty() {
                        (bookmark, versioned) = (None, Some(batch.deltas.len()));
                    }
                    batch.deltas.push(delta);
                }
                Item::Bookmark(version) => (bookmark, versioned) = (Some(version), None),
                Item::Replace(_) => unreachable!("a batch ends before a Replace"),
            }
        }
        let version = versioned.map(|at| ResourceVersion::from(batch.deltas[at].object.resource_version()));
        let is_last = versioned.is_some_and(|at| at + 1 == batch.deltas.len());
        batch.resume_version = bookmark.or(version);
        batch.store_version = batch.resume_version.clone().filter(|_| !is_last);
        batch
    }
}
