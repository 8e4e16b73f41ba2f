//! `deltabus get` and `deltabus completion`: output for a terminal and for a script.

use std::{fs, path::Path, process::Command};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

struct Fixture {
    engine: Engine,
    simulator: Simulator,
    dir: tempfile::TempDir,
}

struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

fn deltabus(arguments: &[&str], engine: Option<&str>) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(arguments).env_remove("DELTABUS_ENGINE").env("NO_COLOR", "1");
    if let Some(engine) = engine {
        command.env("DELTABUS_ENGINE", engine);
    }
    let output = command.output().expect("the binary was built with the tests");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.7"}],
            "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "state": {"running": {}}}]},
    })
}

fn start() -> Fixture {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let store = simulator.store();
    for (namespace, name, node) in [("default", "web", "n1"), ("default", "api", "n2"), ("shop", "cart", "n1")] {
        store.create("pods", pod(namespace, name, node)).expect("a valid object");
    }
    let maps = (0..1100).map(|i| json!({"metadata": {"namespace": "bulk", "name": format!("c{i:04}")}}));
    maps.for_each(|map| drop(store.create("configmaps", map).expect("a valid object")));
    let deployment = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {"replicas": 2}});
    store.create("deployments.apps", deployment).expect("a valid object");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = run(&simulator, dir.path());
    engine.wait_ready(PATIENCE);
    Fixture { engine, simulator, dir }
}

fn run(simulator: &Simulator, dir: &Path) -> Engine {
    let kubeconfig = text(dir, "kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let config = format!(
        "[kube]\nkubeconfig = \"{kubeconfig}\"\n[resources.all]\n\
         match = [\"pods\", \"configmaps\", \"deployments.apps\", \"nodes\"]\nindex = [\"spec.nodeName\"]\n\
         [resources.hidden]\nmatch = [\"secrets\"]\n[handlers.count]\ntype = \"blackhole\"\n"
    );
    Engine::run(dir, &config)
}

impl Fixture {
    fn get(&self, arguments: &[&str]) -> Outcome {
        deltabus(&[&["get"], arguments].concat(), Some(&format!("http://{}", self.engine.http)))
    }

    /// Returns the output of a successful command.
    fn print(&self, arguments: &[&str]) -> String {
        let outcome = self.get(arguments);
        assert_eq!(outcome.code, 0, "{arguments:?}: {}", outcome.stderr);
        outcome.stdout
    }
}

/// Replaces ages, which vary between runs.
fn ageless(text: &str) -> String {
    let age = regex::Regex::new(r"\b\d+s\b *").expect("a valid pattern");
    let text = age.replace_all(text, "AGO ");
    text.lines().map(str::trim_end).flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn tables_match_kubectl_layout() {
    let fixture = start();
    assert_eq!(
        ageless(&fixture.print(&["pods"])),
        "NAME   READY   STATUS    RESTARTS   AGE\napi    1/1     Running   0          AGO\nweb    1/1     Running   0          AGO\n"
    );
    let all = fixture.print(&["po", "-A"]);
    assert!(all.starts_with("NAMESPACE   NAME   READY"), "{all}");
    assert!(all.contains("\nshop        cart   1/1"), "{all}");
    let wide = fixture.print(&["pod", "cart", "-n", "shop", "-o", "wide"]);
    assert!(wide.contains("NOMINATED NODE") && wide.contains("10.0.0.7"), "{wide}");
    assert!(fixture.print(&["deploy"]).contains("web    0/2     0            0"));
    assert!(fixture.print(&["nodes", "-A"]).is_empty());
    assert_eq!(fixture.get(&["nodes"]).stderr, "No resources found.\n");
    assert_eq!(fixture.get(&["pods", "-n", "empty"]).stderr, "No resources found in empty namespace.\n");
}

#[test]
fn types_are_spelled_as_in_kubectl() {
    let fixture = start();
    let names = fixture.print(&["pods", "-o", "name"]);
    assert_eq!(names, "pod/api\npod/web\n");
    for spelling in ["pod", "po", "Pod", "PODS", "pods.v1."] {
        assert_eq!(fixture.print(&[spelling, "-o", "name"]), names, "{spelling}");
    }
    for spelling in ["deployments", "deploy", "deployments.apps", "Deployment.v1.apps"] {
        assert_eq!(fixture.print(&[spelling, "-o", "name"]), "deployment.apps/web\n", "{spelling}");
    }
    assert_eq!(fixture.print(&["po/web", "-o", "name"]), "pod/web\n");
    for (spelling, said) in [
        ("deployment.app", "did you mean deployments.apps?"),
        ("podds", "did you mean pods"),
        (
            "leases",
            "does not watch \"leases\"; it watches configmaps, deployments.apps, nodes, pods, secrets. To watch more, add",
        ),
        // A built-in type is meant as it is spelled, though `nodes` is near.
        ("roles", "does not watch \"roles\"; it watches configmaps"),
        ("pods,podds", "did you mean pods"),
        ("pods/absent", "pods \"absent\" not found"),
        ("pods/", "expected TYPE/NAME"),
        ("*", "expected one type"),
    ] {
        let outcome = fixture.get(&[spelling]);
        assert_eq!(outcome.code, 1, "{spelling}");
        assert!(outcome.stderr.contains(said), "{spelling}: {}", outcome.stderr);
    }
}

#[test]
fn several_types_and_names_print_as_kubectl() {
    let fixture = start();
    assert_eq!(
        ageless(&fixture.print(&["po,deploy"])),
        "NAME      READY   STATUS    RESTARTS   AGE\npod/api   1/1     Running   0          AGO\n\
         pod/web   1/1     Running   0          AGO\n\n\
         NAME                  READY   UP-TO-DATE   AVAILABLE   AGE\ndeployment.apps/web   0/2     0            0           AGO\n"
    );
    assert_eq!(fixture.print(&["po,deploy", "-o", "name"]), "pod/api\npod/web\ndeployment.apps/web\n");
    assert_eq!(fixture.print(&["pods", "web", "api", "-o", "name"]), "pod/web\npod/api\n");
    assert_eq!(fixture.print(&["po/web", "deploy/web", "-o", "name"]), "pod/web\ndeployment.apps/web\n");
    let list: Value = serde_json::from_str(&fixture.print(&["po,deploy", "-o", "json"])).expect("JSON");
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("List"), Some(3)));
    // What exists is printed though another object is missing.
    let outcome = fixture.get(&["pods", "web", "absent", "gone", "-o", "name"]);
    assert_eq!((outcome.code, &*outcome.stdout), (1, "pod/web\n"));
    assert!(
        outcome.stderr.contains("\"absent\" not found") && outcome.stderr.contains("\"gone\""),
        "{}",
        outcome.stderr
    );
}

#[test]
fn tables_and_values_take_kubectls_options() {
    let fixture = start();
    assert_eq!(ageless(&fixture.print(&["po", "web", "--no-headers"])), "web   1/1   Running   0   AGO\n");
    let labels = fixture.print(&["pods", "--show-labels"]);
    assert!(labels.lines().next().is_some_and(|header| header.ends_with("AGE   LABELS")), "{labels}");
    assert!(labels.contains("app=api\n") && fixture.print(&["deploy", "--show-labels"]).contains("<none>"), "{labels}");
    assert_eq!(fixture.print(&["po", "-L", "app,a/none", "--no-headers"]).lines().count(), 2);
    let labels = fixture.print(&["po", "-L", "app", "-L", "a/none", "--show-labels"]);
    assert!(labels.lines().next().is_some_and(|header| header.ends_with("AGE   APP   NONE   LABELS")), "{labels}");
    assert!(labels.contains("   api          app=api\n"), "{labels}");
    assert_eq!(fixture.print(&["all", "-o", "name"]), "pod/api\npod/web\ndeployment.apps/web\n");
    assert_eq!(fixture.print(&["po", "-A", "--sort-by=.spec.nodeName", "-o", "name"]), "pod/web\npod/cart\npod/api\n");
    let sorted = fixture.print(&["po", "-A", "--sort-by", "{.spec.nodeName}", "--no-headers"]);
    let names: Vec<_> = sorted.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names, ["web", "cart", "api"]);
    assert_eq!(fixture.print(&["po", "-A", "--field-selector", "metadata.name=cart", "-o", "name"]), "pod/cart\n");
    assert_eq!(fixture.print(&["po", "-o", "jsonpath={.items[*].metadata.name}"]), "api web");
    assert_eq!(fixture.print(&["po", "web", "-o", "jsonpath={.spec.nodeName}{'\\n'}"]), "n1\n");
    let columns = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,X:.x";
    assert_eq!(fixture.print(&["po", "-o", columns]), "NAME   NODE   X\napi    n2     <none>\nweb    n1     <none>\n");
    for (arguments, code, expected) in [
        (&["po", "-w", "-n", "shop"][..], 2, "deltabus tail po -n shop"),
        (&["po", "-o", "jsonpath={.x"], 2, "'}' is missing"),
        (&["po", "-o", "jsonpath={.items[?@.x]}"], 2, "expected an index, a slice such as [0:2]"),
        (&["po", "-o", "jsonpath={.items[9].x}"], 1, "index 9 is out of bounds: the list has 2 items"),
        (&["po", "--sort-by", "{.metadata.name"], 2, "unexpected JSONPath"),
        (&["po", "--sort-by", ".spec.containers["], 2, "']' is missing"),
        (&["po", "--sort-by", ".none"], 1, "no object has a value at this path"),
        (&["po", "-o", "xml"], 2, "expected table, wide, name"),
        (&["po", "--field-selector", "a"], 1, "error: "),
        (&["po", "-o", "custom-columns=NAME"], 2, "expected HEADER:PATH"),
    ] {
        let outcome = fixture.get(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn documents_equal_cached_objects() {
    let fixture = start();
    let one: Value = serde_json::from_str(&fixture.print(&["pod", "web", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&one["kind"], &one["metadata"]["name"], &one["spec"]["nodeName"]),
        (&json!("Pod"), &json!("web"), &json!("n1"))
    );
    let list: Value = serde_json::from_str(&fixture.print(&["pods", "-A", "-o", "json"])).expect("JSON");
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("List"), Some(3)));
    assert_eq!(list["items"].as_array().unwrap().iter().find(|pod| pod["metadata"]["name"] == "web"), Some(&one));
    let yaml = fixture.print(&["pods", "-o", "yaml"]);
    assert!(yaml.starts_with("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n"), "{yaml}");
    assert!(yaml.ends_with("kind: List\nmetadata:\n  resourceVersion: \"\"\n"), "{yaml}");
    let empty: Value = serde_json::from_str(&fixture.print(&["nodes", "-o", "json"])).expect("JSON");
    assert_eq!(empty["items"], json!([]));
    // All pages, each once.
    let names = fixture.print(&["cm", "-n", "bulk", "-o", "name"]);
    assert_eq!(names.lines().count(), 1100);
    let all: Value = serde_json::from_str(&fixture.print(&["cm", "-A", "-o", "json"])).expect("JSON");
    assert_eq!(all["items"].as_array().map(Vec::len), Some(1100));
    assert_eq!(fixture.print(&["cm", "-A"]).lines().count(), 1101);
    // A warning about dropped fields appears once, in formats that would show them.
    let outcome = fixture.get(&["cm", "-A", "-o", "json"]);
    assert_eq!(outcome.stderr.matches("kept without metadata.managedFields").count(), 1, "{}", outcome.stderr);
    assert_eq!(fixture.get(&["cm", "-n", "bulk"]).stderr, "");
}

#[test]
fn objects_are_selected_by_name_label_and_index() {
    let fixture = start();
    assert_eq!(fixture.print(&["pods", "-A", "-l", "app in (cart,web)", "-o", "name"]), "pod/web\npod/cart\n");
    assert_eq!(fixture.print(&["pods", "-A", "--index", "spec.nodeName=n1", "-o", "name"]), "pod/web\npod/cart\n");
    assert_eq!(fixture.print(&["pods", "--index", "spec.nodeName=n1", "-o", "name"]), "pod/web\n");
    for (arguments, code, said) in [
        (&["pod", "absent"][..], 1, "error: pods \"absent\" not found"),
        (&["pods", "--index", "spec.nodename=n1"], 1, "has no index \"spec.nodename\", only"),
        (&["pods", "-l", "a b"], 1, "error: "),
        (&["pods", "--index", "x"], 2, "expected INDEX=VALUE"),
        (&["pods", "web", "-A"], 2, "cannot be used with"),
        (&["secrets", "-o", "json"], 1, "values are redacted"),
    ] {
        let outcome = fixture.get(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(said), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn engine_is_found_by_flag_environment_or_configuration() {
    let fixture = start();
    let url = format!("http://{}", fixture.engine.http);
    let config = text(fixture.dir.path(), "engine.toml");
    let written = format!("[resources.pods]\nmatch = [\"pods\"]\n[http]\nlisten = \"{}\"\n", fixture.engine.http);
    fs::write(&config, written).expect("the directory is writable");
    assert_eq!(deltabus(&["get", "po", "-o", "name", "--engine", &url], None).stdout, "pod/api\npod/web\n");
    assert_eq!(deltabus(&["get", "po", "-o", "name", "-c", &config], None).stdout, "pod/api\npod/web\n");
    assert_eq!(deltabus(&["get", "po", "-o", "name"], Some(&url)).stdout, "pod/api\npod/web\n");
    let nobody = deltabus(&["get", "po"], Some("http://127.0.0.1:1"));
    assert_eq!((nobody.code, &*nobody.stdout), (1, ""));
    assert!(
        nobody.stderr.contains("no engine listens at http://127.0.0.1:1: start one with `deltabus run -c FILE`"),
        "{}",
        nobody.stderr
    );
    let other = deltabus(&["get", "po"], Some(&fixture.simulator.url()));
    assert_eq!(other.code, 0, "an API server answers like an engine: {}", other.stderr);
}

#[test]
fn completion_supports_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = deltabus(&["completion", shell], None);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        for word in ["verify", "completion", "all-namespaces"] {
            assert!(outcome.stdout.contains(word), "{shell} completes {word}");
        }
    }
    assert_eq!(deltabus(&["completion", "cobol"], None).code, 2);
}

#[test]
fn help_contains_examples() {
    for command in ["get", "verify", "completion"] {
        let outcome = deltabus(&[command, "--help"], None);
        assert_eq!(outcome.code, 0);
        assert!(
            outcome
                .stdout
                .contains(&format!("Examples:\n\n  {}", if command == "completion" { "source" } else { "deltabus" }))
        );
        assert!(outcome.stdout.contains(&format!("deltabus {command} ")), "{}", outcome.stdout);
    }
}

#[test]
fn engine_is_named_with_or_without_scheme() {
    let fixture = start();
    let port = fixture.engine.http.rsplit_once(':').expect("an address has a port").1;
    for engine in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("http://localhost:{port}/")] {
        let outcome = deltabus(&["get", "pods", "-o", "name", "--engine", &engine], None);
        assert_eq!((outcome.code, &*outcome.stdout), (0, "pod/api\npod/web\n"), "{engine}: {}", outcome.stderr);
        assert_eq!(deltabus(&["get", "pods", "-o", "name"], Some(&engine)).code, 0, "{engine}");
    }
    let outcome = deltabus(&["get", "pods", "--engine", "ftp://x"], None);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("expected HOST[:PORT] or a URL, such as localhost:8080"), "{}", outcome.stderr);
}
