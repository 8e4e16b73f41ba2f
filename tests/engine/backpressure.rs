//! Slow handlers and floods of events: they increase counters but not the heap, and do not delay other handlers (E5, E6, E7).

#![expect(clippy::disallowed_methods, reason = "tests wait by the clock")]

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    stream::{read_events, replay_events},
};
use actix::{Actor, Context, Handler, ResponseFuture};
use deltabus::internals::{
    config::{Config, HandlerOptions, Initial},
    engine::Engine as InProcess,
    list_watch::kube::ClusterAccess,
    notification::{Notification, Stopped},
    object::ObjectKey,
    simulator::{RawObject, Simulator, SimulatorOptions},
};
use serde_json::{Value, json};

/// Number of objects, and number of updates per object.
const OBJECTS: usize = 10;
const UPDATES: usize = 400;

fn simulator() -> Simulator {
    Simulator::start(SimulatorOptions::default()).expect("a loopback port is free")
}

/// Updates every object many times; an update has about 2 KB.
fn flood(simulator: &Simulator, updates: usize) {
    for round in 0..updates {
        for i in 0..OBJECTS {
            let data = json!({"round": round.to_string(), "padding": "x".repeat(2000)});
            let object = json!({"metadata": {"namespace": "default", "name": format!("c{i}")}, "data": data});
            simulator.store().put("configmaps", object).expect("a valid object");
        }
    }
}

/// Creates a named pipe that is open for reading, so that opening it for writing does not block. As a sink it accepts
/// about 64 KB, then stalls until the pipe is read.
fn stuck_pipe(path: &str) -> File {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
    OpenOptions::new().read(true).write(true).open(path).expect("the pipe was made")
}

/// Runs an engine with a handler `stuck` that writes to a pipe, and one `free` that writes to a file.
fn run(simulator: &Simulator, dir: &Path, shutdown_timeout: &str) -> Engine {
    let kubeconfig = text(dir, "kubeconfig");
    std::fs::write(&kubeconfig, simulator.kubeconfig()).expect("the directory is writable");
    let (pipe, free) = (text(dir, "pipe"), text(dir, "free.jsonl"));
    let config = format!(
        r#"
        shutdown_timeout = "{shutdown_timeout}"
        [kube]
        kubeconfig = "{kubeconfig}"
        [resources.things]
        match = ["configmaps"]
        fifo_max_bytes = "64KiB"
        [handlers.free]
        type = "file"
        path = "{free}"
        initial = "send"
        [handlers.stuck]
        type = "file"
        path = "{pipe}"
        fsync = "never"
        initial = "send"
        buffer = {{ max_events = 50 }}
        "#
    );
    let engine = Engine::run(dir, &config);
    engine.wait_ready(PATIENCE);
    engine
}

fn handler(engine: &Engine, name: &str) -> Value {
    let handlers = engine.json("/v1/handlers");
    let rows = handlers["handlers"].as_array().expect("a list of rows");
    rows.iter().find(|row| row["name"] == name).expect("the handler was configured").clone()
}

/// Waits until a file contains the last change.
fn wait_for_all(engine: &Engine, simulator: &Simulator, file: &Path) {
    let last = format!(".{}\"", simulator.store().version());
    let delivered = || std::fs::read_to_string(file).is_ok_and(|text| text.contains(&last));
    engine.wait_for("delivered to the free handler", PATIENCE, delivered);
}

/// Rows 8 and 19 of the users' requests: no memory growth while a sink is slow or down.
#[test]
fn stalled_handler_delays_none_and_gets_final_states() {
    let (simulator, dir) = (simulator(), tempfile::tempdir().expect("a temporary directory"));
    let pipe = stuck_pipe(&text(dir.path(), "pipe"));
    let engine = run(&simulator, dir.path(), "10s");
    flood(&simulator, UPDATES);
    let free = dir.path().join("free.jsonl");
    wait_for_all(&engine, &simulator, &free);
    let is_merged = || handler(&engine, "stuck")["coalesced"].as_u64().is_some_and(|coalesced| coalesced > 1000);
    engine.wait_for("merged", PATIENCE, is_merged);

    let stuck = handler(&engine, "stuck");
    assert!(stuck["queued"].as_u64().is_some_and(|queued| queued <= 1000 + 50), "a batch and the buffer: {stuck}");
    assert_eq!(stuck["dropped"], 0, "nothing is lost, only merged: {stuck}");
    assert_eq!(handler(&engine, "free")["dropped"], 0);

    let seen = Arc::new(Mutex::new(Vec::<Value>::new()));
    let sink = Arc::clone(&seen);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            sink.lock().expect("not poisoned").push(event);
        }
    });
    let expected: Vec<_> =
        simulator.store().list("configmaps").iter().map(|object| object.version().to_string()).collect();
    engine.wait_for("the final states with the handler that was stuck", PATIENCE, || {
        let seen = seen.lock().expect("not poisoned");
        expected.iter().all(|version| seen.iter().any(|event| event["resourceversion"] == version.as_str()))
    });
    assert_eq!(engine.terminate().code(), Some(0));
    let woken = replay_events(&seen.lock().expect("not poisoned"));
    let free = replay_events(&read_events(&free));
    assert_eq!(woken.state, free.state, "both end in the same state, and E2 and E3 hold for both");
    assert!(woken.events < free.events, "{} and {}", woken.events, free.events);
}

#[test]
fn sigterm_with_stalled_handler_ends_within_timeout() {
    let (simulator, dir) = (simulator(), tempfile::tempdir().expect("a temporary directory"));
    let _pipe = stuck_pipe(&text(dir.path(), "pipe"));
    let engine = run(&simulator, dir.path(), "2s");
    flood(&simulator, 1);
    engine.wait_for("told", PATIENCE, || handler(&engine, "stuck")["delivered"].as_u64().is_some_and(|n| n >= 10));
    flood(&simulator, 50);
    engine.wait_for("stuck", PATIENCE, || handler(&engine, "stuck")["queued"].as_u64().is_some_and(|n| n > 0));
    wait_for_all(&engine, &simulator, &dir.path().join("free.jsonl"));
    thread::sleep(Duration::from_millis(300));
    let (told, log) = (Instant::now(), engine.log_handle());
    let status = engine.terminate();
    assert!(told.elapsed() < Duration::from_mins(1), "{:?}", told.elapsed());
    let log = log.lock().expect("not poisoned");
    let line = log.lines().find(|line| line.contains("undelivered")).unwrap_or_else(|| panic!("nothing named:\n{log}"));
    assert!(line.contains("stuck") && line.contains("configmaps updated default/c0"), "{line}");
    assert!(line.contains("they are lost"), "there is no state directory: {line}");
    assert!(!log.lines().any(|line| line.contains("undelivered") && line.contains("free")), "{log}");
    assert_eq!(status.code(), Some(0));
    let free = replay_events(&read_events(&dir.path().join("free.jsonl")));
    assert_eq!(free.state.len(), simulator.store().len("configmaps"), "the other handler got everything");
}

/// Rule: F-32.
#[test]
fn unit_queue_stays_bounded_under_flood() {
    let (simulator, dir) = (simulator(), tempfile::tempdir().expect("a temporary directory"));
    let pipe = stuck_pipe(&text(dir.path(), "pipe"));
    let engine = run(&simulator, dir.path(), "10s");
    thread::spawn(move || BufReader::new(pipe).lines().map_while(Result::ok).for_each(drop));
    let object = |i: usize| RawObject {
        key: ObjectKey::new("bulk", &format!("c{i:05}")),
        before: format!(r#""metadata":{{"name":"c{i:05}","namespace":"bulk","uid":"u{i}","resourceVersion":""#).into(),
        after: format!(r#""}},"data":{{"value":"{}"}}}}"#, "x".repeat(2000)).into(),
    };
    simulator.store().ingest("configmaps", (0..10_000).map(object)).expect("a served type");
    let (mut most, expected) = (0, simulator.store().len("configmaps"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = engine.json("/v1/resources")["resources"][0].clone();
        most = most.max(row["queueBytes"].as_u64().expect("a number"));
        if row["objects"] == expected && row["queueLength"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{row}");
    }
    // 20 MB passed a queue of 64 KiB; one batch may exceed the bound.
    assert!(most < (64 << 10) + (2 << 20), "{most} bytes");
}

/// An actor that takes a batch and never answers.
struct Silent;

impl Actor for Silent {
    type Context = Context<Self>;
}

impl Handler<Notification> for Silent {
    type Result = ResponseFuture<Result<(), Stopped>>;

    fn handle(&mut self, _: Notification, _: &mut Self::Context) -> Self::Result {
        Box::pin(std::future::pending())
    }
}

/// An actor that counts.
struct Count(Arc<Mutex<usize>>);

impl Actor for Count {
    type Context = Context<Self>;
}

impl Handler<Notification> for Count {
    type Result = Result<(), Stopped>;

    fn handle(&mut self, notification: Notification, _: &mut Self::Context) -> Self::Result {
        *self.0.lock().expect("not poisoned") += notification.events().len();
        Ok(())
    }
}

#[test]
fn unresponsive_actor_delays_no_other() {
    let simulator = simulator();
    flood(&simulator, 1);
    let (counted, expected) = (Arc::new(Mutex::new(0)), simulator.store().len("configmaps") * 21);
    let config = "shutdown_timeout = \"3s\"\n[resources.things]\nmatch = [\"configmaps\"]\n[http]\nlisten = \"\"\n";
    let config = Config::from_toml_str(config).expect("a valid configuration");
    let access = ClusterAccess::without_credentials(&simulator.url(), "test").expect("a valid address");
    let options = HandlerOptions { initial: Initial::Send, ..HandlerOptions::default() };
    actix::System::new().block_on(async {
        let silent = Silent.start().recipient();
        let count = Count(Arc::clone(&counted)).start().recipient();
        let builder = InProcess::builder().config(config).cluster(access);
        let builder = builder.handler("silent", options.clone(), silent).handler("count", options, count);
        let engine = builder.start().await.expect("it starts");
        engine.wait_for_sync().await;
        flood(&simulator, 20);
        let deadline = Instant::now() + PATIENCE;
        while *counted.lock().expect("not poisoned") < expected {
            assert!(Instant::now() < deadline, "{:?} of {expected}: {:?}", counted.lock(), engine.handlers());
            actix_rt::time::sleep(Duration::from_millis(10)).await;
        }
        let stopping = Instant::now();
        let report = engine.stop().await;
        assert!(stopping.elapsed() < Duration::from_mins(1), "{:?}", stopping.elapsed());
        let left: Vec<_> =
            report.undelivered.iter().map(|(handler, events, _)| (handler.as_str(), *events > 0)).collect();
        assert_eq!(left, [("silent", true)], "what was left is named");
    });
}
