//! Free memory is given back to the system once a busy time has ended: what a list or a burst needs for a moment lies between
//! what stays, and glibc keeps the pages. Measured, a seventh of the heap after the first list of 20,000 pods of 9 KB.

use std::time::Duration;

/// So many changes make it worth while at once.
const MUCH: u64 = 1_000;
/// Without them it is done so often: readers of lists and connections that have gone leave free memory as well.
const OFTEN: Duration = Duration::from_secs(30);
/// Fewer than so many since the last look: it is quiet. Looks are half a second apart.
const FEW: u64 = 16;

/// When that is.
#[derive(Debug, Default)]
pub(super) struct Rest {
    looked_at: Duration,
    seen: u64,
    given_back: Duration,
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
        let is_much = changes.saturating_sub(self.given_back_at) >= MUCH;
        let is_due = is_quiet && (is_much || now >= self.given_back + OFTEN);
        if is_due {
            (self.given_back, self.given_back_at) = (now, changes);
        }
        is_due
    }
}

/// Gives it back: takes milliseconds, in which other threads may wait for memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "glibc's call for it")]
pub(super) fn give_back() {
    // safety: it may be called at any time from any thread, and changes nothing that is in use (malloc_trim(3)).
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn give_back() {}

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
        let mut look = |seconds, changes| rest.is_due(EVERY * 8 + Duration::from_secs(seconds), EVERY, changes);
        assert!(!look(29, 10_500));
        assert!(!look(30, 10_600), "it is busy");
        assert!(look(31, 10_600), "half a minute has passed");
        assert!(!look(32, 10_600));
    }
}
