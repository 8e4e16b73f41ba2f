//! Order of arrival across keys (F-20 … F-24, F-40).

use std::collections::{HashSet, VecDeque};

use super::{BATCH_LEN_MAX, Delta, Deltas, Load, Popped, bytes_of};
use crate::object::ResourceVersion;

/// All deltas in the order of arrival. A Replace is one element.
#[derive(Debug, Default)]
pub(super) struct StreamQueue {
    items: VecDeque<Item>,
    pub(super) load: Load,
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

impl StreamQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn push(&mut self, delta: Delta) {
        self.load.len += 1;
        self.load.bytes += bytes_of(&delta, false);
        self.items.push_back(Item::Delta(delta));
    }

    /// Appends a bookmark. If the newest element is a bookmark, replaces that one.
    pub(super) fn push_bookmark(&mut self, version: ResourceVersion) {
        match self.items.back_mut() {
            Some(Item::Bookmark(last)) => *last = version,
            _ => self.items.push_back(Item::Bookmark(version)),
        }
    }

    /// Appends a list as one element. `shared` has a flag for each delta: true if the cache or another delta also holds the object.
    pub(super) fn push_replace(&mut self, deltas: Vec<Delta>, shared: &[bool], version: ResourceVersion) {
        let bytes: usize = deltas.iter().zip(shared).map(|(delta, shared)| bytes_of(delta, *shared)).sum();
        self.load.len += deltas.len();
        self.load.bytes += bytes;
        self.items.push_back(Item::Replace(Box::new(Replace { deltas, version, bytes })));
    }

    /// Returns all queued deltas.
    pub(super) fn deltas(&self) -> impl Iterator<Item = &Delta> {
        self.items.iter().flat_map(|item| match item {
            Item::Delta(delta) => std::slice::from_ref(delta),
            Item::Bookmark(_) => &[],
            Item::Replace(replace) => &replace.deltas[..],
        })
    }

    /// Takes the next batch (F-40). If a Replace is the oldest element, it is the whole batch. Otherwise see `batch_len`.
    pub(super) fn pop(&mut self) -> Option<Popped> {
        if let Item::Replace(_) = self.items.front()? {
            let Some(Item::Replace(replace)) = self.items.pop_front() else { unreachable!("it was just seen") };
            self.load.len -= replace.deltas.len();
            self.load.bytes -= replace.bytes;
            let deltas = Deltas {
                deltas: replace.deltas,
                store_version: Some(replace.version.clone()),
                resume_version: Some(replace.version),
                ..Deltas::default()
            };
            return Some((deltas, true));
        }
        let len = self.batch_len();
        Some((self.take(len), false))
    }

    /// Returns the number of elements in the next batch. A batch ends before a Replace, before a second delta of a key, or at the
    /// size limit.
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
        // The version that the stream has reached is in `bookmark`, or in the delta with the index `versioned`.
        let mut bookmark = None;
        let mut versioned = None;
        for item in self.items.drain(..count) {
            match item {
                Item::Delta(delta) => {
                    self.load.len -= 1;
                    self.load.bytes -= bytes_of(&delta, false);
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
