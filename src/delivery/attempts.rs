//! Meaning of a failure, a panic or a long silence for a batch: again, in halves, in a smaller form, to the dead letter.

#[cfg(test)]
mod tests;

use std::{fmt, ops::Range, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    handler::{Form, HandlerError},
    text::Text,
};

/// How a failed delivery is repeated.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "Retry")]
pub struct RetryPolicy {
    /// Pause after the first failure; doubles with each further one. More than "0s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_millis(200))]
    pub initial: Duration,
    /// The pause grows no further than this. At least `initial`.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(1))]
    pub max: Duration,
    /// Whether the pause is drawn at random from the upper half of its length, so that many do not come at once.
    #[educe(Default = true)]
    pub jitter: bool,
    /// After so long the event goes to `dead_letter`, or is dropped and counted.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_hours(24))]
    pub give_up_after: Duration,
}

impl RetryPolicy {
    /// Returns the delay after the `failures`-th failure in a row, the first being 1; `random` is in [0, 1).
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let delay = self.initial.saturating_mul(factor).min(self.max);
        if self.jitter { delay.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0) } else { delay }
    }
}

/// End of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// All of it is delivered.
    Delivered,
    /// The handler said so, or it did not answer in time.
    Failed(HandlerError),
    /// The handler panicked; what it said.
    Panicked(String),
}

/// Reason for giving events up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// It failed for longer than `give_up_after`; the last error.
    Expired(String),
    /// The handler will not take it.
    Rejected(String),
    /// The sink takes no message so large, in whatever [`Form`].
    TooLarge(String),
    /// The handler panicked over this event three times.
    Poison(String),
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(error) => write!(f, "gave up retrying: {error}"),
            Self::Rejected(error) => write!(f, "rejected: {error}"),
            Self::TooLarge(error) => write!(f, "too large in every form: {error}"),
            Self::Poison(panic) => write!(f, "panicked {PANICS_MAX} times: {panic}"),
        }
    }
}

/// Attempts at one event that may end in a panic (S-9).
const PANICS_MAX: u32 = 3;

/// Longest delay that a sink can ask for.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Next step of a batch; positions are within the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptStep {
    /// Try to deliver these, in this form; then call [`Attempts::finished`].
    Attempt(Range<usize>, Form),
    /// Wait; then call [`Attempts::waited`].
    Wait(Duration),
    /// Hand these to the dead letter, or count and name them as dropped; then call [`Attempts::given_up`].
    GiveUp(Range<usize>, GiveUp),
    /// Everything is delivered or given up.
    Done,
    /// The sink is closed for good; its reason. The rest is never delivered.
    Closed(Range<usize>, String),
}

/// Attempts to deliver one batch.
///
/// **Invariants:** attempts go through the batch in order, each event is delivered or given up once, and only after
/// everything before it. What panics, is rejected or is too large is halved until one event is left, and only that one
/// is given up for it; one that is too large is tried in ever smaller forms before.
#[derive(Clone, Debug)]
pub struct Attempts {
    policy: RetryPolicy,
    len: usize,
    /// Smallest form that the sink can be sent.
    smallest: Form,
    /// Part that is tried now.
    range: Range<usize>,
    form: Form,
    next: AttemptStep,
    failures: u32,
    panics: u32,
    failing_since: Option<Duration>,
}

impl Attempts {
    /// Begins with a batch of `len` events, which can be sent in all forms down to `smallest`.
    pub fn new(policy: RetryPolicy, len: usize, smallest: Form) -> Self {
        let (range, form, next) = (0..0, Form::Whole, AttemptStep::Done);
        let mut attempts =
            Self { policy, len, smallest, range, form, next, failures: 0, panics: 0, failing_since: None };
        attempts.advance();
        attempts
    }

    /// Returns what is to be done next.
    pub fn step(&self) -> AttemptStep {
        self.next.clone()
    }

    /// Takes the end of an attempt; `now` is any monotonic time, `random` in [0, 1).
    pub fn finished(&mut self, outcome: AttemptOutcome, now: Duration, random: f64) {
        match outcome {
            AttemptOutcome::Delivered => self.advance(),
            AttemptOutcome::Failed(HandlerError::Failed(error)) => self.failed(error, Duration::ZERO, now, random),
            AttemptOutcome::Failed(HandlerError::Busy { reason, retry_after }) => {
                self.failed(reason, retry_after.min(RETRY_AFTER_MAX), now, random);
            }
            AttemptOutcome::Failed(HandlerError::Closed(error)) => {
                self.next = AttemptStep::Closed(self.range.start..self.len, error);
            }
            AttemptOutcome::Failed(HandlerError::Rejected(_) | HandlerError::TooLarge(_))
            | AttemptOutcome::Panicked(_)
                if self.range.len() > 1 =>
            {
                self.range.end = self.range.start + self.range.len() / 2;
                self.attempt();
            }
            AttemptOutcome::Failed(HandlerError::TooLarge(error)) => match self.form.smaller() {
                Some(form) if form <= self.smallest => {
                    self.form = form;
                    self.attempt();
                }
                _ => self.next = AttemptStep::GiveUp(self.range.clone(), GiveUp::TooLarge(error)),
            },
            AttemptOutcome::Failed(HandlerError::Rejected(error)) => {
                self.next = AttemptStep::GiveUp(self.range.clone(), GiveUp::Rejected(error));
            }
            AttemptOutcome::Panicked(panic) => {
                self.panics += 1;
                self.next = if self.panics >= PANICS_MAX {
                    AttemptStep::GiveUp(self.range.clone(), GiveUp::Poison(panic))
                } else {
                    AttemptStep::Wait(self.policy.delay(self.panics, random))
                };
            }
        }
    }

    /// Says that the delay is over.
    pub fn waited(&mut self) {
        self.attempt();
    }

    /// Says that the events given up are where they belong.
    pub fn given_up(&mut self) {
        self.advance();
    }

    /// Takes a temporary failure; the next attempt is not before `at_least`.
    fn failed(&mut self, error: String, at_least: Duration, now: Duration, random: f64) {
        self.failures += 1;
        let since = *self.failing_since.get_or_insert(now);
        self.next = if now.saturating_sub(since) >= self.policy.give_up_after {
            AttemptStep::GiveUp(self.range.clone(), GiveUp::Expired(error))
        } else {
            AttemptStep::Wait(self.policy.delay(self.failures, random).max(at_least))
        };
    }

    fn attempt(&mut self) {
        self.next = AttemptStep::Attempt(self.range.clone(), self.form);
    }

    /// Continues behind the part that was tried.
    fn advance(&mut self) {
        self.range = self.range.end..self.len;
        (self.form, self.failures, self.panics, self.failing_since) = (Form::Whole, 0, 0, None);
        if self.range.is_empty() {
            self.next = AttemptStep::Done;
        } else {
            self.attempt();
        }
    }
}
