//! Handlers with their actors and threads.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    attempts::Retry,
    core::CoreOptions,
    handlers::{Leftover, NewHandler, RunningHandlers, Spot},
    router::Router,
    run_time_tests::{run, until},
    schedule::{DeliveryOrder, ScheduleOptions},
    sink::Sink,
    status::{HandlerState, HandlerStatus},
    table::{Route, UnitOptions},
    worker::{Open, OpenHandler, Worker},
};
use crate::{
    change::{Change, Reached},
    handler::{Handler, HandlerError},
    journal::{Bounds, ChangeSet, Journal, Sequence, UnitId, testing::*},
    notification::{Event, Notification, Stopped, UnitInfo},
    object::ResourceType,
    supervisor::{Supervision, fault::Harm},
};

fn info() -> UnitInfo {
    let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
    let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
    UnitInfo { entry: "pods".into(), resource, namespace: None }
}

pub(super) type Seen = Arc<Mutex<Vec<String>>>;

/// Returns a handler that records its events. It panics on an object named `poison`, and first fails `failures` times.
pub(super) fn recording(seen: &Seen, failures: usize) -> OpenHandler {
    let seen = Arc::clone(seen);
    let failures = Arc::new(Mutex::new(failures));
    Arc::new(move |_| {
        let (seen, failures) = (Arc::clone(&seen), Arc::clone(&failures));
        let handler = move |notification: &Notification| {
            let mut failures = failures.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err(HandlerError::Failed("down".into()));
            }
            drop(failures);
            for event in notification.events() {
                assert!(event.record.object().is_none_or(|object| object.name() != "poison"), "poison");
            }
            seen.lock().unwrap().extend(notification.events().iter().map(|event| brief(&event.record)));
            Ok(())
        };
        Ok(Box::new(handler) as Box<dyn Handler>)
    })
}

pub(super) fn schedule() -> ScheduleOptions {
    ScheduleOptions {
        order: DeliveryOrder::PerObject,
        concurrency: 1,
        distinct: false,
        batch_events: 4,
        batch_bytes: 1 << 20,
        linger: Duration::ZERO,
        window_events: 100,
        window_bytes: 1 << 20,
    }
}

pub(super) struct Engine {
    pub(super) journal: Journal,
    pub(super) handlers: RunningHandlers,
    has_unit: Cell<bool>,
}

impl Engine {
    pub(super) fn new() -> Self {
        let journal = Journal::in_memory();
        let handlers = RunningHandlers::new(Router::new(journal.clone()), Supervision::default());
        Self { journal, handlers, has_unit: Cell::new(false) }
    }

    pub(super) fn add(&self, name: &str, sink: Sink, dead_letter: Option<&str>) -> Arc<HandlerStatus> {
        self.start(Self::options(name, sink, dead_letter))
    }

    pub(super) fn start(&self, options: NewHandler) -> Arc<HandlerStatus> {
        let name = options.name.clone();
        self.handlers.put(options).unwrap();
        self.handlers.status(&name).unwrap()
    }

    pub(super) fn options(name: &str, sink: Sink, dead_letter: Option<&str>) -> NewHandler {
        let retry = Retry {
            initial: Duration::from_millis(1),
            max: Duration::from_secs(8),
            jitter: false,
            give_up_after: Duration::from_mins(1),
        };
        let core = CoreOptions {
            schedule: schedule(),
            retry,
            rate: None,
            is_async: sink.is_async(),
            patience: Duration::from_secs(30),
        };
        let changes = ChangeSet::ALL.without(ChangeSet::UNCHANGED).without(ChangeSet::RESYNC);
        let resources = if name == "dlq" { vec![] } else { vec!["p*"] };
        NewHandler {
            throttle: None,
            name: name.into(),
            kind: "test",
            route: Route::new(resources, changes.without(ChangeSet::SYNCED), Duration::ZERO).unwrap(),
            bounds: Bounds::default(),
            core,
            sink,
            dead_letter: dead_letter.map(str::to_owned),
        }
    }

    /// Commits changes of a unit, which is added with the first ones.
    pub(super) fn commit(&self, changes: &[Change]) {
        if !self.has_unit.replace(true) {
            self.handlers.router.add_unit(UnitId(0), info(), UnitOptions::default(), None);
        }
        let ticket = self
            .journal
            .append(UnitId(0).writer(1), changes, &Reached::default(), jiff::Timestamp::UNIX_EPOCH)
            .unwrap();
        self.journal.release(ticket);
    }

    pub(super) async fn stop(&self, within: Duration) -> Vec<Leftover> {
        self.handlers.shut_down(tokio::time::Instant::now() + within).await
    }
}

pub(super) fn thread(open: OpenHandler) -> Sink {
    Sink::Thread(Worker::new("test", Duration::from_secs(30), Open::Blocking(open)).start().unwrap())
}

#[test]
fn stop_delivers_released_events_and_dead_letters() {
    run(async {
        let engine = Engine::new();
        let (good, bad, dead) = (Seen::default(), Seen::default(), Seen::default());
        let dlq = engine.add("dlq", thread(recording(&dead, 0)), None);
        let steady = engine.add("steady", thread(recording(&good, 0)), Some("dlq"));
        let flaky = engine.add("flaky", thread(recording(&bad, 3)), None);
        let changes: Vec<_> = (1..10).map(|n| updated("a", "a", n, n + 1)).collect();
        engine.commit(&changes);
        engine.commit(&[added("poison", "p", 1), deleted("a", "a", 20), added("a", "b", 21)]);
        let left = engine.stop(Duration::from_secs(20)).await;
        assert_eq!(left, [], "everything is delivered or given up");
        let expected: Vec<_> = (1..10).map(|n| format!("updated a/{}<{n}", n + 1)).collect();
        let expected = [expected, vec!["deleted a/20".into(), "added b/21".into()]].concat();
        assert_eq!(*good.lock().unwrap(), expected);
        assert_eq!(*bad.lock().unwrap(), expected);
        // The dead letter's handler panics on it too, so it is counted as lost.
        let view = steady.view();
        assert_eq!((view.dead_lettered, view.delivered, view.queued, view.position), (1, 11, 0, 12));
        assert!(view.panics >= 3);
        assert_eq!(dlq.view().dropped, 1);
        let view = flaky.view();
        assert_eq!((view.dropped, view.state), (1, HandlerState::Stopped));
        assert!(view.retried >= 6);
    });
}

/// Rule: H-2.
#[test]
fn stalled_handler_delays_no_other_handler() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let stuck: OpenHandler = Arc::new(|_| {
            Ok(Box::new(|_: &Notification| -> Result<(), HandlerError> {
                std::thread::park_timeout(Duration::from_secs(20));
                Err(HandlerError::Failed("stuck".into()))
            }) as Box<dyn Handler>)
        });
        let status = engine.add("stuck", thread(stuck), None);
        let quick = engine.add("quick", thread(recording(&seen, 0)), None);
        let ended = |_: &Notification| Err(HandlerError::Closed("pipe".into()));
        let ended = engine.add("ended", Sink::InPlace(Arc::new(Mutex::new(ended))), None);
        let drops_events = |_: &Notification| -> Result<(), HandlerError> { Ok(()) };
        let black = engine.add("null", Sink::InPlace(Arc::new(Mutex::new(drops_events))), None);
        let changes: Vec<_> = (0..6).map(|n| added(&format!("p{n}"), &format!("u{n}"), 1)).collect();
        engine.commit(&changes);
        let is_done = |status: &HandlerStatus| {
            let view = status.view();
            view.delivered + view.dropped == 6 && view.queued == 0
        };
        until(|| [&quick, &ended, &black].into_iter().all(|status| is_done(status))).await;
        until(|| status.view().in_flight_seconds.is_some()).await;
        let left = engine.stop(Duration::from_millis(300)).await;
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].handler.as_str(), left[0].events, left[0].named.len()), ("stuck", 6, 6));
        assert_eq!(left[0].named[0].sequence, Sequence(1));
        assert!(status.view().in_flight_seconds.is_some());
        assert_eq!(seen.lock().unwrap().len(), 6);
        let view = ended.view();
        assert_eq!((view.state, view.dropped, view.queued), (HandlerState::Stopped, 6, 0));
        assert_eq!(black.view().delivered, 6);
    });
}

/// Handler that accepts only events of `a`; it records when it is closed.
struct Picky(Seen);

impl Handler for Picky {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        let ours = |event: &Event| event.record.object().is_some_and(|object| object.name() == "a");
        if notification.events().iter().all(ours) { Ok(()) } else { Err(HandlerError::Failed("full".into())) }
    }

    fn close(&mut self) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push("closed".into());
        Ok(())
    }
}

#[test]
fn busy_handler_flushes_at_stop_deadline() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let calls = Arc::clone(&seen);
        let open = Arc::new(move |_: &_| Ok(Box::new(Picky(Arc::clone(&calls))) as Box<dyn Handler>));
        let status = engine.add("picky", thread(open), None);
        let view = || status.view();
        engine.commit(&[added("a", "a", 1)]);
        until(|| view().delivered == 1 && view().queued == 0).await;
        engine.commit(&[added("b", "b", 1)]);
        until(|| view().retried > 0).await;
        let left = engine.stop(Duration::from_millis(100)).await;
        assert_eq!((left.len(), left[0].events), (1, 1), "the failed event is reported");
        assert_eq!(*seen.lock().unwrap(), ["closed"]);
        assert_eq!(view().state, HandlerState::Stopped);
    });
}

/// Rule: S-5.
#[test]
fn later_unit_does_not_end_wait_for_join() {
    let journal = Journal::in_memory();
    let router = Router::new(journal.clone());
    let queued_after_commit = |unit: UnitId, reader| {
        let changes = [added("a", "a", 1)];
        let now = jiff::Timestamp::UNIX_EPOCH;
        let ticket = journal.append(unit.writer(1), &changes, &Reached::default(), now).unwrap();
        journal.release(ticket);
        journal.stats(reader).queued
    };
    router.add_unit(UnitId(0), info(), UnitOptions::default(), None);
    let route = || Route::new(["p*"], ChangeSet::ALL, Duration::ZERO).unwrap();
    let (reader, attachments) = router.open(Some("late"), route(), Bounds::default()).unwrap();
    assert_eq!(attachments.iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), [UnitId(0)]);
    assert!(router.add_unit(UnitId(1), info(), UnitOptions::default(), None).is_empty());
    assert_eq!(router.set_route(reader, route(), Bounds::default()), []);
    assert_eq!([UnitId(0), UnitId(1)].map(|unit| queued_after_commit(unit, reader)), [0, 1]);
}

/// Actor of a library user.
struct Own(Seen);

impl actix::Actor for Own {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Notification> for Own {
    type Result = Result<(), Stopped>;

    fn handle(&mut self, batch: Notification, _ctx: &mut Self::Context) -> Self::Result {
        self.0.lock().unwrap().extend(batch.events().iter().map(|event| brief(&event.record)));
        Ok(())
    }
}

#[test]
fn custom_actor_is_a_handler() {
    use actix::Actor as _;
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let own = Own(Arc::clone(&seen)).start();
        let status = engine.add("own", Sink::Actor(own.recipient(), Duration::from_secs(30)), None);
        engine.commit(&[added("a", "a", 1)]);
        until(|| seen.lock().unwrap().len() == 1).await;
        assert_eq!(status.view().state, HandlerState::Running);
        engine.commit(&[added("b", "b", 1)]);
        assert_eq!(engine.stop(Duration::from_secs(20)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "added b/1"]);
        assert_eq!(status.view().state, HandlerState::Stopped);
    });
}

#[test]
fn panicked_lane_restarts_without_loss() {
    run(async {
        let engine = Engine::new();
        let (seen, other) = (Seen::default(), Seen::default());
        let status = engine.add("mortal", thread(recording(&seen, 0)), None);
        engine.add("other", thread(recording(&other, 0)), None);
        engine.commit(&[added("a", "a", 1)]);
        until(|| seen.lock().unwrap().len() == 1 && status.view().queued == 0).await;
        engine.handlers.sabotage("mortal", Spot::Actor, Harm::Panic);
        engine.commit(&[updated("a", "a", 1, 2)]);
        until(|| status.view().restarts == 1).await;
        assert_eq!(engine.stop(Duration::from_secs(30)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "updated a/2<1"]);
        assert_eq!(*other.lock().unwrap(), *seen.lock().unwrap());
    });
}
