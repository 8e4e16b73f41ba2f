//! The shell of [`DeltaFifo`]: one batch in flight to the indexer, the rest appended meanwhile (D3).
//!
//! The reply to an [`Events`] message is the reflector's credit: it is held back while more than `fifo_max_bytes`
//! wait, so the reflector stops reading its socket and the API server feels it (F-32, I5).

use std::sync::Arc;

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, MessageResult,
    Recipient, ResponseFuture, WrapFuture as _,
};
use tokio::{sync::oneshot, time::Instant};

use super::{DeltaFifo, Deltas, Repacked};
use crate::{
    reflector::{Comparison, Event, Listed},
    status::UnitStatus,
    supervisor::child::{Heartbeat, Inject},
};

/// Events of the reflector, in stream order. The answer means: there is room for more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Events(pub Vec<Event>);

/// A list to be held against what is known once everything queued is applied (D7).
#[derive(Debug, Message)]
#[rtype(result = "Comparison")]
pub struct Compare(pub Listed);

/// One transaction for the indexer. The answer means: applied, published and released.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Apply(pub Deltas);

/// Some of what the cache holds shall be packed anew.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Repacked")]
pub struct Repack;

/// Whom a queue speaks to: the actor of the indexer.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// Takes its batches.
    pub apply: Recipient<Apply>,
    /// Packs anew while there is none.
    pub repack: Recipient<Repack>,
}

/// Nothing more will be pushed: hand out what is queued, then stop (F-70).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

/// The actor around one [`DeltaFifo`].
#[derive(Debug)]
pub struct DeltaFifoActor {
    fifo: DeltaFifo,
    indexer: Consumer,
    max_bytes: usize,
    status: Arc<UnitStatus>,
    in_flight: bool,
    waiting_for_room: Option<oneshot::Sender<()>>,
    /// When the oldest of what is queued, and of what is in flight, arrived.
    queued_since: Option<Instant>,
    in_flight_since: Option<Instant>,
}

impl DeltaFifoActor {
    /// Makes the actor; `max_bytes` is the bound at which the reflector is held back.
    pub fn new(fifo: DeltaFifo, indexer: Consumer, max_bytes: usize, status: Arc<UnitStatus>) -> Self {
        Self {
            fifo,
            indexer,
            max_bytes,
            status,
            in_flight: false,
            waiting_for_room: None,
            queued_since: None,
            in_flight_since: None,
        }
    }

    /// Sends the next batch unless one is on its way.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        if self.in_flight {
            return;
        }
        let Some(deltas) = self.fifo.pop() else {
            if self.fifo.is_closed() {
                ctx.stop();
            } else if self.fifo.wants_repacking() {
                self.repack(ctx);
            }
            return;
        };
        self.in_flight = true;
        self.in_flight_since = self.queued_since;
        if self.fifo.is_empty() {
            self.queued_since = None;
        }
        let applied = self.indexer.apply.send(Apply(deltas)).into_actor(self).map(|answer, fifo, ctx| {
            if answer.is_err() {
                ctx.stop(); // the indexer is gone: the unit is about to be restarted as a whole
                return;
            }
            fifo.in_flight = false;
            fifo.in_flight_since = None;
            fifo.fifo.processed();
            fifo.pump(ctx);
            fifo.grant_room();
            fifo.publish_status();
        });
        ctx.spawn(applied);
    }

    /// Has some of the cache packed anew; what comes meanwhile waits for it as for a batch.
    fn repack(&mut self, ctx: &mut Context<Self>) {
        self.in_flight = true;
        let repacked = self.indexer.repack.send(Repack).into_actor(self).map(|answer, fifo, ctx| {
            let Ok(repacked) = answer else {
                ctx.stop(); // as above
                return;
            };
            fifo.in_flight = false;
            fifo.fifo.repacked(&repacked);
            fifo.pump(ctx);
            fifo.publish_status();
        });
        ctx.spawn(repacked);
    }

    fn has_room(&self) -> bool {
        self.fifo.queued_bytes() <= self.max_bytes
    }

    fn grant_room(&mut self) {
        if self.has_room()
            && let Some(waiting) = self.waiting_for_room.take()
        {
            let _the_reflector_is_gone = waiting.send(());
        }
    }

    fn publish_status(&self) {
        let mut view = self.status.lock();
        view.queue_length = self.fifo.len() as u64;
        view.queue_bytes = self.fifo.queued_bytes() as u64;
        view.waiting_since = self.in_flight_since.or(self.queued_since).map(Instant::into_std);
    }
}

impl Actor for DeltaFifoActor {
    type Context = Context<Self>;

    fn started(&mut self, _ctx: &mut Self::Context) {
        self.publish_status(); // what an actor before left there is gone
    }
}

impl Handler<Events> for DeltaFifoActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Events(events): Events, ctx: &mut Self::Context) -> Self::Result {
        self.queued_since.get_or_insert_with(Instant::now);
        for event in events {
            self.fifo.push(event);
        }
        self.pump(ctx);
        self.publish_status();
        if self.has_room() {
            return Box::pin(std::future::ready(()));
        }
        let (room, granted) = oneshot::channel();
        self.waiting_for_room = Some(room);
        Box::pin(async move { drop(granted.await) })
    }
}

impl Handler<Compare> for DeltaFifoActor {
    type Result = MessageResult<Compare>;

    fn handle(&mut self, Compare(listed): Compare, _ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.fifo.compare(&listed.0))
    }
}

impl Handler<Drain> for DeltaFifoActor {
    type Result = ();

    fn handle(&mut self, Drain: Drain, ctx: &mut Self::Context) {
        self.fifo.close();
        self.pump(ctx);
    }
}

impl Handler<Heartbeat> for DeltaFifoActor {
    type Result = ();

    fn handle(&mut self, Heartbeat: Heartbeat, _ctx: &mut Self::Context) {}
}

impl Handler<Inject> for DeltaFifoActor {
    type Result = ();

    fn handle(&mut self, Inject(harm, _): Inject, _ctx: &mut Self::Context) {
        harm.strike("DeltaFIFO actor");
    }
}
