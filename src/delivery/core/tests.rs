use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::{
    change::Change,
    delivery::schedule,
    journal::{Record, UnitId, testing::*},
    notification::UnitInfo,
    object::ResourceType,
};

fn options(concurrency: usize, batch_events: usize) -> CoreOptions {
    let schedule = ScheduleOptions {
        order: schedule::DeliveryOrder::PerObject,
        concurrency,
        distinct: false,
        batch_events,
        batch_bytes: 1 << 20,
        linger: Duration::ZERO,
        window_events: 100,
        window_bytes: 1 << 20,
    };
    let retry = Retry { initial: secs(1), max: secs(8), jitter: false, give_up_after: secs(60) };
    CoreOptions { schedule, retry, rate: None, is_async: true, patience: secs(30) }
}

/// Drain without a deadline.
const DRAIN: HandlerOrder = HandlerOrder::Drain { until: Duration::MAX, close_by: Duration::MAX };

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns events at these positions, each of its own object.
fn events(places: std::ops::Range<u64>) -> Vec<Event> {
    let [group, version, kind, plural] = ["", "v1", "Thing", "things"].map(str::to_owned);
    let resource = ResourceType { group, version, kind, plural, namespaced: true };
    let unit = Arc::new(UnitInfo { entry: "entry".to_owned(), resource, namespace: None });
    let event = |place: u64| {
        let change: Change = added(&format!("o{place}"), &format!("u{place}"), 1);
        let record = Record { sequence: Sequence(place), unit: UnitId(0), time_micros: 0, change, old_lost: false };
        Event { unit: Arc::clone(&unit), record }
    };
    places.map(event).collect()
}

/// Short form of an action; deliveries are numbered from 1.
fn brief(action: Option<HandlerAction>) -> String {
    let first = |events: &Notification| events.events()[0].record.sequence.0;
    match action {
        None => "wait".to_owned(),
        Some(HandlerAction::Send(id, events, _)) => {
            format!("send {} {}+{}", id.0, first(&events), events.events().len())
        }
        Some(HandlerAction::Cancel) => "cancel".to_owned(),
        Some(HandlerAction::GiveUp(id, events, _)) => {
            format!("give up {} {}+{}", id.0, first(&events), events.events().len())
        }
        Some(HandlerAction::Acknowledge(id, sequences)) => format!("acknowledge {} {}", id.0, sequences.len()),
        Some(HandlerAction::Answer(id, answer)) => format!("answer {} {answer}", id.0),
        Some(HandlerAction::End(None)) => "close".to_owned(),
        Some(HandlerAction::End(Some(reason))) => format!("end {reason}"),
    }
}

struct Played {
    core: HandlerCore,
    now: Duration,
}

impl Played {
    fn new(options: CoreOptions, places: std::ops::Range<u64>) -> Self {
        let mut core = HandlerCore::new(options);
        core.read(Some(events(places)), Duration::ZERO);
        Self { core, now: Duration::ZERO }
    }

    fn next(&mut self) -> String {
        brief(self.core.next(self.now))
    }

    fn finish(&mut self, delivery: u64, outcome: AttemptOutcome) -> Option<FailedAttempt> {
        self.core.finished(DeliveryId(delivery), outcome, self.now, 0.0)
    }
}

fn failed() -> AttemptOutcome {
    Err(AttemptError::Failed(HandlerError::Failed("down".into())))
}

#[test]
fn batches_are_sent_up_to_concurrency() {
    let mut played = Played::new(options(2, 2), 1..6);
    assert_eq!([played.next(), played.next(), played.next()], ["send 1 1+2", "send 2 3+2", "wait"]);
    assert_eq!((played.core.room(), played.core.view(secs(9)).in_flight), (None, 2));
    assert_eq!(played.finish(2, Ok(())), None);
    assert_eq!([played.next(), played.next(), played.next()], ["acknowledge 2 2", "send 3 5+1", "wait"]);
    assert_eq!(played.core.view(secs(9)).oldest_attempt, Some(secs(0)));
}

#[test]
fn failed_attempt_is_repeated_after_its_delay() {
    let mut played = Played::new(options(2, 9), 1..3);
    assert_eq!(played.next(), "send 1 1+2");
    assert_eq!(played.finish(1, failed()), Some(FailedAttempt { attempt: 1, retry_in: Some(secs(1)) }));
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), Some(secs(1))));
    assert!(played.core.view(secs(0)).is_failing);
    played.now = secs(1);
    assert_eq!(played.next(), "send 1 1+2");
    assert_eq!(played.finish(1, failed()), Some(FailedAttempt { attempt: 2, retry_in: Some(secs(2)) }));
}

#[test]
fn rejected_event_is_given_up_alone() {
    let mut played = Played::new(options(2, 9), 1..3);
    let rejected = || Err(AttemptError::Failed(HandlerError::Rejected("422".into())));
    assert_eq!(played.next(), "send 1 1+2");
    assert_eq!(played.finish(1, rejected()).unwrap().retry_in, Some(secs(0)));
    assert_eq!(played.next(), "send 1 1+1");
    assert_eq!(played.finish(1, rejected()).unwrap().retry_in, None);
    assert_eq!([played.next(), played.next()], ["give up 1 1+1", "wait"]);
    assert!(played.core.gave_up(DeliveryId(1)));
    assert_eq!(played.next(), "send 1 2+1");
    played.finish(1, Ok(()));
    assert_eq!(played.next(), "acknowledge 1 2");
}

#[test]
fn dead_letters_and_own_events_alternate() {
    let mut played = Played::new(options(1, 1), 1..4);
    for place in [90, 91, 92] {
        played.core.dead_letter(Notification::new(events(place..place + 1)));
    }
    let mut order = Vec::new();
    loop {
        match played.core.next(played.now) {
            Some(HandlerAction::Send(id, events, _)) => {
                order.push(events.events()[0].record.sequence.0);
                played.finish(id.0, Ok(()));
            }
            Some(HandlerAction::Acknowledge(..) | HandlerAction::Answer(_, true)) => {}
            None => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(order, [1, 90, 2, 91, 3, 92]);
}

#[test]
fn paused_handler_sends_and_reads_nothing() {
    let mut played = Played::new(options(2, 1), 1..3);
    assert_eq!(played.next(), "send 1 1+1");
    played.core.order(HandlerOrder::Run, true, played.now);
    assert_eq!((played.next(), played.core.room(), played.core.wake_at()), ("wait".into(), None, None));
    played.finish(1, failed());
    played.now = secs(5);
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), None), "its retry waits too");
    played.core.order(HandlerOrder::Run, false, played.now);
    assert_eq!([played.next(), played.next()], ["send 1 1+1", "send 2 2+1"]);
}

#[test]
fn draining_handler_reads_once_more_before_closing() {
    let mut played = Played::new(options(1, 9), 1..2);
    played.core.order(DRAIN, false, played.now);
    assert_eq!(played.next(), "send 1 1+1");
    played.core.read(Some(Vec::new()), played.now);
    played.finish(1, Ok(()));
    assert_eq!([played.next(), played.next()], ["acknowledge 1 1", "wait"]);
    assert!(played.core.room().is_some());
    played.core.read(Some(events(2..3)), played.now);
    assert_eq!(played.next(), "send 2 2+1");
    played.finish(2, Ok(()));
    assert_eq!([played.next(), played.next()], ["acknowledge 2 1", "wait"]);
    played.core.read(Some(Vec::new()), played.now);
    assert_eq!([played.next(), played.next()], ["close", "wait"]);
    assert_eq!(played.core.room(), None);
}

#[test]
fn paused_draining_handler_closes_after_its_attempts() {
    let mut played = Played::new(options(2, 1), 1..3);
    assert_eq!(played.next(), "send 1 1+1");
    played.core.order(DRAIN, true, secs(1));
    played.core.order(DRAIN, true, secs(2));
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), Some(secs(31))));
    played.finish(1, Ok(()));
    assert_eq!([played.next(), played.next()], ["acknowledge 1 1", "close"]);
}

#[test]
fn stop_of_paused_handler_has_its_deadline() {
    let mut played = Played::new(options(2, 1), 1..3);
    assert_eq!(played.next(), "send 1 1+1");
    let drain = HandlerOrder::Drain { until: secs(5), close_by: secs(7) };
    played.core.order(drain, true, secs(1));
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), Some(secs(7))));
    played.core.order(HandlerOrder::Drain { until: secs(3), close_by: secs(4) }, true, secs(2));
    assert_eq!(played.core.wake_at(), Some(secs(4)));
}

#[test]
fn draining_handler_closes_when_its_time_is_up() {
    let mut played = Played::new(options(1, 1), 1..3);
    let drain = HandlerOrder::Drain { until: secs(5), close_by: secs(7) };
    played.core.order(drain, false, played.now);
    assert_eq!((played.next(), played.core.wake_at()), ("send 1 1+1".into(), Some(secs(5))));
    played.now = secs(5);
    played.core.order(drain, false, played.now);
    assert_eq!((played.next(), played.core.wake_at(), played.core.room()), ("wait".into(), Some(secs(7)), None));
    played.finish(1, Ok(()));
    assert_eq!([played.next(), played.next()], ["acknowledge 1 1", "close"]);
}

#[test]
fn closing_handler_drops_queued_and_cancels_running_deliveries() {
    let mut played = Played::new(options(2, 1), 1..3);
    assert_eq!([played.next(), played.next()], ["send 1 1+1", "send 2 2+1"]);
    played.core.dead_letter(Notification::new(events(90..91)));
    played.finish(1, failed());
    assert_eq!(played.next(), "wait");
    played.core.order(HandlerOrder::Close(secs(5)), false, played.now);
    assert_eq!([played.next(), played.next()], ["answer 3 false", "wait"]);
    assert_eq!(played.core.wake_at(), Some(secs(5)));
    played.now = secs(5);
    assert_eq!([played.next(), played.next(), played.next()], ["cancel", "close", "wait"]);
    assert_eq!(played.finish(2, Ok(())), None, "the answer is too late");
}

#[test]
fn uncancellable_attempt_is_awaited() {
    let mut played = Played::new(CoreOptions { is_async: false, ..options(1, 1) }, 1..2);
    assert_eq!(played.next(), "send 1 1+1");
    played.core.order(HandlerOrder::Close(secs(5)), false, played.now);
    played.now = secs(50);
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), None));
    played.finish(1, failed());
    assert_eq!(played.next(), "close");
}

#[test]
fn closed_sink_ends_handler_without_closing() {
    let mut played = Played::new(options(2, 1), 1..3);
    assert_eq!(played.next(), "send 1 1+1");
    assert_eq!(played.finish(1, Err(AttemptError::Failed(HandlerError::Closed("EPIPE".into())))), None);
    assert_eq!([played.next(), played.next()], ["end EPIPE", "wait"]);
}

#[test]
fn busy_sink_and_rate_hold_all_deliveries() {
    let rate = Some(Rate { deliveries: 1, period: secs(10) });
    let mut played = Played::new(CoreOptions { rate, ..options(3, 1) }, 1..4);
    assert_eq!([played.next(), played.next()], ["send 1 1+1", "wait"]);
    assert_eq!((played.core.wake_at(), played.core.view(secs(9)).is_limited), (Some(secs(10)), true));
    let busy = HandlerError::Busy { reason: "429".into(), retry_after: secs(20) };
    played.finish(1, Err(AttemptError::Failed(busy)));
    assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), Some(secs(20))));
}

#[test]
fn busy_delay_is_respected_up_to_limit() {
    for (retry_after, expected) in [
        (secs(300), secs(300)),
        (Duration::from_millis(1), secs(1)), // no sooner than after another failure
        (Duration::from_hours(90), Duration::from_hours(1)),
    ] {
        let mut played = Played::new(options(1, 1), 1..2);
        assert_eq!(played.next(), "send 1 1+1");
        let busy = HandlerError::Busy { reason: "429".into(), retry_after };
        let failed = played.finish(1, Err(AttemptError::Failed(busy)));
        assert_eq!(failed.unwrap().retry_in, Some(expected));
        assert_eq!((played.next(), played.core.wake_at()), ("wait".into(), Some(expected)));
    }
}

proptest! {
    /// Rule E4: for any answers of the sink, each event is delivered or given up, then acknowledged once. Then the
    /// handler closes.
    #[test]
    fn any_answers_end_with_all_events_acknowledged(
        (concurrency, batch_events) in (1..5_usize, 1..5_usize),
        script in proptest::collection::vec((0..6_u8, any::<bool>()), 0..200),
    ) {
        let mut played = Played::new(options(concurrency, batch_events), 1..20);
        let (mut script, mut at_sink, mut acknowledged) = (script.into_iter(), Vec::new(), BTreeSet::new());
        played.core.order(DRAIN, false, played.now);
        loop {
            match played.core.next(played.now) {
                Some(HandlerAction::Send(id, ..)) => at_sink.push(id),
                Some(HandlerAction::GiveUp(id, ..)) => prop_assert!(played.core.gave_up(id)),
                Some(HandlerAction::Acknowledge(_, sequences)) => {
                    for sequence in sequences {
                        prop_assert!(acknowledged.insert(sequence));
                    }
                }
                Some(HandlerAction::End(None)) => break,
                Some(other) => panic!("{other:?}"),
                None if !at_sink.is_empty() => {
                    prop_assert!(at_sink.len() <= concurrency);
                    let (answer, first) = script.next().unwrap_or((0, true));
                    let id = if first { at_sink.remove(0) } else { at_sink.pop().unwrap() };
                    let outcome = match answer {
                        1 => failed(),
                        2 => Err(AttemptError::Panicked("boom".into())),
                        3 => Err(AttemptError::Failed(HandlerError::Rejected("no".into()))),
                        4 => Err(AttemptError::Failed(HandlerError::TooLarge("413".into()))),
                        5 => Err(AttemptError::Failed(HandlerError::Busy { reason: "429".into(), retry_after: secs(9) })),
                        _ => Ok(()),
                    };
                    played.core.finished(id, outcome, played.now, 0.5);
                }
                None => match played.core.wake_at().filter(|at| *at < Duration::MAX) {
                    Some(at) => {
                        prop_assert!(at > played.now);
                        played.now = at;
                    }
                    None => played.core.read(Some(Vec::new()), played.now),
                },
            }
        }
        prop_assert_eq!(acknowledged.len(), 19);
    }
}
