//! `deltabus run` against a real Kubernetes API server, from a user's view. The file handler's events are replayed from
//! empty and compared with the server's lists.

use std::{net::SocketAddr, path::Path, time::Duration};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
    proxy::{Faults, Proxy},
    stream::{Replay, State, replay},
};
use serde_json::{Value, json};

/// Watched types, in kubectl's syntax.
const RESOURCES: [&str; 4] = ["pods", "deployments.apps", "configmaps", "widgets.test.deltabus.dev"];

fn config(kubeconfig: &Path, dir: &Path) -> String {
    format!(
        r#"
        shutdown_timeout = "60s"
        [cluster]
        name = "test"
        [kube]
        kubeconfig = "{kubeconfig}"
        backoff = {{ initial = "100ms", max = "2s" }}
        [resources.all]
        match = {RESOURCES:?}
        [handlers.out]
        type = "file"
        path = "{out}"
        initial = "send"
        on = ["added", "updated", "deleted", "removed", "synced"]
        "#,
        kubeconfig = kubeconfig.display(),
        out = text(dir, "out.jsonl"),
    )
}

/// Returns the server's current state in the form of the replayed stream.
fn server_state(cluster: &Cluster) -> State {
    let dump = cluster.dump(&RESOURCES);
    let mut state = State::new();
    for resource in RESOURCES {
        for (key, object) in dump[resource]["items"].as_object().expect("a dump has items") {
            let field = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let key = if key.contains('/') { key.clone() } else { format!("/{key}") };
            state.insert(format!("{resource}/{key}"), (field("uid"), field("resourceVersion")));
        }
    }
    state
}

/// Waits until the cache equals the server's lists, then stops the engine.
fn settle_and_stop(engine: Engine, cluster: &Cluster) -> State {
    let server = server_state(cluster);
    engine.wait_for("equal to the server", Duration::from_mins(3), || cached_state(&engine) == server);
    let status = engine.terminate();
    assert_eq!(status.code(), Some(0), "a stop that was asked for is success");
    server
}

/// Returns the state that the read API lists.
fn cached_state(engine: &Engine) -> State {
    let mut state = State::new();
    let paths = ["api/v1/pods", "apis/apps/v1/deployments", "api/v1/configmaps", "apis/test.deltabus.dev/v1/widgets"];
    for (resource, path) in RESOURCES.iter().zip(paths) {
        let list: Value = match engine.get(&format!("/{path}")) {
            Ok((200, body)) => serde_json::from_str(&body).expect("a list is JSON"),
            _ => return State::new(),
        };
        for item in list["items"].as_array().expect("a list has items") {
            let field = |name: &str| item["metadata"][name].as_str().unwrap_or_default().to_owned();
            let key = format!("{resource}/{}/{}", field("namespace"), field("name"));
            state.insert(key, (field("uid"), field("resourceVersion")));
        }
    }
    state
}

fn assert_equal(replay: &Replay, server: &State) {
    for (key, object) in server {
        assert_eq!(replay.state.get(key), Some(object), "{key} as the stream has it, and as the server has it");
    }
    for key in replay.state.keys() {
        assert!(server.contains_key(key), "{key} was shown and never deleted, the server does not have it");
    }
    eprintln!("{} events, {} objects at the end, {:?}", replay.events, server.len(), replay.counts);
}

/// Rule: G-1.
#[test]
fn random_writes_reach_server_state() {
    let Some(cluster) = Cluster::start_or_skip("random_writes_reach_server_state", &[]) else { return };
    let writes = std::env::var("DELTABUS_WRITES").unwrap_or_else(|_| "4000".to_owned());
    cluster.churn(&["--setup", "--ops", "500", "--seed", "1"]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = Engine::run(dir.path(), &config(cluster.kubeconfig(), dir.path()));
    engine.wait_ready(Duration::from_mins(2));
    let churned = cluster.churn(&["--ops", &writes, "--clients", "6", "--seed", "2"]);
    assert!(churned.status.success(), "churn: {}", String::from_utf8_lossy(&churned.stderr));

    let server = settle_and_stop(engine, &cluster);
    let replay = replay(&dir.path().join("out.jsonl"));
    assert_equal(&replay, &server);
    assert_eq!(replay.duplicates, 0, "nothing was sent twice without a restart");
    assert!(replay.counts.keys().any(|(kind, cause)| kind == "deleted" && cause == "watch"));
}

/// Rules: C-4, S-14.
#[test]
fn sigterm_leaves_no_accepted_event_undelivered() {
    let Some(cluster) = Cluster::start_or_skip("sigterm_leaves_no_accepted_event_undelivered", &[]) else { return };
    cluster.churn(&["--setup", "--ops", "200", "--seed", "3"]);
    for round in 0..3 {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = Engine::run(dir.path(), &config(cluster.kubeconfig(), dir.path()));
        engine.wait_ready(Duration::from_mins(2));
        let out = dir.path().join("out.jsonl");
        // The load continues until the engine has stopped.
        let churn = cluster.start_churn(&["--duration", "5m", "--clients", "4", "--seed", &format!("{}", 10 + round)]);
        engine.wait_for("in mid-stream", Duration::from_mins(1), || {
            let text = std::fs::read_to_string(&out).unwrap_or_default();
            text.matches(r#""cause":"watch""#).count() > 200 + 100 * round
        });
        // Changes that readers have seen were accepted, so they must be in the file after the stop.
        let seen = cached_state(&engine);
        let status = engine.terminate();
        assert_eq!(status.code(), Some(0));
        drop(churn);
        let replay = replay(&dir.path().join("out.jsonl"));
        let text = std::fs::read_to_string(dir.path().join("out.jsonl")).expect("the file is there");
        assert!(text.ends_with('\n'), "the last line is whole");
        for (key, (uid, version)) in seen {
            let id = format!("\"id\":\"{uid}.{version}\"");
            assert!(text.contains(&id), "{key} was readable at version {version} and was not delivered");
        }
        assert!(replay.events > 100, "{}", replay.events);
    }
}

/// Rule: G-1.
#[test]
fn bad_proxy_and_restarts_end_in_server_state() {
    let name = "bad_proxy_and_restarts_end_in_server_state";
    let Some(mut cluster) = Cluster::start_or_skip(name, &[]) else { return };
    cluster.churn(&["--setup", "--ops", "500", "--seed", "4"]);
    let upstream: SocketAddr = cluster.url().trim_start_matches("https://").parse().expect("a loopback address");
    let proxy = Proxy::start(upstream, 7);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = std::fs::read_to_string(cluster.kubeconfig()).expect("the fixture wrote it");
    let through = text(dir.path(), "kubeconfig");
    std::fs::write(&through, kubeconfig.replace(cluster.url(), &format!("https://{}", proxy.address)))
        .expect("written");

    let engine = Engine::run(dir.path(), &config(Path::new(&through), dir.path()));
    engine.wait_ready(Duration::from_mins(2));
    proxy.set(Faults { cut_one_in: 50, reset_one_in: 70, delay_one_in: 20, refuse_one_in: 12 });
    let out = dir.path().join("out.jsonl");
    let written = || std::fs::read_to_string(&out).map_or(0, |text| text.lines().count());
    for round in 0..2 {
        let before = written();
        let churn = cluster.start_churn(&["--ops", "2500", "--clients", "6", "--seed", &format!("{}", 20 + round)]);
        engine.wait_for("in mid-stream", Duration::from_mins(3), || written() > before + 200);
        cluster.compact();
        cluster.restart();
        churn.finish();
        cluster.compact();
    }
    proxy.set(Faults::default());

    let server = settle_and_stop(engine, &cluster);
    let replay = replay(&dir.path().join("out.jsonl"));
    assert_equal(&replay, &server);
    eprintln!("{} faults", proxy.injected());
    assert!(proxy.injected() > 20, "the proxy did harm: {}", proxy.injected());
    assert!(replay.counts.keys().any(|(_, cause)| cause == "relist"), "a relist found something: {:?}", replay.counts);
}

/// Five updates of 2 MB each: the server writes `<` as six bytes of JSON.
///
/// Rule: R-54.
#[test]
fn large_objects_of_real_server_arrive_by_watch() {
    let Some(cluster) = Cluster::shared_or_skip("large_objects_of_real_server_arrive_by_watch") else { return };
    let namespace = "large-objects";
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = config(cluster.kubeconfig(), dir.path())
        .replace(&format!("{RESOURCES:?}"), &format!("[\"configmaps\"]\nnamespaces = [\"{namespace}\"]"));
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(Duration::from_mins(1));
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let object = |round: &str| {
        let data = json!({"round": round, "text": "<".repeat(350_000)});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": data})
    };
    assert_eq!(cluster.request("POST", &path, Some(&object("0"))).0, 201);
    for round in ["1", "2", "3", "4", "5"] {
        assert_eq!(cluster.request("PUT", &format!("{path}/large"), Some(&object(round))).0, 200);
        engine.wait_for("in the cache", Duration::from_secs(30), || {
            engine.json(&format!("{path}/large"))["data"]["round"] == round
        });
    }
    let view = &engine.json("/v1/resources")["resources"][0];
    assert_eq!((&view["lists"], &view["events"]["updated"]), (&json!(1), &json!(5)), "{view}");
    assert_eq!(engine.terminate().code(), Some(0));
}
