//! The journal on disk: records, states of objects, positions of readers, in one embedded store (D7).
//!
//! [`Store`] is a shell over fjall in `[state] dir`; every call may block on the disk.

mod append;
mod body;
mod compact;
mod error;
mod files;
mod lock;
mod open;
mod page;
mod read;
mod recent;
mod record;
mod retain;
mod seal;
mod state;
mod sync;
mod tail;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use roaring::RoaringTreemap;

pub(super) use self::compact::{CompactionStep, Compactor};
use self::{error::Fault, files::Files, lock::Lock, recent::Recent, seal::Sealer};
pub use self::{
    error::StoreError,
    page::{Page, PageSize},
};
use super::{ChangeKind, Held, Record, Sequence, UnitId, UnitTerms};
use crate::{
    indexer::{Cause, Change, store::Reached},
    object::{KeyRef, Object, packer::Packer},
};

/// fjall's directory within the state directory.
const DB: &str = "db";

/// What is known of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredUnit {
    /// Its name.
    pub id: UnitId,
    /// What it is, in the engine's words: entry, type, scope, shape.
    pub description: serde_json::Value,
    /// What the journal was told of it.
    pub terms: UnitTerms,
    /// How far its appends brought it; [`Append::reached`] moves it.
    pub reached: Reached,
    /// It appends nothing more, this was its last place.
    pub retired: Option<Sequence>,
}

/// Where a reader stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredReader {
    /// The name it is known by.
    pub name: String,
    /// Up to here it is decided what it wants; what comes behind is decided anew, from the heads of the records.
    pub position: Sequence,
    /// What it wants up to its position, and has not acknowledged; `None`: nothing.
    pub pending: Option<RoaringTreemap>,
    /// The units that it joined.
    pub joined: BTreeSet<UnitId>,
    /// What it gave up, for a later replay.
    pub given_up: RoaringTreemap,
    /// Which of these wait in entries of the reader's own, merged, and need no record of the log. Not saved with it: the
    /// entries say so.
    pub compacted: RoaringTreemap,
}

/// Whom nobody is: the name of no reader.
pub const NOBODY: &str = "";

/// The changes of one transaction of one unit, in one atomic write.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The unit.
    pub unit: UnitId,
    /// The place of the first change; the others follow without a hole.
    pub first: Sequence,
    /// When, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The changes.
    pub changes: &'a [Change],
    /// They are for this reader alone (joins, leaves), and leave the states of objects as they are; with [`NOBODY`] they
    /// are what the unit begins with, and no reader's.
    pub only: Option<&'a str>,
    /// How far they bring the unit; `None` leaves that as it was.
    pub reached: Option<&'a Reached>,
}

/// What a record is about, without its bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its place.
    pub sequence: Sequence,
    /// The unit whose cache it changed.
    pub unit: UnitId,
    /// When it was appended, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// What happened.
    pub kind: ChangeKind,
    /// How it came to be known; `None` for [`ChangeKind::Synced`].
    pub cause: Option<Cause>,
    /// The one reader it is for; `None`: all.
    pub only: Option<&'a str>,
    /// Whom it happened to; both parts empty for [`ChangeKind::Synced`].
    pub key: KeyRef<'a>,
    /// Its uid.
    pub uid: &'a str,
    /// Its version; that of the list for [`ChangeKind::Synced`].
    pub resource_version: &'a str,
    /// Bytes of the object's JSON.
    pub json_bytes: u64,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Appends are made durable before they are handed out; otherwise at an interval, and an unclean end gives the
    /// journal a new id.
    pub group_fsync: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { group_fsync: true }
    }
}

/// What an opened store holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Sequences are comparable within it. Made anew where there was no state, or where the last run ended unclean and
    /// its tail may be lost.
    pub journal_id: String,
    /// The last place ever given, zero if none.
    pub last: Sequence,
    /// The first place whose record is kept; above `last` where none is.
    pub first: Sequence,
    /// The units, by id.
    pub units: Vec<StoredUnit>,
    /// The readers, by name.
    pub readers: Vec<StoredReader>,
    /// The last run ended by [`Store::close`].
    pub clean: bool,
}

/// What a call of [`Store::retain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Records removed.
    pub removed: u64,
    /// The first place whose record is kept.
    pub first: Sequence,
    /// There is more to remove: call again.
    pub more: bool,
}

/// The store of one directory; clones share it.
///
/// Appends of one unit come one after the other; everything else may be called from any thread at any time.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    lock: Mutex<Option<Lock>>,
    files: RwLock<State>,
    /// What packs the bodies of each unit.
    packers: RwLock<HashMap<UnitId, Arc<Packer>>>,
    /// What the appends of each unit know of the states they wrote.
    recent: Mutex<HashMap<UnitId, Recent>>,
    /// Units whose objects are gone; a body that was the state of one has nothing to wait for.
    forgotten: Mutex<HashSet<UnitId>>,
    /// What waits for each reader in entries of its own.
    compacted: Mutex<HashMap<String, RoaringTreemap>>,
    /// Everything from here on is kept.
    first: AtomicU64,
    /// Files of records before here are gone.
    dropped: AtomicU64,
    /// The last place appended.
    last: AtomicU64,
    /// Everything up to here is synced.
    synced: AtomicU64,
    /// A sync failed: what the system holds of the files may not be what the disk has.
    sync_failed: AtomicBool,
    /// The journal file that was synced last. It stays open, so that no error of writing it back is missed.
    journal: Mutex<Option<(PathBuf, File)>>,
    /// One retention at a time.
    retaining: Mutex<()>,
    sealer: Sealer,
}

#[derive(Debug)]
enum State {
    Open(Files),
    /// The last [`Store::reopen`] failed.
    Failed,
    Closed,
}

impl Store {
    /// Returns the directory to open if `dir` is configured: a subdirectory where `dir` is the root of a volume that belongs to
    /// a group, as Kubernetes mounts one for `fsGroup`, and holds no store yet. Looks at the disk.
    pub fn home(dir: &Path) -> PathBuf {
        open::home(dir)
    }

    /// Opens the store in `dir`, which is made if absent, and takes its lock until [`Store::close`] or until the last
    /// clone is dropped. Reads fjall's journal file, up to some 100 MB.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<(Self, Recovered), StoreError> {
        open::open(dir, *options)
    }

    /// Binds the store to a cluster, the first time; refuses any other from then on.
    pub fn bind(&self, cluster_uid: &str) -> Result<(), StoreError> {
        self.inner.with("bind it to the cluster", |files| open::bind(&self.inner.dir, files, cluster_uid))
    }

    /// Appends records, states of objects and the versions reached: all of it or nothing. Not durable before the next
    /// [`Store::sync`]. The same sequences again are the same content, and ignored.
    ///
    /// Waits while the disk cannot keep up.
    pub fn append(&self, append: &Append<'_>) -> Result<(), StoreError> {
        self.inner.with("append", |files| append::append(&self.inner, files, append))
    }

    /// Returns what packs the bodies of a unit.
    pub fn packer(&self, unit: UnitId) -> Arc<Packer> {
        self.inner.packer(unit)
    }

    /// Makes durable what was appended, and put, before the call. Appends go on meanwhile. After an error only
    /// [`Store::reopen`] helps.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.inner.with("sync", |_| sync::sync(&self.inner))
    }

    /// Writes what was synced into the seal, with which the next start compares the store. Blocks on the disk.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.inner.sealer.seal(&self.inner.dir).map_err(|error| StoreError::of_io(&self.inner.dir, "seal it", error))
    }

    /// Reads records with their bodies, in the order asked for; one that is not kept is left out.
    pub fn load(&self, sequences: &[u64]) -> Result<Vec<Record>, StoreError> {
        self.inner.with("read records", |files| read::load(&self.inner, files, sequences))
    }

    /// Reads what waits for a reader at these places, which are in order; one that is not kept is left out.
    pub fn load_for(&self, reader: &str, sequences: &[u64]) -> Result<Vec<Record>, StoreError> {
        self.inner.with("read records", |files| read::load_for(&self.inner, files, reader, sequences))
    }

    /// Visits the heads of the records behind `after`, in order. `visit` must not call the store.
    pub fn heads(&self, after: Sequence, visit: &mut dyn FnMut(&Head<'_>)) -> Result<(), StoreError> {
        self.inner.with("read records", |files| read::heads(&self.inner, files, after, visit))
    }

    /// Reads a part of the log behind `range.0`, up to `range.1`, as every reader is shown it; of units that are not known
    /// nothing is read.
    pub fn page(
        &self,
        range: (Sequence, Sequence),
        size: PageSize,
        is_known: &dyn Fn(UnitId) -> bool,
    ) -> Result<Page, StoreError> {
        self.inner.with("read records", |files| page::page(&self.inner, files, range, size, is_known))
    }

    /// Returns the place behind which lies what was appended at a time or later, up to `last`; looks at some heads only.
    pub fn place_at(&self, micros: i64, last: Sequence) -> Result<Sequence, StoreError> {
        self.inner.with("read records", |files| page::place_at(&self.inner, files, micros, last))
    }

    /// Visits the states of the objects of a unit, in order of their keys. `visit` must not call the store.
    pub fn objects(&self, unit: UnitId, visit: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        self.inner.with("read objects", |files| read::objects(&self.inner, files, unit, visit))
    }

    /// Adds or replaces a unit, versions reached included.
    pub fn put_unit(&self, unit: &StoredUnit) -> Result<(), StoreError> {
        self.inner.with("note a unit", |files| state::put_unit(&self.inner, files, unit))
    }

    /// Removes a unit that every reader has passed, and the states of its objects: its records cannot be loaded from
    /// then on. Its id shall not be used again while records of it are kept.
    pub fn forget_unit(&self, unit: UnitId) -> Result<(), StoreError> {
        self.inner.with("forget a unit", |files| retain::forget_unit(&self.inner, files, unit))
    }

    /// Adds or replaces readers, all of them or none. Of what waits for them in entries of their own, only what they name
    /// is kept.
    pub fn put_readers(&self, readers: &[StoredReader]) -> Result<(), StoreError> {
        self.inner.with("note the readers", |files| state::put_readers(&self.inner, files, readers))
    }

    /// Removes a reader, and what waits for it in entries of its own.
    pub fn remove_reader(&self, name: &str) -> Result<(), StoreError> {
        self.inner.with("forget a reader", |files| state::remove_reader(&self.inner, files, name))
    }

    /// Looks through some of what was merged earlier, until [`Compactor::is_scanning`] says no more.
    pub(super) fn scan_compacted(&self, compactor: &mut Compactor) -> Result<(), StoreError> {
        self.inner.with("read merged records", |files| compact::scan(files, compactor))
    }

    /// Decides what becomes of the records that are held, which follow those of the steps before. Writes nothing.
    pub(super) fn plan_compaction(&self, compactor: &mut Compactor, held: &Held) -> Result<CompactionStep, StoreError> {
        self.inner.with("merge records", |files| compact::plan(files, compactor, held))
    }

    /// Writes what a step found and where its reader stands with it, all of it or nothing. The same step again changes
    /// nothing.
    pub(super) fn put_compacted(&self, step: &CompactionStep, state: &StoredReader) -> Result<(), StoreError> {
        self.inner.with("write merged records", |files| compact::put(&self.inner, files, step, state))
    }

    /// Gives back to the disk what was removed, sooner than it would come to that. May take long.
    pub fn shrink(&self) -> Result<(), StoreError> {
        self.inner.with("give back what was removed", Files::shrink)
    }

    /// Removes records before `keep_from`, some thousand a call, with the bodies that nothing else refers to. Files go
    /// when all they hold is removed.
    pub fn retain(&self, keep_from: Sequence) -> Result<Retained, StoreError> {
        self.inner.with("remove old records", |files| retain::retain(&self.inner, files, keep_from))
    }

    /// Returns the bytes that the store occupies on disk, about; zero while it is closed.
    pub fn disk_bytes(&self) -> u64 {
        match &*self.inner.files.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(files) => files.disk_bytes(&self.inner.dir.join(DB)),
            State::Failed | State::Closed => 0,
        }
    }

    /// Closes and opens the files again after an error. Waits for the calls that are under way. What was appended
    /// successfully is there after it, or it fails; it may be tried again then.
    pub fn reopen(&self) -> Result<(), StoreError> {
        open::reopen(&self.inner)
    }

    /// Makes everything durable, marks the end as clean and lets go of the directory; every later call fails.
    pub fn close(&self) -> Result<(), StoreError> {
        open::close(&self.inner)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }
}

impl Inner {
    /// Does something with the open files, which stay open meanwhile.
    fn with<R>(&self, action: &'static str, call: impl FnOnce(&Files) -> Result<R, Fault>) -> Result<R, StoreError> {
        let state = self.files.read().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Open(files) => call(files).map_err(|fault| fault.tell(&self.dir, action)),
            State::Failed => Err(StoreError::Failed { dir: self.dir.clone() }),
            State::Closed => Err(StoreError::Closed { dir: self.dir.clone() }),
        }
    }

    fn packer(&self, unit: UnitId) -> Arc<Packer> {
        if let Some(known) = self.packers.read().unwrap_or_else(PoisonError::into_inner).get(&unit) {
            return Arc::clone(known);
        }
        let mut packers = self.packers.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(packers.entry(unit).or_insert_with(|| Arc::new(Packer::of_store())))
    }
}
