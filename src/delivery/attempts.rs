//! Reaction to a failed batch (error, panic or timeout): retry, split, send in a smaller form, or dead-letter.

#[cfg(test)]
mod tests;

use std::{ops::Range, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    handler::{Form, HandlerError},
    text::Text,
};

/// Retries of a failed delivery.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "Retry")]
pub struct Retry {
    /// Delay after the first failure; it doubles with each further one. More than "0s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_millis(200))]
    pub initial: Duration,
    /// Maximum delay. At least `initial`.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(1))]
    pub max: Duration,
    /// Multiplies each delay by a random factor from 0.5 to 1, so that retries of many handlers do not coincide.
    #[educe(Default = true)]
    pub jitter: bool,
    /// Time, from the first failure, after which the event goes to `dead_letter`, or is dropped and counted.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_hours(24))]
    pub give_up_after: Duration,
}

impl Retry {
    /// Returns the delay before the next attempt, after this number of failures in a row. `random` is in [0, 1).
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let delay = self.initial.saturating_mul(factor).min(self.max);
        if self.jitter { delay.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0) } else { delay }
    }
}

/// Result of an attempt or of closing a sink. `Ok` means that all events of the attempt were delivered.
pub(crate) type AttemptOutcome = Result<(), AttemptError>;

/// Reason why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttemptError {
    /// Error of the handler, or no answer in time.
    #[error(transparent)]
    Failed(#[from] HandlerError),
    /// Panic of the handler, with its message.
    #[error("panicked: {0}")]
    Panicked(String),
}

/// Reason for giving up events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GiveUp {
    /// Failures for longer than `give_up_after`, with the last error.
    #[error("gave up retrying: {0}")]
    Expired(String),
    /// Rejection by the handler.
    #[error("rejected: {0}")]
    Rejected(String),
    /// Too large for the sink in every [`Form`].
    #[error("too large in every form: {0}")]
    TooLarge(String),
    /// Three panics of the handler on this event.
    #[error("panicked {max} times: {0}", max = PANICS_MAX)]
    Poison(String),
}

/// Number of panics after which an event is given up (S-9).
const PANICS_MAX: u32 = 3;

/// Next step of a batch. Ranges are relative to the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptStep {
    /// Deliver these events in this form, but not before `Attempts::not_before`. Then call [`Attempts::finished`].
    Attempt(Range<usize>, Form),
    /// Send these events to the dead letter, or log and count them as dropped. Then call [`Attempts::advance`].
    GiveUp(Range<usize>, GiveUp),
    /// All events are delivered or given up.
    Done,
    /// The sink is closed for good, for this reason. The remaining events are never delivered.
    Closed(String),
}

/// Attempts to deliver one batch.
///
/// **Invariants:** attempts follow the order of the batch. Each event is delivered or given up once, after all events before it.
/// After a rejection, a panic or `TooLarge`, the next attempt has only half of the events, down to one event. Only this one event
/// is given up. Before an event is given up as too large, all smaller forms are tried.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    policy: Retry,
    len: usize,
    /// Smallest form that the sink accepts.
    smallest: Form,
    /// Events of the current attempt.
    range: Range<usize>,
    form: Form,
    /// Next step.
    pub(super) step: AttemptStep,
    /// Earliest time of the next attempt, after the delay of a retry.
    pub(super) not_before: Duration,
    failures: u32,
    panics: u32,
    failing_since: Option<Duration>,
}

impl Attempts {
    /// Makes the state of a batch of `len` events. `smallest` is the smallest form that the sink accepts.
    pub(crate) fn new(policy: Retry, len: usize, smallest: Form) -> Self {
        let (range, form, step, not_before) = (0..0, Form::Whole, AttemptStep::Done, Duration::ZERO);
        let (failures, panics, failing_since) = (0, 0, None);
        let mut attempts =
            Self { policy, len, smallest, range, form, step, not_before, failures, panics, failing_since };
        attempts.advance();
        attempts
    }

    /// Records the result of an attempt; `now` is any monotonic time, `random` is in [0, 1).
    pub(crate) fn finished(&mut self, outcome: AttemptOutcome, now: Duration, random: f64) {
        let Err(error) = outcome else { return self.advance() };
        self.step = match error {
            AttemptError::Failed(HandlerError::Failed(error) | HandlerError::Busy { reason: error, .. }) => {
                self.failures += 1;
                let since = *self.failing_since.get_or_insert(now);
                if now.saturating_sub(since) >= self.policy.give_up_after {
                    self.give_up(GiveUp::Expired(error))
                } else {
                    self.retry(self.failures, now, random)
                }
            }
            AttemptError::Failed(HandlerError::Closed(error)) => AttemptStep::Closed(error),
            // Rejected, too large or a panic: one of the events may be the cause.
            _ if self.range.len() > 1 => {
                self.range.end = self.range.start + self.range.len() / 2;
                self.attempt()
            }
            AttemptError::Failed(HandlerError::TooLarge(error)) => match self.form.smaller() {
                Some(form) if form <= self.smallest => {
                    self.form = form;
                    self.attempt()
                }
                _ => self.give_up(GiveUp::TooLarge(error)),
            },
            AttemptError::Failed(HandlerError::Rejected(error)) => self.give_up(GiveUp::Rejected(error)),
            AttemptError::Panicked(panic) => {
                self.panics += 1;
                if self.panics >= PANICS_MAX {
                    self.give_up(GiveUp::Poison(panic))
                } else {
                    self.retry(self.panics, now, random)
                }
            }
        };
    }

    fn retry(&mut self, failures: u32, now: Duration, random: f64) -> AttemptStep {
        self.not_before = now + self.policy.delay(failures, random);
        self.attempt()
    }

    fn attempt(&self) -> AttemptStep {
        AttemptStep::Attempt(self.range.clone(), self.form)
    }

    fn give_up(&self, reason: GiveUp) -> AttemptStep {
        AttemptStep::GiveUp(self.range.clone(), reason)
    }

    /// Continues with the next events of the batch. Call this after the current events were delivered or given up.
    pub(crate) fn advance(&mut self) {
        self.range = self.range.end..self.len;
        (self.form, self.failures, self.panics, self.failing_since) = (Form::Whole, 0, 0, None);
        self.step = if self.range.is_empty() { AttemptStep::Done } else { self.attempt() };
    }
}
