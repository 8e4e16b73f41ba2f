//! Destination of a handler's events: a worker thread, code that never blocks, or an actor.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::Recipient;
use tokio::time::timeout;

use super::{
    attempts::{AttemptError, AttemptOutcome},
    status::HandlerStatus,
    worker::{Open, Worker, guard},
};
use crate::{
    handler::{Form, Handler, HandlerError},
    mutex::lock,
    notification::{Notification, Stopped},
};

/// Destination of a handler's events.
pub(crate) enum Sink {
    /// A thread of its own, for a sink that blocks or waits.
    Thread(Worker),
    /// Code that never blocks, called in place.
    InPlace(Arc<Mutex<dyn Handler>>),
    /// Actor of a library user, and the timeout of its answers. If the actor does not answer in time, the attempt fails and is
    /// retried. The answer `Err` means that the actor has ended.
    Actor(Recipient<Notification>, Duration),
}

impl Sink {
    /// Returns true if the handler is asynchronous. Such a handler accepts all forms, and an attempt ends when its future is
    /// dropped.
    pub(crate) fn is_async(&self) -> bool {
        matches!(self, Self::Thread(Worker { open: Open::Async { .. }, .. }))
    }

    /// Delivers events.
    pub(super) async fn deliver(
        &self,
        notification: Notification,
        form: Form,
        status: &HandlerStatus,
    ) -> AttemptOutcome {
        match self {
            Self::Thread(worker) => worker.deliver(notification, form, status).await,
            Self::InPlace(handler) => guard(|| lock(handler).deliver(&notification)),
            Self::Actor(actor, patience) => match timeout(*patience, actor.send(notification)).await {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(Stopped(reason)))) => Err(HandlerError::Closed(reason).into()),
                Ok(Err(_)) if actor.connected() => {
                    Err(AttemptError::Panicked("the handler's actor dropped the batch".into()))
                }
                Ok(Err(_)) => Err(HandlerError::Closed("the handler's actor has ended".into()).into()),
                Err(_) => Err(HandlerError::Failed(format!("no answer within {patience:?}")).into()),
            },
        }
    }

    /// Closes the sink; no delivery follows.
    pub(super) async fn close(&self) -> AttemptOutcome {
        match self {
            Self::Thread(worker) => worker.close().await,
            Self::InPlace(handler) => guard(|| lock(handler).close()),
            Self::Actor(..) => Ok(()),
        }
    }
}
