//! What is shown of a delivery as long as it is under way, and counted at the end of each attempt.

use jiff::Timestamp;
use tracing::{field, info, warn};

use super::{
    Form, Outcome,
    status::{HandlerState, HandlerStatus},
};

/// Shows a delivery as long as it is under way.
pub(super) struct UnderWay<'a> {
    status: &'a HandlerStatus,
    id: u64,
    failing: bool,
    limited: bool,
}

impl<'a> UnderWay<'a> {
    /// Begins a delivery.
    pub(super) fn begin(status: &'a HandlerStatus) -> Self {
        let mut counts = status.lock();
        counts.begun += 1;
        let id = counts.begun;
        counts.under_way.insert(id, None);
        drop(counts);
        Self { status, id, failing: false, limited: false }
    }

    /// Notes that an attempt begins.
    pub(super) fn attempt(&self) {
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

    /// Counts the end of an attempt.
    pub(super) fn finish(&mut self, outcome: &Outcome, events: u64, form: Form) {
        let mut counts = self.status.lock();
        counts.under_way.insert(self.id, None);
        let failed = *outcome != Outcome::Delivered;
        counts.failing = counts.failing + u64::from(failed) - u64::from(self.failing);
        let recovered = self.failing && counts.failing == 0;
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
                drop(counts);
                if recovered {
                    info!(handler = self.status.name(), "delivers again");
                }
                return;
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
        let smaller = (form != Form::Whole).then(|| field::debug(form));
        warn!(handler = self.status.name(), events, form = smaller, %error, "failed to deliver");
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
