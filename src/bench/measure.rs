//! Resources used by this process, and a clock shared by all processes of a machine.

use std::fs;

use rustix::time::ClockId;

pub use crate::process::cpu;
use crate::process::{bytes_in, clock};

/// Returns a monotonic time in nanoseconds, comparable between processes until the machine restarts.
pub(crate) fn monotonic() -> u64 {
    clock(ClockId::Monotonic)
}

/// Returns the resident memory of this process in bytes, as read from `/proc`; 0 if unknown.
pub fn resident() -> u64 {
    bytes_in("/proc/self/status", "VmRSS:")
}

/// Returns the peak resident memory of this process in bytes; 0 if unknown.
pub(crate) fn resident_peak() -> u64 {
    bytes_in("/proc/self/status", "VmHWM:")
}

/// Returns the number of bytes that this process has written to disks; 0 if unknown. A byte counts each time it is written, even if
/// it is still in the page cache.
pub fn written() -> u64 {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}

/// Returns the properties of this machine.
pub fn machine() -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let after_colon = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(after_colon);
    Machine {
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        model: model.unwrap_or_default(),
        memory_bytes: bytes_in("/proc/meminfo", "MemTotal:"),
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
    }
}

/// The machine that was measured.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Processors that the process may use.
    pub cpus: usize,
    /// Model of the processors; empty if unknown.
    pub model: String,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Operating system, such as `linux`.
    pub os: String,
    /// Architecture, such as `x86_64`.
    pub arch: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_uses_measurable_cpu_and_memory() {
        let (cpu_before, clock_before, resident_before) = (cpu(), monotonic(), resident());
        let mut block = vec![1_u8; 32 << 20];
        for round in 0..4_u8 {
            for byte in &mut block {
                *byte = byte.wrapping_mul(3).wrapping_add(round);
            }
        }
        std::hint::black_box(&block);
        assert!(cpu() > cpu_before);
        assert!(monotonic() > clock_before);
        if cfg!(target_os = "linux") {
            assert!(resident() >= resident_before + (16 << 20), "{resident_before} {}", resident());
            assert!(resident_peak() >= resident_before);
            assert!(machine().memory_bytes > 0);
        }
    }
}
