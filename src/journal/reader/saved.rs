//! Saved state of a named reader, and the steps of a compaction of its records.

use std::collections::BTreeSet;

use roaring::RoaringTreemap;

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::{Record, Sequence, UnitId, filter::Unjudged, store::StoredReader};

/// Part of a named reader's state that is saved, besides the waiting records. A reader without a name is not saved.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Empty for a reader without a name.
    pub(super) name: Box<str>,
    pub(super) given_up: RoaringTreemap,
    /// Units that the reader is about to join without any record. If the process ended before the join took effect, no record
    /// would show it.
    pub(super) joining: BTreeSet<UnitId>,
    /// Position at which the reader was abandoned. Later records are not judged.
    pub(super) frozen: Option<Sequence>,
    /// Set while there are unsaved changes.
    pub(super) changed: bool,
    /// First record of the log that the saved state needs.
    needs: Option<u64>,
    /// Records before this one may be removed even if the reader needs them.
    floor: u64,
    /// Positions of waiting or given-up records that have coalesced entries of their own. They need no record of the log.
    pub(super) compacted: RoaringTreemap,
    /// Last position that was handed out.
    pub(super) shown: u64,
}

impl Kept {
    pub(super) fn of(state: StoredReader) -> Self {
        let needs = (!state.name.is_empty()).then(|| needs(&state));
        let shown = state.pending.max().unwrap_or_default();
        let StoredReader { given_up, compacted, .. } = state;
        Self { name: state.name.into(), given_up, compacted, shown, needs, changed: true, ..Self::default() }
    }
}

/// Records of the next step of a compaction.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Records in memory to judge before anything is coalesced.
    pub to_judge: Option<Unjudged>,
    /// Positions of records to judge that are only in the store.
    pub unjudged: Vec<u64>,
    /// Positions of the records, in order.
    pub places: Vec<u64>,
    /// Positions of all records that wait only in the store.
    pub may_merge: RoaringTreemap,
    /// Last position that was handed out.
    pub shown: u64,
}

impl JournalReader {
    pub(crate) fn name(&self) -> Option<&str> {
        Some(&*self.kept.name).filter(|name| !name.is_empty())
    }

    /// Marks the state as changed.
    pub(crate) fn touch(&mut self) {
        self.kept.changed = true;
    }

    /// Notes that the reader is about to join a unit without any record.
    pub(crate) fn announce(&mut self, unit: UnitId) {
        self.kept.joining.insert(unit);
        self.touch();
    }

    /// Returns the state to save if it differs from the saved one. `mark` is the released watermark.
    pub(crate) fn save(&mut self, mark: Sequence) -> Option<StoredReader> {
        // The watermark also moves past refused records. A reader without waiting records needs none before it.
        let is_idle = self.kept.frozen.is_none() && self.first().is_none();
        let lags = is_idle && self.kept.needs.is_some_and(|needs| needs <= mark.0);
        (self.kept.changed || lags).then(|| self.state(mark)).flatten()
    }

    /// Returns the state, and marks it as saved.
    fn state(&mut self, mark: Sequence) -> Option<StoredReader> {
        let (name, pending, joined) = (self.name()?.to_owned(), self.pending(), self.joined());
        let kept = &mut self.kept;
        kept.changed = false;
        if !kept.compacted.is_empty() {
            kept.compacted &= &pending | &kept.given_up;
        }
        Some(StoredReader {
            name,
            position: kept.frozen.unwrap_or(mark),
            pending,
            joined: joined.union(&kept.joining).copied().collect(),
            given_up: kept.given_up.clone(),
            compacted: kept.compacted.clone(),
        })
    }

    /// Notes that `state` was saved.
    pub(crate) fn saved(&mut self, state: &StoredReader) {
        self.kept.needs = Some(needs(state));
    }

    fn in_memory(&self) -> impl Iterator<Item = &WaitingRecord> {
        self.in_flight.iter().chain(&self.again).chain(&self.queue.waiting)
    }

    /// Returns the positions of all records that wait or are in flight.
    fn pending(&self) -> RoaringTreemap {
        let mut pending = self.spill.as_ref().map(|spill| spill.positions.clone()).unwrap_or_default();
        pending.extend(self.in_memory().map(|waiting| waiting.sequence().0));
        pending
    }

    /// Returns the oldest unacknowledged record that has no coalesced entry.
    fn first_in_log(&self) -> Option<u64> {
        let compacted = &self.kept.compacted;
        if compacted.is_empty() {
            return self.first().map(|first| first.0);
        }
        let spilled = self.spill.as_ref().and_then(|spill| (&spill.positions - compacted).min());
        let in_memory = self.in_memory().map(|waiting| waiting.sequence().0);
        in_memory.filter(|position| !compacted.contains(*position)).chain(spilled).min()
    }

    /// Returns the first record of the log that the reader needs, now or after a crash. `mark` is the released watermark.
    pub(crate) fn needs(&self, mark: Sequence) -> u64 {
        let waiting = self.first_in_log().unwrap_or(mark.0 + 1);
        self.kept.needs.map_or(waiting, |needs| needs.min(waiting)).max(self.kept.floor)
    }

    /// Forgets given-up records before a position that have no coalesced entries: the log no longer has them.
    pub(crate) fn forget_before(&mut self, first: Sequence) {
        self.kept.changed |= forget_removed(&mut self.kept.given_up, &self.kept.compacted, first) > 0;
    }

    /// Forgets given-up records before a position that have coalesced entries.
    pub(crate) fn forget_entries_before(&mut self, position: Sequence) {
        let mut old = &self.kept.given_up & &self.kept.compacted;
        old.remove_range(position.0..);
        self.kept.changed |= !old.is_empty();
        self.kept.given_up -= old;
    }

    /// Returns up to `limit` positions of records that wait only in the store, oldest first.
    pub(crate) fn spilled(&self, limit: usize) -> Vec<u64> {
        self.spill.as_ref().map(|spill| spill.positions.iter().take(limit).collect()).unwrap_or_default()
    }

    /// Returns the positions before `position` of records that wait only in the store.
    pub(crate) fn spilled_before(&self, position: Sequence) -> Vec<u64> {
        let spilled = self.spill.iter().flat_map(|spill| spill.positions.iter());
        spilled.take_while(|at| *at < position.0).collect()
    }

    /// Drops the records at `positions` that wait in the store. `named` contains the known ones. A named reader then needs no
    /// record before `upto`.
    pub(crate) fn drop_spilled(&mut self, positions: &[u64], named: &[Record], upto: Sequence) {
        let Some(spill) = self.spill.as_mut().filter(|_| !self.kept.name.is_empty()) else { return };
        for at in positions.iter().filter(|at| spill.remove(**at)) {
            match named.iter().find(|record| record.sequence.0 == *at) {
                Some(record) => self.tally.lose(record),
                None => self.tally.miss(1),
            }
        }
        self.kept.floor = self.kept.floor.max(upto.0);
        self.touch();
    }

    /// Returns the first record of the log up to `until` that a named reader needs.
    pub(crate) fn compactable(&self, until: Sequence) -> Option<(u64, &str)> {
        let name = self.name()?;
        self.first_in_log().filter(|first| *first <= until.0).map(|first| (first, name))
    }

    /// Returns the number of records that wait for a named reader: in the log, and as coalesced entries.
    pub(crate) fn loads(&self) -> (u64, u64) {
        if self.name().is_none() {
            return (0, 0);
        }
        let pending = self.pending();
        let compacted = pending.intersection_len(&self.kept.compacted);
        (pending.len() - compacted, compacted)
    }

    /// Starts the next step of a compaction, with at most `max` records up to `until`. Nothing is loaded from the store until
    /// the step is [released](Self::release) or [completed](Self::compacted).
    pub(crate) fn hold(&mut self, max: usize, until: Sequence) -> Option<Held> {
        self.name()?;
        let places = self.pending() - &self.kept.compacted;
        let places: Vec<_> = places.iter().take_while(|position| *position <= until.0).take(max).collect();
        let (mut to_judge, mut unjudged) = (None, Vec::new());
        if let Some(filter) = self.filter.clone() {
            let is_due = |at: &WaitingRecord| !at.judged && places.binary_search(&at.sequence().0).is_ok();
            let records = self.in_memory().filter(|at| is_due(at)).map(|at| at.record.clone()).collect();
            to_judge = Some(Unjudged { filter, records });
        }
        let spill = self.spill.as_mut().filter(|_| !places.is_empty())?;
        spill.hold();
        if to_judge.is_some() {
            let is_unjudged = |at: &&u64| spill.positions.contains(**at) && !spill.passed.contains(**at);
            unjudged = places.iter().filter(is_unjudged).copied().collect();
        }
        let (may_merge, shown) = (spill.positions.clone(), self.kept.shown);
        Some(Held { to_judge, unjudged, places, may_merge, shown })
    }

    /// Ends a step that changed nothing.
    pub(crate) fn release(&mut self) {
        self.spill.iter_mut().for_each(super::Spill::release);
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

    /// Completes a step that was saved with `state`.
    pub(crate) fn compacted(&mut self, superseded: &RoaringTreemap, state: &StoredReader) {
        let Some(spill) = &mut self.spill else { return };
        self.tally.stats.coalesced += spill.supersede(superseded);
        spill.release();
        self.kept.compacted.clone_from(&state.compacted);
        self.saved(state);
    }
}

/// Returns the first record of the log that a reader with this state needs.
pub(crate) fn needs(state: &StoredReader) -> u64 {
    (&state.pending - &state.compacted).min().unwrap_or(state.position.0 + 1)
}

/// Returns the first position that a reader with this state has not handled.
pub(crate) fn waits_from(state: &StoredReader) -> u64 {
    state.pending.min().unwrap_or(state.position.0 + 1)
}

/// Forgets given-up records before `first`, the start of the log, except those with coalesced entries. Returns their number.
pub(super) fn forget_removed(given_up: &mut RoaringTreemap, compacted: &RoaringTreemap, first: Sequence) -> u64 {
    let mut gone = &*given_up - compacted;
    gone.remove_range(first.0..);
    *given_up -= &gone;
    gone.len()
}
