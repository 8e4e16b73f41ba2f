//! Tests of the reflector against a model of an API server that misbehaves in all the ways that the rules name.
//!
//! Whatever happened, once the server behaves again, the replay of all emitted events equals the server's state.
//! `PROPTEST_CASES` sets the number of cases.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::*;
use crate::{
    list_watch::{SkipReason, Status},
    testing::{Collection, Cursor, expired, object, status, too_large},
};

/// Limit of requests within any second of simulated time, except pages after the first. It allows two cycles of a
/// streaming list with three attempts, a list with its repeat, their full lists, and a watch.
const REQUESTS_PER_SECOND_MAX: usize = 16;

/// Number of cases from which every rare event must have occurred.
const ENOUGH_CASES: u32 = 200;

#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    Advance,
    Compact,
    /// Correct answer to the pending request; a read gets this many events.
    Answer(u8),
    /// Answer with the fault of this number.
    Fault(u8),
    /// The same fault for thirty answers in a row; time passes only in waits.
    Slam(u8),
    /// The open stream silently loses its undelivered events.
    Gap,
    /// Time passes, in milliseconds.
    Pass(u32),
    /// The unit is restarted and resumes if it can; if `true`, as after a process start.
    Restart(bool),
    /// The server's state is saved for `Restore`.
    Backup,
    /// The server returns to the saved state, and the process is restarted.
    Restore,
    /// A list claims that there are no objects.
    EmptyList,
    /// An input that was not requested.
    Stray(u8),
    Markers(bool),
    WatchCache(bool),
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    streaming: u8,
    page_size: Option<u32>,
    lag: u64,
    internal_error_retry: bool,
    stop: bool,
    /// Set to replace three of four faults by correct answers.
    calm: bool,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0..8u8).prop_map(Op::Put),
        6 => (0..8u8).prop_map(Op::Delete),
        2 => Just(Op::Advance),
        1 => Just(Op::Compact),
        60 => (1..6u8).prop_map(Op::Answer),
        14 => any::<u8>().prop_map(Op::Fault),
        1 => (any::<bool>(), any::<u8>()).prop_map(|(slam, how)| if slam { Op::Slam(how) } else { Op::Gap }),
        6 => (0..20_000u32).prop_map(Op::Pass),
        2 => (0..900u32).prop_map(Op::Pass),
        1 => (100_000..400_000u32).prop_map(Op::Pass),
        1 => any::<bool>().prop_map(Op::Restart),
        1 => Just(Op::Backup),
        1 => Just(Op::Restore),
        8 => Just(Op::EmptyList),
        2 => any::<u8>().prop_map(Op::Stray),
        1 => any::<bool>().prop_map(Op::Markers),
        1 => any::<bool>().prop_map(Op::WatchCache),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    (
        0..3u8,
        prop_oneof![Just(None), Just(Some(0)), Just(Some(2))],
        0..4u64,
        any::<bool>(),
        prop::bool::weighted(0.1),
        any::<bool>(),
    )
        .prop_map(|(streaming, page_size, lag, internal_error_retry, stop, calm)| Plan {
            streaming,
            page_size,
            lag,
            internal_error_retry,
            stop,
            calm,
        })
}

/// Number of occurrences of each rare event, over all cases.
#[derive(Debug, Default)]
struct Hits {
    counters: BTreeMap<&'static str, u64>,
}

impl Hits {
    fn add(&mut self, what: &'static str, count: u64) {
        *self.counters.entry(what).or_default() += count;
    }
}

/// The server, the reflector, the emitted events and the clock.
#[expect(clippy::struct_excessive_bools, reason = "switches of a fake")]
struct World<'a> {
    collection: Collection,
    calm: bool,
    markers: bool,
    watch_cache: bool,
    lag: u64,
    config: ReflectorConfig,
    reflector: Reflector,
    pending: ReflectorAction,
    stream: Option<Cursor>,
    now: Duration,
    seed: u64,
    /// Replayed state: name → version.
    replayed: BTreeMap<String, String>,
    resume_version: Option<ResourceVersion>,
    /// Set when a list or streaming list has been answered in part.
    half_listed: bool,
    /// Version in the request of the current initial state.
    asked: ResourceVersion,
    gap: bool,
    /// State that the server can return to.
    backup: Option<Collection>,
    /// Set from the server's return until a list is applied.
    restored: bool,
    /// State of the server when it claimed to have no objects. Set until a list is applied.
    denied: Option<BTreeMap<String, String>>,
    requests: VecDeque<Duration>,
    hits: &'a RefCell<Hits>,
}

impl<'a> World<'a> {
    fn new(plan: Plan, hits: &'a RefCell<Hits>) -> Self {
        let config = ReflectorConfig {
            streaming_lists: [StreamingLists::Auto, StreamingLists::Always, StreamingLists::Never]
                [usize::from(plan.streaming)],
            page_size: plan.page_size,
            internal_error_retry: Duration::from_secs(if plan.internal_error_retry { 20 } else { 0 }),
            resync_period: Duration::from_secs(100),
            streaming_retry_after: Duration::from_mins(2),
            ..ReflectorConfig::default()
        };
        let mut world = Self {
            collection: Collection::default(),
            calm: plan.calm,
            markers: true,
            watch_cache: true,
            lag: plan.lag,
            reflector: Reflector::new(config, ReflectorStart::Fresh(ResourceVersion::unset())),
            config,
            pending: ReflectorAction::Keep,
            stream: None,
            now: Duration::ZERO,
            seed: 1,
            replayed: BTreeMap::new(),
            resume_version: None,
            half_listed: false,
            asked: ResourceVersion::unset(),
            gap: false,
            backup: None,
            restored: false,
            denied: None,
            requests: VecDeque::new(),
            hits,
        };
        world.collection.put("o0");
        world.collection.put("o1");
        world.feed(ReflectorInput::Start);
        world
    }

    fn hit(&self, what: &'static str) {
        self.hits.borrow_mut().add(what, 1);
    }

    fn hit_report(&self, report: &ReflectorReport) {
        match report {
            ReflectorReport::GaveUpStreaming { .. } => self.hit("watch-list give-up"),
            ReflectorReport::ServerWentBack { .. } => self.hit("back in time"),
            ReflectorReport::WatchEnded { cause: EndCause::Short, .. } => self.hit("short watch"),
            ReflectorReport::Duplicates { .. } => self.hit("duplicate"),
            ReflectorReport::VersionRefused { .. } => self.hit("version refused"),
            ReflectorReport::OlderListRefused { .. } => self.hit("older list"),
            _ => {}
        }
    }

    fn jitter(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.seed >> 33).unwrap()) / f64::from(1u32 << 31)
    }

    fn feed(&mut self, input: ReflectorInput) {
        let jitter = self.jitter();
        let known = self.reflector.last.clone();
        let step = self.reflector.step(input, self.now, jitter);
        step.reports.iter().for_each(|report| self.hit_report(report));
        for event in step.events {
            self.replay(event, &known);
        }
        if self.reflector.last != known {
            self.resume_version = Some(self.reflector.last.clone());
        }
        if step.action == ReflectorAction::Keep {
            return;
        }
        if step.action == ReflectorAction::Compare {
            assert!(self.stream.is_none() || known == self.reflector.last);
            let comparison = self.compare(&self.reflector.held().expect("a list"));
            return self.feed(ReflectorInput::Compared(comparison));
        }
        if !matches!(step.action, ReflectorAction::Read { .. }) {
            self.stream = None;
        }
        self.check_request(&step.action);
        self.pending = step.action;
    }

    fn replay(&mut self, event: ReflectorEvent, known: &ResourceVersion) {
        let pair = |object: &Object| (object.name().to_owned(), object.resource_version().to_owned());
        match event {
            ReflectorEvent::Added(object) | ReflectorEvent::Updated(object) => self.replayed.extend([pair(&object)]),
            ReflectorEvent::Deleted(object) => drop(self.replayed.remove(object.name())),
            ReflectorEvent::Replace { items, spared, resource_version } => {
                let older = resource_version.compare(known) == Some(std::cmp::Ordering::Less);
                assert!(!older || self.restored, "D-5: a list at {resource_version} over a state at {known}");
                let count = items.len();
                let mut before = std::mem::replace(&mut self.replayed, items.iter().map(pair).collect());
                assert_eq!(self.replayed.len(), count, "F-31: a key twice in one Replace");
                let spared: Vec<_> = spared.iter().filter_map(|object| before.remove_entry(object.name())).collect();
                self.hits.borrow_mut().add("spared", spared.len() as u64);
                self.replayed.extend(spared);
                let present = self.collection.state();
                for (name, version) in self.denied.take().into_iter().flatten() {
                    // A recreated object is another object: the known one is gone.
                    let deleted = before.get(&name) == Some(&version) && !self.replayed.contains_key(&name);
                    assert!(!deleted || present.get(&name) != Some(&version), "one list alone deleted {name}");
                }
                (self.half_listed, self.gap, self.restored) = (false, false, false);
            }
            ReflectorEvent::Resync { .. } => self.hit("resync"),
            ReflectorEvent::Bookmark(_) => {}
        }
    }

    /// Checks that there is no request storm, and that streams use only the permitted parameters.
    fn check_request(&mut self, action: &ReflectorAction) {
        let begins = match action {
            ReflectorAction::List(request) => {
                request.continue_token.is_none().then(|| (request.resource_version.clone(), true))
            }
            ReflectorAction::OpenWatch(request) => {
                assert!(
                    request.initial_events || !request.resource_version.is_unset(),
                    "a watch that may lose deletions"
                );
                Some((request.resource_version.clone(), request.initial_events))
            }
            _ => None,
        };
        let Some((asked, initial)) = begins else { return };
        if initial {
            if std::mem::take(&mut self.half_listed) {
                self.hit("relist inside a relist");
            }
            self.asked = asked;
        }
        self.requests.push_back(self.now);
        while self.requests.front().is_some_and(|at| *at + Duration::from_secs(1) <= self.now) {
            self.requests.pop_front();
        }
        assert!(self.requests.len() <= REQUESTS_PER_SECOND_MAX, "a storm: {:?}", self.requests);
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(name) => self.collection.put(&format!("o{name}")),
            Op::Delete(name) => self.collection.delete(&format!("o{name}")),
            Op::Advance => self.collection.advance(),
            Op::Compact => self.collection.compact(),
            Op::Answer(most) => self.answer(usize::from(*most)),
            Op::Fault(number) if self.calm && number % 4 > 0 => self.answer(3),
            Op::Fault(number) => self.fault(number / 4 + number % 4 * 64),
            Op::Slam(how) => self.slam(*how),
            Op::Gap => self.lose(),
            Op::Pass(millis) => self.pass(Duration::from_millis(u64::from(*millis))),
            Op::Restart(saved) => self.restart(*saved),
            Op::Backup => self.backup = Some(self.collection.clone()),
            Op::Restore => self.restore(),
            Op::EmptyList => self.answer_nothing(),
            Op::Stray(number) => self.stray(*number),
            Op::Markers(on) => self.markers = *on,
            Op::WatchCache(on) => self.watch_cache = *on,
        }
    }

    fn pass(&mut self, passed: Duration) {
        self.now += passed;
        if let ReflectorAction::Read { until } | ReflectorAction::Wait { until } = self.pending
            && until <= self.now
        {
            self.feed(ReflectorInput::Timer);
        }
    }

    fn answer(&mut self, most: usize) {
        match self.pending.clone() {
            ReflectorAction::List(request) => {
                let answer = self.collection.list(&request, self.lag, self.watch_cache);
                self.half_listed |= answer.is_ok();
                self.feed(ReflectorInput::Page(answer));
            }
            ReflectorAction::OpenWatch(request) => match self.collection.watch(&request, self.markers, self.lag) {
                Ok(cursor) => {
                    self.stream = Some(cursor);
                    self.feed(ReflectorInput::Opened(Ok(())));
                }
                Err(failure) => self.feed(ReflectorInput::Opened(Err(failure))),
            },
            ReflectorAction::Read { .. } => self.deliver(most),
            ReflectorAction::Wait { until } => {
                self.now = self.now.max(until);
                self.feed(ReflectorInput::Timer);
            }
            ReflectorAction::Compare | ReflectorAction::Keep | ReflectorAction::Done => {}
        }
    }

    fn deliver(&mut self, most: usize) {
        let cursor = self.stream.as_mut().expect("a read needs an open stream");
        let mut batch = self.collection.poll(cursor, most);
        if batch.is_empty() {
            batch.extend(self.collection.bookmark(cursor));
        }
        self.half_listed |= self.is_streaming() && self.reflector.doubted.is_none();
        self.feed(ReflectorInput::Received(batch));
    }

    fn lose(&mut self) {
        if let Some(cursor) = &mut self.stream
            && matches!(self.reflector.state, State::Watching(_))
            && cursor.version < self.collection.version()
        {
            cursor.version = self.collection.version();
            self.gap = true;
            self.hit("gap");
        }
    }

    fn slam(&mut self, how: u8) {
        self.hit("slam");
        for round in 0..30 {
            match self.pending.clone() {
                ReflectorAction::OpenWatch(_) if how.is_multiple_of(3) => {
                    self.feed(ReflectorInput::Opened(Err(failure(how / 3))));
                }
                ReflectorAction::Read { .. } if how % 3 == 1 && round % 2 == 0 => self.deliver(1),
                ReflectorAction::Read { .. } if how.is_multiple_of(2) => self.feed(ReflectorInput::Ended(Ok(()))),
                ReflectorAction::Read { .. } => self.faulty_stream(how / 6 % 7),
                ReflectorAction::List(_) if how % 3 == 2 => self.feed(ReflectorInput::Page(Err(failure(how / 3)))),
                _ => self.answer(1),
            }
        }
    }

    /// Compares a list as the queue does, with each object counted a hundred times.
    fn compare(&self, listed: &[Object]) -> Comparison {
        let missing = self.replayed.keys().filter(|name| listed.iter().all(|item| item.name() != *name)).count();
        Comparison { known: self.replayed.len() * 100, missing: missing * 100 }
    }

    /// Answers a list with no objects. It does not do so twice in a row, because two such lists are accepted. For the same
    /// reason it does not do so if no object is known, or if a correct list is being confirmed.
    fn answer_nothing(&mut self) {
        match &self.pending {
            ReflectorAction::List(request)
                if request.continue_token.is_none()
                    && self.denied.is_none()
                    && !self.replayed.is_empty()
                    && self.reflector.doubted.is_none() =>
            {
                self.hit("empty list");
                self.denied = Some(self.collection.state());
                let resource_version = self.collection.version().to_string().as_str().into();
                self.feed(ReflectorInput::Page(Ok(ListPage { resource_version, ..ListPage::default() })));
                if self.collection.version().is_multiple_of(2) {
                    self.collection.put("o1"); // so that the second list is newer than the first
                }
            }
            _ => self.answer(3),
        }
    }

    /// Restores etcd from a backup while the process is down. The process checks before the server's version has advanced.
    fn restore(&mut self) {
        let (Some(backup), Some(_)) = (&self.backup, &self.resume_version) else { return };
        if backup.version() == self.collection.version() {
            return;
        }
        self.collection = backup.clone();
        (self.restored, self.gap, self.denied) = (true, true, None);
        self.restart(true);
        self.hit("restored");
        self.answer(1);
    }

    fn restart(&mut self, saved: bool) {
        if self.half_listed {
            self.hit("restart inside a list");
            self.half_listed = false;
        }
        let start = match &self.resume_version {
            Some(version) if saved || self.restored => ReflectorStart::Saved(version.clone()),
            Some(version) => ReflectorStart::Resume(version.clone()),
            None => ReflectorStart::Fresh(ResourceVersion::unset()),
        };
        self.hit(if self.resume_version.is_some() { "restart, resumed" } else { "restart, unsynced" });
        self.count();
        self.reflector = Reflector::new(self.config, start);
        (self.stream, self.pending) = (None, ReflectorAction::Keep);
        // The supervisor waits before it restarts a unit.
        self.now += Duration::from_secs(1);
        self.feed(ReflectorInput::Start);
    }

    fn stray(&mut self, number: u8) {
        let input = match (&self.pending, number % 4) {
            (ReflectorAction::List(_) | ReflectorAction::Wait { .. } | ReflectorAction::OpenWatch(_), 0) => {
                ReflectorInput::Received(vec![])
            }
            (ReflectorAction::List(_) | ReflectorAction::Wait { .. } | ReflectorAction::OpenWatch(_), 1) => {
                ReflectorInput::Ended(Ok(()))
            }
            (ReflectorAction::Read { .. } | ReflectorAction::Wait { .. }, 2) => {
                ReflectorInput::Page(Ok(ListPage::default()))
            }
            (ReflectorAction::List(_), 2) => ReflectorInput::Opened(Ok(())),
            _ => ReflectorInput::Start,
        };
        let before = format!("{:?}", self.reflector);
        let step = self.reflector.step(input, self.now, 0.0);
        assert_eq!(step.action, ReflectorAction::Keep);
        assert_eq!(format!("{:?}", self.reflector), before);
    }

    fn fault(&mut self, number: u8) {
        match self.pending.clone() {
            ReflectorAction::List(request) => self.faulty_page(&request, number),
            ReflectorAction::OpenWatch(_) => self.feed(ReflectorInput::Opened(Err(failure(number)))),
            ReflectorAction::Read { .. } => self.faulty_stream(number),
            _ => self.pass(Duration::from_millis(50)),
        }
    }

    fn faulty_page(&mut self, request: &ListRequest, number: u8) {
        let stale = ListRequest { resource_version: ResourceVersion::any(), ..request.clone() };
        let answer = match number % 4 {
            // An older state than requested, except if the most recent one was requested.
            0 if !request.resource_version.is_unset() => self.collection.list(&stale, 10, true),
            1 => self.collection.list(request, self.lag, self.watch_cache).map(|mut page| {
                let doubled = page.items.first().map(|item| object(item.name(), "1"));
                page.items.splice(0..0, doubled);
                page.rejected = 1;
                page
            }),
            _ => Err(failure(number / 4)),
        };
        self.half_listed |= answer.is_ok();
        self.feed(ReflectorInput::Page(answer));
    }

    fn faulty_stream(&mut self, number: u8) {
        let bookmark = |version: &str, initial_events_end| WatchEvent::Bookmark {
            resource_version: version.into(),
            initial_events_end,
        };
        let error = |failure: &Failure| WatchEvent::Error(failure.status().cloned().unwrap_or_default());
        let odd = match number % 12 {
            0 => return self.feed(ReflectorInput::Ended(Ok(()))),
            1 => return self.feed(ReflectorInput::Ended(Err(Failure::Disconnected("reset".into())))),
            2 => return self.feed(ReflectorInput::Ended(Err(Failure::FrameTooLong { max_bytes: 16, object: None }))),
            3 => WatchEvent::Undecodable("{".into()),
            4 => error(&expired()),
            5 => error(&status(429)),
            6 => error(&status(500)),
            7 => WatchEvent::Skipped(SkipReason::WrongType { found: "v1 Secret".into() }),
            8 => bookmark("5", false),
            9 => bookmark("", true),
            10 if matches!(self.reflector.state, State::Watching(_)) => bookmark("5", true),
            _ => bookmark("0", false),
        };
        let cursor = self.stream.as_mut().expect("a read needs an open stream");
        let mut batch = self.collection.poll(cursor, usize::from(number % 5));
        batch.push(odd);
        // A bookmark of a server that went back in time, before its snapshot.
        if number % 12 == 11 && self.asked.compare(&"101".into()) == Some(std::cmp::Ordering::Greater) {
            batch.push(bookmark("101", true));
        }
        self.half_listed |= self.is_streaming() && self.reflector.doubted.is_none();
        self.feed(ReflectorInput::Received(batch));
    }

    /// Makes the server behave; the replayed state must then equal the server's.
    fn drain(&mut self) {
        (self.markers, self.watch_cache, self.lag) = (true, true, 0);
        self.settle();
        if self.gap {
            let Failure::Status(status) = expired() else { unreachable!() };
            self.feed(ReflectorInput::Received(vec![WatchEvent::Error(status)]));
            self.settle();
        }
        assert_eq!(self.replayed, self.collection.state(), "the replay is not what the server has");
        assert_eq!(self.reflector.availability, Availability::Available);
        assert!(self.reflector.has_listed);
    }

    fn is_streaming(&self) -> bool {
        matches!(self.reflector.state, State::Streaming(_))
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let newest = self.collection.version();
            let seen = self.stream.as_ref().is_some_and(|at| at.version == newest && at.initial.is_empty());
            if seen && matches!(self.reflector.state, State::Watching(_)) {
                return;
            }
            if seen && self.is_streaming() {
                // This stream was opened while the server omitted markers.
                self.pass(Duration::from_secs(61));
            }
            self.answer(10);
        }
        panic!("not watching after 200 good answers: {:?}", self.reflector);
    }

    fn stop(&mut self) {
        self.feed(ReflectorInput::Stop);
        for input in [
            ReflectorInput::Timer,
            ReflectorInput::Start,
            ReflectorInput::Page(Ok(ListPage::default())),
            ReflectorInput::Opened(Ok(())),
        ] {
            self.now += Duration::from_mins(10);
            self.feed(input);
            assert_eq!(self.pending, ReflectorAction::Done, "R-63: a request after stop");
        }
        self.hit("stop");
    }

    fn count(&self) {
        let counters = &self.reflector.counters;
        let mut hits = self.hits.borrow_mut();
        for (what, count) in [
            ("stall", counters.stalls),
            ("confirmation", counters.confirmations),
            ("check", counters.checks),
            ("skipped", counters.skipped),
            ("unreadable", counters.unreadable),
            ("list", counters.lists),
            ("streaming list", counters.streaming_lists),
        ] {
            hits.add(what, count);
        }
    }
}

fn failure(number: u8) -> Failure {
    match number % 14 {
        0 => Failure::Refused,
        1 => Failure::Disconnected("timeout".into()),
        2 => expired(),
        3 => too_large(),
        4 => status(400),
        5 => status(401),
        6 => status(403),
        7 => status(404),
        8 => status(429),
        9 => status(500),
        10 => Failure::NotAList("Table".into()),
        11 => Failure::Undecodable("<html>".into()),
        12 => Failure::Status(Status { code: 503, retry_after: Some(Duration::from_secs(7)), ..Status::default() }),
        _ => Failure::Request("tls".into()),
    }
}

/// Rule: R-7.
#[test]
fn replayed_events_equal_recovered_server_state() {
    let hits = RefCell::new(Hits::default());
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let result = runner.run(&(plan(), prop::collection::vec(op(), 200..260)), |(plan, ops)| {
        let mut world = World::new(plan, &hits);
        for op in &ops {
            world.apply(op);
        }
        world.drain();
        world.count();
        if plan.stop {
            world.stop();
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    let hits = hits.into_inner().counters;
    println!("{hits:#?}");
    if runner.config().cases < ENOUGH_CASES {
        return;
    }
    for what in [
        "gap",
        "relist inside a relist",
        "restart, resumed",
        "restart, unsynced",
        "restart inside a list",
        "stop",
        "slam",
        "resync",
        "watch-list give-up",
        "back in time",
        "short watch",
        "duplicate",
        "version refused",
    ] {
        assert!(hits.contains_key(what), "no case had: {what}");
    }
    for (what, count) in hits {
        assert!(count > 0, "no case had: {what}");
    }
}
