//! Handler that counts events and drops them, for dry runs and measurements.

use super::{Handler, HandlerError};
use crate::notification::Notification;

/// Handler that accepts every event. It never blocks, so it needs no thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blackhole {
    /// Number of events.
    pub events: u64,
}

impl Handler for Blackhole {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        self.events += notification.events().len() as u64;
        Ok(())
    }
}
