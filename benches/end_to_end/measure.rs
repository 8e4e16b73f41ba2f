//! CPU and memory of this process, as Linux counts them.

use std::{fs, time::Duration};

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

/// Returns the time the threads of this process have spent on a processor.
pub(crate) fn cpu() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}
