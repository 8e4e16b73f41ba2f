//! One handler's lane: what was read is scheduled, sent, repeated where that failed, and acknowledged.

use std::{hash::BuildHasher as _, time::Duration};

use super::{
    RecordName, name_of,
    sink::{Sink, Surroundings},
};
use crate::{
    dispatcher::{
        Event, Notification,
        schedule::{BatchId, Item, Schedule, ScheduleOptions},
    },
    handler::{Delivery, Form, HandlerError, Outcome, RetryPolicy, Step},
    journal::{ChangeKind, ReaderId, Sequence},
    simulator::random::Random,
};

/// Panics over one batch, at most: three over one event would give it up.
const PANICS_MAX: u32 = 2;

/// Where an attempt at a batch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Between,
    /// It is on its way to the sink.
    Sent(std::ops::Range<usize>, Form),
    /// The sink has it, and its answer is on its way.
    Accepted(Outcome),
    /// All of the batch is delivered.
    Answered,
}

#[derive(Debug)]
pub(super) struct Call {
    batch: BatchId,
    events: Notification,
    delivery: Delivery,
    panics: u32,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) reader: ReaderId,
    pub(super) schedule: Schedule<Event>,
    pub(super) calls: Vec<Call>,
    /// The last place that was read.
    pub(super) last: u64,
}

/// How well a handler works: how often an attempt fails, and how often its answer is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    pub(super) fails: f64,
    pub(super) loses_answers: f64,
}

/// What one step of a call led to.
pub(super) enum Progress {
    Nothing,
    /// So many events were accepted, so many of them for another time; and what became of the answer.
    Accepted {
        repeated: usize,
        answer_lost: bool,
    },
    /// It is done: these can be acknowledged, and what they name.
    Done(Vec<Sequence>, Vec<RecordName>),
}

impl Lane {
    pub(super) fn new(reader: ReaderId, options: ScheduleOptions) -> Self {
        Self { reader, schedule: Schedule::new(options), calls: Vec::new(), last: 0 }
    }

    pub(super) fn take(&mut self, event: Event, now: Duration) {
        self.schedule.push(item(event), now);
    }

    /// Begins with the next batch, if there is one.
    pub(super) fn send(&mut self, now: Duration, flush: bool) -> bool {
        let Some((batch, events)) = self.schedule.next(now, flush) else { return false };
        let policy = RetryPolicy { jitter: false, give_up_after: Duration::MAX, ..RetryPolicy::default() };
        let delivery = Delivery::new(policy, events.len(), Form::Reference);
        let events = Notification::new(events);
        self.calls.push(Call { batch, events, delivery, panics: 0, phase: Phase::Between });
        true
    }

    /// Brings a call one effect further.
    pub(super) fn advance(
        &mut self,
        number: usize,
        (sink, around): (&mut Sink, &Surroundings<'_>),
        health: Health,
        now: Duration,
        random: &mut Random,
    ) -> Progress {
        let call = &mut self.calls[number];
        match std::mem::replace(&mut call.phase, Phase::Between) {
            Phase::Between => match call.delivery.step() {
                Step::Attempt(range, form) => call.phase = Phase::Sent(range, form),
                Step::Wait(_) => call.delivery.waited(),
                Step::Done => call.phase = Phase::Answered,
                step @ (Step::GiveUp(..) | Step::Closed(..)) => panic!("nothing is given up: {step:?}"),
            },
            Phase::Sent(range, form) => {
                let refusal = random.chance(health.fails).then(|| call.refusal(range.len(), form, random));
                let part = if refusal.is_some() { random.below(range.len() + 1) } else { range.len() };
                let part = call.events.slice(range.start..range.start + part);
                let repeated = part.events().iter().filter(|event| sink.accept(event, around)).count();
                let answer_lost = refusal.is_none() && random.chance(health.loses_answers);
                let lost = || Outcome::Failed(HandlerError::Failed("no answer in time".into()));
                let outcome = refusal.or_else(|| answer_lost.then(lost)).unwrap_or(Outcome::Delivered);
                call.phase = Phase::Accepted(outcome);
                return Progress::Accepted { repeated, answer_lost };
            }
            Phase::Accepted(outcome) => call.delivery.finished(outcome, now, 0.5),
            Phase::Answered => {
                let call = self.calls.remove(number);
                let names = call.events.events().iter().map(|event| name_of(&event.record)).collect();
                return Progress::Done(self.schedule.finished(call.batch), names);
            }
        }
        Progress::Nothing
    }
}

impl Call {
    fn refusal(&mut self, events: usize, form: Form, random: &mut Random) -> Outcome {
        let reason = || "not now".to_owned();
        match random.below(5) {
            0 if events > 1 => Outcome::Failed(HandlerError::Rejected(reason())),
            1 if events > 1 || form == Form::Whole => Outcome::Failed(HandlerError::TooLarge(reason())),
            2 => Outcome::Failed(HandlerError::Busy { reason: reason(), retry_after: Duration::from_secs(1) }),
            3 if self.panics < PANICS_MAX => {
                self.panics += 1;
                Outcome::Panicked(reason())
            }
            _ => Outcome::Failed(HandlerError::Failed(reason())),
        }
    }
}

/// As the dispatcher makes it.
fn item(event: Event) -> Item<Event> {
    let hasher = foldhash::fast::FixedState::with_seed(11);
    let Event { unit, record } = &event;
    let resource = hasher.hash_one((&unit.resource.group, &unit.resource.plural));
    let gone = matches!(ChangeKind::of(&record.change), ChangeKind::Deleted | ChangeKind::Removed);
    let object = record.object().map(|object| hasher.hash_one((resource, object.key())));
    Item { sequence: record.sequence, resource, object, gone, bytes: 100, content: event }
}
