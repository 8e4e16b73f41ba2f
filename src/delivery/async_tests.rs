//! Asynchronous handlers with concurrent deliveries.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::sync::Semaphore;

use super::{
    handlers::NewHandler,
    pace::Rate,
    run_time_tests::{run, until},
    sink::Sink,
    status::{self, Control, HandlerState},
    tests::{Engine, Seen},
    worker::{Open, OpenAsync, Worker},
};
use crate::{
    change::Change,
    handler::{AsyncHandler, Form, HandlerError},
    journal::testing::*,
    notification::Notification,
};

const SOON: Duration = Duration::from_secs(20);

/// Result of a delivery in a test, by the name of its first object.
type Answer = dyn Fn(&str, Form) -> Result<(), HandlerError> + Send + Sync;

/// Handler that records its events. A delivery can wait for a permit with its object's name.
#[derive(Clone)]
struct Remote {
    begun: Seen,
    done: Seen,
    gates: Arc<Mutex<BTreeMap<String, Arc<Semaphore>>>>,
    at_work: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    answer: Arc<Answer>,
}

impl Remote {
    fn new(answer: impl Fn(&str, Form) -> Result<(), HandlerError> + Send + Sync + 'static) -> Self {
        Self {
            begun: Seen::default(),
            done: Seen::default(),
            gates: Arc::default(),
            at_work: Arc::default(),
            most: Arc::default(),
            answer: Arc::new(answer),
        }
    }

    fn hold(&self, name: &str) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.gates.lock().unwrap().insert(name.into(), Arc::clone(&gate));
        gate
    }

    fn sink(&self, concurrency: usize, timeout: Duration) -> Sink {
        self.sink_that_may_hang(concurrency, timeout, Duration::from_secs(30))
    }

    fn sink_that_may_hang(&self, concurrency: usize, timeout: Duration, hung_after: Duration) -> Sink {
        let remote = self.clone();
        let open: OpenAsync = Arc::new(move || Ok(Arc::new(remote.clone())));
        Sink::Thread(Worker::new("remote", hung_after, Open::Async { open, concurrency, timeout }).start().unwrap())
    }

    fn seen(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

impl AsyncHandler for Remote {
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        async move {
            let events: Vec<_> = batch.events().iter().map(|event| brief(&event.record)).collect();
            let name = batch.events()[0].record.object().map_or("", |object| object.name());
            self.begun.lock().unwrap().extend(events.clone());
            let at_work = self.at_work.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(at_work, Ordering::SeqCst);
            let gate = self.gates.lock().unwrap().get(name).cloned();
            if let Some(gate) = gate {
                gate.acquire().await.unwrap().forget();
            }
            self.at_work.fetch_sub(1, Ordering::SeqCst);
            (self.answer)(name, form)?;
            self.done.lock().unwrap().extend(events);
            Ok(())
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        self.done.lock().unwrap().push("closed".into());
        std::future::ready(Ok(())).boxed()
    }
}

fn add(engine: &Engine, concurrency: usize, sink: Sink) -> Arc<status::HandlerStatus> {
    engine.start(options(concurrency, sink))
}

fn options(concurrency: usize, sink: Sink) -> NewHandler {
    let mut options = Engine::options("remote", sink, None);
    (options.core.schedule.concurrency, options.core.schedule.batch_events) = (concurrency, 1);
    options
}

fn pods(names: &[&str]) -> Vec<Change> {
    names.iter().map(|name| added(name, name, 1)).collect()
}

fn view(status: &status::HandlerStatus) -> status::HandlerView {
    status.view()
}

/// Rule: S-3.
#[test]
fn waiting_object_delays_only_its_own_events() {
    run(async {
        let (engine, remote) = (Engine::new(), Remote::new(|_, _| Ok(())));
        let gate = remote.hold("a");
        let status = add(&engine, 3, remote.sink(3, SOON));
        engine.commit(&pods(&["a", "b", "c", "d"]));
        engine.commit(&[updated("a", "a", 1, 2), updated("b", "b", 1, 2)]);
        until(|| remote.seen().len() == 4).await;
        assert_eq!(view(&status).position, 0, "the first event is not delivered yet");
        until(|| (view(&status).in_flight, view(&status).queued) == (1, 2)).await;
        gate.add_permits(2);
        until(|| remote.seen().len() == 6).await;
        let of = |name: &str| remote.seen().into_iter().filter(|line| line.contains(name)).collect::<Vec<_>>();
        assert_eq!(of(" a/"), ["added a/1", "updated a/2<1"]);
        assert_eq!(of(" b/"), ["added b/1", "updated b/2<1"]);
        assert_eq!(engine.stop(SOON).await, []);
        assert_eq!((view(&status).position, view(&status).in_flight), (6, 0));
        assert_eq!(remote.seen().last().unwrap(), "closed");
    });
}

#[test]
fn deliveries_run_in_parallel_up_to_concurrency() {
    run(async {
        let (engine, remote) = (Engine::new(), Remote::new(|_, _| Ok(())));
        let names = ["a", "b", "c", "d", "e", "f"];
        let gates = names.map(|name| remote.hold(name));
        add(&engine, 3, remote.sink(3, SOON));
        engine.commit(&pods(&names));
        until(|| remote.begun.lock().unwrap().len() == 3).await;
        for gate in &gates {
            gate.add_permits(1);
        }
        assert_eq!(engine.stop(SOON).await, []);
        assert_eq!((remote.seen().len(), remote.most.load(Ordering::SeqCst)), (7, 3));
    });
}

#[test]
fn timed_out_attempt_is_retried() {
    run(async {
        let (engine, remote) = (Engine::new(), Remote::new(|_, _| Ok(())));
        let gate = remote.hold("a");
        let status = add(&engine, 2, remote.sink(2, Duration::from_millis(50)));
        engine.commit(&pods(&["a"]));
        until(|| view(&status).retried > 0).await;
        assert_eq!(view(&status).last_error.unwrap(), "no answer within 50ms");
        gate.add_permits(9);
        assert_eq!(engine.stop(SOON).await, []);
        assert_eq!((remote.seen(), view(&status).restarts), (vec!["added a/1".into(), "closed".into()], 0));
    });
}

#[test]
fn oversized_event_is_delivered_in_smaller_form() {
    run(async {
        let remote = Remote::new(|name, form| match (name, form) {
            ("old", Form::Whole) | ("ref", Form::Whole | Form::WithoutOld) | ("none", _) => {
                Err(HandlerError::TooLarge("413".into()))
            }
            _ => Ok(()),
        });
        let engine = Engine::new();
        let status = add(&engine, 2, remote.sink(2, SOON));
        engine.commit(&pods(&["old", "ref", "none", "fits"]));
        assert_eq!(engine.stop(SOON).await, []);
        let view = view(&status);
        assert_eq!((view.delivered, view.without_old, view.references), (3, 1, 1));
        assert_eq!((view.too_large, view.dropped, view.queued), (1, 1, 0));
    });
}

/// Rule: S-9.
#[test]
fn panicking_delivery_ends_no_other() {
    run(async {
        let remote = Remote::new(|name, _| {
            assert_ne!(name, "poison");
            Ok(())
        });
        let engine = Engine::new();
        let gate = remote.hold("slow");
        let status = add(&engine, 4, remote.sink(4, SOON));
        engine.commit(&pods(&["slow", "poison", "b"]));
        until(|| view(&status).dropped == 1).await;
        gate.add_permits(1);
        assert_eq!(engine.stop(SOON).await, []);
        assert_eq!((view(&status).panics, view(&status).delivered), (3, 2));
        assert_eq!(remote.begun.lock().unwrap().iter().filter(|line| line.contains("slow")).count(), 1);
    });
}

#[test]
fn blocked_thread_is_replaced_and_deliveries_repeated() {
    run(async {
        let blocked = AtomicUsize::new(0);
        let remote = Remote::new(move |_, _| {
            if blocked.fetch_add(1, Ordering::SeqCst) == 0 {
                std::thread::park_timeout(Duration::from_secs(20));
            }
            Ok(())
        });
        let engine = Engine::new();
        let sink = remote.sink_that_may_hang(4, Duration::from_secs(1), Duration::from_secs(2));
        let status = add(&engine, 4, sink);
        engine.commit(&pods(&["a", "b"]));
        until(|| view(&status).delivered == 2).await;
        assert_eq!(view(&status).restarts, 1, "one new thread for all waiting deliveries");
        assert_eq!(engine.stop(SOON).await, []);
    });
}

#[test]
fn stop_deadline_cancels_waiting_delivery() {
    run(async {
        let (engine, remote) = (Engine::new(), Remote::new(|_, _| Ok(())));
        let _gate = remote.hold("a");
        let status = add(&engine, 2, remote.sink(2, SOON));
        engine.commit(&pods(&["a", "b"]));
        until(|| view(&status).delivered == 1 && view(&status).queued == 1).await;
        let left = engine.stop(Duration::from_millis(500)).await;
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].named.iter().map(|event| event.sequence.0).collect::<Vec<_>>(), [1]);
        assert_eq!(remote.seen(), ["added b/1", "closed"], "it is closed anyway");
    });
}

#[test]
fn busy_sink_and_rate_limit_hold_all_deliveries() {
    run(async {
        let calls = AtomicUsize::new(0);
        let remote = Remote::new(move |_, _| {
            if calls.fetch_add(1, Ordering::SeqCst) > 0 {
                return Ok(());
            }
            Err(HandlerError::Busy { reason: "429".into(), retry_after: Duration::from_mins(10) })
        });
        let engine = Engine::new();
        let status = add(&engine, 2, remote.sink(2, SOON));
        engine.commit(&pods(&["a"]));
        until(|| view(&status).retried == 1).await;
        engine.commit(&pods(&["b"]));
        until(|| view(&status).rate_limited).await;
        assert_eq!(view(&status).state, HandlerState::Retrying);
        status.control(Control::Pause);
        until(|| !view(&status).rate_limited).await;
        assert_eq!(remote.begun.lock().unwrap().len(), 1);
        assert_eq!(engine.stop(Duration::from_millis(100)).await[0].events, 2);
    });
}

#[test]
fn all_deliveries_share_one_rate() {
    run(async {
        let (engine, remote) = (Engine::new(), Remote::new(|_, _| Ok(())));
        let mut options = options(4, remote.sink(4, SOON));
        options.core.rate = Some(Rate { deliveries: 2, period: Duration::from_hours(1) });
        let status = engine.start(options);
        engine.commit(&pods(&["a", "b", "c"]));
        until(|| view(&status).rate_limited && view(&status).delivered == 2 && view(&status).queued == 1).await;
        assert_eq!(engine.stop(Duration::from_millis(500)).await[0].events, 1);
    });
}
