//! Filters of readers. A filter judges each record of the reader's interest separately, before that record is coalesced.
//!
//! Judging a record takes microseconds. So a reader judges its records when it reads them, outside of the journal's lock. Records
//! that are about to be coalesced are judged earlier. If they wait in memory, the append judges them; if they wait in the state
//! directory, the compaction judges them. A refused record needs no acknowledgement.

use std::{fmt, sync::Arc};

use super::{Record, Sequence};

/// Filter for the records of a reader's interest.
///
/// **Contract:** `judge` depends on the record alone, takes microseconds, and does not panic. A record may be judged again after a
/// restart, a crash, or a replay.
pub trait ReaderFilter: fmt::Debug + Send + Sync {
    /// Returns true if the reader gets the record. `record` is as it was appended, before any coalescing.
    ///
    /// # Errors
    /// The text explains why the filter failed. The reader does not get the record.
    fn judge(&self, record: &Record) -> Result<bool, String>;
}

/// A shared [`ReaderFilter`].
#[derive(Clone, Debug)]
pub struct RecordFilter(Arc<dyn ReaderFilter>);

impl RecordFilter {
    /// Shares a filter.
    pub fn new(filter: Arc<dyn ReaderFilter>) -> Self {
        Self(filter)
    }

    /// Judges records. Call it without holding a lock.
    pub(super) fn judge_all(&self, records: &[Record]) -> Judged {
        let mut judged = Judged::default();
        for record in records {
            let is_wanted = self.judge(record, &mut judged.failures);
            if is_wanted { &mut judged.wanted } else { &mut judged.refused }.push(record.sequence);
        }
        judged
    }

    pub(super) fn judge(&self, record: &Record, failures: &mut FilterFailures) -> bool {
        match self.0.judge(record) {
            Ok(is_wanted) => is_wanted,
            Err(error) => {
                failures.count += 1;
                let name = record.object().map(|object| object.key().to_string()).unwrap_or_default();
                failures.last = Some(format!("{name}: {error}"));
                false
            }
        }
    }
}

/// Errors of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterFailures {
    /// Number of errors.
    pub count: u64,
    /// Object and text of the last error.
    pub last: Option<String>,
}

impl FilterFailures {
    pub(super) fn add(&mut self, more: &Self) {
        self.count += more.count;
        if more.last.is_some() {
            self.last.clone_from(&more.last);
        }
    }
}

/// Judgements of some records. Both lists are in the order of positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Positions of the wanted records.
    pub wanted: Vec<Sequence>,
    /// Positions of the refused records.
    pub refused: Vec<Sequence>,
    /// Errors of the filter. The records for which the filter failed are among the refused ones.
    pub failures: FilterFailures,
}

impl Judged {
    /// Returns true if a record is refused.
    pub fn refuses(&self, place: Sequence) -> bool {
        self.refused.binary_search(&place).is_ok()
    }
}
