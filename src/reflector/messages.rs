//! Messages between a reflector, its queue and its unit.

use std::sync::{Arc, atomic::AtomicU32};

use actix::{Message, Recipient};
use tokio::time::Instant;

use super::{Comparison, ReflectorEvent};
use crate::{
    object::{Object, ResourceVersion},
    status::{Timings, UnitStatus},
};

/// Events of the reflector, in stream order. The queue answers when it has room for more events.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Events {
    pub(crate) events: Vec<ReflectorEvent>,
    /// Time at which the reflector received the events.
    pub(crate) received: Instant,
}

/// A list to compare with the known objects once all queued events are applied.
#[derive(Debug, Message)]
#[rtype(result = "Comparison")]
pub(crate) struct Compare(pub Arc<Vec<Object>>);

/// Stops the reflector: it sends no more requests.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// State that a reflector shares with its unit and with the previous reflector of the unit, and callbacks of the unit.
pub(crate) struct UnitHooks {
    pub(crate) status: Arc<UnitStatus>,
    pub(crate) timings: Arc<Timings>,
    /// Number of the last resync.
    pub(crate) round: Arc<AtomicU32>,
    /// Returns true if a handler waits for the resync with this number (S-11). The function must be quick.
    pub(crate) is_due: Box<dyn Fn(u32) -> bool>,
    /// Receives the server's version after a check, before any event of the same step is emitted. The function must be quick.
    pub(crate) server_is_at: Box<dyn Fn(&ResourceVersion)>,
}

/// Addresses of the DeltaFIFO: one for events, one for comparisons.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Receives events.
    pub(crate) events: Recipient<Events>,
    /// Compares a list with the known objects.
    pub(crate) compare: Recipient<Compare>,
}
