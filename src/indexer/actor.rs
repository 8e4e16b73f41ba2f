//! The shell of [`Indexer`]: append → publish → release, in this order and nowhere else (D7, I3).
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
use jiff::Timestamp;
use tracing::{debug, error, info};

use super::{
    Cause, Change, Indexer, Retirement, Transaction, index_func::IndexFunc, retirement, slot::IndexerLease,
    store::IndexExists,
};
use crate::{
    delta_fifo::actor::{Apply, Repack},
    journal::{AppendError, Journal, Move, MoveKind, Ticket, UnitId},
    status::{Siblings, UnitStatus},
    supervisor::{
        child::Heartbeat,
        fault::{Fault, Moment},
    },
};

/// Replaced values live until the next publish; after so long at rest there is one more.
const IDLE_PUBLISH_AFTER: Duration = Duration::from_millis(250);

/// Brings the cache to where the journal is, after an actor that ended between append and release.
pub(crate) fn recover(lease: &mut IndexerLease, journal: &Journal, unit: UnitId, status: &UnitStatus) {
    let in_flight = lease.slot.in_flight();
    lease.indexer().discard(); // what may be half staged
    finish(lease.indexer(), in_flight.as_deref(), journal.outstanding(unit), status);
    lease.set_in_flight(None);
    if let Some(ticket) = journal.outstanding(unit) {
        journal.release(ticket);
    }
}

/// Applies and publishes a transaction whose records lie in the journal, unreleased; does nothing without a ticket.
/// Whoever calls it releases the ticket then.
pub(crate) fn finish(
    indexer: &mut Indexer,
    in_flight: Option<&Transaction>,
    ticket: Option<Ticket>,
    status: &UnitStatus,
) {
    if let (Some(transaction), Some(ticket)) = (in_flight, ticket) {
        indexer.commit(transaction);
        indexer.reach_place(ticket.last.0);
        indexer.publish(now_micros());
        observe(indexer, &transaction.changes, status);
        info!(changes = transaction.changes.len(), "applied the batch that was journaled before the restart");
    }
}

fn observe(indexer: &Indexer, changes: &[Change], status: &UnitStatus) {
    let mut view = status.lock();
    view.count(changes);
    view.show_cache(indexer.store().meta());
}

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

fn now_micros() -> i64 {
    Timestamp::now().as_microsecond()
}

/// The actor around one [`Indexer`].
pub struct IndexerActor {
    lease: IndexerLease,
    journal: Journal,
    unit: UnitId,
    epoch: u64,
    siblings: Arc<Siblings>,
    status: Arc<UnitStatus>,
    idle: Option<SpawnHandle>,
    /// What goes wrong with the next batch, in a test.
    fault: Fault,
}

impl IndexerActor {
    /// Makes the actor of a unit in one epoch; a later one fences this actor off the journal.
    pub(crate) fn new(
        lease: IndexerLease,
        journal: Journal,
        (unit, epoch): (UnitId, u64),
        siblings: Arc<Siblings>,
        status: Arc<UnitStatus>,
    ) -> Self {
        Self { lease, journal, unit, epoch, siblings, status, idle: None, fault: Fault::default() }
    }

    /// Appends a transaction. The one that completes the unit says whether it completes its type.
    fn append(&self, transaction: Arc<Transaction>) -> Result<(Arc<Transaction>, Ticket), AppendError> {
        let append = |transaction: Arc<Transaction>| {
            self.lease.set_in_flight(Some(Arc::clone(&transaction)));
            let Transaction { changes, reached, .. } = &*transaction;
            let ticket = self.journal.append(self.unit, self.epoch, changes, reached, Timestamp::now())?;
            Ok((transaction, ticket))
        };
        let objects = transaction.objects;
        if !transaction.completes_initial() {
            self.siblings.note(self.unit, objects);
            return append(transaction);
        }
        self.siblings.sync(self.unit, objects, |total| {
            let mut transaction = Arc::unwrap_or_clone(transaction);
            transaction.set_total(total);
            append(Arc::new(transaction))
        })
    }

    /// Shows a reader that comes what there is, or one that goes that it is gone, each object once and by its key.
    fn move_reader(&self, Move { reader, kind }: Move) -> Result<(), AppendError> {
        let indexer = self.lease.get();
        let now = Timestamp::now();
        match kind {
            MoveKind::Join(cause) => {
                let shown = cause.filter(|_| indexer.keeps_bodies());
                let changes: Vec<_> = shown.map_or_else(Vec::new, |cause| {
                    let objects = indexer.objects().into_iter();
                    objects.map(|object| Change::Added { object, cause }).collect()
                });
                self.journal.join(reader, self.unit, self.epoch, &changes, now)
            }
            MoveKind::Leave => {
                let changes = retirement(indexer.objects(), Retirement::Removed(Cause::Reload));
                self.journal.leave(reader, self.unit, self.epoch, &changes, now)
            }
        }
    }

    /// Appends, publishes and releases a transaction. One that the journal does not take now is given back.
    fn apply(&mut self, transaction: Arc<Transaction>, ctx: &mut Context<Self>) -> Result<(), Arc<Transaction>> {
        let mut span = self.status.begin_batch(transaction.changes.len());
        let (transaction, ticket) = match self.append(Arc::clone(&transaction)) {
            Ok(appended) => appended,
            Err(AppendError::Fenced(fenced)) => {
                error!(error = %fenced, "stopped writing: another actor has taken this unit over");
                ctx.stop();
                return Ok(());
            }
            Err(AppendError::NotWritable(why)) => {
                debug!(unit = self.unit.0, %why, "waiting for the journal");
                return Err(transaction);
            }
        };
        if ticket.first <= ticket.last {
            span.appended(ticket.first.0, ticket.last.0);
        }
        self.strike(Moment::BeforePublish);
        let indexer = self.lease.indexer();
        indexer.commit(&transaction);
        indexer.reach_place(ticket.last.0);
        indexer.publish(now_micros());
        self.strike(Moment::BeforeRelease);
        self.journal.release(ticket);
        self.lease.set_in_flight(None);
        observe(self.lease.indexer(), &transaction.changes, &self.status);
        self.publish_when_idle(ctx);
        Ok(())
    }

    /// Applies a transaction when the journal takes it.
    fn apply_later(&self, transaction: Arc<Transaction>) -> ResponseActFuture<Self, ()> {
        let journal = self.journal.clone();
        let writable = async move { journal.writable().await }.into_actor(self);
        Box::pin(writable.then(|(), actor, ctx| match actor.apply(transaction, ctx) {
            Ok(()) => Box::pin(actix::fut::ready(())),
            Err(transaction) => actor.apply_later(transaction),
        }))
    }

    fn strike(&mut self, moment: Moment) {
        self.fault.strike(moment, "indexer actor");
    }

    fn publish_when_idle(&mut self, ctx: &mut Context<Self>) {
        if let Some(idle) = self.idle.take() {
            ctx.cancel_future(idle);
        }
        self.idle = Some(ctx.run_later(IDLE_PUBLISH_AFTER, |actor, _| {
            actor.idle = None;
            actor.lease.indexer().publish_idle();
        }));
    }
}

impl Actor for IndexerActor {
    type Context = Context<Self>;
}

impl Handler<Apply> for IndexerActor {
    type Result = ActorResponse<Self, ()>;

    fn handle(&mut self, Apply(deltas): Apply, ctx: &mut Self::Context) -> Self::Result {
        let transaction = Arc::new(self.lease.indexer().plan(deltas));
        self.lease.set_in_flight(Some(Arc::clone(&transaction)));
        self.strike(Moment::BeforeAppend);
        match self.apply(transaction, ctx) {
            Ok(()) => ActorResponse::reply(()),
            Err(transaction) => ActorResponse::r#async(self.apply_later(transaction)),
        }
    }
}

impl Handler<Repack> for IndexerActor {
    type Result = MessageResult<Repack>;

    fn handle(&mut self, Repack: Repack, ctx: &mut Self::Context) -> Self::Result {
        let repacked = self.lease.indexer().repack();
        self.status.lock().show_cache(self.lease.get().store().meta());
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
        Ok(self.lease.indexer().add_indexers(indexes, now_micros())?)
    }
}

impl Handler<MoveReader> for IndexerActor {
    type Result = Result<(), MoveError>;

    fn handle(&mut self, MoveReader(asked): MoveReader, _ctx: &mut Self::Context) -> Self::Result {
        Ok(self.move_reader(asked)?)
    }
}

impl Handler<Heartbeat> for IndexerActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(fault): Heartbeat, _ctx: &mut Self::Context) {
        self.fault.put(fault);
        self.strike(Moment::Now);
    }
}
