//! Earliest start of an attempt, limited by `rate_limit` and by delays that the sink asks for.

use std::{collections::VecDeque, time::Duration};

/// Maximum number of attempts in a period; `[handlers.*] rate_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of attempts, at least one. Each retry counts.
    pub deliveries: u32,
    /// Length of the period. The limit holds for every period of this length.
    pub period: Duration,
}

/// State of a rate limit. No period of the rate's length contains more attempts than the rate allows. All times are of one
/// monotonic clock.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    rate: Option<Rate>,
    /// Start times of the most recent attempts, at most as many as the rate allows in one period.
    begun: VecDeque<Duration>,
    not_before: Duration,
}

impl Pace {
    /// Makes a pace. Without a rate, only [`Pace::hold`] delays attempts.
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate, begun: VecDeque::new(), not_before: Duration::ZERO }
    }

    /// Returns the earliest start of the next attempt, which may be in the past.
    pub(crate) fn next(&self) -> Duration {
        let is_full = |rate: &Rate| self.begun.len() >= rate.deliveries.max(1) as usize;
        let by_rate = self.rate.filter(is_full).and_then(|rate| self.begun.front().map(|first| *first + rate.period));
        by_rate.unwrap_or_default().max(self.not_before)
    }

    /// Counts an attempt that starts at `now`. `now` must not be before the time that [`Pace::next`] returns.
    pub(crate) fn begin(&mut self, now: Duration) {
        let Some(rate) = self.rate else { return };
        if self.begun.len() >= rate.deliveries.max(1) as usize {
            self.begun.pop_front();
        }
        self.begun.push_back(now);
    }

    /// Allows no attempt before `until`, on request of the sink.
    pub(crate) fn hold(&mut self, until: Duration) {
        self.not_before = until.max(self.not_before);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_rate_only_busy_sink_delays() {
        let (mut pace, at) = (Pace::new(None), Duration::from_secs);
        pace.begin(at(1));
        assert_eq!(pace.next(), at(0));
        pace.hold(at(9));
        pace.hold(at(5));
        assert_eq!(pace.next(), at(9));
    }

    proptest! {
        #[test]
        fn pace_never_exceeds_rate_per_period(
            deliveries in 1..6_u32,
            pauses in proptest::collection::vec(0..400_u64, 1..60),
        ) {
            let period = Duration::from_secs(1);
            let mut pace = Pace::new(Some(Rate { deliveries, period }));
            let (mut now, mut begun) = (Duration::ZERO, Vec::new());
            for pause in pauses {
                now += Duration::from_millis(pause);
                prop_assert!(pace.next() <= now + period);
                now = now.max(pace.next());
                pace.begin(now);
                begun.push(now);
            }
            for first in &begun {
                let within = begun.iter().filter(|at| *at >= first && **at < *first + period).count();
                prop_assert!(within <= deliveries as usize);
            }
        }
    }
}
