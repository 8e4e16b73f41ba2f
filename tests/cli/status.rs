//! `deltabus status`: healthy engines, and each kind of delay or failure.

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

struct Scene {
    simulator: Simulator,
    engine: Engine,
    dir: tempfile::TempDir,
}

/// Runs an engine that watches two types; `more` is appended to its configuration.
fn start(more: &str) -> Scene {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    for i in 0..3 {
        let map = json!({"metadata": {"name": format!("c{i}")}});
        simulator.store().create("configmaps", map).expect("a valid object");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
    let config = format!(
        "[kube]\nkubeconfig = {:?}\nbackoff = {{ initial = \"100ms\", max = \"200ms\" }}\n\
         [resources.maps]\nmatch = [\"configmaps\"]\n[resources.later]\nmatch = [\"namespaces\", \"apples.acme.io\"]\n\
         [handlers.count]\ntype = \"blackhole\"\ninitial = \"send\"\n{more}",
        text(dir.path(), "kubeconfig")
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(PATIENCE);
    Scene { simulator, engine, dir }
}

/// Returns exit code, stdout and stderr of `deltabus status`.
fn status(engine: &str, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["status", "--engine", engine])
        .args(args)
        .env_clear()
        .output()
        .expect("the binary was built with the tests");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

impl Scene {
    fn status(&self, args: &[&str]) -> (i32, String, String) {
        status(&self.engine.http, args)
    }

    /// Waits until the command reports a delay; returns its output.
    fn late(&self) -> (String, String) {
        self.late_with(|_| true)
    }

    /// Waits until the command reports a delay, and `is_shown` is true for its table; returns its output.
    fn late_with(&self, is_shown: impl Fn(&str) -> bool) -> (String, String) {
        let printed = RefCell::default();
        self.engine.wait_for("late", PATIENCE, || {
            let (code, stdout, stderr) = self.status(&[]);
            let is_late = code == 1 && is_shown(&stdout);
            printed.replace((stdout, stderr));
            is_late
        });
        printed.into_inner()
    }
}

/// Finds the row of a table by its first cell.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    let mut rows = rows.map(Iterator::collect::<Vec<_>>);
    rows.find(|row| row.first() == Some(&name)).unwrap_or_else(|| panic!("no row {name}:\n{table}"))
}

#[test]
fn healthy_engine_has_exit_code_0() {
    let scene = start("");
    let (code, stdout, stderr) = scene.status(&[]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let server = scene.simulator.url();
    assert!(stdout.starts_with(concat!("deltabus ", env!("CARGO_PKG_VERSION"), " at http://127.0.0.1:")), "{stdout}");
    assert!(stdout.contains("2 of 3 synced, 1 not served, "), "{stdout}");
    assert!(stdout.contains(&format!(" objects of {server}\n")) && !stdout.contains('\x1b'), "{stdout}");
    assert_eq!(row(&stdout, "maps"), ["maps", "configmaps", "watching", "3", "3", "0.0s", "-"]);
    assert_eq!(row(&stdout, "count")[..4], ["count", "blackhole", "running", "0"]);

    let (code, stdout, _) = scene.status(&["-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["healthy"], &document["problems"]), (0, &json!(true), &json!([])));
    assert_eq!(document["server"], *server);
    assert_eq!(document["resources"].as_array().expect("rows").len(), 3);
    assert_eq!(document["handlers"][0]["name"], "count");
    assert!(scene.engine.terminate().success());
}

#[test]
fn unreachable_api_server_is_shown_with_error() {
    let scene = start("");
    scene.simulator.go_down();
    let (stdout, stderr) = scene.late_with(|table| row(table, "maps")[2] == "backing_off");
    let row = row(&stdout, "maps");
    assert_eq!(row[3], "3", "{stdout}");
    assert!(row.last().is_some_and(|error| error.starts_with("connection ")), "{stdout}");
    assert!(
        stderr.starts_with("error: late or failing: resource ") && stderr.contains("maps (configmaps)"),
        "{stderr}"
    );
    scene.simulator.come_up();
    scene.engine.wait_for("well again", PATIENCE, || scene.status(&[]).0 == 0);
}

#[test]
fn failing_handler_is_listed_first() {
    let scene = start("[handlers.hook]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:1/\"\ninitial = \"send\"\n");
    let (stdout, stderr) = scene.late();
    assert_eq!(stderr, "error: late or failing: handler hook\n");
    let row = row(&stdout, "hook");
    assert_eq!(row[..3], ["hook", "webhook", "retrying"]);
    assert!(row.last().is_some_and(|error| error.contains("s ago: ")), "{stdout}");
    assert!(stdout.find("\nhook") < stdout.find("\ncount"), "{stdout}");
    let (_, stdout, _) = scene.status(&["-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&document["healthy"], &document["problems"][0]["name"]), (&json!(false), &json!("hook")));
}

#[test]
fn handler_that_delivers_nothing_is_a_problem() {
    let template = "format = \"template\"\ntemplate = \"{{ object.metadata.labels.app }}\"";
    let sink = "type = \"webhook\"\nurl = \"http://127.0.0.1:1/\"\ninitial = \"send\"";
    let scene = start(&format!("[handlers.hook]\n{sink}\n{template}\n"));
    let (stdout, _) = scene.late();
    assert!(row(&stdout, "hook").last().is_some_and(|why| why.starts_with("none of ")), "{stdout}");
}

#[test]
fn refused_configuration_is_a_problem_until_the_next_one() {
    let scene = start("");
    let path = scene.dir.path().join("config.toml");
    let config =
        std::fs::read_to_string(&path).expect("it was written").replace("\n[http]\nlisten = \"127.0.0.1:0\"\n", "");
    Engine::configure(scene.dir.path(), &format!("{config}[handlers.odd]\ntyp = \"stdout\"\n"));
    scene.engine.signal("-HUP");
    let (stdout, stderr) = scene.late();
    assert_eq!(stderr, "error: late or failing: configuration\n");
    assert!(stdout.contains("configuration: refused ") && stdout.contains("did you mean `type`?"), "{stdout}");
    Engine::configure(scene.dir.path(), &config);
    scene.engine.signal("-HUP");
    scene.engine.wait_for("well again", PATIENCE, || scene.status(&[]).0 == 0);
}

#[test]
fn watch_shows_engine_that_disappears() {
    let scene = start("");
    let mut child = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["status", "-w", "-n", "100ms", "--engine", &scene.engine.http])
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary was built with the tests");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    assert!(lines.next().is_some_and(|line| line.starts_with("deltabus ")));
    let before: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("deltabus ")).collect();
    assert!(before.iter().any(|line| line.starts_with("count")), "{before:?}");
    assert_eq!(before.last().map(String::as_str), Some(""), "an empty line is between two statuses");
    assert!(scene.engine.terminate().success());
    assert!(lines.any(|line| line.starts_with("engine: no engine listens at ")));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn commands_without_engine_suggest_a_fix() {
    for command in [&["status"][..], &["status", "-w"], &["get", "pods"], &["handlers"], &["tail"], &["verify"]] {
        for engine in ["127.0.0.1:1", "http://localhost:1"] {
            let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
                .args(command)
                .args(["--engine", engine])
                .env_clear()
                .output()
                .expect("the binary was built with the tests");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
            let expected = "start one with `deltabus run -c FILE` or `deltabus demo`, or name another with --engine";
            assert!(said.starts_with("error: no engine listens at http://") && said.contains(expected), "{said}");
        }
    }
}
