//! `[state] dir`: restarts after any change of the server or the configuration, and after a clean or unclean end of the
//! engine.

use std::{fs, path::Path, process::Command};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    told::events,
};
use deltabus::internals::simulator::{RequestKind, ServerFault, Simulator, SimulatorOptions, Times};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A cluster that outlives the engines.
struct World {
    simulator: Simulator,
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        let world = Self { simulator, dir: tempfile::tempdir().expect("a temporary directory") };
        world.point_at(&world.simulator);
        world
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn point_at(&self, simulator: &Simulator) {
        fs::write(self.dir().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
    }

    /// Returns a configuration that watches config maps with a state directory; `more` are further lines.
    fn config(&self, entry: &str, more: &str) -> String {
        let (kubeconfig, state) = (text(self.dir(), "kubeconfig"), text(self.dir(), "state"));
        format!(
            "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {kubeconfig:?}\nbackoff = {{ initial = \"50ms\", max = \"200ms\" }}\n\
             [state]\ndir = {state:?}\n[resources.maps]\nmatch = [\"configmaps\"]\n{entry}\n{more}\n"
        )
    }

    /// Returns a handler that writes to a file with its name.
    fn handler(&self, name: &str, options: &str) -> String {
        format!(
            "[handlers.{name}]\ntype = \"file\"\npath = {:?}\n{options}\n",
            text(self.dir(), &format!("{name}.jsonl"))
        )
    }

    fn run(&self, entry: &str, handlers: &str) -> Engine {
        let engine = Engine::run(self.dir(), &self.config(entry, handlers));
        engine.wait_ready(PATIENCE);
        engine
    }

    /// Runs an engine that fails to start with the existing configuration; returns its output.
    fn refusal(&self) -> String {
        let run = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["run", "-c", &text(self.dir(), "config.toml")])
            .env("NO_COLOR", "1")
            .output()
            .expect("the binary was built with the tests");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{said}");
        said
    }

    fn put(&self, namespace: &str, name: &str, data: &str) {
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "data": {"x": data}});
        self.simulator.store().put("configmaps", object).expect("a valid object");
    }

    fn delete(&self, name: &str) {
        self.simulator.store().delete("configmaps", "default", name).expect("it is there");
    }

    /// Returns a handler's events about this test's objects: `added a watch`.
    fn told(&self, handler: &str) -> Vec<String> {
        let path = self.dir().join(format!("{handler}.jsonl"));
        let say = |event: &Value| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            let kind = text("type").replace("dev.deltabus.resource.", "");
            format!("{kind} {} {}", text("name"), text("cause"))
        };
        events(&path).iter().filter(|event| event["name"] != "kube-root-ca.crt").map(say).collect()
    }

    /// Waits until a handler received these events, and checks that no more follow.
    fn wait_told(&self, engine: &Engine, handler: &str, expected: &[&str]) {
        engine.wait_for("told", PATIENCE, || self.told(handler).len() >= expected.len());
        assert_eq!(self.told(handler), expected, "{handler}");
    }
}

/// Row 1 of the users' requests, reversed: a handler that does not want changes of a downtime does not get them.
#[test]
fn catch_up_false_skips_changes_during_downtime() {
    let world = World::new();
    world.put("default", "a", "1");
    world.put("default", "b", "1");
    let handlers = world.handler("out", "") + &world.handler("live", "catch_up = false");
    let engine = world.run("", &handlers);
    world.put("default", "a", "2");
    let mut told = ["out", "live"].map(|handler| {
        world.wait_told(&engine, handler, &["updated a watch"]);
        vec!["updated a watch"]
    });
    assert_eq!(engine.terminate().code(), Some(0));

    world.put("default", "a", "3");
    world.delete("b");
    world.put("default", "c", "1");
    let engine = world.run("", &handlers);
    engine.wait_for("told", PATIENCE, || world.told("out").len() >= 4);
    world.put("default", "c", "2");
    world.put("default", "a", "4");
    told[1].extend(["updated c watch", "updated a watch"]);
    world.wait_told(&engine, "live", &told[1]);
    engine.wait_for("told", PATIENCE, || world.told("out").len() >= 6);
    let expected =
        ["updated a downtime", "deleted b downtime", "added c downtime", "updated c watch", "updated a watch"];
    assert_eq!(world.told("out")[1..], expected, "a handler beside it is told all of it, in order");
    let old = events(&world.dir().join("live.jsonl")).pop().expect("it was told")["data"]["old"]["data"].clone();
    assert_eq!(old["x"], "3", "it is told what changed now, and not against what it heard last");
    assert_eq!(engine.terminate().code(), Some(0));
}

/// Row 1 of the users' requests: a restart loses the changes of the downtime, or sends everything again.
#[test]
fn clean_restart_delivers_downtime_changes_without_duplicates() {
    let world = World::new();
    world.put("default", "a", "1");
    world.put("default", "b", "1");
    let out = world.handler("out", "initial = \"send\"");
    let engine = world.run("", &out);
    let mut told = vec!["added a initial", "added b initial"];
    world.wait_told(&engine, "out", &told);
    assert_eq!(engine.terminate().code(), Some(0));

    world.put("default", "a", "2");
    world.delete("b");
    world.put("default", "c", "1");
    let engine = world.run("", &out);
    told.extend(["updated a watch", "deleted b watch", "added c watch"]);
    world.wait_told(&engine, "out", &told);
    assert_eq!(engine.terminate().code(), Some(0));

    // The history is gone, so the states are compared.
    world.put("default", "a", "3");
    world.delete("c");
    world.put("default", "d", "1");
    world.simulator.store().compact();
    let engine = world.run("", &out);
    engine.wait_for("told", PATIENCE, || world.told("out").len() >= 8);
    let mut found = world.told("out").split_off(5);
    found.sort();
    assert_eq!(found, ["added d downtime", "deleted c downtime", "updated a downtime"]);
    let events = events(&world.dir().join("out.jsonl"));
    let journals: std::collections::BTreeSet<_> = events.iter().map(|event| event["journal"].to_string()).collect();
    assert_eq!(journals.len(), 1, "the journal is one over all runs");
    let update = events.iter().find(|event| event["name"] == "a" && event["cause"] == "downtime").expect("it is there");
    assert_eq!(update["data"]["old"]["data"]["x"], "2", "what was known before");
    let deletion =
        events.iter().find(|event| event["name"] == "c" && event["cause"] == "downtime").expect("it is there");
    assert_eq!(deletion["data"]["finalstateunknown"], true);
}

#[test]
fn cache_is_readable_while_server_is_away() {
    let world = World::new();
    world.put("default", "a", "1");
    let engine = world.run("", &world.handler("out", ""));
    assert_eq!(engine.terminate().code(), Some(0));
    world.simulator.go_down();
    let engine = Engine::run(world.dir(), &world.config("", &world.handler("out", "")));
    engine.wait_for("readable", PATIENCE, || {
        engine.get("/api/v1/namespaces/default/configmaps/a").is_ok_and(|(code, _)| code == 200)
    });
    world.simulator.come_up();
    world.put("default", "a", "2");
    world.wait_told(&engine, "out", &["updated a watch"]);
}

#[test]
fn state_of_another_cluster_is_refused() {
    let world = World::new();
    world.put("default", "a", "1");
    let engine = world.run("", &world.handler("out", "initial = \"send\""));
    world.wait_told(&engine, "out", &["added a initial"]);
    assert_eq!(engine.terminate().code(), Some(0));

    let options = SimulatorOptions { seed: 99, ..SimulatorOptions::default() };
    let other = Simulator::start(options).expect("a loopback port is free");
    world.point_at(&other);
    let said = world.refusal();
    assert!(said.contains("belongs to the cluster"), "{said}");
    assert_eq!(world.told("out"), ["added a initial"], "nothing was called deleted");
}

#[test]
fn second_engine_on_same_directory_is_refused() {
    let world = World::new();
    let engine = world.run("", &world.handler("out", ""));
    let said = world.refusal();
    assert!(said.contains(&text(world.dir(), "state")), "{said}");
    drop(engine);
}

#[test]
fn changed_configuration_applies_at_restart() {
    let world = World::new();
    world.put("default", "a", "1");
    world.put("kube-public", "b", "1");
    let out = world.handler("out", "initial = \"send\"");
    let engine = world.run("", &out);
    world.wait_told(&engine, "out", &["added a initial", "added b initial"]);
    assert_eq!(engine.terminate().code(), Some(0));

    // A new handler receives existing objects if it requests them; an old one does not.
    let (shown, quiet) = (world.handler("shown", "initial = \"send\""), world.handler("quiet", ""));
    let engine = world.run("", &[&*out, &shown, &quiet].concat());
    world.wait_told(&engine, "shown", &["added a replay", "added b replay"]);
    world.put("default", "a", "2");
    world.wait_told(&engine, "quiet", &["updated a watch"]);
    world.wait_told(&engine, "out", &["added a initial", "added b initial", "updated a watch"]);
    assert_eq!(engine.terminate().code(), Some(0));

    // Fewer namespaces, and one handler fewer.
    let engine = world.run("namespaces = [\"default\"]", &out);
    let told = ["added a initial", "added b initial", "updated a watch", "removed b reload"];
    world.wait_told(&engine, "out", &told);
    assert_eq!(engine.terminate().code(), Some(0));
    assert_eq!(world.told("quiet"), ["updated a watch"]);
}

/// A start with another configuration acts like a reload: moves of handlers are made before the units are replaced.
#[test]
fn changed_entry_and_handlers_at_restart_act_as_reload() {
    for option in
        ["index = [\"data.x\"]", "drop = [\"metadata.labels\"]", "mode = \"metadata\"", "compression = \"none\""]
    {
        let world = World::new();
        world.put("default", "a", "1");
        world.put("default", "b", "1");
        let other = "[resources.other]\nmatch = [\"services\"]\n";
        let kept = world.handler("kept", "initial = \"send\"");
        let left = world.handler("left", "initial = \"send\"");
        let came = world.handler("came", "initial = \"send\"\nresources = [\"other\"]");
        let engine = world.run("", &[other, &kept, &left, &came].concat());
        let mut kept_told = vec!["added a initial", "added b initial"];
        world.wait_told(&engine, "kept", &kept_told);
        world.wait_told(&engine, "left", &kept_told);
        assert_eq!(engine.terminate().code(), Some(0));

        let left = world.handler("left", "initial = \"send\"\nresources = [\"other\"]");
        let came = world.handler("came", "initial = \"send\"");
        let new = world.handler("new", "initial = \"send\"");
        let engine = world.run(option, &[other, &kept, &left, &came, &new].concat());
        let each = |kind: &str| ["a", "b"].map(|name| kind.replace('*', name));
        world.put("default", "c", "1");
        kept_told.push("added c watch");
        let with_c = |before: [String; 2]| [&before[..], &["added c watch".to_owned()]].concat();
        let told = |handler: &str, expected: Vec<String>| {
            let expected: Vec<_> = expected.iter().map(String::as_str).collect();
            world.wait_told(&engine, handler, &expected);
        };
        told("kept", kept_told.iter().map(|told| (*told).to_owned()).collect());
        told("left", [each("added * initial"), each("removed * reload")].concat());
        told("came", with_c(each("added * reload")));
        told("new", with_c(each("added * replay")));
        assert_eq!(engine.terminate().code(), Some(0), "{option}");
    }
}

#[test]
fn renamed_entry_at_restart_sends_nothing() {
    let world = World::new();
    world.put("default", "a", "1");
    let config = |entry: &str, handlers: &str| {
        world.config("", handlers).replace("[resources.maps]", &format!("[resources.{entry}]"))
    };
    let out = world.handler("out", "initial = \"send\"");
    let named = |entry: &str| world.handler("named", &format!("initial = \"send\"\nresources = [{entry:?}]"));
    let engine = Engine::run(world.dir(), &config("maps", &[&*out, &named("maps")].concat()));
    world.wait_told(&engine, "out", &["added a initial"]);
    world.wait_told(&engine, "named", &["added a initial"]);
    assert_eq!(engine.terminate().code(), Some(0));

    let engine = Engine::run(world.dir(), &config("plans", &[&*out, &named("plans")].concat()));
    engine.wait_ready(PATIENCE);
    world.put("default", "a", "2");
    world.wait_told(&engine, "out", &["added a initial", "updated a watch"]);
    world.wait_told(&engine, "named", &["added a initial", "updated a watch"]);
    assert_eq!(engine.terminate().code(), Some(0));
}

#[test]
fn new_entry_at_restart_is_change() {
    let world = World::new();
    let quiet = world.handler("quiet", "");
    let engine = world.run("", &quiet);
    assert_eq!(engine.terminate().code(), Some(0));
    let bot = json!({"metadata": {"namespace": "default", "name": "bot"}});
    world.simulator.store().put("serviceaccounts", bot).expect("a valid object");
    let engine = world.run("", &["[resources.bots]\nmatch = [\"serviceaccounts\"]\n", &*quiet].concat());
    world.wait_told(&engine, "quiet", &["added bot reload"]);
}

/// A group that does not answer at the start may be there: its objects are known, and new handlers get them.
#[test]
fn unavailable_group_at_restart_delays_no_join() {
    let world = World::new();
    let put = |version: &str| {
        let lease = json!({"metadata": {"namespace": "default", "name": "lease", "labels": {"version": version}}});
        world.simulator.store().put("leases.coordination.k8s.io", lease).expect("a valid object");
    };
    put("1");
    let entry = "[resources.leases]\nmatch = [\"leases.coordination.k8s.io\"]\n";
    let out = world.handler("out", "initial = \"send\"\nresources = [\"leases\"]");
    let engine = world.run("", &[entry, &*out].concat());
    world.wait_told(&engine, "out", &["added lease initial"]);
    assert_eq!(engine.terminate().code(), Some(0));

    // The first discovery asks each group, and one of them does not answer.
    for path in ["/apis", "/apis/coordination.k8s.io/v1"] {
        let fault = ServerFault::Status { code: 503, retry_after: None };
        world.simulator.faults().add(path, RequestKind::Any, Times::Next(1), fault).expect("a valid glob");
    }
    let new = world.handler("new", "initial = \"send\"\nresources = [\"leases\"]");
    let engine = world.run("", &[entry, &*out, &*new].concat());
    world.wait_told(&engine, "new", &["added lease replay"]);
    put("2");
    world.wait_told(&engine, "new", &["added lease replay", "updated lease watch"]);
    world.wait_told(&engine, "out", &["added lease initial", "updated lease watch"]);
}

#[test]
fn reloaded_units_continue_after_kill_9() {
    let world = World::new();
    world.put("default", "a", "1");
    world.put("default", "b", "1");
    let out = world.handler("out", "initial = \"send\"");
    let engine = world.run("", &out);
    world.wait_told(&engine, "out", &["added a initial", "added b initial"]);
    Engine::configure(world.dir(), &world.config("index = [\"metadata.uid\"]\ndrop = [\"metadata.labels\"]", &out));
    engine.signal("-HUP");
    engine.wait_for("listed anew", PATIENCE, || {
        let rows = engine.json("/v1/resources");
        rows["resources"][0]["unit"] == 1 && rows["resources"][0]["synced"] == true
    });
    world.put("default", "c", "1");
    world.wait_told(&engine, "out", &["added a initial", "added b initial", "added c watch"]);
    drop(engine); // SIGKILL

    world.delete("a");
    world.simulator.store().compact();
    let engine = Engine::run_again(world.dir(), &[]);
    engine.wait_for("told of the deletion", PATIENCE, || {
        world.told("out").iter().any(|told| told == "deleted a downtime")
    });
    let wrong = |told: &&String| told.starts_with("deleted") && !told.contains(" a ");
    assert_eq!(world.told("out").iter().find(wrong), None, "nothing else was lost");
}
