//! Crashes between any two effects of the engine's state machines: append, fsync, publish, release, send, acknowledge, save, and
//! the steps of a reload.
//!
//! The real state machines (reflector, queue, cache, journal, routes, reconciliation, delivery) run over models of an API server,
//! a disk and recording sinks. They run one step at a time, in an order given by a seed. After a crash the disk has all synced
//! writes, and a random number of the oldest unsynced writes. The next start continues from there.
//!
//! In most seeds the configuration changes too: while the process runs, just before a crash, and between two runs. Handlers are
//! added, removed, or take other entries. Types get other options, other namespaces or another entry, so their units are replaced.
//!
//! The sinks check each accepted event, and their final state:
//!
//! - E1: The state equals the server's, for the types and namespaces that the handler takes in the end. Ignored updates are an
//!   exception: only the cache and the saved state show them. An object reported as deleted is deleted.
//! - E2: The order of an object's events is: added, updated …, deleted or removed.
//! - E3: Events come in sequence. An event is in the cache before it is delivered, and with `fsync = "group"` also durable.
//! - E4: An acknowledged and saved event is not repeated. Every event that was journaled for a handler and not lost is delivered.
//! - Watchers: one that resumes at its version, also after a crash, misses no change.
//! - Ids: Each change has one id.
//! - Routes: A handler gets no event of a unit that was never on its route.
//!
//! `DELTABUS_SEEDS`, or `PROPTEST_CASES`, sets the number of seeds; `DELTABUS_SEED=N` runs one seed and prints its steps.

mod configuration;
mod consumer;
mod disk;
mod sink;
mod site;
mod unit;
mod world;

use std::{
    collections::BTreeMap,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use self::world::World;
use crate::journal::{Fsync, Record};

/// Number of types.
const UNITS: usize = 2;
const HANDLERS: usize = 3;
/// Number of steps of one seed before the final phase.
const STEPS: usize = 500;
/// Default number of seeds.
const SEEDS: u64 = 600;

/// Permanent name of a record: its time and its position.
type RecordName = (i64, u64);

fn name_of(record: &Record) -> RecordName {
    (record.time_micros, record.sequence.0)
}

/// Counters of the situations that occurred, over all seeds.
#[derive(Debug, Default)]
struct Hits(BTreeMap<&'static str, usize>);

impl Hits {
    fn add(&mut self, what: &'static str) {
        self.add_many(what, 1);
    }

    fn add_many(&mut self, what: &'static str, times: usize) {
        *self.0.entry(what).or_default() += times;
    }
}

/// Situations that must occur; otherwise the simulation proves little.
const EXPECTED: &[&str] = &[
    "crash: planned, not appended",
    "crash: appended, not written",
    "crash: written, not published",
    "crash: durable, not published",
    "crash: published, not released",
    "crash: released, not durable",
    "crash: visible, not read",
    "crash: read, not sent",
    "crash: sent, not accepted",
    "crash: accepted, not answered",
    "crash: answered, not acknowledged",
    "crash: between attempts",
    "crash: acknowledged, not saved",
    "crash: saved, not durable",
    "crash: within a sync",
    "crash: within a save",
    "crash: within a start",
    "crash: within a clean stop",
    "a clean stop leaves something",
    "a clean stop leaves nothing",
    "records are lost with the tail",
    "a whole life is lost with the tail",
    "return: history was compacted",
    "return: the watch went on",
    "a difference of the downtime",
    "an older list was refused",
    "an event is delivered twice",
    "an answer is lost",
    "a reader goes on from the store",
    "a unit restarts within a batch",
    "records are removed",
    "records are merged",
    "an update is ignored",
    "an ignored update is lost with the tail",
    "crash: the timeline is not saved",
    "crash: the timeline is not durable",
    "a version is found in memory",
    "a version is found on disk",
    "crash: within a merge",
    "crash: merged, not durable",
    "reload",
    "reload: between two runs",
    "reload: a handler is added",
    "reload: a handler is removed",
    "reload: a route changes",
    "a unit is replaced",
    "a type moves to another entry",
    "a unit has several heirs",
    "a unit has several predecessors",
    "a first list ends before its unit is replaced",
    "objects leave with their unit",
    "a reader of only the old entry is dropped",
    "a reader is attached with records",
    "a reader is attached without records",
    "a reader is detached with records",
    "a reader is detached without records",
    "a unit attaches a reader before its start",
    "a change of units waits for the journal",
    "start: heirs replace a unit",
    "start: an heir is incomplete",
    "crash: within a reload",
    "crash: a reader waits for a unit",
    "crash: a reader waits for a first list",
    "crash: an attachment is not durable",
    "crash: new units are created",
    "crash: a part of a seed is stored",
    "crash: within a change of units",
];

fn run(seed: u64, fsync: Fsync, hits: &mut Hits, traces: bool) {
    let mut world = World::new(seed, fsync, hits, traces);
    for _ in 0..STEPS {
        world.step();
    }
    world.finish();
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

fn simulate(name: &str, fsync: Fsync, more: &[&str]) {
    let mut hits = Hits::default();
    if let Some(seed) = number("DELTABUS_SEED") {
        return run(seed, fsync, &mut hits, true);
    }
    let seeds = number("DELTABUS_SEEDS").or_else(|| number("PROPTEST_CASES")).unwrap_or(SEEDS);
    for seed in 0..seeds {
        let end = catch_unwind(AssertUnwindSafe(|| run(seed, fsync, &mut hits, false)));
        assert!(
            end.is_ok(),
            "seed {seed} fails; what it does: DELTABUS_SEED={seed} cargo test --lib {name} -- --nocapture"
        );
    }
    println!("{:#?}", hits.0);
    let missing: Vec<_> =
        EXPECTED.iter().chain(more).filter(|what| hits.0.get(**what).is_none_or(|times| *times == 0)).collect();
    assert!(missing.is_empty() || seeds < SEEDS, "never happened: {missing:?}");
}

/// Rule: G-1.
#[test]
fn sinks_equal_server_after_any_crashes() {
    simulate("sinks_equal_server_after_any_crashes", Fsync::Group, &[]);
}

/// Rule: G-6.
#[test]
fn interval_fsync_loses_only_unsynced_records() {
    let holes = ["interval: a record was shown, and is lost", "interval: a ghost stays"];
    simulate("interval_fsync_loses_only_unsynced_records", Fsync::Interval(Duration::ZERO), &holes);
}
