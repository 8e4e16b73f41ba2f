//! One handler: sends the records it read, retries failures, and acknowledges deliveries.

use std::{collections::BTreeMap, time::Duration};

use super::{
    RecordName, name_of,
    sink::{Sink, Surroundings},
};
use crate::{
    delivery::{
        attempts::{AttemptError, AttemptOutcome, Retry},
        core::{CoreOptions, HandlerAction, HandlerCore},
        schedule::{DeliveryId, ScheduleOptions},
    },
    handler::{Form, HandlerError},
    journal::{ReaderId, Sequence},
    notification::{Event, Notification},
    simulator::random::Random,
};

/// Maximum number of panics per batch: after three the handler would give up an event.
const PANICS_MAX: u32 = 2;

/// Progress of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The sink has not received it.
    Sent,
    /// The sink has accepted it; the answer is in transit.
    Accepted(AttemptOutcome),
}

#[derive(Debug)]
pub(super) struct Call {
    delivery: DeliveryId,
    events: Notification,
    form: Form,
    pub(super) phase: Phase,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) reader: ReaderId,
    pub(super) sink: usize,
    pub(super) core: HandlerCore,
    /// The action requested by the state machine, not executed yet.
    pub(super) wanted: Option<HandlerAction>,
    pub(super) calls: Vec<Call>,
    panics: BTreeMap<DeliveryId, u32>,
    /// Records that were read but not acknowledged.
    names: BTreeMap<Sequence, RecordName>,
    /// Sequence of the last read record.
    pub(super) last: u64,
}

/// Probabilities that an attempt fails and that an answer is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    pub(super) fails: f64,
    pub(super) loses_answers: f64,
}

/// Effect of one step.
pub(super) enum Progress {
    Nothing,
    /// The sink accepted events; `repeated` of them were repetitions.
    Accepted {
        repeated: usize,
        answer_lost: bool,
    },
    /// A batch was delivered; its records can be acknowledged.
    Done(Vec<Sequence>, Vec<RecordName>),
}

impl Consumer {
    pub(super) fn new(reader: ReaderId, sink: usize, schedule: ScheduleOptions) -> Self {
        let millis = Duration::from_millis;
        let retry = Retry { initial: millis(1), max: millis(100), jitter: false, give_up_after: Duration::MAX };
        let options = CoreOptions { schedule, retry, rate: None, is_async: true, patience: Duration::ZERO };
        Self {
            reader,
            sink,
            core: HandlerCore::new(options),
            wanted: None,
            calls: Vec::new(),
            panics: BTreeMap::new(),
            names: BTreeMap::new(),
            last: 0,
        }
    }

    pub(super) fn take(&mut self, events: Vec<Event>, now: Duration) {
        for Event { record, .. } in &events {
            self.last = record.sequence.0;
            self.names.insert(record.sequence, name_of(record));
        }
        self.core.read(Some(events), now);
    }

    /// Asks the state machine for its next action.
    pub(super) fn ask(&mut self, now: Duration) {
        self.wanted = self.wanted.take().or_else(|| self.core.next(now));
    }

    /// Executes the requested action. If there is none, advances a random call by one effect.
    pub(super) fn advance(
        &mut self,
        sink: &mut Sink,
        around: &Surroundings<'_>,
        health: Health,
        now: Duration,
        random: &mut Random,
    ) -> Progress {
        match self.wanted.take() {
            Some(HandlerAction::Send(delivery, events, form)) => {
                self.calls.push(Call { delivery, events, form, phase: Phase::Sent });
                return Progress::Nothing;
            }
            Some(HandlerAction::Acknowledge(_, sequences)) => {
                let names = sequences.iter().map(|sequence| self.names.remove(sequence).expect("it was read"));
                let names = names.collect();
                return Progress::Done(sequences, names);
            }
            Some(other) => panic!("nothing is given up, and nothing closes: {other:?}"),
            None if self.calls.is_empty() => return Progress::Nothing,
            None => {}
        }
        let number = random.below(self.calls.len());
        match std::mem::replace(&mut self.calls[number].phase, Phase::Sent) {
            Phase::Sent => {
                let refusal = random.chance(health.fails).then(|| self.refusal(number, random));
                let call = &mut self.calls[number];
                let len = call.events.events().len();
                let part = if refusal.is_some() { random.below(len + 1) } else { len };
                let part = call.events.slice(0..part);
                let repeated = part.events().iter().filter(|event| sink.accept(event, around)).count();
                let answer_lost = refusal.is_none() && random.chance(health.loses_answers);
                let lost = || HandlerError::Failed("no answer in time".into()).into();
                let error = refusal.or_else(|| answer_lost.then(lost));
                call.phase = Phase::Accepted(error.map_or(Ok(()), Err));
                Progress::Accepted { repeated, answer_lost }
            }
            Phase::Accepted(outcome) => {
                let call = self.calls.remove(number);
                self.core.finished(call.delivery, outcome, now, 0.5);
                Progress::Nothing
            }
        }
    }

    fn refusal(&mut self, number: usize, random: &mut Random) -> AttemptError {
        let Call { delivery, events, form, .. } = &self.calls[number];
        let (events, panics) = (events.events().len(), self.panics.entry(*delivery).or_default());
        let reason = || "not now".to_owned();
        match random.below(5) {
            0 if events > 1 => AttemptError::Failed(HandlerError::Rejected(reason())),
            1 if events > 1 || *form == Form::Whole => AttemptError::Failed(HandlerError::TooLarge(reason())),
            2 => AttemptError::Failed(HandlerError::Busy { reason: reason(), retry_after: Duration::from_millis(100) }),
            3 if *panics < PANICS_MAX => {
                *panics += 1;
                AttemptError::Panicked(reason())
            }
            _ => AttemptError::Failed(HandlerError::Failed(reason())),
        }
    }
}
