//! Redacted values: they exist only in the API server, but their changes are visible.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{
    engine::{Engine, request, text},
    live::{Live, everything, parse, text as live_text},
    scripted::PATIENCE,
    simulated::Simulated,
};
use deltabus::internals::{
    change::Change,
    engine::RunningEngine,
    lister::Selector,
    notification::Notification,
    simulator::{Simulator, SimulatorOptions},
};
use serde_json::{Value, json};

/// A secret value, as text and in base64 as in the API.
const PLAIN: &str = "hunter2-is-no-password";
const BASE64: &str = "aHVudGVyMi1pcy1uby1wYXNzd29yZA==";
/// Another value.
const OTHER: &str = "c29tZXRoaW5nLWVsc2U=";
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Returns a Secret with the value in all possible places, including the last-applied annotation in both forms.
fn secret(name: &str, value: &str) -> Value {
    let applied = json!({"data": {"password": BASE64}, "stringData": {"password": PLAIN}}).to_string();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": "default", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": applied, "team": "a",
            "kapp.k14s.io/original": applied,
        }},
        "data": {"password": value}, "stringData": {"password": PLAIN},
    })
}

/// Returns a Secret with the value in further annotations.
fn copied(name: &str, value: &str) -> Value {
    let mut secret = secret(name, value);
    let annotations = &mut secret["metadata"]["annotations"];
    (annotations["url"], annotations["encoded"]) = (format!("postgres://{PLAIN}@db").into(), value.into());
    secret
}

/// Collects every file below a directory.
fn contents(dir: &Path, all: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents(&path, all);
        } else {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

#[track_caller]
fn assert_nowhere(seen: &[(String, Vec<u8>)]) {
    for (place, content) in seen {
        for value in [PLAIN, BASE64, BASE64.trim_end_matches('='), OTHER, KEY] {
            let found = content.windows(value.len()).position(|window| window == value.as_bytes());
            let around = found.map(|at| &content[at.saturating_sub(300)..(at + 20).min(content.len())]);
            assert!(found.is_none(), "{place}: {:?}", around.map(String::from_utf8_lossy));
        }
    }
}

/// Returns the events about Secrets in a file, in order.
fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let events = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["subject"].as_str().is_some_and(|subject| subject.contains("/secrets/"))).collect()
}

#[test]
fn redacted_value_appears_nowhere_but_changes_do() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    simulator.store().put("secrets", copied("first", BASE64)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(dir.path(), name);
    let out = tempfile::tempdir().unwrap(); // only the engine writes here
    let key = at("key");
    fs::write(&key, KEY).unwrap();
    fs::write(at("kubeconfig"), simulator.kubeconfig()).unwrap();
    let (audit, kubeconfig) = (out.path().join("audit.jsonl"), at("kubeconfig"));
    let with_key = format!("hmac_key = {{ file = {key:?} }}");
    let run = |redact: &str| {
        // The configuration drops no fields, and everything is logged.
        let config = format!(
            "[kube]\nkubeconfig = {kubeconfig:?}\nstreaming_lists = \"never\"\n\
             [redact]\n{redact}\n\
             [log]\nlevel = \"trace\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [resources.s]\nmatch = [\"secrets\"]\ndrop = []\nmode = \"full\"\nindex = [\"data.password\"]\n\
             [defaults.handlers]\ninitial = \"send\"\n[handlers.out]\ntype = \"stdout\"\n\
             [handlers.audit]\ntype = \"file\"\npath = {audit:?}\nfsync = \"always\"\n"
        );
        fs::write(at("config.toml"), config).unwrap();
        let stdout = out.path().join("stdout");
        let engine = Engine::spawn_writing(&["run", "-c", &at("config.toml")], &stdout);
        engine.wait_ready(PATIENCE);
        engine
    };
    let engine = run(&with_key);
    // Changes are made one at a time, because quick successors are coalesced.
    let told = |count| engine.wait_for("told", PATIENCE, || events(&audit).len() >= count);
    told(1);
    simulator.store().put("secrets", copied("first", OTHER)).unwrap();
    told(2);
    simulator.store().put("secrets", copied("first", BASE64)).unwrap();
    told(3);
    let mut touched = copied("first", BASE64);
    touched["metadata"]["labels"] = json!({"touched": "yes"});
    simulator.store().put("secrets", touched).unwrap();
    told(4);
    simulator.store().put("secrets", copied("second", BASE64)).unwrap();
    simulator.store().delete("secrets", "default", "first").unwrap();
    told(6);
    let mut seen = Vec::new();
    let accepts = [
        "*/*",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
    ];
    for path in [
        "/api/v1/secrets",
        "/api/v1/namespaces/default/secrets/second",
        "/api/v1/secrets?includeObject=Object",
        "/api/v1/secrets?index=data.password&value=x",
        "/v1/resources",
        "/v1/handlers",
        "/metrics",
        "/readyz?verbose",
    ] {
        for accept in accepts {
            let answer = request(&engine.http, "GET", path, &[("Accept", accept)]).unwrap();
            seen.push((format!("{path} {accept}"), format!("{answer:?}").into_bytes()));
        }
    }
    let whole = request(&engine.http, "GET", "/api/v1/secrets", &[]).unwrap();
    assert_eq!((whole.code, whole.json()["reason"].as_str()), (403, Some("Forbidden")));
    let log = engine.log_handle();
    assert!(engine.terminate().success());
    seen.push(("the log".to_owned(), log.lock().unwrap().clone().into_bytes()));
    assert!(log.lock().unwrap().contains("TRACE"), "everything is logged");
    contents(out.path(), &mut seen);
    assert!(seen.len() > 20, "answers, log, events, stdout");
    assert_nowhere(&seen);

    let events = events(&audit);
    let digest = |object: &Value| object["data"]["password"].as_str().unwrap().to_owned();
    let (first, other, back, touched) =
        (&events[0]["data"], &events[1]["data"], &events[2]["data"], &events[3]["data"]);
    assert_ne!(digest(&first["object"]), digest(&other["object"]), "a change is seen");
    assert_eq!(digest(&first["object"]), digest(&other["old"]), "{other}");
    assert_eq!(digest(&first["object"]), digest(&back["object"]), "the same value has the same digest");
    assert_eq!(digest(&touched["old"]), digest(&touched["object"]), "what did not change");
    let mut annotations = first["object"]["metadata"]["annotations"].clone();
    for name in ["kapp.k14s.io/original", "url", "encoded"] {
        let copy = annotations.as_object_mut().unwrap().remove(name).unwrap();
        assert!(copy.as_str().unwrap().starts_with("hmac-sha256:"), "{name}: {copy}");
    }
    assert_eq!(annotations, json!({"team": "a"}));
    assert!(first["object"]["stringData"]["password"].as_str().unwrap().starts_with("hmac-sha256:"));
    let last: Vec<_> = events[4..].iter().map(|event| (event["type"].clone(), event["data"].clone())).collect();
    let second = last.iter().find(|(_, data)| data["object"]["metadata"]["name"] == "second").unwrap();
    assert_ne!(digest(&first["object"]), digest(&second.1["object"]), "two Secrets of one value do not look alike");

    // The same key gives the same digests after a restart.
    fs::remove_file(&audit).unwrap();
    let engine = run(&with_key);
    engine.wait_for("told", PATIENCE, || !self::events(&audit).is_empty());
    assert!(!engine.log().contains("a key for this run only"), "{}", engine.log());
    assert_eq!(digest(&self::events(&audit)[0]["data"]["object"]), digest(&second.1["object"]));
    assert!(engine.terminate().success());

    // Without a key, each run has its own; the engine logs this once.
    fs::remove_file(&audit).unwrap();
    let engine = run("");
    engine.wait_for("told", PATIENCE, || !self::events(&audit).is_empty());
    engine.wait_for_log("a key for this run only");
    assert_eq!(engine.log().matches("a key for this run only").count(), 1, "{}", engine.log());
    assert_ne!(digest(&self::events(&audit)[0]["data"]["object"]), digest(&second.1["object"]));
    assert!(engine.terminate().success());
}

/// Returns a data member of a config map in its last event.
fn shown(file: &Path, name: &str, member: &str) -> Option<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = events.rfind(|event| event["name"] == name)?;
    Some(last["data"]["object"]["data"][member].as_str().unwrap_or_default().to_owned())
}

#[test]
fn redaction_condition_decides_which_values_are_shown() {
    let simulated = Simulated::start();
    let audit = simulated.dir().join("audit.jsonl");
    let engine = Engine::run(
        simulated.dir(),
        &format!(
            "{}{}",
            simulated.config(&format!("type = \"file\"\npath = {audit:?}\nfsync = \"always\"")),
            r#"
            [log]
            level = "trace"
            [redact]
            paths = [
              { path = "data.x", where = 'object.metadata.name.endsWith("-credentials") && cluster == "test"' },
              { path = "data.y", where = 'object.data.kind == "secret"' },
            ]
            "#
        ),
    );
    engine.wait_ready(PATIENCE);
    let put = |name: &str, data: Value, member: &str| {
        simulated.simulator.store().put("configmaps", json!({"metadata": {"name": name}, "data": data})).unwrap();
        engine.wait_for("told", PATIENCE, || shown(&audit, name, member).is_some());
        shown(&audit, name, member).unwrap()
    };
    assert!(put("db-credentials", json!({"x": PLAIN, "kind": "plain"}), "x").starts_with("hmac-sha256:"));
    assert_eq!(put("settings", json!({"x": "open", "kind": "plain"}), "x"), "open");
    assert!(put("typed", json!({"y": BASE64, "kind": "secret"}), "y").starts_with("hmac-sha256:"));
    // the rule reads a field that these objects lack
    for name in ["odd", "as-odd"] {
        assert!(put(name, json!({"y": OTHER}), "y").starts_with("hmac-sha256:"), "{name}");
    }
    let unit = || engine.json("/v1/resources")["resources"][0].clone();
    engine.wait_for("counted", PATIENCE, || unit()["redactErrors"] == 2);
    let said = "cannot evaluate the condition of a redacted path";
    engine.wait_for_log(said);
    assert_eq!(engine.log().matches(said).count(), 1, "said once: {}", engine.log());
    let log = engine.log();
    let line = log.lines().find(|line| line.contains(said)).unwrap();
    assert!(line.contains("default/odd") && line.contains("data.y") && line.contains("maps"), "{line}");

    // Each state is evaluated separately.
    simulated
        .simulator
        .store()
        .put("configmaps", json!({"metadata": {"name": "typed"}, "data": {"y": "open", "kind": "plain"}}))
        .unwrap();
    engine.wait_for("shown", PATIENCE, || shown(&audit, "typed", "y").as_deref() == Some("open"));
    let log = engine.log_handle();
    assert!(engine.terminate().success());
    let log = log.lock().unwrap().clone().into_bytes();
    assert_nowhere(&[("the log".to_owned(), log), ("events".to_owned(), fs::read(&audit).unwrap())]);
}

const SECRETS: &str = "[resources.s]\nmatch = [\"secrets\"]\ndrop = []\n";
const MAPS: &str = "[resources.m]\nmatch = [\"configmaps\"]\n";

/// Returns the only cached object of a type in a namespace as JSON; `null` if there is none.
fn cached(engine: &RunningEngine, plural: &str, namespace: &str) -> Value {
    let objects = engine.lister(plural).map(|lister| lister.list(&Selector::all())).unwrap_or_default();
    let object = objects.iter().find(|object| object.namespace() == namespace);
    object.map_or(Value::Null, |object| object.value().unwrap())
}

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

fn simulated() -> Simulator {
    let simulator = crate::support::live::cluster();
    simulator.store().put("secrets", secret("first", BASE64)).unwrap();
    simulator
}

async fn start(config: &str) -> Live {
    let config = crate::support::live::parse(config);
    let live = Live::start_over(simulated(), |builder| builder.config(config)).await;
    live.settled().await;
    live
}

#[test]
fn library_cache_holds_no_redacted_value() {
    run(async {
        for (redact, data) in [("drop", Some(json!({}))), ("metadata", None)] {
            let live = start(&format!("[redact]\nsecrets = \"{redact}\"\n{SECRETS}")).await;
            let object = cached(&live.engine, "secrets", "default");
            assert_eq!(object.get("data"), data.as_ref(), "{redact}: {object}");
            assert_nowhere(&[(redact.to_owned(), object.to_string().into_bytes())]);
            let requests = live.simulator.requests();
            let mut of_secrets = requests.iter().filter(|request| request.path.ends_with("/secrets")).peekable();
            assert!(of_secrets.peek().is_some());
            let partial = of_secrets.all(|request| request.accept.contains("as=PartialObjectMetadata"));
            assert_eq!(partial, redact == "metadata");
            live.stop().await;
        }
    });
}

#[test]
fn changed_redact_section_relists_affected_types_silently() {
    run(async {
        let with = |redact: &str| format!("{redact}\n{SECRETS}{MAPS}");
        let live = start(&with("")).await;
        let version = |live: &Live| cached(&live.engine, "configmaps", "a")["data"]["version"].clone();
        let lists = |live: &Live| (live.lists("/api/v1/secrets"), live.lists("/api/v1/configmaps"));
        let (plain, first) = (version(&live), cached(&live.engine, "secrets", "default")["data"]["password"].clone());
        assert_eq!(lists(&live), (1, 1));

        live.apply(&with("[log]\nlevel = \"warn\""));
        assert_eq!(live.settled().await, [""; 0]);
        assert_eq!(lists(&live), (1, 1), "nothing has changed");

        live.apply(&with("[redact]\npaths = [{ resources = [\"m\"], path = \"data.*\" }]"));
        assert_eq!(live.settled().await, [""; 0], "no object has changed");
        assert_eq!(lists(&live), (1, 2), "only what it concerns");
        let redacted = version(&live);
        assert!(redacted.as_str().unwrap().starts_with("hmac-sha256:") && redacted != plain, "{redacted}");
        assert_eq!(cached(&live.engine, "secrets", "default")["data"]["password"], first, "the key stays");

        let key = live_text(live.dir.path(), "key");
        fs::write(&key, KEY).unwrap();
        live.apply(&with(&format!("[redact]\nhmac_key = {{ file = {key:?} }}")));
        assert_eq!(live.settled().await, [""; 0]);
        assert_eq!(lists(&live), (2, 3));
        assert_eq!(version(&live), plain);
        let second = cached(&live.engine, "secrets", "default")["data"]["password"].clone();
        assert_ne!(second, first);

        fs::write(&key, "another key of some length").unwrap();
        live.apply(&with(&format!("[redact]\nhmac_key = {{ file = {key:?} }}")));
        live.settled().await;
        assert_ne!(cached(&live.engine, "secrets", "default")["data"]["password"], second, "it is read at each reload");

        let error =
            live.engine.apply(crate::support::live::parse(&with("[redact]\nhmac_key = { file = \"/nowhere/key\" }")));
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "[redact] hmac_key: cannot read /nowhere/key: No such file or directory (os error 2)");

        live.apply(&with("[redact]\nsecrets = \"drop\""));
        live.settled().await;
        assert_eq!(cached(&live.engine, "secrets", "default")["data"], json!({}));
        live.stop().await;
    });
}

#[test]
fn cached_values_are_redacted_before_new_list() {
    run(async {
        let live = start(MAPS).await;
        assert!(!cached(&live.engine, "configmaps", "a").to_string().contains("hmac"));
        // The API server is down: only cached objects remain.
        let Live { engine, simulator, said, dir: _dir } = live;
        drop(simulator);
        engine.apply(parse(&format!("{RULE}{MAPS}"))).unwrap();
        redacted(&engine, "a").await;
        drop(said);
        engine.stop().await;
    });
}

const RULE: &str = "[redact]\npaths = [{ path = \"data.*\" }]\n";

/// Returns the cached config map of a namespace once it has digests.
async fn redacted(engine: &RunningEngine, namespace: &str) -> Value {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let object = cached(engine, "configmaps", namespace);
        if object.to_string().contains("hmac-sha256:") {
            return object;
        }
        assert!(tokio::time::Instant::now() < deadline, "{object}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Starts a cluster with a config map that has the value in its data and in the last-applied annotation.
fn simulated_map(namespace: &str) -> Simulator {
    let simulator = simulated();
    let applied = json!({"data": {"password": PLAIN}}).to_string();
    let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": applied, "team": "a"});
    let metadata = json!({"name": "one", "namespace": namespace, "annotations": annotations});
    let map = json!({"metadata": metadata, "data": {"password": PLAIN}});
    simulator.store().put("configmaps", map).unwrap();
    simulator
}

#[test]
fn last_applied_annotation_of_redacted_object_is_cut() {
    run(async {
        let maps = format!("{MAPS}drop = [\"metadata.managedFields\"]\n");
        let with_rule = format!("{RULE}{maps}");
        let is_cut = |object: &Value| {
            assert_nowhere(&[("the cache".to_owned(), object.to_string().into_bytes())]);
            assert_eq!(object["metadata"]["annotations"], json!({"team": "a"}));
        };
        let live = Live::start_over(simulated_map("b"), |builder| builder.config(parse(&with_rule))).await;
        is_cut(&cached(&live.engine, "configmaps", "b"));
        live.stop().await;

        // Objects cached before the rule existed contain the value, and the API server is down.
        let live = Live::start_over(simulated_map("b"), |builder| builder.config(parse(&maps))).await;
        let before = cached(&live.engine, "configmaps", "b");
        assert_eq!(before["metadata"]["annotations"].as_object().unwrap().len(), 2, "{before}");
        let Live { engine, simulator, said, dir: _dir } = live;
        drop(simulator);
        engine.apply(parse(&with_rule)).unwrap();
        is_cut(&redacted(&engine, "b").await);
        drop(said);
        engine.stop().await;
    });
}

#[test]
fn removed_objects_are_redacted_by_new_rule() {
    run(async {
        let removed: Arc<Mutex<Vec<Value>>> = Arc::default();
        let noted = Arc::clone(&removed);
        let note = move |notification: &Notification| {
            let changes = notification.events().iter().map(|event| &event.record.change);
            let gone = changes.filter(|change| matches!(change, Change::Removed { .. }));
            noted.lock().unwrap().extend(gone.filter_map(Change::object).map(|object| object.value().unwrap()));
            Ok(())
        };
        let live = Live::start_over(simulated_map("b"), |builder| {
            builder.config(parse(MAPS)).on_change("removed", everything(), note)
        })
        .await;
        live.settled().await;
        assert_eq!(cached(&live.engine, "configmaps", "b")["data"]["password"], PLAIN);
        live.apply(&format!("{RULE}{MAPS}namespaces = [\"a\"]\n"));
        live.hears("removed reload configmaps/b/one").await;
        let of_b = || {
            let removed = removed.lock().unwrap();
            removed.iter().find(|object| object["metadata"]["namespace"] == "b").cloned()
        };
        live.wait_for("removed", |_| of_b().is_some()).await;
        let object = of_b().unwrap();
        assert!(object["data"]["password"].as_str().unwrap().starts_with("hmac-sha256:"), "{object}");
        let all = Value::Array(removed.lock().unwrap().clone());
        assert_nowhere(&[("what was removed".to_owned(), all.to_string().into_bytes())]);
        live.stop().await;
    });
}

#[test]
fn saved_values_are_redacted_before_serving() {
    let mut simulated = Simulated::start();
    simulated.put("plain", PLAIN);
    let (out, state) = (simulated.dir().join("out.jsonl"), text(simulated.dir(), "state"));
    let handler = format!("type = \"file\"\npath = {out:?}\nfsync = \"always\"\n[state]\ndir = {state:?}");
    let backoff = "[kube]\nbackoff = { initial = \"50ms\", max = \"200ms\" }\n";
    let config = simulated.config(&handler).replace("[kube]\n", backoff);
    let list = |engine: &Engine| {
        let answer = engine.get("/api/v1/configmaps").ok();
        answer.filter(|(code, _)| *code == 200).map(|(_, body)| body)
    };
    let engine = Engine::run(simulated.dir(), &config);
    engine.wait_ready(PATIENCE);
    assert!(list(&engine).unwrap().contains(PLAIN), "there is no rule yet");
    assert_eq!(engine.terminate().code(), Some(0));

    simulated.simulator.go_down();
    let assert_redacted = |engine: &Engine| {
        engine.wait_for("readable", PATIENCE, || list(engine).is_some());
        let body = list(engine).unwrap();
        assert!(body.contains("\"plain\"") && body.contains("hmac-sha256:"), "{body}");
        assert_nowhere(&[("the list".to_owned(), body.into_bytes())]);
    };
    let engine = Engine::run(simulated.dir(), &format!("{config}{RULE}"));
    assert_redacted(&engine);
    drop(engine);

    // The entry is removed with its saved state; the rule applies to all entries.
    let without =
        config.replace("[resources.maps]\nmatch = [\"configmaps\"]", "[resources.bots]\nmatch = [\"serviceaccounts\"]");
    assert_ne!(without, config);
    let engine = Engine::run(simulated.dir(), &format!("{without}{RULE}"));
    assert_redacted(&engine);
    simulated.simulator.come_up();
    let told = || fs::read_to_string(&out).unwrap_or_default();
    engine.wait_for("told", PATIENCE, || told().contains("dev.deltabus.resource.removed"));
    assert_nowhere(&[("events".to_owned(), told().into_bytes())]);
}
