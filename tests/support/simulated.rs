//! A simulated cluster that records its changes, so that tests can compare them with the delivered events.

use std::{collections::BTreeMap, fs, path::Path};

use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    engine::{Engine, text},
    scripted::PATIENCE,
};

/// A simulated cluster, and the ids of all changes of each config map.
pub(crate) struct Simulated {
    pub(crate) simulator: Simulator,
    dir: TempDir,
    /// Ids of each object, in order.
    pub(crate) happened: BTreeMap<String, Vec<String>>,
    uids: BTreeMap<String, String>,
}

impl Simulated {
    /// Starts an empty cluster.
    pub(crate) fn start() -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
        Self { simulator, dir, happened: BTreeMap::new(), uids: BTreeMap::new() }
    }

    /// Returns a directory for the test's files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a configuration that watches config maps; `handler` is `[handlers.out]`.
    pub(crate) fn config(&self, handler: &str) -> String {
        format!(
            "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.out]\nretry = {{ initial = \"20ms\", max = \"200ms\" }}\n{handler}\n",
            text(self.dir(), "kubeconfig")
        )
    }

    /// Runs an engine without a state directory until it is ready.
    pub(crate) fn run(&self, handler: &str) -> Engine {
        let engine = Engine::run(self.dir(), &self.config(handler));
        engine.wait_ready(PATIENCE);
        engine
    }

    /// Creates or changes a config map.
    pub(crate) fn put(&mut self, name: &str, data: &str) {
        let object = json!({"metadata": {"name": name}, "data": {"x": data}});
        let metadata =
            self.simulator.store().put("configmaps", object).expect("a valid object").value()["metadata"].clone();
        let of = |field: &str| metadata[field].as_str().expect("metadata is text").to_owned();
        self.uids.insert(name.to_owned(), of("uid"));
        self.note(name, format!("{}.{}", of("uid"), of("resourceVersion")));
    }

    /// Deletes a config map.
    pub(crate) fn delete(&mut self, name: &str) {
        self.simulator.store().delete("configmaps", "default", name).expect("it is there");
        let id = format!("{}.deleted", self.uids[name]);
        self.note(name, id);
    }

    fn note(&mut self, name: &str, id: String) {
        self.happened.entry(name.to_owned()).or_default().push(id);
    }

    /// Changes `objects` config maps, `rounds` times each.
    pub(crate) fn churn(&mut self, objects: usize, rounds: usize) {
        for round in 0..rounds {
            for object in 0..objects {
                self.put(&format!("o{object}"), &round.to_string());
            }
        }
    }

    /// Returns the number of changes.
    pub(crate) fn events(&self) -> usize {
        self.happened.values().map(Vec::len).sum()
    }
}

/// Returns the row of `[handlers.out]`.
pub(crate) fn row(engine: &Engine) -> Value {
    let answer = engine.json("/v1/handlers");
    let mut rows = answer["handlers"].as_array().expect("a list of rows").iter();
    rows.find(|row| row["name"] == "out").expect("it is configured").clone()
}

/// Returns a number in that row.
pub(crate) fn count(engine: &Engine, what: &str) -> u64 {
    row(engine)[what].as_u64().expect("it is a number")
}

/// Waits until the handler has delivered, or given up, all events since its start.
pub(crate) fn wait_all(engine: &Engine, events: usize) {
    let is_done = |row: &Value| {
        let of = |what: &str| row[what].as_u64().expect("it is a number");
        of("delivered") + of("deadLettered") + of("dropped") >= events as u64 && of("queued") == 0
    };
    engine.wait_for(&format!("all of {events} delivered"), PATIENCE * 3, || is_done(&row(engine)));
}

/// Waits until a number in that row exceeds another one.
pub(crate) fn wait_above(engine: &Engine, what: &str, than: u64) {
    engine.wait_for(&format!("{what} above {than}"), PATIENCE, || count(engine, what) > than);
}
