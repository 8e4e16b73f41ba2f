//! Log lines, counters and spans of a handler's deliveries.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use tracing::{error, field, info, warn};

use super::{
    attempts::{AttemptError, AttemptOutcome, GiveUp},
    core::FailedAttempt,
    schedule::DeliveryId,
    status::HandlerStatus,
    throttle::state::Throttled,
};
use crate::{failures::Failures, handler::Form, notification::Notification, trace::Span};

/// Finished attempt.
pub(super) struct Sent {
    pub(super) delivery: DeliveryId,
    pub(super) events: Notification,
    pub(super) form: Form,
    pub(super) outcome: AttemptOutcome,
    pub(super) took: Duration,
}

/// Log and counters of one handler's deliveries.
pub(super) struct DeliveryLog {
    status: Arc<HandlerStatus>,
    failures: Failures,
    spans: HashMap<DeliveryId, Span>,
}

impl DeliveryLog {
    /// Makes the log of a handler.
    pub(super) fn new(status: Arc<HandlerStatus>) -> Self {
        Self { status, failures: Failures::default(), spans: HashMap::new() }
    }

    /// Logs the result of closing the sink.
    pub(super) fn closed(&self, outcome: &AttemptOutcome) {
        let handler = &self.status.name;
        match outcome {
            Ok(()) => info!(handler, "closed the handler"),
            Err(AttemptError::Failed(error)) => error!(handler, %error, "failed to close the handler"),
            Err(AttemptError::Panicked(panic)) => error!(handler, %panic, "the handler panicked while closing"),
        }
    }

    /// Counts the events that a throttle has suppressed, and the keys that it could not render. Logs keys that it had to forget.
    pub(super) fn throttled(&self, judged: &Throttled) {
        let Throttled { suppressed, errors, last_error, forgotten, .. } = judged;
        if *forgotten > 0 {
            let handler = &self.status.name;
            warn!(
                handler,
                forgotten, "`once_per` has too many keys: events of the oldest ones may be sent earlier again"
            );
        }
        let mut counts = self.status.lock();
        counts.suppressed += suppressed.len() as u64;
        counts.view.key_errors += errors;
        if last_error.is_some() {
            counts.view.last_key_error.clone_from(last_error);
        }
    }

    /// Starts a span at the first attempt of a delivery. Adds the context of the delivery's span to the events of each attempt.
    pub(super) fn begin(&mut self, delivery: DeliveryId, events: Notification) -> Notification {
        let span = self.spans.entry(delivery).or_insert_with(|| {
            let sequences = events.events().iter().map(|event| event.record.sequence.0);
            Span::of_delivery(&self.status.name, events.trace(), sequences)
        });
        events.traced(span.context())
    }

    /// Ends the span of a delivery.
    pub(super) fn end(&mut self, delivery: DeliveryId) {
        self.spans.remove(&delivery);
    }

    /// Counts an attempt that ended at `now`. Logs `failure`, but suppresses repeated lines. Logs the first success after logged
    /// failures, but not while another delivery fails (`is_failing`).
    pub(super) fn finished(&mut self, sent: &Sent, failure: Option<FailedAttempt>, is_failing: bool, now: Duration) {
        self.count(sent);
        let Sent { delivery, events, form, outcome, .. } = sent;
        let Err(error) = outcome else {
            if !is_failing && let Some(failures) = self.failures.worked() {
                info!(handler = self.status.name, failures, "the handler delivers again");
            }
            return;
        };
        let Some(FailedAttempt { attempt, retry_in }) = failure else { return };
        let error = error.to_string();
        if let Some(span) = self.spans.get_mut(delivery) {
            span.attempt_failed(attempt, &error);
        }
        let Some(suppressed) = self.failures.failed(now) else { return };
        warn!(
            handler = self.status.name,
            event = events.events().first().map(|event| field::display(event.record.event_name())),
            events = events.events().len(),
            form = (*form != Form::Whole).then(|| field::debug(form)),
            attempt,
            retry_in = retry_in.map(|delay| format!("{:.1}s", delay.as_secs_f64())),
            suppressed = (suppressed > 0).then_some(suppressed),
            error,
            "failed to deliver"
        );
    }

    fn count(&self, Sent { events, form, outcome, took, .. }: &Sent) {
        self.status.observe_call(outcome, events.events(), *took);
        let events = events.events().len() as u64;
        let mut counts = self.status.lock();
        counts.is_hung = false;
        let Err(error) = outcome else {
            counts.view.delivered += events;
            match form {
                Form::Whole => {}
                Form::WithoutOld => counts.view.without_old += events,
                Form::Reference => counts.view.references += events,
            }
            return;
        };
        counts.view.panics += u64::from(matches!(error, AttemptError::Panicked(_)));
        counts.view.retried += 1;
        counts.note_error(error.to_string());
    }

    /// Counts and logs events that were given up. `is_taken` is set if the dead letter accepted the events (E4, E6).
    pub(super) fn gave_up(&mut self, delivery: DeliveryId, events: &Notification, reason: &GiveUp, is_taken: bool) {
        if let Some(span) = self.spans.get_mut(&delivery) {
            span.fail(reason);
        }
        let handler = &self.status.name;
        for event in events.events() {
            let event = event.record.event_name();
            if is_taken {
                warn!(handler, %event, %reason, "gave up an event to the dead letter");
            } else {
                error!(handler, %event, %reason, "gave up an event without a dead letter");
            }
        }
        let count = events.events().len() as u64;
        let view = &mut self.status.lock().view;
        if matches!(reason, GiveUp::TooLarge(_)) {
            view.too_large += count;
        }
        *if is_taken { &mut view.dead_lettered } else { &mut view.dropped } += count;
    }
}
