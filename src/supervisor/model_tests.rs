//! The supervisor against a model of actors that fail, hang and answer too late.
//!
//! After any events, once the actors behave, the unit runs (or has stopped, if that was requested). Two generations never
//! live at the same time, except for abandoned actors. `PROPTEST_CASES` sets the number of cases.

use std::{cell::RefCell, collections::BTreeMap};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::*;

const ACTORS: usize = 3;
/// Number of cases below which rare events may be missing.
const ENOUGH_CASES: u32 = 200;

#[derive(Clone, Debug)]
enum Op {
    Start,
    Stop,
    /// All actors have started.
    Boot,
    Crash(usize, u8),
    Hang(usize),
    /// An actor that was asked to stop stops.
    Obey(usize),
    /// An actor that was sent a heartbeat answers.
    Answer(usize),
    /// An exit or an answer of an earlier generation.
    Stale(usize, u8),
    /// Time in milliseconds passes; the timer fires when it is due.
    Pass(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let actor = 0..ACTORS;
    prop_oneof![
        3 => Just(Op::Start),
        1 => prop::bool::weighted(0.3).prop_map(|stop| if stop { Op::Stop } else { Op::Start }),
        20 => Just(Op::Boot),
        6 => (actor.clone(), any::<u8>()).prop_map(|(actor, how)| Op::Crash(actor, how)),
        1 => actor.clone().prop_map(Op::Hang),
        30 => actor.clone().prop_map(Op::Obey),
        30 => actor.clone().prop_map(Op::Answer),
        5 => (actor, any::<u8>()).prop_map(|(actor, what)| Op::Stale(actor, what)),
        20 => (0..12_000u32).prop_map(Op::Pass),
        1 => (100_000..200_000u32).prop_map(Op::Pass),
    ]
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Actor {
    alive: bool,
    hangs: bool,
    asked_to_stop: Option<Duration>,
    pinged_at: Option<Duration>,
}

struct World<'a> {
    unit: Supervisor,
    now: Duration,
    wake_at: Option<Duration>,
    actors: [Actor; ACTORS],
    generation: u64,
    booted: bool,
    wanted: bool,
    failed_at: Option<Duration>,
    hits: &'a RefCell<BTreeMap<&'static str, u64>>,
}

impl World<'_> {
    fn hit(&self, what: &'static str) {
        *self.hits.borrow_mut().entry(what).or_default() += 1;
    }

    fn feed(&mut self, input: SupervisorInput) {
        let backed_off = matches!(self.unit.phase, Phase::BackingOff { .. });
        let verdict = self.unit.step(input, self.now, 0.3);
        self.wake_at = verdict.wake_at;
        if !backed_off && matches!(self.unit.phase, Phase::BackingOff { .. }) {
            self.failed_at = Some(self.now);
        }
        match verdict.decision {
            Decision::Nothing => {}
            Decision::Start { generation, abandoned } => self.started(generation, &abandoned),
            Decision::Stop(generation) => {
                assert_eq!(generation.0, self.generation);
                let now = self.now;
                self.actors.iter_mut().for_each(|actor| actor.asked_to_stop = actor.alive.then_some(now));
            }
            Decision::Ping { generation, actors } => {
                assert_eq!(generation.0, self.generation);
                for at in actors {
                    assert_eq!(self.actors[at].pinged_at, None, "one heartbeat at a time");
                    self.actors[at].pinged_at = Some(self.now);
                }
            }
            Decision::Done { abandoned } => {
                self.check_left(&abandoned);
                self.actors = Default::default();
                assert!(!self.wanted, "nobody asked for a stop");
                self.hit("stop");
            }
        }
        self.check_state();
    }

    fn started(&mut self, generation: Generation, abandoned: &[ActorIndex]) {
        assert!(self.wanted, "a start after a stop");
        assert_eq!(generation.0, self.generation + 1, "generations count up");
        self.check_left(abandoned);
        if let Some(failed_at) = self.failed_at.take() {
            assert!(self.now >= failed_at + Duration::from_millis(800), "no restart without a delay");
            self.hit("restart");
        }
        self.generation = generation.0;
        self.actors = [Actor { alive: true, ..Actor::default() }; ACTORS];
        self.booted = false;
    }

    /// Checks that exactly the living actors are reported as abandoned.
    fn check_left(&self, abandoned: &[ActorIndex]) {
        let alive: Vec<_> = (0..ACTORS).filter(|at| self.actors[*at].alive).collect();
        assert_eq!(abandoned, alive);
        let overdue =
            |at: Option<Duration>, limit: u64| at.is_some_and(|at| at + Duration::from_secs(limit) <= self.now);
        for actor in alive.iter().map(|at| &self.actors[*at]) {
            assert!(
                overdue(actor.pinged_at, 30) || overdue(actor.asked_to_stop, 10),
                "left behind too soon: {actor:?}"
            );
        }
        if !abandoned.is_empty() {
            self.hit("abandoned");
        }
    }

    fn check_state(&self) {
        let alive = self.actors.iter().filter(|actor| actor.alive).count();
        match self.unit.phase {
            Phase::Starting { .. } | Phase::Running if self.unit.policy.is_degraded() => {
                assert!(alive == ACTORS && self.unit.policy.failures() > 0);
                self.hit("degraded");
            }
            Phase::Running => assert!(self.booted && alive == ACTORS),
            Phase::Starting { .. } => assert_eq!((self.booted, alive), (false, ACTORS)),
            Phase::BackingOff { attempt, until, .. } => {
                assert!(attempt > 0 && self.wanted);
                assert!(until <= self.now + Duration::from_mins(1));
            }
            Phase::Stopping { .. } => assert!(!self.wanted && alive > 0),
            Phase::Stopped => assert_eq!(alive, 0),
        }
        assert_eq!(self.wake_at.is_none(), self.is_stopped(), "nothing waits without a timer");
        assert_eq!(self.unit.generation().0, self.generation);
    }

    fn is_stopped(&self) -> bool {
        matches!(self.unit.phase, Phase::Stopped)
    }

    fn is_up(&self) -> bool {
        matches!(self.unit.phase, Phase::Starting { .. } | Phase::Running)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Start => {
                if self.is_stopped() {
                    (self.wanted, self.failed_at) = (true, None);
                }
                self.feed(SupervisorInput::Start);
            }
            Op::Stop => {
                self.wanted = false;
                self.feed(SupervisorInput::Stop);
            }
            Op::Boot => self.boot(),
            Op::Crash(actor, how) => self.exit(actor, how),
            Op::Hang(actor) => self.actors[actor].hangs |= self.actors[actor].alive,
            Op::Obey(actor) if self.actors[actor].asked_to_stop.is_some() && !self.actors[actor].hangs => {
                self.exit(actor, 0);
            }
            Op::Answer(actor) => self.answer(actor),
            Op::Obey(_) => {}
            Op::Stale(actor, what) => self.stale(actor, what),
            Op::Pass(millis) => self.pass(Duration::from_millis(u64::from(millis))),
        }
    }

    fn boot(&mut self) {
        if !self.is_up() {
            return;
        }
        self.booted = true;
        self.feed(SupervisorInput::Started(Generation(self.generation)));
    }

    fn exit(&mut self, actor: usize, how: u8) {
        if !std::mem::take(&mut self.actors[actor]).alive {
            return;
        }
        let exit = match how % 4 {
            0 => Exit::Stopped,
            1 => Exit::Failed("x".into()),
            2 => Exit::Panicked("x".into()),
            _ => Exit::ArbiterGone,
        };
        self.feed(SupervisorInput::Exited { generation: Generation(self.generation), actor, exit });
    }

    fn answer(&mut self, actor: usize) {
        if self.actors[actor].pinged_at.is_some() && !self.actors[actor].hangs && self.actors[actor].alive {
            self.actors[actor].pinged_at = None;
            self.feed(SupervisorInput::Answered { generation: Generation(self.generation), actor });
        }
    }

    fn stale(&mut self, actor: usize, what: u8) {
        let generation = Generation(self.generation.wrapping_sub(1 + u64::from(what) / 100));
        let before = format!("{:?}", self.unit);
        let decision = if what.is_multiple_of(2) {
            self.unit.step(SupervisorInput::Exited { generation, actor, exit: Exit::Stopped }, self.now, 0.0).decision
        } else {
            self.unit.step(SupervisorInput::Answered { generation, actor }, self.now, 0.0).decision
        };
        assert_eq!((decision, format!("{:?}", self.unit)), (Decision::Nothing, before));
        self.hit("stale");
    }

    /// Lets time pass; the timer fires whenever it is due, like in a shell.
    fn pass(&mut self, passed: Duration) {
        let end = self.now + passed;
        while let Some(at) = self.wake_at.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let was_up = self.is_up();
            self.feed(SupervisorInput::Timer);
            if was_up && matches!(self.unit.phase, Phase::BackingOff { cause: Exit::Hung, .. }) {
                self.hit("hung");
            } else if was_up {
                assert!(self.is_up(), "a timer finds only hung actors");
            }
            let after = self.wake_at;
            assert!(after != Some(at) || self.now < at, "a timer that fires for ever at {at:?}: {:?}", self.unit);
        }
        self.now = end;
        let overdue = |actor: &Actor| actor.pinged_at.is_some_and(|at| at + Duration::from_secs(30) < self.now);
        assert!(!self.is_up() || !self.booted || !self.actors.iter().any(overdue), "an actor hangs unnoticed");
    }

    /// Lets all actors behave; the unit must come up in the end.
    fn drain(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.hangs = false);
        for _ in 0..200 {
            self.boot();
            for actor in 0..ACTORS {
                self.answer(actor);
                self.apply(&Op::Obey(actor));
            }
            self.pass(Duration::from_secs(5));
        }
        let is_healthy = matches!(self.unit.phase, Phase::Running) && !self.unit.policy.is_degraded();
        assert_eq!((is_healthy, self.is_stopped()), (self.wanted, !self.wanted), "after 1,000 s of health");
    }
}

/// Rule: C-1.
#[test]
fn unit_recovers_once_actors_behave() {
    let hits = RefCell::new(BTreeMap::new());
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let result = runner.run(&prop::collection::vec(op(), 200..260), |ops| {
        let mut world = World {
            unit: Supervisor::new(Supervision::default(), ACTORS),
            now: Duration::ZERO,
            wake_at: None,
            actors: Default::default(),
            generation: 0,
            booted: false,
            wanted: false,
            failed_at: None,
            hits: &hits,
        };
        for op in &ops {
            world.apply(op);
        }
        world.drain();
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    println!("{:#?}", hits.borrow());
    if runner.config().cases < ENOUGH_CASES {
        return;
    }
    for what in ["restart", "stop", "degraded", "hung", "abandoned", "stale"] {
        assert!(hits.borrow().contains_key(what), "no case had: {what}");
    }
}
