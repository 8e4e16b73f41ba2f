//! Counters of configuration reloads.

use std::sync::Mutex;

use jiff::Timestamp;

use crate::mutex::lock;

/// Counts the configurations given to a running engine.
#[derive(Debug, Default)]
pub struct Reloads {
    counts: Mutex<ReloadCounts>,
}

/// Counters of [`Reloads`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Number of applied configurations.
    pub applied: u64,
    /// Number of configurations refused because of errors.
    pub refused: u64,
    /// Time of the last applied configuration.
    pub last_applied: Option<Timestamp>,
}

impl Reloads {
    /// Counts an applied configuration.
    pub fn applied(&self) {
        let mut counts = lock(&self.counts);
        counts.applied += 1;
        counts.last_applied = Some(Timestamp::now());
    }

    /// Counts a refused configuration.
    pub fn refused(&self) {
        lock(&self.counts).refused += 1;
    }

    /// Returns a copy of the counters.
    pub fn counts(&self) -> ReloadCounts {
        *lock(&self.counts)
    }
}
