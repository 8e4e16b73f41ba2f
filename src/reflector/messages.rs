//! Messages between a reflector, its queue and its unit.

use std::sync::{Arc, atomic::AtomicU32};

use actix::{Message, Recipient};
use tokio::time::Instant;

use super::{Comparison, Listed, ReflectorEvent};
use crate::{
    object::ResourceVersion,
    status::{Timings, UnitStatus},
};

/// Events of the reflector, in stream order. The answer means: there is room for more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Events {
    pub(crate) events: Vec<ReflectorEvent>,
    /// Time at which the reflector received them.
    pub(crate) received: Instant,
}

/// A list to be held against what is known once everything queued is applied (D7).
#[derive(Debug, Message)]
#[rtype(result = "Comparison")]
pub(crate) struct Compare(pub Listed);

/// Ends the reflector: nothing is requested any more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// State that a reflector shares with its unit, and with the reflector before it.
pub(crate) struct UnitHooks {
    pub(crate) status: Arc<UnitStatus>,
    pub(crate) timings: Arc<Timings>,
    /// Round of the last resync.
    pub(crate) round: Arc<AtomicU32>,
    /// Says whether anybody waits for a round (S-11). It must be quick.
    pub(crate) is_due: Box<dyn Fn(u32) -> bool>,
    /// Takes the server's version when that was asked for, before anything else of it is handed on. It must be quick.
    pub(crate) server_is_at: Box<dyn Fn(&ResourceVersion)>,
}

/// The two ways to the DeltaFIFO: what is told, and what is asked.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Takes events.
    pub(crate) events: Recipient<Events>,
    /// Holds a list against what is known.
    pub(crate) compare: Recipient<Compare>,
}
