//! State of a journal that the handles share with the committer.

mod saving;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use super::{ReaderId, Sequence, disk::Disk, memory::MemoryJournal, reader::JournalReader};
use crate::mutex::lock;

/// State that the committer shares with the handles.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) id: Box<str>,
    /// Last position of earlier runs.
    pub(super) earlier: Sequence,
    pub(super) core: Mutex<MemoryJournal>,
    pub(super) wakers: Mutex<HashMap<ReaderId, Arc<Notify>>>,
    pub(super) disk: Option<Disk>,
}

impl Inner {
    pub(super) fn new(id: &str, earlier: Sequence, core: MemoryJournal, disk: Option<Disk>) -> Self {
        Self { id: id.into(), earlier, core: Mutex::new(core), wakers: Mutex::default(), disk }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, MemoryJournal> {
        lock(&self.core)
    }

    pub(super) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Calls `act` with a reader. Returns the default value if the reader is closed.
    pub(super) fn with<R: Default>(&self, reader: ReaderId, act: impl FnOnce(&mut JournalReader) -> R) -> R {
        self.core().reader(reader).map(act).unwrap_or_default()
    }

    pub(super) fn wake(&self, readers: &[ReaderId]) {
        if readers.is_empty() {
            return;
        }
        // Waking a thread takes long, and a woken reader takes this lock first. So the lock is not held while readers are woken.
        let wakers = lock(&self.wakers);
        let woken: Vec<_> = readers.iter().filter_map(|reader| wakers.get(reader)).cloned().collect();
        drop(wakers);
        for waker in woken {
            waker.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        lock(&self.wakers).values().for_each(|waker| waker.notify_one());
    }
}
