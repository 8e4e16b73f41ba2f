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

    /// Begins an attempt, or returns when to ask again, nothing having begun.
    pub fn begin(&mut self, now: Duration) -> Result<(), Duration> {
        if now < self.not_before {
            return Err(self.not_before);
        }
        let Some(rate) = self.rate else { return Ok(()) };
        if self.begun.len() >= rate.deliveries.max(1) as usize {
            let next = self.begun.front().map_or(now, |first| *first + rate.period);
            if now < next {
                return Err(next);
            }
            self.begun.pop_front();
        }
        self.begun.push_back(now);
        Ok(())
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
        assert_eq!((pace.begin(at(1)), pace.begin(at(1))), (Ok(()), Ok(())));
        pace.hold(at(9));
        pace.hold(at(5));
        assert_eq!((pace.begin(at(8)), pace.begin(at(9))), (Err(at(9)), Ok(())));
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
                if let Err(when) = pace.begin(now) {
                    prop_assert!(when > now && when <= now + period);
                    now = when;
                    prop_assert_eq!(pace.begin(now), Ok(()));
                }
                begun.push(now);
            }
            for first in &begun {
                let within = begun.iter().filter(|at| *at >= first && **at < *first + period).count();
                prop_assert!(within <= deliveries as usize);
            }
        }
    }
}
