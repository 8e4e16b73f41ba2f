//! Reading of records. A record is in flight only once it was judged and is wanted. It is judged without the journal's lock.

use super::JournalReader;
use crate::journal::{
    Record,
    filter::{Judged, RecordFilter},
};

/// Maximum number of records judged at a time: a filter may take some microseconds for each.
const JUDGED_MAX: usize = 256;

/// Result of a [read](JournalReader::read).
#[derive(Debug)]
pub(crate) enum Next {
    /// Records that are in flight from now on; empty if none wait in memory, or too many are in flight.
    Read(Vec<Record>),
    /// The filter must judge these records first. [`JournalReader::take`] then takes the wanted ones.
    Judge(RecordFilter, Vec<Record>),
}

impl JournalReader {
    pub(crate) fn read(&mut self, max_events: usize, max_bytes: usize) -> Next {
        let max_events = max_events.min(self.in_flight_max().saturating_sub(self.in_flight.len()));
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut fits = |record: &Record, is_first: bool| {
            bytes += record.body_bytes();
            is_first || bytes <= max_bytes
        };
        while batch.len() < max_events
            && !self.must_judge()
            && self.peek().is_some_and(|next| fits(next, batch.is_empty()))
        {
            let record = self.again.pop_front().or_else(|| self.waiting.pop()).expect("it was just seen");
            batch.push(self.hand_out(record));
        }
        match self.interest.filter.clone().filter(|_| max_events > 0 && batch.is_empty() && self.must_judge()) {
            Some(filter) => {
                let next = self.waiting.unjudged().take(max_events.min(JUDGED_MAX)).enumerate();
                let next = next.take_while(|(number, record)| fits(record, *number == 0));
                Next::Judge(filter, next.map(|(_, record)| record.clone()).collect())
            }
            None => Next::Read(batch),
        }
    }

    /// Takes the records that the filter wants, and removes those that it refuses. Between the read and this call, a record may have
    /// been dropped, coalesced, or moved back to the store: then it is left where it is, and judged again if it is read again.
    pub(crate) fn take(&mut self, judged: &[Judged]) -> Vec<Record> {
        let mut batch = Vec::new();
        for Judged { sequence, verdict } in judged {
            match self.waiting.unjudged().next() {
                Some(next) if self.again.is_empty() && next.sequence == *sequence => {}
                Some(next) if self.again.is_empty() && next.sequence > *sequence => continue,
                _ => break,
            }
            let record = self.waiting.pop().expect("it was just seen");
            if self.tally.count(verdict) {
                batch.push(self.hand_out(record));
            } else {
                self.touch();
            }
        }
        batch
    }

    /// Returns true if the next record must be judged before it is handed out.
    fn must_judge(&self) -> bool {
        self.interest.filter.is_some() && self.again.is_empty() && self.waiting.unjudged().next().is_some()
    }

    /// Notes that a record is in flight.
    fn hand_out(&mut self, record: Record) -> Record {
        if let Some(stored) = self.waiting.stored_mut() {
            stored.shown = stored.shown.max(record.sequence.0);
        }
        let at = self.in_flight.partition_point(|other| other.sequence < record.sequence);
        self.in_flight.insert(at, record.clone()); // at the end, unless the record is replayed
        record
    }
}
