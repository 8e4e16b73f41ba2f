//! The engine is killed repeatedly while clients write to a real API server. No change is lost, and repeated events have the
//! same id (E1, E4).
//!
//! The reference is a watch of the API server kept by another program ([`Observer`]).
//! `bash .ci/long crash` is the full length, 100 kills per sink; `DELTABUS_CRASHES` sets another number. Runs that lose
//! the unsynced tail use a fifth of it for webhook, NATS and Kafka. Kafka is included in builds with its feature.
#![expect(clippy::disallowed_methods, reason = "a crash comes by the clock")]

#[cfg(feature = "kafka")]
mod mirror;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
    observer::{Life, Observer},
    sink::{Sink, file::File, nats::Nats, webhook::Hook},
    stream::State,
    unsynced::Unsynced,
};
use serde_json::{Value, json};

/// Watched types, in kubectl's syntax.
const RESOURCES: [&str; 3] = ["pods", "configmaps", "widgets.test.deltabus.dev"];

/// Default number of kills: at least one while the history is compacted, and one before the engine is ready.
const CRASHES: usize = 3;

fn crashes() -> usize {
    let asked = std::env::var("DELTABUS_CRASHES").ok();
    asked.map_or(CRASHES, |asked| asked.parse().expect("DELTABUS_CRASHES is a number"))
}

fn config(kubeconfig: &Path, dir: &Path, handler: &str) -> String {
    format!(
        r#"
        shutdown_timeout = "30s"
        [cluster]
        name = "test"
        [kube]
        kubeconfig = "{kubeconfig}"
        backoff = {{ initial = "100ms", max = "1s" }}
        [resources.all]
        match = {RESOURCES:?}
        [state]
        dir = "{state}"
        [handlers.out]
        initial = "send"
        {handler}
        "#,
        kubeconfig = kubeconfig.display(),
        state = text(dir, "state"),
    )
}

/// A downtime of the engine.
#[derive(Clone, Debug)]
struct Downtime {
    compacted: bool,
    /// Version of each type in the state directory, as far as the next run has read them.
    restored: BTreeMap<String, u64>,
}

/// Returns the version of each type that an engine with this log has read from its state directory.
fn restored(log: &str) -> BTreeMap<String, u64> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let units = lines.filter(|line| line["message"] == "restored a unit");
    units
        .filter_map(|unit| Some((unit["resource"].as_str()?.into(), unit["version"].as_str()?.parse().ok()?)))
        .collect()
}

/// Returns true if no event can report the object: the state directory never had a version at which the object lived, and the
/// history was compacted between the last version before its creation and the first version after its deletion.
fn is_jumped_over(life: &Life, downtimes: &[Downtime]) -> bool {
    let kind = life.key.split('/').next().unwrap_or_default();
    let number = |version: Option<&String>| version.and_then(|version| version.parse::<u64>().ok());
    let (Some(born), Some(died)) = (number(life.versions.first()), number(life.versions.last())) else { return false };
    // A run that was killed before it had read a unit did not change it: the next run read the same version.
    let restored = |at: usize| downtimes[at..].iter().find_map(|down| down.restored.get(kind).copied());
    let places = 0..downtimes.len();
    let before = places.clone().filter_map(restored).filter(|version| *version < born).max();
    let Some(first) = before.and_then(|before| places.clone().find(|at| restored(*at) == Some(before))) else {
        return false;
    };
    let after = places.clone().find(|at| restored(*at).is_some_and(|version| version >= died)).unwrap_or(places.end);
    life.deleted
        && (first..after).any(|at| downtimes[at].compacted)
        && (first..after).all(|at| restored(at).is_none_or(|version| version < born))
}

/// Compacts the history up to the observer's position. Under load the observer's watches lag, and it must miss no change.
fn compact(cluster: &Cluster, observer: &Observer) {
    let metadata = json!({
        "name": "marker", "namespace": "churn-0", "annotations": { "written-at": jiff::Timestamp::now().to_string() },
    });
    let markers = [
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [{ "name": "main", "image": "x" }] } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }),
        json!({ "apiVersion": "test.deltabus.dev/v1", "kind": "Widget", "metadata": metadata }),
    ];
    cluster.compact_before(observer.catch_up(cluster, &markers));
}

/// Kills the engine repeatedly during a workload; returns the last running engine, and the downtimes.
fn crash_loop(
    cluster: &Cluster,
    observer: &Observer,
    dir: &Path,
    layer: Option<&Unsynced>,
    crashes: usize,
) -> (Engine, Vec<Downtime>) {
    let mut environment = layer.map(Unsynced::environment).unwrap_or_default();
    environment.push(("RUST_LOG", "info,deltabus::engine::conductor::restore=debug".into()));
    // Objects that die before the first list is delivered are never reported.
    let first = Engine::run_again(dir, &environment);
    first.wait_ready(Duration::from_mins(3));
    assert_eq!(first.terminate().code(), Some(0));
    layer.map(Unsynced::lose);
    let load = cluster.start_churn(&["--duration", &format!("{}s", crashes * 3), "--rate", "150", "--names", "300"]);
    let mut downtimes = Vec::<Downtime>::new();
    for crash in 0..crashes {
        let engine = Engine::run_again(dir, &environment);
        if crash % 3 != 2 {
            engine.wait_ready(Duration::from_mins(3));
        }
        sleep(Duration::from_millis(rand::random_range(0..1_500)));
        let restored = restored(&engine.kill());
        assert!(crash % 3 == 2 || restored.len() == RESOURCES.len(), "a ready engine has read its state: {restored:?}");
        if let Some(down) = downtimes.last_mut() {
            down.restored = restored;
        }
        let lost = layer.map(Unsynced::lose);
        let compacted = crash % 3 == 1;
        sleep(Duration::from_millis(rand::random_range(0..700)));
        if compacted {
            compact(cluster, observer);
        }
        downtimes.push(Downtime { compacted, restored: BTreeMap::new() });
        eprintln!("crash {crash}: bytes lost {lost:?}, history compacted {compacted}");
    }
    let engine = Engine::run_again(dir, &environment);
    engine.wait_ready(Duration::from_mins(3));
    if let Some(down) = downtimes.last_mut() {
        down.restored = restored(&engine.log());
    }
    eprintln!("workload: {}", load.finish());
    (engine, downtimes)
}

/// Waits until the cache equals the server's lists and all events are delivered; then stops the engine.
fn settle_and_stop(engine: Engine, cluster: &Cluster) -> State {
    let dump = cluster.dump(&RESOURCES);
    let mut server = State::new();
    for resource in RESOURCES {
        for (key, object) in dump[resource]["items"].as_object().expect("a dump has items") {
            let field = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let key = if key.contains('/') { key.clone() } else { format!("/{key}") };
            server.insert(format!("{resource}/{key}"), (field("uid"), field("resourceVersion")));
        }
    }
    engine.wait_for("equal to the server", Duration::from_mins(5), || {
        engine.cached().is_ok_and(|cached| cached == server)
    });
    let is_delivered = |handler: &Value| handler["queued"] == 0 && handler["inFlight"] == 0;
    engine.wait_for("everything delivered", Duration::from_mins(5), || {
        engine.json("/v1/handlers")["handlers"].as_array().expect("a list").iter().all(is_delivered)
    });
    assert_eq!(engine.terminate().code(), Some(0), "a stop that was asked for is success");
    server
}

/// Events that arrived at a sink, by uid, in order of first arrival.
#[derive(Debug, Default)]
struct Arrived {
    by_uid: HashMap<String, Vec<(String, String)>>,
    ids: BTreeMap<String, (String, String, String)>,
    duplicates: usize,
}

impl Arrived {
    fn of(events: impl Iterator<Item = Value>) -> Self {
        let mut arrived = Self::default();
        for event in events {
            arrived.push(&event);
        }
        arrived
    }

    fn push(&mut self, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type").strip_prefix("dev.deltabus.resource.").unwrap_or_default().to_owned();
        if kind == "synced" {
            return;
        }
        let (uid, version) = (text("uid"), text("resourceversion"));
        // ids of added and updated have the same form, because a crash may turn one into the other
        let is_gone = kind == "deleted";
        let what = (uid.clone(), if is_gone { String::new() } else { version.clone() }, is_gone.to_string());
        match self.ids.insert(text("id"), what.clone()) {
            Some(before) => {
                assert_eq!(before, what, "one id stands for one change: {event}");
                self.duplicates += 1;
            }
            None => self.by_uid.entry(uid).or_default().push((kind, version)),
        }
    }

    /// Compares the arrived events with the actual changes.
    fn check(&self, lives: &BTreeMap<String, Life>, server: &State, downtimes: &[Downtime]) {
        let mut unseen = 0;
        for (uid, life) in lives {
            let Some(events) = self.by_uid.get(uid) else {
                let count = self.by_uid.len();
                assert!(
                    is_jumped_over(life, downtimes),
                    "E1: nothing of {uid} arrived, of {count} others: {life:?}, {downtimes:?}"
                );
                unseen += 1;
                continue;
            };
            let (kind, version) = events.last().expect("there is one");
            if life.deleted {
                assert_eq!(kind, "deleted", "E1: the end of {uid} never arrived: {life:?}, {events:?}");
            } else {
                assert_ne!(kind, "deleted", "E1: {uid} lives: {life:?}, {events:?}");
                assert_eq!(Some(version), life.versions.last(), "E1: the last state of {uid}: {life:?}, {events:?}");
            }
            let first = &events[0].0;
            assert!(first == "added", "E2: {uid} begins with {first}: {events:?}");
            for pair in events.windows(2) {
                assert_ne!(pair[0].0, "deleted", "E2: {uid} goes on after its end: {events:?}");
            }
        }
        for uid in self.by_uid.keys() {
            assert!(lives.contains_key(uid), "{uid} arrived and never was");
        }
        assert_eq!(server.len(), lives.values().filter(|life| !life.deleted).count());
        let events: usize = self.by_uid.values().map(Vec::len).sum();
        eprintln!("{events} events of {} objects, {} duplicates, {unseen} unseen", lives.len(), self.duplicates);
        assert!(events > 100 * downtimes.len() / 2, "there was something to lose");
    }
}

/// Kills the engine repeatedly while it delivers to a sink, and compares the arrived events with the actual changes.
/// If `loses_unsynced`, each kill also loses all unsynced writes. Returns the sink and the final state of the server;
/// `None` if the test is skipped.
fn crash<S: Sink>(
    name: &str,
    crashes: usize,
    loses_unsynced: bool,
    sink: impl FnOnce(&Path) -> Option<S>,
) -> Option<(S, State)> {
    // Without its watch cache, the API server cannot serve versions that etcd has compacted.
    let cluster = Cluster::start_or_skip(name, &["--watch-cache=false"])?;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let sink = sink(dir.path())?;
    cluster.churn(&["--setup", "--ops", "200", "--seed", "5"]);
    let state = dir.path().join("state");
    fs::create_dir(&state).expect("the directory is writable");
    Engine::configure(dir.path(), &config(cluster.kubeconfig(), dir.path(), &sink.handler()));
    let layer = loses_unsynced.then(|| Unsynced::over(&state, dir.path()));
    let observer = Observer::start(&cluster, &RESOURCES);
    let began = Instant::now();
    let (engine, downtimes) = crash_loop(&cluster, &observer, dir.path(), layer.as_ref(), crashes);
    let server = settle_and_stop(engine, &cluster);
    let lives = observer.finish();
    eprintln!("took {:?}", began.elapsed());
    let arrived = Arrived::of(sink.arrived().into_iter());
    assert!(arrived.duplicates == 0 || !sink.stores_once(), "the stream stored none twice");
    arrived.check(&lives, &server, &downtimes);
    Some((sink, server))
}

/// Returns the number of kills with loss of unsynced writes, if the sink is a separate server.
fn fewer() -> usize {
    (crashes() / 5).max(2)
}

#[expect(clippy::unnecessary_wraps, reason = "another one may not be there")]
fn file(dir: &Path) -> Option<File> {
    Some(File::new(dir))
}

#[expect(clippy::unnecessary_wraps, reason = "another one may not be there")]
fn webhook(_: &Path) -> Option<Hook> {
    Some(Hook::start())
}

fn nats(name: &str) -> impl FnOnce(&Path) -> Option<Nats> {
    move |_| Nats::start_or_skip(name)
}

#[cfg(feature = "kafka")]
fn crash_before_a_mirror(name: &str, crashes: usize, loses_unsynced: bool) {
    if let Some((mirror, server)) = crash(name, crashes, loses_unsynced, mirror::Mirror::start_or_skip(name)) {
        mirror.assert_equals(&server);
    }
}

#[test]
fn only_lives_within_lost_history_are_undetectable() {
    let down = |compacted, version: Option<u64>| {
        let restored = version.map(|version| ("pods".to_owned(), version)).into_iter().collect();
        Downtime { compacted, restored }
    };
    let life = |versions: [u64; 2], deleted| {
        let versions = versions.map(|version| version.to_string()).into();
        Life { key: "pods/a/x".to_owned(), versions, deleted }
    };
    // the third run was killed before it had read its state
    let runs =
        [down(false, Some(8)), down(true, Some(8)), down(false, None), down(false, Some(8)), down(false, Some(20))];
    assert!(is_jumped_over(&life([10, 19], true), &runs));
    for (versions, deleted, why) in [
        ([10, 19], false, "it lives"),
        ([10, 21], true, "the last state has it"),
        ([7, 19], true, "the first state has it"),
    ] {
        assert!(!is_jumped_over(&life(versions, deleted), &runs), "{why}");
    }
    let life = life([10, 19], true);
    let resumed = runs.map(|down| Downtime { compacted: false, ..down });
    assert!(!is_jumped_over(&life, &resumed), "a watch tells of it");
    let (eight, twenty) = (|| down(false, Some(8)), || down(false, Some(20)));
    assert!(!is_jumped_over(&life, &[eight(), down(true, Some(12)), twenty()]), "a state between has it");
    assert!(!is_jumped_over(&life, &[eight(), down(true, None), twenty()]), "compacted after its end was stored");
    assert!(!is_jumped_over(&life, &[down(true, Some(6)), eight(), twenty()]), "compacted before its creation");
    assert!(is_jumped_over(&life, &[down(false, Some(6)), down(true, None), eight(), twenty()]));
}

#[test]
fn random_kills_lose_nothing_with_file() {
    crash("killed_file", crashes(), false, file);
}

#[test]
fn random_kills_lose_nothing_with_webhook() {
    crash("killed_webhook", crashes(), false, webhook);
}

#[test]
fn random_kills_store_everything_once_with_nats() {
    crash("killed_nats", crashes(), false, nats("killed_nats"));
}

#[cfg(feature = "kafka")]
#[test]
fn random_kills_keep_kafka_topic_equal_to_cluster() {
    crash_before_a_mirror("killed_kafka", crashes(), false);
}

#[test]
fn lost_unsynced_tail_loses_nothing_with_file() {
    crash("unsynced_file", crashes(), true, file);
}

#[test]
fn lost_unsynced_tail_loses_nothing_with_webhook() {
    crash("unsynced_webhook", fewer(), true, webhook);
}

#[test]
fn lost_unsynced_tail_stores_everything_once_with_nats() {
    crash("unsynced_nats", fewer(), true, nats("unsynced_nats"));
}

#[cfg(feature = "kafka")]
#[test]
fn lost_unsynced_tail_keeps_kafka_equal_to_cluster() {
    crash_before_a_mirror("unsynced_kafka", fewer(), true);
}
