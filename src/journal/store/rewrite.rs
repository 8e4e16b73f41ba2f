//! Copy of the store into new files. Removed data stays in the files of fjall: in its journal until further 64 MiB are written, and
//! in its tables until they are merged. The new files have only the present data.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::PoisonError,
};

use fjall::PersistMode;

use super::{DB, Fault, Files, State, Store, StoreError, open, read::sequence_of};
use crate::mutex::lock;

/// Directory of the new files while they are incomplete.
const NEW: &str = "db.new";
/// Directory of the old files while the new ones replace them.
const OLD: &str = "db.old";

/// Size of a batch, in bytes.
const BATCH_BYTES: usize = 1 << 20;

impl Store {
    /// Replaces the files by new ones without removed data, marks the run as cleanly ended, and closes the store. Needs disk space for
    /// both. After a failure or a crash, the old files are still used.
    pub(crate) fn rewrite(self) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let mut state = inner.files.write().unwrap_or_else(PoisonError::into_inner);
        let written = match &*state {
            State::Open(files) => open::end(inner, files).and_then(|()| copy(files, &inner.dir)),
            State::Failed => Err(Fault::Failed),
            State::Closed => Err(Fault::Closed),
        };
        // This closes the old files, so that they can be moved.
        *state = State::Closed;
        *lock(&inner.journal) = None;
        let replaced = written.and_then(|()| Ok(replace(&inner.dir)?));
        *lock(&inner.lock) = None;
        replaced.map_err(|fault| fault.tell(self.dir(), "rewrite the store"))
    }
}

fn copy(files: &Files, dir: &Path) -> Result<(), Fault> {
    let (first, _) = open::bounds(files)?;
    let new = Files::open(&dir.join(NEW))?;
    for (from, to) in files.keyspaces().into_iter().zip(new.keyspaces()) {
        let (mut batch, mut bytes) = (new.db.batch(), 0);
        for entry in from.iter() {
            let (key, value) = entry.into_inner()?;
            // Heads of removed records stay until their whole file is removed.
            if from.name() == files.records.name() && sequence_of(&key).is_some_and(|sequence| sequence < first) {
                continue;
            }
            bytes += key.len() + value.len();
            batch.insert(to, key, value);
            if bytes > BATCH_BYTES {
                new.commit(std::mem::replace(&mut batch, new.db.batch()))?;
                bytes = 0;
            }
        }
        new.commit(batch)?;
    }
    Ok(new.db.persist(PersistMode::SyncAll)?)
}

fn replace(dir: &Path) -> io::Result<()> {
    fs::rename(dir.join(DB), dir.join(OLD))?;
    fs::rename(dir.join(NEW), dir.join(DB))?;
    File::open(dir)?.sync_all()?;
    fs::remove_dir_all(dir.join(OLD))
}

/// Completes or undoes a rewrite that a crash interrupted. Call it before the files are opened.
pub(super) fn recover(dir: &Path) -> io::Result<()> {
    if !dir.join(DB).exists() && dir.join(OLD).exists() {
        fs::rename(dir.join(OLD), dir.join(DB))?;
        File::open(dir)?.sync_all()?;
    }
    for left in [NEW, OLD] {
        match fs::remove_dir_all(dir.join(left)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
