//! kubectl with the read API: its output for the cache equals that for the API server.

#![expect(clippy::disallowed_methods, reason = "tests wait by the clock")]

use std::{
    fs,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
    living::Kubectl,
    scripted::PATIENCE,
};
use deltabus::internals::{
    list_watch::kube::{ClusterAccess, KubeOptions, raw::RawClient},
    simulator::{Simulator, SimulatorOptions},
};
use serde_json::{Value, json};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// Compared types, and their paths.
const TYPES: [(&str, &str); 17] = [
    ("pods", "/api/v1/namespaces/shown/pods"),
    ("nodes", "/api/v1/nodes"),
    ("services", "/api/v1/namespaces/shown/services"),
    ("namespaces", "/api/v1/namespaces"),
    ("configmaps", "/api/v1/namespaces/shown/configmaps"),
    ("events", "/api/v1/namespaces/shown/events"),
    ("persistentvolumeclaims", "/api/v1/namespaces/shown/persistentvolumeclaims"),
    ("serviceaccounts", "/api/v1/namespaces/shown/serviceaccounts"),
    ("deployments.apps", "/apis/apps/v1/namespaces/shown/deployments"),
    ("replicasets.apps", "/apis/apps/v1/namespaces/shown/replicasets"),
    ("statefulsets.apps", "/apis/apps/v1/namespaces/shown/statefulsets"),
    ("daemonsets.apps", "/apis/apps/v1/namespaces/shown/daemonsets"),
    ("jobs.batch", "/apis/batch/v1/namespaces/shown/jobs"),
    ("cronjobs.batch", "/apis/batch/v1/namespaces/shown/cronjobs"),
    ("ingresses.networking.k8s.io", "/apis/networking.k8s.io/v1/namespaces/shown/ingresses"),
    ("customresourcedefinitions.apiextensions.k8s.io", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
    ("gauges.test.deltabus.dev", "/apis/test.deltabus.dev/v1/namespaces/shown/gauges"),
];

/// A cluster with an object of every kind of table, and an engine that watches it. Skips if the cluster cannot be built.
struct Fixture {
    cluster: Cluster,
    engine: Engine,
    dir: tempfile::TempDir,
}

fn start(test: &str) -> Option<Fixture> {
    let cluster = Cluster::start_or_skip(test, &["--disable-admission-plugins=ServiceAccount,DefaultIngressClass"])?;
    populate(&cluster);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let types: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
    let kubeconfig = cluster.kubeconfig().display();
    let config = format!(
        "[kube]\nkubeconfig = \"{kubeconfig}\"\n[resources.all]\nmatch = {types:?}\ndrop = []\n\
         [resources.hidden]\nmatch = [\"secrets\"]\n[handlers.count]\ntype = \"blackhole\"\n"
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(PATIENCE);
    Some(Fixture { cluster, engine, dir })
}

impl Fixture {
    /// Runs kubectl against the engine.
    fn of_the_cache(&self, kubectl: &Kubectl, args: &[&str]) -> Output {
        let server = format!("http://{}", self.engine.http);
        self.run(kubectl, &["--server", &server, "--kubeconfig", "/dev/null"], args)
    }

    /// Runs kubectl against the API server.
    fn of_the_server(&self, kubectl: &Kubectl, args: &[&str]) -> Output {
        let kubeconfig = self.cluster.kubeconfig().to_str().expect("paths of tests are text");
        self.run(kubectl, &["--kubeconfig", kubeconfig], args)
    }

    fn run(&self, kubectl: &Kubectl, to: &[&str], args: &[&str]) -> Output {
        let mut command = kubectl.command();
        command.args(to).args(args).env("HOME", self.dir.path()).env_remove("KUBECONFIG");
        command.output().expect("kubectl runs")
    }
}

/// Returns pod statuses with all states of containers and init containers.
fn pod_statuses() -> Vec<(&'static str, Value)> {
    let running = |ready| {
        json!({"name": "main", "ready": ready, "restartCount": 0, "image": "x", "imageID": "",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
    };
    let restarted = json!({"name": "main", "ready": true, "restartCount": 4, "image": "x", "imageID": "",
        "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}});
    let waiting = |reason: &str| {
        json!({"name": "main", "ready": false, "restartCount": 7, "image": "x", "imageID": "",
        "state": {"waiting": {"reason": reason}}})
    };
    let ended = |name: &str, code: i64, reason: &str, signal: i64| {
        json!({"name": name, "ready": false, "restartCount": 0, "image": "x", "imageID": "",
            "state": {"terminated": {"exitCode": code, "reason": reason, "signal": signal}}})
    };
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let init = |statuses: Value| json!({"phase": "Pending", "initContainerStatuses": statuses});
    let sidecar = json!({"name": "side", "ready": true, "started": true, "restartCount": 2, "image": "x", "imageID": "",
        "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-02-01T00:00:00Z"}}});
    vec![
        ("pending", json!({"phase": "Pending"})),
        (
            "running",
            json!({"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}],
            "conditions": ready, "containerStatuses": [running(true)]}),
        ),
        ("unready", json!({"phase": "Running", "containerStatuses": [running(false)]})),
        ("restarted", json!({"phase": "Running", "containerStatuses": [restarted]})),
        ("looping", json!({"phase": "Running", "containerStatuses": [waiting("CrashLoopBackOff")]})),
        ("completed", json!({"phase": "Succeeded", "containerStatuses": [ended("main", 0, "Completed", 0)]})),
        ("failed", json!({"phase": "Failed", "containerStatuses": [ended("main", 3, "", 0)]})),
        ("killed", json!({"phase": "Failed", "containerStatuses": [ended("main", 0, "", 9)]})),
        ("evicted", json!({"phase": "Failed", "reason": "Evicted"})),
        (
            "gated",
            json!({"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
        ),
        (
            "half",
            json!({"phase": "Running", "conditions": ready,
            "containerStatuses": [running(true), ended("second", 0, "Completed", 0)]}),
        ),
        (
            "init-waits",
            init(json!([{"name": "setup", "ready": false, "restartCount": 1, "image": "x", "imageID": "",
            "state": {"waiting": {"reason": "PodInitializing"}}}])),
        ),
        ("init-fails", init(json!([ended("setup", 5, "Error", 0)]))),
        ("init-signal", init(json!([ended("setup", 5, "", 15)]))),
        (
            "sidecar",
            json!({"phase": "Running", "containerStatuses": [running(true)],
            "initContainerStatuses": [sidecar, ended("setup", 0, "Completed", 0)]}),
        ),
        (
            "sidecar-waits",
            init(json!([sidecar, {"name": "setup", "ready": false, "restartCount": 1, "image": "x",
            "imageID": "", "state": {"running": {}}}])),
        ),
    ]
}

/// Sets the status of an object.
fn patch_status(cluster: &Cluster, path: &str, status: &Value) {
    let (code, body) = cluster.request("PATCH", &format!("{path}/status"), Some(&json!({"status": status})));
    assert_eq!(code, 200, "{path}: {body}");
}

fn populate(cluster: &Cluster) {
    cluster.apply_yaml(OBJECTS);
    for (name, status) in pod_statuses() {
        let gates =
            if name == "running" { json!([{"conditionType": "Ready"}, {"conditionType": "x.y/z"}]) } else { json!([]) };
        let finalizers = if name == "unready" { json!(["test.deltabus.dev/stay"]) } else { json!([]) };
        cluster.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shown", "finalizers": finalizers},
            "spec": {
                "nodeName": if name == "running" { "big" } else { "" },
                "readinessGates": gates,
                "initContainers": [{"name": "side", "image": "x", "restartPolicy": "Always"}, {"name": "setup", "image": "x"}],
                "containers": [{"name": "main", "image": "x"}, {"name": "second", "image": "y"}],
            },
        }));
        patch_status(cluster, &format!("/api/v1/namespaces/shown/pods/{name}"), &status);
    }
    cluster.delete("/api/v1/namespaces/shown/pods/unready"); // its finalizer keeps it
    for (path, status) in [
        (
            "/api/v1/nodes/big",
            json!({
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "ExternalIP", "address": "1.2.3.4"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian", "kernelVersion": "6.1", "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2", "machineID": "", "systemUUID": "", "bootID": "",
                "kubeProxyVersion": "", "operatingSystem": "linux"}}),
        ),
        ("/api/v1/nodes/down", json!({"conditions": [{"type": "Ready", "status": "Unknown"}]})),
        (
            "/api/v1/namespaces/shown/services/balanced",
            json!({"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "a.example"}]}}),
        ),
        (
            "/apis/apps/v1/namespaces/shown/deployments/web",
            json!({"replicas": 3, "readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}),
        ),
        ("/apis/apps/v1/namespaces/shown/replicasets/web", json!({"replicas": 2, "readyReplicas": 1})),
        (
            "/apis/apps/v1/namespaces/shown/daemonsets/agent",
            json!({"desiredNumberScheduled": 5, "currentNumberScheduled": 4,
            "numberReady": 3, "updatedNumberScheduled": 2, "numberAvailable": 1, "numberMisscheduled": 0}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/shown/ingresses/many",
            json!({"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}}),
        ),
        ("/apis/batch/v1/namespaces/shown/cronjobs/nightly", json!({"lastScheduleTime": "2026-01-01T00:00:00Z"})),
        (
            "/apis/batch/v1/namespaces/shown/jobs/done",
            json!({
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:05:30Z", "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]}),
        ),
        ("/apis/batch/v1/namespaces/shown/jobs/parallel", json!({"startTime": "2026-01-01T00:00:00Z"})),
    ] {
        patch_status(cluster, path, &status);
    }
}

/// Requests a table from both, until both have answered within the same second, because ages count seconds.
fn tables(fixture: &Fixture, path: &str) -> (Value, Value) {
    let options =
        KubeOptions { kubeconfig: fixture.cluster.kubeconfig().display().to_string(), ..KubeOptions::default() };
    let server = ClusterAccess::load(&options).expect("the fixture wrote it");
    let engine =
        ClusterAccess::without_credentials(&format!("http://{}", fixture.engine.http), "engine").expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clients = [&engine, &server].map(RawClient::new);
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let [ours, theirs] = [0, 1].map(|i| clients[i].get(path, TABLE, Duration::from_mins(1)));
            let (ours, theirs) = tokio::join!(ours, theirs);
            let [ours, theirs] = [ours, theirs].map(|answer| {
                let mut table: Value = serde_json::from_slice(&answer.expect("an answer").body).expect("a table");
                for column in table["columnDefinitions"].as_array_mut().expect("a table has columns") {
                    column["description"].take();
                }
                // The server builds its table from its internal form, which has this annotation elsewhere.
                for row in table["rows"].as_array_mut().expect("a table has rows") {
                    if row["object"]["metadata"]["annotations"]["deprecated.daemonset.template.generation"].is_string()
                    {
                        row["object"]["metadata"].as_object_mut().expect("it is one").remove("annotations");
                    }
                }
                table
            });
            if ours["rows"] == theirs["rows"] || Instant::now() > deadline {
                return (ours, theirs);
            }
            thread::sleep(Duration::from_millis(150));
        }
    })
}

#[test]
fn tables_equal_those_of_api_server() {
    let Some(fixture) = start("tables_equal_those_of_api_server") else { return };
    for (name, path) in TYPES {
        let (ours, theirs) = tables(&fixture, path);
        assert!(!theirs["rows"].as_array().expect("rows").is_empty(), "{name}: there is something to compare");
        assert_eq!(ours["columnDefinitions"], theirs["columnDefinitions"], "{name}");
        let cells = |table: &Value| -> Vec<Value> {
            table["rows"].as_array().expect("rows").iter().map(|row| json!([row["cells"], row["conditions"]])).collect()
        };
        for (ours, theirs) in cells(&ours).iter().zip(&cells(&theirs)) {
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(ours["rows"], theirs["rows"], "{name}");
    }
}

#[test]
fn kubectl_prints_the_same_from_cache_and_server() {
    let test = "kubectl_prints_the_same_from_cache_and_server";
    let Some(kubectl) = Kubectl::build_or_skip(test) else { return };
    let Some(fixture) = start(test) else { return };
    for args in [
        &["get", "pods", "-A"][..],
        &["get", "po", "-n", "shown", "running", "-o", "wide"],
        &["get", "deploy", "-n", "shown", "-o", "yaml"],
        &["get", "deployment.apps/web", "-n", "shown", "-o", "json"],
        &["get", "nodes", "--show-labels"],
        &["get", "svc,cm", "-n", "shown", "-o", "name"],
        &["get", "pods", "-n", "shown", "--sort-by=.metadata.name", "--no-headers"],
        &["get", "gauges", "-n", "shown"],
        &["get", "pods", "-n", "shown", "-o", "jsonpath={.items[*].metadata.uid}"],
        &["get", "pods", "-n", "shown", "-l", "none=such"],
        &["get", "nodes", "-L", "zone,kubernetes.io/role", "--no-headers"],
    ] {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            // run both at once: ages are in seconds
            let (ours, theirs) = thread::scope(|scope| {
                let ours = scope.spawn(|| fixture.of_the_cache(&kubectl, args));
                let theirs = fixture.of_the_server(&kubectl, args);
                (ours.join().expect("kubectl runs"), theirs)
            });
            assert!(theirs.status.success(), "{args:?}: {}", String::from_utf8_lossy(&theirs.stderr));
            if ours.stdout == theirs.stdout {
                break;
            }
            let shown = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                Instant::now() < deadline,
                "{args:?}:\n{}\n{}{}",
                shown(&theirs),
                shown(&ours),
                String::from_utf8_lossy(&ours.stderr)
            );
        }
    }
    let cached = |args: &[&str]| fixture.of_the_cache(&kubectl, args);
    let output = cached(&["get", "pods", "-n", "shown", "absent"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "Error from server (NotFound): pods \"absent\" not found\n");
    let output = cached(&["get", "leases"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the server doesn't have a resource type \"leases\""));
    let output = cached(&["get", "secrets", "-A", "-o", "yaml"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("values are redacted"));
    let output = cached(&["delete", "pod", "-n", "shown", "pending"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("deltabus is a read-only cache"), "{output:?}");
    let output = cached(&["api-resources", "--no-headers"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), TYPES.len() + 1);
}

/// Options of `get pods`, for which `deltabus get` prints the same as kubectl. The templates are those of Kubernetes' page about
/// `JSONPath` and of client-go's tests, and those in which the dialect differs from RFC 9535.
const OPTIONS: [&str; 62] = [
    "jsonpath={.items[*].metadata.name}",
    "jsonpath={.items[].metadata.name}",
    "jsonpath={.items[0]['metadata.name','status.phase']}",
    "jsonpath={.items[*]['metadata.name', 'status.phase']}",
    "jsonpath={.items[*]['metadata.name', 'status.capacity']}",
    "jsonpath={.items[0].metadata.labels['a\\.b/c']}",
    "jsonpath={.items[0].metadata.labels.a\\.b/c}{.items[0].metadata.labels.my-app}",
    "jsonpath={.items[?(@.metadata.annotations.a\\.b/c==\"d\")].metadata.name}",
    "jsonpath={.items[?(@.metadata.annotations['a\\.b/c']=='d')].metadata.name}",
    "jsonpath={range .items[*]}{.metadata.name}, {end}{.kind}",
    "jsonpath={range.items[*]}{.metadata.name}{\"\\t\"}{.status.startTime}{\"\\n\"}{end }",
    "jsonpath={range .items[*]}[{.metadata.name}, {.status.phase}] {end}",
    "jsonpath={range .items[*]}{range .spec.containers[*]}{.image}, {end}{end}",
    "jsonpath={range .items[*]}{.metadata.name}:{range @.spec.containers[*]}{.name},{end}+{end}",
    "jsonpath={range .items[?(.status.phase==\"Running\")]}{.metadata.name}{\" is Running\\n\"}{end}",
    "jsonpath={range .items[*].metadata.name}{@},{end}{range .none[*]}{.x}{end}after",
    "jsonpath={@}{$}",
    "jsonpath={.items[0].spec}{.items[0].status.conditions}",
    "jsonpath={.items[0].spec.containers[0]['name']}{@['kind']}",
    "jsonpath={.items[0:2].metadata.name}{.items[::2].metadata.name}{.items[-1:].metadata.name}{.items[-2].metadata.name}",
    "jsonpath={.items[0:0].kind}{.items[5:5].kind}{.items[0:-1].kind}{.items[1:2:4].kind}",
    "jsonpath={.items[0,2].metadata.name}{.items[0].spec.none[0]}{.items[*].none.deeper}",
    "jsonpath={.items[?(@.spec.priority>2)].metadata.name}{.items[?(@.spec.priority<=2)].metadata.name}",
    "jsonpath={.items[?(@.metadata.labels.app!=\"web\")].metadata.name}{.items[?(@.metadata.labels.app)].metadata.name}",
    "jsonpath={.items[?(@.status.phase == 'Running')].metadata.name}{.items[?(@..ready==true)].metadata.name}",
    "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].status}",
    "jsonpath={..phase}{...phase}{.items..phase}{..metadata['name']}",
    "jsonpath={ .kind }{ \"{\" }{ 'it\\'s' }{1}{2.5}{true}{.kind \"x\"} } a}b",
    "jsonpath={.items[0].kind.x}{.items[0].metadata.name.first}",
    // Errors.
    "jsonpath={.items[9].metadata.name}",
    "jsonpath={.items[-9].metadata.name}",
    "jsonpath={.items[0:9].metadata.name}",
    "jsonpath={.items[1:0].metadata.name}",
    "jsonpath={.items[0:3:0].metadata.name}",
    "jsonpath={.items[0].spec[*]}",
    "jsonpath={.items[0].metadata[?(@.name)]}",
    "jsonpath={.items[?(@.spec.priority==\"x\")].metadata.name}",
    "jsonpath={.items[?(@.metadata.name==\"a\"||@.metadata.name==\"b\")].metadata.name}",
    "jsonpath={.items[?@.metadata.name].metadata.name}",
    "jsonpath={.items[?(@.spec.priority<>2)].metadata.name}",
    "jsonpath={.items[(@.length-1)].kind}",
    "jsonpath={.items",
    "jsonpath={.items[}",
    "jsonpath={.items]}",
    "jsonpath=x{end}",
    "jsonpath={kind}",
    "jsonpath={\"a}",
    "jsonpath={..*}",
    "jsonpath={....name}",
    "--sort-by=.metadata.name",
    "--sort-by={.metadata.name}",
    "--sort-by=spec.priority",
    "--sort-by=.metadata.annotations.size",
    "--sort-by=.metadata.annotations.word",
    "--sort-by=.spec.containers[0].image",
    "--sort-by=.metadata.annotations.none",
    "--sort-by={.metadata.name",
    "--sort-by=.spec.containers[",
    "custom-columns=N:.metadata.name,L:.metadata.labels,C:{.spec.containers},I:spec.containers[*].image,X:.none",
    "custom-columns=N:.metadata.name,R:.status.conditions[?(@.type==\"Ready\")].status,P:.spec.priority",
    "custom-columns=N:.spec.containers[1].name",
    "custom-columns=N:{.metadata.name",
];

#[test]
fn get_prints_the_same_as_kubectl() {
    let Some(kubectl) = Kubectl::build_or_skip("get_prints_the_same_as_kubectl") else { return };
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let pod = |name: &str, priority: u32, size: &str, word: &str, phase: &str, images: &[&str]| {
        let containers = images.iter().enumerate().map(|(at, image)| json!({"name": format!("c{at}"), "image": image}));
        json!({
            "metadata": {"namespace": "default", "name": name,
                "labels": if name == "a" { json!({"a.b/c": "d", "my-app": "m", "app": "api"}) } else { json!({"app": "web"}) },
                "annotations": {"a.b/c": if name == "a" { "d" } else { "e" }, "size": size, "word": word}},
            "spec": {"priority": priority, "containers": containers.collect::<Vec<_>>()},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True", "ready": name == "b-10"}]},
        })
    };
    for pod in [
        pod("a", 10, "1Gi", "web-2", "Running", &["x:2"]),
        pod("b-10", 2, "999Mi", "web-10", "Pending", &["x:10", "y:1"]),
        pod("b-9", 3, "250m", "Zed", "Running", &["X:1", "z:1"]),
    ] {
        simulator.store().create("pods", pod).expect("a valid object");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = text(dir.path(), "kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let config = format!(
        "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.all]\nmatch = [\"pods\"]\n[handlers.x]\ntype = \"blackhole\"\n"
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(PATIENCE);
    let server = format!("http://{}", engine.http);
    let run = |mut command: Command, option: &str| {
        let is_format = !option.starts_with("--");
        command.args(["get", "pods"]).args(if is_format { &["-o"][..] } else { &["-o", "name"] }).arg(option);
        command.env("HOME", dir.path()).env("NO_COLOR", "1").output().expect("the program runs")
    };
    let compare = |option: &&str| {
        let mut theirs = kubectl.command();
        theirs.args(["--server", &server, "--kubeconfig", "/dev/null"]);
        let mut ours = Command::new(env!("CARGO_BIN_EXE_deltabus"));
        ours.env("DELTABUS_ENGINE", &server);
        let (theirs, ours) = (run(theirs, option), run(ours, option));
        let [says, said] = [&theirs, &ours].map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(ours.status.success(), theirs.status.success(), "{option}: kubectl: {says}\ndeltabus: {said}");
        if theirs.status.success() {
            let [theirs, ours] = [theirs, ours].map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            assert_eq!(ours, theirs, "{option}");
        } else {
            assert!(said.starts_with("error: "), "{option}: {said}");
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = OPTIONS
            .chunks(OPTIONS.len().div_ceil(4))
            .map(|options| scope.spawn(move || options.iter().for_each(compare)))
            .collect();
        for thread in threads {
            thread.join().expect("the outputs are equal");
        }
    });
}

#[test]
fn kubectl_shows_what_is_possible_with_cache() {
    let Some(kubectl) = Kubectl::build_or_skip("kubectl_shows_what_is_possible_with_cache") else { return };
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let meta = json!({"namespace": "default", "name": "web"});
    let spec = json!({"containers": [{"name": "main", "image": "x"}]});
    // kubectl forwards no port of a pod that does not run.
    let pod = json!({"metadata": meta, "spec": spec, "status": {"phase": "Running"}});
    simulator.store().create("pods", pod).expect("a valid object");
    simulator.store().create("deployments.apps", json!({"metadata": meta, "spec": {}})).expect("a valid object");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [kubeconfig, manifest] = ["kubeconfig", "pod.yaml"].map(|name| text(dir.path(), name));
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let written = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: main, image: z}]}}";
    fs::write(&manifest, written).expect("the directory is writable");
    let config = format!(
        "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.all]\nmatch = [\"pods\", \"deployments.apps\", \"configmaps\"]\n\
         [handlers.x]\ntype = \"blackhole\"\n"
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(PATIENCE);
    let server = format!("http://{}", engine.http);
    let run = |args: &[&str]| {
        let mut command = kubectl.command();
        command.args(["--server", &server, "--kubeconfig", "/dev/null"]).args(args).env("HOME", dir.path());
        command.output().expect("kubectl runs")
    };
    let all = run(&["get", "all", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&all.stdout), "pod/web\ndeployment.apps/web\n", "{all:?}");
    for (args, expected) in [
        (&["logs", "web"][..], "it has no pods/log: ask the API server, for example with kubectl without --server"),
        (&["exec", "web", "--", "ls"], "it has no pods/exec: ask the API server"),
        (&["port-forward", "web", "8080"], "it has no pods/portforward: ask the API server"),
        (&["scale", "deployment/web", "--replicas=3"], "deployments/scale: ask the API server"),
        (
            &["explain", "pods.spec"],
            "read-only cache without schemas: send writes and kubectl explain to the API server",
        ),
        (
            &["apply", "-f", &manifest],
            "read-only cache without schemas: send writes and kubectl explain to the API server",
        ),
        (&["apply", "--validate=false", "-f", &manifest], "read-only cache: send writes to the API server"),
        (&["create", "--validate=false", "-f", &manifest], "read-only cache: send writes to the API server"),
        (&["delete", "pod", "web"], "read-only cache: send writes to the API server"),
        (&["label", "pod", "web", "a=b"], "read-only cache: send writes to the API server"),
        (&["get", "--raw", "/api/v1/services"], "deltabus does not watch services: add it to `match`"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{args:?}: {said}");
    }
}

/// One object of every kind with its own table columns; statuses are set later.
const OBJECTS: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: shown}}
---
{apiVersion: v1, kind: Node, metadata: {name: big, labels: {node-role.kubernetes.io/worker: "", kubernetes.io/role: edge, zone: a}}}
---
{apiVersion: v1, kind: Node, metadata: {name: down}, spec: {unschedulable: true}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: shown}, data: {a: "1", b: "2"}, binaryData: {c: aGk=}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot, namespace: shown}}
---
{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: shown}, spec: {selector: {app: web, tier: front}, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: shown}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: node, namespace: shown}, spec: {type: NodePort, externalIPs: [5.5.5.5], ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: balanced, namespace: shown}, spec: {type: LoadBalancer, externalIPs: [5.5.5.5], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: unbalanced, namespace: shown}, spec: {type: LoadBalancer, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: elsewhere, namespace: shown}, spec: {type: ExternalName, externalName: db.example}}
---
{apiVersion: v1, kind: Event, metadata: {name: old, namespace: shown}, involvedObject: {kind: Pod, name: running, namespace: shown, fieldPath: "spec.containers{main}"}, reason: Pulled, message: " done\n", type: Normal, source: {component: kubelet, host: big}, firstTimestamp: "2026-01-01T00:00:00Z", lastTimestamp: "2026-01-02T00:00:00Z", count: 3}
---
{apiVersion: v1, kind: Event, metadata: {name: new, namespace: shown}, involvedObject: {kind: Node, name: big, namespace: shown}, reason: Scheduled, message: hi, type: Warning, eventTime: "2026-01-01T00:00:00.123456Z", reportingComponent: scheduler, reportingInstance: s-1, action: Bind}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: disk, namespace: shown}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shown}, spec: {replicas: 3, selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: In, values: [b, a]}, {key: old, operator: DoesNotExist}]}, template: {metadata: {labels: {app: web, tier: a}}, spec: {containers: [{name: a, image: x}, {name: b, image: z}]}}}}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web, namespace: shown}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: a, image: x}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shown}, spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: a, image: x}]}}}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shown}, spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {nodeSelector: {zone: a, os: linux}, containers: [{name: a, image: x}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: done, namespace: shown}, spec: {completions: 1, template: {spec: {restartPolicy: Never, containers: [{name: a, image: x}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: parallel, namespace: shown}, spec: {parallelism: 3, template: {spec: {restartPolicy: Never, containers: [{name: a, image: x}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: shown}, spec: {schedule: "0 3 * * *", timeZone: Etc/UTC, suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: x}]}}}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: weekly, namespace: shown}, spec: {schedule: "0 3 * * 0", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: x}]}}}}}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: many, namespace: shown}, spec: {ingressClassName: nginx, tls: [{secretName: t}], rules: [{host: a.example}, {host: b.example}, {host: c.example}, {host: d.example}, {host: e.example}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: any, namespace: shown}, spec: {defaultBackend: {service: {name: plain, port: {number: 80}}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gauges.test.deltabus.dev}
spec:
  group: test.deltabus.dev
  scope: Namespaced
  names: {plural: gauges, singular: gauge, kind: Gauge, shortNames: [ga]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    additionalPrinterColumns:
    - {name: Level, type: integer, jsonPath: .spec.level}
    - {name: Ratio, type: number, jsonPath: .spec.ratio, priority: 1}
    - {name: Lit, type: boolean, jsonPath: .spec.lit}
    - {name: First, type: string, jsonPath: ".spec.hosts[0]", description: the first host}
    - {name: Ready, type: string, jsonPath: ".status.conditions[?(@.type==\"Ready\")].status"}
    - {name: Union, type: string, jsonPath: ".spec['hosts', 'level']"}
    - {name: Label, type: string, jsonPath: ".metadata.labels['a\\.b/c']"}
    - {name: Third, type: string, jsonPath: ".spec.hosts[2]"}
    - {name: Text, type: string, jsonPath: ".spec.level[?(@.x)].y"}
    - {name: Deep, type: number, jsonPath: ".spec..ratio"}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
---
{apiVersion: test.deltabus.dev/v1, kind: Gauge, metadata: {name: full, namespace: shown, labels: {a.b/c: d}}, spec: {level: 3, ratio: 0.5, lit: true, hosts: [a, b]}, status: {conditions: [{type: Live, status: "False"}, {type: Ready, status: "True"}]}}
---
{apiVersion: test.deltabus.dev/v1, kind: Gauge, metadata: {name: empty, namespace: shown}}
"#;
