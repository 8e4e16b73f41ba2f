//! Destination of a handler's events: a worker thread, code that never blocks, or an actor.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::Recipient;
use tokio::time::{Instant, timeout};
use tracing::error;

use super::{
    attempts::AttemptOutcome,
    log::Sent,
    status::HandlerStatus,
    worker::{Attempt, Heard, Worker, guard},
};
use crate::{
    handler::{Form, Handler, HandlerError},
    mutex::lock,
    notification::{Notification, Stopped},
};

/// Destination of a handler's events.
#[derive(Clone)]
pub enum Sink {
    /// A thread of its own, for a sink that blocks or waits.
    Thread(Worker),
    /// Code that never blocks, called in place.
    InPlace(Arc<Mutex<dyn Handler>>),
    /// Actor of a library user. Its answer `Err` means that it has ended. If it does not answer in this time, the
    /// attempt has failed and is retried.
    Actor(Recipient<Notification>, Duration),
}

impl Sink {
    /// Returns its maximum number of concurrent deliveries.
    #[cfg(test)]
    pub fn concurrency(&self) -> usize {
        match self {
            Self::Thread(worker) => worker.concurrency(),
            Self::InPlace(_) | Self::Actor(..) => 1,
        }
    }

    /// Returns the smallest form that it accepts.
    pub fn smallest_form(&self) -> Form {
        match self {
            Self::Thread(worker) => worker.smallest_form(),
            Self::InPlace(_) | Self::Actor(..) => Form::Whole,
        }
    }

    /// Returns true if dropping the future of an attempt ends the attempt.
    pub fn can_cancel(&self) -> bool {
        matches!(self, Self::Thread(worker) if worker.can_cancel())
    }

    /// Delivers events and measures the duration.
    pub(super) async fn send(&self, events: Notification, form: Form, status: &HandlerStatus) -> Sent {
        let begun = Instant::now();
        let outcome = self.deliver(events.clone(), form, status).await;
        Sent { events, form, outcome, took: begun.elapsed() }
    }

    async fn deliver(&self, notification: Notification, form: Form, status: &HandlerStatus) -> AttemptOutcome {
        match self {
            Self::Thread(worker) => hear(worker.deliver(notification, form), status).await,
            Self::InPlace(handler) => guard(|| lock(handler).deliver(&notification)),
            Self::Actor(actor, patience) => match timeout(*patience, actor.send(notification)).await {
                Ok(Ok(Ok(()))) => AttemptOutcome::Delivered,
                Ok(Ok(Err(Stopped(reason)))) => AttemptOutcome::Failed(HandlerError::Closed(reason)),
                Ok(Err(_)) if actor.connected() => {
                    AttemptOutcome::Panicked("the handler's actor dropped the batch".into())
                }
                Ok(Err(_)) => AttemptOutcome::Failed(HandlerError::Closed("the handler's actor has ended".into())),
                Err(_) => AttemptOutcome::Failed(HandlerError::Failed(format!("no answer within {patience:?}"))),
            },
        }
    }

    /// Closes the sink; no delivery follows.
    pub(super) async fn close(&self) -> AttemptOutcome {
        match self {
            Self::Thread(worker) => worker.close().await,
            Self::InPlace(handler) => guard(|| lock(handler).close()),
            Self::Actor(..) => AttemptOutcome::Delivered,
        }
    }
}

/// Waits for the end of an attempt on a thread, and reports a hung thread. If the thread was replaced, the attempt has
/// failed.
async fn hear(mut attempt: Attempt<'_>, status: &HandlerStatus) -> AttemptOutcome {
    loop {
        match attempt.hear().await {
            Heard::Answer(outcome) => return outcome,
            Heard::Replaced(silent) => {
                status.lock().threads_replaced += 1;
                let error = format!("no answer within {silent:.1?}; the handler's thread was replaced");
                return AttemptOutcome::Failed(HandlerError::Failed(error));
            }
            Heard::Stuck(silent) => {
                let error = format!("no answer within {silent:.1?}, and too many of the handler's threads are hung");
                let mut counts = status.lock();
                counts.note_error(error.as_str());
                let was_hung = std::mem::replace(&mut counts.is_hung, true);
                drop(counts);
                if !was_hung {
                    error!(handler = status.name(), %error, "handler is hung; waiting for one of its threads");
                }
            }
        }
    }
}
