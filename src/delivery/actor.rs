//! Actor around [`HandlerCore`]: it reads for a handler, sends to its sink, and acknowledges.

use std::{collections::HashMap, sync::Arc};

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, AsyncContext as _, Context, Handler, ResponseFuture, SpawnHandle,
    WrapFuture as _,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    core::{DeliveryId, DeliveryOwner, GivenUp, HandlerAction, HandlerCore},
    log::DeliveryLog,
    parts::{DeadLetter, End, HandlerParts, Ordered},
    router::Router,
    status::HandlerState,
};
use crate::{
    handler::Form,
    journal::ReaderId,
    notification::{Notification, Stopped},
    supervisor::{child::Heartbeat, fault::Moment},
};

/// Actor of a handler. It ends only when its core says so, or with a panic.
pub struct HandlerActor {
    parts: HandlerParts,
    router: Router,
    reader: ReaderId,
    core: HandlerCore,
    log: DeliveryLog,
    epoch: Instant,
    attempts: HashMap<DeliveryId, SpawnHandle>,
    answers: HashMap<DeliveryId, oneshot::Sender<Result<(), Stopped>>>,
    /// The current read, and true if it waits for new events.
    reading: Option<(bool, SpawnHandle)>,
    alarm: Option<SpawnHandle>,
    end: Option<oneshot::Sender<End>>,
}

impl HandlerActor {
    /// Makes the actor of a reader. Its times count from `epoch`; `end` receives the way in which it ends.
    pub(super) fn new(
        parts: HandlerParts,
        (router, reader): (Router, ReaderId),
        epoch: Instant,
        end: oneshot::Sender<End>,
    ) -> Self {
        let (core, log) = (HandlerCore::new(parts.core), DeliveryLog::new(Arc::clone(&parts.status)));
        let (attempts, answers, end) = (HashMap::new(), HashMap::new(), Some(end));
        Self { parts, router, reader, core, log, epoch, attempts, answers, reading: None, alarm: None, end }
    }

    /// Executes the actions of the core until it has none.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        let now = self.epoch.elapsed();
        while let Some(action) = self.core.next(now) {
            self.perform(action, ctx);
        }
        self.read(ctx);
        self.alarm.take().map(|alarm| ctx.cancel_future(alarm));
        let wake_in = self.core.wake_at().map(|at| at.saturating_sub(now));
        self.alarm = wake_in.map(|wait| ctx.run_later(wait, Self::advance));
        let view = self.core.view(now);
        let oldest_attempt = view.oldest_attempt.map(|since| now.saturating_sub(since));
        self.parts.status.show(view, oldest_attempt);
    }

    fn perform(&mut self, action: HandlerAction, ctx: &mut Context<Self>) {
        match action {
            HandlerAction::Send(delivery, events, form) => self.send(delivery, events, form, ctx),
            HandlerAction::Cancel(delivery) => {
                self.attempts.remove(&delivery).map(|attempt| ctx.cancel_future(attempt));
            }
            HandlerAction::GiveUp(delivery, given_up) => self.give_up(delivery, given_up, ctx),
            HandlerAction::Acknowledge(delivery, sequences) => {
                self.log.end(delivery);
                self.router.journal().ack_each(self.reader, &sequences);
            }
            HandlerAction::Answer(delivery, answer) => {
                self.log.end(delivery);
                // The handler that sent these events may have ended meanwhile.
                self.answers.remove(&delivery).map(|asked| asked.send(answer));
            }
            HandlerAction::Close => {
                let sink = self.parts.sink.clone();
                let closed = async move { sink.close().await }.into_actor(self).map(|outcome, actor, ctx| {
                    actor.log.closed(&outcome);
                    actor.end(End::Closed, ctx);
                });
                ctx.spawn(closed);
            }
            HandlerAction::End(reason) => self.end(End::Sink(reason), ctx),
        }
    }

    fn send(&mut self, delivery: DeliveryId, events: Notification, form: Form, ctx: &mut Context<Self>) {
        let events = self.log.begin(delivery, events);
        let (sink, status) = (self.parts.sink.clone(), Arc::clone(&self.parts.status));
        let attempt = async move { sink.send(events, form, &status).await };
        let finished = attempt.into_actor(self).map(move |sent, actor, ctx| {
            actor.attempts.remove(&delivery);
            let now = actor.epoch.elapsed();
            let failure = actor.core.finished(delivery, sent.outcome.clone(), now, rand::random());
            actor.log.finished(delivery, &sent, failure, actor.core.is_failing(), now);
            actor.advance(ctx);
        });
        self.attempts.insert(delivery, ctx.spawn(finished));
    }

    fn give_up(&mut self, delivery: DeliveryId, GivenUp { events, reason, owner }: GivenUp, ctx: &mut Context<Self>) {
        let (dead_letter, letter) = (self.parts.dead_letter.clone(), DeadLetter(events.clone()));
        let handed_over = async move {
            match dead_letter.and_then(|slot| slot.get()) {
                Some(handler) => matches!(handler.dead_letters.send(letter).await, Ok(Ok(()))),
                None => false,
            }
        };
        ctx.spawn(handed_over.into_actor(self).map(move |is_taken, actor, ctx| {
            actor.log.gave_up(delivery, &events, &reason, is_taken);
            if owner == DeliveryOwner::Reader {
                actor.router.journal().give_up(actor.reader, &events.sequences());
            }
            actor.core.gave_up(delivery);
            actor.advance(ctx);
        }));
    }

    /// Starts a read if the core has room, and stops it otherwise.
    fn read(&mut self, ctx: &mut Context<Self>) {
        let (room, waits) = (self.core.room(), self.core.is_exhausted());
        if let Some((_, reading)) = self.reading.take_if(|(is_wait, _)| room.is_none() || (*is_wait && !waits)) {
            ctx.cancel_future(reading);
        }
        let Some(room) = room.filter(|_| self.reading.is_none()) else { return };
        let (router, reader) = (self.router.clone(), self.reader);
        let read = async move {
            if waits {
                router.journal().readable(reader).await;
                return None; // the room may have changed meanwhile
            }
            Some(router.read(reader, room).await)
        };
        let taken = read.into_actor(self).map(|events, actor, ctx| {
            actor.reading = None;
            actor.core.read(events, actor.epoch.elapsed());
            actor.advance(ctx);
        });
        self.reading = Some((waits, ctx.spawn(taken)));
    }

    fn end(&mut self, end: End, ctx: &mut Context<Self>) {
        self.parts.status.lock().state = HandlerState::Stopped;
        if let Some(task) = self.end.take() {
            drop(task.send(end)); // its task may already have ended
        }
        ctx.stop();
    }
}

impl Actor for HandlerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.advance(ctx);
    }
}

impl Handler<Ordered> for HandlerActor {
    type Result = ();

    fn handle(&mut self, Ordered { order, is_paused }: Ordered, ctx: &mut Self::Context) {
        self.core.order(order, is_paused, self.epoch.elapsed());
        self.advance(ctx);
    }
}

impl Handler<DeadLetter> for HandlerActor {
    type Result = ResponseFuture<Result<(), Stopped>>;

    fn handle(&mut self, DeadLetter(events): DeadLetter, ctx: &mut Self::Context) -> Self::Result {
        let (answer, answered) = oneshot::channel();
        self.answers.insert(self.core.dead_letter(events), answer);
        self.advance(ctx);
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(Stopped("the handler has ended".to_owned()))) })
    }
}

impl Handler<Heartbeat> for HandlerActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(mut fault): Heartbeat, _ctx: &mut Self::Context) {
        fault.strike(Moment::Now, "handler actor");
    }
}
