//! Actor around [`Indexer`](super::Indexer): it applies one batch at a time, through an `IndexerWriter`.
//!
//! The unit stores its indexer in an `IndexerSlot`. An actor leases the indexer from the slot. When the actor ends, even by a
//! panic, the indexer returns to the slot. So the cache stays readable while a unit restarts. If an actor ended between append and
//! publish, the next actor applies the transaction again.
//!
//! While the journal takes no appends, the actor keeps its pending transaction and still answers other messages. The FIFO sends no
//! further batch until the actor has applied the transaction. Once the FIFO is full, the socket is not read
//! (`on_full = "stop_reading"`).

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, ActorResponse, AsyncContext as _, Context, Handler, Message,
    ResponseActFuture, SpawnHandle, WrapFuture as _,
};
use tracing::{debug, error};

use super::{Transaction, index_func::IndexFunc, store::IndexExists, writer::IndexerWriter};
use crate::{
    delta_fifo::messages::{Apply, Repacked},
    journal::{AppendError, Attachment},
    supervisor::child::Heartbeat,
};

/// Idle time after which the actor publishes once more. Only a further publish frees the values that the last one replaced.
const IDLE_PUBLISH_AFTER: Duration = Duration::from_millis(250);

/// Adds indexes over the content of the cache (I-7). After the answer, readers can use them.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), AddIndexersError>")]
pub struct AddIndexers(pub Vec<IndexFunc>);

/// Reason why indexes were not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddIndexersError {
    /// One of the names exists already, so no index was added.
    #[error(transparent)]
    Exists(#[from] IndexExists),
    /// The unit is restarting (retry), or it was stopped (do not retry).
    #[error("the indexer is not running")]
    NotRunning,
}

/// Attaches a journal reader to the unit, or detaches it, between two batches (S-5, S-7). The reader gets one record for each cached
/// object. A reader that is attached gets no records if it wants none, or if the cache keeps no bodies. The answer comes after the
/// records are released. After an error, nothing was appended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), AppendError>")]
pub struct AttachReader(pub Attachment);

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
    /// Returns the actor of the unit that `writer` writes for.
    pub(crate) fn new(writer: IndexerWriter) -> Self {
        Self { writer, idle: None }
    }

    /// Writes a transaction. Returns it as an error if the journal takes no appends now.
    fn apply(&mut self, transaction: Arc<Transaction>, ctx: &mut Context<Self>) -> Result<(), Arc<Transaction>> {
        match self.writer.write(&transaction) {
            Ok(()) => self.publish_when_idle(ctx),
            Err(AppendError::Fenced(fenced)) => {
                error!(error = %fenced, "stopped writing: another actor owns this unit now");
                ctx.stop();
            }
            Err(AppendError::NotWritable(why)) => {
                debug!(%why, "waiting for the journal");
                return Err(transaction);
            }
        }
        Ok(())
    }

    /// Applies a transaction once the journal takes appends.
    fn apply_later(&self, transaction: Arc<Transaction>) -> ResponseActFuture<Self, ()> {
        let journal = self.writer.journal.clone();
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
            actor.writer.lease.indexer().publish_idle();
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

impl Handler<Repacked> for IndexerActor {
    type Result = ();

    fn handle(&mut self, Repacked(objects): Repacked, ctx: &mut Self::Context) {
        self.writer.replace(&objects);
        self.publish_when_idle(ctx);
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
        Ok(self.writer.lease.indexer().add_indexers(indexes)?)
    }
}

impl Handler<AttachReader> for IndexerActor {
    type Result = Result<(), AppendError>;

    fn handle(&mut self, AttachReader(asked): AttachReader, _ctx: &mut Self::Context) -> Self::Result {
        self.writer.attach_reader(asked)
    }
}

impl Handler<Heartbeat> for IndexerActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(fault): Heartbeat, _ctx: &mut Self::Context) {
        self.writer.harm(fault);
    }
}
