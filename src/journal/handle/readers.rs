//! Opening, closing and changing of readers, and their figures.

use std::{collections::BTreeSet, sync::Arc};

use tracing::warn;

use super::Journal;
use crate::{
    journal::{
        Bounds, EventName, Interest, Losses, OpenReaderError, ReaderId, ReaderOptions, ReaderStats, Record, Sequence,
        UnitId,
        reader::JournalReader,
        store::{LogPage, PageSize, StoreError},
    },
    mutex::lock,
};

impl Journal {
    /// Opens a reader at the released watermark. No record that it needs is removed until [`Journal::close_reader`].
    ///
    /// With a store, a reader whose name is known from the last run resumes at the position of that run. It gets the records that
    /// it had not acknowledged, and later records that match its new interest. Resyncs are not repeated. It still sees the units
    /// that it was attached to. A unit that it no longer wants stays visible until the reader is [detached](Journal::attach).
    /// Blocks on the disk, and other calls on the journal wait meanwhile. To avoid delayed appends, open the readers of the last
    /// run before the first append.
    pub fn open_reader(&self, options: ReaderOptions) -> Result<ReaderId, OpenReaderError> {
        let reader = match self.inner.disk().filter(|_| options.name.is_some()) {
            None => self.inner.core().open_reader(options),
            Some(disk) => {
                let mut core = self.inner.core();
                if let Some(name) = options.name.as_deref().filter(|name| core.is_open(name)) {
                    return Err(OpenReaderError::Taken(name.to_owned()));
                }
                // Nothing is appended between the selection and the opening, because the lock is held.
                let selected = core.select_missed(&options, |after, visit| disk.store.heads(after, visit));
                selected.map_err(|error| OpenReaderError::Store(error.to_string()))?;
                let reader = core.open_reader(options);
                drop(core);
                // If the store did not know the name after a crash, the reader would start at the end of the log.
                disk.note(self.inner.save(disk));
                reader
            }
        };
        lock(&self.inner.wakers).insert(reader, Arc::default());
        Ok(reader)
    }

    /// Closes a reader, and forgets its name and the records that wait for it. Do not call it at the end of the process: the
    /// reader could not resume. May block on the disk.
    pub fn close_reader(&self, reader: ReaderId) {
        let name = self.inner.core().close_reader(reader);
        lock(&self.inner.wakers).remove(&reader);
        if let Some((disk, name)) = self.inner.disk().zip(name) {
            let _saving = lock(&disk.saving); // keeps a running save from storing the reader again
            disk.note(disk.store.remove_reader(&name));
        }
    }

    /// Forgets a reader of the last run that was not opened again. Records that only this reader needed can be removed then.
    /// May block on the disk.
    pub fn forget_reader(&self, name: &str) {
        self.inner.core().forget_reader(name);
        if let Some(disk) = self.inner.disk() {
            disk.note(disk.store.remove_reader(name));
        }
    }

    /// Returns the names of those readers of the last run that were not opened again.
    pub fn dormant_readers(&self) -> Vec<String> {
        self.inner.core().dormant.keys().map(ToString::to_string).collect()
    }

    /// Returns the units that a reader sees.
    pub fn attached(&self, reader: ReaderId) -> BTreeSet<UnitId> {
        self.inner.with(reader, |reader| reader.attached())
    }

    /// Replaces the interest of a reader, from the next release on. Records that wait already are kept. A unit that the reader
    /// sees and no longer wants stays visible until the reader is [detached](Journal::attach). May block on the disk.
    pub fn set_interest(&self, reader: ReaderId, interest: &Interest) {
        self.inner.core().set_interest(reader, interest);
        // The interest is saved before the next append. After a crash the reader then sees the same units as now.
        if let Some(disk) = self.inner.disk() {
            disk.note(self.inner.save(disk));
        }
    }

    /// Makes a reader see a new unit that replaces units that the reader saw, although the unit is not part of its interest. The
    /// reader must then be [detached](Journal::attach). May block on the disk.
    pub fn inherit(&self, reader: ReaderId, unit: UnitId) {
        self.inner.core().inherit(reader, unit);
        if let Some(disk) = self.inner.disk() {
            disk.note(self.inner.save(disk));
        }
    }

    /// Replaces the limits of a reader.
    pub fn set_bounds(&self, reader: ReaderId, bounds: Bounds) {
        self.inner.with(reader, |reader| reader.set_bounds(bounds));
    }

    /// Returns figures about a reader.
    pub fn stats(&self, reader: ReaderId) -> ReaderStats {
        self.inner.core().stats(reader)
    }

    /// Returns the last error of the reader's filter, with the name of the object.
    pub fn last_filter_error(&self, reader: ReaderId) -> Option<String> {
        self.inner.with(reader, |reader| reader.last_filter_error())
    }

    /// Returns the losses since the last call.
    pub fn take_losses(&self, reader: ReaderId) -> Losses {
        self.inner.with(reader, JournalReader::take_losses)
    }

    /// Returns the names of the records that wait for a reader or are in flight, oldest first, up to `limit`. May block on the
    /// disk.
    pub fn undelivered(&self, reader: ReaderId, limit: usize) -> Vec<EventName> {
        let (mut names, spilled, name) = self.inner.with(reader, |reader| {
            let names = reader.undelivered(limit);
            let spilled: Vec<_> = reader.spilled().take(limit - names.len()).collect();
            (names, spilled, reader.name().unwrap_or_default().to_owned())
        });
        if let Some(disk) = self.inner.disk().filter(|_| !spilled.is_empty()) {
            match disk.store.load_for(&name, &spilled) {
                Ok(records) => names.extend(records.iter().map(Record::event_name)),
                Err(error) => warn!(%error, "cannot read the names of undelivered events from the state"),
            }
        }
        names
    }

    /// Reads the part of the log after `range.0` and up to `range.1`. Leaves out unchanged objects and records for one reader
    /// alone. Used by callers without a cursor: the journal keeps no records for them. Returns `None` without a store. `range.1`
    /// must be [released](Journal::released). Blocks on the disk.
    pub fn page(&self, range: (Sequence, Sequence), size: PageSize) -> Result<Option<LogPage>, StoreError> {
        let Some(disk) = self.inner.disk() else { return Ok(None) };
        let is_known = |unit: UnitId| lock(&disk.units).contains_key(&unit);
        disk.store.page(range, size, &is_known).map(Some)
    }
}
