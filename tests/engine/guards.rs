//! Protection of a cache against wrong server answers: lists that would delete most objects, lagging replicas, and a
//! restored etcd. Units with a saved cache and `deltabus run` against the simulator; also a real restored etcd.

use std::{fs, path::Path, rc::Rc, sync::Arc, time::Duration};

use crate::support::{
    cluster::Cluster,
    scripted::{PATIENCE, Scene},
};
use actix::System;
use deltabus::internals::{
    backoff::BackoffConfig,
    change::Change,
    delta_fifo::QueueOrder,
    indexer::{IndexerOptions, siblings::Siblings, store::Meta},
    informer::{Actors, Informer, InformerOptions, Seed, Shared, SourceFactory},
    journal::{Bounds, ChangeSet, Interest, Journal, ReaderId, ReaderOptions, UnitId, UnitInterest},
    list_watch::{
        ListWatch,
        kube::{ClusterAccess, KubeListWatch, KubeOptions, Limits, Scope},
        scoped::Gate,
    },
    object::{ResourceType, scan::ScanPlan},
    reflector::{ReflectorConfig, StreamingLists},
    simulator::{RequestKind, ServerFault, Simulator, SimulatorOptions, StreamFault, Times},
    supervisor::{Supervision, arbiters::Arbiters},
};
use serde_json::json;
use tokio::sync::Semaphore;

const PATH: &str = "/api/v1/configmaps";

struct Sources(ClusterAccess);

impl SourceFactory for Sources {
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String> {
        let client = self.0.client();
        let (resource, options) = (Arc::clone(&informer.resource), &informer.options);
        let (scope, plan) = (options.scope.clone(), options.plan.clone());
        Ok(Rc::new(KubeListWatch::new(client, resource, scope, plan, Limits::default())))
    }
}

/// Successive units of config maps, as over several process starts; the journal and its one reader remain.
struct Bench {
    simulator: Simulator,
    shared: Shared,
    reader: ReaderId,
    streaming: StreamingLists,
}

impl Bench {
    fn new(streaming: StreamingLists) -> Self {
        let options = SimulatorOptions { fresh_timeout: Duration::from_millis(100), ..SimulatorOptions::default() };
        let simulator = Simulator::start(options).expect("a loopback port is free");
        for number in 0..150 {
            put(&simulator, &format!("n{number:03}"), "0");
        }
        let access = ClusterAccess::without_credentials(&simulator.url(), "test").expect("a valid address");
        let (shared, reader) = shared(access);
        Self { simulator, shared, reader, streaming }
    }

    fn unit(&self, seed: Option<Seed>) -> Informer {
        unit(self.streaming, seed)
    }

    async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        until(&format!("{what}; asked: {:?}", self.asked()), condition).await;
    }

    /// Starts the actors of a unit and waits until a watch is open.
    async fn watch(&self, unit: &Informer, epoch: u64) -> Actors {
        let actors = unit.launch(epoch, &self.shared).expect("a unit that does not run");
        self.until("watching", || self.simulator.open_watches() == 1).await;
        actors
    }

    /// Stops the actors as a crash does: queued events are lost.
    async fn end(&self, actors: Actors) {
        end(actors).await;
        self.until("closed", || self.simulator.open_watches() == 0).await;
    }

    /// Runs a unit until it is synced and equal to the server; returns the state that a process would save.
    async fn saved(&self) -> Seed {
        let unit = self.unit(None);
        let actors = self.watch(&unit, 1).await;
        self.until("equal", || self.is_equal(&unit)).await;
        self.end(actors).await;
        self.said();
        self.simulator.clear_requests();
        let Meta { store_version, resume_version, .. } = unit.meta();
        Seed::Resume { objects: unit.objects(), store_version, resume_version, saved: true }
    }

    fn is_equal(&self, unit: &Informer) -> bool {
        let mut cached: Vec<_> =
            unit.objects().iter().map(|o| (o.name().to_owned(), o.resource_version().to_owned())).collect();
        cached.sort();
        let server = self.simulator.store().list("configmaps");
        let text =
            |object: &serde_json::Value, field: &str| object["metadata"][field].as_str().expect("it is set").to_owned();
        let server = server.iter().map(|object| object.value());
        cached == server.map(|object| (text(&object, "name"), text(&object, "resourceVersion"))).collect::<Vec<_>>()
    }

    fn said(&self) -> Vec<String> {
        said(&self.shared, self.reader)
    }

    /// Returns the requests: lists as `list 0 of 500` or `list newest of 1`, watches as `watch 7` or `stream newest`.
    fn asked(&self) -> Vec<String> {
        let requests = self.simulator.requests();
        let ours = requests.iter().filter(|request| request.path == PATH && !request.query.contains_key("continue"));
        ours.map(|request| {
            let param = |name: &str| request.query.get(name).map(String::as_str);
            let version = param("resourceVersion").unwrap_or("newest");
            match (request.verb, param("sendInitialEvents")) {
                (RequestKind::Watch, None) => format!("watch {version}"),
                (RequestKind::Watch, Some(_)) => format!("stream {version}"),
                _ => format!("list {version} of {}", param("limit").unwrap_or("all")),
            }
        })
        .collect()
    }

    /// Adds a fault for the n-th request from now.
    fn fault(&self, verb: RequestKind, skip: u32, fault: ServerFault) {
        self.simulator.faults().add(PATH, verb, Times::After { skip, n: 1 }, fault).expect("a valid glob");
    }

    /// Adds a fault for the first complete list of a unit whose first watch is refused.
    fn strike_list(&self, fault: ServerFault) {
        match self.streaming {
            StreamingLists::Never => self.fault(RequestKind::List, 1, fault), // after the check of the version
            _ => self.fault(RequestKind::Watch, 1, fault),
        }
    }

    /// Returns the expected request of a complete list.
    fn list(&self, version: &str) -> String {
        match (self.streaming, version) {
            (StreamingLists::Never, "newest") => "list newest of 500".to_owned(),
            (StreamingLists::Never, version) => format!("list {version} of all"),
            (_, version) => format!("stream {version}"),
        }
    }
}

/// Returns the shared state of units of this server, and a reader of all their events.
fn shared(access: ClusterAccess) -> (Shared, ReaderId) {
    let journal = Journal::in_memory();
    let units = [(UnitId(0), UnitInterest { attaches: false, resync_every: 1 })].into();
    let bounds = Bounds { max_events: 1 << 20, ..Bounds::default() };
    let interest = Interest { units, changes: ChangeSet::ALL, filter: None };
    let reader = journal.open_reader(ReaderOptions { bounds, interest, name: None }).expect("a journal has room");
    let list_permits = Arc::new(Semaphore::new(4));
    let sources = Arc::new(Sources(access));
    let arbiters = Arc::new(Arbiters::new(1));
    let supervision = Supervision::default();
    let shared = Shared { journal, sources, list_permits, timings: Arc::default(), arbiters, supervision };
    (shared, reader)
}

fn unit(streaming_lists: StreamingLists, seed: Option<Seed>) -> Informer {
    let short = Duration::from_millis(5);
    let backoff = BackoffConfig { initial: short, factor: 1.0, jitter: 0.0, max: short, ..BackoffConfig::default() };
    let options = InformerOptions {
        reflector: ReflectorConfig { backoff, streaming_lists, ..ReflectorConfig::default() },
        scope: Scope::default(),
        gate: Gate::default(),
        plan: ScanPlan::default(),
        order: QueueOrder::Stream,
        fifo_max_bytes: 1 << 20,
        indexer: IndexerOptions::default(),
        indexers: Vec::new(),
        warnings: Vec::new(),
    };
    let resource = ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
    };
    Informer::new(UnitId(0), "things", Arc::new(resource), options, Arc::<Siblings>::default(), seed)
}

/// Stops the actors of a unit after applying queued events.
async fn end(actors: Actors) {
    actors.reflector.send(deltabus::internals::reflector::messages::Stop).await.expect("it runs");
    actors.fifo.send(deltabus::internals::delta_fifo::messages::Drain).await.expect("it runs");
    let [reflector, fifo, indexer] = actors.exits;
    reflector.await.expect("no panic");
    fifo.await.expect("no panic");
    actors.indexer.send(deltabus::internals::indexer::actor::Terminate).await.expect("it runs");
    indexer.await.expect("no panic");
}

/// Returns the journal's records since the last call, sorted: `deleted n001 Downtime`.
fn said(shared: &Shared, reader: ReaderId) -> Vec<String> {
    let records = shared.journal.read(reader, usize::MAX, usize::MAX);
    if let Some(last) = records.last() {
        shared.journal.ack(reader, last.sequence);
    }
    let said = |change: &Change| match change {
        Change::Added { object, cause } => format!("added {} {cause:?}", object.name()),
        Change::Updated { object, cause, .. } => format!("updated {} {cause:?}", object.name()),
        Change::Deleted { object, cause, .. } => format!("deleted {} {cause:?}", object.name()),
        other => format!("{other:?}"),
    };
    let changes = records.iter().map(|record| &record.change);
    let mut said: Vec<_> = changes.filter(|change| !matches!(change, Change::Unchanged { .. })).map(said).collect();
    said.sort();
    said
}

fn put(simulator: &Simulator, name: &str, value: &str) {
    let object = json!({"metadata": {"namespace": "default", "name": name}, "data": {"value": value}});
    simulator.store().put("configmaps", object).expect("a valid object");
}

fn delete(simulator: &Simulator, name: &str) {
    simulator.store().delete("configmaps", "default", name).expect("the object exists");
}

fn version(seed: &Seed) -> String {
    let Seed::Resume { resume_version, saved: true, .. } = seed else { panic!("it was saved") };
    resume_version.to_string()
}

/// Runs a scene with paged lists, and with streaming lists.
fn play(scene: impl AsyncFn(Bench)) {
    for streaming in [StreamingLists::Never, StreamingLists::Auto] {
        System::new().block_on(scene(Bench::new(streaming)));
    }
}

#[test]
fn saved_cache_continues_with_watch_only() {
    play(async |bench| {
        let seed = bench.saved().await;
        let from = version(&seed);
        put(&bench.simulator, "n001", "1");
        let unit = bench.unit(Some(seed));
        assert!(unit.is_readable() && unit.meta().synced);
        let actors = bench.watch(&unit, 1).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.asked(), ["list newest of 1".to_owned(), format!("watch {from}")]);
        assert_eq!(bench.said(), ["updated n001 Watch"]);

        // the server was seen: a difference found by a list now happened while the process ran
        bench.simulator.go_down();
        bench.until("cut off", || bench.simulator.open_watches() == 0).await;
        delete(&bench.simulator, "n003");
        bench.simulator.store().compact();
        bench.simulator.come_up();
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["deleted n003 Relist"]);
        bench.end(actors).await;
    });
}

/// Rule: D-17.
#[test]
fn downtime_cause_survives_restart_before_list() {
    play(async |bench| {
        let seed = bench.saved().await;
        delete(&bench.simulator, "n002");
        put(&bench.simulator, "n001", "1");
        put(&bench.simulator, "new", "0");
        bench.simulator.store().compact();
        let unit = bench.unit(Some(seed));
        bench.strike_list(ServerFault::Stall);
        let actors = unit.launch(1, &bench.shared).expect("a unit that does not run");
        bench.until("listing", || bench.asked().len() == 3).await;
        bench.end(actors).await;
        assert!(matches!(unit.seed(), Seed::Resume { saved: true, .. }), "a unit that takes its place goes on so");
        let actors = bench.watch(&unit, 2).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["added new Downtime", "deleted n002 Downtime", "updated n001 Downtime"]);
        assert!(matches!(unit.seed(), Seed::Resume { saved: false, .. }));
        bench.end(actors).await;
    });
}

#[test]
fn empty_first_list_is_confirmed_before_deletion() {
    play(async |bench| {
        let seed = bench.saved().await;
        let from = version(&seed);
        delete(&bench.simulator, "n002");
        bench.simulator.store().compact();
        let unit = bench.unit(Some(seed));
        bench.strike_list(ServerFault::EmptyList);
        let actors = bench.watch(&unit, 1).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["deleted n002 Downtime"]);
        let watch = format!("watch {}", bench.simulator.store().version());
        let asked = ["list newest of 1", &format!("watch {from}"), &bench.list(&from), "list newest of 500", &watch];
        bench.until("watching again", || bench.asked().len() == asked.len()).await;
        assert_eq!(bench.asked(), asked);
        assert_eq!(unit.status.view().confirmations, 1);
        bench.end(actors).await;
    });
}

#[test]
fn real_mass_deletion_is_confirmed_and_delivered() {
    play(async |bench| {
        let seed = bench.saved().await;
        (0..120).for_each(|number| delete(&bench.simulator, &format!("n{number:03}")));
        bench.simulator.store().compact();
        let unit = bench.unit(Some(seed));
        let actors = bench.watch(&unit, 1).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        let said = bench.said();
        assert!(said.len() == 120 && said.iter().all(|said| said.ends_with(" Downtime")), "{said:?}");
        bench.until("watching again", || bench.asked().len() == 5).await;
        assert_eq!(unit.status.view().confirmations, 1);
        bench.end(actors).await;
    });
}

/// Rule: D-5.
#[test]
fn restored_server_is_noticed_before_watch() {
    play(async |bench| {
        let backup = bench.simulator.store().backup();
        put(&bench.simulator, "n001", "1");
        put(&bench.simulator, "late", "0");
        delete(&bench.simulator, "n002");
        let seed = bench.saved().await;
        bench.simulator.store().restore(&backup);
        let unit = bench.unit(Some(seed));
        let actors = bench.watch(&unit, 1).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["added n002 Downtime", "deleted late Downtime", "updated n001 Downtime"]);
        let asked = bench.asked();
        assert_eq!(asked[..2], ["list newest of 1".to_owned(), bench.list("newest")], "{asked:?}");
        put(&bench.simulator, "n003", "1");
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["updated n003 Watch"]);
        bench.end(actors).await;
    });
}

/// Rule: D-5.
#[test]
fn lagging_replica_deletes_nothing_from_saved_cache() {
    play(async |bench| {
        let seed = bench.saved().await;
        let from = version(&seed);
        put(&bench.simulator, "new", "0");
        let unit = bench.unit(Some(seed));
        bench.fault(RequestKind::Watch, 0, ServerFault::At { events: 0, what: StreamFault::Error(410) });
        bench.strike_list(ServerFault::Lag(10));
        let actors = bench.watch(&unit, 1).await;
        bench.until("equal", || bench.is_equal(&unit)).await;
        assert_eq!(bench.said(), ["added new Downtime"], "although the list lacked the last nine objects");
        let asked = bench.asked();
        assert_eq!(asked[2..4], [bench.list(&from), bench.list("newest").replace("of 500", "of all")], "{asked:?}");
        bench.end(actors).await;
    });
}

/// Rules: D-5, D-16.
#[test]
fn restored_etcd_is_noticed_before_watch() {
    let Some(mut cluster) = Cluster::start_or_skip("restored_etcd_is_noticed_before_watch", &[]) else { return };
    let put = |cluster: &Cluster, name: &str, value: &str| {
        let metadata = json!({"namespace": "default", "name": name});
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}));
    };
    let path = "/api/v1/namespaces/default/configmaps";
    put(&cluster, "changed", "0");
    put(&cluster, "deleted", "0");
    cluster.stop();
    let (etcd, backup) = (cluster.data_dir().join("etcd"), cluster.data_dir().join("backup"));
    copy(&etcd, &backup);
    cluster.start_again();
    put(&cluster, "changed", "1");
    put(&cluster, "late", "0");
    cluster.delete(&format!("{path}/deleted"));
    // the server's own writes at its start must not exceed the saved version
    let fillers = (0..300).map(|value| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: filler, namespace: default}}\ndata: {{value: \"{value}\"}}\n")
    });
    cluster.apply_yaml(&fillers.collect::<Vec<_>>().join("---\n"));

    System::new().block_on(async {
        let kubeconfig = cluster.kubeconfig().to_str().expect("paths of tests are UTF-8").to_owned();
        let options = KubeOptions { kubeconfig, context: String::new() };
        let (shared, reader) = shared(ClusterAccess::load(&options).expect("a valid kubeconfig"));
        let first = unit(StreamingLists::Auto, None);
        let actors = first.launch(1, &shared).expect("a unit that does not run");
        until("synced", || first.meta().synced).await;
        end(actors).await;
        said(&shared, reader);
        let Meta { store_version, resume_version, .. } = first.meta();
        let future = resume_version.clone();
        let seed = Seed::Resume { objects: first.objects(), store_version, resume_version, saved: true };

        cluster.stop();
        fs::remove_dir_all(&etcd).expect("it is there");
        fs::rename(&backup, &etcd).expect("in the same directory");
        cluster.start_again();
        let watch = format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={future}");
        put(&cluster, "unseen", "0");
        let (status, body) = cluster.request("GET", &watch, None);
        assert_eq!((status, body.as_str()), (200, Some("")), "such a watch is opened and says nothing: {body}");

        let second = unit(StreamingLists::Auto, Some(seed));
        let actors = second.launch(1, &shared).expect("a unit that does not run");
        until("compared", || second.status.view().resource_version != future.as_str()).await;
        let said: Vec<_> = said(&shared, reader)
            .into_iter()
            .filter(|said| !said.contains("kube-") && !said.contains(" filler "))
            .collect();
        let expected = ["added deleted Downtime", "added unseen Downtime", "deleted late Downtime"];
        assert_eq!(said[..3], expected, "{said:?}");
        assert!(said.contains(&"updated changed Downtime".to_owned()), "{said:?}");
        assert!(said.iter().all(|said| said.ends_with(" Downtime")), "{said:?}");
        end(actors).await;
    });
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a writable directory");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it is readable");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file that nobody writes");
        }
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            actix_rt::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(actix_rt::time::timeout(PATIENCE, holds).await.is_ok(), "never {what}");
}

/// Loses the history of a running engine with 153 objects.
fn lose_history(scene: &mut Scene, meanwhile: impl Fn(&Scene)) {
    (0..150).for_each(|number| scene.put(&format!("n{number:03}"), "0"));
    scene.run_lists("");
    scene.settle();
    scene.simulator.go_down();
    scene.engine().wait_for("cut off", PATIENCE, || scene.simulator.open_watches() == 0);
    meanwhile(scene);
    scene.simulator.store().compact();
    scene.simulator.come_up();
}

#[test]
fn empty_list_deletes_nothing_during_confirmation() {
    let mut scene = Scene::lists();
    lose_history(&mut scene, |scene| {
        scene.fault(RequestKind::List, Times::Next(1), ServerFault::EmptyList);
        scene.fault(RequestKind::List, Times::After { skip: 1, n: 1 }, ServerFault::Delay(Duration::from_secs(8)));
    });
    scene.engine().wait_for("confirming", PATIENCE, || {
        scene.view()["message"] == "confirming a list that lacks 153 of 153 objects"
    });
    assert_eq!((scene.view()["state"].as_str(), scene.cached().len()), (Some("listing"), 153), "it stays readable");
    scene.settle();
    assert_eq!((&scene.view()["confirmations"], &scene.view()["message"]), (&json!(1), &json!(null)));
    let (_, metrics) = scene.engine().get("/metrics").expect("it answers");
    let line = metrics.lines().find(|line| line.starts_with("deltabus_list_confirmations_total{"));
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{line:?}");
    let ending = scene.finish();
    assert!(!ending.replay.counts.keys().any(|(kind, _)| kind == "deleted"), "{:?}", ending.replay.counts);
}

/// Rule: D-15.
#[test]
fn deletions_in_lost_history_arrive_after_confirmation() {
    let mut scene = Scene::lists();
    lose_history(&mut scene, |scene| (0..150).for_each(|number| scene.delete(&format!("n{number:03}"))));
    scene.settle();
    let lists: Vec<_> = scene.asked().into_iter().filter(|asked| asked.starts_with("list")).skip(1).collect();
    assert!(lists.len() == 2 && lists[1] == "list limit=500", "{lists:?}");
    let ending = scene.finish();
    assert_eq!(ending.story("n149"), ["added initial", "deleted relist"]);
    assert!(ending.is_tombstone("n149"));
}
