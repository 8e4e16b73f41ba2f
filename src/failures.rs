//! Log lines about what fails again and again: one for the first failure, then one a minute, and one when it works again.

use std::{mem::take, time::Duration};

/// Shortest time between two lines about failures.
const PERIOD: Duration = Duration::from_mins(1);

/// Failures of one handler, or of one watch, since it last worked, and which of them are logged.
///
/// **Invariant:** two logged failures are at least a minute apart, also where it worked in between.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    /// Since it last worked.
    count: u64,
    /// Since the last line.
    suppressed: u64,
    logged_at: Option<Duration>,
    /// Set when one was logged since it last worked.
    is_known: bool,
}

impl Failures {
    /// Counts a failure at `now`, a time on any monotonic clock. Where it is to be logged, returns how many before it were
    /// not.
    pub(crate) fn failed(&mut self, now: Duration) -> Option<u64> {
        self.count += 1;
        if self.logged_at.is_some_and(|at| now.saturating_sub(at) < PERIOD) {
            self.suppressed += 1;
            return None;
        }
        (self.logged_at, self.is_known) = (Some(now), true);
        Some(take(&mut self.suppressed))
    }

    /// Notes that it works. Where one of its failures was logged, returns how many there were.
    pub(crate) fn worked(&mut self) -> Option<u64> {
        let count = take(&mut self.count);
        take(&mut self.is_known).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a story and returns the lines: `s` fails at that second, `w` works.
    fn lines(story: &[&str]) -> Vec<String> {
        let mut failures = Failures::default();
        let line = |event: &&str| match event.strip_suffix('s') {
            Some(seconds) => {
                let suppressed = failures.failed(Duration::from_secs(seconds.parse().unwrap()))?;
                Some(format!("failed at {seconds}, suppressed {suppressed}"))
            }
            None => failures.worked().map(|count| format!("works after {count}")),
        };
        story.iter().filter_map(line).collect()
    }

    #[test]
    fn first_failure_is_logged_then_one_a_minute() {
        assert_eq!(lines(&["5s"]), ["failed at 5, suppressed 0"]);
        assert_eq!(
            lines(&["5s", "6s", "64s", "65s", "66s", "124s", "125s"]),
            ["failed at 5, suppressed 0", "failed at 65, suppressed 2", "failed at 125, suppressed 2"]
        );
    }

    #[test]
    fn recovery_is_logged_once_with_all_failures() {
        assert_eq!(lines(&["5s", "6s", "7s", "w", "w"]), ["failed at 5, suppressed 0", "works after 3"]);
        assert_eq!(lines(&["w"]), [] as [&str; 0]);
    }

    #[test]
    fn a_flapping_handler_is_logged_once_a_minute() {
        assert_eq!(
            lines(&["0s", "w", "1s", "w", "2s", "3s", "w", "60s", "w"]),
            ["failed at 0, suppressed 0", "works after 1", "failed at 60, suppressed 3", "works after 1"]
        );
    }
}
