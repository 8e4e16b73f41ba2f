//! The examples, run against the simulated cluster: what is shown works.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../examples/own_handler.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod own_handler;
#[path = "../examples/tail.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod tail;
#[path = "../examples/typed_lister.rs"]
#[expect(dead_code, reason = "`main` is not called here")]
mod typed_lister;

use std::{cell::Cell, collections::BTreeMap, fs, path::Path, rc::Rc, time::Duration};

use actix::System;
use deltabus::{
    config::{Config, FileSink, Fsync, Sink},
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

/// Points a configuration at the simulated cluster.
fn at(mut config: Config, simulator: &Simulator, dir: &Path) -> Config {
    let path = dir.join("kubeconfig");
    fs::write(&path, simulator.kubeconfig()).unwrap();
    config.kube.kubeconfig = Some(path);
    config.http.listen = None;
    config
}

/// Waits until it holds, for some seconds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn tail_shows_what_is_there_and_what_changes() {
    let (simulator, dir) = (cluster(), tempfile::tempdir().unwrap());
    let out = dir.path().join("out");
    let mut config = at(tail::config(&["po".to_owned()]).unwrap(), &simulator, dir.path());
    let path = out.to_str().unwrap().to_owned();
    config.handlers.get_mut("out").unwrap().sink = Sink::File(FileSink { path, rotate: None, fsync: Fsync::Never });
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
            // The first state is not sent; a change after it is.
            for restarts in 1..=250 {
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
    let (simulator, dir) = (cluster(), tempfile::tempdir().unwrap());
    let config = at(Config::from_toml_str(typed_lister::CONFIG).unwrap(), &simulator, dir.path());
    let by_node = System::new().block_on(typed_lister::pods_by_node(config)).unwrap();
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
