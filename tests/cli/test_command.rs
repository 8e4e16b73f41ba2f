//! `deltabus test`: its output and exit codes, and that a running engine sends the same events.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::Simulated,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const CONFIG: &str = r#"
[resources.deployments]
match = ["deployments.apps"]
namespaces = ["prod", "staging"]

[handlers.hook]
type = "webhook"
url = "https://hooks.example.com/"
on = ["updated"]
changed = ["spec.template.spec.containers[*].image"]
format = "diff"

[handlers.audit]
type = "file"
path = "/var/lib/deltabus/audit.jsonl"
when = 'type != "updated" || object.spec.replicas != old.spec.replicas'

[handlers.off]
type = "blackhole"
enabled = false
"#;

/// A directory with a configuration and other files.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn with(config: &str) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        desk.write("config.toml", config);
        for (name, image, replicas) in [("v1", "web:1", 1), ("v2", "web:2", 1), ("v2-more", "web:2", 3)] {
            desk.write(&format!("{name}.yaml"), &deployment("prod", image, replicas));
        }
        desk
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs `deltabus test` in this directory; returns exit code, stdout and stderr.
    fn test(&self, args: &[&str]) -> (i32, String, String) {
        test(self.dir.path(), args)
    }
}

fn test(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    let output = command.arg("test").args(args).current_dir(dir).env_clear().output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn deployment(namespace: &str, image: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: {namespace}\nspec:\n  replicas: {replicas}\n  \
         template:\n    spec:\n      containers:\n        - name: web\n          image: {image}\n"
    )
}

fn case(name: &str, files: &str, expect: &str) -> String {
    format!("[[tests]]\nname = \"{name}\"\n{files}\nexpect = {{ {expect} }}\n")
}

#[test]
fn secrets_may_be_missing() {
    let config = CONFIG.replace("\"https://hooks.example.com/\"", "{ env = \"NO_SUCH_SECRET\" }");
    assert!(config.contains("NO_SUCH_SECRET"));
    let config = config + &case("an image change", "old = \"v1.yaml\"\nnew = \"v2.yaml\"", "hook = 1");
    let (code, _, stderr) = Desk::with(&config).test(&["-c", "config.toml"]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn failing_test_explains_each_rule() {
    let update = "old = \"v1.yaml\"\nnew = \"v2.yaml\"";
    let config = [
        CONFIG.to_owned(),
        case("an image change reaches the hook", update, "hook = 1"),
        case("and the log", update, "audit = 1, hook = 1"),
        case("a new deployment is logged", "new = \"v1.yaml\"", "audit = 1, hook = 0, off = 0"),
        case("a deletion reaches the hook", "old = \"v1.yaml\"", "hook = 1, off = 1, audit = 0"),
    ];
    let (code, stdout, stderr) = Desk::with(&config.concat()).test(&["-c", "config.toml"]);
    let expected = "\
ok      an image change reaches the hook
FAILED  and the log
        audit: expected 1 event, got 0
          Deployment prod/web: not sent: `when` is false: type != \"updated\" || object.spec.replicas != old.spec.replicas
ok      a new deployment is logged
FAILED  a deletion reaches the hook
        audit: expected 0 events, got 1
          Deployment prod/web: sent
        hook: expected 1 event, got 0
          Deployment prod/web: not sent: `on` does not include \"deleted\"
        off: expected 1 event, got 0
          Deployment prod/web: not sent: it is not enabled
4 tests: 2 ok, 2 failed
";
    assert_eq!((stdout.as_str(), code), (expected, 1), "{stderr}");
    assert_eq!(stderr, "error: 2 of 4 tests failed\n");
}

#[test]
fn tests_of_all_or_named_files_run() {
    let desk = Desk::with(&[CONFIG, &case("one", "new = \"v1.yaml\"", "audit = 1")].concat());
    desk.write("more/tests.toml", &case("another one", "new = \"../v2.yaml\"", "audit = 1"));
    desk.write("more/two.toml", &case("two", "old = \"web.json\"", "audit = 1"));
    let json =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "prod" } });
    desk.write("more/web.json", &json.to_string());
    let (code, stdout, stderr) = desk.test(&["-c", "config.toml", "more"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "ok      one\nok      another one\nok      two\n3 tests: 3 ok, 0 failed\n"),
        "{stderr}"
    );
    let (code, stdout, _) = desk.test(&["one", "-c", "config.toml", "-c", "more"]);
    assert_eq!((code, stdout.as_str()), (0, "ok      one\nok      another one\n2 tests: 2 ok, 0 failed\n"));
    let (code, stdout, _) = desk.test(&["-o", "json", "two", "-c", "config.toml", "more"]);
    let expected =
        json!({ "test": "two", "ok": true, "handlers": { "audit": { "expected": 1, "sent": 1, "notSent": [] } } });
    assert_eq!((code, serde_json::from_str::<Value>(&stdout).unwrap()), (0, expected));
    let (code, _, stderr) = desk.test(&["three", "-c", "config.toml"]);
    assert_eq!((code, stderr.as_str()), (2, "error: no test name contains \"three\"; configured:\n  one\n"));
}

#[test]
fn bad_usage_and_files_exit_with_2() {
    let desk = Desk::with(CONFIG);
    let (code, _, stderr) = desk.test(&["-c", "config.toml"]);
    assert_eq!(
        (code, stderr.starts_with("error: the configuration has no [[tests]]: add tests")),
        (2, true),
        "{stderr}"
    );
    desk.write("twice.yaml", &[deployment("prod", "a", 1), deployment("prod", "b", 1)].join("---\n"));
    desk.write("broken.yaml", "a: [");
    desk.write("empty.yaml", "# nothing\n");
    desk.write("nameless.yaml", "apiVersion: v1\nkind: Pod\n");
    desk.write("norway.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: no}\n");
    let cases = ["gone", "twice", "broken", "empty", "nameless", "norway"]
        .map(|name| case(name, &format!("new = \"{name}.yaml\""), "audit = 1"));
    desk.write("tests.toml", &cases.concat());
    let (code, stdout, stderr) = desk.test(&["-c", "config.toml", "tests.toml"]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    for line in [
        "error: tests.toml:3:7: tests[0].new: gone.yaml: failed to read the file: No such file",
        "error: tests.toml:5:1: tests[1]: Deployment prod/web is listed twice\n",
        "error: tests.toml:11:7: tests[2].new: broken.yaml: neither YAML nor JSON: ",
        "error: tests.toml:15:7: tests[3].new: empty.yaml: expected a Kubernetes object, found none\n",
        "error: tests.toml:19:7: tests[4].new: nameless.yaml: expected a Kubernetes object with `metadata.name`\n",
        "error: tests.toml:23:7: tests[5].new: norway.yaml: expected `metadata.namespace` to be text, found false\n",
        "error: the configuration cannot be used: 6 errors\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
    let validate = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["validate", "--offline", "-c", "config.toml", "tests.toml"])
        .current_dir(desk.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(validate.stderr).unwrap();
    assert_eq!(validate.status.code(), Some(2), "{said}");
    assert!(said.contains("error: tests.toml:3:7: tests[0].new: file gone.yaml does not exist\n"), "{said}");
    assert!(
        said.contains("cannot be used: 1 error\n"),
        "what is in the files is no matter of the configuration: {said}"
    );
    let (code, _, stderr) = desk.test(&["-c", "config.toml", "--new", "broken.yaml"]);
    assert_eq!((code, stderr.starts_with("error: broken.yaml: neither YAML nor JSON")), (2, true), "{stderr}");
    desk.write("broken.json", "{\"apiVersion\": \"v1\",\n\"kind\": \"Pod\"]\n");
    let (code, _, stderr) = desk.test(&["-c", "config.toml", "--new", "broken.json"]);
    let expected = "error: broken.json: invalid JSON: expected `,` or `}` at line 2 column 14";
    assert_eq!((code, stderr.starts_with(expected)), (2, true), "{stderr}");
    let (code, _, stderr) = desk.test(&["-c", "config.toml", "--new", "v1.yaml", "a name"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn two_files_show_events_of_each_handler() {
    let desk = Desk::with(CONFIG);
    let (code, stdout, stderr) = desk.test(&["-c", "config.toml", "--old", "v1.yaml", "--new", "v2.yaml"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    let why = "`when` is false: type != \"updated\" || object.spec.replicas != old.spec.replicas";
    assert_eq!(lines[..3], ["Deployment prod/web  updated", &format!("  audit  not sent: {why}"), "  hook   sent"]);
    let event: Value = serde_json::from_str(lines[3]).unwrap();
    let change = json!({ "path": "spec.template.spec.containers[0].image", "old": "web:1", "new": "web:2" });
    assert!(event["data"]["changes"].as_array().unwrap().contains(&change), "{event}");
    assert_eq!(lines[4..], ["  off    not sent: it is not enabled"]);

    desk.write("both.yaml", &[deployment("prod", "web:1", 2), deployment("dev", "web:1", 2)].join("---\n"));
    let (code, stdout, _) = desk.test(&["-c", "config.toml", "--old", "both.yaml", "-o", "json"]);
    let rows: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let brief = |row: &Value| format!("{} {}", row["object"].as_str().unwrap(), row["handler"].as_str().unwrap());
    let expected = ["dev/web audit", "dev/web hook", "dev/web off", "prod/web audit", "prod/web hook", "prod/web off"];
    assert_eq!(rows.iter().map(brief).collect::<Vec<_>>(), expected.map(|row| format!("Deployment {row}")));
    assert_eq!((code, &rows[0]["notSent"]), (0, &json!(["`namespaces` of [resources.deployments] leaves out dev"])));
    assert_eq!(rows[3]["sent"][0]["type"], "dev.deltabus.resource.deleted");
}

#[test]
fn shipped_test_passes() {
    let shipped = fs::read_to_string("config.toml").unwrap();
    let (config, tests) = shipped.split_once("\n#[[tests]]").unwrap();
    let desk = Desk::with(&format!("{config}\n[[tests]]{}", tests.replace("\n#", "\n")));
    for name in ["web-v1.yaml", "web-v2.yaml"] {
        desk.write(&format!("examples/tests/{name}"), &fs::read_to_string(format!("examples/tests/{name}")).unwrap());
    }
    let (code, stdout, stderr) = desk.test(&["-c", "config.toml"]);
    let expected = "ok      a new image is sent\n1 test: 1 ok, 0 failed\n";
    assert_eq!((code, stdout.as_str()), (0, expected), "{stderr}");
}

#[test]
fn assumptions_about_custom_type_are_reported() {
    let config = "[resources.certs]\nmatch = [\"*.cert-manager.io\"]\n[handlers.out]\ntype = \"blackhole\"\n";
    let desk = Desk::with(config);
    let object = "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: a, namespace: shop}\n";
    desk.write("cert.yaml", object);
    let (code, _, stderr) = desk.test(&["-c", "config.toml", "--new", "cert.yaml"]);
    let note = "note: Certificate of cert-manager.io/v1 is assumed to be certificates.cert-manager.io (namespaced): no server was asked\n";
    assert_eq!((code, stderr.as_str()), (0, note));
    desk.write("tests.toml", &case("it is sent", "new = \"cert.yaml\"", "out = 1"));
    let (code, stdout, stderr) = desk.test(&["-c", "config.toml", "tests.toml"]);
    assert_eq!((code, stderr.as_str()), (0, note), "also where no test fails: {stdout}");
}

/// Handlers of each format, and of each rule.
fn handlers(dir: &Path) -> Vec<(&'static str, String)> {
    let options = [
        ("whole", ""),
        ("object", "format = \"object\""),
        ("patch", "format = \"patch\""),
        ("merge", "format = \"merge_patch\""),
        ("diff", "format = \"diff\""),
        ("reference", "format = \"ref\""),
        (
            "template",
            "format = \"template\"\ntemplate = \"{{ type }} {{ id }} {{ object.metadata.name }} {{ changes | tojson }} {{ cluster }}\"",
        ),
        ("chosen", "on = [\"added\", \"removed\"]"),
        ("changed", "changed = [\"data\", \"metadata.labels\"]"),
        (
            "when",
            "when = 'type == \"updated\" && object.data.x == \"2\" && old.data.x == \"1\" && cluster == \"test\"'",
        ),
        ("maps_only", "resources = [\"maps\"]"),
    ];
    let handler = |(name, options): (&'static str, &str)| {
        (name, format!("[handlers.{name}]\ntype = \"file\"\npath = {:?}\n{options}\n", text(dir, name)))
    };
    options.into_iter().map(handler).collect()
}

/// Returns the comparable part of an event: all but its time and journal position. A deletion has a version that only the
/// server knows.
fn essence(line: &str) -> Value {
    let Ok(mut event) = serde_json::from_str::<Value>(line) else { return line.into() };
    let is_gone = event["type"] == "dev.deltabus.resource.deleted";
    let Some(members) = event.as_object_mut() else { return event };
    for name in ["journal", "sequence", "time"] {
        members.remove(name);
    }
    if is_gone {
        members.remove("resourceversion");
        for data in ["/data/object/metadata", "/data/metadata"] {
            if let Some(metadata) = event.pointer_mut(data).and_then(Value::as_object_mut) {
                metadata.remove("resourceVersion");
            }
        }
    }
    event
}

/// Returns the life of an object as pairs of consecutive states.
fn life(cluster: &Simulated, resource: &str, states: &[Value]) -> Vec<[Option<Value>; 2]> {
    let (mut steps, mut before) = (Vec::new(), None);
    for state in states {
        let after = cluster.simulator.store().put(resource, state.clone()).unwrap().value();
        steps.push([before.replace(after.clone()), Some(after)]);
    }
    let name = states[0]["metadata"]["name"].as_str().unwrap();
    cluster.simulator.store().delete(resource, "default", name).unwrap();
    steps.push([before, None]);
    steps
}

#[test]
fn dry_run_equals_running_engine() {
    let cluster = Simulated::start();
    let handlers = handlers(cluster.dir());
    let texts: String = handlers.iter().map(|(_, text)| text.as_str()).collect();
    let config = format!(
        "[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n[resources.maps]\nmatch = [\"cm\"]\n\
         ignore_changes = [\"metadata.annotations\", \"data.ignored\"]\ndrop = [\"metadata.managedFields\", \"data.dropped\"]\n\
         ignore_annotation = true\n\
         [resources.selected]\nmatch = [\"deploy\"]\nlabels = \"app=web\"\nmode = \"metadata\"\n\
         [resources.log]\nmatch = [\"sa\"]\ncache = \"none\"\n{texts}",
        cluster.dir().join("kubeconfig")
    );
    let engine = Engine::run(cluster.dir(), &config);
    engine.wait_ready(PATIENCE);

    let map = |data: Value, annotations: Value| json!({ "metadata": { "name": "a", "annotations": annotations }, "data": data });
    let app = |app: &str| json!({ "metadata": { "name": "web", "labels": { "app": app } }, "spec": { "replicas": 1 } });
    let account = |team: &str| json!({ "metadata": { "name": "s", "labels": { "team": team } } });
    let maps = [
        map(json!({ "x": "1", "dropped": "secret" }), json!({})),
        map(json!({ "x": "2", "dropped": "secret", "y": "<\"&>" }), json!({})),
        map(json!({ "x": "2", "y": "<\"&>", "ignored": "1" }), json!({})),
        map(json!({ "x": "2", "y": "<\"&>", "ignored": "2" }), json!({})),
        map(json!({ "x": "3" }), json!({ "deltabus.dev/ignore": "true" })),
        map(json!({ "x": "4" }), json!({})),
    ];
    let steps: Vec<_> = [
        life(&cluster, "configmaps", &maps),
        life(&cluster, "deployments.apps", &["web", "web", "db", "db", "web"].map(app)),
        life(&cluster, "serviceaccounts", &["a", "b"].map(account)),
    ]
    .concat();

    let mut expected: Vec<(&str, Vec<Value>)> = handlers.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for [old, new] in &steps {
        let mut args = vec!["-c".to_owned(), "config.toml".to_owned(), "-o".to_owned(), "json".to_owned()];
        for (side, state) in [("old", old), ("new", new)] {
            if let Some(state) = state {
                fs::write(cluster.dir().join(format!("{side}.json")), state.to_string()).unwrap();
                args.extend([format!("--{side}"), format!("{side}.json")]);
            }
        }
        let (code, stdout, stderr) = test(cluster.dir(), &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, 0, "{stderr}");
        for row in stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let (_, of) = expected.iter_mut().find(|(name, _)| row["handler"] == **name).unwrap();
            let text = |sent: &Value| sent.as_str().map_or_else(|| sent.to_string(), str::to_owned);
            of.extend(row["sent"].as_array().unwrap().iter().map(|sent| essence(&text(sent))));
        }
    }
    let sent = |name: &str| fs::read_to_string(cluster.dir().join(name)).unwrap_or_default();
    engine.wait_for("all of it", PATIENCE, || {
        expected.iter().all(|(name, expected)| sent(name).lines().count() >= expected.len())
    });
    assert!(engine.terminate().success());
    for (name, expected) in expected {
        let mut sent: Vec<Value> = sent(name).lines().map(essence).collect();
        let mut expected = expected;
        assert!(!expected.is_empty(), "{name} is sent something");
        // Types have no order relative to each other.
        for events in [&mut sent, &mut expected] {
            events.sort_by_key(type_of);
        }
        assert_eq!(sent, expected, "{name}");
    }
}

/// Returns the type of an event, as far as the line contains it.
fn type_of(event: &Value) -> String {
    let of_text = |text: &str| text.split(' ').nth(2).unwrap_or_default().to_owned();
    event["kind"].as_str().map_or_else(|| of_text(event.as_str().unwrap_or_default()), str::to_owned)
}
