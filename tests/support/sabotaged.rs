//! An engine in this process, a live simulated cluster, and the guarantees that must hold despite any sabotage.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use deltabus::internals::{
    config::Config,
    delivery::status::HandlerView,
    engine::{Engine, RunningEngine, StopReport},
    list_watch::kube::ClusterAccess,
    lister::Lister,
    simulator::{Running, Simulator, SimulatorOptions, Sizes, Workload},
    status::UnitView,
};
use tempfile::TempDir;
use tokio::time::Instant;

use super::stream::{Replay, State, replay};

/// Watched types: a busy one, and others.
pub(crate) const RESOURCES: [&str; 3] = ["pods", "configmaps", "deployments.apps"];

/// The handlers: each writes all events to a file with its name.
pub(crate) const HANDLERS: [&str; 2] = ["out", "other"];

/// A running engine on a live cluster.
pub(crate) struct Scene {
    pub(crate) engine: RunningEngine,
    pub(crate) simulator: Simulator,
    workload: Option<Running>,
    readers: Vec<Reader>,
    dir: TempDir,
}

impl Scene {
    /// Starts both and waits until all types are synced. `supervision` is the TOML of that section.
    pub(crate) async fn start(seed: u64, supervision: &str, rate: f64) -> Self {
        let simulator =
            Simulator::start(SimulatorOptions { seed, ..SimulatorOptions::default() }).expect("a free port");
        let mut workload = Workload::new(seed);
        workload.populate(simulator.store(), Sizes::default()).expect("the store takes them");
        let workload = workload.run(simulator.store().clone(), rate).expect("a thread");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let access = ClusterAccess::without_credentials(&simulator.url(), "test").expect("a URL");
        let engine =
            Engine::builder().config(config(&dir, supervision)).cluster(access).start().await.expect("it starts");
        engine.wait_for_sync().await;
        let mut scene = Self { engine, simulator, workload: Some(workload), readers: Vec::new(), dir };
        for resource in RESOURCES {
            scene.read_all_the_time(resource);
        }
        scene
    }

    /// Reads a type in a thread until the end, from one lister and from new listers; an empty or unsynced
    /// cache fails the test.
    fn read_all_the_time(&mut self, resource: &str) {
        let (plural, _) = resource.split_once('.').unwrap_or((resource, ""));
        let informer = self.engine.registry().informers().into_iter().find(|unit| unit.resource.plural == plural);
        let informer = informer.expect("it is watched");
        let stop = Arc::new(AtomicBool::new(false));
        let reads = Arc::new(AtomicU64::new(0));
        let (stopped, counted, what) = (Arc::clone(&stop), Arc::clone(&reads), resource.to_owned());
        let thread = std::thread::spawn(move || {
            let first = informer.lister();
            while !stopped.load(Ordering::Relaxed) {
                for lister in [&first, &informer.lister()] {
                    let whole = lister.snapshot(|query| {
                        let objects = query.list();
                        let found = objects.first().is_some_and(|object| query.get(object.key()).is_ok());
                        let meta = query.meta();
                        let whole = meta.synced && found && objects.len() as u64 == meta.objects;
                        whole.then_some(()).ok_or_else(|| format!("{} listed, {found}, {meta:?}", objects.len()))
                    });
                    whole.unwrap_or_else(|why| panic!("the cache of {what} was not readable: {why}"));
                }
                counted.fetch_add(2, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        self.readers.push(Reader { stop, reads, thread });
    }

    pub(crate) fn unit(&self, plural: &str) -> UnitView {
        let views = self.engine.registry().views();
        views.into_iter().find(|view| view.plural == plural).expect("it is watched")
    }

    pub(crate) fn handler(&self, name: &str) -> HandlerView {
        self.engine.handlers().into_iter().find(|view| view.name == name).expect("it is configured")
    }

    /// Returns the restarts: of units by plural, of handlers by name.
    pub(crate) fn restarts(&self) -> BTreeMap<String, u64> {
        let units = self.engine.registry().views().into_iter().map(|view| (view.plural, view.restarts));
        units.chain(self.engine.handlers().into_iter().map(|view| (view.name, view.restarts))).collect()
    }

    /// Runs the engine until `condition` holds.
    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !condition(self) {
            let (views, handlers) = (self.engine.registry().views(), self.engine.handlers());
            assert!(Instant::now() < deadline, "never {what}: {views:#?} {handlers:#?}");
            actix_rt::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until new events of every type have reached every handler, except the named ones.
    pub(crate) async fn events_flow(&self, except: &[&str]) {
        let flow = |scene: &Self| -> BTreeMap<String, u64> {
            let of_unit = |view: UnitView| (view.plural, view.events.added + view.events.updated + view.events.deleted);
            let units = scene.engine.registry().views().into_iter().map(of_unit);
            let handlers = scene.engine.handlers().into_iter().map(|view| (view.name, view.delivered));
            units.chain(handlers).filter(|(name, _)| !except.contains(&name.as_str())).collect()
        };
        self.touch();
        let before = flow(self);
        let moved = |scene: &Self| {
            scene.touch();
            flow(scene).iter().all(|(name, now)| *now > before[name])
        };
        self.wait_for("events of everything", moved).await;
    }

    /// Changes a config map, because few steps of the workload do.
    pub(crate) fn touch(&self) {
        let version = self.simulator.store().version().to_string();
        let object =
            serde_json::json!({"metadata": {"name": "touched", "namespace": "default"}, "data": {"at": version}});
        self.simulator.store().put("configmaps", object).expect("the store takes it");
        let deployment = self.simulator.store().list("deployments.apps").into_iter().next().expect("there are some");
        let patch = serde_json::json!({"metadata": {"annotations": {"touched": version}}});
        let key = deployment.key().as_ref();
        drop(self.simulator.store().patch("deployments.apps", key.namespace, key.name, patch));
    }

    /// Stops the workload, waits until the caches equal the server's state, stops the engine, and compares every handler's file
    /// with the store.
    pub(crate) async fn finish(mut self) -> BTreeMap<&'static str, Replay> {
        drop(self.workload.take());
        let server = self.server_state();
        self.wait_for("equal to the server", |scene| scene.cached_state() == server).await;
        let Self { engine, readers, dir, .. } = self;
        let mut reads = 0;
        for Reader { stop, reads: counted, thread } in readers {
            stop.store(true, Ordering::Relaxed);
            thread.join().expect("the cache was readable all the time");
            reads += counted.load(Ordering::Relaxed);
        }
        for view in engine.handlers() {
            assert_eq!((view.dead_lettered, view.dropped), (0, 0), "{view:#?}");
        }
        assert_eq!(engine.stop().await, StopReport::default(), "everything was delivered");
        let mut replays = BTreeMap::new();
        for handler in HANDLERS {
            let replayed = replay(&path(&dir, handler));
            if replayed.state != server {
                tell_differences(&path(&dir, handler), &replayed.state, &server);
                panic!("what {handler} was told is not what the server has");
            }
            let Replay { events, duplicates, .. } = replayed;
            eprintln!("{handler}: {events} events, {duplicates} duplicates, {} objects, {reads} reads", server.len());
            replays.insert(handler, replayed);
        }
        replays
    }

    fn server_state(&self) -> State {
        let mut state = State::new();
        for resource in RESOURCES {
            for stored in self.simulator.store().list(resource) {
                let (key, object) = (stored.key().as_ref(), stored.value());
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                let of = (uid.to_owned(), stored.version().to_string());
                state.insert(format!("{resource}/{}/{}", key.namespace, key.name), of);
            }
        }
        state
    }

    fn cached_state(&self) -> State {
        let mut state = State::new();
        for lister in self.engine.listers("all") {
            let resource = RESOURCES.into_iter().find(|name| name.starts_with(&lister.resource().plural));
            let resource = resource.expect("nothing else is watched");
            for object in all(&lister) {
                let (key, of) = (object.key(), (object.uid().to_owned(), object.resource_version().to_owned()));
                state.insert(format!("{resource}/{}/{}", key.namespace, key.name), of);
            }
        }
        state
    }
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the method alone has too narrow a lifetime")]
fn all(lister: &Lister) -> Vec<deltabus::internals::object::Object> {
    lister.snapshot(|query| query.list())
}

struct Reader {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Prints a file's events for every object whose final state differs from the server's.
fn tell_differences(path: &Path, told: &State, server: &State) {
    for key in told.keys().chain(server.keys()).filter(|key| told.get(*key) != server.get(*key)) {
        let [told, has] = [told.get(key), server.get(key)];
        eprintln!("{key}: told {told:?}, the server has {has:?}");
        let uids: Vec<&str> = [told, has].into_iter().flatten().map(|(uid, _)| uid.as_str()).collect();
        let text = std::fs::read_to_string(path).expect("the handler wrote it");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| uids.iter().any(|uid| line.contains(uid))) {
            eprintln!("  line {number}: {}", line.split("\"data\":").next().unwrap_or_default());
        }
    }
}

fn path(dir: &TempDir, handler: &str) -> PathBuf {
    dir.path().join(format!("{handler}.jsonl"))
}

fn config(dir: &TempDir, supervision: &str) -> Config {
    let mut text = format!(
        "shutdown_timeout = \"60s\"\n[http]\nlisten = \"127.0.0.1:0\"\n[resources.all]\nmatch = {RESOURCES:?}\n[supervision]\n{supervision}\n"
    );
    for handler in HANDLERS {
        let path = path(dir, handler).display().to_string();
        let section = format!(
            "[handlers.{handler}]\ntype = \"file\"\nfsync = \"never\"\npath = {path:?}\ninitial = \"send\"\n\
             on = [\"added\", \"updated\", \"deleted\", \"removed\", \"synced\"]\n\
             retry = {{ initial = \"10ms\", max = \"100ms\" }}\n"
        );
        text += &section;
    }
    Config::from_toml_str(&text).unwrap_or_else(|errors| panic!("{errors}"))
}
