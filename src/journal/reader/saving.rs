//! Saved state of a named reader in a journal with a store, and the steps of a compaction of its records.

use roaring::RoaringTreemap;

use super::{
    JournalReader, ToLoad,
    waiting::{InStore, needs},
};
use crate::journal::{
    Record, Sequence, UnitId, UnitTerms,
    filter::{Judged, RecordFilter, Verdict},
    store::StoredReader,
};

/// Records of the next step of a compaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// The reader's filter, and the positions of the records to judge before anything is coalesced; `None` without a filter.
    pub to_judge: Option<(RecordFilter, Vec<u64>)>,
    /// Positions of the records, in order.
    pub positions: Vec<u64>,
    /// Positions of all records that wait only in the store. Only these may be coalesced.
    pub may_merge: RoaringTreemap,
    /// Last position that was handed out.
    pub shown: u64,
}

impl Held {
    /// Leaves out records that the filter refused.
    pub(crate) fn leave_out(&mut self, refused: &RoaringTreemap) {
        self.positions.retain(|position| !refused.contains(*position));
        self.may_merge -= refused;
    }
}

impl JournalReader {
    /// Returns the name of a reader whose state is saved.
    pub(crate) fn name(&self) -> Option<&str> {
        self.waiting.stored().map(|stored| &*stored.name)
    }

    /// Returns the positions to load from the store before the next read.
    pub(crate) fn to_load(&self) -> ToLoad {
        let max = self.in_flight_max();
        let has_room = self.in_flight.len() < max && self.again.is_empty() && !self.abandoned;
        self.waiting.stored().filter(|_| has_room).map(|stored| stored.to_load(max)).unwrap_or_default()
    }

    /// Takes the records of a load; see [`InStore::loaded`].
    pub(crate) fn loaded(
        &mut self,
        asked: &ToLoad,
        records: Vec<Record>,
        terms: impl Fn(UnitId) -> Option<UnitTerms>,
    ) -> bool {
        let stored = self.waiting.stored_mut().filter(|_| self.again.is_empty());
        stored.is_some_and(|stored| stored.loaded(asked, records, terms, &mut self.tally))
    }

    /// Marks the state as changed.
    pub(crate) fn touch(&mut self) {
        if let Some(stored) = self.waiting.stored_mut() {
            stored.changed = true;
        }
    }

    /// Returns the state to save if it differs from the saved one. `mark` is the released watermark.
    pub(crate) fn save(&mut self, mark: Sequence) -> Option<StoredReader> {
        let stored = self.waiting.stored()?;
        // If no record waits, the reader needs no record up to the watermark. A saved state that still needs one is outdated.
        let lags = stored.frozen.is_none() && stored.needs <= mark.0 && self.first().is_none();
        if stored.changed || lags { self.state(mark) } else { None }
    }

    /// Returns the state, and marks it as saved.
    fn state(&mut self, mark: Sequence) -> Option<StoredReader> {
        let (pending, attached) = (self.pending(), self.attached());
        let stored = self.waiting.stored_mut()?;
        stored.changed = false;
        if !stored.compacted.is_empty() {
            stored.compacted &= &pending | &stored.given_up;
        }
        Some(StoredReader {
            name: stored.name.to_string(),
            position: stored.frozen.unwrap_or(mark).max(stored.opened),
            pending,
            attached,
            given_up: stored.given_up.clone(),
            compacted: stored.compacted.clone(),
        })
    }

    /// Notes that `state` was saved.
    pub(crate) fn saved(&mut self, state: &StoredReader) {
        if let Some(stored) = self.waiting.stored_mut() {
            stored.needs = needs(state);
        }
    }

    fn in_memory(&self) -> impl Iterator<Item = u64> {
        let read = self.in_flight.iter().chain(&self.again);
        read.chain(self.waiting.in_memory()).map(|record| record.sequence.0)
    }

    /// Returns the positions of all records that wait or are in flight.
    fn pending(&self) -> RoaringTreemap {
        let mut pending = self.waiting.stored().map(|stored| stored.spilled.clone()).unwrap_or_default();
        pending.extend(self.in_memory());
        pending
    }

    /// Returns the positions of the records that wait or are in flight, up to a position.
    pub(crate) fn pending_until(&self, last: Sequence) -> Vec<u64> {
        self.pending().iter().take_while(|position| *position <= last.0).collect()
    }

    /// Acknowledges records that wait. Returns their number.
    pub(crate) fn skip(&mut self, positions: &RoaringTreemap) -> u64 {
        let Some(stored) = self.waiting.stored_mut() else { return 0 };
        let before = self.again.len() as u64;
        self.again.retain(|record| !positions.contains(record.sequence.0));
        let skipped = before - self.again.len() as u64 + stored.skip(positions);
        self.tally.stats.acknowledged += skipped;
        skipped
    }

    /// Returns the oldest unacknowledged record that has no coalesced entry.
    fn first_in_log(&self) -> Option<u64> {
        let InStore { compacted, spilled, .. } = self.waiting.stored()?;
        if compacted.is_empty() {
            return self.first().map(|first| first.0);
        }
        self.in_memory().filter(|position| !compacted.contains(*position)).chain((spilled - compacted).min()).min()
    }

    /// Returns the first record of the log that the reader needs, now or after a crash. `mark` is the released watermark.
    pub(crate) fn needs(&self, mark: Sequence) -> u64 {
        let Some(stored) = self.waiting.stored() else { return mark.0 + 1 };
        stored.needs.min(self.first_in_log().unwrap_or(mark.0 + 1)).max(stored.floor)
    }

    /// Forgets the given-up records that are before a position. If `coalesced` is set, only records with coalesced entries are
    /// forgotten; otherwise only records in the log.
    pub(crate) fn forget_given_up(&mut self, before: Sequence, coalesced: bool) {
        if let Some(InStore { given_up, compacted, changed, .. }) = self.waiting.stored_mut() {
            let mut forgotten = if coalesced { &*given_up & &*compacted } else { &*given_up - &*compacted };
            forgotten.remove_range(before.0..);
            *changed |= !forgotten.is_empty();
            *given_up -= forgotten;
        }
    }

    /// Returns the positions of the records that wait only in the store, oldest first.
    pub(crate) fn spilled(&self) -> impl Iterator<Item = u64> {
        self.waiting.stored().into_iter().flat_map(|stored| stored.spilled.iter())
    }

    /// Drops the records at `positions` that wait only in the store. Reports the losses of records in `named` by name, and only
    /// counts the other losses. From now on the reader needs no record before `upto`.
    pub(crate) fn drop_spilled(&mut self, positions: &[u64], named: &[Record], upto: Sequence) {
        let Some(stored) = self.waiting.stored_mut() else { return };
        for at in positions.iter().filter(|at| stored.spilled.remove(**at)) {
            match named.iter().find(|record| record.sequence.0 == *at) {
                Some(record) => self.tally.lose(record),
                None => self.tally.miss(),
            }
        }
        stored.floor = stored.floor.max(upto.0);
        stored.changed = true;
    }

    /// Returns the first record of the log that the reader needs, and the reader's name. Returns `None` if that record is after
    /// `until`.
    pub(crate) fn compactable(&self, until: Sequence) -> Option<(u64, &str)> {
        self.first_in_log().filter(|first| *first <= until.0).zip(self.name())
    }

    /// Returns two numbers of unacknowledged records of a named reader: records in the log, and coalesced entries.
    pub(crate) fn loads(&self) -> (u64, u64) {
        let Some(stored) = self.waiting.stored() else { return (0, 0) };
        let pending = self.pending();
        let compacted = pending.intersection_len(&stored.compacted);
        (pending.len() - compacted, compacted)
    }

    /// Starts the next step of a compaction, with at most `max` records up to `until`. Until the step is
    /// [released](Self::release) or [completed](Self::compacted), what is not in flight waits only in the store, and is not loaded.
    /// Returns `None` if no such record is left.
    pub(crate) fn hold(&mut self, max: usize, until: Sequence) -> Option<Held> {
        let positions = self.pending() - &self.waiting.stored()?.compacted;
        let positions: Vec<_> = positions.iter().take_while(|position| *position <= until.0).take(max).collect();
        let stored = self.waiting.stored_mut().filter(|_| !positions.is_empty())?;
        stored.hold();
        // What was read passed the filter then.
        let to_judge = || positions.iter().filter(|position| stored.spilled.contains(**position)).copied().collect();
        let to_judge = self.interest.filter.clone().map(|filter| (filter, to_judge()));
        Some(Held { to_judge, positions, may_merge: stored.spilled.clone(), shown: stored.shown })
    }

    /// Removes the records of a step that the filter refuses. Returns their positions.
    pub(crate) fn refuse(&mut self, judged: &[Judged]) -> RoaringTreemap {
        let Some(stored) = self.waiting.stored_mut() else { return RoaringTreemap::new() };
        let mut refused = RoaringTreemap::new();
        for judged in judged.iter().filter(|judged| judged.verdict != Verdict::Wanted) {
            if !stored.spilled.remove(judged.sequence.0) {
                continue;
            }
            self.tally.count(&judged.verdict);
            refused.insert(judged.sequence.0);
        }
        stored.changed |= !refused.is_empty();
        refused
    }

    /// Ends a step that changed nothing.
    pub(crate) fn release(&mut self) {
        if let Some(stored) = self.waiting.stored_mut() {
            stored.held = false;
        }
    }

    /// Returns the state that must be saved together with the entries of a step.
    pub(crate) fn compacting(
        &mut self,
        written: &RoaringTreemap,
        superseded: &RoaringTreemap,
        mark: Sequence,
    ) -> Option<StoredReader> {
        let mut state = self.state(mark)?;
        state.pending -= superseded;
        state.compacted -= superseded;
        state.compacted |= written;
        state.compacted &= &state.pending | &state.given_up;
        Some(state)
    }

    /// Completes a step, after the store has saved it with `state`. The step coalesced the `superseded` records into others.
    pub(crate) fn compacted(&mut self, superseded: &RoaringTreemap, state: &StoredReader) {
        let Some(stored) = self.waiting.stored_mut() else { return };
        let before = stored.spilled.len();
        stored.spilled -= superseded;
        self.tally.stats.coalesced += before - stored.spilled.len();
        stored.held = false;
        stored.compacted.clone_from(&state.compacted);
        stored.needs = needs(state);
    }
}
