//! Messages of a queue: what it sends to the indexer, and its end.

use actix::{Message, Recipient};

use super::{Deltas, Repacked};

/// One transaction for the indexer. The answer means: applied, published and released.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Apply(pub Deltas);

/// Requests that some cached objects are packed again.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Repacked")]
pub(crate) struct Repack;

/// Addresses of the next stage: the actor of the indexer.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) apply: Recipient<Apply>,
    /// Packs again while there is no transaction.
    pub(crate) repack: Recipient<Repack>,
}

/// Nothing more will be pushed: hand out what is queued, then stop (F-70).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;
