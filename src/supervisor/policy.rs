//! Policy of restarts: the time of the next attempt, and the degraded state.

use std::{collections::VecDeque, time::Duration};

use super::Supervision;
use crate::backoff::Backoff;

/// Period within which failures count towards the degraded state.
pub(super) const DEGRADED_WINDOW: Duration = Duration::from_mins(5);
/// Maximum number of stored failures, however short the backoff is.
const FAILURES_MAX: usize = 1_000;

/// Policy for the restarts of one unit or handler.
///
/// **Invariant:** there is always a next attempt.
#[derive(Clone, Debug)]
pub(crate) struct RestartPolicy {
    backoff: Backoff,
    degraded_after: u32,
    /// Latest failures, oldest first; at most [`FAILURES_MAX`].
    failures: VecDeque<Duration>,
    degraded: bool,
}

/// Next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Number of the attempt since the backoff was reset, counted from 1.
    pub(crate) attempt: u32,
    pub(crate) delay: Duration,
}

impl RestartPolicy {
    /// Creates a policy without failures.
    pub(crate) fn new(config: &Supervision) -> Self {
        Self {
            backoff: Backoff::new(config.backoff),
            degraded_after: config.degraded_after,
            failures: VecDeque::new(),
            degraded: false,
        }
    }

    /// Starts a healthy period at `now`, unless one is in progress.
    pub(crate) fn healthy(&mut self, now: Duration) {
        self.backoff.healthy(now);
    }

    /// Forgets all failures if the healthy period is long enough at `now`.
    pub(crate) fn settle(&mut self, now: Duration) {
        if self.backoff.settle(now) {
            self.degraded = false;
            self.failures.clear();
        }
    }

    /// Returns the time from which [`RestartPolicy::settle`] forgets the failures. `None` without failures or a healthy period.
    pub(crate) fn settles_at(&self) -> Option<Duration> {
        self.backoff.resets_at().filter(|_| self.backoff.attempt() > 0 || self.degraded)
    }

    /// Records a failure at `now`, and returns the next attempt. `jitter` is uniform in `[0, 1)`.
    pub(crate) fn failed(&mut self, now: Duration, jitter: f64) -> Restart {
        self.settle(now);
        let delay = self.backoff.fail(now, jitter);
        while self.failures.front().is_some_and(|at| at.saturating_add(DEGRADED_WINDOW) < now) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        if self.degraded_after > 0 && self.failures() >= self.degraded_after {
            self.degraded = true;
        }
        if self.failures.len() > FAILURES_MAX {
            self.failures.pop_front();
        }
        Restart { attempt: self.backoff.attempt(), delay }
    }

    /// Returns true after too many failures within the window. Only a long healthy period ends this state.
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Returns the number of failures within the window, at most 1,000.
    pub(crate) fn failures(&self) -> u32 {
        u32::try_from(self.failures.len()).unwrap_or(u32::MAX)
    }
}
