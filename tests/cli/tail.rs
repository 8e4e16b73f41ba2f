//! `deltabus tail`: output for a terminal and for a script.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::Simulated,
};
use serde_json::Value;

const NOWHERE: &str = "type = \"blackhole\"";

/// A running `deltabus tail`; killed when dropped.
struct Tail {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Tail {
    fn start(arguments: &[&str], engine: Option<&Engine>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
        command.arg("tail").args(arguments).env("NO_COLOR", "1").env_remove("DELTABUS_ENGINE");
        if let Some(engine) = engine {
            command.env("DELTABUS_ENGINE", format!("http://{}", engine.http));
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a signal; returns the exit code, or `None` if the signal killed the process.
    fn end(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([format!("-{signal}"), pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Returns the next line without its time.
    fn said(&mut self) -> String {
        let line = self.line();
        line.split_once(' ').map(|(_, said)| said.to_owned()).unwrap_or(line)
    }
}

/// Runs `deltabus tail` to its end; returns the exit code and the output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    let output = command.arg("tail").args(arguments).env_remove("DELTABUS_ENGINE").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Writes a configuration of an engine that is not running; returns its path.
fn inside(world: &Simulated) -> String {
    let config = format!("{}[http]\nlisten = \"127.0.0.1:9\"\n", world.config(NOWHERE));
    std::fs::write(world.dir().join("inside.toml"), config).unwrap();
    text(world.dir(), "inside.toml")
}

impl Drop for Tail {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn wait_for_subscribers(engine: &Engine, count: u64) {
    let line = format!("deltabus_subscribers {count}");
    engine.wait_for("subscribed", PATIENCE, || engine.get("/metrics").is_ok_and(|(_, text)| text.contains(&line)));
}

#[test]
fn named_types_print_one_line_per_event() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut tail = Tail::start(&["cm,maps", "-n", "default"], Some(&engine));
    wait_for_subscribers(&engine, 1);
    world.put("a", "1");
    world.put("a", "2");
    world.delete("a");
    let versions: Vec<_> = world.happened["a"].iter().filter_map(|id| id.rsplit_once('.')).map(|(_, it)| it).collect();
    assert_eq!(tail.said(), format!("+ default/configmap/a  v{}", versions[0]));
    assert_eq!(tail.said(), "~ default/configmap/a  data.x 1 → 2");
    assert!(tail.said().starts_with("- default/configmap/a  v"));
}

#[test]
fn past_without_state_directory_says_what_to_set() {
    let world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut tail = Tail::start(&["--since", "1d"], Some(&engine));
    let line = tail.line();
    assert!(line.starts_with("! some of the requested events are no longer kept: "), "{line}");
    assert!(line.ends_with("set `[state] dir` to keep more"), "{line}");
}

#[test]
fn json_prints_events_and_initial_prints_existing_objects() {
    let mut world = Simulated::start();
    world.put("a", "1");
    let engine = world.run(NOWHERE);
    let mut tail = Tail::start(&["maps", "--initial", "-o", "json"], Some(&engine));
    let event: Value = serde_json::from_str(&tail.line()).unwrap();
    assert_eq!((&event["cause"], &event["name"]), (&"replay".into(), &"a".into()));
    let synced: Value = serde_json::from_str(&tail.line()).unwrap();
    assert_eq!(synced["type"], "dev.deltabus.resource.synced");
}

#[test]
fn broken_stream_resumes_at_its_position() {
    let mut world = Simulated::start();
    let config = format!("[state]\ndir = {:?}\n{}", text(world.dir(), "state"), world.config(NOWHERE));
    let engine = Engine::run(world.dir(), &config);
    engine.wait_ready(PATIENCE);
    let port = engine.http.rsplit_once(':').unwrap().1.to_owned();
    let mut tail = Tail::start(&["-o", "json"], Some(&engine));
    wait_for_subscribers(&engine, 1);
    world.put("a", "1");
    let name = |line: String| serde_json::from_str::<Value>(&line).unwrap()["name"].as_str().unwrap().to_owned();
    assert_eq!(name(tail.line()), "a");
    assert!(engine.terminate().success());
    world.put("b", "1"); // while no command watches
    let address = std::path::PathBuf::from(format!("127.0.0.1:{port}"));
    let engine = Engine::run_again(world.dir(), &[("DELTABUS__HTTP__LISTEN", address)]);
    world.put("c", "1");
    assert_eq!([name(tail.line()), name(tail.line())], ["b", "c"]);
    drop(engine);
}

#[test]
fn embedded_engine_watches_named_types() {
    let mut world = Simulated::start();
    world.put("a", "1");
    let config = inside(&world);
    let mut tail = Tail::start(&["cm", "--initial", "-c", &config], None);
    assert_eq!(tail.said(), "+ default/configmap/a  replay");
    assert_eq!(tail.said(), "= configmaps  synced, 1 objects");
    world.put("b", "1");
    let said = tail.said();
    assert!(said.starts_with("+ default/configmap/b  v") && said.ends_with("  by simulator"), "{said}");
}

#[test]
fn embedded_engine_says_that_it_has_no_past() {
    let world = Simulated::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(["tail", "cm", "--since", "10m", "-c", &inside(&world)]).env("NO_COLOR", "1").stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("note: --since has no effect: ") && line.contains("`[state] dir`")));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn tail_without_engine_and_cluster_suggests_a_fix() {
    let (code, said) = run(&["--engine", "http://127.0.0.1:9"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no engine listens at http://127.0.0.1:9"), "{said}");
    let (code, said) = run(&["--engine", "http://127.0.0.1:9", "-c", "config.toml"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("omit --engine: -c FILE alone watches"), "{said}");
}

#[test]
fn misspelt_field_in_when_is_reported() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    world.put("a", "1");
    engine.wait_for("the object", PATIENCE, || {
        engine.get("/api/v1/configmaps").is_ok_and(|(_, text)| text.contains("\"a\""))
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(["tail", "cm", "--engine", &format!("http://{}", engine.http), "--when"]);
    command.arg("object.metadata.nam == 'a' && object.metadata.name == 'a'").stdout(Stdio::null()).env("NO_COLOR", "1");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let expected = "none of 1 cached objects has `object.metadata.nam`; did you mean `object.metadata.name`?";
    assert!(line.contains(expected), "{line}");
}

/// Invalid arguments, with a word of the error message.
const BAD_USAGE: [(&[&str], &str); 7] = [
    (&["bananas"], "bananas"),
    (&["cm,"], "a value is required"),
    (&["--type", "exploded"], "expected one of added, updated"),
    (&["--when", "objct.x"], "unknown variable `objct`"),
    (&["--since", "soon"], "expected JOURNAL.SEQUENCE"),
    (&["-l", "a in"], "labelSelector"),
    (&["--no-such-flag"], "--no-such-flag"),
];

#[test]
fn bad_usage_exits_with_2() {
    let world = Simulated::start();
    let engine = world.run(NOWHERE);
    let at = format!("http://{}", engine.http);
    for (asked, expected) in BAD_USAGE {
        let (code, said) = run(&[asked, &["--engine", &at]].concat());
        assert_eq!((code, said.contains(expected)), (Some(2), true), "{asked:?}: {said}");
    }
    drop(engine);
    let config = inside(&world);
    for (asked, expected) in BAD_USAGE {
        let (code, said) = run(&[asked, &["-c", &config]].concat());
        assert_eq!((code, said.contains(expected)), (Some(2), true), "inside, {asked:?}: {said}");
    }
}

#[test]
fn sigterm_and_ctrl_c_exit_with_0() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    for signal in ["TERM", "INT"] {
        let mut tail = Tail::start(&["cm"], Some(&engine));
        wait_for_subscribers(&engine, 1);
        world.put("a", signal);
        assert!(tail.said().contains("default/configmap/a"), "it is at work");
        assert_eq!(tail.end(signal), Some(0), "SIG{signal}");
        wait_for_subscribers(&engine, 0);
    }
    drop(engine);
    let config = inside(&world);
    for signal in ["TERM", "INT"] {
        let mut tail = Tail::start(&["cm", "--initial", "-c", &config], None);
        assert_eq!(tail.said(), "+ default/configmap/a  replay");
        assert_eq!(tail.end(signal), Some(0), "inside, SIG{signal}");
    }
}

#[test]
fn sigterm_ends_tail_with_unread_output() {
    let mut world = Simulated::start();
    let data = "x".repeat(8_192);
    for number in 0..100 {
        world.put(&format!("a{number}"), &data);
    }
    let engine = world.run(NOWHERE);
    let mut tail = Tail::start(&["cm", "--initial", "-o", "json"], Some(&engine));
    let is_full = || rustix::io::ioctl_fionread(tail.stdout.get_ref()).is_ok_and(|bytes| bytes >= 32_768);
    engine.wait_for("a pipe that is as good as full", PATIENCE, is_full);
    assert_eq!(tail.end("TERM"), Some(0));
}

#[test]
fn explain_reports_decision_of_each_handler() {
    let mut world = Simulated::start();
    let engine = world.run(
        "type = \"blackhole\"\nchanged = [\"data\"]\n[handlers.hook]\ntype = \"blackhole\"\non = [\"updated\"]\n\
         when = 'object.data.x == \"2\" && cluster == \"test\"'",
    );
    let config = text(world.dir(), "config.toml");
    let mut tail = Tail::start(&["--explain", "-c", &config], Some(&engine));
    wait_for_subscribers(&engine, 1);
    world.put("a", "1");
    world.put("a", "2");
    let labels = serde_json::json!({"metadata": {"name": "a", "labels": {"b": "c"}}, "data": {"x": "2"}});
    world.simulator.store().put("configmaps", labels).unwrap();
    let mut event = || {
        let first = tail.said();
        (first.chars().next().unwrap(), [tail.line(), tail.line()])
    };
    let of = |hook: &str, out: &str| [format!("  hook  {hook}"), format!("  out   {out}")];
    assert_eq!(event(), ('+', of("not sent: `on` does not include \"added\"", "sent")));
    assert_eq!(event(), ('~', of("sent", "sent")));
    let why = "not sent: `changed`: only metadata.labels differs";
    assert_eq!(event(), ('~', of("sent", why)));
}

#[test]
fn embedded_engine_explains_too() {
    let mut world = Simulated::start();
    let handler = "type = \"stdout\"\nenabled = false";
    let config = format!("{}[http]\nlisten = \"127.0.0.1:9\"\n", world.config(handler));
    std::fs::write(world.dir().join("inside.toml"), config).unwrap();
    world.put("a", "1");
    let mut tail = Tail::start(&["--explain", "--initial", "-c", &text(world.dir(), "inside.toml")], None);
    assert_eq!(tail.said(), "+ default/configmap/a  replay");
    assert_eq!(tail.line(), "  out  not sent: it is not enabled");
}

#[test]
fn explain_needs_configuration_and_readable_output() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_deltabus")).arg("tail").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--explain"]);
    assert_eq!((code, said.contains("--config <FILE>")), (Some(2), true), "{said}");
    let (code, said) = run(&["--explain", "-o", "json", "-c", "config.toml"]);
    assert_eq!((code, said.as_str()), (Some(2), "error: --explain has no JSON output: use -o pretty or -o diff\n"));
}
