//! The delivery machine against scripts, and handlers on their threads.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::prelude::*;

use super::{
    actor::{LaneActorOptions, Sink},
    run_time_tests::{run, until},
    status::{HandlerState, HandlerStatus},
    worker::{Open, OpenHandler, Worker},
    *,
};
use crate::{
    dispatcher::{
        Route, RouteOptions, UnitInfo, UnitOptions,
        actor::{DispatcherActor, LaneOptions, LaneSlot, Lanes, Leftover, PauseSwitch},
        schedule::{Order, ScheduleOptions},
    },
    indexer::Change,
    indexer::store::Reached,
    journal::{Bounds, Journal, Sequence, UnitId, testing::*},
    object::ResourceType,
    supervisor::SupervisorConfig,
};

fn policy() -> RetryPolicy {
    RetryPolicy {
        initial: Duration::from_secs(1),
        max: Duration::from_secs(8),
        jitter: false,
        give_up_after: Duration::from_mins(1),
    }
}

fn failed() -> Outcome {
    Outcome::Failed(HandlerError::Failed("down".into()))
}

fn panicked() -> Outcome {
    Outcome::Panicked("boom".into())
}

#[test]
fn delays_double_up_to_the_maximum_and_jitter_shortens_them_by_up_to_half() {
    let delays: Vec<_> = (1..6).map(|failures| policy().delay(failures, 0.0).as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 8]);
    let jitter = RetryPolicy { jitter: true, ..policy() };
    assert_eq!(jitter.delay(1, 0.0), Duration::from_millis(500));
    assert!(jitter.delay(u32::MAX, 0.999) <= jitter.max);
}

#[test]
fn a_failed_batch_is_tried_again_until_it_is_given_up() {
    let mut delivery = Delivery::new(policy(), 3, Form::Whole);
    assert_eq!(delivery.step(), Step::Attempt(0..3, Form::Whole));
    delivery.finished(failed(), Duration::from_secs(100), 0.0);
    assert_eq!(delivery.step(), Step::Wait(Duration::from_secs(1)));
    delivery.waited();
    delivery.finished(failed(), Duration::from_secs(159), 0.0);
    assert_eq!(delivery.step(), Step::Wait(Duration::from_secs(2)));
    delivery.waited();
    delivery.finished(failed(), Duration::from_secs(160), 0.0);
    assert_eq!(delivery.step(), Step::GiveUp(0..3, GiveUp::Expired("down".into())));
    delivery.given_up();
    assert_eq!(delivery.step(), Step::Done);
}

#[test]
fn s9_three_panics_send_the_one_poison_event_to_the_dead_letter() {
    let (delivered, given_up, attempts) =
        play(9, Form::Reference, |range, _| if range.contains(&6) { panicked() } else { Outcome::Delivered });
    assert_eq!(given_up, [6]);
    assert_eq!(delivered, [0, 1, 2, 3, 4, 5, 7, 8]);
    assert_eq!(attempts.iter().filter(|(range, _)| *range == (6..7)).count(), 3);
}

#[test]
fn a_rejected_event_is_found_and_given_up_at_once() {
    let rejected = || Outcome::Failed(HandlerError::Rejected("too large".into()));
    let (delivered, given_up, attempts) =
        play(4, Form::Reference, |range, _| if range.contains(&2) { rejected() } else { Outcome::Delivered });
    assert_eq!((delivered, given_up), (vec![0, 1, 3], vec![2]));
    assert_eq!(ranges(&attempts), [0..4, 0..2, 2..4, 2..3, 3..4]);
    assert!(attempts.iter().all(|(_, form)| *form == Form::Whole), "less of it would not help");
}

fn too_large() -> Outcome {
    Outcome::Failed(HandlerError::TooLarge("413".into()))
}

fn ranges(attempts: &[(Range<usize>, Form)]) -> Vec<Range<usize>> {
    attempts.iter().map(|(range, _)| range.clone()).collect()
}

#[test]
fn what_is_too_large_is_halved_then_loses_its_old_then_its_object_then_is_given_up() {
    use Form::{Reference, Whole, WithoutOld};
    // The first fits without its old, the third in no form; the others fit as they are.
    let (delivered, given_up, attempts) = play(4, Reference, |range, form| {
        let fits = match (range.start, range.len()) {
            (0, 1) => form >= WithoutOld,
            (2, 1) => false,
            (_, events) => events == 1,
        };
        if fits { Outcome::Delivered } else { too_large() }
    });
    assert_eq!((delivered, given_up), (vec![0, 1, 3], vec![2]));
    let single: Vec<_> = attempts.iter().filter(|(range, _)| range.len() == 1).cloned().collect();
    let expected = [(0, Whole), (0, WithoutOld), (1, Whole), (2, Whole), (2, WithoutOld), (2, Reference), (3, Whole)];
    assert_eq!(single, expected.map(|(event, form)| (event..event + 1, form)));
    assert!(attempts.iter().all(|(range, form)| range.len() == 1 || *form == Whole));
}

#[test]
fn a_handler_that_knows_no_forms_is_sent_each_event_as_it_is() {
    let (_, given_up, attempts) = play(1, Form::Whole, |_, _| too_large());
    assert_eq!((given_up, attempts), (vec![0], vec![(0..1, Form::Whole)]));
}

#[test]
fn a_busy_sink_is_left_alone_for_as_long_as_it_asks_but_not_for_days() {
    let wait = |retry_after| {
        let mut delivery = Delivery::new(policy(), 1, Form::Whole);
        let busy = HandlerError::Busy { reason: "429".into(), retry_after };
        delivery.finished(Outcome::Failed(busy), Duration::ZERO, 0.0);
        delivery.step()
    };
    assert_eq!(wait(Duration::from_mins(5)), Step::Wait(Duration::from_mins(5)), "longer than `retry.max`");
    assert_eq!(wait(Duration::from_millis(1)), Step::Wait(Duration::from_secs(1)), "no sooner than a failure");
    assert_eq!(wait(Duration::from_hours(90)), Step::Wait(Duration::from_hours(1)));
}

/// Every end of an attempt, at every width and in every form that an attempt of this width has.
#[test]
fn every_outcome_leads_where_it_should() {
    use Form::{Reference, Whole, WithoutOld};
    let error = || "e".to_owned();
    let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
    let again = Outcome::Failed(HandlerError::Failed(error()));
    let busy = Outcome::Failed(HandlerError::Busy { reason: error(), retry_after: hour });
    let too_large = Outcome::Failed(HandlerError::TooLarge(error()));
    let rejected = Outcome::Failed(HandlerError::Rejected(error()));
    let closed = Outcome::Failed(HandlerError::Closed(error()));
    let panicked = Outcome::Panicked(error());
    let give_up = |reason: fn(String) -> GiveUp| Step::GiveUp(0..1, reason(error()));
    for form in [Whole, WithoutOld, Reference] {
        let smaller = |form: Form| Step::Attempt(0..1, form);
        let cases = [
            (&Outcome::Delivered, Step::Done),
            (&again, Step::Wait(second)),
            (&busy, Step::Wait(hour)),
            (&too_large, form.smaller().map_or_else(|| give_up(GiveUp::TooLarge), smaller)),
            (&rejected, give_up(GiveUp::Rejected)),
            (&closed, Step::Closed(0..1, error())),
            (&panicked, Step::Wait(second)),
        ];
        for (outcome, expected) in cases {
            let mut delivery = Delivery::new(policy(), 1, Reference);
            while delivery.step() != Step::Attempt(0..1, form) {
                delivery.finished(too_large.clone(), Duration::ZERO, 0.0);
            }
            delivery.finished(outcome.clone(), Duration::ZERO, 0.0);
            assert_eq!(delivery.step(), expected, "one event, {form:?}, {outcome:?}");
            if let Step::Wait(_) = expected {
                delivery.waited();
                assert_eq!(delivery.step(), Step::Attempt(0..1, form), "the same again");
            }
        }
    }
    let half = || Step::Attempt(0..2, Whole);
    let cases = [
        (Outcome::Delivered, Step::Done),
        (again, Step::Wait(second)),
        (busy, Step::Wait(hour)),
        (too_large, half()),
        (rejected, half()),
        (closed, Step::Closed(0..4, error())),
        (panicked, half()),
    ];
    for (outcome, expected) in cases {
        let mut delivery = Delivery::new(policy(), 4, Reference);
        delivery.finished(outcome.clone(), Duration::ZERO, 0.0);
        assert_eq!(delivery.step(), expected, "four events, {outcome:?}");
    }
}

#[test]
fn a_handler_that_nobody_listens_to_ends() {
    let mut delivery = Delivery::new(policy(), 2, Form::Whole);
    delivery.finished(Outcome::Failed(HandlerError::Closed("pipe".into())), Duration::ZERO, 0.0);
    assert_eq!(delivery.step(), Step::Closed(0..2, "pipe".into()));
    assert_eq!(Delivery::new(policy(), 0, Form::Whole).step(), Step::Done);
}

/// What was delivered, what was given up, and the attempts.
type Played = (Vec<usize>, Vec<usize>, Vec<(Range<usize>, Form)>);

/// Plays a delivery against an answer for each attempt; time passes by what is waited.
fn play(len: usize, smallest: Form, mut answer: impl FnMut(&Range<usize>, Form) -> Outcome) -> Played {
    let (mut delivered, mut given_up, mut attempts) = (Vec::new(), Vec::new(), Vec::<(Range<usize>, Form)>::new());
    let mut delivery = Delivery::new(policy(), len, smallest);
    let mut now = Duration::ZERO;
    loop {
        match delivery.step() {
            Step::Attempt(range, form) => {
                assert_eq!(range.start, delivered.len() + given_up.len(), "in order, each once");
                assert!(form <= smallest && (range.len() == 1 || form == Form::Whole));
                if let Some((_, before)) = attempts.last().filter(|(before, _)| *before == range) {
                    assert!(form >= *before, "forms only get smaller");
                }
                let outcome = answer(&range, form);
                attempts.push((range.clone(), form));
                if outcome == Outcome::Delivered {
                    delivered.extend(range);
                }
                delivery.finished(outcome, now, 0.5);
            }
            Step::Wait(delay) => {
                now += delay;
                delivery.waited();
            }
            Step::GiveUp(range, reason) => {
                assert!(range.len() == 1 || matches!(reason, GiveUp::Expired(_)), "only one event is poison");
                given_up.extend(range);
                delivery.given_up();
            }
            Step::Done => return (delivered, given_up, attempts),
            Step::Closed(range, _) => {
                assert_eq!(range, delivered.len() + given_up.len()..len);
                return (delivered, given_up, attempts);
            }
        }
    }
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Whole), Just(Form::WithoutOld), Just(Form::Reference)]
}

proptest! {
    /// I4: whatever happens, in whatever order, each event is delivered or given up, once and in order.
    #[test]
    fn any_script_of_failures_and_panics_ends(
        len in 0..20_usize,
        smallest in form(),
        script in proptest::collection::vec(0..7_u8, 0..200),
    ) {
        let mut script = VecDeque::from(script);
        let mut closed = false;
        let (delivered, given_up, _) = play(len, smallest, |_, _| match script.pop_front() {
            Some(1) => failed(),
            Some(2) => panicked(),
            Some(3) => Outcome::Failed(HandlerError::Rejected("no".into())),
            Some(4) if script.len() % 17 == 0 => {
                closed = true;
                Outcome::Failed(HandlerError::Closed("end".into()))
            }
            Some(5) => too_large(),
            Some(6) => Outcome::Failed(HandlerError::Busy { reason: "429".into(), retry_after: Duration::from_secs(20) }),
            _ => Outcome::Delivered,
        });
        prop_assert!(closed || delivered.len() + given_up.len() == len);
    }

    /// S-9: exactly the poison events are given up, wherever they are.
    #[test]
    fn exactly_the_poison_is_given_up(len in 1..64_usize, poison in proptest::collection::btree_set(0..64_usize, 0..6)) {
        let (_, given_up, _) = play(len, Form::Reference, |range, _| {
            if range.clone().any(|event| poison.contains(&event)) { panicked() } else { Outcome::Delivered }
        });
        prop_assert_eq!(given_up, poison.iter().copied().filter(|event| *event < len).collect::<Vec<_>>());
    }

    /// What a sink takes in some form is delivered in the largest that it takes, whatever it is next to.
    #[test]
    fn each_event_is_delivered_in_the_largest_form_that_fits(
        sizes in proptest::collection::vec((1..40_usize, 1..20_usize, 1..12_usize), 1..24),
    ) {
        let limit = 10;
        let size = |event: usize, form: Form| match form {
            Form::Whole => sizes[event].0,
            Form::WithoutOld => sizes[event].1,
            Form::Reference => sizes[event].2,
        };
        let fits = |range: &Range<usize>, form| range.clone().map(|event| size(event, form)).sum::<usize>() <= limit;
        let (_, given_up, attempts) = play(sizes.len(), Form::Reference, |range, form| {
            if fits(range, form) { Outcome::Delivered } else { too_large() }
        });
        let hopeless = |event: &usize| (0..3).all(|form| size(*event, [Form::Whole, Form::WithoutOld, Form::Reference][form]) > limit);
        prop_assert_eq!(given_up, (0..sizes.len()).filter(hopeless).collect::<Vec<_>>());
        for (range, form) in attempts.iter().filter(|(range, form)| fits(range, *form)) {
            prop_assert!(*form == Form::Whole || !fits(range, Form::Whole));
        }
    }
}

// ── lanes, with their actors and threads ──

fn info() -> UnitInfo {
    let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
    let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
    UnitInfo { entry: "pods".into(), resource, namespace: None }
}

pub(super) type Seen = Arc<Mutex<Vec<String>>>;

/// Takes down what it gets; panics over an object named `poison`, and fails as often as told.
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
        order: Order::PerObject,
        concurrency: 1,
        batch_events: 4,
        batch_bytes: 1 << 20,
        linger: Duration::ZERO,
        window_events: 100,
        window_bytes: 1 << 20,
    }
}

pub(super) struct Engine {
    pub(super) journal: Journal,
    pub(super) lanes: Lanes,
}

impl Engine {
    pub(super) fn new() -> Self {
        let journal = Journal::in_memory();
        let lanes = Lanes::new(journal.clone(), SupervisorConfig::default());
        lanes.add_unit(UnitId(0), info(), UnitOptions::default());
        Self { journal, lanes }
    }

    pub(super) fn lane(&self, name: &str, sink: Sink, dead_letter: Option<LaneSlot>) -> (Arc<HandlerStatus>, LaneSlot) {
        let (options, status) = Self::options(name, sink, dead_letter);
        let slot = options.slot.clone();
        let reader = self.lanes.add_lane(options).unwrap();
        status.attach(self.journal.clone(), reader, self.lanes.types(name));
        (status, slot)
    }

    pub(super) fn options(name: &str, sink: Sink, dead_letter: Option<LaneSlot>) -> (LaneOptions, Arc<HandlerStatus>) {
        let status = Arc::new(HandlerStatus::new(name, "test"));
        let retry = RetryPolicy { initial: Duration::from_millis(1), ..policy() };
        let schedule = ScheduleOptions { concurrency: sink.concurrency(), ..schedule() };
        let actor = LaneActorOptions { sink, retry, rate: None, dead_letter, status: Arc::clone(&status) };
        let slot = LaneSlot::default();
        let resources = if name == "dlq" { vec![] } else { vec!["p*".to_owned()] };
        let options = LaneOptions {
            name: name.into(),
            route: Route::new(&RouteOptions { resources, initial: true, ..RouteOptions::default() }).unwrap(),
            bounds: Bounds::default(),
            schedule,
            pause: status.switch().clone(),
            dead_letter: name == "dlq",
            is_pipe: false,
            slot: slot.clone(),
            start: Box::new(move || actor.start()),
        };
        (options, status)
    }

    pub(super) fn commit(&self, changes: &[Change]) {
        let ticket =
            self.journal.append(UnitId(0), 1, changes, &Reached::default(), jiff::Timestamp::UNIX_EPOCH).unwrap();
        self.journal.release(ticket);
    }

    pub(super) async fn stop(&self, within: Duration) -> Vec<Leftover> {
        self.lanes.clone().shut_down(tokio::time::Instant::now() + within).await
    }
}

pub(super) fn thread(open: OpenHandler) -> Sink {
    Sink::Thread(Worker::spawn("test", Duration::from_secs(30), Open::Blocking(open)).unwrap())
}

#[test]
fn i4_what_was_released_is_delivered_before_a_stop_and_poison_goes_to_the_dead_letter() {
    use actix::Actor as _;
    actix::System::new().block_on(async {
        let engine = Engine::new();
        let (good, bad, dead) = (Seen::default(), Seen::default(), Seen::default());
        let (dlq, slot) = engine.lane("dlq", thread(recording(&dead, 0)), None);
        let (steady, _) = engine.lane("steady", thread(recording(&good, 0)), Some(slot));
        let (flaky, _) = engine.lane("flaky", thread(recording(&bad, 3)), None);
        let _dispatcher = DispatcherActor::new(engine.lanes.clone()).start();
        let changes: Vec<_> = (1..10).map(|n| updated("a", "a", n, n + 1)).collect();
        engine.commit(&changes);
        engine.commit(&[added("poison", "p", 1), deleted("a", "a", 20), added("a", "b", 21)]);
        let left = engine.stop(Duration::from_secs(20)).await;
        assert_eq!(left, [], "everything is delivered or given up");
        let expected: Vec<_> = (1..10).map(|n| format!("updated a/{}<{n}", n + 1)).collect();
        let expected = [expected, vec!["deleted a/20".into(), "added b/21".into()]].concat();
        assert_eq!(*good.lock().unwrap(), expected);
        assert_eq!(*bad.lock().unwrap(), expected);
        // The dead letter's handler panics over it too: then it is counted.
        let view = steady.view(jiff::Timestamp::now());
        assert_eq!((view.dead_lettered, view.delivered, view.queued, view.position), (1, 11, 0, 12));
        assert!(view.panics >= 3);
        assert_eq!(dlq.view(jiff::Timestamp::now()).dropped, 1);
        let view = flaky.view(jiff::Timestamp::now());
        assert_eq!((view.dropped, view.state), (1, HandlerState::Stopped));
        assert!(view.retried >= 6);
    });
}

#[test]
fn i7_a_stuck_handler_stops_no_other_and_its_rest_is_named_at_the_deadline() {
    use actix::Actor as _;
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let stuck: OpenHandler = Arc::new(|| {
            Ok(Box::new(|_: &Notification| -> Result<(), HandlerError> {
                std::thread::park_timeout(Duration::from_secs(20));
                Err(HandlerError::Failed("stuck".into()))
            }) as Box<dyn Handler>)
        });
        let (status, _) = engine.lane("stuck", thread(stuck), None);
        let (quick, _) = engine.lane("quick", thread(recording(&seen, 0)), None);
        let ended = |_: &Notification| Err(HandlerError::Closed("pipe".into()));
        let (ended, _) = engine.lane("ended", Sink::InPlace(Arc::new(Mutex::new(ended))), None);
        let (black, _) =
            engine.lane("null", Sink::InPlace(Arc::new(Mutex::new(blackhole::Blackhole::default()))), None);
        let _dispatcher = DispatcherActor::new(engine.lanes.clone()).start();
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

/// Takes what is named `a`, and nothing else; says when it was closed.
struct Picky(Seen);

impl Handler for Picky {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        let ours = |event: &crate::dispatcher::Event| event.record.object().is_some_and(|object| object.name() == "a");
        if notification.events().iter().all(ours) { Ok(()) } else { Err(HandlerError::Failed("full".into())) }
    }

    fn close(&mut self) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push("closed".into());
        Ok(())
    }
}

#[test]
fn i4_a_handler_still_at_work_at_the_deadline_of_a_stop_flushes_what_it_wrote() {
    use actix::Actor as _;
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let calls = Arc::clone(&seen);
        let open = Arc::new(move || Ok(Box::new(Picky(Arc::clone(&calls))) as Box<dyn Handler>));
        let (status, _) = engine.lane("picky", thread(open), None);
        let _dispatcher = DispatcherActor::new(engine.lanes.clone()).start();
        let view = || status.view(jiff::Timestamp::now());
        engine.commit(&[added("a", "a", 1)]);
        until(|| view().delivered == 1 && view().queued == 0).await;
        engine.commit(&[added("b", "b", 1)]);
        until(|| view().retried > 0).await;
        let left = engine.stop(Duration::from_millis(100)).await;
        assert_eq!((left.len(), left[0].events), (1, 1), "what failed is named");
        assert_eq!(*seen.lock().unwrap(), ["closed"]);
        assert_eq!(view().state, HandlerState::Stopped);
    });
}

/// An actor of a user of the library.
struct Own(Seen);

impl actix::Actor for Own {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Notification> for Own {
    type Result = Result<(), crate::dispatcher::actor::Stopped>;

    fn handle(&mut self, batch: Notification, _ctx: &mut Self::Context) -> Self::Result {
        self.0.lock().unwrap().extend(batch.events().iter().map(|event| brief(&event.record)));
        Ok(())
    }
}

#[test]
fn an_own_actor_is_a_handler() {
    use actix::Actor as _;
    run(async {
        let engine = Engine::new();
        let seen = Seen::default();
        let own = Own(Arc::clone(&seen)).start();
        let (_, slot) = engine.lane("own", Sink::Actor(own.recipient(), Duration::from_secs(30)), None);
        let _dispatcher = DispatcherActor::new(engine.lanes.clone()).start();
        engine.commit(&[added("a", "a", 1)]);
        until(|| seen.lock().unwrap().len() == 1).await;
        assert!(slot.get().is_some());
        engine.commit(&[added("b", "b", 1)]);
        assert_eq!(engine.stop(Duration::from_secs(20)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "added b/1"]);
        assert!(slot.get().is_none());
    });
}

/// Panics over its first batch, as an actor.
struct Mortal;

impl actix::Actor for Mortal {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Notification> for Mortal {
    type Result = Result<(), crate::dispatcher::actor::Stopped>;

    fn handle(&mut self, _: Notification, _ctx: &mut Self::Context) -> Self::Result {
        panic!("injected into a lane's actor");
    }
}

impl actix::Handler<crate::dispatcher::actor::DeadLetter> for Mortal {
    type Result = Result<(), crate::dispatcher::actor::Stopped>;

    fn handle(&mut self, _: crate::dispatcher::actor::DeadLetter, _ctx: &mut Self::Context) -> Self::Result {
        Ok(())
    }
}

impl actix::Handler<crate::dispatcher::actor::Close> for Mortal {
    type Result = Result<(), String>;

    fn handle(&mut self, _: crate::dispatcher::actor::Close, _ctx: &mut Self::Context) -> Self::Result {
        Ok(())
    }
}

impl actix::Handler<crate::supervisor::child::Heartbeat> for Mortal {
    type Result = ();

    fn handle(&mut self, _: crate::supervisor::child::Heartbeat, _ctx: &mut Self::Context) {}
}

#[test]
fn i7_a_lane_whose_actor_panics_is_started_again_and_loses_nothing() {
    use actix::Actor as _;
    actix::System::new().block_on(async {
        let engine = Engine::new();
        let (seen, other) = (Seen::default(), Seen::default());
        let status = Arc::new(HandlerStatus::new("mortal", "test"));
        let sink = thread(recording(&seen, 0));
        let actor = LaneActorOptions { sink, retry: policy(), rate: None, dead_letter: None, status };
        let starts = Arc::new(Mutex::new(0));
        let start = move || {
            let mut starts = starts.lock().unwrap();
            *starts += 1;
            if *starts > 1 {
                return actor.start();
            }
            let mortal = Mortal.start();
            crate::dispatcher::actor::LaneAddress {
                events: mortal.clone().recipient(),
                dead_letters: mortal.clone().recipient(),
                close: mortal.clone().recipient(),
                heartbeat: mortal.recipient(),
            }
        };
        let options = LaneOptions {
            name: "mortal".into(),
            route: Route::new(&RouteOptions::default()).unwrap(),
            bounds: Bounds::default(),
            schedule: ScheduleOptions { batch_events: 1, ..schedule() },
            pause: PauseSwitch::default(),
            dead_letter: false,
            is_pipe: false,
            slot: LaneSlot::default(),
            start: Box::new(start),
        };
        engine.lanes.add_lane(options).unwrap();
        engine.lane("other", thread(recording(&other, 0)), None);
        let _dispatcher = DispatcherActor::new(engine.lanes.clone()).start();
        engine.commit(&[added("a", "a", 1), updated("a", "a", 1, 2)]);
        assert_eq!(engine.stop(Duration::from_secs(30)).await, []);
        assert_eq!(*seen.lock().unwrap(), ["added a/1", "updated a/2<1"]);
        assert_eq!(*other.lock().unwrap(), *seen.lock().unwrap());
    });
}
