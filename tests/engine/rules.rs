//! `changed` and `when` of handlers in a running engine: only matching events arrive, in memory and with a state
//! directory, after a restart, and with coalesced events.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader},
    path::Path,
    process::Command,
    thread,
};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::{Simulated, count, row},
};
use serde_json::{Value, json};

/// Condition that matches everything except updates to a state with "skip".
const WHEN: &str = r#"when = 'type != "updated" || !object.data.x.startsWith("skip")'"#;

/// A cluster, and the events that a handler must receive.
struct Scene {
    cluster: Simulated,
    expected: BTreeSet<String>,
    refused: u64,
}

impl Scene {
    fn start() -> Self {
        Self { cluster: Simulated::start(), expected: BTreeSet::new(), refused: 0 }
    }

    fn handler(&self, more: &str) -> String {
        let path = text(self.cluster.dir(), "out.jsonl");
        format!("type = \"file\"\npath = {path:?}\ninitial = \"send\"\nchanged = [\"data\"]\n{WHEN}\n{more}")
    }

    /// Creates or changes an object.
    fn put(&mut self, name: &str, data: &str) {
        self.cluster.put(name, data);
        let happened = &self.cluster.happened[name];
        let is_update = happened.len() > 1 && !happened[happened.len() - 2].ends_with(".deleted");
        if is_update && data.starts_with("skip") {
            self.refused += 1;
        } else {
            self.expected.insert(happened[happened.len() - 1].clone());
        }
    }

    fn delete(&mut self, name: &str) {
        self.cluster.delete(name);
        self.expected.extend(self.cluster.happened[name].last().cloned());
    }

    /// Changes labels, which are not in `changed`.
    fn label(&mut self, name: &str, label: &str) {
        let object = json!({"metadata": {"name": name, "labels": {"l": label}}, "data": {"x": "keep"}});
        self.cluster.simulator.store().put("configmaps", object).expect("a valid object");
        self.refused += 1;
    }

    /// Makes many changes; some match.
    fn live(&mut self, round: &str) {
        for number in 0..5 {
            let name = format!("o{number}");
            self.put(&name, &format!("keep {round}"));
            self.put(&name, &format!("skip {round}"));
            self.put(&name, "keep");
            self.label(&name, round);
        }
        self.put("short", &format!("keep {round}"));
        self.put("short", &format!("skip {round}"));
        self.delete("short");
    }

    fn delivered(&self) -> Vec<String> {
        let lines = fs::read_to_string(self.cluster.dir().join("out.jsonl")).unwrap_or_default();
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.map(|event| event["id"].as_str().expect("an event has an id").to_owned()).collect()
    }

    /// Waits until all expected events are delivered and none is waiting; checks that there are no others.
    fn settle(&self, engine: &Engine) {
        engine.wait_for("delivered what matches", PATIENCE, || {
            let delivered: BTreeSet<_> = self.delivered().into_iter().collect();
            delivered.is_superset(&self.expected) && count(engine, "queued") == 0
        });
        let delivered: BTreeSet<_> = self.delivered().into_iter().collect();
        assert_eq!(delivered, self.expected, "only what matches is delivered: {}", row(engine));
    }
}

#[test]
fn only_matching_changes_arrive_and_rest_is_counted() {
    let mut scene = Scene::start();
    let engine = scene.cluster.run(&scene.handler(""));
    for round in ["one", "two", "three"] {
        scene.live(round);
    }
    scene.settle(&engine);
    assert_eq!(scene.delivered().len(), scene.expected.len(), "each once, in order");
    engine.wait_for("counted", PATIENCE, || count(&engine, "filtered") == scene.refused);
    assert_eq!((count(&engine, "ruleErrors"), &row(&engine)["lastRuleError"]), (0, &Value::Null));
    let (_, metrics) = engine.get("/metrics").expect("it is served");
    let line = format!("deltabus_handler_filtered_total{{handler=\"out\"}} {}", scene.refused);
    assert!(metrics.contains(&line), "{line} in {metrics}");
}

#[test]
fn only_matching_changes_arrive_across_downtime() {
    let mut scene = Scene::start();
    let state = text(scene.cluster.dir(), "state");
    let config = format!("{}\n[state]\ndir = {state:?}\n", scene.cluster.config(&scene.handler("")));
    let engine = Engine::run(scene.cluster.dir(), &config);
    engine.wait_ready(PATIENCE);
    scene.live("one");
    scene.settle(&engine);
    drop(engine); // SIGKILL
    scene.live("two");
    let engine = Engine::run_again(scene.cluster.dir(), &[]);
    engine.wait_ready(PATIENCE);
    scene.live("three");
    scene.settle(&engine);
    assert!(count(&engine, "filtered") > 0);
}

#[test]
fn failing_rule_is_counted_with_object_name() {
    let mut cluster = Simulated::start();
    let path = text(cluster.dir(), "out.jsonl");
    let handler = |when: &str| format!("type = \"file\"\npath = {path:?}\nwhen = {when:?}");
    let engine = cluster.run(&handler("object.data.y == 'z'"));
    cluster.put("web", "1");
    engine.wait_for("an error of the rule", PATIENCE, || count(&engine, "ruleErrors") == 1);
    assert_eq!(row(&engine)["lastRuleError"], "default/web: `when`: No such key: y");
    assert_eq!((count(&engine, "filtered"), count(&engine, "delivered")), (1, 0));
    Engine::configure(cluster.dir(), &cluster.config(&handler("has(object.data.x)")));
    engine.wait_for_log("applied");
    cluster.put("web", "2");
    engine.wait_for("delivered by the new rule", PATIENCE, || count(&engine, "delivered") == 1);
}

/// Creates a sink that accepts about 64 KB, then stalls until it is read.
fn stuck_pipe(path: &Path) -> File {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
    OpenOptions::new().read(true).write(true).open(path).expect("the pipe was made")
}

#[test]
fn merged_changes_are_judged_one_by_one() {
    let mut cluster = Simulated::start();
    let path = cluster.dir().join("pipe");
    let pipe = stuck_pipe(&path);
    let handler = format!(
        "type = \"file\"\npath = {path:?}\nfsync = \"never\"\nbuffer = {{ max_events = 20 }}\nbatch = {{ max_events = 10, \
         timeout = \"0s\" }}\nwhen = 'object.data.x.startsWith(\"keep\")'"
    );
    let engine = cluster.run(&handler);
    let padding = "x".repeat(3_000);
    let (mut refused, mut last) = (0, BTreeMap::new());
    for round in 0..200 {
        for name in ["a", "b", "c"] {
            // the last change of each object matches
            let is_kept = round == 199 || round % 3 == 0;
            let data = format!("{} {round} {padding}", if is_kept { "keep" } else { "skip" });
            cluster.put(name, &data);
            refused += u64::from(!is_kept);
            last.insert(name.to_owned(), cluster.happened[name].last().cloned().expect("it was just put"));
        }
    }
    engine.wait_for("merged", PATIENCE, || count(&engine, "coalesced") > 50);
    let (lines, read) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            drop(lines.send(line));
        }
    });
    let mut open = last;
    while !open.is_empty() {
        let line = read.recv_timeout(PATIENCE).expect("the last states that match arrive");
        let event: Value = serde_json::from_str(&line).expect("a line is an event");
        let name = event["name"].as_str().expect("it has a name").to_owned();
        if open.get(&name).is_some_and(|id| event["id"] == **id) {
            open.remove(&name);
        }
    }
    engine.wait_for("judged", PATIENCE, || count(&engine, "filtered") == refused);
    assert_eq!(count(&engine, "dropped"), 0);
}
