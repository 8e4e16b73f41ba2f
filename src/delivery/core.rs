//! Decisions for one handler: the next batch, the reaction to an outcome, and the end of the handler.
//!
//! [`HandlerCore`] is pure. It receives reports of the reader, the sink and the engine, and returns [`HandlerAction`]s
//! for its loop in `delivery/handler_loop.rs`. All times are of one monotonic clock.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    hash::BuildHasher as _,
    time::Duration,
};

use super::{
    attempts::{AttemptError, AttemptOutcome, AttemptStep, Attempts, GiveUp, Retry},
    pace::{Pace, Rate},
    schedule::{DeliveryId, EventLoad, Schedule, ScheduleOptions, ScheduledEvent},
};
use crate::{
    handler::{Form, HandlerError},
    journal::Sequence,
    notification::{Event, Notification},
};

/// Maximum delay that a sink can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Options of a handler's core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreOptions {
    /// Order and size of batches.
    pub schedule: ScheduleOptions,
    /// Retries of failed attempts.
    pub retry: Retry,
    /// Maximum rate of attempts; `None` for no limit.
    pub rate: Option<Rate>,
    /// Set for an asynchronous sink: it accepts all forms, and its running attempts can be cancelled.
    pub is_async: bool,
    /// Time after which running attempts are cancelled if possible. It applies if the handler must drain while it is paused.
    pub patience: Duration,
}

/// Instruction to the actor.
#[derive(Clone, Debug)]
pub(crate) enum HandlerAction {
    /// Send these events to the sink; then call [`HandlerCore::finished`].
    Send(DeliveryId, Notification, Form),
    /// Cancel all running attempts.
    Cancel,
    /// Send the given-up events to the dead letter, or count them as dropped; then call [`HandlerCore::gave_up`].
    GiveUp(DeliveryId, Notification, GiveUp),
    /// Acknowledge these events of the reader. The delivery has ended.
    Acknowledge(DeliveryId, Vec<Sequence>),
    /// Answer the other handler, which gave up these events: true means that this handler accepted them. The delivery has ended.
    Answer(DeliveryId, bool),
    /// End the handler; this is the last action. `None`: close the sink. `Some`: the reason why the sink is already closed for
    /// good.
    End(Option<String>),
}

/// Request of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerOrder {
    /// Deliver events as they arrive.
    Run,
    /// Deliver the waiting events, then close.
    Drain {
        /// Time from which no delivery starts.
        until: Duration,
        /// Time at which running attempts are cancelled if possible.
        close_by: Duration,
    },
    /// Start no delivery, and close after the running attempts have ended. Cancel these attempts at the given time, if possible.
    Close(Duration),
}

/// Failed attempt, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedAttempt {
    /// Number of failed attempts of the batch in a row, including this one.
    pub attempt: u32,
    /// Delay before the next attempt; `None` if no attempt follows.
    pub retry_in: Option<Duration>,
}

/// State of a core, for the handler's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreView {
    /// Deliveries in progress, including those that wait for a retry.
    pub in_flight: usize,
    /// Set while a delivery waits for the rate limit, or for a delay that the sink asked for.
    pub is_limited: bool,
    /// Set if the last attempt of some delivery failed.
    pub is_failing: bool,
    /// Start of the oldest running attempt; `None` if no attempt is running.
    pub oldest_attempt: Option<Duration>,
    /// Earliest time of the next attempt of a failed delivery; `None` if none waits for it, or the handler is paused.
    pub next_attempt: Option<Duration>,
}

#[derive(Debug)]
struct OngoingDelivery {
    /// Set for events of the handler's own reader.
    is_own: bool,
    events: Notification,
    attempts: Attempts,
    /// Start time of the current step. `None` while neither the sink nor the dead letter has the events.
    begun: Option<Duration>,
    /// Number of failed attempts in a row.
    failed: u32,
}

impl OngoingDelivery {
    /// Returns the start time of the running attempt; `None` if no attempt is running.
    fn attempted_at(&self) -> Option<Duration> {
        self.begun.filter(|_| matches!(self.attempts.step, AttemptStep::Attempt(..)))
    }
}

/// State of one handler's deliveries.
///
/// **Invariants:** the number of deliveries in progress is at most the schedule's concurrency. This number includes deliveries of
/// events that other handlers gave up. Such events and the handler's own events take turns.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct HandlerCore {
    options: CoreOptions,
    schedule: Schedule<Event>,
    pace: Pace,
    deliveries: BTreeMap<DeliveryId, OngoingDelivery>,
    /// Batches that other handlers gave up, and whose delivery has not started.
    others: VecDeque<(DeliveryId, Notification)>,
    /// Set if the most recent batch came from the handler's own reader.
    was_own: bool,
    is_paused: bool,
    order: HandlerOrder,
    /// Set if the last read found no event, so that the next read must wait for events.
    pub(super) is_exhausted: bool,
    is_over: bool,
}

impl HandlerCore {
    /// Makes the core of a new handler.
    pub(crate) fn new(options: CoreOptions) -> Self {
        Self {
            options,
            schedule: Schedule::new(options.schedule),
            pace: Pace::new(options.rate),
            deliveries: BTreeMap::new(),
            others: VecDeque::new(),
            was_own: false,
            is_paused: false,
            order: HandlerOrder::Run,
            is_exhausted: false,
            is_over: false,
        }
    }

    /// Sets the engine's request. [`HandlerOrder::Drain`] counts as [`HandlerOrder::Close`] from its time `until` on, and while the
    /// handler is paused.
    pub(crate) fn order(&mut self, order: HandlerOrder, is_paused: bool, now: Duration) {
        let order = match order {
            HandlerOrder::Drain { close_by, .. } if is_paused => HandlerOrder::Close(match self.order {
                HandlerOrder::Close(earlier) => earlier.min(close_by),
                _ => close_by.min(now + self.options.patience),
            }),
            HandlerOrder::Drain { until, close_by } if until <= now => HandlerOrder::Close(close_by),
            order => order,
        };
        if (order, is_paused) != (self.order, self.is_paused) {
            (self.order, self.is_paused, self.is_exhausted) = (order, is_paused, false);
        }
    }

    /// Returns the maximum load of the next read; `None` if the actor must not read now. Pass the result of the read to
    /// [`HandlerCore::read`].
    pub(crate) fn room(&self) -> Option<EventLoad> {
        let is_done = self.is_over || self.is_closing() || (self.is_draining() && self.is_exhausted);
        if is_done || self.is_paused { None } else { self.schedule.room() }
    }

    /// Adds the events of a read. `None` means that the actor has read nothing, but has only waited until events arrived.
    pub(crate) fn read(&mut self, events: Option<Vec<Event>>, now: Duration) {
        self.is_exhausted = events.as_ref().is_some_and(Vec::is_empty);
        for event in events.into_iter().flatten() {
            self.schedule.push(scheduled(&event), event, now);
        }
    }

    /// Adds events that another handler gave up, and returns the id of their delivery.
    pub(crate) fn dead_letter(&mut self, events: Notification) -> DeliveryId {
        let id = self.schedule.new_id();
        self.others.push_back((id, events));
        id
    }

    /// Records the outcome of an attempt; `random` is in [0, 1). Returns the failed attempt that the actor must log, if any.
    pub(crate) fn finished(
        &mut self,
        id: DeliveryId,
        outcome: AttemptOutcome,
        now: Duration,
        random: f64,
    ) -> Option<FailedAttempt> {
        let delivery = self.deliveries.get_mut(&id)?;
        if let Err(AttemptError::Failed(HandlerError::Busy { retry_after, .. })) = &outcome {
            self.pace.hold(now + RETRY_AFTER_MAX.min(*retry_after));
        }
        delivery.begun = None;
        delivery.failed = if outcome.is_ok() { 0 } else { delivery.failed + 1 };
        delivery.attempts.finished(outcome, now, random);
        let retry_in = match &delivery.attempts.step {
            _ if delivery.failed == 0 => return None,
            AttemptStep::Attempt(..) => Some(delivery.attempts.not_before.max(self.pace.next()).saturating_sub(now)),
            AttemptStep::GiveUp(..) | AttemptStep::Done => None,
            AttemptStep::Closed(_) => return None, // the end of the handler is logged elsewhere
        };
        Some(FailedAttempt { attempt: delivery.failed, retry_in })
    }

    /// Continues a delivery after its [`HandlerAction::GiveUp`] is done. Returns true if the events come from the handler's own
    /// reader, and false if another handler gave them up before.
    pub(crate) fn gave_up(&mut self, id: DeliveryId) -> bool {
        let Some(delivery) = self.deliveries.get_mut(&id) else { return false };
        delivery.attempts.advance();
        delivery.begun = None;
        delivery.is_own
    }

    /// Returns the next action. Call it until it returns `None`, then again after each report and at
    /// [`HandlerCore::wake_at`].
    pub(crate) fn next(&mut self, now: Duration) -> Option<HandlerAction> {
        while !self.is_over {
            if let HandlerOrder::Close(until) = self.order
                && until <= now
                && self.cancel()
            {
                return Some(HandlerAction::Cancel);
            }
            if let Some(id) = self.due(now) {
                match self.advance(id, now) {
                    Some(action) => return Some(action),
                    None => continue,
                }
            }
            if self.is_closing() {
                if let Some((id, _)) = self.others.pop_front() {
                    return Some(HandlerAction::Answer(id, false));
                }
            } else if self.begin(now) {
                continue;
            }
            let is_idle = self.deliveries.is_empty();
            let is_drained = self.is_draining() && self.is_exhausted && self.schedule.is_empty();
            if !is_idle || !(self.is_closing() || (is_drained && self.others.is_empty())) {
                return None;
            }
            self.is_over = true;
            return Some(HandlerAction::End(None));
        }
        None
    }

    /// Returns the time of the next action if no report arrives before it.
    pub(crate) fn wake_at(&self) -> Option<Duration> {
        let deliveries = || self.deliveries.values();
        let end = match self.order {
            HandlerOrder::Close(until) => {
                let can_cancel = self.options.is_async && deliveries().any(|each| each.attempted_at().is_some());
                return can_cancel.then_some(until);
            }
            HandlerOrder::Drain { until, .. } => Some(until),
            HandlerOrder::Run => None,
        };
        let waits = deliveries().filter_map(|delivery| self.next_attempt(delivery));
        let linger = self.schedule.due().filter(|_| !self.is_paused && self.has_turn());
        waits.chain(linger).chain(end).min()
    }

    /// Returns the state of this core, for the handler's status.
    pub(crate) fn view(&self, now: Duration) -> CoreView {
        let deliveries = || self.deliveries.values();
        CoreView {
            in_flight: self.deliveries.len(),
            is_limited: self.pace.next() > now && deliveries().any(|delivery| delivery.attempted_at().is_none()),
            is_failing: deliveries().any(|delivery| delivery.failed > 0),
            oldest_attempt: deliveries().filter_map(OngoingDelivery::attempted_at).min(),
            next_attempt: deliveries().filter(|each| each.failed > 0).filter_map(|each| self.next_attempt(each)).min(),
        }
    }

    /// Returns the earliest time of a delivery's next attempt; `None` if no attempt is next, or while paused.
    fn next_attempt(&self, delivery: &OngoingDelivery) -> Option<Duration> {
        let is_next = matches!(delivery.attempts.step, AttemptStep::Attempt(..)) && delivery.begun.is_none();
        (is_next && !self.is_paused).then(|| self.pace.next().max(delivery.attempts.not_before))
    }

    fn is_closing(&self) -> bool {
        matches!(self.order, HandlerOrder::Close(_))
    }

    fn is_draining(&self) -> bool {
        matches!(self.order, HandlerOrder::Drain { .. })
    }

    fn has_turn(&self) -> bool {
        self.deliveries.len() < self.options.schedule.concurrency.max(1)
    }

    /// Marks the running attempts of an asynchronous sink as ended, so that the next steps remove their deliveries. Returns false
    /// if it marked none.
    fn cancel(&mut self) -> bool {
        let mut is_any = false;
        if self.options.is_async {
            for delivery in self.deliveries.values_mut().filter(|delivery| delivery.attempted_at().is_some()) {
                (delivery.begun, is_any) = (None, true);
            }
        }
        is_any
    }

    /// Returns a delivery whose next step can start now.
    fn due(&self, now: Duration) -> Option<DeliveryId> {
        let may_attempt = !self.is_paused && self.pace.next() <= now;
        let is_due = |delivery: &OngoingDelivery| match &delivery.attempts.step {
            _ if delivery.begun.is_some() => false,
            AttemptStep::Attempt(..) => self.is_closing() || (may_attempt && delivery.attempts.not_before <= now),
            AttemptStep::GiveUp(..) | AttemptStep::Done | AttemptStep::Closed(_) => true,
        };
        self.deliveries.iter().find(|(_, delivery)| is_due(delivery)).map(|(id, _)| *id)
    }

    /// Takes the next step of a delivery that is due.
    fn advance(&mut self, id: DeliveryId, now: Duration) -> Option<HandlerAction> {
        let is_closing = self.is_closing();
        let delivery = self.deliveries.get_mut(&id)?;
        match delivery.attempts.step.clone() {
            AttemptStep::Done if delivery.is_own => {
                self.deliveries.remove(&id);
                self.is_exhausted = false; // the reader may now return later events
                Some(HandlerAction::Acknowledge(id, self.schedule.finished(id)))
            }
            AttemptStep::Done => {
                self.deliveries.remove(&id);
                Some(HandlerAction::Answer(id, true))
            }
            AttemptStep::Closed(reason) => {
                self.is_over = true;
                Some(HandlerAction::End(Some(reason)))
            }
            _ if is_closing => {
                let dropped = self.deliveries.remove(&id)?;
                (!dropped.is_own).then_some(HandlerAction::Answer(id, false))
            }
            AttemptStep::Attempt(range, form) => {
                self.pace.begin(now);
                delivery.begun = Some(now);
                Some(HandlerAction::Send(id, delivery.events.slice(range), form))
            }
            AttemptStep::GiveUp(range, reason) => {
                delivery.begun = Some(now);
                Some(HandlerAction::GiveUp(id, delivery.events.slice(range), reason))
            }
        }
    }

    /// Starts the next batch. Returns `false` if there is no batch, or the batch has to wait.
    fn begin(&mut self, now: Duration) -> bool {
        if self.is_paused || !self.has_turn() {
            return false;
        }
        let other = if self.was_own { self.others.pop_front() } else { None };
        let own = if other.is_none() { self.schedule.next(now, self.is_draining()) } else { None };
        let (is_own, own) = (own.is_some(), own.map(|(id, events)| (id, Notification::new(events))));
        let Some((id, events)) = own.or(other).or_else(|| self.others.pop_front()) else { return false };
        self.was_own = is_own;
        let smallest = if self.options.is_async { Form::Reference } else { Form::Whole };
        let attempts = Attempts::new(self.options.retry, events.events().len(), smallest);
        let delivery = OngoingDelivery { is_own, events, attempts, begun: None, failed: 0 };
        self.deliveries.insert(id, delivery);
        true
    }
}

fn scheduled(Event { unit, record }: &Event) -> ScheduledEvent {
    let hasher = foldhash::fast::FixedState::with_seed(11);
    let resource = hasher.hash_one((&unit.resource.group, &unit.resource.plural));
    let (bytes, gone) = (record.body_bytes(), record.is_gone());
    let object = record.object().map(|object| hasher.hash_one((resource, object.key())));
    ScheduledEvent { sequence: record.sequence, resource, object, gone, bytes }
}
