//! `deltabus verify`: no difference under load, and every planted difference is found and named.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
    scripted::PATIENCE,
    verify::{Outcome, verify},
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

fn config(kubeconfig: &str, resources: &str) -> String {
    format!(
        "[kube]\nkubeconfig = \"{kubeconfig}\"\nbackoff = {{ initial = \"50ms\", max = \"200ms\" }}\n\
         [handlers.count]\ntype = \"blackhole\"\n{resources}"
    )
}

/// A TCP proxy that replaces a text in the server's answers by another of the same length, or delays it.
struct Liar {
    address: SocketAddr,
    lies: Arc<Mutex<Vec<(String, String)>>>,
    silent: Arc<AtomicBool>,
}

impl Liar {
    fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("it is bound");
        let (lies, silent) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let liar = Self { address, lies: Arc::clone(&lies), silent: Arc::clone(&silent) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                let (mut from, mut to) = (client.try_clone().expect("cloned"), server.try_clone().expect("cloned"));
                thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                let (lies, silent) = (Arc::clone(&lies), Arc::clone(&silent));
                thread::spawn(move || Self::answer(server, client, &lies, &silent));
            }
        });
        liar
    }

    fn answer(mut server: TcpStream, mut client: TcpStream, lies: &Mutex<Vec<(String, String)>>, silent: &AtomicBool) {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            let mut said = String::from_utf8_lossy(&buffer[..read]).into_owned();
            for (truth, lie) in lies.lock().expect("not poisoned").iter() {
                assert_eq!(truth.len(), lie.len(), "the length of a chunk stands before it");
                said = said.replace(truth, lie);
            }
            while silent.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            if client.write_all(said.as_bytes()).is_err() {
                break;
            }
        }
        drop(client.shutdown(Shutdown::Both));
    }

    fn tell(&self, truth: &str, lie: &str) {
        self.lies.lock().expect("not poisoned").push((truth.to_owned(), lie.to_owned()));
    }
}

/// A simulator, and an engine that reads it through the proxy.
struct Scene {
    simulator: Simulator,
    liar: Liar,
    engine: Engine,
    /// Kubeconfig of the simulator itself.
    kubeconfig: PathBuf,
    _dir: tempfile::TempDir,
}

fn configmap(name: &str, value: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": name, "labels": {"kept": "yes"}}, "data": {"value": value}})
}

impl Scene {
    fn start(resources: &str) -> Self {
        let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        for i in 0..1200 {
            simulator.store().create("configmaps", configmap(&format!("c{i:04}"), "0")).expect("a valid object");
        }
        let liar = Liar::start(simulator.address());
        let dir = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, simulator.kubeconfig()).expect("written");
        let through = text(dir.path(), "through");
        let lying = simulator.kubeconfig().replace(&simulator.address().to_string(), &liar.address.to_string());
        fs::write(&through, lying).expect("written");
        let engine = Engine::run(dir.path(), &config(&through, resources));
        engine.wait_ready(PATIENCE);
        Self { simulator, liar, engine, kubeconfig, _dir: dir }
    }

    fn verify(&self, args: &[&str]) -> Outcome {
        verify(&format!("http://{}", self.engine.http), &self.kubeconfig, args)
    }

    fn wait_until_cached(&self, name: &str) {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        self.engine.wait_for("cached", PATIENCE, || matches!(self.engine.get(&path), Ok((200, _))));
    }
}

#[test]
fn equal_cache_is_proven_in_pages() {
    let scene = Scene::start("[resources.maps]\nmatch = [\"configmaps\", \"namespaces\", \"bananas.fruit.example\"]\n");
    let outcome = scene.verify(&[]);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("1200     equal"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("equals the server: 2 types"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("waits for bananas.fruit.example"), "{}", outcome.stderr);
    let document = scene.verify(&["-o", "json"]).json();
    assert_eq!(document["verdict"], "equal");
    let maps = document["units"].as_array().unwrap().iter().find(|unit| unit["type"] == "configmaps").unwrap();
    assert_eq!((&maps["objects"], &maps["entry"], &maps["differences"]), (&json!(1200), &json!("maps"), &json!([])));
    let seen = scene.simulator.requests();
    let asked =
        |key: &str| seen.iter().any(|request| request.query.contains_key(key) && request.accept.contains("Partial"));
    assert!(asked("resourceVersionMatch") && asked("continue"), "the version of the cache is asked for, in pages");
}

/// Rule: S-15.
#[test]
fn planted_differences_are_found_and_named() {
    let scene = Scene::start("[resources.maps]\nmatch = [\"configmaps\"]\n");
    // An event arrives under another object name: one object is missing in the cache, and one is surplus.
    scene.liar.tell("\"planted-true\"", "\"planted-lies\"");
    scene.simulator.store().create("configmaps", configmap("planted-true", "1")).expect("a valid object");
    scene.wait_until_cached("planted-lies");
    // One object arrives with another uid.
    let stale = scene.simulator.store().create("configmaps", configmap("stale", "1")).expect("a valid object");
    scene.wait_until_cached("stale");
    let uid = stale.value()["metadata"]["uid"].as_str().unwrap().to_owned();
    let forged = uid.replace(|letter: char| letter.is_ascii_alphanumeric(), "f");
    scene.liar.tell(&uid, &forged);
    let update = configmap("stale", "2");
    scene.simulator.store().update("configmaps", update).expect("a valid object");
    let cached = || {
        scene.engine.get("/api/v1/namespaces/default/configmaps/stale").is_ok_and(|(_, body)| body.contains(&forged))
    };
    scene.engine.wait_for("forged", PATIENCE, cached);

    let outcome = scene.verify(&["-o", "json"]);
    assert_eq!(outcome.code, 1, "{}{}", outcome.stdout, outcome.stderr);
    let document = outcome.json();
    assert_eq!(document["verdict"], "different");
    let differences = document["units"][0]["differences"].as_array().unwrap();
    let found: Vec<_> = differences.iter().map(|d| (d["kind"].as_str().unwrap(), d["key"].as_str().unwrap())).collect();
    let expected = [("extra", "default/planted-lies"), ("missing", "default/planted-true"), ("stale", "default/stale")];
    assert_eq!(found, expected);
    assert_eq!((&differences[2]["cache"]["uid"], &differences[2]["server"]["uid"]), (&json!(forged), &json!(uid)));
    assert_eq!(differences[1]["cache"], Value::Null);

    let outcome = scene.verify(&[]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stdout.contains("different: 3"), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("configmaps default/planted-true: missing: the cache has nothing"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stderr.contains("error: the cache differs from the server in 1 type"), "{}", outcome.stderr);
}

#[test]
fn lagging_cache_is_awaited_and_then_unprovable() {
    let scene = Scene::start("[resources.maps]\nmatch = [\"configmaps\"]\n");
    scene.liar.silent.store(true, Ordering::Relaxed);
    scene.simulator.store().create("configmaps", configmap("unseen", "1")).expect("a valid object");
    let outcome = scene.verify(&["--wait", "1s"]);
    assert_eq!(outcome.code, 1, "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("not verified: the cache is behind"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("could not verify 1 type"), "{}", outcome.stderr);
    assert_eq!(scene.verify(&["--wait", "1s", "-o", "json"]).json()["verdict"], "unproven");
    let late = thread::spawn({
        let silent = Arc::clone(&scene.liar.silent);
        move || {
            thread::sleep(Duration::from_secs(2));
            silent.store(false, Ordering::Relaxed);
        }
    });
    let outcome = scene.verify(&["--wait", "1m"]);
    late.join().expect("it spoke again");
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
}

#[test]
fn only_watched_objects_are_compared() {
    let resources =
        "[resources.maps]\nmatch = [\"configmaps\"]\nlabels = \"kept=yes\"\nfields = \"metadata.name!=c0007\"\n";
    let scene = Scene::start(resources);
    let other = json!({"metadata": {"namespace": "default", "name": "other"}});
    scene.simulator.store().create("configmaps", other).expect("a valid object");
    let outcome = scene.verify(&["-o", "json"]);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.json()["units"][0]["objects"], 1199);
}

fn foos() -> Value {
    json!({
        "metadata": {"name": "foos.x.dev"},
        "spec": {
            "group": "x.dev", "scope": "Namespaced", "names": {"kind": "Foo", "plural": "foos"},
            "versions": [{"name": "v1", "served": true, "storage": true}],
        },
    })
}

#[test]
fn type_removed_meanwhile_is_left_out() {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let definitions = "customresourcedefinitions.apiextensions.k8s.io";
    let create = || {
        simulator.store().create(definitions, foos()).expect("a valid definition");
        let foo = json!({"metadata": {"namespace": "default", "name": "a"}});
        simulator.store().create("foos.x.dev", foo).expect("a valid object");
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("written");
    let resources = "[resources.all]\nmatch = [\"namespaces\", \"*.x.dev\"]\n";
    create();
    let engine = Engine::run(dir.path(), &config(&text(dir.path(), "kubeconfig"), resources));
    engine.wait_ready(PATIENCE);
    let is_watched = || engine.get("/apis/x.dev/v1/foos").is_ok_and(|(code, _)| code == 200);
    // verify watches each type for a second before it compares the lists
    let is_verified = || {
        let seen = simulator.requests();
        seen.iter()
            .any(|request| request.path.ends_with("/foos") && request.accept.contains("as=PartialObjectMetadata;"))
    };
    for is_recreated in [true, false] {
        engine.wait_for("watched", PATIENCE, is_watched);
        simulator.clear_requests();
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                engine.wait_for("verified", PATIENCE, is_verified);
                simulator.store().delete(definitions, "", "foos.x.dev").expect("it exists");
                if is_recreated {
                    create();
                }
            });
            verify(&format!("http://{}", engine.http), &kubeconfig, &[])
        });
        assert_eq!(outcome.code, 0, "{is_recreated}: {}{}", outcome.stdout, outcome.stderr);
        let note = "[resources.all] no longer watches foos.x.dev: not verified";
        assert!(outcome.stderr.contains(note) || is_recreated, "{}", outcome.stderr);
    }
}

#[test]
fn missing_prerequisites_are_reported_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, simulator.kubeconfig()).expect("written");
    let outcome = verify("http://127.0.0.1:1", &kubeconfig, &[]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("no engine listens at http://127.0.0.1:1: start one"), "{}", outcome.stderr);
    assert_eq!(verify("http://127.0.0.1:1", &kubeconfig, &["--wait", "soon"]).code, 2);
    assert_eq!(verify("http://127.0.0.1:1", &kubeconfig, &["-c", "/missing.toml"]).code, 2);
}

#[test]
fn cache_equals_changing_real_server() {
    let Some(cluster) = Cluster::start_or_skip("cache_equals_changing_real_server", &[]) else { return };
    cluster.churn(&["--setup", "--ops", "500", "--seed", "1"]);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = cluster.kubeconfig().to_str().expect("paths of tests are text");
    let resources = "[resources.all]\nmatch = [\"pods\", \"deployments.apps\", \"configmaps\", \
                     \"widgets.test.deltabus.dev\", \"events\", \"secrets\"]\n";
    let engine = Engine::run(dir.path(), &config(kubeconfig, resources));
    engine.wait_ready(PATIENCE);
    let churn = cluster.start_churn(&["--duration", "12s", "--clients", "4", "--seed", "2"]);
    for round in 0..3 {
        let outcome = verify(&format!("http://{}", engine.http), cluster.kubeconfig(), &["-o", "json"]);
        assert_eq!(outcome.code, 0, "round {round}: {}{}", outcome.stdout, outcome.stderr);
        let document = outcome.json();
        let units = document["units"].as_array().expect("units");
        assert_eq!(units.len(), 6);
        let pods = units.iter().find(|unit| unit["type"] == "pods").expect("pods are watched");
        assert!(pods["objects"].as_u64().is_some_and(|objects| objects > 10), "{pods}");
    }
    churn.finish();
    let outcome = verify(&format!("http://{}", engine.http), cluster.kubeconfig(), &[]);
    assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
}
