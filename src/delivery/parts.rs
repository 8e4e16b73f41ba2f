//! Parts of a handler's actor, and its messages.

use std::sync::{Arc, Mutex};

use actix::{Message, Recipient};

use super::{
    core::{CoreOptions, HandlerOrder},
    sink::Sink,
    status::HandlerStatus,
};
use crate::{
    mutex::lock,
    notification::{Notification, Stopped},
    supervisor::child::Heartbeat,
};

/// Addresses of a handler's running actor.
#[derive(Clone, Debug)]
pub struct Contact {
    /// Receives events that another handler gave up.
    pub(super) dead_letters: Recipient<DeadLetter>,
    /// Answers heartbeats.
    #[cfg(any(test, feature = "testing"))]
    pub heartbeats: Recipient<Heartbeat>,
}

/// Slot with the addresses of a handler's current actor. It outlives the actors.
#[derive(Clone, Debug, Default)]
pub struct HandlerSlot(Arc<Mutex<Option<Contact>>>);

impl HandlerSlot {
    /// Returns the addresses of the running actor, if there is one.
    pub fn get(&self) -> Option<Contact> {
        lock(&self.0).clone()
    }

    pub(super) fn set(&self, contact: Option<Contact>) {
        *lock(&self.0) = contact;
    }
}

/// Parts of a handler's actor. A restarted actor has the same parts.
#[derive(Clone)]
pub struct HandlerParts {
    /// Options of the core.
    pub core: CoreOptions,
    /// Destination of the events.
    pub sink: Sink,
    /// Handler that receives the events that this one gives up.
    pub dead_letter: Option<HandlerSlot>,
    /// Status, counters and pause switch.
    pub status: Arc<HandlerStatus>,
}

/// End of an actor that did not panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Sink closed on request.
    Closed,
    /// Sink closed for good, for this reason.
    Sink(String),
}

/// Request of the engine to a handler's actor; it replaces the previous one.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Ordered {
    /// The request, with times since the epoch of the actor.
    pub(super) order: HandlerOrder,
    /// Set when the handler is paused.
    pub(super) is_paused: bool,
}

/// Events that another handler gave up.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Stopped>")]
pub(super) struct DeadLetter(pub(super) Notification);
