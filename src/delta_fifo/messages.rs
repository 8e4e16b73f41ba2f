//! Messages of the queue to the indexer, and the message that ends the queue.

use actix::{Message, Recipient};

use super::Deltas;
use crate::object::Object;

/// One transaction for the indexer. The answer is sent after the transaction was applied, published and released.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Apply(pub Deltas);

/// Cached objects that were packed again. Only their packed form has changed, not their content.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Repacked(pub Vec<Object>);

/// Addresses of the next stage: the actor of the indexer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) apply: Recipient<Apply>,
    /// Receives [`Repacked`] objects while no transaction is in flight.
    pub(crate) repacked: Recipient<Repacked>,
}

/// End of the input: the queue hands out the queued deltas, and then stops (F-70).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;
