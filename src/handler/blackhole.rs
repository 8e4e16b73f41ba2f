//! A handler that counts and drops: for dry runs and measurements.

use super::{Handler, HandlerError};
use crate::notification::Notification;

/// Takes everything. It never blocks, so it needs no thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blackhole {
    /// Events taken.
    pub events: u64,
}

impl Handler for Blackhole {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        self.events += notification.events().len() as u64;
        Ok(())
    }
}
