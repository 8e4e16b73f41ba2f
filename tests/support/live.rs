//! An engine in this process, a simulated cluster that changes only on demand, and a handler that records all its
//! events.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Context, Handler};
use deltabus::internals::{
    change::Change,
    config::{Config, EventType, HandlerOptions, Initial},
    engine::{Engine, EngineBuilder, RunningEngine, StopReport},
    list_watch::kube::ClusterAccess,
    notification::{Notification, Stopped},
    simulator::{RequestKind, SeenRequest, Simulator, SimulatorOptions},
    status::UnitView,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Timeout of all waits.
const PATIENCE: Duration = Duration::from_mins(1);

/// Descriptions of events: `added initial configmaps/a/x`.
pub(crate) type Said = Arc<Mutex<Vec<String>>>;

/// A handler that records its events.
pub(crate) struct Notes(pub(crate) Said);

impl Actor for Notes {
    type Context = Context<Self>;
}

impl Handler<Notification> for Notes {
    type Result = Result<(), Stopped>;

    fn handle(&mut self, notification: Notification, _ctx: &mut Self::Context) -> Self::Result {
        self.0.lock().expect("not poisoned").extend(say(&notification));
        Ok(())
    }
}

/// Returns the description of each event.
pub(crate) fn say(notification: &Notification) -> Vec<String> {
    let events = notification.events().iter().map(|event| {
        let plural = &event.unit.resource.plural;
        let (kind, cause) = match &event.record.change {
            Change::Added { cause, .. } => ("added", Some(cause)),
            Change::Updated { cause, .. } => ("updated", Some(cause)),
            Change::Deleted { tombstone: true, cause, .. } => ("tombstone", Some(cause)),
            Change::Deleted { cause, .. } => ("deleted", Some(cause)),
            Change::Removed { cause, .. } => ("removed", Some(cause)),
            Change::Unchanged { cause, .. } => ("unchanged", Some(cause)),
            Change::Refreshed { .. } => ("refreshed", None),
            Change::Synced { objects, .. } => return format!("synced {plural} {objects}"),
            other => panic!("unknown change {other:?}"),
        };
        let cause = cause.map(|cause| format!("{cause:?}").to_lowercase()).unwrap_or_default();
        let key = event.record.object().map(|object| object.key().to_string()).unwrap_or_default();
        format!("{kind} {cause} {plural}/{key}")
    });
    events.collect()
}

/// Returns options of a handler that gets all events.
pub(crate) fn everything() -> HandlerOptions {
    let on = vec![EventType::Added, EventType::Updated, EventType::Deleted, EventType::Removed, EventType::Synced];
    HandlerOptions { on, initial: Initial::Send, ..HandlerOptions::default() }
}

/// Returns options of a handler that skips existing objects.
pub(crate) fn skipping() -> HandlerOptions {
    HandlerOptions { initial: Initial::Skip, ..everything() }
}

/// Starts a cluster with namespaces `a`, `b` and `c` of teams `x`, `y` and `x`, and a config map and a secret in each.
pub(crate) fn cluster() -> Simulator {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a free port");
    for (name, team) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let namespace = json!({"metadata": {"name": name, "labels": {"team": team}}});
        simulator.store().put("namespaces", namespace).expect("a valid object");
        put(&simulator, "configmaps", name, "one", json!({"labels": {"app": name}}));
        put(&simulator, "serviceaccounts", name, "bot", json!({}));
    }
    simulator
}

/// Creates or updates an object; `metadata` is merged into its own.
pub(crate) fn put(simulator: &Simulator, resource: &str, namespace: &str, name: &str, metadata: Value) {
    let version = simulator.store().version().to_string();
    let mut object = json!({"metadata": null, "data": {"version": version}});
    object["metadata"] = metadata;
    object["metadata"]["name"] = name.into();
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    simulator.store().put(resource, object).expect("a valid object");
}

/// The engine, its cluster and the recorded events.
pub(crate) struct Live {
    pub(crate) engine: RunningEngine,
    pub(crate) simulator: Simulator,
    pub(crate) said: Said,
    pub(crate) dir: TempDir,
}

impl Live {
    /// Starts an engine on [`cluster`], with a handler that gets all events, and waits until it is synced.
    pub(crate) async fn start(config: &str) -> Self {
        Self::start_over(cluster(), |builder| builder.config(parse(config))).await
    }

    pub(crate) async fn start_over(simulator: Simulator, build: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Self {
        let said = Said::default();
        let access = ClusterAccess::without_credentials(&simulator.url(), "test").expect("a URL");
        let notes = Notes(Arc::clone(&said)).start().recipient();
        let builder = build(Engine::builder()).cluster(access).handler("notes", everything(), notes);
        let engine = builder.start().await.expect("it starts");
        let live = Self { engine, simulator, said, dir: tempfile::tempdir().expect("a temporary directory") };
        live.synced().await;
        live
    }

    /// Applies a configuration to the running engine.
    pub(crate) fn apply(&self, config: &str) {
        self.engine.apply(parse(config)).expect("it is right");
    }

    /// Waits until all watched types are synced and no more events arrive. Returns the events since the last call, sorted,
    /// because the order across units depends on the network.
    pub(crate) async fn settled(&self) -> Vec<String> {
        self.synced().await;
        let mut len = usize::MAX;
        while len != self.said.lock().expect("not poisoned").len() {
            len = self.said.lock().expect("not poisoned").len();
            sleep(Duration::from_millis(700)).await;
            self.synced().await;
            let idle = |live: &Self| live.engine.handlers().iter().all(|handler| handler.queued == 0);
            self.wait_for("idle", idle).await;
        }
        let mut said = std::mem::take(&mut *self.said.lock().expect("not poisoned"));
        said.sort();
        said
    }

    /// Waits for `count` events, then as [`Live::settled`]: no other sign shows that a watch has delivered them.
    pub(crate) async fn settled_with(&self, count: usize) -> Vec<String> {
        let heard = |live: &Self| live.said.lock().expect("not poisoned").len() >= count;
        self.wait_for(&format!("{count} said"), heard).await;
        self.settled().await
    }

    /// Waits also for a restart of the conductor; see [`Live::settled_with`].
    pub(crate) async fn settled_after_panic(&self, count: usize) -> Vec<String> {
        sleep(Duration::from_millis(1_500)).await;
        self.settled_with(count).await
    }

    async fn synced(&self) {
        let entries = self.engine.wait_for_sync_within(PATIENCE).await;
        assert!(entries.values().all(|synced| *synced), "{entries:?} {:#?}", self.engine.registry().views());
    }

    /// Waits until a condition holds.
    pub(crate) async fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            let views = self.engine.registry().views();
            assert!(Instant::now() < deadline, "never {what}: {:?}\n{views:#?}", self.said);
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for an event.
    pub(crate) async fn hears(&self, what: &str) {
        self.wait_for(what, |live| live.said.lock().expect("not poisoned").iter().any(|said| said == what)).await;
    }

    /// Returns the rows of a type.
    pub(crate) fn rows(&self, plural: &str) -> Vec<UnitView> {
        self.engine.registry().views().into_iter().filter(|view| view.plural == plural).collect()
    }

    /// Returns the namespaces in which a type is watched; `*` stands for all.
    pub(crate) fn watched(&self, plural: &str) -> Vec<String> {
        let units = self.engine.registry().informers().into_iter().filter(|unit| unit.resource.plural == plural);
        let namespace = |namespace: Option<String>| namespace.unwrap_or_else(|| "*".to_owned());
        let mut watched: Vec<String> = units.map(|unit| namespace(unit.options.scope.namespace.clone())).collect();
        watched.sort();
        watched
    }

    /// Returns the cached objects of a type, sorted; empty if it is not watched.
    pub(crate) fn cached(&self, qualified_name: &str) -> Vec<String> {
        let objects =
            self.engine.lister(qualified_name).map(|lister| lister.list(&deltabus::internals::lister::Selector::all()));
        let mut keys: Vec<_> = objects.unwrap_or_default().iter().map(|object| object.key().to_string()).collect();
        keys.sort();
        keys
    }

    /// Returns the number of lists of a collection, including streaming lists.
    pub(crate) fn lists(&self, path: &str) -> usize {
        let is_list = |request: &&SeenRequest| {
            let streams = request.query.iter().any(|(key, value)| key == "sendInitialEvents" && value == "true");
            request.path == path && (request.verb == RequestKind::List || streams)
        };
        self.simulator.requests().iter().filter(is_list).count()
    }

    pub(crate) async fn stop(self) -> StopReport {
        self.engine.stop().await
    }
}

/// Parses a configuration without HTTP, with fast retries.
pub(crate) fn parse(config: &str) -> Config {
    let mut config = Config::from_toml_str(config).unwrap_or_else(|errors| panic!("{errors}"));
    config.http.listen = None;
    config.kube.backoff.initial = Duration::from_millis(20);
    config.kube.backoff.max = Duration::from_millis(250);
    config
}

/// Returns a path below the scene's directory as text for a configuration.
pub(crate) fn text(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().expect("temporary paths are text").to_owned()
}
