//! What is not needed any more is given back to the system once a busy time has ended.
//!
//! - Free memory: what a list or a burst needs for a moment lies between what stays, and glibc keeps the pages. Measured, a
//!   seventh of the heap after the first list of 20,000 pods of 9 KB.
//! - Text and constants of the program and its libraries. Linux maps 64 KiB around each page that is touched, so that a
//!   start brings in 20 of 31 MB; events use some 3 of them, 10 with what lies around, and an engine at rest 6. The pages
//!   stay in the system's cache of files, from where those that are needed come back at the first touch.

#[cfg(any(target_os = "linux", test))]
use std::ops::Range;
use std::time::Duration;

/// So many changes make it worth while.
const MUCH: u64 = 1_000;
/// Fewer than so many since the last look: it is quiet. Looks are half a second apart.
const FEW: u64 = 16;

/// When that is.
#[derive(Debug, Default)]
pub(super) struct Rest {
    looked_at: Duration,
    seen: u64,
    given_back_at: u64,
}

impl Rest {
    /// Looks, `every` so often at most, at how many changes there were; returns whether memory is to be given back now.
    pub(super) fn is_due(&mut self, now: Duration, every: Duration, changes: u64) -> bool {
        if now < self.looked_at + every {
            return false;
        }
        let is_quiet = changes.saturating_sub(self.seen) < FEW;
        (self.looked_at, self.seen) = (now, changes);
        let is_due = is_quiet && changes.saturating_sub(self.given_back_at) >= MUCH;
        if is_due {
            self.given_back_at = changes;
        }
        is_due
    }
}

/// Gives it back: takes milliseconds, in which other threads may wait for memory.
pub(super) fn give_back() {
    give_back_heap();
    give_back_program();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "glibc's call for it")]
fn give_back_heap() {
    // safety: it may be called at any time from any thread, and changes nothing that is in use (malloc_trim(3)).
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back_heap() {}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the system's call for it")]
fn give_back_program() {
    use rustix::mm::{Advice, madvise};

    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for Range { start, end } in parts_of_programs(&smaps) {
        let at = std::ptr::with_exposed_provenance_mut(start);
        // safety: the range is of a file, not writable, and nothing in it differs from the file: what is touched next is
        // read from there again (madvise(2)). Where the system refuses, all stays as it is.
        let _refused = unsafe { madvise(at, end - start, Advice::LinuxDontNeed) };
    }
}

#[cfg(not(target_os = "linux"))]
fn give_back_program() {}

/// Returns where `smaps`, as `proc_pid_smaps(5)` has it, shows a program's or library's text and constants, but for those
/// parts that are not as in their file: what the loader has relocated, or a debugger has changed.
#[cfg(any(target_os = "linux", test))]
fn parts_of_programs(smaps: &str) -> Vec<Range<usize>> {
    let mut mappings: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            mappings.push(mapping);
        } else if let (Some(mapping), Some(anonymous)) = (mappings.last_mut(), line.strip_prefix("Anonymous:")) {
            mapping.is_as_in_file = anonymous.trim() == "0 kB";
        }
    }
    let is_program = |file| mappings.iter().any(|mapping| mapping.file == file && mapping.rights == "r-xp");
    let parts = mappings.iter().filter(|part| ["r-xp", "r--p"].contains(&part.rights) && part.is_as_in_file);
    parts.filter(|part| part.file.starts_with('/') && is_program(part.file)).map(|part| part.place.clone()).collect()
}

/// One line of maps, of those of smaps that name a mapping.
#[cfg(any(target_os = "linux", test))]
struct Mapping<'a> {
    place: Range<usize>,
    rights: &'a str,
    file: &'a str,
    is_as_in_file: bool,
}

#[cfg(any(target_os = "linux", test))]
impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let place = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (rights, file) = (words.next()?, words.nth(3)?.trim_start());
        Some(Self { place, rights, file, is_as_in_file: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    #[test]
    fn memory_is_given_back_once_after_each_busy_time_and_not_within_one() {
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
    }

    #[test]
    fn text_and_constants_of_programs_are_let_go_but_nothing_that_was_changed_since_it_was_read() {
        let mapping =
            |line: &str, anonymous| format!("{line}\nRss: 8 kB\nAnonymous: {anonymous:>8} kB\nVmFlags: rd mr\n");
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 53   /a path/deltabus", 0),
            mapping("3000-9000 r-xp 00002000 fe:00 53   /a path/deltabus", 0),
            mapping("9000-a000 r--p 00008000 fe:00 53   /a path/deltabus", 4), // relocated
            mapping("a000-b000 rw-p 00009000 fe:00 53   /a path/deltabus", 0),
            mapping("b000-f000 rw-p 00000000 00:00 0    [heap]", 16),
            mapping("7f00-7f10 r--p 00000000 fe:00 77   /data/table", 0), // no program
            mapping("7f20-7f30 r-xp 00000000 fe:00 78   /lib/libc.so.6", 4), // a breakpoint
            mapping("7f40-7f50 r-xp 00000000 00:00 0    [vdso]", 0),
            mapping("7f60-7f70 r-xp 00000000 00:00 0 ", 0), // made at run time
            mapping("7f80-7f90 r-xp 00000000 fe:00 79   /lib/libm.so.6", 0),
        ];
        assert_eq!(parts_of_programs(&smaps.concat()), [0x1000..0x3000, 0x3000..0x9000, 0x7f80..0x7f90]);
        assert!(parts_of_programs("").is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_goes_on_once_its_text_was_let_go() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux tells");
        let parts = parts_of_programs(&smaps);
        let here = a_program_goes_on_once_its_text_was_let_go as fn() as usize;
        assert!(parts.iter().any(|part| part.contains(&here)), "{here:x} is in none of {parts:x?}");
        give_back();
        give_back();
    }
}
