//! The journal on disk: records, states of objects, and positions of readers, in one embedded store.
//!
//! [`Store`] wraps fjall in `[state] dir`. Every call may block on the disk.

mod append;
mod body;
mod compact;
mod error;
mod files;
mod open;
mod parts;
mod read;
mod recent;
mod record;
mod retain;
mod rewrite;
mod seal;
mod state;
mod tail;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod timeline;
mod wire;

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use roaring::RoaringTreemap;

pub(super) use self::compact::{CompactionStep, Compactor};
pub use self::parts::Append;
use self::{error::Fault, files::Files, recent::Recent, seal::Sealer};
pub(crate) use self::{
    error::StoreError,
    parts::{LogPage, NOBODY, PageSize, Recovered, Retained, StoredReader, StoredUnit},
    record::Head,
};
use super::UnitId;
use crate::{mutex::lock, object::packer::Packer};

/// Directory of fjall within the state directory.
const DB: &str = "db";

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
    /// File that keeps the directory locked; `None` once the store is closed.
    lock: Mutex<Option<File>>,
    files: RwLock<State>,
    packers: RwLock<HashMap<UnitId, Arc<Packer>>>,
    /// States of recently written objects, by unit.
    recent: Mutex<HashMap<UnitId, Recent>>,
    /// Forgotten units. No body of such a unit is the state of an object, so the removal of a record also removes the record's
    /// body.
    forgotten: Mutex<HashSet<UnitId>>,
    /// Positions of each reader's coalesced entries.
    compacted: Mutex<HashMap<String, RoaringTreemap>>,
    /// First position that is kept.
    first: AtomicU64,
    /// Files that hold only records before this position were removed.
    dropped: AtomicU64,
    /// Last appended position.
    last: AtomicU64,
    /// Last synced position.
    synced: AtomicU64,
    /// Set when a sync has failed: the page cache may then differ from the disk.
    sync_failed: AtomicBool,
    /// Journal file that was synced last. It stays open, because a newly opened file might not report earlier write-back errors.
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

    /// Makes everything durable that was written before the call. Appends continue meanwhile. After an error, only
    /// [`Store::reopen`] helps.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.with("sync", |inner, _| inner.sync())
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

    /// Syncs fjall's journal file directly, because a sync through fjall would block all appends. Once a commit has returned, its
    /// batch is in that file. When fjall starts a new file, fjall itself syncs the old one.
    fn sync(&self) -> Result<(), Fault> {
        if self.sync_failed.load(SeqCst) {
            return Err(Fault::Failed);
        }
        let mut journal = lock(&self.journal);
        // Both are read before the sync, because the sync may miss data that is written later.
        let last = self.last.load(SeqCst);
        let noted = self.sealer.note();
        let synced = loop {
            let Some(path) = tail::active_journal(&self.dir.join(DB))? else { break Ok(()) };
            if journal.as_ref().is_none_or(|(held, _)| *held != path) {
                match File::options().append(true).open(&path) {
                    Ok(file) => *journal = Some((path, file)),
                    // fjall has replaced the file since its name was read
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => break Err(error),
                }
            }
            let (_, file) = journal.as_ref().expect("it was just opened");
            break file.sync_data();
        };
        match synced {
            Ok(()) => {
                self.synced.fetch_max(last, SeqCst);
                self.sealer.synced(noted, last);
                Ok(())
            }
            Err(error) => {
                self.sync_failed.store(true, SeqCst);
                Err(error.into())
            }
        }
    }
}
