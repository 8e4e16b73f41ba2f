//! Readers of the core: opening, saving, compaction, and the records that they need.

use roaring::RoaringTreemap;

use super::{MemoryJournal, Turn};
use crate::journal::{
    Interest, ReaderId, ReaderOptions, ReaderStats, Record, Sequence, ToLoad, UnitId,
    reader::{
        JournalReader,
        waiting::{needs, waits_from},
    },
    store::{Head, StoredReader},
};

impl MemoryJournal {
    /// Returns a reader; `None` if it is closed.
    pub(crate) fn reader(&mut self, reader: ReaderId) -> Option<&mut JournalReader> {
        self.readers.get_mut(&reader)
    }

    /// Selects the records that a reader of the last run wants and has not seen, up to the released watermark. Call it before the
    /// reader is opened. `visit_heads` visits the heads of all records after a position. Has no effect if the last run had no such
    /// reader.
    pub(crate) fn select_missed<E>(
        &mut self,
        options: &ReaderOptions,
        visit_heads: impl FnOnce(Sequence, &mut dyn FnMut(&Head<'_>)) -> Result<(), E>,
    ) -> Result<(), E> {
        let known = options.name.as_deref().and_then(|name| self.dormant.get_mut(name));
        let (Some(known), until) = (known, self.released) else { return Ok(()) };
        let mut state = known.clone();
        visit_heads(state.position, &mut |head| {
            if head.sequence <= until.0 {
                state.select(head, options.interest.changes, &self.units);
            }
        })?;
        state.position = until;
        *known = state;
        Ok(())
    }

    /// Opens a reader. If the last run had a reader of this name, the reader resumes from its state. Otherwise it starts at the
    /// released watermark, and its saved state at the last position: the records in between may be addressed to an earlier reader
    /// of this name.
    pub(crate) fn open_reader(&mut self, options: ReaderOptions) -> ReaderId {
        let ReaderOptions { bounds, interest, name } = options;
        let reader = match name.filter(|_| self.is_stored()) {
            Some(name) => {
                let known = self.dormant.remove(name.as_str());
                let new = || StoredReader { name, position: self.last(), ..StoredReader::default() };
                JournalReader::stored(bounds, known.unwrap_or_else(new), &self.units)
            }
            None => JournalReader::new(bounds),
        };
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        self.readers.insert(id, reader);
        self.forget_given_up(self.kept_from, false);
        self.set_interest(id, &interest);
        id
    }

    pub(crate) fn set_interest(&mut self, reader: ReaderId, interest: &Interest) {
        for unit in interest.units.keys() {
            self.unit(*unit);
        }
        let last = self.last();
        for batch in &mut self.pending {
            if let Turn::Attachment { reader: of, attach: Some(resync_every) } = &mut batch.turn
                && *of == reader
                && let Some(wanted) = interest.units.get(&batch.unit)
            {
                *resync_every = wanted.resync_every;
            }
        }
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.set_interest(interest, &self.units, &self.synced, last);
        }
    }

    /// Makes a reader see a new unit that is not part of its interest. It is detached next.
    pub(crate) fn inherit(&mut self, reader: ReaderId, unit: UnitId) {
        let last = self.last();
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.inherit(unit, last);
        }
    }

    /// Forgets a reader. Returns its name, if it has one.
    pub(crate) fn close_reader(&mut self, reader: ReaderId) -> Option<String> {
        self.readers.remove(&reader)?.name().map(str::to_owned)
    }

    /// Forgets a reader of the last run that was not opened again.
    pub(crate) fn forget_reader(&mut self, name: &str) {
        self.dormant.remove(name);
    }

    /// Returns the name that marks records for this reader alone: the reader's own name, or else `#` and its id.
    pub(crate) fn address(&self, reader: ReaderId) -> Box<str> {
        let name = self.readers.get(&reader).and_then(JournalReader::name);
        name.map_or_else(|| format!("#{}", reader.0).into(), Box::from)
    }

    /// Adds records that were read from the store for a reader; see [`JournalReader::loaded`].
    pub(crate) fn loaded(&mut self, reader: ReaderId, asked: &ToLoad, records: Vec<Record>) -> bool {
        let Some(reader) = self.readers.get_mut(&reader) else { return false };
        reader.loaded(asked, records, |unit| self.units.get(&unit).map(|unit| unit.terms))
    }

    pub(crate) fn stats(&self, reader: ReaderId) -> ReaderStats {
        self.readers.get(&reader).map(|reader| reader.stats(self.released())).unwrap_or_default()
    }

    /// Returns the position up to which every reader has handled all records.
    pub(crate) fn passed(&self) -> Sequence {
        let positions = self.readers.values().filter_map(JournalReader::first).map(|first| first.0 - 1);
        let dormant = self.dormant.values().map(|state| waits_from(state) - 1);
        Sequence(positions.chain(dormant).fold(self.released.0, u64::min))
    }

    /// Returns the changed states of readers, and marks them as saved.
    pub(crate) fn save(&mut self) -> Vec<StoredReader> {
        let mark = self.released();
        self.readers.values_mut().filter_map(|reader| reader.save(mark)).collect()
    }

    /// Notes the success or failure of saving these states.
    pub(crate) fn saved(&mut self, states: &[StoredReader], is_saved: bool) {
        for state in states {
            match self.readers.values_mut().find(|reader| reader.name() == Some(state.name.as_str())) {
                Some(reader) if is_saved => reader.saved(state),
                Some(reader) => reader.touch(),
                None => {}
            }
        }
    }

    /// Returns the named reader that needs the oldest record of the log, if that record is at or before `until`.
    pub(crate) fn compactable(&self, until: Sequence) -> Option<(ReaderId, &str)> {
        let slow = self.readers.iter().filter_map(|(id, reader)| {
            let (first, name) = reader.compactable(until)?;
            Some((first, *id, name))
        });
        slow.min().map(|(_, id, name)| (id, name))
    }

    /// Returns two numbers of unacknowledged records of named readers: records in the log, and coalesced entries.
    pub(crate) fn loads(&self) -> (u64, u64) {
        self.readers.values().map(JournalReader::loads).fold((0, 0), |sum, loads| (sum.0 + loads.0, sum.1 + loads.1))
    }

    /// Returns the reader state that must be saved together with the entries of a compaction step. Returns `None` if the
    /// reader was closed in the meantime.
    pub(crate) fn compacting(
        &mut self,
        reader: ReaderId,
        written: &RoaringTreemap,
        superseded: &RoaringTreemap,
    ) -> Option<StoredReader> {
        let mark = self.released();
        self.readers.get_mut(&reader)?.compacting(written, superseded, mark)
    }

    /// Returns the first record that must be kept. All records before it are visible and durable, and no reader needs them, now or
    /// after a crash.
    pub(crate) fn needed(&self) -> Sequence {
        let mark = self.released();
        let readers = self.readers.values().map(|reader| reader.needs(mark));
        let dormant = self.dormant.values().map(needs);
        let unsynced = self.unsynced.front().map(|batch| batch.ticket.first.0);
        Sequence(readers.chain(dormant).chain(unsynced).fold(mark.0 + 1, u64::min))
    }

    /// Returns the position before which no record is kept.
    pub(crate) fn kept_from(&self) -> Sequence {
        self.kept_from
    }

    /// Returns the name of the named reader with the oldest unacknowledged record; `None` if there is no such record.
    pub(crate) fn slowest(&self) -> Option<String> {
        let open = self.readers.values().filter_map(|reader| Some((reader.first()?.0, reader.name()?)));
        let slow = open.filter(|(first, _)| *first <= self.released.0);
        slow.min_by_key(|(first, _)| *first).map(|(_, name)| name.to_owned())
    }

    pub(crate) fn is_open(&self, name: &str) -> bool {
        self.readers.values().any(|reader| reader.name() == Some(name))
    }

    /// Notes that records before `first` are no longer kept.
    pub(crate) fn set_kept_from(&mut self, first: Sequence) {
        self.kept_from = self.kept_from.max(first);
        self.forget_given_up(first, false);
    }

    /// Makes readers forget the given-up records that are before a position. If `coalesced` is set, only records with coalesced
    /// entries are forgotten; otherwise only records in the log.
    pub(crate) fn forget_given_up(&mut self, before: Sequence, coalesced: bool) {
        self.readers.values_mut().for_each(|reader| reader.forget_given_up(before, coalesced));
    }

    /// Returns the oldest record that waits only in the store.
    pub(crate) fn first_spilled(&self) -> Option<Sequence> {
        self.readers.values().filter_map(|reader| reader.spilled().next()).min().map(Sequence)
    }

    /// Returns the named readers that need a record before `position`. With each reader, returns its name and its records before
    /// `position` that wait only in the store.
    pub(crate) fn spilled_before(&self, position: Sequence) -> Vec<(ReaderId, String, Vec<u64>)> {
        let mark = self.released();
        let slow = self.readers.iter().filter_map(|(id, reader)| {
            let waits = reader.needs(mark) < position.0 || reader.first().is_some_and(|first| first < position);
            let name = reader.name().filter(|_| waits)?.to_owned();
            Some((*id, name, reader.spilled().take_while(|at| *at < position.0).collect()))
        });
        slow.collect()
    }
}
