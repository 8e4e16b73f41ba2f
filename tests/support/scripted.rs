//! `deltabus run` with the simulator and a file handler. A test runs a scene; its end compares the file with
//! the simulator's objects, and every event with `docs/formats.md`.

use std::{fs, path::PathBuf, time::Duration};

use deltabus::internals::simulator::{
    RequestKind, ServerFault, Simulator, SimulatorOptions, StreamFault, StreamingSupport, Times,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    engine::{Engine, text},
    stream::{Replay, State, check_events, read_events, replay_events},
};

/// Timeout for a busy machine; a successful scene never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The collection of all scenes.
const PATH: &str = "/api/v1/configmaps";

/// One engine, one simulator, and the initial objects `a`, `b` and `c`.
pub(crate) struct Scene {
    pub(crate) simulator: Simulator,
    pub(crate) engine: Option<Engine>,
    pub(crate) dir: TempDir,
}

/// Delivered events.
pub(crate) struct Ending {
    pub(crate) replay: Replay,
    pub(crate) events: Vec<Value>,
}

impl Scene {
    /// Starts a simulator without streaming lists, with default history and bookmarks.
    pub(crate) fn lists() -> Self {
        Self::new(SimulatorOptions { streaming_lists: StreamingSupport::Refused, ..SimulatorOptions::default() })
    }

    /// Starts a simulator.
    pub(crate) fn new(options: SimulatorOptions) -> Self {
        let scene = Self {
            simulator: Simulator::start(options).expect("a loopback port is free"),
            engine: None,
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        for name in ["a", "b", "c"] {
            scene.put(name, "0");
        }
        scene
    }

    /// Runs the engine; `kube` and `resource` are further lines of `[kube]` and of the resource.
    pub(crate) fn run(&mut self, kube: &str, resource: &str) {
        self.run_in(&[], kube, resource);
    }

    /// Runs the engine with further environment variables; see [`Scene::run`].
    pub(crate) fn run_in(&mut self, environment: &[(&'static str, PathBuf)], kube: &str, resource: &str) {
        let kubeconfig = text(self.dir.path(), "kubeconfig");
        fs::write(&kubeconfig, self.simulator.kubeconfig()).expect("the directory is writable");
        let config = format!(
            r#"
            shutdown_timeout = "30s"
            [cluster]
            name = "test"
            [handlers.out]
            type = "file"
            path = "{out}"
            initial = "send"
            on = ["added", "updated", "deleted", "removed", "synced"]
            [kube]
            kubeconfig = "{kubeconfig}"
            {kube}
            [resources.things]
            match = ["configmaps"]
            {resource}
            "#,
            out = text(self.dir.path(), "out.jsonl"),
        );
        Engine::configure(self.dir.path(), &config);
        self.engine = Some(Engine::run_again(self.dir.path(), environment));
    }

    /// Runs the engine with paged lists, a fast backoff and further lines of the resource, until it is ready.
    pub(crate) fn run_lists(&mut self, resource: &str) {
        self.run(&format!("streaming_lists = \"never\"\n{FAST}"), resource);
        self.ready();
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine was started")
    }

    /// Waits until the engine is ready.
    pub(crate) fn ready(&self) {
        self.engine().wait_ready(PATIENCE);
    }

    /// Creates or updates an object.
    pub(crate) fn put(&self, name: &str, value: &str) {
        let object = json!({"metadata": {"namespace": "default", "name": name}, "data": {"value": value}});
        self.simulator.store().put("configmaps", object).expect("a valid object");
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, name: &str) {
        self.simulator.store().delete("configmaps", "default", name).expect("the object exists");
    }

    /// Adds a fault for requests of the collection.
    pub(crate) fn fault(&self, verb: RequestKind, times: Times, fault: ServerFault) {
        self.simulator.faults().add(PATH, verb, times, fault).expect("a valid glob");
    }

    /// Adds a fault for the next watch after this number of events.
    pub(crate) fn next_watch(&self, events: u64, what: StreamFault) {
        self.fault(RequestKind::Watch, Times::Next(1), ServerFault::At { events, what });
    }

    /// Returns the server's current version.
    pub(crate) fn version(&self) -> u64 {
        self.simulator.store().version()
    }

    /// Returns the requests for the collection, `list limit=500&resourceVersion=0`, without parameters that every watch has.
    pub(crate) fn asked(&self) -> Vec<String> {
        let requests = self.simulator.requests();
        let ours = requests.iter().filter(|request| request.path == PATH);
        ours.map(|request| {
            let verb = if request.verb == RequestKind::Watch { "watch" } else { "list" };
            let common = ["watch", "timeoutSeconds", "allowWatchBookmarks"];
            let told = request.query.iter().filter(|(key, _)| !common.contains(&key.as_str()));
            let told: Vec<_> = told.map(|(key, value)| format!("{key}={value}")).collect();
            format!("{verb} {}", told.join("&"))
        })
        .collect()
    }

    /// Returns the number of requests with this beginning.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        self.asked().iter().filter(|asked| asked.starts_with(beginning)).count()
    }

    /// Returns the row of `/v1/resources`.
    pub(crate) fn view(&self) -> Value {
        self.engine().json("/v1/resources")["resources"][0].clone()
    }

    /// Waits until the resource is in this state.
    pub(crate) fn wait_state(&self, state: &str) {
        self.engine().wait_for(state, PATIENCE, || self.view()["state"] == state);
    }

    /// Waits for this number of requests with this beginning.
    pub(crate) fn wait_asked(&self, beginning: &str, times: usize) {
        self.engine()
            .wait_for(&format!("asked {beginning:?} {times} times"), PATIENCE, || self.count(beginning) >= times);
    }

    /// Waits until the cache equals the server's state, and a watch is open.
    pub(crate) fn settle(&self) {
        let what = "equal to the server with one watch open";
        self.engine().wait_for(what, PATIENCE, || {
            self.cached() == self.server() && self.simulator.open_watches() == 1 && self.view()["state"] == "watching"
        });
    }

    /// Settles, stops the engine, and checks all guarantees of the delivered events.
    pub(crate) fn finish(&mut self) -> Ending {
        self.settle();
        let server = self.server();
        let status = self.engine.take().expect("the engine was started").terminate();
        assert_eq!(status.code(), Some(0), "a stop that was asked for is success");
        let events = read_events(&self.dir.path().join("out.jsonl"));
        check_events(&events, "test");
        let replay = replay_events(&events);
        assert_eq!(replay.state, server, "the stream replayed from empty, and the server");
        assert_eq!(replay.duplicates, 0, "nothing is sent twice without a restart");
        Ending { replay, events }
    }

    /// Returns the cached objects; empty if the engine does not answer.
    pub(crate) fn cached(&self) -> State {
        let Ok((200, body)) = self.engine().get(PATH) else { return State::new() };
        let list: Value = serde_json::from_str(&body).expect("a list is JSON");
        list["items"].as_array().expect("a list has items").iter().map(entry).collect()
    }

    /// Returns the server's objects.
    pub(crate) fn server(&self) -> State {
        self.simulator.store().list("configmaps").iter().map(|object| entry(&object.value())).collect()
    }
}

/// Lines of `[kube]` with a backoff short enough for tests.
pub(crate) const FAST: &str = "backoff = { initial = \"50ms\", max = \"200ms\" }";

impl Ending {
    /// Returns the events of one object, in order: `added initial`, `deleted relist` …
    pub(crate) fn story(&self, name: &str) -> Vec<String> {
        let ours = self.events.iter().filter(|event| event["name"] == name);
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        ours.map(|event| {
            let kind = text(event, "type").rsplit('.').next().unwrap_or_default().to_owned();
            format!("{kind} {}", text(event, "cause"))
        })
        .collect()
    }

    /// Returns true if the deletion of an object was a tombstone.
    pub(crate) fn is_tombstone(&self, name: &str) -> bool {
        let deleted = |event: &&Value| event["name"] == name && event["type"] == "dev.deltabus.resource.deleted";
        let event = self.events.iter().find(deleted).expect("the object was deleted");
        event["data"]["finalstateunknown"] == true
    }
}

fn entry(object: &Value) -> (String, (String, String)) {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (format!("configmaps/{}/{}", field("namespace"), field("name")), (field("uid"), field("resourceVersion")))
}
