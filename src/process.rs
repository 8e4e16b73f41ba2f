//! Resource usage of this process, as reported by the operating system.

use std::{fs, sync::LazyLock, time::Duration};

use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// Ticks per second in `/proc`. The kernel reports in `USER_HZ`, which is always 100.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resource usage of this process. A value that the system does not report is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU seconds of all threads, including ended ones.
    pub(crate) cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// Virtual memory, in bytes.
    pub(crate) virtual_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    /// Number of open file descriptors.
    pub(crate) open_fds: Option<u64>,
    /// Maximum number of open file descriptors: the soft limit. `None` also if there is no limit.
    pub(crate) max_fds: Option<u64>,
    /// Seconds from the Unix epoch to the start of the process.
    pub(crate) started: Option<f64>,
}

impl Usage {
    /// Returns the current usage. Reads files of `/proc`.
    pub(crate) fn now() -> Self {
        static STARTED: LazyLock<Option<f64>> = LazyLock::new(started);
        let status = read("/proc/self/status");
        // One of the entries is the open directory itself.
        let open_fds = fs::read_dir("/proc/self/fd").map(|fds| (fds.count() as u64).saturating_sub(1));
        Self {
            cpu_seconds: Duration::from_nanos(cpu()).as_secs_f64(),
            resident_bytes: bytes_of(&status, "VmRSS:"),
            virtual_bytes: bytes_of(&status, "VmSize:"),
            threads: value_of(&status, "Threads:").and_then(|threads| threads.parse().ok()),
            open_fds: open_fds.ok(),
            max_fds: getrlimit(Resource::Nofile).current,
            started: *STARTED,
        }
    }
}

/// Returns the CPU time of all threads of this process in nanoseconds, including ended threads and kernel time.
pub fn cpu() -> u64 {
    clock(ClockId::ProcessCPUTime)
}

/// Returns the time of a system clock, in nanoseconds.
pub(crate) fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds * 1_000_000_000 + nanos
}

/// Returns the number in the line that begins with `name`, converted from kilobytes to bytes; 0 if there is no such line.
pub(crate) fn bytes_in(file: &str, name: &str) -> u64 {
    bytes_of(&read(file), name).unwrap_or_default()
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let kilobytes: u64 = value_of(text, name)?.trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}

fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns the start time of the process, in seconds since the Unix epoch: boot time of the machine, plus the time from boot to
/// start.
fn started() -> Option<f64> {
    let stat = read("/proc/self/stat");
    // The second field is the program's name in parentheses, and may contain any character.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let machine: f64 = value_of(&read("/proc/stat"), "btime")?.parse().ok()?;
    Some(machine + ticks / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn process_usage_is_complete_and_plausible() {
        let before = Usage::now();
        let file = fs::File::open("/proc/self/stat").expect("the file exists");
        let usage = Usage::now();
        drop(file);
        assert!(usage.cpu_seconds > 0.0 && usage.cpu_seconds >= before.cpu_seconds, "{usage:?}");
        let resident = usage.resident_bytes.expect("Linux tells");
        assert!(resident > 1 << 20 && usage.virtual_bytes.expect("Linux tells") >= resident, "{usage:?}");
        assert!(usage.threads >= Some(1) && usage.open_fds >= Some(4), "{usage:?}");
        assert!(usage.max_fds.is_none_or(|max| Some(max) > usage.open_fds), "{usage:?}");
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        let age = now - usage.started.expect("Linux tells");
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
    }

    #[test]
    fn proc_lines_are_read_by_name() {
        let status = "Name:\tdeltabus\nVmSize:\t  120 kB\nVmRSS:\t   64 kB\nThreads:\t12\n";
        assert_eq!((bytes_of(status, "VmRSS:"), bytes_of(status, "VmSize:")), (Some(64 << 10), Some(120 << 10)));
        assert_eq!((value_of(status, "Threads:"), bytes_of(status, "VmHWM:")), (Some("12"), None));
    }
}
