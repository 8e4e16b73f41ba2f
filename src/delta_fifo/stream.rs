//! Arrival order across keys (F-20 … F-24, F-40).

use std::collections::{HashSet, VecDeque};

use super::{BATCH_LEN_MAX, Delta, DeltaKind, Deltas, KeyMap, Known, List, Popped, bytes_of};
use crate::object::{KeyRef, Object, ResourceVersion};

/// One list of deltas in arrival order; a Replace is one element of it.
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

/// A list: what it deletes, then its items.
#[derive(Debug)]
struct Replace {
    deltas: Vec<Delta>,
    version: ResourceVersion,
    bytes: usize,
}

/// The newest queued delta of every queued key, by first appearance.
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

    /// Appends a bookmark; one behind another replaces it.
    pub(super) fn push_bookmark(&mut self, version: ResourceVersion) {
        match self.items.back_mut() {
            Some(Item::Bookmark(last)) => *last = version,
            _ => self.items.push_back(Item::Bookmark(version)),
        }
    }

    /// Visits every object of the state after everything queued.
    pub(super) fn for_each_present(&self, known: &Known, visit: &mut dyn FnMut(&Object)) {
        let newest = self.newest();
        newest.deltas.iter().filter(|delta| !delta.kind.is_deletion()).for_each(|delta| visit(&delta.object));
        known.iter().filter(|object| newest.get(object.key()).is_none()).for_each(visit);
    }

    /// Appends a list: deletions of queued keys by first appearance, then of known ones, then the ends of what opts out,
    /// then the items (F-22).
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

    /// Appends every known object with no change queued (F-24). What an earlier round redelivers is none: each round is
    /// for handlers of its own (S-11).
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

    /// Takes a Replace, or what comes before the next one as far as one batch reaches (F-40).
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

    /// Counts the elements of the next batch: up to a Replace, a repeated key or the bound.
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
        // where the stream has come to: the last bookmark, or the delta at this place
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
