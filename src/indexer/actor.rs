//! The shell of [`Indexer`](super::Indexer): one batch at a time, through an `IndexerWriter`.
//!
//! The indexer outlives its actor: it lies in an `IndexerSlot` of the unit, is leased by the actor and put back
//! when the actor ends, panics included, so the cache stays readable while a unit restarts (D5). A transaction that
//! was journaled but not published when the actor ended is done again by the next one.
//!
//! While the journal takes nothing, the actor keeps its transaction and answers everything but the batch: without its
//! answer the FIFO sends no other, fills up, and the socket is not read (`on_full = "stop_reading"`).

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, ActorResponse, AsyncContext as _, Context, Handler, Message,
    MessageResult, ResponseActFuture, SpawnHandle, WrapFuture as _,
};
use tracing::{debug, error};

use super::{
    Transaction,
    index_func::IndexFunc,
    store::IndexExists,
    writer::{IndexerWriter, now_micros},
};
use crate::{
    delta_fifo::messages::{Apply, Repack},
    journal::{AppendError, Move},
    supervisor::child::Heartbeat,
};

/// Replaced values live until the next publish; after so long at rest there is one more.
const IDLE_PUBLISH_AFTER: Duration = Duration::from_millis(250);

/// Adds indexes over what the cache holds (I-7). The answer means: readers can use them.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), AddIndexersError>")]
pub struct AddIndexers(pub Vec<IndexFunc>);

/// Why indexes were not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddIndexersError {
    /// One of the names is taken; none was added.
    #[error(transparent)]
    Exists(#[from] IndexExists),
    /// The unit is being restarted, or was stopped: try again, or do not.
    #[error("the indexer is not running now")]
    NotRunning,
}

/// Lets a reader of the journal in or out, between two batches (S-5, S-7). The answer means: what it sees because of
/// that is released. To a late reader a cache without bodies has nothing to show, and it joins silently.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), MoveError>")]
pub struct MoveReader(pub Move);

/// Why a reader was not moved; nothing was appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Another actor has taken the unit over, or the journal takes nothing now: try again.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The unit is being started or restarted: try again. Or it was stopped: do not.
    #[error("the indexer is not running now")]
    NotRunning,
}

/// Ends the indexer.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Terminate;

/// The actor around one [`Indexer`](super::Indexer).
pub struct IndexerActor {
    writer: IndexerWriter,
    idle: Option<SpawnHandle>,
}

impl IndexerActor {
    /// Makes the actor of the unit that `writer` writes for.
    pub(crate) fn new(writer: IndexerWriter) -> Self {
        Self { writer, idle: None }
    }

    /// Writes a transaction. One that the journal does not take now is given back.
    fn apply(&mut self, transaction: Arc<Transaction>, ctx: &mut Context<Self>) -> Result<(), Arc<Transaction>> {
        match self.writer.write(&transaction) {
            Ok(()) => self.publish_when_idle(ctx),
            Err(AppendError::Fenced(fenced)) => {
                error!(error = %fenced, "stopped writing: another actor has taken this unit over");
                ctx.stop();
            }
            Err(AppendError::NotWritable(why)) => {
                debug!(%why, "waiting for the journal");
                return Err(transaction);
            }
        }
        Ok(())
    }

    /// Applies a transaction when the journal takes it.
    fn apply_later(&self, transaction: Arc<Transaction>) -> ResponseActFuture<Self, ()> {
        let journal = self.writer.journal().clone();
        let writable = async move { journal.writable().await }.into_actor(self);
        Box::pin(writable.then(|(), actor, ctx| match actor.apply(transaction, ctx) {
            Ok(()) => Box::pin(actix::fut::ready(())),
            Err(transaction) => actor.apply_later(transaction),
        }))
    }

    fn publish_when_idle(&mut self, ctx: &mut Context<Self>) {
        if let Some(idle) = self.idle.take() {
            ctx.cancel_future(idle);
        }
        self.idle = Some(ctx.run_later(IDLE_PUBLISH_AFTER, |actor, _| {
            actor.idle = None;
            actor.writer.indexer().publish_idle();
        }));
    }
}

impl Actor for IndexerActor {
    type Context = Context<Self>;
}

impl Handler<Apply> for IndexerActor {
    type Result = ActorResponse<Self, ()>;

    fn handle(&mut self, Apply(deltas): Apply, ctx: &mut Self::Context) -> Self::Result {
        let transaction = self.writer.plan(deltas);
        match self.apply(transaction, ctx) {
            Ok(()) => ActorResponse::reply(()),
            Err(transaction) => ActorResponse::r#async(self.apply_later(transaction)),
        }
    }
}

impl Handler<Repack> for IndexerActor {
    type Result = MessageResult<Repack>;

    fn handle(&mut self, Repack: Repack, ctx: &mut Self::Context) -> Self::Result {
        let repacked = self.writer.repack();
        self.publish_when_idle(ctx);
        MessageResult(repacked)
    }
}

impl Handler<Terminate> for IndexerActor {
    type Result = ();

    fn handle(&mut self, Terminate: Terminate, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<AddIndexers> for IndexerActor {
    type Result = Result<(), AddIndexersError>;

    fn handle(&mut self, AddIndexers(indexes): AddIndexers, _ctx: &mut Self::Context) -> Self::Result {
        Ok(self.writer.indexer().add_indexers(indexes, now_micros())?)
    }
}

impl Handler<MoveReader> for IndexerActor {
    type Result = Result<(), MoveError>;

    fn handle(&mut self, MoveReader(asked): MoveReader, _ctx: &mut Self::Context) -> Self::Result {
        Ok(self.writer.move_reader(asked)?)
    }
}

impl Handler<Heartbeat> for IndexerActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(fault): Heartbeat, _ctx: &mut Self::Context) {
        self.writer.harm(fault);
    }
}
