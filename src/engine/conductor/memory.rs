//! Return of memory to the system after a busy time.
//!
//! - Free heap. The freed memory of a list or a burst is scattered between long-lived memory, so glibc does not return its pages.
//!   After the first list of 20,000 pods of 9 KB, one seventh of the heap was such freed memory (measured).
//! - Pages of the program's code. Linux maps 64 KiB around each accessed page, so a start maps most of the program. An idle engine
//!   uses little of that code. The pages stay in the page cache, and are mapped again at the next access.

#[cfg(any(target_os = "linux", test))]
use std::ops::Range;
use std::time::Duration;

/// Number of changes after which memory is returned as soon as the engine is quiet.
const MUCH: u64 = 1_000;
/// Interval at which a quiet engine returns memory even after few changes. Ended reads and connections also leave free memory.
const OFTEN: Duration = Duration::from_secs(30);
/// Fewest changes between two checks at which the engine counts as busy, not quiet. Checks are half a second apart.
const FEW: u64 = 16;

/// Detector of the end of a busy time.
#[derive(Debug, Default)]
pub(in crate::engine) struct Rest {
    looked_at: Duration,
    seen: u64,
    given_back: Duration,
    given_back_at: u64,
}

impl Rest {
    /// Checks the number of changes, at most once per `every`. Returns true if memory should be returned now.
    pub(in crate::engine) fn is_due(&mut self, now: Duration, every: Duration, changes: u64) -> bool {
        if now < self.looked_at + every {
            return false;
        }
        let is_quiet = changes.saturating_sub(self.seen) < FEW;
        (self.looked_at, self.seen) = (now, changes);
        let is_much = changes.saturating_sub(self.given_back_at) >= MUCH;
        let is_due = is_quiet && (is_much || now >= self.given_back + OFTEN);
        if is_due {
            (self.given_back, self.given_back_at) = (now, changes);
        }
        is_due
    }
}

/// Returns free memory to the system. The call takes milliseconds, during which other threads may wait for memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "calls of glibc and of the system")]
pub(in crate::engine) fn give_back() {
    let code = code_of_programs(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default());
    // safety: malloc_trim(3) may be called at any time from any thread, and changes nothing that is in use. The ranges are
    // mapped from files and cannot be written to, so each page is read from its file again (madvise(2)).
    unsafe {
        libc::malloc_trim(0);
        for Range { start, end } in code {
            libc::madvise(std::ptr::with_exposed_provenance_mut(start), end - start, libc::MADV_DONTNEED);
        }
    }
}

/// Returns the ranges of code in the mappings of a process, in the format of `proc_pid_maps(5)`.
#[cfg(any(target_os = "linux", test))]
fn code_of_programs(maps: &str) -> Vec<Range<usize>> {
    let range = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_code = words.next() == Some("r-xp") && words.nth(3)?.starts_with('/');
        is_code.then_some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(range).collect()
}

/// Does nothing: other allocators return memory themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(in crate::engine) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_only_in_file_mappings() {
        let maps = "1000-3000 r--p 00000000 fe:00 53   /a path/deltabus\n3000-9000 r-xp 00002000 fe:00 53   /a path/deltabus\n\
            9000-a000 rw-p 00009000 fe:00 53   /a path/deltabus\nb000-f000 rw-p 00000000 00:00 0    [heap]\n\
            7f40-7f50 r-xp 00000000 00:00 0    [vdso]\n7f60-7f70 r-xp 00000000 00:00 0 \n\
            7f80-7f90 r-xp 00000000 fe:00 79   /lib/libm.so.6\n";
        assert_eq!(code_of_programs(maps), [0x3000..0x9000, 0x7f80..0x7f90]);
        assert!(code_of_programs("").is_empty());
        give_back();
        give_back();
    }

    const EVERY: Duration = Duration::from_millis(500);

    #[test]
    fn memory_is_released_once_after_each_busy_time() {
        let mut rest = Rest::default();
        let mut look = |half_seconds: u32, changes| rest.is_due(EVERY * half_seconds, EVERY, changes);
        assert!(!look(1, 5_000), "it is busy");
        assert!(!look(2, 9_000));
        assert!(look(3, 9_003), "it has ended");
        assert!(!look(4, 9_006), "nothing to speak of came since");
        assert!(!look(5, 9_900));
        assert!(!look(6, 9_901), "too little");
        assert!(!look(7, 10_500));
        assert!(!rest.is_due(EVERY * 7 + EVERY / 2, EVERY, 10_500), "too early to say");
        assert!(rest.is_due(EVERY * 8, EVERY, 10_500));
        let mut look = |seconds, changes| rest.is_due(EVERY * 8 + Duration::from_secs(seconds), EVERY, changes);
        assert!(!look(29, 10_500));
        assert!(!look(30, 10_600), "it is busy");
        assert!(look(31, 10_600), "half a minute has passed");
        assert!(!look(32, 10_600));
    }
}
