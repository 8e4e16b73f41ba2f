//! Last modifier of an object, from its `managedFields` to handlers, streams and command output.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::Simulated,
};
use serde_json::{Value, json};

/// A time later than all times that the simulator writes.
const TIME: &str = "2999-01-01T00:00:00Z";

/// Creates or changes a config map as `manager`.
fn put(world: &Simulated, name: &str, x: &str, manager: &str) {
    let entry =
        json!({ "manager": manager, "operation": "Update", "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": {} });
    let object = json!({ "metadata": { "name": name, "managedFields": [entry] }, "data": { "x": x } });
    world.simulator.store().put("configmaps", object).unwrap();
}

fn changed_by(manager: &str) -> Value {
    json!({ "manager": manager, "operation": "Update", "time": TIME })
}

fn file(dir: &Path, name: &str, options: &str) -> String {
    format!("[handlers.{name}]\ntype = \"file\"\npath = {:?}\n{options}\n", text(dir, name))
}

/// Returns the complete lines of a file.
fn lines(dir: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(dir.join(name)).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
}

/// Returns `data` of the events in a file.
fn data(dir: &Path, name: &str) -> Vec<Value> {
    let data = |line: &String| serde_json::from_str::<Value>(line).unwrap()["data"].take();
    lines(dir, name).iter().map(data).collect()
}

fn wait_lines(engine: &Engine, dir: &Path, name: &str, count: usize) {
    engine.wait_for(name, PATIENCE, || lines(dir, name).len() >= count);
}

#[test]
fn handlers_get_changed_by_also_after_restart() {
    let world = Simulated::start();
    let dir = world.dir().to_owned();
    let template = "format = \"template\"\ntemplate = \"{{ type }} {{ changed_by.manager if changed_by }}\"";
    let handlers = [
        file(&dir, "out", "").replace("[handlers.out]\n", ""),
        file(&dir, "diff", "format = \"diff\""),
        file(&dir, "texts", template),
        file(&dir, "people", "when = 'changed_by != null && changed_by.manager == \"kubectl-edit\"'"),
    ];
    let config = format!("[state]\ndir = {:?}\n{}", text(&dir, "state"), world.config(&handlers.join("\n")));
    let engine = Engine::run(&dir, &config);
    engine.wait_ready(PATIENCE);
    let unit = |engine: &Engine| engine.json("/v1/resources")["resources"][0]["unit"].clone();
    let first = unit(&engine);
    put(&world, "a", "1", "helm");
    put(&world, "a", "2", "kubectl-edit");
    wait_lines(&engine, &dir, "diff", 2);
    wait_lines(&engine, &dir, "texts", 2);
    wait_lines(&engine, &dir, "people", 1);
    wait_lines(&engine, &dir, "out", 2);
    assert!(engine.terminate().success());
    let told = data(&dir, "diff");
    assert_eq!([&told[0]["changed_by"], &told[1]["changed_by"]], [&changed_by("helm"), &changed_by("kubectl-edit")]);
    let changes = told[1]["changes"].as_array().unwrap();
    assert!(changes.contains(&json!({ "path": "data.x", "old": "1", "new": "2" })), "{changes:?}");
    assert!(told.iter().all(|data| !data.to_string().contains("managedFields")));
    assert_eq!(lines(&dir, "texts"), ["added helm", "updated kubectl-edit"]);
    let events = data(&dir, "out");
    assert!(events.iter().all(|data| data.get("changed_by").is_none()), "{events:?}");
    assert_eq!(data(&dir, "people"), events[1..]);

    // The object is deleted during the downtime. A list finds that, and the event's data come from the state.
    world.simulator.store().delete("configmaps", "default", "a").unwrap();
    world.simulator.store().compact();
    let engine = Engine::run(&dir, &config);
    wait_lines(&engine, &dir, "diff", 3);
    wait_lines(&engine, &dir, "texts", 3);
    assert_eq!(unit(&engine), first, "what is noted is as before: the unit goes on");
    assert!(engine.terminate().success());
    let last = data(&dir, "diff").pop().unwrap();
    assert_eq!((&last["finalstateunknown"], last.get("changed_by")), (&json!(true), None));
    assert_eq!(lines(&dir, "texts")[2], "deleted ");

    let nobody = format!("[state]\ndir = {:?}\n{}", text(&dir, "state"), world.config("type = \"blackhole\""));
    let engine = Engine::run(&dir, &nobody);
    let is_another = |unit: &Value| unit.is_u64() && *unit != first;
    engine.wait_for("another unit", PATIENCE, || is_another(&unit(&engine)));
    assert!(engine.terminate().success());
}

#[test]
fn later_demand_restores_changed_by_of_old_objects() {
    let world = Simulated::start();
    let dir = world.dir().to_owned();
    let config = |handler: &str| format!("[state]\ndir = {:?}\n{}", text(&dir, "state"), world.config(handler));
    let unit = |engine: &Engine| engine.json("/v1/resources")["resources"][0]["unit"].clone();
    let nobody = config("type = \"blackhole\"");
    let asking = config(&file(&dir, "diff", "format = \"diff\"").replace("[handlers.diff]\n", ""));
    put(&world, "a", "1", "helm");
    let engine = Engine::run(&dir, &nobody);
    engine.wait_ready(PATIENCE);
    let before = unit(&engine);
    assert!(engine.terminate().success());
    let engine = Engine::run(&dir, &asking);
    engine.wait_for("another unit", PATIENCE, || unit(&engine).is_u64() && unit(&engine) != before);
    engine.wait_ready(PATIENCE);
    assert!(engine.terminate().success());
    // A handler that joins gets its data from the state alone.
    let joining = format!("{asking}{}", file(&dir, "late", "format = \"diff\"\ninitial = \"send\""));
    let engine = Engine::run(&dir, &joining);
    wait_lines(&engine, &dir, "late", 1);
    assert_eq!(data(&dir, "late")[0]["changed_by"], changed_by("helm"));
    assert!(engine.terminate().success());
}

#[test]
fn merged_events_keep_latest_changed_by() {
    let world = Simulated::start();
    let dir = world.dir().to_owned();
    let bounds = "buffer = { max_events = 3, when_full = \"coalesce\" }\nformat = \"diff\"";
    let handler = file(&dir, "out", bounds).replace("[handlers.out]\n", "");
    let engine = world.run(&handler);
    put(&world, "a", "0", "helm");
    wait_lines(&engine, &dir, "out", 1);
    let post = |action: &str| {
        let path = format!("/v1/handlers/out/{action}");
        assert_eq!(crate::support::engine::request(&engine.http, "POST", &path, &[]).unwrap().code, 200);
    };
    post("pause");
    for change in 1..40 {
        put(&world, "a", &change.to_string(), if change == 39 { "kubectl-edit" } else { "argocd" });
    }
    let version = world.simulator.store().get("configmaps", "default", "a").unwrap().version().to_string();
    let path = "/api/v1/namespaces/default/configmaps/a";
    engine.wait_for("the last state", PATIENCE, || engine.json(path)["metadata"]["resourceVersion"] == *version);
    post("resume");
    let is_last = |data: &Value| data["changes"].to_string().contains("\"new\":\"39\"");
    engine.wait_for("the last change", PATIENCE, || data(&dir, "out").last().is_some_and(is_last));
    let mut told = data(&dir, "out");
    assert!(told.len() < 40, "they were merged: {}", told.len());
    assert_eq!(told.pop().unwrap()["changed_by"], changed_by("kubectl-edit"));
    assert!(engine.terminate().success());
}

/// Returns the first output of `deltabus tail`, without the time of day.
fn tail(engine: &Engine, arguments: &[&str]) -> String {
    use std::io::{BufRead as _, BufReader};
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(["tail", "cm", "-n", "default", "--since", "0"]).args(arguments).env("NO_COLOR", "1");
    command.env("DELTABUS_ENGINE", format!("http://{}", engine.http));
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    line.trim_end().split_once(' ').map(|(_, said)| said.to_owned()).unwrap_or(line)
}

#[test]
fn tail_shows_changed_by_where_available() {
    let handler = |options: &str| format!("type = \"blackhole\"\n{options}");
    for (drop, options, expected) in [
        ("", "when = 'changed_by != null'", Some("kubectl-edit")),
        ("mode = \"metadata\"", "when = 'changed_by != null'", Some("kubectl-edit")),
        ("drop = []", "", Some("kubectl-edit")),
        ("", "", None),
    ] {
        let world = Simulated::start();
        let config = world.config(&handler(options)).replace("[handlers.out]", &format!("{drop}\n[handlers.out]"));
        let config = format!("[state]\ndir = {:?}\n{config}", text(world.dir(), "state"));
        let engine = Engine::run(world.dir(), &config);
        engine.wait_ready(PATIENCE);
        put(&world, "a", "1", "kubectl-edit");
        let version = world.simulator.store().get("configmaps", "default", "a").unwrap().version();
        let by = expected.map(|manager| format!("  by {manager}")).unwrap_or_default();
        let said = tail(&engine, &["--type", "added"]);
        assert_eq!(said, format!("+ default/configmap/a  v{version}{by}"), "{drop} {options}");
        assert!(engine.terminate().success());
    }
}

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/writers/deployments/web";

/// Writes a deployment by each kind of request.
fn write_in_each_way(cluster: &Cluster) {
    let send = |method: &str, path: &str, manager: &str, body: &Value| {
        let (code, answer) = cluster.request(method, &format!("{path}?fieldManager={manager}"), Some(body));
        assert!((200..300).contains(&code), "{method} {path}: {answer}");
    };
    let patch =
        |below: &str, manager: &str, body: Value| send("PATCH", &format!("{DEPLOYMENT}{below}"), manager, &body);
    let (labels, controller) = (json!({ "app": "web" }), "kube-controller-manager");
    let pod = |image: &str| json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "web", "image": image }] } });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": pod("web:1") });
    let deployment =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec });
    let replicas = |count: u32| json!({ "spec": { "replicas": count } });
    let status = |replicas: u32| json!({ "status": { "replicas": replicas, "observedGeneration": replicas } });
    let applied = |value: &str| {
        let metadata = json!({ "name": "web", "annotations": { "by": value } });
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata })
    };
    send("POST", DEPLOYMENT.strip_suffix("/web").unwrap(), "kubectl-create", &deployment);
    patch("/status", controller, status(1));
    patch("/scale", "kubectl", replicas(2));
    patch("/status", controller, status(2));
    patch("/scale", "kubectl", replicas(3));
    patch("", "kubectl-set", json!({ "spec": { "template": pod("web:2") } }));
    patch("/status", controller, status(3));
    patch("/status", controller, status(4));
    for (manager, value) in [("one", "1"), ("two", "2"), ("one", "3"), ("one", "4"), ("one", "5"), ("two", "6")] {
        cluster.apply_as(manager, DEPLOYMENT, &applied(value));
    }
    // the API server records no writer that only removes what others have set
    patch("", "kubectl-annotate", json!({ "metadata": { "annotations": null } }));
    cluster.delete(DEPLOYMENT);
}

/// The entry with the newest time often belongs to another client: a write of `scale` has no time, and many writes happen within
/// a second.
#[test]
fn each_write_to_real_server_names_its_writer() {
    let Some(cluster) = Cluster::shared_or_skip("each_write_to_real_server_names_its_writer") else { return };
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "writers" } }));
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n[resources.all]\nmatch = [\"deployments.apps\"]\n\
         namespaces = [\"writers\"]\n{}{}",
        cluster.kubeconfig().display().to_string(),
        file(dir.path(), "diff", "format = \"diff\""),
        file(dir.path(), "scaled", "when = 'changed_by != null && changed_by.subresource == \"scale\"'"),
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(PATIENCE);
    write_in_each_way(cluster);
    wait_lines(&engine, dir.path(), "diff", 16);
    let writer = |data: &Value| {
        let part = |name: &str| data["changed_by"][name].as_str().unwrap_or_default().to_owned();
        format!("{} {}", part("manager"), part("subresource")).trim_end().to_owned()
    };
    let (status, scale) = ("kube-controller-manager status", "kubectl scale");
    let expected = ["kubectl-create", status, scale, status, scale, "kubectl-set", status, status];
    let applied = ["one", "two", "one", "one", "one", "two"];
    let writers: Vec<_> = data(dir.path(), "diff").iter().map(writer).collect();
    assert_eq!(writers, [&expected[..], &applied, &["", ""]].concat());
    wait_lines(&engine, dir.path(), "scaled", 2);
    assert!(engine.terminate().success());
    assert_eq!(lines(dir.path(), "scaled").len(), 2);
}
