//! Resources that this process uses, as the operating system reports them.

use std::{fs, sync::LazyLock, time::Duration};

use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// Ticks a second in `/proc`: the kernel reports in `USER_HZ`, which is 100 whatever its own clock does.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resources that this process uses; `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Seconds on a processor, of all threads, ended ones included.
    pub(crate) cpu_seconds: f64,
    /// Resident memory.
    pub(crate) resident_bytes: Option<u64>,
    /// Virtual memory.
    pub(crate) virtual_bytes: Option<u64>,
    /// Threads.
    pub(crate) threads: Option<u64>,
    /// Open file descriptors.
    pub(crate) open_fds: Option<u64>,
    /// File descriptors that may be open: the soft limit. `None` without a limit, too.
    pub(crate) max_fds: Option<u64>,
    /// Seconds from the Unix epoch to the start of the process.
    pub(crate) started: Option<f64>,
}

impl Usage {
    /// Looks now. Reads files of `/proc`.
    pub(crate) fn now() -> Self {
        static STARTED: LazyLock<Option<f64>> = LazyLock::new(started);
        let status = read("/proc/self/status");
        // One of them is the directory that is being read.
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

/// Returns the time that all threads of this process, ended ones included, have spent on a processor, kernel included;
/// nanoseconds.
pub fn cpu() -> u64 {
    clock(ClockId::ProcessCPUTime)
}

/// Returns what a clock of the system shows, in nanoseconds.
pub(crate) fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds * 1_000_000_000 + nanos
}

/// Reads a line of kilobytes; 0 where there is none.
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

/// Returns when the process was started: so many ticks after the machine.
fn started() -> Option<f64> {
    let stat = read("/proc/self/stat");
    // The second field is the program's name in parentheses, which may have any character in it.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let machine: f64 = value_of(&read("/proc/stat"), "btime")?.parse().ok()?;
    Some(machine + ticks / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn usage_of_this_process_is_complete_and_plausible() {
        let before = Usage::now();
        let file = fs::File::open("/proc/self/stat").expect("it is there");
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
    fn lines_of_proc_are_read_by_their_name() {
        let status = "Name:\tdeltabus\nVmSize:\t  120 kB\nVmRSS:\t   64 kB\nThreads:\t12\n";
        assert_eq!((bytes_of(status, "VmRSS:"), bytes_of(status, "VmSize:")), (Some(64 << 10), Some(120 << 10)));
        assert_eq!((value_of(status, "Threads:"), bytes_of(status, "VmHWM:")), (Some("12"), None));
    }
}
