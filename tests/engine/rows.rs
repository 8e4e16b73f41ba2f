//! Complaints and requests of users of other tools, by their row in the list, tested from a user's view. Rows that
//! another test covers are named there; `docs/questions.md` has the texts of all.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "a delay is measured by the clock")]

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::support::{
    engine::{Engine, text},
    listener::Listener,
    scripted::{PATIENCE, Scene},
    simulated::Simulated,
    told::{events, stories, wait_events},
};
use deltabus::internals::simulator::{Area, RequestKind, ServerFault, StreamFault, Times};
use serde_json::{Value, json};

/// Returns a configuration for the simulated cluster, with further lines.
fn config(world: &Simulated, more: &str) -> String {
    format!("[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n{more}", text(world.dir(), "kubeconfig"))
}

/// Returns a handler that writes to a file, and the path of the file.
fn file(world: &Simulated, name: &str, more: &str) -> (String, PathBuf) {
    let path = text(world.dir(), &format!("{name}.jsonl"));
    (format!("[handlers.{name}]\ntype = \"file\"\npath = {path:?}\n{more}\n"), path.into())
}

fn run(world: &Simulated, config: &str) -> Engine {
    let engine = Engine::run(world.dir(), config);
    engine.wait_ready(PATIENCE);
    engine
}

fn put(world: &Simulated, resource: &str, namespace: &str, name: &str, mut object: Value) {
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["name"] = name.into();
    world.simulator.store().put(resource, object).unwrap();
}

/// Returns an Event with this time and count.
fn event(at: &str, count: u32) -> Value {
    let about = json!({"kind": "Pod", "namespace": "default", "name": "web"});
    json!({
        "type": "Warning", "reason": "BackOff", "involvedObject": about, "count": count,
        "firstTimestamp": "2001-01-01T00:00:00Z", "lastTimestamp": at,
    })
}

/// Row 2: events dropped because they are older than some seconds.
#[test]
fn old_event_is_sent_also_after_downtime() {
    let world = Simulated::start();
    let (handler, out) = file(&world, "out", "");
    let state = text(world.dir(), "state");
    let entry = "[resources.events]\nmatch = [\"events\"]\ncache = \"none\"\n";
    let config = config(&world, &format!("{entry}{handler}[state]\ndir = {state:?}\n"));
    let engine = run(&world, &config);
    put(&world, "events", "default", "old", event("2001-01-01T00:00:00Z", 1));
    put(&world, "events", "default", "of-a-clock-that-is-ahead", event("2101-01-01T00:00:00Z", 1));
    wait_events(&engine, &out, 2);
    assert!(engine.terminate().success());
    put(&world, "events", "default", "missed", event("2001-01-01T00:00:00Z", 1));
    let engine = run(&world, &config);
    let told = stories(&wait_events(&engine, &out, 3));
    assert_eq!(told, ["added events old", "added events of-a-clock-that-is-ahead", "added events missed"]);
}

/// Row 3: a repeated Event is sent only the first time.
#[test]
fn repeated_event_is_sent_each_time() {
    let world = Simulated::start();
    let (handler, out) = file(&world, "out", "format = \"object\"");
    let entry = "[resources.events]\nmatch = [\"events\"]\nfields = \"type=Warning\"\ncache = \"none\"\n";
    let engine = run(&world, &config(&world, &format!("{entry}{handler}")));
    for count in 1..=3 {
        put(&world, "events", "default", "web.1", event("2026-11-21T06:40:03Z", count));
    }
    let told = wait_events(&engine, &out, 3);
    assert_eq!(stories(&told), ["added events web.1", "updated events web.1", "updated events web.1"]);
    let counts: Vec<_> = told.iter().map(|event| event["data"]["count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 3]);
}

/// Row 6: "updated" for all objects every half hour, or when a watch is reopened.
#[test]
fn reopened_watch_and_unchanged_list_cause_no_events() {
    let mut scene = Scene::lists();
    scene.run_lists("");
    scene.put("c", "1"); // a watch that ends at once without an event would cause a list
    scene.settle();
    scene.simulator.close_connections();
    scene.wait_asked("watch", 2);
    scene.put("c", "2");
    scene.settle();
    scene.next_watch(0, StreamFault::Error(410));
    scene.simulator.close_connections();
    scene.wait_asked("list", 2);
    let ending = scene.finish();
    assert_eq!(ending.story("a"), ["added initial"]);
    assert_eq!(ending.story("b"), ["added initial"]);
    assert_eq!(ending.story("c"), ["added initial", "updated watch", "updated watch"]);
}

/// Row 10: memory peaks at the start, when all types are listed at once.
#[test]
fn concurrent_lists_are_limited_as_configured() {
    const DELAY: Duration = Duration::from_millis(700);
    let world = Simulated::start();
    let types = "[\"configmaps\", \"secrets\", \"services\", \"serviceaccounts\"]";
    let lists = "streaming_lists = \"never\"\nmax_concurrent_lists = 1";
    let entry = format!("[resources.all]\nmatch = {types}\n[handlers.out]\ntype = \"blackhole\"");
    world.simulator.faults().add("/api/v1/*", RequestKind::List, Times::Always, ServerFault::Delay(DELAY)).unwrap();
    let started = Instant::now();
    let engine = run(&world, &config(&world, &format!("{lists}\n{entry}")));
    assert!(started.elapsed() >= 4 * DELAY, "one after the other, not {:?} in all", started.elapsed());
    assert_eq!(engine.json("/v1/resources")["resources"].as_array().unwrap().len(), 4);
}

/// Row 12: each replica sends a copy, and receivers cannot detect that.
#[test]
fn two_engines_give_one_change_one_id() {
    let world = Simulated::start();
    let engine = |name: &str| {
        let (handler, out) = file(&world, name, "initial = \"send\"");
        let dir = world.dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let config = config(&world, &format!("[resources.maps]\nmatch = [\"configmaps\"]\n{handler}"));
        let engine = Engine::run(&dir, &config);
        engine.wait_ready(PATIENCE);
        (engine, out)
    };
    put(&world, "configmaps", "default", "a", json!({"data": {"x": "1"}}));
    let (one, one_out) = engine("one");
    put(&world, "configmaps", "default", "a", json!({"data": {"x": "2"}}));
    let (other, other_out) = engine("other");
    put(&world, "configmaps", "default", "a", json!({"data": {"x": "3"}}));
    put(&world, "configmaps", "default", "b", json!({}));
    world.simulator.store().delete("configmaps", "default", "a").unwrap();
    let ids = |engine: &Engine, out: &PathBuf, count: usize| -> Vec<_> {
        wait_events(engine, out, count).iter().map(|event| event["id"].clone()).collect()
    };
    // The first engine has seen the object once more than the second one, which started later.
    let (of_one, of_other) = (ids(&one, &one_out, 5), ids(&other, &other_out, 4));
    assert_eq!(of_one[1..], of_other, "the same id for the same change");
    assert!(of_one.iter().all(|id| of_one.iter().filter(|other| *other == id).count() == 1), "{of_one:?}");
}

/// Row 15: selection by kind of event, name and label.
#[test]
fn events_are_selected_by_kind_name_and_label() {
    let world = Simulated::start();
    // With a selector the server does not distinguish a deletion from a change of labels.
    let (gone, gone_out) = file(&world, "gone", "on = [\"removed\"]");
    let (one, one_out) = file(&world, "one", "when = 'object.metadata.name.matches(\"^web-[0-9]$\")'");
    let entry = "[resources.web]\nmatch = [\"configmaps\"]\nlabels = \"app in (web,api),!legacy\"\n";
    let engine = run(&world, &config(&world, &format!("{entry}{gone}{one}")));
    let web = json!({"metadata": {"labels": {"app": "web"}}});
    put(&world, "configmaps", "default", "web-1", web.clone());
    put(&world, "configmaps", "default", "web-old", web);
    put(&world, "configmaps", "default", "web-2", json!({"metadata": {"labels": {"app": "web", "legacy": "yes"}}}));
    put(&world, "configmaps", "default", "web-3", json!({"metadata": {"labels": {"app": "db"}}}));
    for name in ["web-3", "web-2", "web-old", "web-1"] {
        world.simulator.store().delete("configmaps", "default", name).unwrap();
    }
    let told = stories(&wait_events(&engine, &one_out, 2));
    assert_eq!(told, ["added configmaps web-1", "removed configmaps web-1"]);
    let told = stories(&wait_events(&engine, &gone_out, 2));
    assert_eq!(told, ["removed configmaps web-old", "removed configmaps web-1"]);
}

/// Row 17: an unanchored pattern matches longer names.
#[test]
fn names_and_globs_match_whole_namespaces() {
    let world = Simulated::start();
    let namespaces = ["my-prod", "prod-sandbox", "prod-2", "prod"];
    for namespace in namespaces {
        world.simulator.store().put("namespaces", json!({"metadata": {"name": namespace}})).unwrap();
    }
    for (at, (pattern, expected)) in
        [("\"prod\"", &["prod"][..]), ("\"prod*\", \"!*-sandbox\"", &["prod-2", "prod"])].into_iter().enumerate()
    {
        let (handler, out) = file(&world, &format!("out{at}"), "");
        let entry = format!("[resources.maps]\nmatch = [\"configmaps\"]\nnamespaces = [{pattern}]\n");
        let engine = run(&world, &config(&world, &format!("{entry}{handler}")));
        for namespace in namespaces {
            put(&world, "configmaps", namespace, &format!("a{at}"), json!({}));
        }
        let mut told: Vec<String> = wait_events(&engine, &out, expected.len())
            .iter()
            .map(|event| event["namespace"].as_str().unwrap().to_owned())
            .collect();
        // Each name has its own watch: between them the order is that of arrival.
        told.sort_by_key(|namespace| namespaces.iter().position(|known| known == namespace));
        assert_eq!(told, expected, "{pattern}");
        assert!(engine.terminate().success());
        assert_eq!(events(&out).len(), expected.len(), "{pattern}: nothing else came");
    }
}

/// Row 25: one missing or forbidden type stops everything.
#[test]
fn missing_and_forbidden_types_stop_no_other() {
    let world = Simulated::start();
    world.simulator.faults().forbid("*", "secrets", Area::Everywhere);
    let (handler, out) = file(&world, "out", "");
    let entry = "[resources.some]\nmatch = [\"configmaps\", \"secrets\", \"bananas.fruit.example\"]\n";
    let engine = run(&world, &config(&world, &format!("{entry}{handler}")));
    put(&world, "configmaps", "default", "a", json!({}));
    assert_eq!(stories(&wait_events(&engine, &out, 1)), ["added configmaps a"]);
    let rows = engine.json("/v1/resources")["resources"].clone();
    let row = |plural: &str| rows.as_array().unwrap().iter().find(|row| row["plural"] == plural).unwrap().clone();
    assert_eq!(row("configmaps")["state"], "watching");
    assert_eq!(row("bananas.fruit.example")["state"], "waiting");
    let refused = row("secrets");
    assert_eq!(refused["state"], "forbidden");
    assert!(refused["lastError"].as_str().unwrap().contains("secrets is forbidden"), "{refused}");
}

/// Row 29: one watch over several types, in one order, that can be resumed.
#[test]
fn stream_of_several_types_resumes_at_position() {
    let world = Simulated::start();
    let types = ["configmaps", "secrets", "services"];
    let entries = format!("[resources.all]\nmatch = {types:?}\n[handlers.out]\ntype = \"blackhole\"\n");
    let engine = run(&world, &config(&world, &entries));
    let mut listener = Listener::open(&engine.http, "", &[]).placed();
    let create = |name: &str| types.map(|resource| put(&world, resource, "default", name, json!({})));
    create("a");
    create("b");
    let mut heard: Vec<_> = (0..2).map(|_| listener.next().unwrap()).collect();
    let last = listener.last_id.clone();
    drop(listener);
    create("c");
    let mut listener = Listener::open(&engine.http, "", &[("Last-Event-ID", &last)]);
    heard.extend((0..7).map(|_| listener.next().unwrap()));
    assert!(heard.is_sorted_by(|a, b| a.id < b.id), "one order for all types");
    let events: Vec<_> = heard.into_iter().map(|heard| heard.event).collect();
    let mut told = stories(&events);
    told.sort_unstable();
    let mut expected: Vec<_> =
        types.iter().flat_map(|resource| ["a", "b", "c"].map(|name| format!("added {resource} {name}"))).collect();
    expected.sort_unstable();
    assert_eq!(told, expected, "each once");
}
