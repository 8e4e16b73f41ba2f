//! What lanes are made of, and what they and the actors at their ends say to each other.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Message, Recipient};
use tokio::{sync::watch, time::Instant};

use super::{Notification, Route, schedule::ScheduleOptions};
use crate::{
    journal::{Bounds, EventName},
    mutex::lock,
    supervisor::child::Heartbeat,
};

/// The answer to a [`Notification`] by a handler that has ended and takes no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(pub String);

/// `Ok` means: delivered, or given up as configured; it is acknowledged and not sent again.
impl Message for Notification {
    type Result = Result<(), Stopped>;
}

/// Events that another handler gave up.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Stopped>")]
pub struct DeadLetter(pub Notification);

/// Nothing more will come: flush, sync, end. The answer is what went wrong.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), String>")]
pub struct Close {
    /// What attempts under way may take; what waits to be repeated ends at once.
    pub patience: Duration,
}

/// Pauses a lane; whoever has a clone of it may do so. It outlives the lane's handlers.
#[derive(Clone, Debug, Default)]
pub struct PauseSwitch(watch::Sender<bool>);

impl PauseSwitch {
    /// Pauses the lane, or lets it go on.
    pub fn set(&self, paused: bool) {
        self.0.send_replace(paused);
    }

    /// Returns whether it is paused.
    pub fn is_paused(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns what says so, and when that changes.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// Where a lane leads.
#[derive(Clone, Debug)]
pub struct LaneAddress {
    /// Takes batches, as many at a time as the lane's schedule says.
    pub events: Recipient<Notification>,
    /// Takes what other lanes give up.
    pub dead_letters: Recipient<DeadLetter>,
    /// Takes the end; what is in delivery ends at the next pause.
    pub close: Recipient<Close>,
    /// Says that the actor lives.
    pub heartbeat: Recipient<Heartbeat>,
}

/// The address of a lane that may be started again meanwhile; what a dead letter is reached by.
#[derive(Clone, Debug, Default)]
pub struct LaneSlot(Arc<Mutex<Option<LaneAddress>>>);

impl LaneSlot {
    /// Returns where the lane leads now; `None` before its first start and after its end.
    pub fn get(&self) -> Option<LaneAddress> {
        lock(&self.0).clone()
    }

    pub(super) fn set(&self, address: Option<LaneAddress>) {
        *lock(&self.0) = address;
    }
}

/// What a lane is made of.
pub struct LaneOptions {
    /// Name of the handler.
    pub name: String,
    /// What it wants.
    pub route: Route,
    /// What may wait for it.
    pub bounds: Bounds,
    /// Which of it goes out together, and how much at a time.
    pub schedule: ScheduleOptions,
    /// Pauses it.
    pub pause: PauseSwitch,
    /// It takes what others give up, so it is closed after them.
    pub dead_letter: bool,
    /// The handler writes to a pipe: once the reader of that has left, what is not delivered is not lost.
    pub is_pipe: bool,
    /// Where its current address is kept.
    pub slot: LaneSlot,
    /// Starts the actor behind the lane, on the dispatcher's arbiter; again whenever that actor has ended by itself.
    pub start: Box<dyn Fn() -> LaneAddress + Send + Sync>,
}

/// What a stop left undelivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Name of the handler.
    pub handler: String,
    /// How many events.
    pub events: u64,
    /// The oldest of them, up to a hundred.
    pub named: Vec<EventName>,
}

/// How a lane is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// What waits is delivered, until the deadline; the rest is named.
    Drain(Instant),
    /// The call in flight ends, what waits is forgotten (S-7).
    Discard,
}
