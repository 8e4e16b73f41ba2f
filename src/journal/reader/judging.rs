//! Judging of records by a reader's filter. Refused records need no acknowledgement.

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::{
    Record,
    filter::{Judged, RecordFilter},
};

impl JournalReader {
    /// Judges a record at once. Returns true if the record passes the filter. Counts a refused record.
    pub(super) fn passes(&mut self, record: &Record) -> bool {
        let passes = self.filter.as_ref().is_none_or(|filter| filter.judge(record, &mut self.tally.failures));
        self.tally.stats.filtered += u64::from(!passes);
        passes
    }

    pub(crate) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns the records of a read that must be [judged](Self::judged) before they are handed out; `None` if there are none.
    pub(crate) fn to_judge(&self, read: &[Record]) -> Option<(RecordFilter, Vec<Record>)> {
        let filter = self.filter.clone()?;
        let is_new = |record: &&Record| self.find(record.sequence).is_some_and(|at| !self.in_flight[at].judged);
        let records: Vec<_> = read.iter().filter(is_new).cloned().collect();
        (!records.is_empty()).then_some((filter, records))
    }

    /// Applies judgements. Refused records no longer wait, and are no longer in flight.
    pub(crate) fn judged(&mut self, judged: &Judged) {
        self.tally.failures.add(&judged.failures);
        // A wanted record that is not in flight is judged again when it is read.
        for position in &judged.wanted {
            if let Some(at) = self.find(*position) {
                self.in_flight[at].judged = true;
            }
        }
        let mut refused = self.take_in_flight(&judged.refused).len();
        if refused < judged.refused.len() {
            let is_kept = |waiting: &WaitingRecord| !judged.refuses(waiting.sequence());
            let before = self.again.len() + self.queue.waiting.len();
            self.again.retain(is_kept);
            self.queue.retain(is_kept);
            refused += before - self.again.len() - self.queue.waiting.len();
            if let Some(stored) = &mut self.stored {
                refused += judged.refused.iter().filter(|position| stored.spilled.remove(position.0)).count();
            }
        }
        self.tally.stats.filtered += refused as u64;
        // A reader and a compaction may both judge a record and count its error. The record counts as refused only once.
        self.tally.failures.count = self.tally.failures.count.min(self.tally.stats.filtered);
    }
}
