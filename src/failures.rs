//! Log lines for repeated failures: the first failure, then at most one a minute, and the recovery.

use std::{mem::take, time::Duration};

/// Minimum time between two lines about failures.
const PERIOD: Duration = Duration::from_mins(1);

/// Counter of failures of one operation since its last success. It limits the log lines about these failures.
///
/// **Invariant:** two logged failures are at least a minute apart, even with a success between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    /// Failures since the last success.
    count: u64,
    /// Number of unlogged failures since the last logged failure.
    suppressed: u64,
    logged_at: Option<Duration>,
    /// Set if a failure was logged since the last success.
    is_known: bool,
}

impl Failures {
    /// Counts a failure at `now`, a time of any monotonic clock. If the caller must log the failure, returns the number of unlogged
    /// failures since the last logged failure.
    pub(crate) fn failed(&mut self, now: Duration) -> Option<u64> {
        self.count += 1;
        if self.logged_at.is_some_and(|at| now.saturating_sub(at) < PERIOD) {
            self.suppressed += 1;
            return None;
        }
        (self.logged_at, self.is_known) = (Some(now), true);
        Some(take(&mut self.suppressed))
    }

    /// Records a success. If a failure was logged since the previous success, returns the number of failures since then.
    pub(crate) fn worked(&mut self) -> Option<u64> {
        let count = take(&mut self.count);
        take(&mut self.is_known).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a sequence and returns the lines: `5s` is a failure at 5 s, `w` a success.
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
    fn flapping_handler_is_logged_once_a_minute() {
        assert_eq!(
            lines(&["0s", "w", "1s", "w", "2s", "3s", "w", "60s", "w"]),
            ["failed at 0, suppressed 0", "works after 1", "failed at 60, suppressed 3", "works after 1"]
        );
    }
}
