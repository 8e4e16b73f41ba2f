//! State of a journal that the handles share with the committer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use super::{
    ReaderId, Sequence,
    disk::Disk,
    memory::MemoryJournal,
    reader::JournalReader,
    store::{CompactionStep, StoreError},
};
use crate::mutex::lock;

/// State that the committer shares with the handles.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) id: Box<str>,
    /// Last position that earlier runs used.
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

    /// Calls `act`, which may make batches due, and wakes their readers.
    pub(super) fn advance<R>(&self, act: impl FnOnce(&mut MemoryJournal) -> R) -> R {
        let (result, woken) = self.core().advance(act);
        self.wake(&woken);
        result
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

    /// Makes all written records durable.
    pub(super) fn sync(&self, disk: &Disk) -> Result<(), StoreError> {
        let to_sync = self.core().to_sync();
        disk.sync()?;
        let unsynced = self.advance(|core| {
            if let Some(to) = to_sync {
                core.synced(to);
            }
            core.unsynced_bytes
        });
        disk.set_unsynced(unsynced);
        Ok(())
    }

    /// Saves the state of changed readers. Returns true if any reader had changed.
    pub(super) fn save(&self, disk: &Disk) -> Result<bool, StoreError> {
        let mut unfinished = lock(&disk.saving);
        self.finish_step(disk, &mut unfinished)?;
        let states = self.core().save();
        if states.is_empty() {
            return Ok(false);
        }
        let saved = disk.store.put_readers(&states);
        self.core().saved(&states, saved.is_ok());
        saved.map(|()| true)
    }

    /// Writes a step of a compaction with the state of its reader, and makes both durable. After an error the step may or may not
    /// be on disk. The step is then written again before any other state is saved, and until then the reader loads no records.
    /// Without this order, a crash could undo a step whose coalesced records were already delivered. The reader would then get the
    /// original records too.
    pub(super) fn put_compacted(&self, disk: &Disk, reader: ReaderId, step: CompactionStep) -> Result<(), StoreError> {
        let mut unfinished = lock(&disk.saving);
        *unfinished = Some((reader, step));
        self.finish_step(disk, &mut unfinished)
    }

    fn finish_step(&self, disk: &Disk, unfinished: &mut Option<(ReaderId, CompactionStep)>) -> Result<(), StoreError> {
        let Some((reader, step)) = unfinished else { return Ok(()) };
        let state = self.core().compacting(*reader, &step.written, &step.superseded);
        if let Some(state) = state {
            let saved = disk.store.put_compacted(step, &state).and_then(|()| self.sync(disk));
            let mut core = self.core();
            if saved.is_err() {
                core.saved(std::slice::from_ref(&state), false);
                return saved;
            }
            if let Some(reader) = core.reader(*reader) {
                reader.compacted(&step.superseded, &state);
            }
            drop(core);
            self.wake(&[*reader]);
        } // else the reader was closed in the meantime
        *unfinished = None;
        Ok(())
    }
}
