//! One reader of the journal: its interest, the records that wait for it, and those that it has read and not acknowledged.

mod ack;
mod interest;
mod reading;
mod saving;
pub(super) mod tally;
pub(super) mod waiting;

use std::collections::VecDeque;

pub(super) use self::reading::Next;
use self::{
    interest::ReaderInterest,
    tally::Tally,
    waiting::{Context, InMemory, InStore, Waiting},
};
pub(crate) use self::{saving::Held, waiting::ToLoad};
use super::{
    Bounds, EventName, Losses, ReaderStats, Record, Sequence, UnitTerms, memory::units::Units, store::StoredReader,
};

/// State of one reader.
///
/// Its records, oldest first, are `in_flight`, `again` and `waiting`. All that were read are wanted and judged, and are not
/// coalesced any further.
#[derive(Debug)]
pub(crate) struct JournalReader {
    interest: ReaderInterest,
    waiting: Waiting,
    /// Records that are read again before those that wait, sorted by position.
    again: VecDeque<Record>,
    /// Sorted by position.
    in_flight: VecDeque<Record>,
    abandoned: bool,
    tally: Tally,
}

impl JournalReader {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self::of(ReaderInterest::default(), Waiting::InMemory(Box::new(InMemory::new(bounds))))
    }

    /// Returns a named reader that resumes from `state`, for a journal with a store.
    pub(super) fn stored(bounds: Bounds, mut state: StoredReader, units: &Units) -> Self {
        let interest = ReaderInterest::of_last_run(std::mem::take(&mut state.attached), units);
        let wanted = state.pending.len();
        let mut reader = Self::of(interest, Waiting::InStore(Box::new(InStore::new(bounds, state))));
        reader.tally.stats.wanted = wanted;
        reader
    }

    fn of(interest: ReaderInterest, waiting: Waiting) -> Self {
        let (again, in_flight) = Default::default();
        Self { interest, waiting, again, in_flight, abandoned: false, tally: Tally::default() }
    }

    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        let mut context = Context { interest: &self.interest, tally: &mut self.tally };
        self.waiting.set_bounds(bounds, &mut context);
    }

    fn in_flight_max(&self) -> usize {
        self.waiting.bounds().max_events.max(1)
    }

    /// Adds a record to those that wait. `wanted` is set if the record matches the reader's interest.
    fn push(&mut self, record: &Record, terms: UnitTerms, wanted: bool) {
        self.tally.stats.wanted += u64::from(wanted);
        let mut context = Context { interest: &self.interest, tally: &mut self.tally };
        self.waiting.push(record, terms, wanted, &mut context);
    }

    fn settle(&mut self) {
        self.waiting.settle(&mut Context { interest: &self.interest, tally: &mut self.tally });
    }

    /// Returns the next record to read of those in memory.
    fn peek(&self) -> Option<&Record> {
        self.again.front().or_else(|| self.waiting.front())
    }

    pub(crate) fn stats(&self, mark: Sequence) -> ReaderStats {
        let stored = self.waiting.stored();
        let (spilled, given_up) = stored.map_or((0, 0), |stored| (stored.spilled.len(), stored.given_up.len()));
        ReaderStats {
            queued: (self.again.len() + self.waiting.in_memory_len()) as u64 + spilled,
            spilled,
            in_flight: self.in_flight.len() as u64,
            filter_errors: self.tally.failures.count,
            given_up,
            position: self.first().map_or(mark, |first| Sequence(first.0 - 1)),
            oldest_micros: self.oldest_micros(),
            ..self.tally.stats
        }
    }

    /// Returns the last error of the filter, with the name of the object.
    pub(crate) fn last_filter_error(&self) -> Option<String> {
        self.tally.failures.last.clone()
    }

    pub(crate) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.tally.losses)
    }

    /// Returns the position of the oldest record that is not acknowledged.
    pub(crate) fn first(&self) -> Option<Sequence> {
        let in_memory = self.in_flight.front().into_iter().chain(self.peek()).map(|record| record.sequence);
        in_memory.chain(self.spilled().next().map(Sequence)).min()
    }

    fn oldest_micros(&self) -> Option<i64> {
        let oldest = self.in_flight.front().or_else(|| self.peek());
        oldest.map(|record| record.time_micros).or_else(|| self.waiting.stored()?.since_micros())
    }

    /// Returns the names of unacknowledged records in memory, oldest first, up to `limit`.
    pub(crate) fn undelivered(&self, limit: usize) -> Vec<EventName> {
        let read = self.in_flight.iter().chain(&self.again);
        read.chain(self.waiting.in_memory()).take(limit).map(Record::event_name).collect()
    }
}

#[cfg(test)]
impl JournalReader {
    pub(super) fn held(&self) -> usize {
        let waiting = match &self.waiting {
            Waiting::InMemory(waiting) => waiting.held(),
            Waiting::InStore(_) => self.waiting.in_memory_len(),
        };
        self.in_flight.len() + self.again.len() + waiting
    }

    /// Reads and judges once.
    pub(crate) fn read_judged(&mut self, max_events: usize, max_bytes: usize) -> Vec<Record> {
        match self.read(max_events, max_bytes) {
            Next::Read(batch) => batch,
            Next::Judge(filter, records) => self.take(&filter.judge_all(&records)),
        }
    }

    /// Asserts the invariants between two calls.
    pub(super) fn check(&self) {
        let is_stored = self.waiting.stored().is_some();
        assert!(self.in_flight.len() <= self.in_flight_max() || !self.again.is_empty() || is_stored);
        assert!(self.in_flight.iter().is_sorted_by_key(|record| record.sequence));
        let mut read = self.in_flight.iter().chain(&self.again);
        if let Some(stored) = self.waiting.stored() {
            assert!(!read.any(|record| stored.spilled.contains(record.sequence.0)));
        }
        self.waiting.check();
    }
}
