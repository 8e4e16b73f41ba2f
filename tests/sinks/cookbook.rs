//! All configurations of `docs/cookbook.md`, unchanged, run against a cluster.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kitchen;
#[cfg(feature = "kafka")]
use std::collections::BTreeMap;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

#[cfg(feature = "kafka")]
use crate::support::kafka::Broker;
use crate::support::{
    engine::Engine,
    nats,
    nats::NatsServer,
    receiver::{Seen, Server, fine},
    scripted::PATIENCE,
    verify::verify,
};
use jiff::{SignedDuration, Timestamp};
use kitchen::{Kitchen, events, recipes, stories, wait_events};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// An HTTP server that accepts everything.
struct Hook {
    server: Server,
    _runtime: Runtime,
}

impl Hook {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { server: runtime.block_on(Server::start(None, fine)), _runtime: runtime }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.server.address)
    }

    fn wait(&self, engine: &Engine, requests: usize) -> Vec<Seen> {
        engine.wait_for(&format!("{requests} requests"), PATIENCE, || self.server.seen().len() >= requests);
        self.server.seen()
    }
}

/// Waits until the cache has the version of an object, and all events due by then are sent.
fn settled(engine: &Engine, path: &str, object: &Value) {
    let version = &object["metadata"]["resourceVersion"];
    engine.wait_for("the object in the cache", PATIENCE, || {
        engine.get(path).is_ok_and(|(code, body)| {
            code == 200 && serde_json::from_str::<Value>(&body).unwrap()["metadata"]["resourceVersion"] == *version
        })
    });
    // the read API shows an object before handlers receive it
    let (_, plural) = path.rsplit_once('/').and_then(|(types, _)| types.rsplit_once('/')).unwrap();
    let number = |version: &Value| version.as_str().and_then(|text| text.parse::<u64>().ok());
    engine.wait_for("all of it read", PATIENCE, || {
        let resources = engine.json("/v1/resources");
        let mut rows = resources["resources"].as_array().unwrap().iter();
        rows.any(|row| row["plural"] == plural && number(&row["resourceVersion"]) >= number(version))
    });
    let is_idle = || {
        let handlers = engine.json("/v1/handlers");
        handlers["handlers"].as_array().unwrap().iter().all(|row| row["queued"] == 0)
    };
    engine.wait_for("nothing on its way", PATIENCE, is_idle);
}

#[test]
fn each_recipe_is_valid_and_has_a_test() {
    let tests = include_str!("cookbook.rs");
    assert_eq!(recipes().len(), 15);
    for (name, _) in recipes() {
        assert!(tests.contains(&format!("Kitchen::with(\"{name}\"")), "{name} has no test");
        let kitchen = Kitchen::with(name, &[]);
        let validated = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["validate", "--offline", "--allow-exec", "-c", &kitchen.config()])
            .env("KUBECONFIG", kitchen.file("kubeconfig"))
            .env("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/T0/B0/x")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&validated.stderr);
        let is_built = cfg!(feature = "kafka") || name != "mirror.toml";
        assert!(
            if is_built { validated.status.success() } else { said.contains("--features kafka") },
            "{name}: {said}"
        );
    }
}

#[test]
fn tests_of_recipes_pass() {
    let mut tested = 0;
    for (name, recipe) in recipes().into_iter().filter(|(_, recipe)| recipe.contains("[[tests]]")) {
        let kitchen = Kitchen::with(name, &[]);
        let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["test", "-c", &kitchen.config()])
            .env("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/T0/B0/x")
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{name}: {said:?}");
        tested += recipe.matches("[[tests]]").count();
    }
    assert_eq!(tested, 6);
}

#[test]
fn audit_log_has_spec_changes_without_rollout_progress() {
    let mut kitchen = Kitchen::with("audit.toml", &["prod"]);
    kitchen.replace_path("DELTABUS__HANDLERS__AUDIT__PATH", "audit.jsonl");
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    let log = kitchen.file("audit.jsonl");
    let engine = kitchen.run();
    kitchen.deploy("prod", "web", "web:1");
    for ready in 1..4 {
        kitchen.put("deployments.apps", "prod", "web", json!({ "status": { "readyReplicas": ready } }));
    }
    kitchen.deploy("prod", "web", "web:2");
    kitchen.put("deployments.apps", "prod", "web", json!({ "metadata": { "labels": { "team": "blue" } } }));
    let seen = wait_events(&engine, &log, 3);
    assert_eq!(stories(&seen), ["added deployments web", "updated deployments web", "updated deployments web"]);
    let image = json!({ "path": "spec.template.spec.containers[0].image", "old": "web:1", "new": "web:2" });
    assert!(seen[1]["data"]["changes"].as_array().unwrap().contains(&image), "{}", seen[1]);
    assert!(engine.terminate().success());

    kitchen.delete("deployments.apps", "prod", "web");
    let engine = kitchen.run();
    let seen = wait_events(&engine, &log, 4);
    assert_eq!((stories(&seen)[3].as_str(), seen.len()), ("deleted deployments web", 4));
}

#[test]
fn access_audit_hides_nothing_and_keeps_thirty_days() {
    let mut kitchen = Kitchen::with("access.toml", &["prod"]);
    let name = |age: i64| {
        let day = Timestamp::now() - SignedDuration::from_hours(24 * age);
        (format!("access-{}.jsonl", day.strftime("%Y-%m-%d")), day)
    };
    for age in [29, 32] {
        let (name, day) = name(age);
        File::create(kitchen.file(&name)).unwrap().set_modified(day.into()).unwrap();
    }
    kitchen.replace_path("DELTABUS__HANDLERS__AUDIT__PATH", "access-%Y-%m-%d.jsonl");
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    let engine = kitchen.run();
    let hidden =
        json!({ "annotations": { "deltabus.dev/ignore": "true" }, "managedFields": managed("kubectl-create", 1) });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" });
    let binding = json!({ "metadata": hidden, "roleRef": role });
    kitchen.put("clusterrolebindings.rbac.authorization.k8s.io", "", "mine", binding);
    kitchen.put("secrets", "prod", "db", json!({ "data": { "password": "b2xkLXBhc3N3b3Jk" } }));
    kitchen.put("secrets", "prod", "db", json!({ "data": { "password": "bmV3LXBhc3N3b3Jk" } }));
    kitchen.delete("secrets", "prod", "db");
    let log = kitchen.file(&name(0).0);
    let seen = wait_events(&engine, &log, 4);
    let mut told = stories(&seen);
    told.sort_unstable();
    assert_eq!(
        told,
        ["added clusterrolebindings mine", "added secrets db", "deleted secrets db", "updated secrets db"]
    );
    assert!(!fs::read_to_string(&log).unwrap().contains("LXBhc3N3b3Jk"));
    let binding = seen.iter().find(|event| event["kind"] == "ClusterRoleBinding").unwrap();
    assert_eq!(binding["data"]["changed_by"]["manager"], "kubectl-create");
    engine.wait_for("the removal of the older file", PATIENCE, || !kitchen.file(&name(32).0).exists());
    let compressed = kitchen.file(&format!("{}.zst", name(29).0));
    engine.wait_for("the compressed file", PATIENCE, || compressed.exists());
}

/// Returns `managedFields` with one entry, written at this second.
fn managed(manager: &str, second: u32) -> Value {
    let time = format!("2026-11-21T06:40:{second:02}Z");
    json!([{ "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1", "fieldsV1": {} }])
}

#[test]
fn slack_gets_images_that_argo_cd_did_not_set() {
    let mut kitchen = Kitchen::with("slack.toml", &["prod-eu", "dev"]);
    let hook = Hook::start();
    kitchen.replace("SLACK_WEBHOOK_URL", hook.url());
    let engine = kitchen.run();
    let set = |namespace: &str, image: &str, manager: &str, second| {
        let spec = json!({ "template": { "spec": { "containers": [{ "name": "web", "image": image }] } } });
        let object = json!({ "metadata": { "managedFields": managed(manager, second) }, "spec": spec });
        kitchen.put("deployments.apps", namespace, "web", object)
    };
    for namespace in ["dev", "prod-eu"] {
        set(namespace, "web:1", "kubectl-create", 1);
        set(namespace, "web:2", "argocd-controller", 2);
        set(namespace, "web:3", "kubectl-set", 3);
    }
    let last = set("prod-eu", "web:4", "argocd-application-controller", 4);
    settled(&engine, "/apis/apps/v1/namespaces/prod-eu/deployments/web", &last);
    let texts: Vec<Value> = hook.wait(&engine, 1).iter().map(Seen::json).collect();
    let text = "*Deployment prod-eu/web* in simulator, by kubectl-set\n• web:2 → web:3";
    assert_eq!(texts, [json!({ "text": text })]);
}

#[test]
fn past_change_of_replicas_is_found_with_its_writer() {
    let mut kitchen = Kitchen::with("who.toml", &["shop"]);
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    let engine = kitchen.run();
    let scale = |replicas: u32, manager: &str, second| {
        let object =
            json!({ "metadata": { "managedFields": managed(manager, second) }, "spec": { "replicas": replicas } });
        kitchen.put("deployments.apps", "shop", "web", object)
    };
    scale(2, "kubectl-create", 1);
    scale(5, "kubectl-edit", 2);
    let last = kitchen.put("deployments.apps", "shop", "web", json!({ "status": { "replicas": 5 } }));
    settled(&engine, "/apis/apps/v1/namespaces/shop/deployments/web", &last);
    let page = include_str!("../../docs/cookbook.md");
    let line = page.lines().find(|line| line.starts_with("deltabus tail ") && line.contains("--since 15m")).unwrap();
    let command = line.replacen("deltabus", env!("CARGO_BIN_EXE_deltabus"), 1);
    let mut tail = Command::new("sh")
        .args(["-c", &format!("exec {command} --engine {}", engine.http)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("spec.replicas")).unwrap();
    tail.kill().unwrap();
    tail.wait().unwrap();
    assert!(line.contains("shop/deployment/web  spec.replicas  2 → 5  by kubectl-edit"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_stored_once_over_five_kills() {
    let mut kitchen = Kitchen::with("custom.toml", &[]);
    let Some(server) = NatsServer::start_or_skip("the JetStream recipe", nats::Keys::jetstream) else { return };
    kitchen.replace("DELTABUS__HANDLERS__BUS__SERVERS", format!("[\"nats://{}\"]", server.address()));
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    kitchen.define("example.com", "Widget");
    let mut versions = Vec::new();
    for kill in 0..=5 {
        let engine = kitchen.run();
        kitchen.deploy("default", "unwanted", &format!("web:{kill}"));
        for n in 0..20 {
            let widget = kitchen.put("widgets.example.com", "default", "w", json!({ "spec": { "n": 20 * kill + n } }));
            versions.push(widget["metadata"]["resourceVersion"].clone());
        }
        let pod = kitchen.put("pods", "default", &format!("p{kill}"), json!({ "spec": { "containers": [] } }));
        if kill == 5 {
            settled(&engine, "/api/v1/namespaces/default/pods/p5", &pod);
        }
        drop(engine); // kill -9
    }
    let stored = nats::stored(&server.client().await, "K8S").await;
    let of = |kind: &str| stored.iter().filter(|message| message.subject.contains(kind)).collect::<Vec<_>>();
    let widgets: Vec<_> =
        of(".example%2Ecom.widgets.default.w").iter().map(|message| message.header("ce-id").to_owned()).collect();
    assert_eq!(widgets.iter().collect::<BTreeSet<_>>().len(), widgets.len(), "no change twice: {widgets:?}");
    let last = versions.last().unwrap().as_str().unwrap();
    assert!(widgets.last().unwrap().ends_with(&format!(".{last}")), "{widgets:?}");
    assert_eq!((of(".core.pods.").len(), of(".apps.deployments.").len()), (6, 0));
}

/// Returns the status of a pod whose container waits before its next restart.
fn looping(restarts: u64) -> Value {
    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    json!({ "status": { "containerStatuses": [{ "name": "web", "restartCount": restarts, "state": waiting }] } })
}

#[test]
fn script_runs_once_an_hour_for_each_looping_pod() {
    let mut kitchen = Kitchen::with("script.toml", &["prod"]);
    let (script, runs) = (kitchen.file("on-crash-loop.sh"), kitchen.file("runs"));
    fs::write(&script, format!("#!/bin/sh\ncat >>{}\n", runs.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    kitchen.replace("DELTABUS__HANDLERS__SCRIPT__COMMAND", format!("[{script:?}]"));
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    kitchen.put("pods", "prod", "old", looping(1));
    let engine = kitchen.run();
    for restarts in 1..4 {
        for name in ["old", "web"] {
            kitchen.put("pods", "prod", name, json!({ "status": { "phase": "Running", "containerStatuses": [] } }));
            kitchen.put("pods", "prod", name, looping(restarts));
        }
    }
    let told = || {
        let mut told: Vec<_> = events(&runs).iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect();
        told.sort_unstable();
        told
    };
    engine.wait_for("both pods", PATIENCE, || told().len() >= 2);
    assert!(engine.terminate().success());
    let engine = kitchen.run(); // the hour is not over
    let last = kitchen.put("pods", "prod", "web", looping(9));
    settled(&engine, "/api/v1/namespaces/prod/pods/web", &last);
    let is_suppressed = || engine.json("/v1/handlers")["handlers"][0]["filtered"].as_u64() >= Some(1);
    engine.wait_for("the suppressed event", PATIENCE, is_suppressed);
    assert_eq!(told(), ["old", "web"]);
}

#[test]
fn image_webhook_gets_only_image_changes() {
    let mut kitchen = Kitchen::with("image-changes.toml", &["prod", "staging", "dev"]);
    let hook = Hook::start();
    kitchen.replace("DELTABUS__HANDLERS__HOOK__URL", hook.url());
    let engine = kitchen.run();
    for namespace in ["prod", "staging", "dev"] {
        kitchen.deploy(namespace, "web", "web:1");
        kitchen.put("deployments.apps", namespace, "web", json!({ "spec": { "replicas": 3 } }));
    }
    for namespace in ["prod", "dev", "staging"] {
        kitchen.deploy(namespace, "web", "web:2");
    }
    let last = kitchen.put("deployments.apps", "staging", "web", json!({ "metadata": { "labels": { "a": "b" } } }));
    settled(&engine, "/apis/apps/v1/namespaces/staging/deployments/web", &last);
    let seen = hook.wait(&engine, 2);
    assert_eq!(seen.len(), 2, "{seen:?}");
    for request in &seen {
        let event = request.json();
        assert_eq!(request.header("idempotency-key"), event["id"]);
        let changes = event["data"]["changes"].as_array().unwrap();
        let image = "spec.template.spec.containers[0].image";
        let change = changes.iter().find(|change| change["path"] == image).unwrap();
        assert_eq!((&change["old"], &change["new"]), (&json!("web:1"), &json!("web:2")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jetstream_recipe_stores_everything_once_despite_outages() {
    let mut kitchen = Kitchen::with("jetstream.toml", &[]);
    let Some(mut server) = NatsServer::start_or_skip("the JetStream recipe", nats::Keys::jetstream) else { return };
    kitchen.replace("DELTABUS__HANDLERS__BUS__SERVERS", format!("[\"nats://{}\"]", server.address()));
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    kitchen.deploy("default", "web", "web:1");
    let engine = kitchen.run();
    kitchen.put("configmaps", "default", "settings", json!({ "data": { "a": "1" } }));
    engine.wait_for("both in the stream", PATIENCE, || {
        let row = &engine.json("/v1/handlers")["handlers"][0];
        row["delivered"].as_u64() >= Some(6) && row["queued"] == 0 // also four namespaces
    });
    server.kill();
    kitchen.deploy("default", "web", "web:2");
    let web = kitchen.deploy("default", "late", "late:1");
    let (code, _) = engine.get("/livez").unwrap();
    assert_eq!(code, 200);
    drop(engine); // kill -9
    kitchen.delete("configmaps", "default", "settings");
    server.start_again().unwrap();
    let engine = kitchen.run();
    let settings = "/api/v1/namespaces/default/configmaps/settings";
    engine.wait_for("without it", PATIENCE, || matches!(engine.get(settings), Ok((404, _))));
    settled(&engine, "/apis/apps/v1/namespaces/default/deployments/late", &web);
    let client = server.client().await;
    let stored = nats::stored(&client, "K8S").await;
    let of = |kind: &str| {
        let of_kind = stored.iter().filter(|message| message.subject.contains(kind));
        of_kind.map(|message| message.header("ce-type").rsplit('.').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(".apps.deployments.default.web"), ["added", "updated"]);
    assert_eq!(of(".apps.deployments.default.late"), ["added"]);
    assert_eq!(of(".core.configmaps.default.settings"), ["added", "deleted"]);
}

#[cfg(feature = "kafka")]
#[test]
fn compacted_topic_equals_cluster() {
    let mut kitchen = Kitchen::with("mirror.toml", &[]);
    let Some(broker) = Broker::start_or_skip("the Kafka recipe", |_| {}) else { return };
    for topic in ["k8s.deployments", "k8s.pods"] {
        broker.create_topic(topic, &[("cleanup.policy", "compact")]);
    }
    kitchen.replace("DELTABUS__HANDLERS__MIRROR__BROKERS", format!("[\"{}\"]", broker.address()));
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    let first = kitchen.deploy("default", "first", "a:1");
    let engine = kitchen.run();
    kitchen.deploy("default", "gone", "a:1");
    let second = kitchen.deploy("default", "second", "a:1");
    settled(&engine, "/apis/apps/v1/namespaces/default/deployments/second", &second);
    drop(engine); // kill -9
    kitchen.delete("deployments.apps", "default", "gone");
    let second = kitchen.deploy("default", "second", "a:2");
    let engine = kitchen.run();
    settled(&engine, "/apis/apps/v1/namespaces/default/deployments/second", &second);
    let mut topic = BTreeMap::new();
    for message in broker.stored("k8s.deployments") {
        match message.value {
            Some(value) => drop(topic.insert(message.key, serde_json::from_slice::<Value>(&value).unwrap())),
            None => drop(topic.remove(&message.key)),
        }
    }
    let versions: Vec<_> = topic.into_iter().map(|(uid, object)| (uid, object["spec"].clone())).collect();
    let mut expected: Vec<_> = [first, second]
        .map(|object| (object["metadata"]["uid"].as_str().unwrap().to_owned(), object["spec"].clone()))
        .into();
    expected.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(versions, expected);
}

#[test]
fn secret_alarm_names_changed_key_without_value() {
    let mut kitchen = Kitchen::with("secrets.toml", &["prod"]);
    let hook = Hook::start();
    kitchen.replace("DELTABUS__HANDLERS__ALARM__URL", hook.url());
    let secret = |user: &str, password: &str| json!({ "data": { "user": user, "password": password } });
    kitchen.put("secrets", "prod", "db", secret("YWRtaW4=", "b2xkLXBhc3N3b3Jk"));
    let engine = kitchen.run();
    kitchen.put("secrets", "prod", "db", json!({ "metadata": { "labels": { "rotated": "no" } } }));
    kitchen.put("secrets", "prod", "db", secret("YWRtaW4=", "bmV3LXBhc3N3b3Jk"));
    kitchen.delete("secrets", "prod", "db");
    let seen = hook.wait(&engine, 2);
    assert_eq!(stories(&[seen[0].json(), seen[1].json()]), ["updated secrets db", "deleted secrets db"]);
    let changes = seen[0].json()["data"]["changes"].clone();
    let paths: Vec<_> = changes.as_array().unwrap().iter().map(|change| change["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"data.password") && !paths.contains(&"data.user"), "{paths:?}");
    for request in &seen {
        let body = String::from_utf8_lossy(&request.body);
        for value in ["YWRtaW4=", "b2xkLXBhc3N3b3Jk", "bmV3LXBhc3N3b3Jk"] {
            assert!(!body.contains(value), "{body}");
        }
    }
}

#[test]
fn chat_is_notified_once_an_hour_per_pod() {
    let mut kitchen = Kitchen::with("crash-loops.toml", &["prod"]);
    let hook = Hook::start();
    kitchen.replace("DELTABUS__HANDLERS__CHAT__URL", hook.url());
    kitchen.replace_path("DELTABUS__STATE__DIR", "state");
    let engine = kitchen.run();
    for (namespace, name) in [("prod", "web"), ("kube-system", "dns")] {
        kitchen.put("pods", namespace, name, json!({ "spec": { "containers": [{ "name": "web", "image": "a" }] } }));
        kitchen.put("pods", namespace, name, json!({ "status": { "phase": "Running" } }));
        kitchen.put("pods", namespace, name, looping(1));
    }
    // A restarting container runs for a while before it waits again.
    for restarts in 2..5 {
        kitchen.put("pods", "prod", "web", json!({ "status": { "containerStatuses": [] } }));
        kitchen.put("pods", "prod", "web", looping(restarts));
    }
    let last = kitchen.put("pods", "prod", "web", looping(5));
    settled(&engine, "/api/v1/namespaces/prod/pods/web", &last);
    let seen = hook.wait(&engine, 1);
    let texts: Vec<Value> = seen.iter().map(Seen::json).collect();
    assert_eq!(texts, [json!({ "text": "Pod prod/web is crash-looping in simulator" })]);
}

#[test]
fn team_gets_its_namespaces_with_minimal_rights() {
    let kitchen = Kitchen::with("team.toml", &["payments", "payments-jobs", "others"]);
    for namespace in ["payments", "payments-jobs", "others"] {
        kitchen.put("configmaps", namespace, "settings", json!({ "data": { "a": "1" } }));
    }
    let engine = kitchen.run();
    kitchen.put("services", "payments", "api", json!({ "spec": { "ports": [{ "port": 80 }] } }));
    let last = kitchen.put("services", "others", "api", json!({ "spec": { "ports": [{ "port": 80 }] } }));
    assert!(last["metadata"]["uid"].is_string());
    let mut seen = stories(&wait_events(&engine, &kitchen.file("stdout"), 3));
    seen.sort_unstable();
    assert_eq!(seen, ["added configmaps settings", "added configmaps settings", "added services api"]);
    engine.wait_for_log("\"types\":4"); // each type in two namespaces
    let verified = verify(&format!("http://{}", engine.http), &kitchen.file("kubeconfig"), &[]);
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    assert!(verified.stderr.contains("the cache equals the server: 4 types, 3 objects"), "{}", verified.stderr);

    let rbac = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["rbac", "-c", &kitchen.config()])
        .envs(kitchen.environment().iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let rbac = String::from_utf8(rbac.stdout).unwrap();
    assert_eq!(rbac.matches("kind: Role\n").count(), 2, "{rbac}");
    assert!(!rbac.contains("kind: ClusterRole\n"), "{rbac}");
}

#[test]
fn kinds_of_a_group_are_followed() {
    let kitchen = Kitchen::with("cert-manager.toml", &["prod"]);
    let engine = kitchen.run();
    kitchen.define("cert-manager.io", "Certificate");
    kitchen.define("cert-manager.io", "CertificateRequest");
    kitchen.put("certificaterequests.cert-manager.io", "prod", "web-1", json!({ "spec": {} }));
    kitchen.put("certificates.cert-manager.io", "prod", "web", json!({ "spec": { "dnsNames": ["example.com"] } }));
    assert_eq!(stories(&wait_events(&engine, &kitchen.file("stdout"), 1)), ["added certificates web"]);
    kitchen.delete("customresourcedefinitions.apiextensions.k8s.io", "", "certificates.cert-manager.io");
    let seen = stories(&wait_events(&engine, &kitchen.file("stdout"), 2));
    assert_eq!(seen, ["added certificates web", "deleted certificates web"]);
}

#[test]
fn inventory_has_names_without_contents() {
    let mut kitchen = Kitchen::with("inventory.toml", &["prod"]);
    kitchen.replace_path("DELTABUS__HANDLERS__INVENTORY__PATH", "inventory.jsonl");
    let web = kitchen.deploy("prod", "web", "web:1");
    let owner =
        json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": web["metadata"]["uid"] }]);
    kitchen.put("replicasets.apps", "prod", "web-1", json!({ "metadata": { "ownerReferences": owner }, "spec": {} }));
    let engine = kitchen.run();
    let log = kitchen.file("inventory.jsonl");
    kitchen.put("configmaps", "prod", "settings", json!({ "data": { "a": "1" } }));
    kitchen.put("configmaps", "prod", "settings", json!({ "data": { "a": "2" } }));
    kitchen.delete("configmaps", "prod", "settings");
    let of_settings = || stories(&events(&log)).into_iter().filter(|story| story.ends_with("configmaps settings"));
    engine.wait_for("both", PATIENCE, || of_settings().count() == 2);
    assert_eq!(of_settings().collect::<Vec<_>>(), ["added configmaps settings", "deleted configmaps settings"]);
    let seen = events(&log);
    assert!(stories(&seen).contains(&"added deployments web".to_owned()));
    assert!(seen.iter().all(|event| event["data"] == json!({})), "{seen:?}");

    let uid = web["metadata"]["uid"].as_str().unwrap();
    let found = engine.json(&format!("/apis/apps/v1/replicasets?index=owner&value={uid}"));
    assert_eq!(found["items"][0]["metadata"]["name"], "web-1");
}

#[test]
fn warnings_are_printed_without_caching() {
    let kitchen = Kitchen::with("events.toml", &["prod"]);
    let engine = kitchen.run();
    let event = |kind: &str, reason: &str| {
        let about = json!({ "kind": "Pod", "name": "web", "namespace": "prod" });
        json!({ "type": kind, "reason": reason, "involvedObject": about, "message": "something happened" })
    };
    kitchen.put("events", "prod", "web.1", event("Normal", "Pulled"));
    kitchen.put("events", "prod", "web.2", event("Warning", "BackOff"));
    let seen = wait_events(&engine, &kitchen.file("stdout"), 1);
    assert_eq!(stories(&seen), ["added events web.2"]);
    assert_eq!(seen[0]["data"]["reason"], "BackOff");
}
