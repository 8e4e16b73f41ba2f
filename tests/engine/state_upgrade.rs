//! A state directory of an earlier version opens, and loses nothing.
//!
//! `tests/states/0.2.0.tar.zst` was written by the program of version 0.2.0, and `0.2.0.json` says what it had delivered by then.
//! To make both for another version, build its program and run
//!
//! ```text
//! DELTABUS_PROGRAM=/path/to/deltabus DELTABUS_STATE=tests/states/0.3.0 cargo test --test engine -- state_upgrade
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::{
    engine::{Engine, request, text},
    scripted::PATIENCE,
    simulated::Simulated,
    sink::{Manner, Sink as _, webhook::Hook},
};

/// What the earlier program had done when it was killed.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    /// Ids of all changes of each object, in order.
    happened: BTreeMap<String, Vec<String>>,
    /// Ids that the handler `delivered` has delivered.
    delivered: BTreeSet<String>,
    /// Ids that the handler `given_up` has given up, and that can be replayed.
    given_up: BTreeSet<String>,
    /// Number of events that wait for the handler `waiting`.
    queued: u64,
    /// Number of events of the handler `waiting` that were coalesced into later ones.
    coalesced: u64,
}

/// Webhooks of the three handlers.
struct Hooks {
    delivered: Hook,
    given_up: Hook,
    waiting: Hook,
}

impl Hooks {
    fn start() -> Self {
        Self { delivered: Hook::start(), given_up: Hook::start(), waiting: Hook::start() }
    }

    fn config(&self, kubeconfig: &str, state: &str) -> String {
        let retry = "retry = { initial = \"20ms\", max = \"200ms\"";
        format!(
            "shutdown_timeout = \"1s\"\n[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {kubeconfig:?}\n\
             [state]\ndir = {state:?}\nmax_bytes = \"128MiB\"\n[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.delivered]\n{retry} }}\n{}\n\
             [handlers.given_up]\n{retry}, give_up_after = \"300ms\" }}\n{}\n\
             [handlers.waiting]\n{retry} }}\n{}\n",
            self.delivered.handler(),
            self.given_up.handler(),
            self.waiting.handler(),
        )
    }
}

fn ids(hook: &Hook) -> Vec<String> {
    hook.arrived().iter().map(|event| event["id"].as_str().expect("each event has an id").to_owned()).collect()
}

fn handler(engine: &Engine, name: &str) -> Value {
    let answer = engine.json("/v1/handlers");
    let mut rows = answer["handlers"].as_array().expect("a list of rows").iter();
    rows.find(|row| row["name"] == name).expect("it is configured").clone()
}

fn count(engine: &Engine, name: &str, what: &str) -> u64 {
    handler(engine, name)[what].as_u64().expect("it is a number")
}

/// Logarithm of the window of the archive's compression. The state repeats large values, so that it fills up; they are stored once.
const WINDOW_LOG: u32 = 27;

/// Runs tar in a directory, with a pipe as the archive.
fn tar(arguments: &[&str], dir: &Path) -> Child {
    let mut command = Command::new("tar");
    command.arg("-C").arg(dir).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("there is tar")
}

fn unpack(archive: &str, dir: &Path) {
    let mut tar = tar(&["-xf", "-"], dir);
    let mut packed = zstd::Decoder::new(fs::File::open(archive).expect("it is committed")).expect("an archive");
    packed.window_log_max(WINDOW_LOG).expect("a valid window");
    io::copy(&mut packed, &mut tar.stdin.take().expect("piped")).expect("a whole archive");
    assert!(tar.wait().expect("it is a child").success());
}

fn pack(archive: &str, dir: &Path) {
    let mut tar = tar(&["-cf", "-", "state"], dir);
    let file = fs::File::create(archive).expect("a path that can be written");
    let mut packed = zstd::Encoder::new(file, 19).expect("a valid level");
    packed.window_log(WINDOW_LOG).expect("a valid window");
    packed.long_distance_matching(true).expect("a valid option");
    io::copy(&mut tar.stdout.take().expect("piped"), &mut packed).expect("a disk with space");
    packed.finish().expect("a disk with space");
    assert!(tar.wait().expect("it is a child").success());
}

#[test]
fn state_of_earlier_version_loses_nothing() {
    if let Ok(program) = env::var("DELTABUS_PROGRAM") {
        return make_state(&program, &env::var("DELTABUS_STATE").expect("set DELTABUS_STATE: see above"));
    }
    let of = |suffix: &str| format!("{}/tests/states/0.2.0{suffix}", env!("CARGO_MANIFEST_DIR"));
    let done: Done = serde_json::from_slice(&fs::read(of(".json")).expect("it is committed")).expect("it is valid");
    assert!(done.coalesced > 100 && done.queued > 10 && done.given_up.len() == 10, "{done:?}");
    let dir = tempfile::tempdir().expect("a temporary directory");
    unpack(&of(".tar.zst"), dir.path());
    // Without an API server, the state alone says what is delivered.
    let nobody = Simulated::start();
    let kubeconfig = nobody.simulator.kubeconfig().replace(&nobody.simulator.url(), "http://127.0.0.1:9");
    fs::write(dir.path().join("kubeconfig"), kubeconfig).expect("the directory is writable");
    let hooks = Hooks::start();
    let engine = Engine::run(dir.path(), &hooks.config(&text(dir.path(), "kubeconfig"), &text(dir.path(), "state")));

    engine.wait_for("all delivered", PATIENCE * 2, || count(&engine, "waiting", "queued") == 0);
    let waited: BTreeSet<_> = ids(&hooks.waiting).into_iter().collect();
    for (name, story) in &done.happened {
        assert!(waited.contains(story.last().expect("something happened")), "{name}: {story:?}, of {waited:?}");
    }
    let ends = || done.happened.values().flatten().filter(|id| id.ends_with(".deleted"));
    assert!(ends().count() > 1 && ends().all(|id| waited.contains(id)), "each deletion, of {waited:?}");
    assert_eq!(waited.len() as u64, done.queued, "{waited:?}");

    let answer = request(&engine.http, "POST", "/v1/handlers/given_up/replay", &[]).expect("it answers").json();
    assert_eq!(answer["replayed"], 10, "{answer}");
    engine.wait_for("replayed", PATIENCE, || ids(&hooks.given_up).len() >= 10);
    assert_eq!(ids(&hooks.given_up).into_iter().collect::<BTreeSet<_>>(), done.given_up);
    let again: Vec<_> = ids(&hooks.delivered).into_iter().filter(|id| done.delivered.contains(id)).collect();
    assert_eq!(again, [""; 0], "what was delivered is not delivered again");
}

/// Runs the program of an earlier version, and writes its state and what it has done.
fn make_state(program: &str, target: &str) {
    let mut cluster = Simulated::start();
    let dir = cluster.dir().to_owned();
    let mut hooks = Hooks::start();
    Engine::configure(&dir, &hooks.config(&text(&dir, "kubeconfig"), &text(&dir, "state")));
    let mut command = Command::new(program);
    command.args(["run", "-c", &text(&dir, "config.toml")]);
    let engine = Engine::spawn_command(command);
    engine.wait_ready(PATIENCE);

    hooks.waiting.be(Manner::Gone);
    cluster.churn(10, 3);
    let filling = super::room::noise(1, 128 << 10);
    let read_all = |cluster: &Simulated| {
        let last = cluster.events() as u64;
        engine.wait_for("read", PATIENCE * 4, || engine.json("/v1/handlers")["journal"]["last"].as_u64() >= Some(last));
    };
    // Fills the state until the records of the slow handler are coalesced.
    for round in 0.. {
        for name in 0..8 {
            let name = format!("large{name}");
            if round % 40 == 39 && name == "large0" {
                cluster.delete(&name);
            }
            cluster.put(&name, &format!("{round} {filling}"));
        }
        read_all(&cluster);
        if count(&engine, "waiting", "coalesced") > 200 {
            break;
        }
    }
    for name in 0..8 {
        cluster.put(&format!("large{name}"), "small");
    }
    cluster.delete("o0");
    read_all(&cluster);
    // While the state is full, it keeps no events that were given up.
    engine.wait_for("room", PATIENCE * 4, || {
        engine.json("/v1/handlers")["journal"]["diskBytes"].as_u64().is_some_and(|bytes| bytes < 120 << 20)
    });
    hooks.given_up.be(Manner::Refuses);
    let given_up: Vec<_> = (0..10).map(|name| format!("refused{name}")).collect();
    for name in &given_up {
        cluster.put(name, "x");
    }
    engine.wait_for("given up", PATIENCE, || count(&engine, "given_up", "dropped") == 10);
    hooks.given_up.be(Manner::Well);
    engine.wait_for("delivered", PATIENCE, || count(&engine, "delivered", "queued") == 0);
    let given_up = given_up.iter().map(|name| cluster.happened[name][0].clone()).collect();
    let done = Done {
        happened: cluster.happened.clone(),
        delivered: ids(&hooks.delivered).into_iter().collect(),
        given_up,
        queued: count(&engine, "waiting", "queued"),
        coalesced: count(&engine, "waiting", "coalesced"),
    };
    assert!(engine.terminate().success());
    let done = serde_json::to_string(&done).expect("it is plain data");
    fs::write(format!("{target}.json"), done + "\n").expect("a path that can be written");
    pack(&format!("{target}.tar.zst"), &dir);
}
