//! The shell of [`Delivery`]: the actor at the end of a lane.
//!
//! It takes batches, from its dispatcher or, as a dead letter, from other lanes, one at a time or as many as its sink
//! takes, and answers once every event of a batch is delivered or given up. Whatever blocks or waits happens on the thread of a
//! [`Worker`].

use std::{
    cell::RefCell,
    future::pending,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Context, Recipient, ResponseFuture};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::{error, warn};

use super::{
    Delivery, Form, GiveUp, Handler, HandlerError, Outcome, RetryPolicy, Step,
    pace::{Pace, Rate},
    status::{HandlerState, HandlerStatus},
    under_way::UnderWay,
    worker::{Attempt, Heard, Worker, guard},
};
use crate::{
    dispatcher::{
        Notification,
        actor::{Close, DeadLetter, LaneAddress, LaneSlot, Stopped},
    },
    failures::Failures,
    mutex::lock,
    supervisor::{
        child::{Heartbeat, exit_of, spawn},
        fault::Moment,
    },
    trace::Span,
};

/// Where the events of a lane end.
#[derive(Clone)]
pub enum Sink {
    /// On a thread, because it blocks or waits.
    Thread(Worker),
    /// In place, because it never does.
    InPlace(Arc<Mutex<dyn Handler>>),
    /// In an actor of the library's user; `Err` as its answer means that it has ended. One that does not answer in
    /// time has failed, and gets the batch again.
    Actor(Recipient<Notification>, Duration),
}

impl Sink {
    /// Returns how many deliveries it takes at a time.
    pub fn concurrency(&self) -> usize {
        match self {
            Self::Thread(worker) => worker.concurrency(),
            Self::InPlace(_) | Self::Actor(..) => 1,
        }
    }

    /// Returns how much of an event it can be sent at least.
    fn smallest_form(&self) -> Form {
        match self {
            Self::Thread(worker) => worker.smallest_form(),
            Self::InPlace(_) | Self::Actor(..) => Form::Whole,
        }
    }

    /// Returns whether an attempt ends when nobody waits for it any more.
    fn can_be_cut_off(&self) -> bool {
        matches!(self, Self::Thread(worker) if worker.can_be_cut_off())
    }

    async fn deliver(&self, notification: Notification, form: Form, status: &HandlerStatus) -> Outcome {
        match self {
            Self::Thread(worker) => hear(worker.deliver(notification, form), status).await,
            Self::InPlace(handler) => guard(|| lock(handler).deliver(&notification)),
            Self::Actor(actor, patience) => match timeout(*patience, actor.send(notification)).await {
                Ok(Ok(Ok(()))) => Outcome::Delivered,
                Ok(Ok(Err(Stopped(reason)))) => Outcome::Failed(HandlerError::Closed(reason)),
                Ok(Err(_)) if actor.connected() => Outcome::Panicked("the handler's actor dropped the batch".into()),
                Ok(Err(_)) => Outcome::Failed(HandlerError::Closed("the handler's actor has ended".into())),
                Err(_) => Outcome::Failed(HandlerError::Failed(format!("no answer within {patience:?}"))),
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

/// Waits for the end of an attempt on a thread that may hang, and shows it when it does. One that was replaced has
/// failed.
async fn hear(mut attempt: Attempt<'_>, status: &HandlerStatus) -> Outcome {
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
                counts.note_error(error.as_str());
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
    /// How often it may be asked to deliver.
    pub rate: Option<Rate>,
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
            dead_letters: address.clone().recipient(),
            close: address.clone().recipient(),
            heartbeat: address.recipient(),
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
        let turns = u32::try_from(options.sink.concurrency()).unwrap_or(u32::MAX);
        let pace = RefCell::new(Pace::new(options.rate));
        let (permits, closing) = (Semaphore::new(turns as usize), watch::Sender::new(None));
        let failures = RefCell::default();
        Self { lane: Rc::new(Lane { options, turns, permits, pace, failures, epoch: now(), closing }) }
    }
}

struct Lane {
    options: LaneActorOptions,
    /// How many batches may be in delivery; others wait in order.
    turns: u32,
    permits: Semaphore,
    pace: RefCell<Pace>,
    failures: RefCell<Failures>,
    epoch: Instant,
    /// Once it closes: until when an attempt under way may go on. What is between attempts ends at once.
    closing: watch::Sender<Option<Instant>>,
}

/// Whose events a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The lane's reader.
    Lane,
    /// Another lane, which gave them up.
    Other,
}

impl Lane {
    async fn deliver(&self, batch: Notification, owner: Owner) -> Result<(), Stopped> {
        let _turn = self.permits.acquire().await;
        let LaneActorOptions { sink, retry, status, .. } = &self.options;
        let sequences = batch.events().iter().map(|event| event.record.sequence.0);
        let span = Span::of_delivery(status.name(), batch.trace(), sequences);
        let batch = batch.clone().traced(span.context());
        let mut under_way = UnderWay::begin(status, &self.failures, span);
        let mut delivery = Delivery::new(*retry, batch.events().len(), sink.smallest_form());
        let mut closing = self.closing.subscribe();
        loop {
            let step = delivery.step();
            if closing.borrow().is_some() && step != Step::Done {
                return Err(closed());
            }
            match step {
                Step::Attempt(range, form) => {
                    if !self.may_begin(&mut under_way).await {
                        return Err(closed());
                    }
                    let part = batch.slice(range);
                    under_way.attempt();
                    let begun = now();
                    let outcome = tokio::select! {
                        outcome = sink.deliver(part.clone(), form, status) => outcome,
                        () = self.cut_off() => return Err(closed()),
                    };
                    let took = begun.elapsed();
                    if let Outcome::Failed(HandlerError::Busy { retry_after, .. }) = &outcome {
                        let until = self.epoch.elapsed() + super::RETRY_AFTER_MAX.min(*retry_after);
                        self.pace.borrow_mut().hold(until);
                        under_way.limit(true); // until it may begin again
                    }
                    let error = under_way.finish(&outcome, part.events(), form, took);
                    let now = self.epoch.elapsed();
                    delivery.finished(outcome, now, rand::random());
                    if let Some(error) = error {
                        under_way.log(&error, &part, form, &delivery.step(), now);
                    }
                }
                Step::Wait(delay) => {
                    drop(timeout(delay, closing.wait_for(Option::is_some)).await);
                    delivery.waited();
                }
                Step::GiveUp(range, reason) => {
                    under_way.give_up(&reason);
                    self.give_up(batch.slice(range), &reason, owner).await;
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

    /// Waits until an attempt may begin; `false` when the lane closes before.
    async fn may_begin(&self, under_way: &mut UnderWay<'_>) -> bool {
        let mut closing = self.closing.subscribe();
        let mut paused = self.options.status.switch().subscribe();
        let begins = loop {
            if closing.borrow_and_update().is_some() {
                break false;
            }
            let next = if *paused.borrow_and_update() {
                None
            } else {
                match self.pace.borrow_mut().begin(self.epoch.elapsed()) {
                    Ok(()) => break true,
                    Err(next) => Some(self.epoch + next),
                }
            };
            under_way.limit(next.is_some());
            tokio::select! {
                () = at(next) => {}
                _ = closing.changed() => {}
                _ = paused.changed() => {}
            }
        };
        under_way.limit(false);
        begins
    }

    /// Waits until an attempt is given up for the lane's end. One that blocks cannot be.
    async fn cut_off(&self) {
        if !self.options.sink.can_be_cut_off() {
            pending::<()>().await;
        }
        let mut closing = self.closing.subscribe();
        let until = closing.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        at(until).await;
    }

    /// Hands events to the dead letter, or counts and names them (I4, I6).
    async fn give_up(&self, events: Notification, reason: &GiveUp, owner: Owner) {
        let status = &self.options.status;
        let count = events.events().len() as u64;
        let dead_letter = self.options.dead_letter.as_ref().and_then(LaneSlot::get);
        let taken = match dead_letter {
            Some(address) => matches!(address.dead_letters.send(DeadLetter(events.clone())).await, Ok(Ok(()))),
            None => false,
        };
        for event in events.events() {
            let event = event.record.event_name();
            if taken {
                warn!(handler = status.name(), %event, %reason, "gave up an event to the dead letter");
            } else {
                error!(handler = status.name(), %event, %reason, "gave up an event, no dead letter took it");
            }
        }
        if owner == Owner::Lane {
            let sequences: Vec<_> = events.events().iter().map(|event| event.record.sequence).collect();
            status.keep_for_replay(&sequences);
        }
        let mut counts = status.lock();
        if matches!(reason, GiveUp::TooLarge(_)) {
            counts.too_large += count;
        }
        if taken {
            counts.dead_lettered += count;
        } else {
            counts.given_up += count;
        }
    }

    async fn close(&self, patience: Duration) -> Result<(), String> {
        self.closing.send_replace(Some(now() + patience));
        let _turns = self.permits.acquire_many(self.turns).await;
        let outcome = self.options.sink.close().await;
        self.options.status.lock().state = HandlerState::Stopped;
        match outcome {
            Outcome::Delivered => Ok(()),
            Outcome::Failed(error) => Err(error.to_string()),
            Outcome::Panicked(panic) => Err(format!("panicked: {panic}")),
        }
    }
}

fn closed() -> Stopped {
    Stopped("closed in the middle of a batch".to_owned())
}

/// Waits until a time; for ever where there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;
}

impl actix::Handler<Notification> for LaneActor {
    type Result = ResponseFuture<Result<(), Stopped>>;

    fn handle(&mut self, batch: Notification, _ctx: &mut Self::Context) -> Self::Result {
        let lane = Rc::clone(&self.lane);
        Box::pin(async move { lane.deliver(batch, Owner::Lane).await })
    }
}

impl actix::Handler<DeadLetter> for LaneActor {
    type Result = ResponseFuture<Result<(), Stopped>>;

    fn handle(&mut self, DeadLetter(batch): DeadLetter, _ctx: &mut Self::Context) -> Self::Result {
        let lane = Rc::clone(&self.lane);
        Box::pin(async move { lane.deliver(batch, Owner::Other).await })
    }
}

impl actix::Handler<Close> for LaneActor {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, Close { patience }: Close, _ctx: &mut Self::Context) -> Self::Result {
        let lane = Rc::clone(&self.lane);
        Box::pin(async move { lane.close(patience).await })
    }
}

impl actix::Handler<Heartbeat> for LaneActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(mut fault): Heartbeat, _ctx: &mut Self::Context) {
        fault.strike(Moment::Now, "lane actor");
    }
}

fn now() -> Instant {
    Instant::now()
}
