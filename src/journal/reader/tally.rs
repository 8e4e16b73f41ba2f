//! Counters of one reader, and the names of lost events.

use crate::journal::{
    Losses, ReaderStats, Record,
    filter::{FilterFailures, Verdict},
};

/// Maximum number of named losses between two calls of [`Journal::take_losses`](crate::journal::Journal::take_losses); further
/// losses are only counted.
pub(crate) const NAMED_LOSSES_MAX: usize = 1024;

/// Counters of one reader.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Counted figures. Fields such as `queued` stay 0 here; [`JournalReader::stats`](super::JournalReader::stats) fills them in.
    pub(crate) stats: ReaderStats,
    pub(crate) failures: FilterFailures,
    pub(crate) losses: Losses,
}

impl Tally {
    /// Counts a refused record. Returns true for a wanted one.
    pub(crate) fn count(&mut self, verdict: &Verdict) -> bool {
        if let Verdict::Failed(error) = verdict {
            self.failures.count += 1;
            self.failures.last = Some(error.clone());
        }
        self.stats.filtered += u64::from(*verdict != Verdict::Wanted);
        *verdict == Verdict::Wanted
    }

    pub(crate) fn lose(&mut self, record: &Record) {
        self.stats.dropped += 1;
        if self.losses.named.len() < NAMED_LOSSES_MAX {
            self.losses.named.push(record.event_name());
        } else {
            self.losses.unnamed += 1;
        }
    }

    /// Counts the loss of a record whose name is not known.
    pub(crate) fn miss(&mut self) {
        self.stats.dropped += 1;
        self.losses.unnamed += 1;
    }
}
