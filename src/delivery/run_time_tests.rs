//! Handlers that are added, replaced and removed while others run.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    handlers::Remove,
    sink::Sink,
    status,
    tests::{Engine, Seen, recording, thread},
    worker::OpenHandler,
};
use crate::{
    change::{Cause, Change},
    handler::{Handler, HandlerError},
    journal::{Attachment, AttachmentKind, UnitId, testing::*},
    notification::{Event, Notification},
};

const SOON: Duration = Duration::from_secs(30);

pub(super) fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(async { timeout(Duration::from_mins(3), test).await.expect("nothing hangs") });
}

pub(super) async fn until(what: impl Fn() -> bool) {
    while !what() {
        sleep(Duration::from_millis(2)).await;
    }
}

/// Returns a handler whose calls wait until they are released.
fn gated(seen: &Seen) -> (Sink, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel();
    let (seen, gate) = (Arc::clone(seen), Arc::new(Mutex::new(gate)));
    let open: OpenHandler = Arc::new(move |_| {
        let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
        Ok(Box::new(move |batch: &Notification| -> Result<(), HandlerError> {
            seen.lock().unwrap().push("called".into());
            let _gone = gate.lock().unwrap().recv();
            seen.lock().unwrap().extend(batch.events().iter().map(|event| brief(&event.record)));
            Ok(())
        }) as Box<dyn Handler>)
    });
    (thread(open), go)
}

fn pods(range: std::ops::Range<u32>) -> Vec<Change> {
    range.map(|n| added(&format!("p{n}"), &format!("p{n}"), 1)).collect()
}

/// Rules: S-2, S-3.
#[test]
fn slow_handler_delays_no_other_handler() {
    run(async {
        let engine = Engine::new();
        let (slow, quick) = (Seen::default(), Seen::default());
        let (sink, go) = gated(&slow);
        engine.add("slow", sink, None);
        engine.add("quick", thread(recording(&quick, 0)), None);
        engine.commit(&pods(0..9));
        until(|| quick.lock().unwrap().len() == 9 && !slow.lock().unwrap().is_empty()).await;
        assert_eq!(*slow.lock().unwrap(), ["called"]);
        drop(go);
        assert_eq!(engine.stop(SOON).await, []);
        let events: Vec<_> = slow.lock().unwrap().iter().filter(|line| *line != "called").cloned().collect();
        assert_eq!(events, *quick.lock().unwrap());
    });
}

/// Handler without work in its deliveries, and with a tick every 20 ms.
struct Ticking(Seen);

impl Handler for Ticking {
    fn deliver(&mut self, _: &Notification) -> Result<(), HandlerError> {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }

    fn tick_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(20))
    }

    fn tick(&mut self) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push("tick".into());
        Ok(())
    }
}

#[test]
fn busy_handler_ticks_too() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let of_handler = Arc::clone(&seen);
        let sink = thread(Arc::new(move |_| Ok(Box::new(Ticking(Arc::clone(&of_handler))))));
        let status = engine.add("one", sink, None);
        engine.commit(&pods(0..4_000)); // at least two seconds of deliveries
        until(|| seen.lock().unwrap().len() > 3).await;
        assert!(status.view().queued > 0, "the handler is still busy");
        assert_eq!(engine.stop(SOON).await, []);
    });
}

#[test]
fn idle_handlers_stop_at_once() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        engine.add("one", thread(recording(&seen, 0)), None);
        engine.add("dlq", thread(recording(&seen, 0)), None);
        engine.commit(&pods(0..3));
        until(|| seen.lock().unwrap().len() == 3).await;
        let begun = Instant::now();
        assert_eq!(engine.stop(Duration::from_mins(1)).await, []);
        assert!(begun.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn recreated_object_follows_its_deletion() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let status = engine.add("one", thread(recording(&seen, 0)), None);
        engine.commit(&[added("a", "u1", 1), deleted("a", "u1", 2), added("a", "u2", 3), added("b", "u3", 4)]);
        until(|| status.view().delivered == 4).await;
        assert_eq!(engine.stop(SOON).await, []);
    });
}

/// Rule: S-7.
#[test]
fn removed_handler_finishes_call_and_discards_queue() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let (sink, go) = gated(&seen);
        let status = engine.add("one", sink, None);
        engine.commit(&pods(0..9));
        until(|| !seen.lock().unwrap().is_empty()).await;
        for name in ["one", "one", "unknown"] {
            engine.handlers.remove(name, Remove::Discard);
        }
        go.send(()).unwrap();
        until(|| status.view().state == status::HandlerState::Stopped).await;
        assert_eq!(seen.lock().unwrap().len(), 5, "one call with a batch of four");
        assert_eq!((status.view().state, engine.stop(SOON).await), (status::HandlerState::Stopped, vec![]));
    });
}

/// Rule: S-7.
#[test]
fn draining_handler_delivers_queue_or_reports_remainder() {
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        engine.add("drains", thread(recording(&seen, 0)), None);
        let fails = engine.add("fails", thread(recording(&Seen::default(), usize::MAX)), None);
        engine.commit(&pods(0..9));
        let deadline = Instant::now() + Duration::from_millis(200);
        engine.handlers.remove("drains", Remove::Drain(Instant::now() + SOON));
        engine.handlers.remove("fails", Remove::Drain(deadline));
        until(|| seen.lock().unwrap().len() == 9).await;
        assert_eq!(fails.view().queued, 9);
        until(|| fails.view().state == status::HandlerState::Stopped).await;
        assert!(Instant::now() >= deadline);
        engine.add("fails", thread(recording(&seen, 0)), None);
        engine.commit(&pods(9..10));
        assert_eq!(engine.stop(SOON).await, [], "its name was free");
    });
}

#[test]
fn replaced_handler_inherits_queue_without_loss() {
    run(async {
        let engine = Engine::new();
        let (before, after) = (Seen::default(), Seen::default());
        let (sink, go) = gated(&before);
        engine.add("one", sink, None);
        engine.commit(&pods(0..9));
        until(|| !before.lock().unwrap().is_empty()).await;
        let options = Engine::options("one", thread(recording(&after, 0)), None);
        engine.start(options);
        assert!(after.lock().unwrap().is_empty(), "the running call ends first");
        go.send(()).unwrap();
        until(|| after.lock().unwrap().len() == 5).await;
        assert_eq!(before.lock().unwrap().len(), 5);
        assert_eq!(engine.stop(SOON).await, []);
        assert_eq!(after.lock().unwrap()[0], "added p4/1");
    });
}

#[test]
fn stop_ends_during_removals_and_replacements() {
    run(async {
        let engine = Engine::new();
        let called = [Seen::default(), Seen::default(), Seen::default()];
        let gates: Vec<_> = ["a", "b", "c"]
            .iter()
            .zip(&called)
            .map(|(name, seen)| {
                let (sink, go) = gated(seen);
                engine.add(name, sink, None);
                go
            })
            .collect();
        engine.commit(&pods(0..9));
        until(|| called.iter().all(|seen| !seen.lock().unwrap().is_empty())).await;
        engine.handlers.remove("a", Remove::Discard);
        engine.handlers.remove("b", Remove::Drain(Instant::now() + SOON));
        let options = Engine::options("c", thread(recording(&Seen::default(), 0)), None);
        engine.start(options);
        let left = engine.stop(Duration::from_millis(100)).await;
        assert_eq!(left.iter().map(|left| left.handler.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        assert!(engine.handlers.is_stopping.load(std::sync::atomic::Ordering::Acquire), "S-6");
        drop(gates);
    });
}

/// Rules: S-5, S-8.
#[test]
fn late_handler_syncs_after_handling_initial_state() {
    run(async {
        let engine = Engine::new();
        engine.journal.set_discovered();
        engine.commit(&[initial("a", "a", 1), synced(1)]);
        let seen = Seen::default();
        let (sink, go) = gated(&seen);
        let attachments = engine.handlers.put(Engine::options("late", sink, None)).unwrap();
        let status = engine.handlers.status("late").unwrap();
        let [(UnitId(0), Attachment { reader, kind: AttachmentKind::Attach(Some(Cause::Replay)) })] = attachments[..]
        else {
            panic!("{attachments:?}")
        };
        let replay = Change::Added { object: pod("a", "a", 1), cause: Cause::Replay };
        let attach = Attachment { reader, kind: AttachmentKind::Attach(None) };
        engine.journal.attach(attach, UnitId(0).writer(1), &[replay], jiff::Timestamp::UNIX_EPOCH).unwrap();
        until(|| !seen.lock().unwrap().is_empty()).await;
        assert!(!status.view().synced);
        go.send(()).unwrap();
        until(|| status.view().synced).await;
        assert_eq!(*seen.lock().unwrap(), ["called", "added a/1"]);
        assert_eq!(status.view().types, ["pods"]);
        drop(go);
        assert_eq!(engine.stop(SOON).await, []);
    });
}

/// Rule: S-9.
#[test]
fn dropped_initial_events_count_as_handled() {
    run(async {
        let engine = Engine::new();
        engine.journal.set_discovered();
        let accepts = |_: &Notification| Ok(());
        engine.add("dlq", Sink::InPlace(Arc::new(Mutex::new(accepts))), None);
        let dead = engine.add("dead", thread(recording(&Seen::default(), 0)), Some("dlq"));
        let given_up = engine.add("given_up", thread(recording(&Seen::default(), 0)), None);
        engine.commit(&[initial("poison", "p", 1), synced(1)]);
        until(|| dead.has_synced() && given_up.has_synced()).await;
        let views = [dead, given_up].map(|status| status.view());
        assert_eq!(views.each_ref().map(|view| (view.dead_lettered, view.dropped)), [(1, 0), (0, 1)]);
        assert_eq!(engine.stop(SOON).await, []);
    });
}

#[test]
fn paused_handler_gets_nothing_until_resumed() {
    run(async {
        let engine = Engine::new();
        let (seen, other) = (Seen::default(), Seen::default());
        let (sink, go) = gated(&seen);
        let status = engine.add("one", sink, None);
        engine.add("other", thread(recording(&other, 0)), None);
        engine.commit(&pods(0..5));
        until(|| !seen.lock().unwrap().is_empty()).await;
        let state = || status.view().state;
        status.control(status::Control::Pause);
        assert_eq!(state(), status::HandlerState::Paused);
        go.send(()).unwrap();
        until(|| seen.lock().unwrap().len() == 5).await;
        engine.commit(&pods(5..9));
        until(|| other.lock().unwrap().len() == 9).await;
        assert_eq!(seen.lock().unwrap().len(), 5, "the running call has ended, and no other has begun");

        status.control(status::Control::Resume);
        go.send(()).unwrap();
        until(|| seen.lock().unwrap().len() >= 10).await;
        assert_eq!(state(), status::HandlerState::Running);
        status.control(status::Control::Pause);
        drop(go);
        engine.commit(&pods(9..12));
        let begun = Instant::now();
        let left = engine.stop(Duration::from_mins(1)).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "a stop does not wait for a paused handler");
        assert_eq!(left.iter().map(|left| left.handler.as_str()).collect::<Vec<_>>(), ["one"]);
        assert_eq!(state(), status::HandlerState::Stopped);
    });
}

#[test]
fn replaced_handler_stays_paused() {
    run(async {
        let engine = Engine::new();
        let (before, after) = (Seen::default(), Seen::default());
        let status = engine.add("one", thread(recording(&before, 0)), None);
        engine.add("other", thread(recording(&before, 0)), None);
        status.control(status::Control::Pause);
        let status = engine.add("one", thread(recording(&after, 0)), None);
        assert_eq!(status.view().state, status::HandlerState::Paused);
        engine.commit(&pods(0..3));
        until(|| !before.lock().unwrap().is_empty()).await;
        assert!(after.lock().unwrap().is_empty());
        status.control(status::Control::Resume);
        until(|| after.lock().unwrap().len() == 3).await;
        assert_eq!(engine.stop(SOON).await, []);
    });
}

#[test]
fn replay_delivers_given_up_events_again() {
    run(async {
        let engine = Engine::new();
        let (dead, seen) = (Seen::default(), Seen::default());
        let dlq = engine.add("dlq", thread(recording(&dead, 0)), None);
        let cured = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (calls, ill) = (Arc::clone(&seen), Arc::clone(&cured));
        let handler = move |batch: &Notification| {
            let is_ill = |event: &Event| event.record.object().is_some_and(|object| object.name() == "p1");
            if !ill.load(std::sync::atomic::Ordering::Relaxed) && batch.events().iter().any(is_ill) {
                return Err(HandlerError::Rejected("422".into()));
            }
            calls.lock().unwrap().extend(batch.events().iter().map(|event| brief(&event.record)));
            Ok(())
        };
        let status = engine.add("one", Sink::InPlace(Arc::new(Mutex::new(handler))), Some("dlq"));
        engine.commit(&pods(0..4));
        until(|| seen.lock().unwrap().len() == 3 && !dead.lock().unwrap().is_empty()).await;
        until(|| status.view().queued == 0).await;
        assert_eq!((*dead.lock().unwrap()).as_slice(), ["added p1/1"]);
        assert_eq!(dlq.control(status::Control::Replay), 0, "it gave up none of its own events");

        cured.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(status.control(status::Control::Replay), 1);
        until(|| seen.lock().unwrap().len() == 4).await;
        assert_eq!(seen.lock().unwrap()[3], "added p1/1");
        assert_eq!(status.control(status::Control::Replay), 0);
        assert_eq!(engine.stop(SOON).await, []);
        let view = status.view();
        assert_eq!((view.delivered, view.dead_lettered, view.queued), (4, 1, 0));
    });
}
