//! `deltabus tail`: what a person at a terminal, and a script, get to see of what happens.

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

    /// Sends a signal; returns the code that it ends with, if no signal has ended it.
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

/// Runs `deltabus tail` to its end; returns the exit code and what it says.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    let output = command.arg("tail").args(arguments).env_remove("DELTABUS_ENGINE").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Writes a configuration of an engine that does not run, and returns its path.
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
fn a_line_an_event_of_the_types_that_were_named_as_kubectl_spells_them() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut tail = Tail::start(&["cm", "-n", "default"], Some(&engine));
    wait_for_subscribers(&engine, 1);
    world.put("a", "1");
    world.put("a", "2");
    world.delete("a");
    let versions: Vec<_> = world.happened["a"].iter().filter_map(|id| id.rsplit_once('.')).map(|(_, it)| it).collect();
    assert_eq!(tail.said(), format!("+ default/configmap/a  v{}", versions[0]));
    assert_eq!(tail.said(), format!("~ default/configmap/a  v{}", versions[1]));
    assert!(tail.said().starts_with("- default/configmap/a  v"));
}

#[test]
fn json_is_the_event_and_initial_is_what_exists() {
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
fn a_stream_that_breaks_is_taken_up_where_it_was() {
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
    world.put("b", "1"); // nobody watches
    let address = std::path::PathBuf::from(format!("127.0.0.1:{port}"));
    let engine = Engine::run_again(world.dir(), &[("DELTABUS__HTTP__LISTEN", address)]);
    world.put("c", "1");
    assert_eq!([name(tail.line()), name(tail.line())], ["b", "c"]);
    drop(engine);
}

#[test]
fn without_an_engine_one_inside_watches_the_types_that_are_named() {
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
fn without_an_engine_and_a_cluster_it_says_what_to_do() {
    let (code, said) = run(&["--engine", "http://127.0.0.1:9"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no engine listens at http://127.0.0.1:9"), "{said}");
}

/// What cannot be asked for, and a word of what is said of it.
const BAD_USAGE: [(&[&str], &str); 6] = [
    (&["bananas"], "bananas"),
    (&["--type", "exploded"], "expected one of added, updated"),
    (&["--when", "objct.x"], "unknown variable `objct`"),
    (&["--since", "soon"], "expected JOURNAL.SEQUENCE"),
    (&["-l", "a in"], "labelSelector"),
    (&["--no-such-flag"], "--no-such-flag"),
];

#[test]
fn bad_usage_ends_with_2_whoever_finds_it() {
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
fn sigterm_and_ctrl_c_end_it_with_0() {
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
fn sigterm_ends_it_also_where_nobody_reads_what_it_writes() {
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
fn row_17_under_each_event_handlers_say_whether_they_are_sent_it_and_why_not() {
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
    assert_eq!(event(), ('+', of("not sent: `on` has no \"added\"", "sent")));
    assert_eq!(event(), ('~', of("sent", "sent")));
    let why = "not sent: `changed`: only metadata.labels differs";
    assert_eq!(event(), ('~', of("sent", why)));
}

#[test]
fn row_17_an_engine_inside_explains_as_well() {
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
fn explanations_need_a_configuration_and_a_reader() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_deltabus")).arg("tail").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--explain"]);
    assert_eq!((code, said.contains("--config <FILE>")), (Some(2), true), "{said}");
    let (code, said) = run(&["--explain", "-o", "json", "-c", "config.toml"]);
    assert_eq!((code, said.as_str()), (Some(2), "error: --explain is for people: expected -o pretty or -o diff\n"));
}
