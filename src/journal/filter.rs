//! What a reader is not told although it is of its interest: each record is judged by itself, before it is merged.
//!
//! To judge a record costs microseconds, so it is done where a reader reads, outside of the journal's lock. Where records
//! are merged it is done before: by who appends, where a reader in memory has fallen behind, and by a compaction, where
//! the state is too large. What was judged unwanted counts as acknowledged.

use std::{fmt, sync::Arc};

use super::{Record, Sequence};

/// Decides of the records of a reader's interest which of them it wants.
///
/// **Contract:** what it says depends on the record alone; it takes microseconds, and does not panic. A record may be
/// judged again after a restart, or a crash.
pub trait Filter: fmt::Debug + Send + Sync {
    /// Judges one record, as it was appended.
    fn judge(&self, record: &Record) -> Judgement;
}

/// What a [`Filter`] says of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The reader gets it.
    Wanted,
    /// The reader does not get it.
    Refused,
    /// It cannot be said, and the reader does not get it: why.
    Failed(String),
}

/// A shared [`Filter`]; two are equal if they are the same one.
#[derive(Clone, Debug)]
pub struct RecordFilter(Arc<dyn Filter>);

impl RecordFilter {
    /// Shares a filter.
    pub fn new(filter: Arc<dyn Filter>) -> Self {
        Self(filter)
    }

    pub(super) fn judge(&self, record: &Record, failures: &mut Failures) -> bool {
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

/// How often nothing could be said of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How often.
    pub count: u64,
    /// Of which object the last time, and why.
    pub last: Option<String>,
}

impl Failures {
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
    /// Judges them. To be called without a lock.
    pub fn judge(&self) -> Judged {
        let mut judged = Judged::default();
        for record in &self.records {
            let is_wanted = self.filter.judge(record, &mut judged.failures);
            if is_wanted { &mut judged.wanted } else { &mut judged.refused }.push(record.sequence);
        }
        judged
    }
}

/// What was said of some records, each in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Those that are wanted.
    pub wanted: Vec<Sequence>,
    /// Those that are not.
    pub refused: Vec<Sequence>,
    /// Of the latter, those of which nothing could be said.
    pub failures: Failures,
}

impl Judged {
    /// Returns whether a place is refused.
    pub fn refuses(&self, place: Sequence) -> bool {
        self.refused.binary_search(&place).is_ok()
    }
}
