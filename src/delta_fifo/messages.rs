//! Messages of the queue to the indexer, and the message that ends the queue.

use actix::{Message, Recipient};

use super::{Deltas, Repacked};

/// One transaction for the indexer. The answer is sent after it was applied, published and released.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Apply(pub Deltas);

/// Request to pack some cached objects again.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Repacked")]
pub(crate) struct Repack;

/// Addresses of the next stage: the actor of the indexer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) apply: Recipient<Apply>,
    /// Receives a [`Repack`] while no transaction is in flight.
    pub(crate) repack: Recipient<Repack>,
}

/// End of the input: the queue hands out the queued deltas, and then stops (F-70).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;
