//! One reader of the journal: its interest, and the records that it has not acknowledged.
//!
//! Records within the reader's limits wait unchanged in a [`Queue`]. Beyond the limits, some readers drop records. For other
//! readers, all waiting records move to a [`Backlog`] and are coalesced there. Once the backlog is empty, records wait in the queue
//! again. A named reader of a journal with a store has no backlog: beyond its limits, it keeps only the positions of records, in
//! [`Stored`].

mod ack;
pub(super) mod backlog;
mod interest;
mod judging;
mod queue;
mod stored;

use std::collections::{BTreeMap, HashMap, VecDeque};

pub use self::stored::{Held, ToLoad};
pub(super) use self::stored::{needs, waits_from};
use self::{
    backlog::{Backlog, Tally},
    interest::Sight,
    queue::{Queue, WaitingRecord},
    stored::Stored,
};
use super::{
    Bounds, ChangeSet, EventName, Losses, ReaderStats, Record, Sequence, TypeNumber, UnitId, UnitTerms, WhenFull,
    filter::RecordFilter, memory::units::Units, store::StoredReader,
};
use crate::change::{Cause, Change};

/// Number of waiting records in memory from which on a reader packs new records: packed records share memory with the cache. A
/// reader without a store then also judges new records on arrival, so that coalescing has few records left to judge.
const MANY: usize = 512;

/// State of one reader.
///
/// Its records, oldest first, are in `in_flight`, `again`, the `backlog` or the `queue`, and the store.
///
/// **Invariants:** Records in `in_flight` and `again` are not coalesced any further. While there is a backlog, the queue is empty.
/// A stored reader has no backlog, and all its records in memory are wanted.
#[derive(Debug, Default)]
pub(crate) struct JournalReader {
    bounds: Bounds,
    changes: ChangeSet,
    filter: Option<RecordFilter>,
    units: HashMap<UnitId, Sight>,
    /// Last position of the reader's initial state, for each type. Added records up to this position belong to the initial state
    /// (S-8).
    marks: HashMap<TypeNumber, Sequence>,
    queue: Queue,
    backlog: Option<Backlog>,
    /// Set when a reader that drops records has exceeded its limits; reset when nothing waits. While it is set, every waiting
    /// record has already been judged.
    overflowed: bool,
    /// Present for a named reader of a journal with a store.
    stored: Option<Stored>,
    again: VecDeque<WaitingRecord>,
    /// Sorted by position.
    in_flight: VecDeque<WaitingRecord>,
    /// Given-up records of a reader that is not stored, for a replay.
    given_up: BTreeMap<Sequence, WaitingRecord>,
    abandoned: bool,
    tally: Tally,
}

impl JournalReader {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Returns a named reader that resumes from `state`, for a journal with a store.
    pub(super) fn stored(bounds: Bounds, mut state: StoredReader, units: &Units) -> Self {
        let is_known = |unit: &UnitId| units.get(unit).is_some_and(|unit| !unit.retired);
        let joined = std::mem::take(&mut state.joined).into_iter().filter(is_known);
        let mut reader = Self::new(bounds);
        reader.tally.stats.wanted = state.pending.len();
        reader.units = joined.map(|unit| (unit, Sight::of_last_run())).collect();
        reader.stored = Some(Stored::of(state));
        reader
    }

    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        if self.drops() {
            self.queue.retain(|waiting| waiting.wanted); // only a backlog needs unwanted records
            if let Some(mut backlog) = self.backlog.take() {
                self.overflowed = true;
                std::iter::from_fn(|| backlog.pop_front()).for_each(|waiting| self.queue.push(waiting));
            }
        }
        if let Some(backlog) = &mut self.backlog {
            backlog.enforce(&bounds, &mut self.tally);
        }
        self.settle();
    }

    /// Returns true if records beyond the limits are dropped and not coalesced.
    fn drops(&self) -> bool {
        self.bounds.when_full != WhenFull::Coalesce
    }

    fn in_flight_max(&self) -> usize {
        self.bounds.max_events.max(1)
    }

    /// Adds a record. `wanted` is set if the record matches the reader's interest.
    fn take(&mut self, record: &Record, terms: UnitTerms, wanted: bool) {
        self.tally.stats.wanted += u64::from(wanted);
        if let Some(stored) = self.stored.as_mut().filter(|stored| !stored.spilled.is_empty()) {
            if wanted {
                stored.push(record);
            }
            return;
        }
        let many_wait = self.backlog.is_some() || self.overflowed || self.queue.waiting.len() >= MANY;
        let judged = wanted && many_wait && self.stored.is_none();
        let wanted = wanted && (!judged || self.passes(record));
        if !wanted && self.backlog.is_none() && !self.matters(record) {
            return;
        }
        let record = if many_wait { record.packed() } else { record.clone() };
        let new = WaitingRecord { record, terms, wanted, judged };
        if let Some(backlog) = &mut self.backlog {
            let mark = self.marks.get(&terms.resource).copied();
            backlog.push(&new, mark, &self.bounds, &mut self.tally);
        } else if let Some(stored) = &mut self.stored
            && !self.queue.has_room(new.record.body_bytes(), &self.bounds)
        {
            stored.push(&new.record);
        } else {
            self.queue.push(new);
            if self.drops() {
                self.settle();
            }
        }
    }

    /// Returns true if an unwanted record must be kept, because it would change the waiting records when they are coalesced.
    fn matters(&self, record: &Record) -> bool {
        let is_news = !matches!(record.change, Change::Unchanged { cause, .. } if cause != Cause::Reload);
        is_news && !self.queue.waiting.is_empty() && !self.drops() && self.stored.is_none()
    }

    /// Brings the waiting records within the limits.
    fn settle(&mut self) {
        if let Some(stored) = &mut self.stored {
            while self.queue.is_over(&self.bounds) {
                stored.push(&self.queue.pop_last().expect("too much waits").record);
            }
        } else if self.backlog.is_none() && self.queue.is_over(&self.bounds) {
            if !self.drops() {
                self.coalesce();
            } else if self.overflowed {
                self.drop_excess();
            } else {
                self.overflowed = true;
                for mut waiting in std::mem::take(&mut self.queue).waiting {
                    waiting.judged = waiting.judged || self.passes(&waiting.record);
                    if waiting.judged {
                        self.queue.push(waiting);
                        self.drop_excess();
                    }
                }
            }
        }
        self.note_taken_out();
    }

    fn drop_excess(&mut self) {
        while self.queue.is_over(&self.bounds) {
            let drops_oldest = self.bounds.when_full == WhenFull::DropOldest;
            let dropped = if drops_oldest { self.queue.pop() } else { self.queue.pop_last() };
            self.tally.lose(&dropped.expect("too much waits").record);
        }
    }

    /// Moves all records from the queue to a backlog.
    fn coalesce(&mut self) {
        let mut backlog = Backlog::default();
        for mut waiting in std::mem::take(&mut self.queue).waiting {
            waiting.wanted = waiting.wanted && (waiting.judged || self.passes(&waiting.record));
            let mark = self.marks.get(&waiting.terms.resource).copied();
            backlog.push(&waiting, mark, &self.bounds, &mut self.tally);
        }
        self.backlog = Some(backlog);
    }

    fn note_taken_out(&mut self) {
        self.backlog.take_if(|backlog| backlog.len() == 0);
        self.overflowed &= !self.queue.waiting.is_empty();
    }

    pub(crate) fn read(&mut self, max_events: usize, max_bytes: usize) -> Vec<Record> {
        let room = self.in_flight_max().saturating_sub(self.in_flight.len());
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max_events.min(room) {
            let Some(next) = self.peek() else { break };
            bytes += next.body_bytes();
            if bytes > max_bytes && !batch.is_empty() {
                break;
            }
            let mut waiting = self.pop().expect("it was just seen");
            waiting.judged |= self.filter.is_none(); // a filter that a reload adds later does not judge this record
            let sequence = waiting.sequence();
            if let Some(stored) = &mut self.stored {
                stored.shown = stored.shown.max(sequence.0);
            }
            batch.push(waiting.record.clone());
            let at = self.in_flight.partition_point(|other| other.sequence() < sequence);
            self.in_flight.insert(at, waiting); // at the end, unless the record is replayed
        }
        batch
    }

    fn peek(&self) -> Option<&Record> {
        let waiting = self.again.front().or_else(|| self.queue.waiting.front());
        waiting.map(|waiting| &waiting.record).or_else(|| self.backlog.as_ref()?.front())
    }

    fn pop(&mut self) -> Option<WaitingRecord> {
        if let Some(waiting) = self.again.pop_front() {
            return Some(waiting);
        }
        let waiting = self.queue.pop().or_else(|| self.backlog.as_mut()?.pop_front());
        self.note_taken_out();
        waiting
    }

    pub(crate) fn stats(&self, mark: Sequence) -> ReaderStats {
        let waiting = self.again.len() + self.backlog.as_ref().map_or(self.queue.wanted.events, Backlog::len);
        let (spilled, given_up) =
            self.stored.as_ref().map_or((0, 0), |stored| (stored.spilled.len(), stored.given_up.len()));
        ReaderStats {
            queued: waiting as u64 + spilled,
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
        let in_flight = self.in_flight.front().map(WaitingRecord::sequence);
        let waiting = self.peek().map(|record| record.sequence);
        let spilled = self.spilled().next().map(Sequence);
        [in_flight, waiting, spilled].into_iter().flatten().min()
    }

    fn oldest_micros(&self) -> Option<i64> {
        let in_flight = self.in_flight.front().map(|waiting| waiting.record.time_micros);
        let oldest = in_flight.or_else(|| self.peek().map(|record| record.time_micros));
        oldest.or_else(|| self.stored.as_ref()?.since_micros())
    }

    /// Returns the names of unacknowledged records in memory, oldest first, up to `limit`.
    pub(crate) fn undelivered(&self, limit: usize) -> Vec<EventName> {
        let read = self.in_flight.iter().chain(&self.again).map(|waiting| &waiting.record);
        let queue = self.queue.waiting.iter().filter(|waiting| waiting.wanted).map(|waiting| &waiting.record);
        let waiting = read.chain(self.backlog.iter().flat_map(Backlog::iter)).chain(queue);
        waiting.take(limit).map(Record::event_name).collect()
    }
}

#[cfg(test)]
impl JournalReader {
    pub(super) fn held(&self) -> usize {
        self.in_flight.len()
            + self.again.len()
            + self.queue.waiting.len()
            + self.backlog.as_ref().map_or(0, Backlog::len)
    }

    /// Asserts the invariants between two calls.
    pub(super) fn check(&self) {
        assert!(self.in_flight.len() <= self.in_flight_max() || !self.again.is_empty() || self.stored.is_some());
        self.queue.check(&self.bounds);
        assert!(self.in_flight.iter().is_sorted_by_key(WaitingRecord::sequence));
        if let Some(stored) = &self.stored {
            let mut in_memory = self.in_flight.iter().chain(&self.again).chain(&self.queue.waiting);
            assert!(self.backlog.is_none());
            assert!(!in_memory.any(|waiting| stored.spilled.contains(waiting.sequence().0)));
        }
        if let Some(backlog) = &self.backlog {
            assert!(self.queue.waiting.is_empty() && backlog.len() > 0);
            backlog.check(&self.bounds);
        }
    }
}
