//! Handling of records that were read: acknowledge, give up, replay, rewind, abandon.

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::Sequence;

/// Maximum number of given-up records in memory.
const GIVEN_UP_MAX: usize = 1_000;

impl JournalReader {
    /// Returns the index of a record in flight.
    pub(super) fn find(&self, position: Sequence) -> Option<usize> {
        self.in_flight.binary_search_by_key(&position, WaitingRecord::sequence).ok()
    }

    /// Removes records from `in_flight`. Ignores positions of other records.
    pub(super) fn take_in_flight(&mut self, positions: &[Sequence]) -> Vec<WaitingRecord> {
        let mut taken = Vec::with_capacity(positions.len());
        for position in positions {
            taken.extend(self.find(*position).and_then(|at| self.in_flight.remove(at)));
        }
        self.touch();
        taken
    }

    /// Acknowledges all records in flight up to a position.
    pub(crate) fn ack(&mut self, upto: Sequence) {
        while self.in_flight.pop_front_if(|waiting| waiting.sequence() <= upto).is_some() {
            self.tally.stats.acknowledged += 1;
        }
        self.touch();
    }

    /// Acknowledges records in flight. Returns their number.
    pub(crate) fn ack_each(&mut self, positions: &[Sequence]) -> usize {
        let acknowledged = self.take_in_flight(positions).len();
        self.tally.stats.acknowledged += acknowledged as u64;
        acknowledged
    }

    /// Acknowledges records in flight, and remembers them for a replay. A reader that is not stored keeps them in memory: only the
    /// newest ones, up to [`GIVEN_UP_MAX`] and its `max_bytes`.
    pub(crate) fn give_up(&mut self, positions: &[Sequence]) {
        let taken = self.take_in_flight(positions);
        self.tally.stats.acknowledged += taken.len() as u64;
        if let Some(stored) = &mut self.stored {
            stored.given_up.extend(taken.iter().map(|waiting| waiting.sequence().0));
            return;
        }
        self.given_up.extend(taken.into_iter().map(|waiting| (waiting.sequence(), waiting)));
        let bytes = |waiting: &WaitingRecord| waiting.record.body_bytes();
        let mut held: usize = self.given_up.values().map(bytes).sum();
        while self.given_up.len() > GIVEN_UP_MAX || held > self.bounds.max_bytes {
            let Some((_, oldest)) = self.given_up.pop_first() else { break };
            held -= bytes(&oldest);
        }
    }

    /// Queues all given-up records again. Returns their number.
    pub(crate) fn replay(&mut self) -> u64 {
        if self.abandoned {
            return 0;
        }
        let mut queued = self.given_up.len() as u64;
        self.again.extend(std::mem::take(&mut self.given_up).into_values());
        self.again.make_contiguous().sort_by_key(WaitingRecord::sequence);
        if let Some(stored) = &mut self.stored {
            // Records in memory must be read after the replayed ones, so they move back to the store.
            std::mem::take(&mut self.queue).waiting.iter().for_each(|waiting| stored.push(&waiting.record));
            queued = stored.replay();
            self.touch();
        }
        self.tally.stats.wanted += queued;
        queued
    }

    /// Takes back all records in flight, so that the next reads return them again.
    pub(crate) fn rewind(&mut self) {
        self.again.extend(self.in_flight.drain(..));
        self.again.make_contiguous().sort_by_key(WaitingRecord::sequence); // `again` may hold replayed records already
    }

    /// Ends the delivery to this reader. With a store, a named reader's unacknowledged records wait in the store for the next
    /// reader of that name. For any other reader, the unacknowledged records are dropped.
    pub(crate) fn abandon(&mut self, mark: Sequence) {
        if std::mem::replace(&mut self.abandoned, true) {
            return;
        }
        if let Some(stored) = &mut self.stored {
            let read = self.in_flight.drain(..).chain(self.again.drain(..));
            read.chain(std::mem::take(&mut self.queue).waiting).for_each(|waiting| stored.push(&waiting.record));
            stored.frozen = Some(mark);
            return self.touch();
        }
        for waiting in std::mem::take(&mut self.in_flight) {
            self.tally.lose(&waiting.record);
        }
        while let Some(waiting) = self.pop() {
            self.tally.lose(&waiting.record);
        }
        self.units.clear();
    }
}
