//! Handlers with their actors and threads.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    attempts::RetryPolicy,
    core::CoreOptions,
    handlers::{DeliveryOptions, Handlers, Leftover},
    parts::{HandlerParts, HandlerSlot},
    route::{Route, RouteOptions},
    router::Router,
    run_time_tests::{run, until},
    schedule::{DeliveryOrder, ScheduleOptions},
    sink::Sink,
    status::{HandlerState, HandlerStatus},
    table::UnitOptions,
    worker::{Open, OpenHandler, Worker},
};
use crate::{
    change::{Change, Reached},
    handler::{Handler, HandlerError, blackhole},
    journal::{Bounds, Journal, Sequence, UnitId, testing::*},
    notification::{Event, Notification, Stopped, UnitInfo},
    object::ResourceType,
    supervisor::{
        SupervisorConfig,
        child::Heartbeat,
        fault::{Fault, Harm, Moment},
    },
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
    Arc::new(move || {
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
    pub(super) handlers: Handlers,
    has_unit: Cell<bool>,
}

impl Engine {
    pub(super) fn new() -> Self {
        let journal = Journal::in_memory();
        let handlers = Handlers::new(Router::new(journal.clone()), SupervisorConfig::default());
        Self { journal, handlers, has_unit: Cell::new(false) }
    }

    pub(super) fn add(
        &self,
        name: &str,
        sink: Sink,
        dead_letter: Option<HandlerSlot>,
    ) -> (Arc<HandlerStatus>, HandlerSlot) {
        self.start(Self::options(name, sink, dead_letter))
    }

    pub(super) fn start(&self, options: DeliveryOptions) -> (Arc<HandlerStatus>, HandlerSlot) {
        let (status, slot) = (Arc::clone(&options.parts.status), options.slot.clone());
        let (reader, _) = self.handlers.add(options).unwrap();
        status.attach(self.handlers.router().clone(), reader);
        (status, slot)
    }

    pub(super) fn options(name: &str, sink: Sink, dead_letter: Option<HandlerSlot>) -> DeliveryOptions {
        let status = Arc::new(HandlerStatus::new(name, "test"));
        let retry = RetryPolicy {
            initial: Duration::from_millis(1),
            max: Duration::from_secs(8),
            jitter: false,
            give_up_after: Duration::from_mins(1),
        };
        let core = CoreOptions {
            schedule: ScheduleOptions { concurrency: sink.concurrency(), ..schedule() },
            retry,
            rate: None,
            smallest: sink.smallest_form(),
            can_cancel: sink.can_cancel(),
            patience: Duration::from_secs(30),
        };
        let resources = if name == "dlq" { vec![] } else { vec!["p*".to_owned()] };
        DeliveryOptions {
            name: name.into(),
            route: Route::new(&RouteOptions { resources, initial: true, ..RouteOptions::default() }).unwrap(),
            bounds: Bounds::default(),
            parts: HandlerParts { core, sink, dead_letter, status },
            slot: HandlerSlot::default(),
            takes_dead_letters: name == "dlq",
            is_pipe: false,
        }
    }

    /// Commits changes of a unit, which is added with the first ones.
    pub(super) fn commit(&self, changes: &[Change]) {
        if !self.has_unit.replace(true) {
            self.handlers.router().add_unit(UnitId(0), info(), UnitOptions::default());
        }
        let ticket =
            self.journal.append(UnitId(0), 1, changes, &Reached::default(), jiff::Timestamp::UNIX_EPOCH).unwrap();
        self.journal.release(ticket);
    }

    pub(super) async fn stop(&self, within: Duration) -> Vec<Leftover> {
        self.handlers.shut_down(tokio::time::Instant::now() + within).await
    }
}

pub(super) fn thread(open: OpenHandler) -> Sink {
    Sink::Thread(Worker::spawn("test", Duration::from_secs(30), Open::Blocking(open)).unwrap())
}

#[test]
fn stop_delivers_released_events_and_dead_letters() {
    run(async {
        let engine = Engine::new();
        let (good, bad, dead) = (Seen::default(), Seen::default(), Seen::default());
        let (dlq, slot) = engine.add("dlq", thread(recording(&dead, 0)), None);
        let (steady, _) = engine.add("steady", thread(recording(&good, 0)), Some(slot));
        let (flaky, _) = engine.add("flaky", thread(recording(&bad, 3)), None);
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
        let view = steady.view(jiff::Timestamp::now());
        assert_eq!((view.dead_lettered, view.delivered, view.queued, view.position), (1, 11, 0, 12));
        assert!(view.panics >= 3);
        assert_eq!(dlq.view(jiff::Timestamp::now()).dropped, 1);
        let view = flaky.view(jiff::Timestamp::now());
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
        let stuck: OpenHandler = Arc::new(|| {
            Ok(Box::new(|_: &Notification| -> Result<(), HandlerError> {
                std::thread::park_timeout(Duration::from_secs(20));
                Err(HandlerError::Failed("stuck".into()))
            }) as Box<dyn Handler>)
        });
        let (status, _) = engine.add("stuck", thread(stuck), None);
        let (quick, _) = engine.add("quick", thread(recording(&seen, 0)), None);
        let ended = |_: &Notification| Err(HandlerError::Closed("pipe".into()));
        let (ended, _) = engine.add("ended", Sink::InPlace(Arc::new(Mutex::new(ended))), None);
        let (black, _) = engine.add("null", Sink::InPlace(Arc::new(Mutex::new(blackhole::Blackhole::default()))), None);
        let changes: Vec<_> = (0..6).map(|n| added(&format!("p{n}"), &format!("u{n}"), 1)).collect();
        engine.commit(&changes);
        let is_done = |status: &HandlerStatus| {
            let view = status.view(jiff::Timestamp::now());
            view.delivered + view.dropped == 6 && view.queued == 0
        };
        until(|| [&quick, &ended, &black].into_iter().all(|status| is_done(status))).await;
        until(|| status.view(jiff::Timestamp::now()).in_flight_seconds.is_some()).await;
        let left = engine.stop(Duration::from_millis(300)).await;
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].handler.as_str(), left[0].events, left[0].named.len()), ("stuck", 6, 6));
        assert_eq!(left[0].named[0].sequence, Sequence(1));
        assert!(status.view(jiff::Timestamp::now()).in_flight_seconds.is_some());
        assert_eq!(seen.lock().unwrap().len(), 6);
        let view = ended.view(jiff::Timestamp::now());
        assert_eq!((view.state, view.dropped, view.queued), (HandlerState::Stopped, 6, 0));
        assert_eq!(black.view(jiff::Timestamp::now()).delivered, 6);
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
        let open = Arc::new(move || Ok(Box::new(Picky(Arc::clone(&calls))) as Box<dyn Handler>));
        let (status, _) = engine.add("picky", thread(open), None);
        let view = || status.view(jiff::Timestamp::now());
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
        let (_, slot) = engine.add("own", Sink::Actor(own.recipient(), Duration::from_secs(30)), None);
        engine.commit(&[added("a", "a", 1)]);
        until(|| seen.lock().unwrap().len() == 1).await;
        assert!(slot.get().is_some());
        engine.commit(&[added("b", "b", 1)]);
        assert_eq!(engine.stop(Duration::from_secs(20)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "added b/1"]);
        assert!(slot.get().is_none());
    });
}

#[test]
fn panicked_lane_restarts_without_loss() {
    run(async {
        let engine = Engine::new();
        let (seen, other) = (Seen::default(), Seen::default());
        let (status, slot) = engine.add("mortal", thread(recording(&seen, 0)), None);
        engine.add("other", thread(recording(&other, 0)), None);
        engine.commit(&[added("a", "a", 1)]);
        until(|| seen.lock().unwrap().len() == 1 && status.view(jiff::Timestamp::now()).queued == 0).await;
        slot.get().unwrap().heartbeats.try_send(Heartbeat(Fault::new(Harm::Panic, Moment::Now))).unwrap();
        engine.commit(&[updated("a", "a", 1, 2)]);
        until(|| status.view(jiff::Timestamp::now()).restarts == 1).await;
        assert_eq!(engine.stop(Duration::from_secs(30)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "updated a/2<1"]);
        assert_eq!(*other.lock().unwrap(), *seen.lock().unwrap());
    });
}
