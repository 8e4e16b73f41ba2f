//! Status of a delivery while it is under way; counts and logs the end of each attempt.

use std::{cell::RefCell, time::Duration};

use jiff::Timestamp;
use tracing::{field, info, warn};

use super::{
    Form, GiveUp, Outcome, Step,
    status::{HandlerState, HandlerStatus},
};
use crate::{
    dispatcher::{Event, Notification},
    failures::Failures,
    trace::Span,
};

/// Shows a delivery as long as it is under way.
pub(super) struct UnderWay<'a> {
    status: &'a HandlerStatus,
    failures: &'a RefCell<Failures>,
    id: u64,
    /// Since something of it was delivered.
    attempts: u32,
    failing: bool,
    limited: bool,
    span: Span,
}

impl<'a> UnderWay<'a> {
    /// Begins a delivery, whose span ends with it; `failures` are those of the handler.
    pub(super) fn begin(status: &'a HandlerStatus, failures: &'a RefCell<Failures>, span: Span) -> Self {
        let mut counts = status.lock();
        counts.begun += 1;
        let id = counts.begun;
        counts.under_way.insert(id, None);
        drop(counts);
        Self { status, failures, id, attempts: 0, failing: false, limited: false, span }
    }

    /// Notes that an attempt begins.
    pub(super) fn attempt(&mut self) {
        self.attempts += 1;
        self.status.lock().under_way.insert(self.id, Some(wall_clock().as_microsecond()));
    }

    /// Notes whether it waits for its turn.
    pub(super) fn limit(&mut self, limited: bool) {
        if limited != self.limited {
            let mut counts = self.status.lock();
            counts.rate_limited = if limited { counts.rate_limited + 1 } else { counts.rate_limited - 1 };
            self.limited = limited;
        }
    }

    /// Counts the end of an attempt; returns why it failed.
    pub(super) fn finish(&mut self, outcome: &Outcome, events: &[Event], form: Form, took: Duration) -> Option<String> {
        self.status.observe_call(outcome, events, took);
        let events = events.len() as u64;
        let mut counts = self.status.lock();
        counts.under_way.insert(self.id, None);
        let failed = *outcome != Outcome::Delivered;
        counts.failing = counts.failing + u64::from(failed) - u64::from(self.failing);
        self.failing = failed;
        counts.state = if counts.failing > 0 { HandlerState::Retrying } else { HandlerState::Running };
        let error = match outcome {
            Outcome::Delivered => {
                counts.delivered += events;
                match form {
                    Form::Whole => {}
                    Form::WithoutOld => counts.without_old += events,
                    Form::Reference => counts.references += events,
                }
                let works = counts.failing == 0;
                drop(counts);
                self.attempts = 0;
                if works && let Some(failures) = self.failures.borrow_mut().worked() {
                    info!(handler = self.status.name(), failures, "delivers again");
                }
                return None;
            }
            Outcome::Failed(error) => error.to_string(),
            Outcome::Panicked(panic) => {
                counts.panics += 1;
                format!("panicked: {panic}")
            }
        };
        counts.retried += 1;
        counts.note_error(error.as_str());
        drop(counts);
        self.span.attempt_failed(self.attempts, &error);
        Some(error)
    }

    /// Notes that some of it is given up.
    pub(super) fn give_up(&mut self, reason: &GiveUp) {
        self.span.fail(reason);
    }

    /// Logs at `now` that an attempt to deliver `batch` failed, where a line is due; `next` follows.
    pub(super) fn log(&self, error: &str, batch: &Notification, form: Form, next: &Step, now: Duration) {
        let retry_in = match next {
            Step::Wait(delay) => Some(*delay),
            Step::Attempt(..) => Some(Duration::ZERO),
            Step::GiveUp(..) | Step::Done => None,
            Step::Closed(..) => return, // the end of the handler is logged
        };
        let Some(suppressed) = self.failures.borrow_mut().failed(now) else { return };
        warn!(
            handler = self.status.name(),
            event = batch.events().first().map(|event| field::display(event.record.event_name())),
            events = batch.events().len(),
            form = (form != Form::Whole).then(|| field::debug(form)),
            attempt = self.attempts,
            retry_in = retry_in.map(|delay| format!("{:.1}s", delay.as_secs_f64())),
            suppressed = (suppressed > 0).then_some(suppressed),
            error,
            "failed to deliver"
        );
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.limit(false);
        let mut counts = self.status.lock();
        counts.under_way.remove(&self.id);
        counts.failing -= u64::from(self.failing);
    }
}

fn wall_clock() -> Timestamp {
    Timestamp::now()
}
