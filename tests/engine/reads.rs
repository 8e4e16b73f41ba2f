//! The read API and the state pages of `deltabus run`, compared with the answers of the (simulated) API server.

#![expect(clippy::disallowed_methods, reason = "tests wait by the clock")]

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    engine::{Answer, Engine, request, text},
    scripted::PATIENCE,
};
use deltabus::internals::{
    object::ObjectKey,
    simulator::{RawObject, RequestKind, ServerFault, Simulator, SimulatorOptions, Sizes, Times, Workload},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// A label that every pod of the workload has.
const LABEL: &str = "app.kubernetes.io/name";

struct Fixture {
    simulator: Simulator,
    engine: Engine,
    _dir: TempDir,
}

/// Starts a simulated cluster with a few dozen pods, and an engine that watches it.
fn start() -> Fixture {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    Workload::new(3).populate(simulator.store(), Sizes::default()).expect("an empty store");
    let secret = json!({"metadata": {"namespace": "default", "name": "password"}, "data": {"value": "aHVudGVyMg=="}});
    simulator.store().create("secrets", secret).expect("a valid object");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = run(&simulator, dir.path());
    engine.wait_ready(PATIENCE);
    Fixture { simulator, engine, _dir: dir }
}

fn run(simulator: &Simulator, dir: &Path) -> Engine {
    let kubeconfig = text(dir, "kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let config = format!(
        r#"
        [kube]
        kubeconfig = "{kubeconfig}"
        backoff = {{ initial = "50ms", max = "200ms" }}
        [resources.whole]
        match = ["pods", "nodes", "configmaps"]
        drop = []
        index = ["spec.nodeName", "metadata.uid"]
        [resources.cut]
        match = ["deployments.apps"]
        labels = "app!=nothing"
        [resources.hidden]
        match = ["secrets"]
        mode = "metadata"
        [resources.coming]
        match = ["bananas.fruit.example"]
        [handlers.count]
        type = "blackhole"
        "#
    );
    Engine::run(dir, &config)
}

impl Fixture {
    fn ask(&self, path: &str) -> Answer {
        request(&self.engine.http, "GET", path, &[]).expect("the engine answers")
    }

    fn ask_as(&self, method: &str, path: &str, accept: &str) -> Answer {
        request(&self.engine.http, method, path, &[("Accept", accept)]).expect("the engine answers")
    }

    fn ask_server(&self, path: &str) -> Answer {
        request(&self.simulator.address().to_string(), "GET", path, &[]).expect("the simulator answers")
    }

    fn list(&self, path: &str) -> Value {
        let answer = self.ask(path);
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        answer.json()
    }
}

/// Returns the items of a list in the form of built-in types: without `apiVersion` and `kind` (A-7).
fn items(list: &Value) -> Vec<Value> {
    let mut items = list["items"].as_array().expect("a list has items").clone();
    for item in &mut items {
        let item = item.as_object_mut().expect("items are objects");
        item.remove("apiVersion");
        item.remove("kind");
    }
    items
}

fn names(list: &Value) -> Vec<String> {
    items(list).iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn lists_and_objects_equal_api_server_answers() {
    let fixture = start();
    let all = fixture.list("/api/v1/pods");
    let pod = &all["items"][0]["metadata"];
    let (namespace, name) = (pod["namespace"].as_str().unwrap_or_default(), pod["name"].as_str().unwrap_or_default());
    let app = pod["labels"][LABEL].as_str().expect("pods of the workload have an app");
    let node = all["items"].as_array().unwrap().iter().find_map(|pod| pod["spec"]["nodeName"].as_str()).unwrap();
    for path in [
        "/api/v1/pods".to_owned(),
        "/api/v1/nodes?limit=0".to_owned(),
        format!("/api/v1/namespaces/{namespace}/pods"),
        format!("/api/v1/namespaces/{namespace}/pods/"),
        "/api/v1/namespaces/nowhere/pods".to_owned(),
        format!("/api/v1/pods?labelSelector={LABEL}%3D{app}"),
        format!("/api/v1/pods?labelSelector={LABEL}+in+({app},other),!nothing"),
        format!("/api/v1/pods?labelSelector={LABEL}!%3D{app}"),
        format!("/api/v1/pods?fieldSelector=metadata.name%3D{name}"),
        format!("/api/v1/pods?fieldSelector=spec.nodeName={node},status.phase!=Failed"),
        format!("/api/v1/pods?fieldSelector=status.phase%3DRunning&labelSelector={LABEL}"),
        "/api/v1/pods?resourceVersion=0&pretty=true&timeoutSeconds=3".to_owned(),
    ] {
        let (ours, theirs) = (fixture.list(&path), fixture.ask_server(&path).json());
        assert_eq!(items(&ours), items(&theirs), "{path}");
        assert_eq!((&ours["kind"], &ours["apiVersion"]), (&theirs["kind"], &theirs["apiVersion"]), "{path}");
        assert!(ours["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()), "{path}");
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    assert_eq!(fixture.ask(&path).json(), fixture.ask_server(&path).json());
    assert_eq!(fixture.ask(&path.replace("pods", "%70ods")).json(), fixture.ask_server(&path).json());
    let answer = fixture.ask(&path);
    assert_eq!((answer.header("content-type"), answer.header("warning")), ("application/json", ""));
}

#[test]
fn pages_come_from_one_snapshot_despite_writes() {
    let fixture = start();
    let before = fixture.list("/api/v1/pods");
    let first = fixture.list("/api/v1/pods?limit=7");
    let theirs = fixture.ask_server("/api/v1/pods?limit=7").json();
    assert_eq!(first["metadata"]["remainingItemCount"], theirs["metadata"]["remainingItemCount"]);
    let mut seen = names(&first);
    let mut token = first["metadata"]["continue"].as_str().expect("there is more").to_owned();
    let mut pages = 1;
    loop {
        let pod = &before["items"][pages];
        let (namespace, name) =
            (pod["metadata"]["namespace"].as_str().unwrap(), pod["metadata"]["name"].as_str().unwrap());
        drop(fixture.simulator.store().delete("pods", namespace, name));
        let page = fixture.list(&format!("/api/v1/pods?limit=7&continue={token}"));
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        seen.extend(names(&page));
        pages += 1;
        match page["metadata"]["continue"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert!(pages > 3, "{pages} pages");
    assert_eq!(seen, names(&before));
    let gone = fixture.simulator.store().list("pods").len();
    fixture.engine.wait_for("up to date", PATIENCE, || items(&fixture.list("/api/v1/pods")).len() == gone);

    // With a selector, the number of remaining items is omitted, as by the API server.
    let selected = fixture.list(&format!("/api/v1/pods?limit=1&labelSelector={LABEL}"));
    assert!(selected["metadata"]["continue"].is_string());
    assert_eq!(selected["metadata"]["remainingItemCount"], Value::Null);
}

#[test]
fn invalid_foreign_or_old_tokens_are_refused() {
    let fixture = start();
    let token = fixture.list("/api/v1/pods?limit=1")["metadata"]["continue"].as_str().unwrap().to_owned();
    let (_, offset) = token.split_once('.').expect("number of the list, then offset");
    for (path, code, reason) in [
        ("/api/v1/pods?continue=banana".to_owned(), 400, "BadRequest"),
        (format!("/api/v1/pods?continue={token}.1"), 400, "BadRequest"),
        (format!("/api/v1/nodes?continue={token}"), 400, "BadRequest"),
        (format!("/api/v1/namespaces/default/pods?continue={token}"), 400, "BadRequest"),
        (format!("/api/v1/pods?continue={token}&resourceVersion=5"), 400, "BadRequest"),
        (format!("/api/v1/pods?continue=77.{offset}"), 410, "Expired"),
    ] {
        let answer = fixture.ask(&path);
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
        assert_eq!(answer.json()["reason"].as_str().unwrap_or_default(), reason, "{path}");
    }
}

#[test]
fn index_query_filters_and_unknown_index_fails() {
    let fixture = start();
    let all = fixture.list("/api/v1/pods");
    let pod = all["items"].as_array().unwrap().iter().find(|pod| pod["spec"]["nodeName"].is_string()).unwrap();
    let node = pod["spec"]["nodeName"].as_str().unwrap();
    let by_index = fixture.list(&format!("/api/v1/pods?index=spec.nodeName&value={node}"));
    let by_field = fixture.list(&format!("/api/v1/pods?fieldSelector=spec.nodeName={node}"));
    assert_eq!(by_index["items"], by_field["items"]);
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    assert_eq!(fixture.list(&format!("/api/v1/pods?index=metadata.uid&value={uid}"))["items"], json!([pod]));
    let namespace = pod["metadata"]["namespace"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/pods?index=metadata.uid&value={uid}&labelSelector={LABEL}");
    assert_eq!(fixture.list(&path)["items"], json!([pod]));
    assert_eq!(fixture.list("/api/v1/pods?index=spec.nodeName&value=none")["items"], json!([]));
    let unknown = fixture.ask("/api/v1/pods?index=spec.nodename&value=x");
    assert_eq!(unknown.code, 400);
    assert!(unknown.body.contains("spec.nodeName") && unknown.body.contains("namespace"), "{}", unknown.body);
    assert_eq!(fixture.ask("/api/v1/pods?index=spec.nodeName").code, 400);
}

#[test]
fn refusals_match_api_server_wording() {
    let fixture = start();
    for path in [
        "/api/v1/namespaces/default/pods/absent",
        "/apis/apps/v1/namespaces/default/deployments/absent",
        "/api/v1/nodes/absent",
        "/api/v1/bananas",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/pods/absent/unknown",
        "/apis/apps/v1beta1/deployments",
    ] {
        let (ours, theirs) = (fixture.ask(path), fixture.ask_server(path));
        assert_eq!((ours.code, ours.json()), (theirs.code, theirs.json()), "{path}");
        assert_eq!(ours.header("content-type"), "application/json", "{path}");
    }
    for (path, code, reason) in [
        // The server answers "404 page not found" in a group without API server; clients treat both alike.
        ("/apis/fruit.example/v1/bananas", 404, "NotFound"),
        ("/api/v1/pods?labelSelector=a%20b", 400, "BadRequest"),
        ("/api/v1/pods?fieldSelector=a", 400, "BadRequest"),
        ("/api/v1/pods?limit=many", 400, "BadRequest"),
        ("/api/v1/pods?watch=true", 405, "MethodNotAllowed"),
        ("/api/v1/pods?resourceVersion=banana", 400, "BadRequest"),
        ("/api/v1/pods?resourceVersionMatch=Exact", 422, "Invalid"),
        ("/api/v1/pods?resourceVersion=1&resourceVersionMatch=Exact", 410, "Expired"),
        ("/api/v1/pods/absent", 404, "NotFound"),
        ("/api/v1/pods?unit=one", 400, "BadRequest"),
        ("/api/v1/pods?unit=99", 404, "NotFound"),
        ("/api/v2", 404, "NotFound"),
        ("/apis/batch", 404, "NotFound"),
        ("/apis/apps/v1beta1", 404, "NotFound"),
    ] {
        let answer = fixture.ask(path);
        let status = answer.json();
        assert_eq!((answer.code, status["reason"].as_str()), (code, Some(reason)), "{path}: {}", answer.body);
        assert_eq!((&status["kind"], &status["apiVersion"]), (&json!("Status"), &json!("v1")), "{path}");
        assert_eq!((&status["status"], &status["code"]), (&json!("Failure"), &json!(code)), "{path}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let answer = fixture.ask_as(method, "/api/v1/namespaces/default/pods/x", "");
        assert_eq!((answer.code, answer.header("allow")), (405, "GET, HEAD"), "{method}");
        assert_eq!(answer.json()["reason"], "MethodNotAllowed");
    }
    for (path, accept) in [
        ("/api/v1/pods", "application/vnd.kubernetes.protobuf"),
        ("/api/v1/pods", "application/json;as=Table;g=meta.k8s.io;v=v2"),
        ("/api/v1/pods", "application/json;as=Table"),
        ("/api/v1/pods", METADATA),
        ("/api/v1/namespaces/default/pods/absent", METADATA_LIST),
        ("/apis", "text/html"),
    ] {
        let answer = fixture.ask_as("GET", path, accept);
        assert_eq!((answer.code, answer.json()["reason"].as_str()), (406, Some("NotAcceptable")), "{path} {accept}");
    }
    assert_eq!(fixture.ask_as("GET", "/api/v1/pods?includeObject=Some", TABLE).code, 400);
    assert_eq!(fixture.ask("/nowhere").code, 404);
    let head = fixture.ask_as("HEAD", "/api/v1/pods", "*/*");
    assert_eq!((head.code, head.body.as_str(), head.header("content-type")), (200, "", "application/json"));
    assert_eq!(fixture.ask_as("HEAD", "/api/v1/namespaces/default/pods/absent", "*/*").code, 404);
}

#[test]
fn refusals_explain_what_cache_does_not_serve() {
    let fixture = start();
    for (method, path, code, expected) in [
        ("GET", "/api/v1/namespaces/default/pods/x/log", 404, "has no pods/log: ask the API server"),
        ("GET", "/api/v1/namespaces/default/pods/x/status", 404, "caches whole objects"),
        ("GET", "/apis/apps/v1/namespaces/default/deployments/x/scale", 404, "has no deployments/scale"),
        ("POST", "/api/v1/namespaces/default/pods/x/exec", 405, "has no pods/exec: ask the API server"),
        ("POST", "/api/v1/namespaces/default/pods", 405, "read-only cache: send writes to the API server"),
        ("GET", "/api/v1/services", 404, "does not watch services: add it to `match` of a [resources] entry"),
        ("GET", "/apis/batch/v1/namespaces/default/jobs/x", 404, "does not watch jobs.batch"),
        ("GET", "/api/v1/pods?watch=true", 405, "read the changes from /v1/events"),
    ] {
        let answer = fixture.ask_as(method, path, "");
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.code == code && message.contains(expected), "{method} {path}: {} {message}", answer.code);
    }
    let schemas = fixture.ask("/openapi/v3");
    assert!(schemas.code == 501 && schemas.body.contains("cache without schemas"), "{} {}", schemas.code, schemas.body);
}

#[test]
fn secrets_are_served_as_metadata_only() {
    let fixture = start();
    for path in ["/api/v1/secrets", "/api/v1/namespaces/default/secrets/password"] {
        let with_objects = format!("{path}?includeObject=Object");
        for (path, accept) in [(path, "*/*"), (path, "application/json"), (&with_objects, TABLE)] {
            let answer = fixture.ask_as("GET", path, accept);
            assert_eq!((answer.code, answer.json()["reason"].clone()), (403, json!("Forbidden")), "{path} {accept}");
        }
        // A table has the name and the age, because the cache holds no more.
        let table = fixture.ask_as("GET", path, TABLE).json();
        assert_eq!(table["columnDefinitions"].as_array().map(Vec::len), Some(2), "{table}");
        assert_eq!(table["rows"][0]["cells"][0], "password");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    }
    let one = fixture.ask_as("GET", "/api/v1/namespaces/default/secrets/password", METADATA);
    assert_eq!((one.code, one.json()["kind"].clone()), (200, json!("PartialObjectMetadata")), "{}", one.body);
    assert_eq!(one.json()["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(one.json()["metadata"]["name"], "password");
    let list =
        fixture.ask_as("GET", "/api/v1/secrets", &format!("application/vnd.kubernetes.protobuf,{METADATA_LIST}"));
    assert_eq!(list.json()["kind"], "PartialObjectMetadataList");
    assert_eq!(list.json()["items"][0], one.json());
    assert!(!one.body.contains("aHVudGVyMg") && !list.body.contains("aHVudGVyMg"));
    assert!(
        !fixture.simulator.requests().iter().any(|request| {
            request.path.contains("/secrets") && !request.accept.contains("as=PartialObjectMetadata")
        })
    );
    // Any type can be requested as metadata.
    let list = fixture.ask_as("GET", "/api/v1/pods", METADATA_LIST).json();
    let whole = fixture.list("/api/v1/pods");
    assert_eq!(list["items"][0]["metadata"], whole["items"][0]["metadata"]);
    assert_eq!(list["items"][0]["spec"], Value::Null);
}

/// Row 11 of the users' requests: dropping unneeded fields, above all `managedFields`.
#[test]
fn filtered_and_cut_content_causes_warning() {
    let fixture = start();
    let answer = fixture.ask("/apis/apps/v1/deployments");
    assert_eq!(answer.json()["items"][0]["metadata"]["managedFields"], Value::Null);
    let warnings: Vec<_> = answer.headers.iter().filter(|(name, _)| name == "warning").map(|(_, text)| text).collect();
    assert!(warnings.iter().all(|text| text.starts_with("299 deltabus \"") && text.ends_with('"')), "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains("metadata.managedFields")), "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains("app!=nothing")), "{warnings:?}");
}

/// Row 7 of the users' requests: probes that are always green.
#[test]
fn unsynced_type_answers_503_and_others_work() {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    simulator.faults().add("/api/v1/pods", RequestKind::Any, Times::Always, ServerFault::Stall).expect("a valid glob");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let fixture = Fixture { engine: run(&simulator, dir.path()), simulator, _dir: dir };
    fixture.engine.wait_for("nodes synced", PATIENCE, || fixture.ask("/api/v1/nodes").code == 200);
    let answer = fixture.ask("/api/v1/pods");
    assert_eq!((answer.code, answer.header("retry-after")), (503, "1"));
    assert_eq!(answer.json()["reason"], "ServiceUnavailable");
    let ready = fixture.ask("/readyz");
    assert_eq!(ready.code, 503);
    assert!(ready.body.contains("[-]resource/whole/pods failed: not synced"), "{}", ready.body);
    assert!(ready.body.contains("[+]resource/whole/nodes ok"), "{}", ready.body);
    assert!(ready.body.ends_with("readyz check failed\n"), "{}", ready.body);
    assert_eq!(fixture.ask("/livez").body, "ok", "a process that waits is alive");
}

/// Rules: A-6, G-8.
#[test]
fn read_waits_for_requested_version_or_fails() {
    let fixture = start();
    let store = fixture.simulator.store().clone();
    let next = store.version() + 1;
    let writer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        let object = json!({"metadata": {"namespace": "default", "name": "awaited"}});
        store.create("configmaps", object).expect("a valid object");
    });
    let answer = fixture.ask(&format!("/api/v1/namespaces/default/configmaps/awaited?resourceVersion={next}"));
    assert_eq!(answer.code, 200, "{}", answer.body);
    writer.join().expect("it wrote");
    let list = fixture.list(&format!("/api/v1/configmaps?resourceVersion={next}&resourceVersionMatch=NotOlderThan"));
    assert!(names(&list).contains(&"awaited".to_owned()));
    let started = Instant::now();
    let future = fixture.ask("/api/v1/configmaps?resourceVersion=99999999");
    let status = future.json();
    assert_eq!((future.code, future.header("retry-after")), (504, "1"));
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert!((2..20).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[test]
fn health_endpoints_match_kubernetes() {
    let fixture = start();
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = fixture.ask(path);
        assert_eq!((answer.code, answer.body.as_str()), (200, "ok"), "{path}");
        assert!(answer.header("content-type").starts_with("text/plain"), "{path}");
        let verbose = fixture.ask(&format!("{path}?verbose"));
        assert!(verbose.body.ends_with(&format!("{} check passed\n", &path[1..])), "{path}: {}", verbose.body);
    }
    let verbose = fixture.ask("/readyz?verbose=1").body;
    for check in [
        "[+]resource/whole/pods ok",
        "[+]resource/cut/deployments ok",
        "[+]resource/coming/bananas.fruit.example (waiting) ok",
        "[+]handler/count ok",
    ] {
        assert!(verbose.contains(check), "{check} in {verbose}");
    }
}

#[test]
fn state_has_fields_that_scripts_need() {
    let fixture = start();
    let is_settled = |row: &Value| {
        let is_quiet = row["queueLength"] == 0 && row["events"]["added"] == row["objects"];
        row["state"] == "waiting" || (row["state"] == "watching" && is_quiet)
    };
    fixture.engine.wait_for("settled", PATIENCE, || {
        let resources = fixture.ask("/v1/resources").json();
        let handlers = fixture.ask("/v1/handlers").json();
        let is_running = handlers["handlers"][0]["state"] == "running";
        is_running && resources["resources"].as_array().expect("a list of rows").iter().all(is_settled)
    });
    let resources = fixture.ask("/v1/resources").json();
    let rows = resources["resources"].as_array().expect("a list of rows");
    assert_eq!(rows.len(), 6);
    let pods = rows.iter().find(|row| row["plural"] == "pods").expect("pods are watched");
    assert_eq!((&pods["name"], &pods["apiVersion"], &pods["kind"]), (&json!("whole"), &json!("v1"), &json!("Pod")));
    assert_eq!((&pods["state"], &pods["synced"]), (&json!("watching"), &json!(true)));
    assert_eq!(pods["objects"], fixture.simulator.store().len("pods"));
    assert_eq!(pods["events"]["added"], pods["objects"]);
    assert!(pods["bytes"].as_u64().is_some_and(|bytes| bytes > 1000) && pods["resourceVersion"].is_string());
    for field in ["queueLength", "restarts", "lagSeconds"] {
        assert_eq!(pods[field].as_f64(), Some(0.0), "{field} in {pods}");
    }
    assert!(pods.as_object().expect("a row").contains_key("lastError"), "{pods}");
    let coming = rows.iter().find(|row| row["name"] == "coming").expect("what waits has a row");
    assert_eq!((&coming["state"], &coming["synced"]), (&json!("waiting"), &json!(false)));

    let handlers = fixture.ask("/v1/handlers").json();
    let count = &handlers["handlers"][0];
    assert_eq!(
        (&count["name"], &count["type"], &count["state"]),
        (&json!("count"), &json!("blackhole"), &json!("running"))
    );
    for field in ["queued", "delivered", "retried", "dropped", "deadLettered", "position"] {
        assert!(count[field].is_u64(), "{field} in {count}");
    }
    for field in ["oldestUndeliveredAgeSeconds", "lastError", "lastErrorAgeSeconds"] {
        assert!(count.as_object().expect("a row").contains_key(field), "{field} in {count}");
    }
}

#[test]
fn metrics_are_valid_openmetrics_and_prometheus_text() {
    let fixture = start();
    let answer = fixture.ask_as("GET", "/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(answer.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(answer.body.ends_with("# EOF\n"));
    let open = check_metrics(answer.body.trim_end_matches("# EOF\n"), true);
    let answer = fixture.ask("/metrics");
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"));
    let plain = check_metrics(&answer.body, false);
    assert_eq!(open, plain, "the same samples");
    let pods = "deltabus_objects{name=\"whole\",group=\"\",resource=\"pods\"}";
    assert!(open.iter().any(|sample| sample == pods), "{open:?}");
    assert!(open.iter().any(|sample| sample.starts_with("deltabus_events_total{")), "{open:?}");
}

/// Parses an exposition strictly and returns its samples without values. Checks one TYPE per family before its samples, no
/// duplicate samples, `_total` for counters, and numeric values.
fn check_metrics(body: &str, open_metrics: bool) -> Vec<String> {
    let mut families = std::collections::BTreeMap::new();
    let mut current = (String::new(), String::new());
    let mut samples = Vec::new();
    for line in body.lines() {
        assert!(!line.trim().is_empty() && line.trim() == line, "{line:?}");
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "one TYPE a family: {line}");
            assert!(name.starts_with("deltabus_") || name.starts_with("process_"), "{line}");
            assert!(open_metrics || matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            current = (name.to_owned(), kind.to_owned());
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect("a name and a unit");
            assert!(open_metrics && name.ends_with(&format!("_{unit}")), "{line}");
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let name = sample.split('{').next().unwrap_or_default();
            let (family, kind) = (&current.0, current.1.as_str());
            let suffixes = match kind {
                "counter" if open_metrics => &["_total"][..],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let suffix = name.strip_prefix(family.as_str());
            assert!(
                suffix.is_some_and(|suffix| suffixes.contains(&suffix)),
                "a sample of the family before it: {line}"
            );
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(!samples.contains(&sample.to_owned()), "no sample twice: {line}");
            samples.push(sample.to_owned());
        }
    }
    assert!(samples.len() > 20, "{samples:?}");
    samples.sort();
    samples
}

#[tokio::test]
async fn kube_client_reads_typed_objects() {
    use k8s_openapi::api::core::v1::Pod;
    use kube::{Api, Client, api::ListParams};
    let fixture = tokio::task::spawn_blocking(start).await.expect("it starts");
    let client =
        Client::try_from(kube::Config::new(format!("http://{}", fixture.engine.http).parse().unwrap())).unwrap();
    let pods: Api<Pod> = Api::all(client.clone());
    let all = pods.list(&ListParams::default()).await.expect("a list");
    assert_eq!(all.items.len(), fixture.simulator.store().len("pods"));
    let page = pods.list(&ListParams::default().limit(5)).await.expect("a page");
    let next =
        ListParams::default().limit(5).continue_token(page.metadata.continue_.as_deref().expect("there is more"));
    let next = pods.list(&next).await.expect("the next page");
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let pages: Vec<_> = page.items.iter().chain(&next.items).map(name).collect();
    assert_eq!(pages, all.items.iter().take(10).map(name).collect::<Vec<_>>());
    let first = &all.items[0];
    let namespace = first.metadata.namespace.as_deref().expect("pods have namespaces");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    assert_eq!(&pods.get(&name(first)).await.expect("the pod"), first);
    assert_eq!(pods.get_opt("absent").await.expect("404 is no error here"), None);
    let metadata = pods.get_metadata(&name(first)).await.expect("its metadata");
    assert_eq!(metadata.metadata.uid, first.metadata.uid);
    let selected =
        pods.list(&ListParams::default().labels(LABEL).fields("status.phase=Running")).await.expect("a list");
    assert!(
        selected.items.iter().all(|pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running")))
    );
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client, "default");
    let refused = secrets.get("password").await.expect_err("redacted");
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    assert_eq!(secrets.list_metadata(&ListParams::default()).await.expect("as metadata").items.len(), 1);
}

#[test]
fn discovery_finds_watched_types_under_every_name() {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let fixture = start();
    let core = fixture.ask("/api").json();
    assert_eq!((&core["kind"], &core["versions"]), (&json!("APIVersions"), &json!(["v1"])));
    let groups = fixture.ask("/apis").json();
    assert_eq!(groups["kind"], "APIGroupList");
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1), "what is not watched is not there: {groups}");
    assert_eq!(groups["groups"][0]["preferredVersion"]["groupVersion"], "apps/v1");
    let group = fixture.ask("/apis/apps").json();
    assert_eq!((&group["kind"], &group["name"]), (&json!("APIGroup"), &json!("apps")));
    let types = fixture.ask("/apis/apps/v1").json();
    let deployments = json!({"name": "deployments", "singularName": "deployment", "namespaced": true,
        "kind": "Deployment", "verbs": ["get", "list"], "shortNames": ["deploy"], "categories": ["all"]});
    assert_eq!((&types["groupVersion"], &types["resources"]), (&json!("apps/v1"), &json!([deployments])));
    let answer = fixture.ask_as("GET", "/apis", &format!("{AGGREGATED},application/json"));
    assert_eq!(answer.header("content-type"), AGGREGATED);
    let version = &answer.json()["items"][0]["versions"][0];
    assert_eq!((&version["version"], &version["freshness"]), (&json!("v1"), &json!("Current")));
    let served = &version["resources"][0];
    assert_eq!((&served["resource"], &served["scope"]), (&json!("deployments"), &json!("Namespaced")));
    assert_eq!((&served["singularResource"], &served["shortNames"]), (&json!("deployment"), &json!(["deploy"])));
    assert_eq!(served["responseKind"], json!({"group": "apps", "version": "v1", "kind": "Deployment"}));
    let core = fixture.ask_as("GET", "/api", AGGREGATED).json();
    let plurals = core["items"][0]["versions"][0]["resources"].as_array().expect("types").iter();
    let plurals: Vec<_> = plurals.map(|served| served["resource"].as_str().unwrap_or_default()).collect();
    assert_eq!(plurals, ["nodes", "pods", "configmaps", "secrets"], "in the API server's order");
    assert_eq!(served["categories"], json!(["all"]));
    // The client for Python ends the paths with a slash.
    for path in ["/version", "/api", "/apis", "/apis/apps/v1"] {
        let (plain, slash) = (fixture.ask(path), fixture.ask(&format!("{path}/")));
        assert_eq!((slash.code, slash.json()), (200, plain.json()), "{path}");
    }
    assert_eq!(fixture.ask("/version").json()["major"], "1");
    let rows = fixture.ask("/v1/resources").json();
    let row =
        rows["resources"].as_array().unwrap().iter().find(|row| row["plural"] == "pods").expect("pods are watched");
    assert_eq!(
        (&row["singular"], &row["shortNames"], &row["namespaced"]),
        (&json!("pod"), &json!(["po"]), &json!(true))
    );
    assert!(row["unit"].is_u64() && row["namespace"].is_null(), "{row}");
    let unit = format!("/api/v1/pods?unit={}", row["unit"]);
    assert_eq!(items(&fixture.list(&unit)), items(&fixture.list("/api/v1/pods")));
}

#[test]
fn tables_are_paged_and_include_requested_objects() {
    let fixture = start();
    let page = fixture.ask_as("GET", "/api/v1/pods?limit=3", TABLE).json();
    assert_eq!((&page["kind"], &page["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(page["rows"].as_array().map(Vec::len), Some(3));
    assert!(page["metadata"]["continue"].is_string() && page["metadata"]["remainingItemCount"].is_u64(), "{page}");
    let pods = fixture.list("/api/v1/pods?limit=3");
    for (row, pod) in page["rows"].as_array().unwrap().iter().zip(pods["items"].as_array().unwrap()) {
        assert_eq!((&row["cells"][0], &row["object"]["metadata"]), (&pod["metadata"]["name"], &pod["metadata"]));
        assert_eq!(row["object"]["spec"], Value::Null);
    }
    let whole = fixture.ask_as("GET", "/api/v1/pods?limit=1&includeObject=Object", TABLE).json();
    assert_eq!(whole["rows"][0]["object"], pods["items"][0]);
    let none = fixture.ask_as("GET", "/api/v1/pods?limit=1&includeObject=None", TABLE).json();
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let metadata = &pods["items"][0]["metadata"];
    let [namespace, name] = ["namespace", "name"].map(|field| metadata[field].as_str().unwrap());
    let mut one = fixture.ask_as("GET", &format!("/api/v1/namespaces/{namespace}/pods/{name}"), TABLE).json();
    let age = page["columnDefinitions"].as_array().unwrap().iter().position(|column| column["name"] == "Age").unwrap();
    // A new second may have begun since the request of the page.
    one["rows"][0]["cells"][age] = page["rows"][0]["cells"][age].clone();
    assert_eq!(one["rows"], json!([page["rows"][0]]));
    assert_eq!(one["metadata"]["resourceVersion"], metadata["resourceVersion"]);
}

#[test]
fn large_list_does_not_delay_health() {
    let fixture = start();
    let object = |i: usize| RawObject {
        key: ObjectKey::new("bulk", &format!("c{i:05}")),
        before: format!(r#""metadata":{{"name":"c{i:05}","namespace":"bulk","uid":"u{i}","resourceVersion":""#)
            .into_bytes(),
        after: format!(r#""}},"data":{{"value":"{}"}}}}"#, "x".repeat(200)).into_bytes(),
    };
    fixture.simulator.store().ingest("configmaps", (0..20_000).map(object)).expect("a served type");
    let expected = fixture.simulator.store().len("configmaps");
    let cached = || {
        fixture.ask("/v1/resources").json()["resources"]
            .as_array()
            .expect("rows")
            .iter()
            .any(|row| row["plural"] == "configmaps" && row["objects"] == expected)
    };
    fixture.engine.wait_for("cached", PATIENCE, cached);
    let mut took = Vec::new();
    for _ in 0..5 {
        let (slowest, lasted) = livez_beside_lists(&fixture, expected);
        // on a busy machine all answers take long, but not in every attempt
        if slowest < Duration::from_secs(1) || slowest * 5 < lasted {
            return;
        }
        took.push((slowest, lasted));
    }
    panic!("/livez, and three lists of 20,000 objects at the same time, took {took:?}: it waits for one");
}

/// Requests three large lists, and health meanwhile. Returns the slowest health answer and the duration of the lists.
fn livez_beside_lists(fixture: &Fixture, expected: usize) -> (Duration, Duration) {
    let address = fixture.engine.http.clone();
    let lists = thread::spawn(move || {
        let mut lasted = Duration::ZERO;
        for _ in 0..3 {
            let asked = Instant::now();
            let answer = request(&address, "GET", "/api/v1/configmaps?labelSelector=!x", &[]).expect("a list");
            lasted += asked.elapsed();
            assert_eq!(answer.json()["items"].as_array().map(Vec::len), Some(expected));
        }
        lasted
    });
    let mut slowest = Duration::ZERO;
    while !lists.is_finished() {
        let asked = Instant::now();
        assert_eq!(fixture.ask("/livez").code, 200);
        slowest = slowest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(5));
    }
    (slowest, lists.join().expect("the lists were right"))
}

#[test]
fn probe_address_serves_only_probes_and_metrics() {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = text(dir.path(), "kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let path = text(dir.path(), "probes.toml");
    let config = format!(
        "[kube]\nkubeconfig = \"{kubeconfig}\"\n[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\n\
         type = \"blackhole\"\n[http]\nlisten = \"\"\nprobe_listen = \"127.0.0.1:0\"\n"
    );
    fs::write(&path, config).expect("the directory is writable");
    let engine = Engine::spawn(&["run", "-c", &path]);
    engine.wait_ready(PATIENCE);
    for (path, code) in [("/livez", 200), ("/metrics", 200), ("/v1/resources", 404), ("/api/v1/pods", 404)] {
        assert_eq!(engine.get(path).expect("it answers").0, code, "{path}");
    }
}
