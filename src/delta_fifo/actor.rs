//! Actor around [`DeltaFifo`]: one batch is in flight to the indexer, further deltas are queued meanwhile.
//!
//! The answer to an `Events` message is the reflector's credit for more events. While more than `fifo_max_bytes` wait, the
//! actor withholds the answer. Then the reflector stops reading its socket, and the API server gets backpressure (F-32, E5).

use std::sync::Arc;

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, AsyncContext as _, Context, Handler, MessageResult, ResponseFuture,
    WrapFuture as _,
};
use futures_util::future::Either;
use tokio::{sync::oneshot, time::Instant};

use super::{
    DeltaFifo,
    arrivals::{Arrival, Arrivals, observe},
    messages::{Apply, Consumer, Drain, Repacked},
};
use crate::{
    reflector::{
        ReflectorEvent,
        messages::{Compare, Events},
    },
    status::{Timings, UnitStatus},
    supervisor::{child::Heartbeat, fault::Moment},
};

/// The actor around one [`DeltaFifo`].
pub struct DeltaFifoActor {
    fifo: DeltaFifo,
    indexer: Consumer,
    max_bytes: usize,
    status: Arc<UnitStatus>,
    timings: Arc<Timings>,
    in_flight: bool,
    waiting_for_room: Option<oneshot::Sender<()>>,
    /// Reception times of the queued deltas, without the batch in flight.
    queued_since: Arrivals,
    in_flight_since: Vec<Arrival>,
    epoch: Instant,
}

impl DeltaFifoActor {
    /// Returns the actor. The reflector must wait while more than `max_bytes` are queued.
    pub(crate) fn new(
        fifo: DeltaFifo,
        indexer: Consumer,
        max_bytes: usize,
        status: Arc<UnitStatus>,
        timings: Arc<Timings>,
    ) -> Self {
        Self {
            fifo,
            indexer,
            max_bytes,
            status,
            timings,
            in_flight: false,
            waiting_for_room: None,
            queued_since: Arrivals::default(),
            in_flight_since: Vec::new(),
            epoch: Instant::now(),
        }
    }

    /// Sends the next batch, unless something is in flight. If the queue is empty and closed, stops the actor. If the queue is
    /// empty and open, repacks some objects and sends them.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        if self.in_flight {
            return;
        }
        let sent = if let Some(deltas) = self.fifo.pop() {
            self.in_flight_since = self.queued_since.take_until(self.fifo.len());
            Either::Left(self.indexer.apply.send(Apply(deltas)))
        } else if self.fifo.is_closed() {
            return ctx.stop();
        } else {
            let objects = self.fifo.repack();
            if objects.is_empty() {
                return;
            }
            Either::Right(self.indexer.repacked.send(Repacked(objects)))
        };
        self.in_flight = true;
        let applied = sent.into_actor(self).map(|answer, fifo, ctx| {
            if answer.is_err() {
                ctx.stop(); // the indexer has ended, so the whole unit is about to be restarted
                return;
            }
            fifo.in_flight = false;
            observe(std::mem::take(&mut fifo.in_flight_since), fifo.epoch.elapsed(), &fifo.timings);
            fifo.pump(ctx);
            fifo.grant_room();
            fifo.publish_status();
        });
        ctx.spawn(applied);
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
        let oldest = self.in_flight_since.first().map(|arrival| arrival.at).or_else(|| self.queued_since.oldest());
        view.waiting_since = oldest.map(|at| (self.epoch + at).into_std());
    }
}

impl Actor for DeltaFifoActor {
    type Context = Context<Self>;

    fn started(&mut self, _ctx: &mut Self::Context) {
        self.publish_status(); // the values of the previous actor are outdated
    }
}

impl Handler<Events> for DeltaFifoActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Events { events, received }: Events, ctx: &mut Self::Context) -> Self::Result {
        let at = received.saturating_duration_since(self.epoch);
        for event in events {
            let watched =
                matches!(event, ReflectorEvent::Added(_) | ReflectorEvent::Updated(_) | ReflectorEvent::Deleted(_));
            let before = self.fifo.len();
            self.fifo.push(event);
            self.queued_since.push(Arrival { at, deltas: self.fifo.len().saturating_sub(before), watched });
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
        MessageResult(self.fifo.compare(&listed))
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

    fn handle(&mut self, Heartbeat(mut fault): Heartbeat, _ctx: &mut Self::Context) {
        fault.strike(Moment::Now, "DeltaFIFO actor");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix::System;
    use tokio::{runtime::Builder, time::sleep};

    use super::*;
    use crate::{delta_fifo::QueueOrder, testing::object};

    /// Indexer that takes three seconds for each batch.
    struct Slow;

    impl Actor for Slow {
        type Context = Context<Self>;
    }

    impl Handler<Apply> for Slow {
        type Result = ResponseFuture<()>;

        fn handle(&mut self, _: Apply, _: &mut Self::Context) -> Self::Result {
            Box::pin(sleep(Duration::from_secs(3)))
        }
    }

    impl Handler<Repacked> for Slow {
        type Result = ();

        fn handle(&mut self, _: Repacked, _: &mut Self::Context) {}
    }

    #[test]
    fn age_runs_from_reception_to_application() {
        let paused = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        System::with_tokio_rt(paused).block_on(async {
            let indexer = Slow.start();
            let consumer = Consumer { apply: indexer.clone().recipient(), repacked: indexer.recipient() };
            let (timings, start) = (Arc::<Timings>::default(), Instant::now());
            let status = Arc::new(UnitStatus::waiting("things", "things"));
            let fifo = DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), false);
            let fifo =
                DeltaFifoActor::new(fifo, consumer, usize::MAX, Arc::clone(&status), Arc::clone(&timings)).start();
            let at = |seconds| start + Duration::from_secs(seconds);

            let items = vec![object("a", "1"), object("b", "1")];
            let list = ReflectorEvent::Replace { items, spared: Vec::new(), resource_version: "1".into() };
            fifo.send(Events { events: vec![list], received: start }).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            // The reflector was busy, so the events are sent one second after their reception.
            let events = vec![ReflectorEvent::Updated(object("a", "2")), ReflectorEvent::Added(object("c", "2"))];
            fifo.send(Events { events, received: start }).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            fifo.send(Events { events: vec![ReflectorEvent::Updated(object("b", "3"))], received: at(2) })
                .await
                .unwrap();
            assert_eq!(status.view().waiting_since, Some(start.into_std()));
            sleep(Duration::from_millis(1_500)).await;
            assert_eq!(timings.event_age.snapshot().count(), 0, "a list's objects have no age");
            let batches = timings.batch_events.snapshot();
            assert_eq!((batches.count(), batches.sum()), (1, 2.0));
            sleep(Duration::from_secs(3)).await;
            let (ages, batches) = (timings.event_age.snapshot(), timings.batch_events.snapshot());
            assert_eq!(ages.count(), 3);
            assert!((ages.sum() - (6.0 + 6.0 + 4.0)).abs() < 0.05, "{} s", ages.sum());
            assert_eq!((batches.count(), batches.sum()), (2, 5.0));
            assert_eq!(status.view().waiting_since, None);

            fifo.send(Events { events: vec![ReflectorEvent::Updated(object("b", "4"))], received: at(7) })
                .await
                .unwrap();
            fifo.send(Events { events: vec![ReflectorEvent::Updated(object("b", "5"))], received: at(8) })
                .await
                .unwrap();
            sleep(Duration::from_secs(4)).await;
            assert_eq!(status.view().waiting_since, Some(at(8).into_std()), "of the oldest that is not applied");
        });
    }
}
