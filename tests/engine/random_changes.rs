//! Random changes of the configuration, live and over restarts and kills. At the end, each handler must have the objects that its
//! last configuration selects from the server.
//!
//! `DELTABUS_SEEDS` sets the number of seeds. `DELTABUS_SEED=N` runs one seed. A failing seed is reduced to the steps that it needs.
#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::{self, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use deltabus::internals::simulator::{RequestKind, ServerFault, Simulator, SimulatorOptions, Times};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    told::events,
};

/// Default number of seeds, and number of seeds that run at a time.
const SEEDS: u64 = 12;
const AT_A_TIME: usize = 3;
const STEPS: usize = 14;

const TYPES: [&str; 5] = [
    "configmaps",
    "serviceaccounts",
    "leases.coordination.k8s.io",
    "controllerrevisions.apps",
    "roles.rbac.authorization.k8s.io",
];
const NAMESPACES: [&str; 2] = ["default", "kube-public"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Names of entries; a configuration has at most three of them.
const ENTRIES: [&str; 4] = ["one", "two", "three", "four"];
const HANDLERS: [&str; 3] = ["x", "y", "z"];

/// Options of an entry that select no other objects.
const OPTIONS: [&str; 9] = [
    "index = [\"metadata.uid\"]",
    "drop = [\"metadata.managedFields\", \"metadata.annotations\"]",
    "mode = \"metadata\"",
    "compression = \"none\"",
    "compression = \"lz4\"",
    "order = \"per-key\"",
    "ignore_changes = [\"metadata.annotations\"]",
    "recreated = \"update\"",
    "resync = \"10m\"",
];

#[derive(Clone, Debug, PartialEq)]
struct EntryConfig {
    name: &'static str,
    types: Vec<&'static str>,
    /// Only objects with the label `keep=yes`.
    selective: bool,
    namespace: Option<&'static str>,
    option: Option<&'static str>,
}

impl EntryConfig {
    fn selects(&self, key: &Key, keep: bool) -> bool {
        self.types.contains(&key.0) && self.namespace.is_none_or(|own| own == key.1) && (keep || !self.selective)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct HandlerConfig {
    name: &'static str,
    /// Entries; all if empty.
    resources: Vec<&'static str>,
    format: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
struct Configuration {
    entries: Vec<EntryConfig>,
    handlers: Vec<HandlerConfig>,
}

impl Configuration {
    fn random(random: &mut StdRng) -> Self {
        let mut new = Self { entries: Vec::new(), handlers: Vec::new() };
        let mut types: Vec<&str> = TYPES.to_vec();
        for name in ENTRIES.sample(random, 3) {
            let own: Vec<_> = types.extract_if(.., |_| random.random_bool(0.4)).collect();
            if !own.is_empty() {
                new.entries.push(EntryConfig { name, types: own, selective: false, namespace: None, option: None });
            }
        }
        if new.entries.is_empty() {
            new.entries.push(EntryConfig {
                name: "one",
                types: vec!["configmaps"],
                selective: false,
                namespace: None,
                option: None,
            });
        }
        for name in HANDLERS {
            if random.random_bool(0.7) {
                let mut handler = HandlerConfig { name, resources: Vec::new(), format: None };
                handler.change(&new.entries, random);
                new.handlers.push(handler);
            }
        }
        new
    }

    /// Changes one to three things.
    fn changed(&self, random: &mut StdRng) -> Self {
        let mut new = self.clone();
        for _ in 0..random.random_range(1..=3) {
            match random.random_range(0..8) {
                0 => {
                    let other = Self::random(random);
                    new.entries = other.entries;
                }
                1 => {
                    // renamed
                    let free = ENTRIES.iter().find(|name| new.entries.iter().all(|entry| entry.name != **name));
                    if let (Some(entry), Some(free)) = (pick(&mut new.entries, random), free) {
                        entry.name = free;
                    }
                }
                2 => {
                    if let Some(entry) = pick(&mut new.entries, random) {
                        entry.selective = !entry.selective;
                    }
                }
                3 => {
                    if let Some(entry) = pick(&mut new.entries, random) {
                        entry.namespace =
                            [None, Some(NAMESPACES[0]), Some(NAMESPACES[1])].choose(random).copied().flatten();
                    }
                }
                4 | 5 => {
                    if let Some(entry) = pick(&mut new.entries, random) {
                        entry.option = OPTIONS.choose(random).copied().filter(|_| random.random_bool(0.8));
                    }
                }
                6 => {
                    let name = *HANDLERS.choose(random).expect("there are some");
                    let before = new.handlers.len();
                    new.handlers.retain(|handler| handler.name != name);
                    if before == new.handlers.len() {
                        new.handlers.push(HandlerConfig { name, resources: Vec::new(), format: None });
                    }
                }
                _ => {
                    let entries = new.entries.clone();
                    if let Some(handler) = pick(&mut new.handlers, random) {
                        handler.change(&entries, random);
                    }
                }
            }
        }
        let names: Vec<_> = new.entries.iter().map(|entry| entry.name).collect();
        for handler in &mut new.handlers {
            handler.resources.retain(|name| names.contains(name)); // none left: all
        }
        new
    }

    fn expected(&self, handler: &HandlerConfig, objects: &Objects) -> State {
        let takes = |entry: &&EntryConfig| handler.resources.is_empty() || handler.resources.contains(&entry.name);
        let selected = |(key, (_, keep)): &(&Key, &(String, bool))| {
            self.entries.iter().filter(takes).any(|entry| entry.selects(key, *keep))
        };
        objects.iter().filter(selected).map(|(key, (version, _))| (name_of(key), version.clone())).collect()
    }
}

impl HandlerConfig {
    fn change(&mut self, entries: &[EntryConfig], random: &mut StdRng) {
        self.resources = entries.iter().map(|entry| entry.name).filter(|_| random.random_bool(0.5)).collect();
        self.format = [None, Some("diff"), Some("object")].choose(random).copied().flatten();
    }
}

fn pick<'a, T>(of: &'a mut [T], random: &mut StdRng) -> Option<&'a mut T> {
    let count = of.len();
    (count > 0).then(|| &mut of[random.random_range(0..count)])
}

type Key = (&'static str, &'static str, &'static str);
/// Objects of the server: version, and whether the label `keep` is `yes`.
type Objects = BTreeMap<Key, (String, bool)>;
/// Version of each object, by its name.
type State = BTreeMap<String, String>;

fn name_of((resource, namespace, name): &Key) -> String {
    let plural = resource.split('.').next().unwrap_or_default();
    format!("{plural}/{namespace}/{name}")
}

#[derive(Clone, Debug)]
enum Write {
    Put(Key, bool),
    Delete(Key),
}

impl Write {
    fn random(random: &mut StdRng) -> Self {
        let mut any = |of: &[&'static str]| *of.choose(random).expect("there are some");
        let key = (any(&TYPES), any(&NAMESPACES), any(&NAMES));
        if random.random_bool(0.3) { Self::Delete(key) } else { Self::Put(key, random.random_bool(0.6)) }
    }
}

#[derive(Clone)]
enum Step {
    Write(Vec<Write>),
    /// SIGHUP with this configuration. If set, waits until the engine has settled.
    Reload(Configuration, bool),
    /// The engine ends, by a kill after a delay in milliseconds or by SIGTERM. It starts with this configuration, or the last one.
    Restart {
        kill: Option<u64>,
        meanwhile: Vec<Write>,
        forgets: bool,
        configuration: Option<Configuration>,
        unavailable: bool,
    },
    /// The server's history is compacted, and all watches end.
    Relist,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(writes) => write!(f, "write {writes:?}"),
            Self::Reload(configuration, waits) => write!(f, "reload, waits {waits}: {configuration:?}"),
            Self::Restart { kill, meanwhile, forgets, configuration, unavailable } => {
                write!(
                    f,
                    "restart, kill {kill:?}, forgets {forgets}, unavailable {unavailable}, {meanwhile:?}: {configuration:?}"
                )
            }
            Self::Relist => f.write_str("relist"),
        }
    }
}

fn steps(seed: u64) -> (Configuration, Vec<Step>) {
    let random = &mut StdRng::seed_from_u64(seed);
    let writes = |random: &mut StdRng, max| (0..random.random_range(0..max)).map(|_| Write::random(random)).collect();
    let first = Configuration::random(random);
    let mut last = first.clone();
    let mut steps = vec![Step::Write((0..40).map(|_| Write::random(random)).collect())];
    for _ in 0..STEPS {
        let mut change = |random: &mut StdRng| {
            last = last.changed(random);
            last.clone()
        };
        steps.push(match random.random_range(0..10) {
            0..2 => Step::Write(writes(random, 20)),
            2..5 => Step::Reload(change(random), random.random_bool(0.5)),
            5 => Step::Relist,
            _ => Step::Restart {
                kill: random.random_bool(0.6).then(|| [0, 1, 3, 10, 30, 100, 300].choose(random).copied().unwrap_or(0)),
                meanwhile: writes(random, 8),
                forgets: random.random_bool(0.3),
                configuration: random.random_bool(0.7).then(|| change(random)),
                unavailable: random.random_bool(0.2),
            },
        });
    }
    (first, steps)
}

/// A server, an engine, and what the handlers of the present configuration must have.
struct World {
    simulator: Simulator,
    dir: TempDir,
    engine: Option<Engine>,
    configuration: Configuration,
    objects: Objects,
    writes: u32,
    /// Number of times that a handler was added. Each time it writes to a new file.
    lives: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(configuration: Configuration) -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
        let lives = configuration.handlers.iter().map(|handler| (handler.name, 1)).collect();
        Self { simulator, dir, engine: None, configuration, objects: Objects::new(), writes: 0, lives }
    }

    fn file(&self, handler: &str) -> std::path::PathBuf {
        self.dir.path().join(format!("{handler}-{}.jsonl", self.lives[handler]))
    }

    fn toml(&self) -> String {
        let (kubeconfig, state) = (text(self.dir.path(), "kubeconfig"), text(self.dir.path(), "state"));
        let mut toml = format!(
            "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {kubeconfig:?}\n\
             backoff = {{ initial = \"20ms\", max = \"200ms\" }}\n[state]\ndir = {state:?}\n"
        );
        for EntryConfig { name, types, selective, namespace, option } in &self.configuration.entries {
            write!(toml, "[resources.{name}]\nmatch = {types:?}\n").expect("a string grows");
            if *selective {
                toml.push_str("labels = \"keep=yes\"\n");
            }
            if let Some(namespace) = namespace {
                writeln!(toml, "namespaces = [{namespace:?}]").expect("a string grows");
            }
            toml.push_str(option.unwrap_or_default());
            toml.push('\n');
        }
        for HandlerConfig { name, resources, format } in &self.configuration.handlers {
            let path = self.file(name).to_string_lossy().into_owned();
            write!(toml, "[handlers.{name}]\ntype = \"file\"\npath = {path:?}\ninitial = \"send\"\n")
                .expect("a string grows");
            if !resources.is_empty() {
                writeln!(toml, "resources = {resources:?}").expect("a string grows");
            }
            if let Some(format) = format {
                writeln!(toml, "format = {format:?}").expect("a string grows");
            }
        }
        toml
    }

    fn write(&mut self, writes: &[Write]) {
        for write in writes {
            match write {
                Write::Put(key @ (resource, namespace, name), keep) => {
                    // Each write changes a label: an entry with `ignore_changes` leaves out updates of the version alone.
                    self.writes += 1;
                    let labels = json!({"keep": if *keep { "yes" } else { "no" }, "write": self.writes.to_string()});
                    let object = json!({"metadata": {"namespace": namespace, "name": name, "labels": labels}});
                    let version = self.simulator.store().put(resource, object).expect("a valid object").version();
                    self.objects.insert(*key, (version.to_string(), *keep));
                }
                Write::Delete(key @ (resource, namespace, name)) => {
                    if self.objects.remove(key).is_some() {
                        self.simulator.store().delete(resource, namespace, name).expect("it is there");
                    }
                }
            }
        }
    }

    /// Replaces the configuration. A handler that was absent begins afresh, so the engine must have noticed its absence.
    fn configure(&mut self, new: &Configuration) {
        let is_new =
            |handler: &HandlerConfig| self.configuration.handlers.iter().all(|known| known.name != handler.name);
        let added: Vec<_> = new.handlers.iter().filter(|handler| is_new(handler)).map(|handler| handler.name).collect();
        if added.iter().any(|name| self.lives.contains_key(name)) {
            if self.engine.is_some() {
                self.wait_for_handlers();
            } else {
                self.start();
                self.wait_for_handlers();
                self.stop(); // a kill could undo the removal of a handler
            }
        }
        for name in added {
            *self.lives.entry(name).or_default() += 1;
        }
        self.configuration = new.clone();
        Engine::configure(self.dir.path(), &self.toml());
    }

    fn start(&mut self) {
        self.engine = Some(Engine::run(self.dir.path(), &self.toml()));
    }

    fn stop(&mut self) {
        let status = self.engine.take().map(Engine::terminate);
        assert!(status.is_none_or(|status| status.code() == Some(0)));
    }

    /// Waits until the engine has the handlers of the configuration.
    fn wait_for_handlers(&self) {
        let engine = self.engine.as_ref().expect("it runs");
        let wanted: BTreeSet<_> = self.configuration.handlers.iter().map(|handler| handler.name.to_owned()).collect();
        engine.wait_for("reloaded", PATIENCE, || {
            let answer = engine.json("/v1/handlers");
            let rows = answer["handlers"].as_array().expect("a list of rows").iter();
            rows.map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect::<BTreeSet<_>>() == wanted
        });
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write(writes) => self.write(writes),
            Step::Reload(configuration, waits) => {
                self.configure(configuration);
                if let Some(engine) = &self.engine {
                    engine.signal("-HUP");
                    if *waits {
                        engine.wait_ready(PATIENCE);
                    }
                }
            }
            Step::Relist => {
                self.simulator.store().compact();
                self.simulator.close_connections();
            }
            Step::Restart { kill, meanwhile, forgets, configuration, unavailable } => {
                match kill {
                    Some(delay) => {
                        thread::sleep(Duration::from_millis(*delay));
                        drop(self.engine.take());
                    }
                    None => self.stop(),
                }
                self.write(meanwhile);
                if *forgets {
                    self.simulator.store().compact();
                }
                if let Some(configuration) = configuration {
                    self.configure(configuration);
                }
                let fault = ServerFault::Status { code: 503, retry_after: None };
                if *unavailable {
                    // Without the aggregated form, each group is asked.
                    for path in ["/apis", "/apis/apps/v1"] {
                        let faults = self.simulator.faults();
                        faults.add(path, RequestKind::Any, Times::Next(1), fault.clone()).expect("a valid glob");
                    }
                }
                self.start();
            }
        }
    }

    /// Returns the state that a handler's events add up to.
    fn state(&self, handler: &str) -> State {
        let mut state = State::new();
        for event in events(&self.file(handler)) {
            let text = |key: &str| event[key].as_str().unwrap_or_default();
            let object = format!("{}/{}/{}", text("resource"), text("namespace"), text("name"));
            let kind = text("type").rsplit('.').next().unwrap_or_default().to_owned();
            match &*kind {
                "added" | "updated" => {
                    let version = text("id").rsplit('.').next().unwrap_or_default().to_owned();
                    state.insert(object, version);
                }
                "deleted" | "removed" => drop(state.remove(&object)),
                other => panic!("an event of type {other}"),
            }
        }
        state.retain(|object, _| {
            !object.ends_with("/kube-root-ca.crt") && NAMES.iter().any(|name| object.ends_with(&format!("/{name}")))
        });
        state
    }

    /// Returns the differences between what the handlers have and what they must have.
    fn differences(&self) -> String {
        let mut differences = String::new();
        for handler in &self.configuration.handlers {
            let (has, expected) = (self.state(handler.name), self.configuration.expected(handler, &self.objects));
            let only = |one: &State, other: &State| -> Vec<String> {
                let is_only = |(object, version): &(&String, &String)| other.get(*object) != Some(*version);
                one.iter().filter(is_only).map(|(object, version)| format!("{object} {version}")).collect()
            };
            if has != expected {
                writeln!(
                    differences,
                    "handler {}: has {:?}, expected {:?}",
                    handler.name,
                    only(&has, &expected),
                    only(&expected, &has)
                )
                .expect("a string grows");
            }
        }
        differences
    }

    fn finish(&self, patience: Duration) -> Result<(), String> {
        self.wait_for_handlers();
        let until = Instant::now() + patience;
        loop {
            let differences = self.differences();
            if differences.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(differences);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn run(first: &Configuration, steps: &[Step], patience: Duration) -> Result<(), String> {
    let mut world = World::new(first.clone());
    let ended = catch_unwind(AssertUnwindSafe(|| {
        world.start();
        for step in steps {
            if env::var_os("DELTABUS_SEED").is_some() {
                println!("{step}");
            }
            world.step(step);
        }
        world.finish(patience)
    }));
    let ended = ended.unwrap_or_else(|panic| Err(panic.downcast_ref::<String>().cloned().unwrap_or_default()));
    ended.map_err(|error| match env::var_os("DELTABUS_SEED") {
        Some(_) => format!("{error}\n{}", world.engine.map(|engine| engine.log()).unwrap_or_default()),
        None => error,
    })
}

/// Runs a seed. Reduces a failing one to the steps without which it does not fail.
fn run_seed(seed: u64) {
    let (first, mut steps) = steps(seed);
    let Err(mut error) = run(&first, &steps, Duration::from_secs(30)) else { return };
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let fewer: Vec<_> =
            steps.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, step)| step.clone()).collect();
        if let Err(same) = run(&first, &fewer, Duration::from_secs(5)) {
            (steps, error) = (fewer, same);
        }
    }
    let trace: Vec<_> = steps.iter().map(ToString::to_string).collect();
    panic!("seed {seed} fails (DELTABUS_SEED={seed}):\nstart {first:?}\n{}\n{error}", trace.join("\n"));
}

/// Rule: G-1.
#[test]
fn handlers_equal_server_after_random_changes() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("DELTABUS_SEED") {
        return run_seed(seed);
    }
    let (next, seeds) = (AtomicU64::new(0), number("DELTABUS_SEEDS").unwrap_or(SEEDS));
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                let taken = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
                taken.take_while(|seed| *seed < seeds).for_each(run_seed);
            });
        }
    });
}
