//! What is measured.

use std::time::Duration;

/// What one phase cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phase {
    /// Time on a processor, all threads.
    pub(crate) cpu: Duration,
    /// From the first sign of the phase to its end.
    pub(crate) wall: Duration,
    /// Resident bytes above those at the start of the process.
    pub(crate) resident: usize,
    /// Bytes of the objects among these.
    pub(crate) bodies: usize,
}

/// What one observer cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) sync: Phase,
    pub(crate) events: Phase,
}
