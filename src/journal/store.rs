//! The journal on disk: records, states of objects, and positions of readers, in one embedded store.
//!
//! [`Store`] wraps fjall in `[state] dir`. Every call may block on the disk.

mod append;
mod body;
mod compact;
mod entries;
mod error;
mod files;
mod lock;
mod open;
mod page;
mod read;
mod recent;
mod record;
mod replace;
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
use serde::{Deserialize, Serialize};

pub(super) use self::compact::{CompactionStep, Compactor};
use self::{error::Fault, files::Files, lock::Lock, recent::Recent, seal::Sealer};
pub use self::{
    error::StoreError,
    page::{LogPage, PageSize},
    record::Head,
};
use super::{Sequence, UnitId, UnitTerms};
use crate::{
    change::{Change, Reached},
    object::packer::Packer,
};

/// Directory of fjall within the state directory.
const DB: &str = "db";

/// A stored unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredUnit {
    /// Id of the unit.
    #[serde(skip)]
    pub id: UnitId,
    /// Description for the engine: entry, type, scope, shape.
    pub description: serde_json::Value,
    /// Terms of the unit.
    #[serde(flatten)]
    pub terms: UnitTerms,
    /// Versions that the appends of the unit have reached.
    #[serde(skip)]
    pub reached: Reached,
    /// Last position of the unit; set once it is retired.
    pub retired: Option<Sequence>,
}

/// A stored reader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredReader {
    /// Name of the reader.
    pub name: String,
    /// Cursor: the reader has selected its wanted records up to here. After a restart, later records are selected again by
    /// their heads.
    pub position: Sequence,
    /// Wanted records up to the position that are not acknowledged.
    pub pending: RoaringTreemap,
    /// Units that the reader has joined.
    pub joined: BTreeSet<UnitId>,
    /// Given-up records, for a later replay.
    pub given_up: RoaringTreemap,
    /// Pending or given-up records that have coalesced entries of their own, and need no record of the log. Not saved with the
    /// reader: it is recovered from the entries.
    pub compacted: RoaringTreemap,
}

/// Address of records that are for no reader.
pub const NOBODY: &str = "";

/// Changes of one transaction of one unit, written atomically.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The unit.
    pub unit: UnitId,
    /// Position of the first change. The others follow without gaps.
    pub first: Sequence,
    /// Time of the append, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The changes.
    pub changes: &'a [Change],
    /// Name of the only reader that the records are for, in joins and leaves. Such records do not change the states of
    /// objects. With [`NOBODY`] the records are the unit's first state, and for no reader.
    pub only: Option<&'a str>,
    /// Versions that the append reaches; `None` keeps those of the unit.
    pub reached: Option<&'a Reached>,
}

/// Content of an opened store.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Id within which sequences are comparable. It is new if there was no state, or if the last run ended uncleanly and its
    /// tail may be lost.
    pub journal_id: String,
    /// Last position that was ever used; zero if none.
    pub last: Sequence,
    /// First position whose record is kept; above `last` if no record is kept.
    pub first: Sequence,
    /// The units, by id.
    pub units: Vec<StoredUnit>,
    /// The readers, by name.
    pub readers: Vec<StoredReader>,
    /// Set when the last run ended with [`Store::close`].
    pub clean: bool,
}

/// Result of [`Store::retain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Number of removed records.
    pub removed: u64,
    /// First position whose record is kept.
    pub first: Sequence,
    /// Set when there is more to remove: call again.
    pub more: bool,
}

/// The store of one directory. Clones share it.
///
/// Appends of one unit must not run at the same time. All other calls may be made from any thread at any time.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    lock: Mutex<Option<Lock>>,
    files: RwLock<State>,
    packers: RwLock<HashMap<UnitId, Arc<Packer>>>,
    /// Latest states that the appends of each unit wrote.
    recent: Mutex<HashMap<UnitId, Recent>>,
    /// Units whose objects were removed. None of their bodies is kept as the state of an object.
    forgotten: Mutex<HashSet<UnitId>>,
    /// Positions of each reader's coalesced entries.
    compacted: Mutex<HashMap<String, RoaringTreemap>>,
    /// First position that is kept.
    first: AtomicU64,
    /// The files of records before this position were removed.
    dropped: AtomicU64,
    /// Last appended position.
    last: AtomicU64,
    /// Last synced position.
    synced: AtomicU64,
    /// Set when a sync has failed: the page cache may then differ from the disk.
    sync_failed: AtomicBool,
    /// Journal file that was synced last. It stays open, so that a sync reports every earlier write-back error.
    journal: Mutex<Option<(PathBuf, File)>>,
    /// Held during a retention: one runs at a time.
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
    /// Returns the packer of a unit's bodies.
    pub fn packer(&self, unit: UnitId) -> Arc<Packer> {
        self.inner.packer(unit)
    }

    /// Frees the disk space of removed data earlier than fjall would. May take long.
    pub fn shrink(&self) -> Result<(), StoreError> {
        self.with("free disk space", |_, files| files.shrink())
    }

    /// Returns the approximate size on disk, in bytes; zero while the store is closed.
    pub fn disk_bytes(&self) -> u64 {
        match &*self.inner.files.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(files) => files.disk_bytes(&self.inner.dir.join(DB)),
            State::Failed | State::Closed => 0,
        }
    }

    /// Returns the state directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Calls `call` with the open files, which stay open during the call.
    fn with<R>(
        &self,
        action: &'static str,
        call: impl FnOnce(&Inner, &Files) -> Result<R, Fault>,
    ) -> Result<R, StoreError> {
        let done = match &*self.inner.files.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(files) => call(&self.inner, files),
            State::Failed => Err(Fault::Failed),
            State::Closed => Err(Fault::Closed),
        };
        done.map_err(|fault| fault.tell(self.dir(), action))
    }
}

impl Inner {
    fn packer(&self, unit: UnitId) -> Arc<Packer> {
        if let Some(known) = self.packers.read().unwrap_or_else(PoisonError::into_inner).get(&unit) {
            return Arc::clone(known);
        }
        let mut packers = self.packers.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(packers.entry(unit).or_insert_with(|| Arc::new(Packer::of_store())))
    }
}
