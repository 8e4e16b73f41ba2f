//! Bounds log lines that a client can cause: one a minute.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::mutex::lock;

/// Passes one event a minute.
#[derive(Debug, Default)]
pub(super) struct EveryMinute(Mutex<Option<Instant>>);

impl EveryMinute {
    /// Returns whether this event is the first within a minute.
    pub(super) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = lock(&self.0);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= Duration::from_mins(1));
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}
