//! What a person can see of configurations that were applied while the engine ran.

use std::sync::Mutex;

use jiff::Timestamp;

use crate::mutex::lock;

/// Counts configurations given to a running engine.
#[derive(Debug, Default)]
pub struct Reloads {
    counts: Mutex<ReloadCounts>,
}

/// What [`Reloads`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Applied.
    pub applied: u64,
    /// Refused, because something is wrong with them.
    pub refused: u64,
    /// When the last one was applied.
    pub last_applied: Option<Timestamp>,
}

impl Reloads {
    /// Counts one that was applied.
    pub fn applied(&self) {
        let mut counts = lock(&self.counts);
        counts.applied += 1;
        counts.last_applied = Some(Timestamp::now());
    }

    /// Counts one that was refused.
    pub fn refused(&self) {
        lock(&self.counts).refused += 1;
    }

    /// Copies the counts out.
    pub fn counts(&self) -> ReloadCounts {
        *lock(&self.counts)
    }
}
