//! The examples, run against the simulated cluster.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../examples/closure_handler.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod closure_handler;
#[path = "../../examples/custom_index.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod custom_index;
#[path = "../../examples/dynamic.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod dynamic;
#[path = "../../examples/controller.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod controller;
#[path = "../../examples/own_handler.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod own_handler;
#[path = "../../examples/start_and_stop.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod start_and_stop;
#[path = "../../examples/tail.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod tail;
#[path = "../../examples/transform.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod transform;
#[path = "../../examples/typed_lister.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod typed_lister;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::System;
use deltabus::internals::{
    config::{Config, FileFsync, FileOptions, Permissions, SinkConfig},
    engine::{Engine, EngineBuilder},
    list_watch::kube::ClusterAccess,
    simulator::{Simulator, SimulatorOptions},
};
use serde_json::{Value, json};
use tokio::time::sleep;

fn pod(name: &str, node: &str, restarts: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": restarts},
        ]},
    })
}

fn cluster() -> Simulator {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        simulator.store().create("pods", pod(name, node, 0)).unwrap();
    }
    simulator
}

/// Points a configuration to the simulated cluster.
fn at(mut config: Config, simulator: &Simulator, dir: &Path) -> Config {
    let path = dir.join("kubeconfig");
    fs::write(&path, simulator.kubeconfig()).unwrap();
    config.kube.kubeconfig = Some(path);
    config.http.listen = None;
    config
}

/// Returns the builder of an engine for the simulated cluster.
fn over(simulator: &Simulator) -> EngineBuilder {
    Engine::builder().cluster(ClusterAccess::without_credentials(&simulator.url(), "test").unwrap())
}

/// Waits for up to a minute until a condition holds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn tail_shows_existing_and_changed_objects() {
    let (simulator, dir) = (cluster(), tempfile::tempdir().unwrap());
    let out = dir.path().join("out");
    let mut config = at(tail::config(&["po".to_owned()]).unwrap(), &simulator, dir.path());
    let path = out.to_str().unwrap().to_owned();
    let (rotate, fsync, permissions) = (None, FileFsync::Never, Permissions::default());
    config.handlers.get_mut("out").unwrap().sink = SinkConfig::File(FileOptions { path, rotate, fsync, permissions });
    let lines = || fs::read_to_string(&out).map_or(0, |text| text.lines().count());
    System::new()
        .block_on(tail::tail(config, async {
            until(|| lines() == 3).await;
            simulator.store().delete("pods", "default", "b").unwrap();
            until(|| lines() == 4).await;
        }))
        .unwrap();
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(text.matches("resource.added").count(), 3, "{text}");
    assert!(text.lines().last().unwrap().contains("resource.deleted"), "{text}");
}

#[test]
fn own_handler_counts_restarts() {
    let (simulator, dir) = (cluster(), tempfile::tempdir().unwrap());
    let config = at(Config::from_toml_str("[resources.pods]\nmatch = [\"pods\"]").unwrap(), &simulator, dir.path());
    let seen = Rc::new(Cell::new(0));
    let counter = Rc::clone(&seen);
    let tell = move |counts: &BTreeMap<String, u64>| counter.set(counts.get("default").copied().unwrap_or(0));
    System::new()
        .block_on(own_handler::count_restarts(config, tell, async {
            // The first state is not sent; a later change is.
            for restarts in 1..=3_000 {
                if seen.get() >= 2 {
                    break;
                }
                simulator.store().put("pods", pod("a", "n1", restarts)).unwrap();
                sleep(Duration::from_millis(20)).await;
            }
        }))
        .unwrap();
    assert!(seen.get() >= 2, "{}", seen.get());
}

#[test]
fn typed_lister_reads_pods_of_each_node() {
    let simulator = cluster();
    let by_node = System::new().block_on(typed_lister::pods_by_node(over(&simulator))).unwrap();
    let mut names: Vec<(String, Vec<String>)> = by_node
        .into_iter()
        .map(|(node, pods)| {
            let mut names: Vec<String> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
            names.sort();
            (node, names)
        })
        .collect();
    names.sort();
    let expected = [("n1", vec!["a", "c"]), ("n2", vec!["b"])];
    let expected: Vec<(String, Vec<String>)> =
        expected.into_iter().map(|(node, names)| (node.into(), names.into_iter().map(Into::into).collect())).collect();
    assert_eq!(names, expected);
}

#[test]
fn dynamic_counts_objects_of_types_by_name() {
    let simulator = cluster();
    let types = ["po", "ns", "bananas.acme.io"].map(str::to_owned);
    let counts = System::new().block_on(dynamic::count(over(&simulator), &types)).unwrap();
    assert_eq!(counts["pods"], [("default".to_owned(), 3)].into());
    assert!(counts["namespaces"][""] >= 1 && counts.len() == 2, "{counts:?}");
}

#[test]
fn closure_handler_reports_deletions() {
    let simulator = cluster();
    let said = Arc::new(Mutex::new(Vec::new()));
    let (lines, heard) = (Arc::clone(&said), Arc::clone(&said));
    let say = move |line| lines.lock().unwrap().push(line);
    let done = async {
        until(|| simulator.open_watches() > 0).await;
        simulator.store().delete("pods", "default", "b").unwrap();
        until(|| !heard.lock().unwrap().is_empty()).await;
    };
    System::new().block_on(closure_handler::watch_deletions(over(&simulator), say, done)).unwrap();
    assert_eq!(*said.lock().unwrap(), ["default/b was deleted"]);
}

#[test]
fn custom_index_finds_pods_by_image() {
    let simulator = cluster();
    let find = |image| System::new().block_on(custom_index::pods_of_image(over(&simulator), image)).unwrap();
    assert_eq!(find("i"), ["default/a", "default/b", "default/c"]);
    assert!(find("nginx").is_empty());
}

#[test]
fn transform_hides_values_before_caching() {
    let simulator = cluster();
    let mut object = pod("d", "n1", 0);
    object["spec"]["containers"][0]["env"] = json!([{"name": "TOKEN", "value": "open sesame"}]);
    simulator.store().put("pods", object).unwrap();
    let pods = System::new().block_on(transform::pods_without_values(over(&simulator))).unwrap();
    let values = pods.into_iter().flat_map(|pod| pod.spec.unwrap().containers).flat_map(|c| c.env.unwrap_or_default());
    assert_eq!(values.map(|variable| variable.value.unwrap()).collect::<Vec<_>>(), ["***"]);
}

#[test]
fn start_and_stop_watches_types_one_by_one() {
    let simulator = cluster();
    let types = ["pods", "serviceaccounts"].map(str::to_owned);
    let counts = System::new().block_on(start_and_stop::one_by_one(over(&simulator), &types)).unwrap();
    assert_eq!(counts[0], ("pods".to_owned(), 3));
    assert_eq!(counts.len(), 2);
}

#[test]
fn controller_counts_children_of_owner() {
    let (simulator, dir) = (cluster(), tempfile::tempdir().unwrap());
    let store = simulator.store();
    let metadata = json!({"name": "web", "namespace": "default"});
    let owner = store.create("deployments.apps", json!({ "metadata": metadata, "spec": {} })).unwrap().value();
    let reference =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner["metadata"]["uid"]});
    let child = |name: &str, owners: &[&Value]| {
        let metadata = json!({"name": name, "namespace": "default", "ownerReferences": owners});
        store.put("replicasets.apps", json!({ "metadata": metadata, "spec": {} })).unwrap();
    };
    let count = || {
        let owner = store.get("deployments.apps", "default", "web").unwrap().value();
        owner["metadata"]["annotations"]["example.com/owns"].as_str().map(str::to_owned)
    };
    child("one", &[&reference]);
    let config = at(Config::from_toml_str(controller::CONFIG).unwrap(), &simulator, dir.path());
    System::new()
        .block_on(controller::control(config, async {
            until(|| count().as_deref() == Some("1")).await;
            child("two", &[&reference]);
            until(|| count().as_deref() == Some("2")).await;
            assert_eq!(count().as_deref(), Some("2"));
            child("one", &[]);
            store.delete("replicasets.apps", "default", "two").unwrap();
            until(|| count().as_deref() == Some("0")).await;
        }))
        .unwrap();
    assert_eq!(count().as_deref(), Some("0"));
}
