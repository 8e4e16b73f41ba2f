//! Filters of readers: each record of a reader's interest is judged by itself, before it is coalesced.
//!
//! To judge a record costs microseconds, so a reader does it when it reads, outside of the journal's lock. Records are judged
//! earlier where they are coalesced: by the append, for a reader in memory that has fallen behind, and by a compaction of the
//! state. A refused record counts as acknowledged.

use std::{fmt, sync::Arc};

use super::{Record, Sequence};

/// Judge of the records of a reader's interest.
///
/// **Contract:** the judgement depends on the record alone. It takes microseconds, and does not panic. A record may be judged
/// again after a restart or a crash.
pub trait ReaderFilter: fmt::Debug + Send + Sync {
    /// Judges one record, as it was appended.
    fn judge(&self, record: &Record) -> Judgement;
}

/// Judgement of a record by a [`ReaderFilter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The reader gets it.
    Wanted,
    /// The reader does not get it.
    Refused,
    /// The filter failed with this error, and the reader does not get it.
    Failed(String),
}

/// A shared [`ReaderFilter`]; two are equal if they are the same one.
#[derive(Clone, Debug)]
pub struct RecordFilter(Arc<dyn ReaderFilter>);

impl RecordFilter {
    /// Shares a filter.
    pub fn new(filter: Arc<dyn ReaderFilter>) -> Self {
        Self(filter)
    }

    pub(super) fn judge(&self, record: &Record, failures: &mut FilterFailures) -> bool {
        match self.0.judge(record) {
            Judgement::Wanted => true,
            Judgement::Refused => false,
            Judgement::Failed(error) => {
                failures.count += 1;
                let name = record.object().map(|object| object.key().to_string()).unwrap_or_default();
                failures.last = Some(format!("{name}: {error}"));
                false
            }
        }
    }
}

impl PartialEq for RecordFilter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RecordFilter {}

/// Errors of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterFailures {
    /// Their count.
    pub count: u64,
    /// The object of the last one, and the error.
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

/// Records to be judged.
#[derive(Clone, Debug)]
pub struct Unjudged {
    pub(super) filter: RecordFilter,
    pub(super) records: Vec<Record>,
}

impl Unjudged {
    /// Judges them. Call it without a lock.
    pub fn judge(&self) -> Judged {
        let mut judged = Judged::default();
        for record in &self.records {
            let is_wanted = self.filter.judge(record, &mut judged.failures);
            if is_wanted { &mut judged.wanted } else { &mut judged.refused }.push(record.sequence);
        }
        judged
    }
}

/// Judgements of some records, each list in the order of positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The wanted ones.
    pub wanted: Vec<Sequence>,
    /// The refused ones.
    pub refused: Vec<Sequence>,
    /// Of these, those on which the filter failed.
    pub failures: FilterFailures,
}

impl Judged {
    /// Returns whether a record is refused.
    pub fn refuses(&self, place: Sequence) -> bool {
        self.refused.binary_search(&place).is_ok()
    }
}
