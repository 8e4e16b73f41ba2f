//! Decisions for one handler: the next batch, the reaction to an outcome, and the end of the handler.
//!
//! [`HandlerCore`] is pure. It receives reports of the reader, the sink and the engine, and returns [`HandlerAction`]s
//! for its actor in `delivery/actor.rs`. All times are of one monotonic clock.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    hash::BuildHasher as _,
    time::Duration,
};

use super::{
    attempts::{AttemptOutcome, AttemptStep, Attempts, GiveUp, RETRY_AFTER_MAX, RetryPolicy},
    pace::{Pace, Rate},
    schedule::{BatchId, Room, Schedule, ScheduleOptions, ScheduledEvent},
};
use crate::{
    handler::{Form, HandlerError},
    journal::{ChangeKind, Sequence},
    notification::{Event, Notification, Stopped},
    object::Object,
};

/// Options of a handler's core.
#[derive(Clone, Copy, Debug)]
pub struct CoreOptions {
    /// Order and size of batches.
    pub schedule: ScheduleOptions,
    /// Retries of failed attempts.
    pub retry: RetryPolicy,
    /// Maximum rate of attempts.
    pub rate: Option<Rate>,
    /// Smallest form that the sink accepts.
    pub smallest: Form,
    /// Set if a running attempt can be cancelled.
    pub can_cancel: bool,
    /// Time for running attempts to end when a paused handler is to drain.
    pub patience: Duration,
}

/// Id of a delivery: one batch with all its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(u64);

/// Owner of the events of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOwner {
    /// The handler's reader.
    Reader,
    /// Another handler, which gave up these events.
    Other,
}

/// Events of a delivery that are not retried.
#[derive(Clone, Debug)]
pub struct GivenUp {
    /// The events.
    pub events: Notification,
    /// Reason for giving them up.
    pub reason: GiveUp,
    /// Owner of the events.
    pub owner: DeliveryOwner,
}

/// Instruction to the actor.
#[derive(Clone, Debug)]
pub enum HandlerAction {
    /// Send these events to the sink; then call [`HandlerCore::finished`].
    Send(DeliveryId, Notification, Form),
    /// Cancel the running attempt.
    Cancel(DeliveryId),
    /// Send these events to the dead letter, or count them as dropped; then call [`HandlerCore::gave_up`].
    GiveUp(DeliveryId, GivenUp),
    /// Acknowledge these events of the reader. The delivery has ended.
    Acknowledge(DeliveryId, Vec<Sequence>),
    /// Answer the handler that gave up these events. The delivery has ended.
    Answer(DeliveryId, Result<(), Stopped>),
    /// Close the sink. This is the last action.
    Close,
    /// End without closing the sink, which is closed for good for this reason. This is the last action.
    End(String),
}

/// Request of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandlerOrder {
    /// Deliver events as they arrive.
    #[default]
    Run,
    /// Deliver the waiting events, then close.
    Drain,
    /// Start no delivery. Close when the running attempts have ended; at this time they are cancelled if possible.
    Close(Duration),
}

/// Failed attempt, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Number of failed attempts since the last success within the batch.
    pub attempt: u32,
    /// Delay before the next attempt; `None` if there is none.
    pub retry_in: Option<Duration>,
}

/// State of a core, for the handler's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreView {
    /// Deliveries in progress, including those that wait for a retry.
    pub in_flight: usize,
    /// Set while a delivery waits for its rate, or for a delay that the sink asked for.
    pub is_limited: bool,
    /// Set if the last attempt of some delivery failed.
    pub is_failing: bool,
    /// Start of the oldest running attempt.
    pub oldest_attempt: Option<Duration>,
}

#[derive(Debug)]
struct Delivery {
    /// Batch of the reader's events; `None` for events of another handler.
    batch: Option<BatchId>,
    events: Notification,
    attempts: Attempts,
    phase: Phase,
    /// Number of attempts since the last success, including the running one.
    count: u32,
    is_failing: bool,
}

impl Delivery {
    fn owner(&self) -> DeliveryOwner {
        if self.batch.is_some() { DeliveryOwner::Reader } else { DeliveryOwner::Other }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ready for its next step.
    Between,
    Waiting(Duration),
    /// Sent to the sink at this time.
    AtSink(Duration),
    GivingUp,
}

/// State of one handler's deliveries.
///
/// **Invariants:** the number of deliveries in progress is at most the schedule's concurrency, including those of other
/// handlers. The handler's own events and those of other handlers take turns.
#[derive(Debug)]
pub struct HandlerCore {
    options: CoreOptions,
    schedule: Schedule<Event>,
    pace: Pace,
    deliveries: BTreeMap<DeliveryId, Delivery>,
    /// Batches of other handlers that wait for a delivery.
    others: VecDeque<(DeliveryId, Notification)>,
    /// Owner of the batch that was started last.
    last: DeliveryOwner,
    last_id: u64,
    is_paused: bool,
    order: HandlerOrder,
    /// Set if the last read found no event.
    is_exhausted: bool,
    is_over: bool,
}

impl HandlerCore {
    /// Makes the core of a new handler.
    pub fn new(options: CoreOptions) -> Self {
        Self {
            options,
            schedule: Schedule::new(options.schedule),
            pace: Pace::new(options.rate),
            deliveries: BTreeMap::new(),
            others: VecDeque::new(),
            last: DeliveryOwner::Other,
            last_id: 0,
            is_paused: false,
            order: HandlerOrder::Run,
            is_exhausted: false,
            is_over: false,
        }
    }

    /// Sets the engine's request. A paused handler that is to drain closes instead.
    pub fn order(&mut self, order: HandlerOrder, is_paused: bool, now: Duration) {
        let order = match order {
            HandlerOrder::Drain if is_paused && self.is_closing() => self.order,
            HandlerOrder::Drain if is_paused => HandlerOrder::Close(now + self.options.patience),
            order => order,
        };
        if (order, is_paused) != (self.order, self.is_paused) {
            (self.order, self.is_paused, self.is_exhausted) = (order, is_paused, false);
        }
    }

    /// Returns the room for the next read; `None` if nothing is to be read. After the read call [`HandlerCore::read`].
    pub fn room(&self) -> Option<Room> {
        let is_done = self.is_over || self.is_closing() || (self.order == HandlerOrder::Drain && self.is_exhausted);
        if is_done || self.is_paused { None } else { self.schedule.room() }
    }

    /// Returns true if the last read found no event, so that the next one must wait for events.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Adds the events of a read; `None` means that new events may be available.
    pub fn read(&mut self, events: Option<Vec<Event>>, now: Duration) {
        self.is_exhausted = events.as_ref().is_some_and(Vec::is_empty);
        for event in events.into_iter().flatten() {
            self.schedule.push(item(event), now);
        }
    }

    /// Adds events that another handler gave up, and returns the id of their delivery.
    pub fn dead_letter(&mut self, events: Notification) -> DeliveryId {
        let id = self.new_id();
        self.others.push_back((id, events));
        id
    }

    /// Records the outcome of an attempt; `random` is in [0, 1). Returns a failure that is to be logged.
    pub fn finished(
        &mut self,
        id: DeliveryId,
        outcome: AttemptOutcome,
        now: Duration,
        random: f64,
    ) -> Option<FailedAttempt> {
        let delivery = self.deliveries.get_mut(&id)?;
        if let AttemptOutcome::Failed(HandlerError::Busy { retry_after, .. }) = &outcome {
            self.pace.hold(now + RETRY_AFTER_MAX.min(*retry_after));
        }
        delivery.phase = Phase::Between;
        delivery.is_failing = outcome != AttemptOutcome::Delivered;
        let attempt = delivery.count;
        delivery.attempts.finished(outcome, now, random);
        if !delivery.is_failing {
            delivery.count = 0;
            return None;
        }
        let retry_in = match delivery.attempts.step() {
            AttemptStep::Wait(delay) => Some(delay),
            AttemptStep::Attempt(..) => Some(Duration::ZERO),
            AttemptStep::GiveUp(..) | AttemptStep::Done => None,
            AttemptStep::Closed(..) => return None, // the end of the handler is logged elsewhere
        };
        Some(FailedAttempt { attempt, retry_in })
    }

    /// Records that the dead letter has the given-up events, or that they are counted as dropped.
    pub fn gave_up(&mut self, id: DeliveryId) {
        if let Some(delivery) = self.deliveries.get_mut(&id) {
            delivery.attempts.given_up();
            delivery.phase = Phase::Between;
        }
    }

    /// Returns the next action. Call it until it returns `None`, then again after each report and at
    /// [`HandlerCore::wake_at`].
    pub fn next(&mut self, now: Duration) -> Option<HandlerAction> {
        while !self.is_over {
            if let Some(id) = self.due(now) {
                match self.advance(id, now) {
                    Some(action) => return Some(action),
                    None => continue,
                }
            }
            if self.is_closing() {
                if let Some((id, _)) = self.others.pop_front() {
                    return Some(HandlerAction::Answer(id, Err(closed())));
                }
            } else if self.begin(now) {
                continue;
            }
            let is_idle = self.deliveries.is_empty();
            let is_drained = self.order == HandlerOrder::Drain && self.is_exhausted && self.schedule.is_empty();
            if !is_idle || !(self.is_closing() || (is_drained && self.others.is_empty())) {
                return None;
            }
            self.is_over = true;
            return Some(HandlerAction::Close);
        }
        None
    }

    /// Returns the time of the next action if no report arrives before it.
    pub fn wake_at(&self) -> Option<Duration> {
        let phases = || self.deliveries.values().map(|delivery| delivery.phase);
        if let HandlerOrder::Close(until) = self.order {
            let can_cancel = self.options.can_cancel && phases().any(|phase| matches!(phase, Phase::AtSink(_)));
            return can_cancel.then_some(until);
        }
        let waits = phases().filter_map(|phase| if let Phase::Waiting(until) = phase { Some(until) } else { None });
        let is_held = !self.is_paused && phases().any(|phase| phase == Phase::Between);
        let held = is_held.then(|| self.pace.next());
        let linger = self.schedule.due().filter(|_| !self.is_paused && self.has_turn());
        waits.chain(held).chain(linger).min()
    }

    /// Returns true if the last attempt of some delivery failed.
    pub fn is_failing(&self) -> bool {
        self.deliveries.values().any(|delivery| delivery.is_failing)
    }

    /// Returns its state for the handler's status.
    pub fn view(&self, now: Duration) -> CoreView {
        let deliveries = || self.deliveries.values();
        let is_held = |delivery: &Delivery| !matches!(delivery.phase, Phase::AtSink(_));
        CoreView {
            in_flight: self.deliveries.len(),
            is_limited: self.pace.next() > now && deliveries().any(is_held),
            is_failing: self.is_failing(),
            oldest_attempt: deliveries()
                .filter_map(|delivery| if let Phase::AtSink(since) = delivery.phase { Some(since) } else { None })
                .min(),
        }
    }

    fn is_closing(&self) -> bool {
        matches!(self.order, HandlerOrder::Close(_))
    }

    fn has_turn(&self) -> bool {
        self.deliveries.len() < self.options.schedule.concurrency.max(1)
    }

    /// Returns a delivery that has a step to take now.
    fn due(&self, now: Duration) -> Option<DeliveryId> {
        let is_cut = matches!(self.order, HandlerOrder::Close(until) if until <= now && self.options.can_cancel);
        let may_attempt = self.is_closing() || (!self.is_paused && self.pace.next() <= now);
        let is_due = |delivery: &Delivery| match delivery.phase {
            Phase::Between => may_attempt || !matches!(delivery.attempts.step(), AttemptStep::Attempt(..)),
            Phase::Waiting(until) => until <= now || self.is_closing(),
            Phase::AtSink(_) => is_cut,
            Phase::GivingUp => false,
        };
        self.deliveries.iter().find(|(_, delivery)| is_due(delivery)).map(|(id, _)| *id)
    }

    /// Takes the next step of a delivery that is due.
    fn advance(&mut self, id: DeliveryId, now: Duration) -> Option<HandlerAction> {
        let is_closing = self.is_closing();
        let delivery = self.deliveries.get_mut(&id)?;
        match delivery.phase {
            Phase::Waiting(_) => {
                delivery.attempts.waited();
                delivery.phase = Phase::Between;
                return None;
            }
            Phase::AtSink(_) => {
                // The next step of the delivery removes it.
                delivery.phase = Phase::Between;
                return Some(HandlerAction::Cancel(id));
            }
            Phase::Between | Phase::GivingUp => {}
        }
        match delivery.attempts.step() {
            AttemptStep::Done => Some(self.end(id)),
            AttemptStep::Closed(_, reason) => {
                self.is_over = true;
                Some(HandlerAction::End(reason))
            }
            _ if is_closing => {
                let dropped = self.deliveries.remove(&id)?;
                dropped.batch.is_none().then(|| HandlerAction::Answer(id, Err(closed())))
            }
            AttemptStep::Attempt(range, form) => {
                self.pace.begin(now);
                delivery.phase = Phase::AtSink(now);
                delivery.count += 1;
                Some(HandlerAction::Send(id, delivery.events.slice(range), form))
            }
            AttemptStep::Wait(delay) => {
                delivery.phase = Phase::Waiting(now + delay);
                None
            }
            AttemptStep::GiveUp(range, reason) => {
                delivery.phase = Phase::GivingUp;
                let (events, owner) = (delivery.events.slice(range), delivery.owner());
                Some(HandlerAction::GiveUp(id, GivenUp { events, reason, owner }))
            }
        }
    }

    fn end(&mut self, id: DeliveryId) -> HandlerAction {
        match self.deliveries.remove(&id).and_then(|delivery| delivery.batch) {
            Some(batch) => {
                self.is_exhausted = false; // the reader may now return later events
                HandlerAction::Acknowledge(id, self.schedule.finished(batch))
            }
            None => HandlerAction::Answer(id, Ok(())),
        }
    }

    /// Starts the next batch. Returns `false` if there is none, or it has to wait.
    fn begin(&mut self, now: Duration) -> bool {
        if self.is_paused || !self.has_turn() {
            return false;
        }
        let mut next = if self.last == DeliveryOwner::Reader { self.next_of_others() } else { None };
        next = next.or_else(|| self.next_own(now)).or_else(|| self.next_of_others());
        let Some((id, batch, events)) = next else { return false };
        let attempts = Attempts::new(self.options.retry, events.events().len(), self.options.smallest);
        let delivery = Delivery { batch, events, attempts, phase: Phase::Between, count: 0, is_failing: false };
        self.last = delivery.owner();
        self.deliveries.insert(id, delivery);
        true
    }

    fn next_own(&mut self, now: Duration) -> Option<(DeliveryId, Option<BatchId>, Notification)> {
        let (batch, events) = self.schedule.next(now, self.order == HandlerOrder::Drain)?;
        Some((self.new_id(), Some(batch), Notification::new(events)))
    }

    fn next_of_others(&mut self) -> Option<(DeliveryId, Option<BatchId>, Notification)> {
        self.others.pop_front().map(|(id, events)| (id, None, events))
    }

    fn new_id(&mut self) -> DeliveryId {
        self.last_id += 1;
        DeliveryId(self.last_id)
    }
}

fn closed() -> Stopped {
    Stopped("closed in the middle of a batch".to_owned())
}

fn item(event: Event) -> ScheduledEvent<Event> {
    let hasher = foldhash::fast::FixedState::with_seed(11);
    let Event { unit, record } = &event;
    let resource = hasher.hash_one((&unit.resource.group, &unit.resource.plural));
    let object = record.object();
    let bytes = object.map_or(0, Object::size_bytes) + record.old().map_or(0, Object::size_bytes);
    let gone = matches!(ChangeKind::of(&record.change), ChangeKind::Deleted | ChangeKind::Removed);
    let object = object.map(|object| hasher.hash_one((resource, object.key())));
    ScheduledEvent { sequence: record.sequence, resource, object, gone, bytes, content: event }
}
