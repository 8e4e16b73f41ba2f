//! Handling of records that were read: acknowledge, give up, replay, rewind, abandon.

use super::JournalReader;
use crate::journal::{Record, Sequence};

impl JournalReader {
    /// Removes records from `in_flight`. Ignores positions of other records.
    fn take_in_flight(&mut self, positions: &[Sequence]) -> Vec<Record> {
        let mut taken = Vec::with_capacity(positions.len());
        for position in positions {
            let at = self.in_flight.binary_search_by_key(position, |record| record.sequence).ok();
            taken.extend(at.and_then(|at| self.in_flight.remove(at)));
        }
        self.touch();
        taken
    }

    /// Acknowledges all records in flight up to a position.
    pub(crate) fn ack(&mut self, upto: Sequence) {
        while self.in_flight.pop_front_if(|record| record.sequence <= upto).is_some() {
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

    /// Acknowledges records in flight, and remembers them for a replay.
    pub(crate) fn give_up(&mut self, positions: &[Sequence]) {
        let taken = self.take_in_flight(positions);
        self.tally.stats.acknowledged += taken.len() as u64;
        self.waiting.give_up(taken);
    }

    /// Queues all given-up records again. Returns their number.
    pub(crate) fn replay(&mut self) -> u64 {
        if self.abandoned {
            return 0;
        }
        let (queued, records) = self.waiting.replay();
        self.read_again(records);
        self.touch();
        self.tally.stats.wanted += queued;
        queued
    }

    /// Takes back all records in flight, so that the next reads return them again.
    pub(crate) fn rewind(&mut self) {
        let taken = std::mem::take(&mut self.in_flight);
        self.read_again(taken);
    }

    fn read_again(&mut self, records: impl IntoIterator<Item = Record>) {
        self.again.extend(records);
        self.again.make_contiguous().sort_by_key(|record| record.sequence); // `again` may hold replayed records already
    }

    /// Ends the delivery to this reader. With a store, a named reader's unacknowledged records wait in the store for the next
    /// reader of that name. For any other reader, the unacknowledged records are dropped.
    pub(crate) fn abandon(&mut self, mark: Sequence) {
        if std::mem::replace(&mut self.abandoned, true) {
            return;
        }
        let mut read = self.in_flight.drain(..).chain(self.again.drain(..));
        if let Some(stored) = self.waiting.stored_mut() {
            read.for_each(|record| stored.spill(&record));
            stored.unload();
            stored.frozen = Some(mark);
            return self.touch();
        }
        while let Some(record) = read.next().or_else(|| self.waiting.pop()) {
            self.tally.lose(&record);
        }
        drop(read);
        self.interest.units.clear();
    }
}
