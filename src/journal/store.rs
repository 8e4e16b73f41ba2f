//! The journal on disk: records, states of objects, positions of readers, in one embedded store (D7).
//!
//! [`Store`] is a shell over fjall in `[state] dir`; every call may block on the disk.

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

/// fjall's directory within the state directory.
const DB: &str = "db";

/// A unit, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredUnit {
    /// Its id.
    #[serde(skip)]
    pub id: UnitId,
    /// The engine's description: entry, type, scope, shape.
    pub description: serde_json::Value,
    /// Its terms.
    #[serde(flatten)]
    pub terms: UnitTerms,
    /// Versions that its appends reached.
    #[serde(skip)]
    pub reached: Reached,
    /// Its last position, once it is retired.
    pub retired: Option<Sequence>,
}

/// A reader, as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredReader {
    /// Its name.
    pub name: String,
    /// Cursor: the reader has decided what it wants up to here. Later records are decided again, by their heads.
    pub position: Sequence,
    /// Records up to its position that it wants, and has not acknowledged.
    pub pending: RoaringTreemap,
    /// The units that it joined.
    pub joined: BTreeSet<UnitId>,
    /// Records that it gave up, for a later replay.
    pub given_up: RoaringTreemap,
    /// Of these, the coalesced ones in entries of the reader's own, which need no record of the log. Not saved with it: the
    /// entries tell.
    pub compacted: RoaringTreemap,
}

/// Name of no reader.
pub const NOBODY: &str = "";

/// Changes of one transaction of one unit, in one atomic write.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The unit.
    pub unit: UnitId,
    /// Position of the first change. The others follow without a hole.
    pub first: Sequence,
    /// Time in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The changes.
    pub changes: &'a [Change],
    /// Name of the only reader they are for (joins, leaves): they leave the states of objects as they are. With [`NOBODY`]
    /// they are the unit's first state, and no reader's.
    pub only: Option<&'a str>,
    /// Versions that they reach; `None` leaves those of the unit.
    pub reached: Option<&'a Reached>,
}

/// Content of an opened store.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Sequences are comparable within it. New where there was no state, or where the last run ended unclean and its tail
    /// may be lost.
    pub journal_id: String,
    /// The last position ever given, zero if none.
    pub last: Sequence,
    /// The first position whose record is kept; above `last` where none is.
    pub first: Sequence,
    /// The units, by id.
    pub units: Vec<StoredUnit>,
    /// The readers, by name.
    pub readers: Vec<StoredReader>,
    /// The last run ended by [`Store::close`].
    pub clean: bool,
}

/// Result of [`Store::retain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Records removed.
    pub removed: u64,
    /// The first position whose record is kept.
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
    packers: RwLock<HashMap<UnitId, Arc<Packer>>>,
    /// States that the appends of each unit wrote last.
    recent: Mutex<HashMap<UnitId, Recent>>,
    /// Units whose objects are gone: no body is kept as the state of one.
    forgotten: Mutex<HashSet<UnitId>>,
    /// Positions of each reader's records in entries of its own.
    compacted: Mutex<HashMap<String, RoaringTreemap>>,
    /// The first position kept.
    first: AtomicU64,
    /// Files of records before here are gone.
    dropped: AtomicU64,
    /// The last position appended.
    last: AtomicU64,
    /// The last position synced.
    synced: AtomicU64,
    /// A sync failed: what the system holds of the files may differ from the disk.
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
    /// Returns the packer of a unit's bodies.
    pub fn packer(&self, unit: UnitId) -> Arc<Packer> {
        self.inner.packer(unit)
    }

    /// Gives back to the disk what was removed, sooner than fjall would. May take long.
    pub fn shrink(&self) -> Result<(), StoreError> {
        self.with("give back what was removed", |_, files| files.shrink())
    }

    /// Returns the approximate bytes on disk; zero while the store is closed.
    pub fn disk_bytes(&self) -> u64 {
        match &*self.inner.files.read().unwrap_or_else(PoisonError::into_inner) {
            State::Open(files) => files.disk_bytes(&self.inner.dir.join(DB)),
            State::Failed | State::Closed => 0,
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Does something with the open files, which stay open meanwhile.
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
