//! The process that is the API server: it makes changes at a steady rate, and knows what is there in the end.

use std::{
    fmt::Write as _,
    fs,
    io::stdin,
    thread,
    time::{Duration, Instant},
};

use deltabus::{
    object::ObjectKey,
    simulator::{HistoryLimits, Random, RawObject, Simulator, SimulatorOptions},
};

use crate::{Outcome, micros};

const TYPE: &str = "configmaps";
const NAMESPACE: &str = "default";
/// Changes are made so often.
const TICK: Duration = Duration::from_millis(1);
/// One in so many changes deletes an object or creates one, in turn.
const LIFE_EVERY: usize = 100;
/// What makes an object 1 KB.
const PADDING: usize = 700;

/// Serves, and does what each line on stdin says: `run CHANGES RATE` or `save FILE`.
pub(crate) fn play(objects: usize) -> Outcome<()> {
    // Nobody who reads at all is too late for a change.
    let history = HistoryLimits { changes: usize::MAX, bytes: usize::MAX };
    let simulator = Simulator::start(SimulatorOptions { history, ..SimulatorOptions::default() })?;
    let mut world = World::new(simulator, objects)?;
    println!("{}", world.simulator.url());
    for line in stdin().lines() {
        let line = line?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["run", changes, rate] => world.run(changes.parse()?, rate.parse()?)?,
            ["save", file] => world.save(file)?,
            _ => return Err(format!("unexpected line {line:?}").into()),
        }
    }
    Ok(())
}

/// One object.
#[derive(Clone)]
struct Thing {
    name: String,
    uid: String,
    touched: bool,
}

struct World {
    simulator: Simulator,
    random: Random,
    /// Text that no two objects share.
    noise: String,
    things: Vec<Thing>,
    /// Names that were deleted; half of them come back.
    free: Vec<String>,
    deleted: Vec<String>,
    changes: usize,
    created: usize,
}

impl World {
    fn new(simulator: Simulator, objects: usize) -> Outcome<Self> {
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

    /// Makes so many changes, so many a second; says in how many milliseconds.
    fn run(&mut self, changes: usize, rate: usize) -> Outcome<()> {
        let began = now();
        let mut done = 0;
        while done < changes {
            let due = usize::try_from(began.elapsed().as_micros())? * rate / 1_000_000;
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
        println!("{}", began.elapsed().as_millis());
        Ok(())
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

    /// Writes a state of an object, with the time.
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

    /// Writes what there is, a line each: the uid, and the version or `-` of what is gone.
    fn save(&self, file: &str) -> Outcome<()> {
        let mut text = String::new();
        for thing in self.things.iter().filter(|thing| thing.touched) {
            let stored = self.simulator.store().get(TYPE, NAMESPACE, &thing.name).ok_or("an object is missing")?;
            writeln!(text, "{} {}", thing.uid, stored.version())?;
        }
        for uid in &self.deleted {
            writeln!(text, "{uid} -")?;
        }
        fs::write(file, text)?;
        println!("{} {}", self.things.iter().filter(|thing| thing.touched).count(), self.deleted.len());
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
fn now() -> Instant {
    Instant::now()
}
