//! Decisions on the credentials that a program issues: when to use them, and when to run the program again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::CredentialError;
use crate::backoff::{Backoff, BackoffConfig};

/// Longest time before the expiry at which new credentials are requested. Credentials of a short life are renewed after nine tenths
/// of it.
const EARLY: SignedDuration = SignedDuration::from_secs(60);

/// Time of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Time of day, which expiries are compared with.
    pub(super) wall: Timestamp,
    /// Time since an arbitrary start, which delays are measured with.
    pub(super) elapsed: Duration,
    /// Random number in `[0, 1)`.
    pub(super) jitter: f64,
}

/// Credentials of one program. They are used until they expire or the server refuses them; then the program runs again. After a
/// refusal or a failed run, the next run is delayed.
///
/// **Invariant:** at most one run is in progress.
#[derive(Debug)]
pub(super) struct Cache<T> {
    held: Option<Held<T>>,
    /// Number of credentials held so far.
    generation: u64,
    /// Number of runs started so far.
    runs: u64,
    is_running: bool,
    backoff: Backoff,
    /// Earliest time of the next run.
    not_before: Duration,
    /// Error of the last run.
    error: Option<CredentialError>,
}

#[derive(Debug)]
struct Held<T> {
    value: T,
    renew_at: Option<Timestamp>,
    expires: Option<Timestamp>,
}

/// Next step of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Step<T> {
    /// Use these credentials of this generation.
    Use(T, u64),
    /// Use these credentials, and start the run of this number: they expire soon.
    Renew(T, u64, u64),
    /// Start the run of this number, and wait for its end.
    Run(u64),
    /// Wait for the end of the run in progress.
    Wait,
    /// Fail: the last run failed, and it is too early for the next.
    Fail(CredentialError),
}

/// Next step after an answer 401.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// The credentials have been replaced since. Use the new ones.
    Replaced,
    /// Start the run of this number, and wait for its end.
    Run(u64),
    /// Wait for the end of the run in progress.
    Wait,
    /// Pass the answer on: it is too early for another run.
    Final,
}

impl<T: Clone> Cache<T> {
    /// Makes an empty cache.
    pub(super) fn new() -> Self {
        Self {
            held: None,
            generation: 0,
            runs: 0,
            is_running: false,
            backoff: Backoff::new(BackoffConfig::default()),
            not_before: Duration::ZERO,
            error: None,
        }
    }

    /// Forgets everything about the program: another one takes its place. The result of a run in progress will be discarded.
    pub(super) fn clear(&mut self) {
        *self = Self { generation: self.generation, runs: self.runs + 1, ..Self::new() };
    }

    /// Returns the error of the last run, if it failed.
    pub(super) fn error(&self) -> Option<&CredentialError> {
        self.error.as_ref()
    }

    /// Decides on the credentials of a request.
    pub(super) fn step(&mut self, now: Now) -> Step<T> {
        let may_run = !self.is_running && now.elapsed >= self.not_before;
        match &self.held {
            Some(held) if held.expires.is_none_or(|at| now.wall < at) => {
                let value = held.value.clone();
                let is_due = held.renew_at.is_some_and(|at| at <= now.wall);
                if is_due && may_run {
                    Step::Renew(value, self.generation, self.start())
                } else {
                    Step::Use(value, self.generation)
                }
            }
            _ if self.is_running => Step::Wait,
            _ => match &self.error {
                Some(error) if !may_run => Step::Fail(error.clone()),
                _ => Step::Run(self.start()),
            },
        }
    }

    /// Decides on the step after the server has refused the credentials of a generation.
    pub(super) fn refused(&mut self, generation: u64, now: Now) -> Refusal {
        if generation != self.generation {
            return Refusal::Replaced;
        }
        if self.is_running {
            return Refusal::Wait;
        }
        if now.elapsed < self.not_before {
            return Refusal::Final;
        }
        self.delay(now);
        Refusal::Run(self.start())
    }

    /// Records that the server has accepted the credentials of a generation.
    pub(super) fn accepted(&mut self, generation: u64, now: Now) {
        if generation == self.generation {
            self.backoff.healthy(now.elapsed);
        }
    }

    /// Records the end of a run.
    pub(super) fn finish(&mut self, run: u64, outcome: Result<(T, Option<Timestamp>), CredentialError>, now: Now) {
        if run != self.runs {
            return;
        }
        self.is_running = false;
        match outcome {
            Ok((value, expires)) => {
                self.generation += 1;
                self.error = None;
                self.held = Some(Held::new(value, expires, now.wall));
                // The clocks may differ. The server decides, but the program must not run for every request.
                if expires.is_some_and(|at| at <= now.wall) {
                    self.delay(now);
                }
            }
            Err(error) => {
                self.error = Some(error);
                self.delay(now);
            }
        }
    }

    fn start(&mut self) -> u64 {
        self.is_running = true;
        self.runs += 1;
        self.runs
    }

    fn delay(&mut self, now: Now) {
        self.not_before = now.elapsed + self.backoff.fail(now.elapsed, now.jitter);
    }
}

impl<T> Held<T> {
    fn new(value: T, expires: Option<Timestamp>, now: Timestamp) -> Self {
        let Some(at) = expires else { return Self { value, renew_at: None, expires: None } };
        let life = at.duration_since(now);
        if life.is_positive() {
            Self { value, renew_at: at.checked_sub(EARLY.min(life / 10)).ok(), expires }
        } else {
            Self { value, renew_at: Some(now), expires: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        let wall = Timestamp::from_second(1_000_000 + seconds.cast_signed()).unwrap();
        Now { wall, elapsed: Duration::from_secs(seconds), jitter: 0.0 }
    }

    fn until(seconds: u64) -> Timestamp {
        at(seconds).wall
    }

    fn error(text: &str) -> CredentialError {
        CredentialError::new(text)
    }

    /// Returns a cache that holds `"a"` since second 0.
    fn holding(expires: Option<Timestamp>) -> Cache<&'static str> {
        let mut cache = Cache::new();
        assert_eq!(cache.step(at(0)), Step::Run(1));
        cache.finish(1, Ok(("a", expires)), at(0));
        cache
    }

    #[test]
    fn credentials_are_used_until_shortly_before_expiry() {
        let mut cache = holding(Some(until(3600)));
        assert_eq!(cache.step(at(3539)), Step::Use("a", 1));
        assert_eq!(cache.step(at(3540)), Step::Renew("a", 1, 2));
        assert_eq!(cache.step(at(3541)), Step::Use("a", 1), "one run is enough");
        assert_eq!(cache.step(at(3600)), Step::Wait, "expired, and new ones are on their way");
        cache.finish(2, Ok(("b", None)), at(3601));
        assert_eq!(cache.step(at(1_000_000)), Step::Use("b", 2), "no known expiry");
    }

    #[test]
    fn short_lived_credentials_are_not_renewed_at_once() {
        let mut cache = holding(Some(until(20)));
        assert_eq!(cache.step(at(17)), Step::Use("a", 1));
        assert_eq!(cache.step(at(18)), Step::Renew("a", 1, 2));
    }

    #[test]
    fn refusal_runs_program_at_once_then_with_backoff() {
        let mut cache = holding(None);
        assert_eq!(cache.refused(1, at(100)), Refusal::Run(2));
        assert_eq!(cache.refused(1, at(100)), Refusal::Wait, "requests share the run");
        assert_eq!(cache.step(at(100)), Step::Use("a", 1), "another type's server may accept them");
        cache.finish(2, Ok(("b", None)), at(100));
        assert_eq!(cache.refused(1, at(100)), Refusal::Replaced);
        assert_eq!(cache.refused(2, at(100)), Refusal::Final);
        let mut runs = 0;
        for second in 100..700 {
            if let Refusal::Run(run) = cache.refused(cache.generation, at(second)) {
                runs += 1;
                cache.finish(run, Ok(("c", None)), at(second));
                cache.accepted(cache.generation, at(second));
            }
        }
        assert!((15..=30).contains(&runs), "{runs} runs in ten minutes of refusals");
    }

    #[test]
    fn health_of_two_minutes_resets_backoff() {
        let mut cache = holding(None);
        for round in 0..20 {
            let now = at(1000 * (round + 1));
            assert_eq!(cache.refused(cache.generation, now), Refusal::Run(round + 2));
            cache.finish(round + 2, Ok(("b", None)), now);
            cache.accepted(cache.generation, now);
        }
        assert_eq!(cache.not_before, at(20_001).elapsed.saturating_sub(Duration::from_millis(200)));
    }

    #[test]
    fn failed_run_delays_next_and_keeps_valid_credentials() {
        let mut cache = holding(Some(until(3600)));
        assert_eq!(cache.step(at(3540)), Step::Renew("a", 1, 2));
        cache.finish(2, Err(error("no")), at(3540));
        assert_eq!(cache.step(at(3540)), Step::Use("a", 1));
        assert_eq!(cache.step(at(3541)), Step::Renew("a", 1, 3));
        cache.finish(3, Err(error("still no")), at(3599));
        assert_eq!(cache.step(at(3600)), Step::Fail(error("still no")));
        assert_eq!(cache.error(), Some(&error("still no")));
        assert_eq!(cache.step(at(3601)), Step::Run(4));
        cache.finish(4, Ok(("b", None)), at(3602));
        assert_eq!((cache.step(at(3602)), cache.error()), (Step::Use("b", 2), None));
    }

    #[test]
    fn expired_at_birth_is_used_and_renewed_slowly() {
        let mut cache = holding(Some(until(0)));
        assert_eq!(cache.step(at(0)), Step::Use("a", 1), "the clocks may differ");
        let mut runs = 1;
        for second in 0..600 {
            if let Step::Renew(_, _, run) = cache.step(at(second)) {
                runs += 1;
                cache.finish(run, Ok(("a", Some(until(second)))), at(second));
            }
        }
        assert!(runs < 30, "{runs} runs in ten minutes");
    }

    #[test]
    fn run_of_replaced_program_is_discarded() {
        let mut cache = holding(None);
        assert_eq!(cache.refused(1, at(1)), Refusal::Run(2));
        cache.clear();
        assert_eq!(cache.step(at(1)), Step::Run(4));
        cache.finish(2, Ok(("old", None)), at(1));
        assert_eq!(cache.step(at(1)), Step::Wait);
        cache.finish(4, Ok(("new", None)), at(2));
        assert_eq!(cache.step(at(2)), Step::Use("new", 2));
    }
}
