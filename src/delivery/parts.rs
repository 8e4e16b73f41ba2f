//! Parts of a handler's actor, and the messages that it understands.

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

/// Contact to the running actor of a handler.
#[derive(Clone, Debug)]
pub struct Contact {
    /// Takes events that another handler gave up.
    pub(super) dead_letters: Recipient<DeadLetter>,
    /// Answers heartbeats.
    pub heartbeats: Recipient<Heartbeat>,
}

/// Contact to a handler, which outlives its actors.
#[derive(Clone, Debug, Default)]
pub struct HandlerSlot(Arc<Mutex<Option<Contact>>>);

impl HandlerSlot {
    /// Returns the contact to the running actor, if there is one.
    pub fn get(&self) -> Option<Contact> {
        lock(&self.0).clone()
    }

    pub(super) fn set(&self, contact: Option<Contact>) {
        *lock(&self.0) = contact;
    }
}

/// Parts of a handler's actor, the same for each of its lives.
#[derive(Clone)]
pub struct HandlerParts {
    /// Decisions.
    pub core: CoreOptions,
    /// Destination of the events.
    pub sink: Sink,
    /// Handler that takes what this one gives up.
    pub dead_letter: Option<HandlerSlot>,
    /// Status, counters and pause switch.
    pub status: Arc<HandlerStatus>,
}

/// End of an actor that did not panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its sink was closed, as ordered.
    Closed,
    /// Its sink is closed for good; the reason.
    Sink(String),
}

/// Request of the engine to a handler's actor; it replaces the one before.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Ordered {
    /// Request, with times since the epoch of the actor.
    pub(super) order: HandlerOrder,
    /// Set when the handler is paused.
    pub(super) is_paused: bool,
}

/// Events that another handler gave up.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Stopped>")]
pub(super) struct DeadLetter(pub(super) Notification);
