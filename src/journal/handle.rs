//! Handle of a journal. Each call takes one short lock; disk access happens outside of it, except in `open_reader`.

mod append;
mod readers;
mod reading;
mod skipping;
mod timeline;
mod units;

pub(crate) use self::timeline::AfterError;
#[cfg(test)]
pub(crate) use self::timeline::TimedPosition;

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use super::{
    JournalHealth, JournalOptions, OpenJournalError, Sequence,
    committer::Committer,
    disk::Disk,
    inner::Inner,
    memory::MemoryJournal,
    store::{Recovered, StoreError, StoredUnit},
};
use crate::mutex::lock;

/// The journal of an engine. Indexers append to it, and readers read from it.
///
/// Each call takes one short lock; appends and reads are one call per batch. Without a store, only [`Journal::readable`] waits.
/// With a store, methods may block on the disk where their documentation says so. Appends and reads never wait for an `fsync`:
/// the committer thread calls it. The journal ends with [`Journal::close`] or when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Journal {
    pub(super) inner: Arc<Inner>,
    committer: Arc<Mutex<Option<Committer>>>,
}

/// Restores the core as the last run left it. Forgets the units that every reader has passed.
fn restored(disk: &Disk, recovered: &mut Recovered) -> Result<MemoryJournal, StoreError> {
    let mut core = MemoryJournal::restored(disk.options.fsync, recovered);
    let (passed, next_unit) = (core.passed(), core.next_unit);
    let is_passed = |unit: &StoredUnit| unit.retired.is_some_and(|last| last <= passed);
    for unit in recovered.units.extract_if(.., |unit| is_passed(unit) && unit.id.0 + 1 < next_unit) {
        disk.store.forget_unit(unit.id)?;
        lock(&disk.units).remove(&unit.id);
        core.forget_unit(unit.id);
    }
    Ok(core)
}

impl Journal {
    /// Returns an empty journal in memory, with a random id of 12 hex digits.
    pub fn in_memory() -> Self {
        let id = format!("{:012x}", rand::random::<u64>() >> 16);
        let inner = Arc::new(Inner::new(&id, Sequence(0), MemoryJournal::default(), None));
        Self { inner, committer: Arc::default() }
    }

    /// Opens the journal in `dir`, which is created if absent. Returns the journal and the state of the last run. Blocks on
    /// the disk.
    ///
    /// Units and readers resume at their last positions. A unit of the last run that is [added](Journal::add_unit) again reports
    /// only later changes. [`Journal::open_reader`] finds the position of a reader by its name. The caller must retire units and
    /// [forget](Journal::forget_reader) readers that no longer exist. Until then the journal keeps the records that these readers
    /// need.
    pub fn open(dir: &Path, options: JournalOptions) -> Result<(Self, Recovered), OpenJournalError> {
        let (disk, mut recovered) = Disk::open(dir, options)?;
        let core = restored(&disk, &mut recovered)?;
        let inner = Arc::new(Inner::new(&recovered.journal_id, recovered.last, core, Some(disk)));
        let committer = Committer::start(Arc::clone(&inner))?;
        Ok((Self { inner, committer: Arc::new(Mutex::new(Some(committer))) }, recovered))
    }

    /// Rewrites the state in `dir` without the records that no reader needs any more, given-up ones included. The new files contain no
    /// removed data. Returns the number of records that readers still need. No journal may be open in `dir`. Blocks on the disk.
    pub(crate) fn compact(dir: &Path, options: JournalOptions) -> Result<u64, StoreError> {
        let (disk, mut recovered) = Disk::open(dir, options)?;
        for reader in &mut recovered.readers {
            reader.given_up.clear();
            reader.compacted &= &reader.pending;
        }
        disk.store.put_readers(&recovered.readers)?;
        let needed = restored(&disk, &mut recovered)?.needed();
        while disk.store.retain(needed)?.more {}
        disk.store.rewrite()?;
        Ok((recovered.last.0 + 1).saturating_sub(needed.0))
    }

    /// Makes all earlier appends durable, so that their records can be handed out before the process ends. Blocks on the disk. Has
    /// no effect without a store.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.inner.disk().map_or(Ok(()), |disk| self.inner.sync(disk))
    }

    /// Makes everything durable, saves the positions of the readers, and marks the run as cleanly ended. From now on appends
    /// are refused; named readers keep their positions. After an error, the next run recovers the store as after a crash.
    /// Blocks on the disk. Has no effect without a store.
    pub fn close(&self) -> Result<(), StoreError> {
        let Some(disk) = self.inner.disk() else { return Ok(()) };
        disk.close();
        drop(lock(&self.committer).take()); // waits until the thread has ended
        let _gate = disk.shut();
        self.inner.sync(disk)?;
        self.inner.save(disk)?;
        let pages = self.inner.core().timeline.to_save();
        disk.store.put_timeline(&pages)?;
        disk.store.close()
    }

    /// Returns the journal id. Sequences are comparable only within one id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Returns the last position that earlier runs used. All records after it belong to this run.
    pub fn earlier(&self) -> Sequence {
        self.inner.earlier
    }

    /// Returns true if the journal is stored on disk.
    pub fn is_stored(&self) -> bool {
        self.inner.disk().is_some()
    }

    /// Binds the state to a cluster on the first call. Later calls fail if the cluster is another one. Blocks on the disk.
    pub fn bind(&self, cluster_uid: &str) -> Result<(), StoreError> {
        self.inner.disk().map_or(Ok(()), |disk| disk.store.bind(cluster_uid))
    }

    /// Waits until the journal takes appends. Returns at once if it already does.
    pub async fn writable(&self) {
        if let Some(disk) = self.inner.disk() {
            disk.writable().await;
        }
    }

    /// Returns figures about the journal.
    pub fn health(&self) -> JournalHealth {
        let of_store = self.inner.disk().map(Disk::health).unwrap_or_default();
        let core = self.inner.core();
        JournalHealth {
            first: core.kept_from(),
            needed: core.needed(),
            released: core.released(),
            durable: core.durable(),
            last: core.last(),
            ..of_store
        }
    }
}
