//! One version of a cache, and the batches that lead from one version to the next.

use std::sync::Arc;

use left_right::Absorb;

use super::{super::posting::Posting, Meta};
use crate::{
    line_table::LineTable,
    object::{KeyRef, Object},
};

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
    pub(super) objects: LineTable<Object>,
    pub(super) postings: LineTable<Arc<Posting>>,
    pub(super) meta: Arc<Meta>,
}

impl Table {
    pub(super) fn new(meta: Arc<Meta>) -> Self {
        Self { objects: LineTable::default(), postings: LineTable::default(), meta }
    }

    pub(super) fn object(&self, hash: u32, key: KeyRef<'_>) -> Option<&Object> {
        self.objects.find(hash, |object| object.has_key(key))
    }

    pub(super) fn posting(&self, hash: u32, index: u32, value: &str) -> Option<&Arc<Posting>> {
        self.postings.find(hash, |posting| posting.is_of(index, value))
    }

    /// Applies what a batch holds: to the first copy in clones, to the second itself.
    fn apply(
        &mut self,
        objects: impl Iterator<Item = (u32, Change)>,
        postings: impl Iterator<Item = (u32, Arc<Posting>)>,
        meta: Arc<Meta>,
    ) {
        for (hash, change) in objects {
            match change {
                Change::Put(new) => self.objects.put(hash, new, |new, object| object.has_key(new.key())),
                Change::Remove(old) => self.objects.remove(hash, |object| object.has_key(old.key())),
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

    pub(super) fn objects(&self, wanted: &[(u32, KeyRef<'_>)]) -> Vec<Option<&Object>> {
        self.objects.find_all(wanted, |key, object| object.has_key(*key))
    }

    /// Makes room for what `changes` adds. All are found before the first is changed, which is what takes the time.
    fn prepare(&mut self, changes: &[(u32, Change)]) {
        let found = self.objects.find_all(changes, |change, object| object.has_key(change.key()));
        let additions = found.iter().filter(|found| found.is_none()).count();
        self.objects.reserve(additions);
    }
}

/// What one publish shows: each key and each posting once. A posting without objects goes.
pub(super) struct Batch {
    pub(super) objects: Vec<(u32, Change)>,
    pub(super) postings: Vec<(u32, Arc<Posting>)>,
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
