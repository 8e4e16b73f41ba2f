//! Suppressed events: updates of `ignore_changes` alone, and objects that opt out by `deltabus.dev/ignore`.

use std::{fs, path::Path};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    told::events,
    verify::verify,
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A cluster that outlives the engines, which all write to one file.
struct World {
    simulator: Simulator,
    dir: TempDir,
    entry: &'static str,
}

impl World {
    fn new(entry: &'static str) -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        let world = Self { simulator, dir: tempfile::tempdir().expect("a temporary directory"), entry };
        fs::write(world.dir().join("kubeconfig"), world.simulator.kubeconfig()).expect("the directory is writable");
        world
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn start(&self) -> Engine {
        let [kubeconfig, state, out] = ["kubeconfig", "state", "out.jsonl"].map(|name| text(self.dir(), name));
        let config = format!(
            "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {kubeconfig:?}\n\
             backoff = {{ initial = \"50ms\", max = \"200ms\" }}\n[state]\ndir = {state:?}\n\
             [resources.maps]\nmatch = [\"configmaps\"]\nnamespaces = [\"default\"]\n{}\n\
             [handlers.out]\ntype = \"file\"\ninitial = \"send\"\npath = {out:?}\n",
            self.entry
        );
        Engine::run(self.dir(), &config)
    }

    fn run(&self) -> Engine {
        let engine = self.start();
        engine.wait_ready(PATIENCE);
        engine
    }

    fn put(&self, name: &str, ignore: Option<&str>, data: &Value) {
        let mut object = json!({"metadata": {"namespace": "default", "name": name}, "data": data});
        if let Some(value) = ignore {
            object["metadata"]["annotations"] = json!({"a": "b", "deltabus.dev/ignore": value});
        }
        self.simulator.store().put("configmaps", object).expect("a valid object");
    }

    fn events(&self) -> Vec<Value> {
        events(&self.dir().join("out.jsonl")).into_iter().filter(|event| event["name"] != "kube-root-ca.crt").collect()
    }

    /// Returns the events as `added a watch`.
    fn told(&self) -> Vec<String> {
        let say = |event: &Value| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("type").replace("dev.deltabus.resource.", ""), text("name"), text("cause"))
        };
        self.events().iter().map(say).collect()
    }

    /// Waits for these events, and checks that there are no others.
    fn wait_told(&self, engine: &Engine, expected: &[&str]) {
        engine.wait_for("told", PATIENCE, || self.told().len() >= expected.len());
        assert_eq!(self.told(), expected);
    }
}

/// Returns a value in the data of a cached object; `None` if it is not cached.
fn cached(engine: &Engine, name: &str, key: &str) -> Option<String> {
    let (code, body) = engine.get(&format!("/api/v1/namespaces/default/configmaps/{name}")).ok()?;
    let object: Value = serde_json::from_str(&body).ok()?;
    (code == 200).then(|| object["data"][key].as_str().unwrap_or_default().to_owned())
}

fn wait_cached(engine: &Engine, name: &str, key: &str, value: Option<&str>) {
    engine.wait_for("cached", PATIENCE, || cached(engine, name, key).as_deref() == value);
}

/// Row 16 of the users' requests: only relevant changes.
#[test]
fn ignored_update_is_cached_without_event() {
    let world = World::new("ignore_changes = [\"data.seen\"]");
    world.put("a", None, &json!({"x": "1", "seen": "1"}));
    let engine = world.run();
    let mut told = vec!["added a initial"];
    world.wait_told(&engine, &told);
    world.put("a", None, &json!({"x": "1", "seen": "2"}));
    wait_cached(&engine, "a", "seen", Some("2"));
    world.put("a", None, &json!({"x": "2", "seen": "3"}));
    told.push("updated a watch");
    world.wait_told(&engine, &told);
    let update = world.events().pop().expect("it was told");
    assert_eq!(update["data"]["old"]["data"], json!({"x": "1", "seen": "2"}), "what was cached before");
    engine.wait_for("counted", PATIENCE, || {
        let counts = engine.json("/v1/resources")["resources"][0]["events"].clone();
        (&counts["updated"], &counts["ignored"]) == (&json!(1), &json!(1))
    });
    let (_, metrics) = engine.get("/metrics").expect("it answers");
    assert!(metrics.lines().any(|line| line.contains("type=\"ignored\"") && line.ends_with(" 1")), "{metrics}");
    world.put("a", None, &json!({"x": "2", "seen": "4"}));
    wait_cached(&engine, "a", "seen", Some("4"));
    assert_eq!(engine.terminate().code(), Some(0));

    // The state includes ignored updates, and the watch resumes after them.
    world.simulator.go_down();
    let engine = world.start();
    wait_cached(&engine, "a", "seen", Some("4"));
    world.simulator.come_up();
    world.put("b", None, &json!({"x": "1"}));
    told.push("added b watch");
    world.wait_told(&engine, &told);
    assert_eq!(engine.terminate().code(), Some(0));

    // A list after a restart is compared by the same rule.
    world.put("a", None, &json!({"x": "2", "seen": "5"}));
    world.put("b", None, &json!({"x": "2"}));
    world.simulator.store().compact();
    let engine = world.run();
    told.push("updated b downtime");
    world.wait_told(&engine, &told);
    wait_cached(&engine, "a", "seen", Some("5"));
    world.put("c", None, &json!({}));
    told.push("added c watch");
    world.wait_told(&engine, &told);
}

fn an_object_opts_out(entry: &'static str) {
    let world = World::new(entry);
    let data = json!({"x": "1"});
    world.put("a", None, &data);
    world.put("b", Some("true"), &data);
    world.put("c", Some("false"), &data);
    let engine = world.run();
    let mut told = vec!["added a initial", "added c initial"];
    world.wait_told(&engine, &told);
    assert_eq!(cached(&engine, "b", "x"), None);

    // The annotation is added and removed; deleting a hidden object causes no event.
    let shown = world.events()[0]["resourceversion"].as_str().expect("text").to_owned();
    world.put("a", Some("true"), &data);
    told.push("removed a watch");
    world.wait_told(&engine, &told);
    let removed = world.events().pop().expect("it was told");
    assert_eq!(removed["id"], format!("{}.{shown}.removed", removed["uid"].as_str().expect("text")));
    assert!(!removed["data"].to_string().contains("deltabus.dev/ignore"), "the last state shown: {removed}");
    wait_cached(&engine, "a", "x", None);
    world.put("a", Some("true"), &json!({"x": "2"}));
    world.simulator.store().delete("configmaps", "default", "a").expect("it is there");
    world.put("b", None, &data);
    told.push("added b watch");
    world.wait_told(&engine, &told);
    world.put("d", Some("true"), &data);
    let verified = verify(&format!("http://{}", engine.http), &world.dir().join("kubeconfig"), &["-o", "json"]);
    assert_eq!((verified.code, &verified.json()["verdict"]), (0, &json!("equal")), "{}", verified.stderr);
    assert_eq!(engine.terminate().code(), Some(0));

    // A list that shows the object with the annotation does not report a deletion.
    world.put("b", Some("true"), &data);
    world.simulator.store().delete("configmaps", "default", "c").expect("it is there");
    world.simulator.store().compact();
    let engine = world.run();
    engine.wait_for("told", PATIENCE, || world.told().len() >= 6);
    let mut found = world.told().split_off(4);
    found.sort();
    assert_eq!(found, ["deleted c downtime", "removed b downtime"]);
    assert_eq!(cached(&engine, "b", "x"), None);
    world.put("d", None, &data);
    engine.wait_for("told", PATIENCE, || world.told().len() >= 7);
    assert_eq!(world.told()[6], "added d watch");
}

#[test]
fn opted_out_object_is_neither_cached_nor_sent() {
    an_object_opts_out("ignore_annotation = true");
}

#[test]
fn opt_out_works_with_dropped_annotations() {
    an_object_opts_out(
        "ignore_annotation = true\ndrop = [\"metadata.annotations\"]\norder = \"per-key\"\nmode = \"metadata\"",
    );
}
