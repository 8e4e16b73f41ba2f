//! Making appends durable, and saving the state of readers.

use super::Inner;
use crate::{
    journal::{
        ReaderId,
        disk::Disk,
        store::{CompactionStep, StoreError},
    },
    mutex::lock,
};

impl Inner {
    /// Makes all written records durable.
    pub(in crate::journal) fn sync(&self, disk: &Disk) -> Result<(), StoreError> {
        let to_sync = self.core().to_sync();
        disk.sync()?;
        if let Some(to) = to_sync {
            let mut core = self.core();
            let woken = core.synced(to);
            let unsynced = core.unsynced_bytes;
            drop(core);
            disk.set_unsynced(unsynced);
            self.wake(&woken);
        }
        Ok(())
    }

    /// Saves the state of changed readers. Returns true if there was one.
    pub(in crate::journal) fn save(&self, disk: &Disk) -> Result<bool, StoreError> {
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

    /// Writes a step of a compaction with the state of its reader, and makes both durable. After an error the step may be on
    /// disk or not. It is then written again before any other state is saved, and the reader loads no records until then.
    /// Otherwise a crash could undo the step after its result was read: the reader would then also get the older states.
    pub(in crate::journal) fn put_compacted(
        &self,
        disk: &Disk,
        reader: ReaderId,
        step: CompactionStep,
    ) -> Result<(), StoreError> {
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
