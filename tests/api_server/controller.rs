//! `examples/controller.rs` as a separate process with a real API server. Its final writes are correct whatever children
//! do, despite other writers, and after a stop at any time.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed; it waits by the clock"
)]

#[path = "../../examples/controller.rs"]
mod example;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::cluster::Cluster;
use deltabus::internals::list_watch::kube::{ClusterAccess, KubeOptions};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// Variable that is set in the controller's process.
const ROLE_ENV: &str = "DELTABUS_TEST_IS_CONTROLLER";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";

/// The controller process for the tests below; does nothing when run as a test.
#[test]
fn controller_runs_as_child_process() {
    if std::env::var_os(ROLE_ENV).is_some() {
        example::main().unwrap();
    }
}

/// The running controller; killed when dropped.
struct Controller {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Controller {
    fn start(kubeconfig: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "controller::controller_runs_as_child_process", "--nocapture"])
            .env(ROLE_ENV, "1")
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                copy.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, log }
    }

    fn conflicts(&self) -> usize {
        self.log.lock().unwrap().matches("the object has been modified").count()
    }

    /// Sends SIGTERM and waits for the exit.
    fn terminate(mut self) -> ExitStatus {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "kill works");
        until("the controller has stopped", || self.child.try_wait().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            eprintln!("--- log of the controller ---\n{}", self.log.lock().unwrap());
        }
    }
}

/// Waits until `ask` returns a value.
#[track_caller]
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_mins(3);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn spec(name: &str) -> Value {
    let labels = json!({ "app": name });
    json!({
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    })
}

fn deployment(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec(name)})
}

fn child(name: &str, owner: Option<(&str, &str)>) -> Value {
    let reference = |(name, uid): (&str, &str)| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": true});
    let owners: Vec<Value> = owner.into_iter().map(reference).collect();
    let metadata = json!({"name": name, "namespace": "default", "ownerReferences": owners});
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec(name)})
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Returns the annotation of each Deployment that has one.
fn counts(cluster: &Cluster) -> BTreeMap<String, String> {
    let list = cluster.get(DEPLOYMENTS);
    let counts = list["items"].as_array().unwrap().iter().filter_map(|item| {
        let count = item["metadata"]["annotations"]["example.com/owns"].as_str()?;
        Some((item["metadata"]["name"].as_str().unwrap().to_owned(), count.to_owned()))
    });
    counts.collect()
}

#[track_caller]
fn until_counts_are(cluster: &Cluster, expected: &[(&str, &str)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(name, count)| (String::from(*name), String::from(*count))).collect();
    let mut found = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_mins(3);
    while found != expected {
        assert!(Instant::now() < deadline, "{found:?} is not {expected:?}");
        thread::sleep(Duration::from_millis(20));
        found = counts(cluster);
    }
}

fn uids(cluster: &Cluster) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = cluster.get(DEPLOYMENTS);
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| (text(&item["metadata"]["name"]), text(&item["metadata"]["uid"]))).collect()
}

/// Rules: H-2, Q-11.
#[test]
fn counts_follow_children_that_come_move_and_go() {
    let Some(cluster) = Cluster::start_or_skip("counts_follow_children_that_come_move_and_go", &[]) else { return };
    cluster.apply(&list(&[deployment("a"), deployment("b")]));
    let uids = uids(&cluster);
    let (a, b) = (Some(("a", uids["a"].as_str())), Some(("b", uids["b"].as_str())));
    cluster.apply(&list(&[child("before", a), child("orphan", None)]));
    let controller = Controller::start(cluster.kubeconfig());
    until_counts_are(&cluster, &[("a", "1"), ("b", "0")]);

    cluster.apply(&list(&[child("x", a), child("y", a), child("z", b)]));
    until_counts_are(&cluster, &[("a", "3"), ("b", "1")]);
    cluster.apply(&child("x", b));
    until_counts_are(&cluster, &[("a", "2"), ("b", "2")]);
    cluster.apply(&child("orphan", b));
    cluster.delete(&format!("{REPLICA_SETS}/before"));
    until_counts_are(&cluster, &[("a", "1"), ("b", "3")]);
    cluster.apply(&child("y", None));
    until_counts_are(&cluster, &[("a", "0"), ("b", "3")]);

    // An owner with the same name as the first but another uid: the first one's children do not count.
    cluster.delete(&format!("{DEPLOYMENTS}/b"));
    cluster.apply(&deployment("b"));
    until_counts_are(&cluster, &[("a", "0"), ("b", "0")]);
    // Another client removes the annotation.
    cluster.request("PATCH", &format!("{DEPLOYMENTS}/a"), Some(&json!({"metadata": {"annotations": null}})));
    until_counts_are(&cluster, &[("a", "0"), ("b", "0")]);
    assert!(controller.terminate().success());
}

/// Writes to Deployments with these names at full speed until stopped. Returns the number of writes.
fn write_meanwhile(kubeconfig: &Path, names: [&'static str; 2], stop: &Arc<AtomicBool>) -> thread::JoinHandle<u32> {
    let options = KubeOptions { kubeconfig: kubeconfig.to_str().unwrap().to_owned(), context: String::new() };
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = ClusterAccess::load(&options).unwrap().client();
            let api: Api<Deployment> = Api::namespaced(client, "default");
            let writes = AtomicU32::new(0);
            let write = |name| {
                let (api, stop, writes) = (&api, &stop, &writes);
                async move {
                    while !stop.load(Relaxed) {
                        let label = writes.fetch_add(1, Relaxed).to_string();
                        let patch = Patch::Merge(json!({"metadata": {"labels": {"written": label}}}));
                        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
                    }
                }
            };
            tokio::join!(write(names[0]), write(names[1]));
            writes.into_inner()
        })
    })
}

/// Rule: Q-10.
#[test]
fn conflicts_are_retried_until_counts_are_right() {
    let Some(cluster) = Cluster::start_or_skip("conflicts_are_retried_until_counts_are_right", &[]) else { return };
    cluster.apply(&list(&[deployment("a"), deployment("b")]));
    let uids = uids(&cluster);
    let owners = ["a", "b"].map(|name| Some((name, uids[name].as_str())));
    let controller = Controller::start(cluster.kubeconfig());
    until_counts_are(&cluster, &[("a", "0"), ("b", "0")]);

    let stop = Arc::new(AtomicBool::new(false));
    let writer = write_meanwhile(cluster.kubeconfig(), ["a", "b"], &stop);
    let mut rounds = 0;
    until("three conflicts", || {
        // Four children move from one owner to the other.
        let owner = owners[rounds % 2];
        cluster.apply(&list(&["w", "x", "y", "z"].map(|name| child(name, owner))));
        rounds += 1;
        (controller.conflicts() >= 3).then_some(())
    });
    cluster.apply(&list(&[child("w", owners[0]), child("x", owners[0]), child("y", owners[0]), child("z", owners[1])]));
    stop.store(true, Relaxed);
    let written = writer.join().unwrap();
    until_counts_are(&cluster, &[("a", "3"), ("b", "1")]);
    eprintln!("{written} other writes, {} conflicts in {rounds} rounds", controller.conflicts());
    assert!(controller.terminate().success());
}

/// Rule: Q-6.
#[test]
fn sigterm_finishes_queued_work() {
    const OWNERS: usize = 240;
    let Some(cluster) = Cluster::start_or_skip("sigterm_finishes_queued_work", &[]) else { return };
    let names: Vec<_> = (0..OWNERS).map(|n| format!("d{n:03}")).collect();
    cluster.apply(&list(&names.iter().map(|name| deployment(name)).collect::<Vec<_>>()));
    let uids = uids(&cluster);
    let children = names.iter().enumerate().flat_map(|(n, name)| {
        let owner = Some((name.as_str(), uids[name].as_str()));
        (0..n % 3).map(move |child_n| child(&format!("{name}-{child_n}"), owner))
    });
    cluster.apply(&list(&children.collect::<Vec<_>>()));
    let expected: BTreeMap<_, _> =
        names.iter().enumerate().map(|(n, name)| (name.clone(), (n % 3).to_string())).collect();

    let controller = Controller::start(cluster.kubeconfig());
    let before = until("the work has begun", || Some(counts(&cluster).len()).filter(|counts| *counts > 0));
    assert!(controller.terminate().success());
    assert!(before < OWNERS, "it was in the middle of it");
    assert_eq!(counts(&cluster), expected, "{before} of {OWNERS} were written at the SIGTERM");

    // Changes of the downtime are seen at the next start.
    cluster.apply(&child("d000-late", Some(("d000", uids["d000"].as_str()))));
    cluster.delete(&format!("{REPLICA_SETS}/d001-0"));
    let controller = Controller::start(cluster.kubeconfig());
    let differing =
        || counts(&cluster).into_iter().filter(|(name, count)| expected[name] != *count).collect::<Vec<_>>();
    let corrected = [("d000".to_owned(), "1".to_owned()), ("d001".to_owned(), "0".to_owned())];
    until("the counts are right again", || (differing() == corrected).then_some(()));
    assert!(controller.terminate().success());
}
