//! Limit of log lines that clients can cause: one per minute.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::mutex::lock;

/// Filter that passes one log line per minute.
#[derive(Debug, Default)]
pub(super) struct EveryMinute(Mutex<Option<Instant>>);

impl EveryMinute {
    /// Returns true if no line has passed within the last minute.
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
