//! `deltabus run` with handlers that speak to other systems: what a cluster does arrives, whatever happens on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "delivery/nats.rs"]
mod nats;
mod support;
#[path = "delivery/webhook.rs"]
mod webhook;

use std::{collections::BTreeMap, fs, path::Path};

use deltabus::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};
use support::{
    engine::{Engine, text},
    scripted::PATIENCE,
};
use tempfile::TempDir;

/// A simulated cluster, and the ids of what happened to each of its config maps.
struct Cluster {
    simulator: Simulator,
    dir: TempDir,
    happened: BTreeMap<String, Vec<String>>,
    uids: BTreeMap<String, String>,
}

impl Cluster {
    fn start() -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
        Self { simulator, dir, happened: BTreeMap::new(), uids: BTreeMap::new() }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Watches config maps; `handler` is `[handlers.out]`.
    fn config(&self, handler: &str) -> String {
        format!(
            "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.out]\nretry = {{ initial = \"20ms\", max = \"200ms\" }}\n{handler}\n",
            text(self.dir(), "kubeconfig")
        )
    }

    fn run(&self, handler: &str) -> Engine {
        let engine = Engine::run(self.dir(), &self.config(handler));
        engine.wait_ready(PATIENCE);
        engine
    }

    /// Creates or changes a config map.
    fn put(&mut self, name: &str, data: &str) {
        let object = json!({"metadata": {"name": name}, "data": {"x": data}});
        let metadata = self.simulator.store().put("configmaps", object).unwrap().value()["metadata"].clone();
        let of = |field: &str| metadata[field].as_str().unwrap().to_owned();
        self.uids.insert(name.to_owned(), of("uid"));
        self.note(name, format!("{}.{}", of("uid"), of("resourceVersion")));
    }

    fn delete(&mut self, name: &str) {
        self.simulator.store().delete("configmaps", "default", name).unwrap();
        let id = format!("{}.deleted", self.uids[name]);
        self.note(name, id);
    }

    fn note(&mut self, name: &str, id: String) {
        self.happened.entry(name.to_owned()).or_default().push(id);
    }

    /// Changes `objects` config maps so often.
    fn churn(&mut self, objects: usize, rounds: usize) {
        for round in 0..rounds {
            for object in 0..objects {
                self.put(&format!("o{object}"), &round.to_string());
            }
        }
    }
}

fn row(engine: &Engine) -> Value {
    engine.json("/v1/handlers")["handlers"].as_array().unwrap().iter().find(|row| row["name"] == "out").unwrap().clone()
}

fn count(engine: &Engine, what: &str) -> u64 {
    row(engine)[what].as_u64().unwrap()
}

/// Waits until the handler has got, or given up, all that happened since it was started.
fn wait_all(engine: &Engine, events: usize) {
    let is_done = |row: &Value| {
        let of = |what: &str| row[what].as_u64().unwrap();
        of("delivered") + of("deadLettered") + of("dropped") >= events as u64 && of("queued") == 0
    };
    engine.wait_for(&format!("all of {events} delivered"), PATIENCE * 3, || is_done(&row(engine)));
}
