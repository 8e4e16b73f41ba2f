//! When an attempt may begin: not more often than `rate_limit` says, and not before a busy sink said.

use std::{collections::VecDeque, time::Duration};

/// So many deliveries in each period of time; `[handlers.*] rate_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Deliveries, at least one.
    pub deliveries: u32,
    /// In any period of this length.
    pub period: Duration,
}

/// The machine: no period of the rate's length sees more attempts than the rate allows. Times are of one monotonic
/// clock.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: Option<Rate>,
    /// When the last attempts began, as many as the rate allows in a period.
    begun: VecDeque<Duration>,
    not_before: Duration,
}

impl Pace {
    /// Makes a pace; without a rate only what [`Pace::hold`] says counts.
    pub fn new(rate: Option<Rate>) -> Self {
        Self { rate, begun: VecDeque::new(), not_before: Duration::ZERO }
    }

    /// Returns when the next attempt may begin; it may be past.
    pub fn next(&self) -> Duration {
        let is_full = |rate: &Rate| self.begun.len() >= rate.deliveries.max(1) as usize;
        let by_rate = self.rate.filter(is_full).and_then(|rate| self.begun.front().map(|first| *first + rate.period));
        by_rate.unwrap_or_default().max(self.not_before)
    }

    /// Notes that an attempt begins, not before [`Pace::next`].
    pub fn begin(&mut self, now: Duration) {
        let Some(rate) = self.rate else { return };
        if self.begun.len() >= rate.deliveries.max(1) as usize {
            self.begun.pop_front();
        }
        self.begun.push_back(now);
    }

    /// Lets nothing begin before `until`: the sink said so.
    pub fn hold(&mut self, until: Duration) {
        self.not_before = until.max(self.not_before);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_a_rate_only_a_busy_sink_is_waited_for() {
        let (mut pace, at) = (Pace::new(None), Duration::from_secs);
        pace.begin(at(1));
        assert_eq!(pace.next(), at(0));
        pace.hold(at(9));
        pace.hold(at(5));
        assert_eq!(pace.next(), at(9));
    }

    proptest! {
        #[test]
        fn no_period_sees_more_than_the_rate_and_who_comes_when_told_may_begin(
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
