//! Delay before the next attempt (R-3, D-3), used by reflector and supervision.
//!
//! [`Backoff`] counts attempts. It has no clock and no random source: the caller passes times and random numbers.

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Text;

/// Delay that grows with every failure. After n earlier failures, d is initial × factorⁿ, but at most `max`. The delay is random
/// between d and d × (1 + jitter).
#[derive(Clone, Copy, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "Backoff")]
pub struct BackoffConfig {
    /// Delay after the first failure. More than "0s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_millis(800))]
    pub initial: Duration,
    /// Factor by which each further failure increases the delay.
    #[schemars(range(min = 1.0))]
    #[educe(Default = 2.0)]
    pub factor: f64,
    /// Random part, as a multiple of the delay; 0 = none.
    #[schemars(range(min = 0.0))]
    #[educe(Default = 1.0)]
    pub jitter: f64,
    /// Maximum delay, without jitter. At least `initial`.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub max: Duration,
    /// Time without a failure after which the delay starts at `initial` again.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(2))]
    pub reset_after: Duration,
}

/// The growing delay of one operation that fails.
///
/// **Invariant:** a success alone does not shorten the next delay. The delay returns to its initial value only after a healthy
/// period of [`BackoffConfig::reset_after`] (D-3, R-6).
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    config: BackoffConfig,
    attempt: u32,
    healthy_since: Option<Duration>,
}

impl Backoff {
    /// Makes a backoff without failures.
    pub(crate) fn new(config: BackoffConfig) -> Self {
        Self { config, attempt: 0, healthy_since: None }
    }

    /// Returns the number of delays since the last reset.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Starts a healthy period at `now`, unless one is in progress. [`Backoff::fail`] ends the healthy period.
    pub(crate) fn healthy(&mut self, now: Duration) {
        self.healthy_since.get_or_insert(now);
    }

    /// Returns the time at which the backoff resets unless a failure comes first; `None` if no healthy period is in progress.
    pub(crate) fn resets_at(&self) -> Option<Duration> {
        self.healthy_since.map(|since| since.saturating_add(self.config.reset_after))
    }

    /// Resets the backoff if, at `now`, the healthy period is long enough (D-3). Returns true if the period is long enough.
    pub(crate) fn settle(&mut self, now: Duration) -> bool {
        let settled = self.resets_at().is_some_and(|at| at <= now);
        if settled {
            self.attempt = 0;
        }
        settled
    }

    /// Records a failure at `now` and returns the delay. `jitter` is a random number in `[0, 1)`.
    pub(crate) fn fail(&mut self, now: Duration, jitter: f64) -> Duration {
        self.settle(now);
        self.healthy_since = None;
        let delay = self.delay(jitter);
        self.attempt = self.attempt.saturating_add(1);
        delay
    }

    fn delay(&self, jitter: f64) -> Duration {
        let max = self.config.max.max(self.config.initial).as_secs_f64();
        let grown = self.config.factor.max(1.0).powf(f64::from(self.attempt)) * self.config.initial.as_secs_f64();
        // `min` also turns an infinite or undefined product into the maximum.
        let seconds = grown.min(max) * (1.0 + self.config.jitter.max(0.0) * jitter.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(seconds).unwrap_or(self.config.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: fn(u64) -> Duration = Duration::from_millis;

    /// Rule: R-3.
    #[test]
    fn delays_double_to_maximum_with_jitter() {
        for (jitter, expected) in [
            (0.0, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]),
            (0.5, [1200, 2400, 4800, 9600, 19_200, 38_400, 45_000, 45_000]),
        ] {
            let mut backoff = Backoff::new(BackoffConfig::default());
            let delays = expected.map(|_| backoff.fail(Duration::ZERO, jitter));
            assert_eq!(delays, expected.map(MILLIS), "jitter {jitter}");
        }
    }

    /// Rule: R-3.
    #[test]
    fn jittered_delay_stays_below_twice_its_base() {
        let mut backoff = Backoff::new(BackoffConfig::default());
        assert!(backoff.fail(Duration::ZERO, 0.999_999) < Duration::from_millis(1600));
    }

    /// Rules: R-4, D-3.
    #[test]
    fn only_two_minutes_of_health_reset_backoff() {
        let second = Duration::from_secs;
        let mut backoff = Backoff::new(BackoffConfig::default());
        backoff.fail(second(0), 0.0);
        assert_eq!(backoff.fail(second(300), 0.0), MILLIS(1600), "elapsed time is not health");
        backoff.healthy(second(310));
        backoff.healthy(second(400));
        assert_eq!(backoff.resets_at(), Some(second(430)), "the healthy period counts from its beginning");
        assert_eq!(backoff.fail(second(429), 0.0), MILLIS(3200), "119 s are too short");
        backoff.healthy(second(430));
        assert_eq!(backoff.fail(second(550), 0.0), MILLIS(800));
        assert_eq!(backoff.fail(second(550), 0.0), MILLIS(1600));
    }

    /// Rule: R-6.
    #[test]
    fn success_alone_does_not_reset_backoff() {
        let mut backoff = Backoff::new(BackoffConfig::default());
        for expected in [800, 1600, 3200] {
            assert_eq!(backoff.fail(Duration::from_secs(1), 0.0), MILLIS(expected));
            backoff.healthy(Duration::from_secs(1));
        }
    }

    #[test]
    fn odd_configurations_give_delays_without_panic() {
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            for initial in [Duration::ZERO, Duration::MAX] {
                let mut backoff =
                    Backoff::new(BackoffConfig { factor, initial, jitter: f64::NAN, ..BackoffConfig::default() });
                for _ in 0..5 {
                    backoff.fail(Duration::ZERO, 2.0);
                }
            }
        }
    }
}
