//! `deltabus bench`: the server of generated objects, and the command.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use deltabus::{
    ObjectKey,
    internals::{
        bench::{Generator, Probe, ReplayServer, Shape, States, figures::FIGURES, orders::EngineOptions},
        config::Config,
        engine::Engine,
        list_watch::kube::ClusterAccess,
        lister::{Lister, Selector},
    },
};
use serde_json::Value;
use tokio::time::{Duration, sleep};

/// Number of objects that gives the cache enough bytes for a compression dictionary.
const OBJECTS: u64 = 600;
const CHANGES: u64 = 1_500;

fn options(server: &ReplayServer, shape: Shape) -> EngineOptions {
    EngineOptions {
        server: server.url(),
        resource: shape.resource().qualified_name(),
        compression: "zstd".to_owned(),
        keep_all: true,
        indexes: shape.indexes().map(str::to_owned).to_vec(),
        state: None,
    }
}

/// Compares each object of a cache, byte for byte, with the generator's state after `changes` changes.
fn assert_equal(lister: &Lister, generator: &Generator, changes: u64) {
    let mut states = States::default();
    states.advance(generator, changes);
    assert_eq!(lister.len(), generator.objects());
    for number in 0..generator.objects() {
        let mut expected = Vec::new();
        generator.write(number, states.last(number), &mut expected);
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let [namespace, name] = ["namespace", "name"].map(|part| expected["metadata"][part].as_str().unwrap());
        let object = lister.get(ObjectKey::new(namespace, name).as_ref()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&object.json()).unwrap(), expected, "object {number}");
    }
}

#[test]
fn engine_ends_with_exactly_the_generated_states() {
    // Each probe waits until its engine is idle before it measures; three probes do that in parallel.
    std::thread::scope(|scope| {
        for (shape, objects) in [(Shape::Pods, OBJECTS), (Shape::Custom, OBJECTS), (Shape::Configmaps, 40)] {
            scope.spawn(move || actix::System::new().block_on(ends_with_the_states(shape, objects)));
        }
    });
}

async fn ends_with_the_states(shape: Shape, objects: u64) {
    let server = ReplayServer::start(Generator::new(shape, objects, 9)).unwrap();
    server.release(7); // before the engine starts, so that its list has them
    let mut probe = Probe::start(&options(&server, shape)).await.unwrap();
    let synced = probe.synced(|_, _| {}).await.unwrap();
    assert_eq!(synced.objects, objects, "{shape}");
    let lister = probe.lister().unwrap();
    assert_equal(&lister, server.generator(), 7);

    probe.begin();
    let changes = 7 + CHANGES.min(objects * 3);
    server.release(changes - 7);
    let reached = probe.reached(server.generator().version(changes), |_| {}).await.unwrap();
    assert!(reached.delivered > 0 && reached.cpu_nanos > 0);
    assert_equal(&lister, server.generator(), changes);
    for index in shape.indexes() {
        let values = lister.list_index_values(index);
        let found: usize = values.iter().map(|value| lister.by_index(index, value).unwrap().len()).sum();
        assert!(found as u64 >= objects, "{shape}: {index} finds {found}");
    }
    probe.stop().await;
}

#[test]
fn pages_and_watch_equal_streaming_list() {
    let server = ReplayServer::start(Generator::new(Shape::Events, OBJECTS, 3)).unwrap();
    server.release(100);
    let config =
        "[kube]\nstreaming_lists = \"never\"\npage_size = 90\n[resources.events]\nmatch = [\"events\"]\ndrop = []";
    let mut config = Config::from_toml_str(config).unwrap();
    config.http.listen = None;
    let access = ClusterAccess::without_credentials(&server.url(), "test").unwrap();
    actix::System::new().block_on(async {
        let engine = Engine::builder().config(config).cluster(access).start().await.unwrap();
        engine.wait_for_sync().await;
        let lister = engine.listers("events").remove(0);
        assert_equal(&lister, server.generator(), 100);
        server.release(900);
        let version = server.generator().version(1_000).to_string();
        while lister.version().resource_version.as_str() != version {
            sleep(Duration::from_millis(5)).await;
        }
        assert_equal(&lister, server.generator(), 1_000);
        engine.stop().await;
    });
}

/// Sends a GET over a new connection; returns the bytes received until the first silence.
fn get(server: &ReplayServer, path: &str) -> String {
    let url = server.url();
    let mut socket = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn pages_share_first_snapshot_and_bad_queries_fail() {
    let server = ReplayServer::start(Generator::new(Shape::Events, 10, 3)).unwrap();
    let pods = Shape::Events.resource().path(None);
    server.release(5);
    let first = get(&server, &format!("{pods}?limit=4"));
    assert!(first.contains(r#""continue":"5.4""#) && first.contains(r#""remainingItemCount":6"#), "{first}");
    server.release(50);
    let second = get(&server, &format!("{pods}?limit=400&continue=5.4"));
    let version = server.generator().version(5);
    assert!(second.contains(&format!(r#""metadata":{{"resourceVersion":"{version}"}}"#)), "{second}");
    assert_eq!(second.matches("fieldPath").count(), 6);
    for (question, code) in [
        ("continue=99999.0", 400),
        ("continue=soon", 400),
        ("watch=true&resourceVersion=soon", 400),
        ("labelSelector=a%3Db", 400),
        ("limit=many", 400),
    ] {
        let answer = get(&server, &format!("{pods}?{question}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{question}: {answer}");
        assert!(answer.contains(r#""kind":"Status""#), "{question}: {answer}");
    }
    assert!(get(&server, "/api/v1/namespaces/kube-system").contains(r#""kind":"Namespace""#), "the server behind it");
}

#[test]
fn single_changes_have_times_and_flood_ends() {
    let server = ReplayServer::start(Generator::new(Shape::Events, 100, 3)).unwrap();
    actix::System::new().block_on(async {
        let probe = Probe::start(&options(&server, Shape::Events)).await.unwrap();
        probe.synced(|_, _| {}).await.unwrap();
        probe.note();
        let sent = server.tick(20, Duration::from_millis(1)).await;
        let versions: Vec<u64> = (1..=20).map(|change| server.generator().version(change)).collect();
        assert_eq!(sent.iter().map(|(version, _)| *version).collect::<Vec<_>>(), versions);
        let arrived = probe.arrivals(versions[19]).await;
        assert_eq!(arrived.last().unwrap().0, versions[19]);
        assert!(arrived.last().unwrap().1 > sent[19].1, "it arrives after it was sent");

        server.flood();
        while server.changes() < 2_000 {
            sleep(Duration::from_millis(1)).await;
        }
        let held = server.hold();
        let last = server.generator().version(held);
        let lister = probe.lister().unwrap();
        while lister.version().resource_version.as_str() != last.to_string() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.changes(), held);

        server.flow(1_000);
        while server.changes() < held + 10 {
            sleep(Duration::from_millis(1)).await;
        }
        server.hold();
        probe.stop().await;
    });
}

#[test]
fn unmerged_handler_sees_each_change_once() {
    let server = ReplayServer::start(Generator::new(Shape::Custom, 50, 3)).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let access = ClusterAccess::without_credentials(&server.url(), "test").unwrap();
    let of_handler = Arc::clone(&seen);
    actix::System::new().block_on(async {
        let resource = Shape::Custom.resource().qualified_name();
        let engine = Engine::builder().cluster(access).watch_type(&resource, |_| {});
        let engine =
            engine.on_change("count", deltabus::internals::config::HandlerOptions::default(), move |notification| {
                of_handler.fetch_add(notification.events().len() as u64, Ordering::Relaxed);
                Ok(())
            });
        let engine = engine.start().await.unwrap();
        engine.wait_for_sync().await;
        server.release(300);
        while seen.load(Ordering::Relaxed) < 300 {
            sleep(Duration::from_millis(1)).await;
        }
        engine.stop().await;
        assert_eq!(seen.load(Ordering::Relaxed), 300);
    });
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltabus")).arg("bench").args(arguments).env("NO_COLOR", "1").output().unwrap()
}

#[test]
fn bench_prints_document_with_plausible_figures() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("bench.svg");
    let output = bench(&[
        "--pods",
        "500",
        "--events",
        "1000",
        "--shape",
        "pods,events",
        "--index",
        "--flow",
        "100",
        "--json",
        "--plot",
        plot.to_str().unwrap(),
        "--state",
        dir.path().to_str().unwrap(),
    ]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["version"], &document["options"]["flow"]), (&2.into(), &100.into()));
    for (at, name) in ["pods", "events"].into_iter().enumerate() {
        let result = &document["results"][at];
        assert_eq!(
            (&result["name"], &result["objects"], &result["changes"]),
            (&name.into(), &500.into(), &1000.into())
        );
        let figures = result["figures"].as_object().unwrap();
        for figure in &FIGURES {
            let optional = figure.key == "selectorObjectsPerSecond" && name == "events" // events have no labels
                || figure.key == "writtenBytesPerEvent" // an in-memory file system writes nothing
                || !cfg!(target_os = "linux") && (figure.key.contains("esident") || figure.key.contains("Megabytes"));
            let median = figures.get(figure.key).map(|figure| figure["median"].as_f64().unwrap());
            assert!(optional || median.is_some_and(|median| median > 0.0), "{name}: {}: {median:?}", figure.key);
        }
        let of = |key: &str| figures[key]["median"].as_f64().unwrap();
        assert!(of("latencyP50Micros") <= of("latencyP99Micros") && of("latencyP99Micros") <= of("latencyMaxMicros"));
        assert!(of("keptBytes") < of("objectBytes"), "managedFields are dropped");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains(">events<"));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["bench.svg"], "the state directory is removed");
}

#[test]
fn bench_measures_read_only_server() {
    let server = ReplayServer::start(Generator::new(Shape::Pods, 300, 3)).unwrap();
    server.flow(200);
    let output = bench(&["--server", &server.url(), "--for", "1s"]);
    let (table, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{errors}");
    assert!(table.contains(&format!("pods: 300 objects of {}", server.url())), "{table}");
    for line in ["first sync, s", "CPU per event, µs", "events delivered, per s", "reads by key, one thread, per s"] {
        assert!(table.contains(line), "{table}");
    }
    assert!(!table.contains("latency"), "nobody knows when these were sent: {table}");
}

#[test]
fn unmeasurable_input_is_exit_code_1() {
    let failed = |arguments: &[&str], said: &str| {
        let output = bench(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty());
        assert!(errors.contains(said), "{arguments:?}: {errors}");
        output.status.code().unwrap()
    };
    let server = ReplayServer::start(Generator::new(Shape::Pods, 3, 3)).unwrap();
    let url = &*server.url();
    assert_eq!(failed(&["--server", "http://127.0.0.1:1"], "failed to reach http://"), 1);
    assert_eq!(failed(&["--server", "nowhere"], "expected a URL such as"), 2);
    assert_eq!(failed(&["--server", url, "--resource", "services", "--for", "1s"], "there are no objects"), 1);
    assert_eq!(failed(&["--server", url, "--resource", "podz", "--for", "1s"], "did you mean pods?"), 1);
    assert_eq!(failed(&["--pods", "10", "--plot", "/nonexistent/x.svg"], "failed to write /nonexistent/x.svg"), 1);
    assert_eq!(failed(&["--pods", "10", "--state", "/nonexistent"], "(--state)"), 1);
    assert_eq!(failed(&["--pods", "0"], "--pods"), 2);
    assert_eq!(failed(&["--shape", "cats"], "[possible values: pods, diverse, custom, configmaps, events, all]"), 2);
}

/// Returns the child processes of a process.
fn children(of: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn stopped_measurement_leaves_no_process() {
    for (signal, code) in [("TERM", Some(1)), ("INT", Some(1)), ("KILL", None)] {
        let mut measuring = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["bench", "--pods", "100000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut started = Vec::new();
        while started.is_empty() {
            started = children(measuring.id());
            std::thread::yield_now();
        }
        let killed = Command::new("kill").args([&format!("-{signal}"), &measuring.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(measuring.wait().unwrap().code(), code, "{signal}");
        if code.is_some() {
            let mut errors = String::new();
            measuring.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            assert!(errors.contains("stopped before the measurements were complete"), "{errors}");
        }
        for child in started {
            let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            while !state().is_empty() && !state().contains(") Z ") {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn bench_help_is_complete() {
    let output = bench(&["--help"]);
    assert!(output.status.success());
    insta::assert_snapshot!("help", String::from_utf8(output.stdout).unwrap());
}

#[test]
fn every_figure_is_documented() {
    let document = std::fs::read_to_string("docs/benchmarks.md").unwrap();
    for figure in &FIGURES {
        assert!(document.contains(&format!("`{}`", figure.key)), "{}", figure.key);
    }
}

#[test]
fn cache_selectors_find_generated_objects() {
    let server = ReplayServer::start(Generator::new(Shape::Diverse, 200, 3)).unwrap();
    actix::System::new().block_on(async {
        let probe = Probe::start(&options(&server, Shape::Diverse)).await.unwrap();
        probe.synced(|_, _| {}).await.unwrap();
        let lister = probe.lister().unwrap();
        let web = deltabus::internals::lister::LabelSelector::parse("app.kubernetes.io/name=web").unwrap();
        assert_eq!(lister.list(&Selector::from(web)).len(), 20);
        assert_eq!(lister.namespace("team-03").list(&Selector::all()).len(), 20);
        let (reads, _) = probe.read(Duration::from_millis(20), false).await.unwrap();
        assert!(reads.by_key > 0.0 && reads.by_index > 0.0 && reads.by_selector > 0.0);
        probe.stop().await;
    });
}
