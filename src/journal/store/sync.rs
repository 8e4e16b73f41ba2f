//! Sync of appended data.

use std::{fs::File, io, sync::atomic::Ordering::SeqCst};

use super::{DB, Fault, Inner, Store, StoreError, tail::active_journal};
use crate::mutex::lock;

impl Store {
    /// Makes everything durable that was written before the call. Appends continue meanwhile. After an error, only
    /// [`Store::reopen`] helps.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.with("sync", |inner, _| sync(inner))
    }
}

/// Syncs fjall's journal file directly, because a sync through fjall would block all appends. When a commit returns, its batch
/// is in that file and passed to the system. When fjall switches to a new file, it syncs the old one itself.
pub(super) fn sync(inner: &Inner) -> Result<(), Fault> {
    if inner.sync_failed.load(SeqCst) {
        return Err(Fault::Failed);
    }
    let mut journal = lock(&inner.journal);
    // Read before the sync, which may not cover anything that is written later.
    let last = inner.last.load(SeqCst);
    let noted = inner.sealer.note();
    let synced = loop {
        let Some(path) = active_journal(&inner.dir.join(DB))? else { break Ok(()) };
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
            inner.synced.fetch_max(last, SeqCst);
            inner.sealer.synced(noted, last);
            Ok(())
        }
        Err(error) => {
            inner.sync_failed.store(true, SeqCst);
            Err(error.into())
        }
    }
}
