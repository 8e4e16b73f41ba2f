//! An API server whose config maps of 1 KB change at a steady rate, and the expected final state of its consumers.

use std::{thread, time::Duration};

use deltabus::internals::{
    object::ObjectKey,
    simulator::{HistoryLimits, Random, RawObject, Simulator, SimulatorOptions},
};

use crate::harness::{Outcome, micros, now};

const TYPE: &str = "configmaps";
const NAMESPACE: &str = "default";
/// Time between two batches of changes.
const TICK: Duration = Duration::from_millis(1);
/// One in this number of changes deletes or creates an object, in turn.
const LIFE_EVERY: u64 = 100;
/// Length of the padding that makes an object 1 KB.
const PADDING: usize = 700;

/// One object of the collection.
#[derive(Clone)]
struct Thing {
    name: String,
    uid: String,
    touched: bool,
}

/// The API server and its expected state. It runs on threads of this process.
pub(crate) struct World {
    simulator: Simulator,
    random: Random,
    /// Random text for the padding, which differs between objects.
    noise: String,
    things: Vec<Thing>,
    /// Deleted names; half of them are used again.
    free: Vec<String>,
    deleted: Vec<String>,
    changes: u64,
    created: usize,
}

/// Last state of an object: its uid, and its version or `None` after its deletion.
pub(crate) type Last = (String, Option<u64>);

impl World {
    /// Starts with this number of objects.
    pub(crate) fn start(objects: u64) -> Outcome<Self> {
        // Keep the whole history, so that no client comes too late.
        let history = HistoryLimits { changes: usize::MAX, bytes: usize::MAX };
        let simulator = Simulator::start(SimulatorOptions { history, ..SimulatorOptions::default() })?;
        let mut random = Random::new(7);
        let noise = (0..1_000).map(|_| random.suffix(16)).collect();
        let (things, free, deleted) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self { simulator, random, noise, things, free, deleted, changes: 0, created: 0 };
        for _ in 0..objects {
            let raw = world.create(false);
            world.simulator.store().ingest(TYPE, [raw])?;
        }
        Ok(world)
    }

    pub(crate) fn url(&self) -> String {
        self.simulator.url()
    }

    /// Makes changes, `rate` per second; returns the time taken.
    pub(crate) fn run(&mut self, changes: u64, rate: u64) -> Outcome<Duration> {
        let began = now();
        let mut done = 0;
        while done < changes {
            let due = u64::try_from(began.elapsed().as_micros())? * rate / 1_000_000;
            let mut updates = Vec::new();
            for _ in done..due.min(changes) {
                self.changes += 1;
                if !self.changes.is_multiple_of(LIFE_EVERY) {
                    updates.push(self.update());
                    continue;
                }
                self.simulator.store().ingest(TYPE, std::mem::take(&mut updates))?;
                if (self.changes / LIFE_EVERY).is_multiple_of(2) {
                    updates.push(self.create(true));
                } else {
                    self.delete()?;
                }
            }
            self.simulator.store().ingest(TYPE, updates)?;
            done = due.min(changes).max(done);
            thread::sleep(TICK);
        }
        Ok(began.elapsed())
    }

    fn update(&mut self) -> RawObject {
        let at = self.random.below(self.things.len());
        self.things[at].touched = true;
        let thing = self.things[at].clone();
        self.raw(&thing)
    }

    fn create(&mut self, touched: bool) -> RawObject {
        self.created += 1;
        let again = self.free.pop().filter(|_| self.created.is_multiple_of(2));
        let name = again.unwrap_or_else(|| format!("settings-{:06}", self.created));
        let thing = Thing { name, uid: self.random.uuid(), touched };
        self.things.push(thing.clone());
        self.raw(&thing)
    }

    fn delete(&mut self) -> Outcome<()> {
        let at = self.random.below(self.things.len());
        let thing = self.things.swap_remove(at);
        self.simulator.store().delete(TYPE, NAMESPACE, &thing.name)?;
        self.deleted.push(thing.uid);
        self.free.push(thing.name);
        Ok(())
    }

    /// Writes a new state of an object, with the current time.
    fn raw(&mut self, Thing { name, uid, .. }: &Thing) -> RawObject {
        let from = self.random.below(self.noise.len() - PADDING);
        let padding = &self.noise[from..from + PADDING];
        let before =
            format!(r#""metadata":{{"name":"{name}","namespace":"{NAMESPACE}","uid":"{uid}","resourceVersion":""#);
        let after = format!(
            r#"","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"app":"bench"}}}},"data":{{"settings":"{padding}","stamp":"{}"}}}}"#,
            micros()
        );
        RawObject { key: ObjectKey::new(NAMESPACE, name), before: before.into(), after: after.into() }
    }

    /// Returns the last state of each object that was changed or deleted.
    pub(crate) fn truth(&self) -> Outcome<Vec<Last>> {
        let changed = self.things.iter().filter(|thing| thing.touched).map(|thing| {
            let stored = self.simulator.store().get(TYPE, NAMESPACE, &thing.name).ok_or("an object is missing")?;
            Ok((thing.uid.clone(), Some(stored.version())))
        });
        changed.chain(self.deleted.iter().map(|uid| Ok((uid.clone(), None)))).collect()
    }
}
