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

    /// Judges records, in order. Call it without holding a lock.
    pub(super) fn judge_all(&self, records: &[Record]) -> Vec<Judged> {
        let judge = |record: &Record| Judged { sequence: record.sequence, verdict: self.judge(record) };
        records.iter().map(judge).collect()
    }

    pub(super) fn judge(&self, record: &Record) -> Verdict {
        match self.0.judge(record) {
            Ok(true) => Verdict::Wanted,
            Ok(false) => Verdict::Refused,
            Err(error) => {
                let name = record.object().map(|object| object.key().to_string()).unwrap_or_default();
                Verdict::Failed(format!("{name}: {error}"))
            }
        }
    }
}

/// Judgement of a filter about one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The reader gets the record.
    Wanted,
    /// The reader does not get the record.
    Refused,
    /// The filter failed, so the reader does not get the record. Contains the name of the object, and the error.
    Failed(String),
}

/// A record that was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Position of the record.
    pub sequence: Sequence,
    /// Judgement about the record.
    pub verdict: Verdict,
}

/// Errors of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterFailures {
    /// Number of errors.
    pub count: u64,
    /// Object and text of the last error.
    pub last: Option<String>,
}
