//! The shell of [`Delivery`]: the actor at the end of a lane.
//!
//! It takes one batch at a time, from its dispatcher or, as a dead letter, from other lanes, and answers once every
//! event of it is delivered or given up. Whatever blocks happens on the thread of a [`Worker`].

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Context, Recipient, ResponseFuture};
use jiff::Timestamp;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::Instant,
};
use tracing::{error, warn};

use super::{
    Delivery, Handler, HandlerError, Outcome, RetryPolicy, Step,
    lane::{Heard, Worker, guard},
    status::{HandlerState, HandlerStatus},
};
use crate::{
    dispatcher::{
        Notification,
        actor::{Close, LaneAddress, LaneSlot, Stopped},
    },
    mutex::lock,
    supervisor::child::{Heartbeat, Inject, exit_of, spawn},
};

/// Where the events of a lane end.
#[derive(Clone)]
pub enum Sink {
    /// On a thread, because it blocks.
    Thread(Worker),
    /// In place, because it never does.
    InPlace(Arc<Mutex<dyn Handler>>),
    /// In an actor of the library's user; `Err` as its answer means that it has ended. One that does not answer in
    /// time has failed, and gets the batch again.
    Actor(Recipient<Notification>, Duration),
}

impl Sink {
    async fn deliver(&self, notification: Notification, status: &HandlerStatus) -> Outcome {
        match self {
            Self::Thread(worker) => deliver_on(worker, notification, status).await,
            Self::InPlace(handler) => guard(|| lock(handler).deliver(&notification)),
            Self::Actor(actor, timeout) => match tokio::time::timeout(*timeout, actor.send(notification)).await {
                Ok(Ok(Ok(()))) => Outcome::Delivered,
                Ok(Ok(Err(Stopped(reason)))) => Outcome::Failed(HandlerError::Closed(reason)),
                Ok(Err(_)) if actor.connected() => Outcome::Panicked("the handler's actor dropped the batch".into()),
                Ok(Err(_)) => Outcome::Failed(HandlerError::Closed("the handler's actor has ended".into())),
                Err(_) => Outcome::Failed(HandlerError::Failed(format!("no answer within {timeout:?}"))),
            },
        }
    }

    async fn close(&self) -> Outcome {
        match self {
            Self::Thread(worker) => worker.close().await,
            Self::InPlace(handler) => guard(|| lock(handler).close()),
            Self::Actor(..) => Outcome::Delivered,
        }
    }
}

/// Delivers on a thread that may hang, and shows it when it does. One that was replaced has failed.
async fn deliver_on(worker: &Worker, notification: Notification, status: &HandlerStatus) -> Outcome {
    let mut attempt = worker.deliver(notification);
    loop {
        match attempt.hear().await {
            Heard::Answer(outcome) => return outcome,
            Heard::Replaced(silent) => {
                status.lock().threads_replaced += 1;
                let error = format!("no answer within {silent:.1?}, the handler's thread was replaced");
                return Outcome::Failed(HandlerError::Failed(error));
            }
            Heard::Stuck(silent) => {
                let mut counts = status.lock();
                let told = counts.state == HandlerState::Hung;
                counts.state = HandlerState::Hung;
                let error = format!("no answer within {silent:.1?}, and too many of the handler's threads hang");
                counts.last_error = Some(error.clone());
                drop(counts);
                if !told {
                    error!(handler = status.name(), %error, "handler hangs, waiting for one of its threads");
                }
            }
        }
    }
}

/// What a lane's actor is made of, each time it is started.
#[derive(Clone)]
pub struct LaneActorOptions {
    /// Where its events end.
    pub sink: Sink,
    /// How failures are repeated.
    pub retry: RetryPolicy,
    /// Takes what is given up.
    pub dead_letter: Option<LaneSlot>,
    /// Shows what happens.
    pub status: Arc<HandlerStatus>,
}

impl LaneActorOptions {
    /// Starts an actor on the arbiter of the caller: the `start` of a lane.
    pub fn start(&self) -> LaneAddress {
        let (address, ended) = spawn(LaneActor::new(self.clone()));
        let status = Arc::clone(&self.status);
        let life = status.begin_life();
        actix_rt::spawn(async move { status.end_life(life, &exit_of(ended.await)) });
        LaneAddress {
            events: address.clone().recipient(),
            close: address.clone().recipient(),
            heartbeat: address.clone().recipient(),
            hook: Some(address.recipient()),
        }
    }
}

/// The actor at the end of a lane.
pub struct LaneActor {
    lane: Rc<Lane>,
}

impl LaneActor {
    /// Makes the actor.
    pub fn new(options: LaneActorOptions) -> Self {
        let (turn, epoch, closing) = (AsyncMutex::new(()), now(), watch::Sender::new(false));
        Self { lane: Rc::new(Lane { options, turn, epoch, closing }) }
    }
}

struct Lane {
    options: LaneActorOptions,
    /// Held by the batch in delivery; others wait in order.
    turn: AsyncMutex<()>,
    epoch: Instant,
    /// What is in delivery ends at the next pause.
    closing: watch::Sender<bool>,
}

impl Lane {
    async fn deliver(&self, batch: Notification) -> Result<(), Stopped> {
        let _turn = self.turn.lock().await;
        let status = &self.options.status;
        let mut delivery = Delivery::new(self.options.retry, batch.events().len());
        let mut closing = self.closing.subscribe();
        loop {
            let step = delivery.step();
            if *closing.borrow() && step != Step::Done {
                return Err(Stopped("closed in the middle of a batch".to_owned()));
            }
            match step {
                Step::Attempt(range) => {
                    let events = range.len() as u64;
                    status.lock().in_flight_since_micros = Some(wall_clock().as_microsecond());
                    let outcome = self.options.sink.deliver(batch.slice(range), status).await;
                    self.observe(&outcome, events);
                    delivery.finished(outcome, self.epoch.elapsed(), rand::random());
                }
                Step::Wait(delay) => {
                    let closed = closing.wait_for(|closing| *closing);
                    drop(tokio::time::timeout(delay, closed).await);
                    delivery.waited();
                }
                Step::GiveUp(range, reason) => {
                    self.give_up(batch.slice(range), &reason.to_string()).await;
                    delivery.given_up();
                }
                Step::Done => return Ok(()),
                Step::Closed(_, reason) => {
                    status.lock().state = HandlerState::Stopped;
                    return Err(Stopped(reason));
                }
            }
        }
    }

    fn observe(&self, outcome: &Outcome, events: u64) {
        let status = &self.options.status;
        let mut counts = status.lock();
        counts.in_flight_since_micros = None;
        let error = match outcome {
            Outcome::Delivered => {
                counts.delivered += events;
                counts.state = HandlerState::Running;
                return;
            }
            Outcome::Failed(error) => error.to_string(),
            Outcome::Panicked(panic) => {
                counts.panics += 1;
                format!("panicked: {panic}")
            }
        };
        counts.retried += 1;
        counts.state = HandlerState::Retrying;
        counts.last_error = Some(error.clone());
        drop(counts);
        warn!(handler = status.name(), events, %error, "failed to deliver");
    }

    /// Hands events to the dead letter, or counts and names them (I4, I6).
    async fn give_up(&self, events: Notification, reason: &str) {
        let status = &self.options.status;
        let count = events.events().len() as u64;
        let dead_letter = self.options.dead_letter.as_ref().and_then(LaneSlot::get);
        let taken = match dead_letter {
            Some(address) => matches!(address.events.send(events.clone()).await, Ok(Ok(()))),
            None => false,
        };
        for event in events.events() {
            let event = event.record.event_name();
            if taken {
                warn!(handler = status.name(), %event, reason, "gave an event up to the dead letter");
            } else {
                error!(handler = status.name(), %event, reason, "gave an event up, it is lost");
            }
        }
        let mut counts = status.lock();
        if taken {
            counts.dead_lettered += count;
        } else {
            counts.given_up += count;
        }
    }

    async fn close(&self) -> Result<(), String> {
        self.closing.send_replace(true);
        let _turn = self.turn.lock().await;
        let outcome = self.options.sink.close().await;
        self.options.status.lock().state = HandlerState::Stopped;
        match outcome {
            Outcome::Delivered => Ok(()),
            Outcome::Failed(error) => Err(error.to_string()),
            Outcome::Panicked(panic) => Err(format!("panicked: {panic}")),
        }
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;
}

impl actix::Handler<Notification> for LaneActor {
    type Result = ResponseFuture<Result<(), Stopped>>;

    fn handle(&mut self, batch: Notification, _ctx: &mut Self::Context) -> Self::Result {
        let lane = Rc::clone(&self.lane);
        Box::pin(async move { lane.deliver(batch).await })
    }
}

impl actix::Handler<Close> for LaneActor {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, Close: Close, _ctx: &mut Self::Context) -> Self::Result {
        let lane = Rc::clone(&self.lane);
        Box::pin(async move { lane.close().await })
    }
}

impl actix::Handler<Heartbeat> for LaneActor {
    type Result = ();

    fn handle(&mut self, Heartbeat: Heartbeat, _ctx: &mut Self::Context) {}
}

impl actix::Handler<Inject> for LaneActor {
    type Result = ();

    fn handle(&mut self, Inject(harm, _): Inject, _ctx: &mut Self::Context) {
        harm.strike("lane actor");
    }
}

fn now() -> Instant {
    Instant::now()
}

fn wall_clock() -> Timestamp {
    Timestamp::now()
}
