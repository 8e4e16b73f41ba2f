//! CPU and memory of this process, as Linux counts them.

use std::{fs, time::Duration};

/// Returns the time the threads of this process have spent on a processor.
pub(crate) fn cpu() -> Duration {
    let nanos = of_threads("schedstat", |text| text.split(' ').next()?.parse().ok());
    Duration::from_nanos(nanos)
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

/// Sums a figure over the threads of this process.
pub(crate) fn of_threads(file: &str, figure: impl Fn(&str) -> Option<u64>) -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| figure(&fs::read_to_string(thread.path().join(file)).ok()?)).sum()
}
