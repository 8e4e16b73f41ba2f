//! `deltabus demo`: the commands that it suggests are run.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::support::{engine::Engine, scripted::PATIENCE};

/// Returns a command as run by a user who also works with another cluster.
fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(line.split_whitespace()).env_clear().env("KUBECONFIG", "/no/such/kubeconfig").stdin(Stdio::null());
    command
}

#[test]
fn commands_named_by_demo_work() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn_writing(&["demo", "--listen", "127.0.0.1:0"], &dir.path().join("stdout"));
    engine.wait_ready(PATIENCE);
    engine.wait_for_log(" verify --engine");
    let log = engine.log();
    let program = format!("note: try: {} ", env!("CARGO_BIN_EXE_deltabus"));
    let named: Vec<_> = log.lines().filter_map(|line| line.strip_prefix(&program)).map(str::to_owned).collect();
    let engine_option = format!("--engine {}", engine.http);
    let expected = ["tail pods", "get pods -A", "verify"].map(|command| format!("{command} {engine_option}"));
    assert_eq!(named, expected, "{log}");

    let mut tail = command(&named[0]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(tail.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("/pod/"), "{line}");
    tail.kill().unwrap();
    tail.wait().unwrap();
    for line in [&named[1], &named[2], &format!("handlers {engine_option}"), &format!("status {engine_option}")] {
        let output = command(line).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {said}");
    }
}

#[test]
fn demo_runs_without_writable_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(["demo", "--listen", "127.0.0.1:0"]).env("TMPDIR", dir.path().join("none")).stdout(Stdio::null());
    let engine = Engine::spawn_command(command);
    engine.wait_ready(PATIENCE);
    engine.wait_for_log("note: cannot write a kubeconfig for this cluster: ");
    assert!(engine.terminate().success());
}

#[test]
fn demo_kubeconfig_is_private_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::spawn_writing(&["demo", "--listen", "127.0.0.1:0"], &dir.path().join("stdout"));
    engine.wait_for_log("kubectl --kubeconfig ");
    let log = engine.log();
    let (_, rest) = log.split_once("kubectl --kubeconfig ").unwrap();
    let kubeconfig = PathBuf::from(rest.split_whitespace().next().unwrap());
    assert_eq!(fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    let file = dir.path().join("config.toml");
    let config = "[resources.shops]\nmatch = [\"deployments.apps\"]\nnamespaces = [\"shop-0\"]\n\
         [handlers.count]\ntype = \"blackhole\"\n";
    fs::write(&file, config).unwrap();
    let validate = format!("validate --strict -c {} --kubeconfig {}", file.display(), kubeconfig.display());
    let output = command(&validate).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(engine.terminate().success());
    assert!(!kubeconfig.exists());
}
