//! Makes durable what was appended.

use std::{fs::File, io, sync::atomic::Ordering::SeqCst};

use super::{DB, Fault, Inner, Store, StoreError, tail::active_journal};
use crate::mutex::lock;

impl Store {
    /// Makes durable what was appended, and put, before the call. Appends go on meanwhile. After an error only
    /// [`Store::reopen`] helps.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.with("sync", |inner, _| sync(inner))
    }
}

/// Syncs fjall's journal file, not by way of fjall: it would hold up every append meanwhile. Each batch is in that
/// file, handed to the system, when its commit returns; a file that fjall leaves for a new one it has synced.
pub(super) fn sync(inner: &Inner) -> Result<(), Fault> {
    if inner.sync_failed.load(SeqCst) {
        return Err(Fault::Failed);
    }
    let mut journal = lock(&inner.journal);
    let last = inner.last.load(SeqCst);
    let noted = inner.sealer.note();
    let synced = loop {
        let Some(path) = active_journal(&inner.dir.join(DB))? else { break Ok(()) };
        if journal.as_ref().is_none_or(|(held, _)| *held != path) {
            match File::options().append(true).open(&path) {
                Ok(file) => *journal = Some((path, file)),
                // replaced and emptied since it was looked for
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
