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

/// Returns the path of the kubeconfig that a demo announces.
fn kubeconfig(engine: &Engine) -> PathBuf {
    engine.wait_for_log("kubectl --kubeconfig ");
    let log = engine.log();
    let (_, rest) = log.split_once("kubectl --kubeconfig ").expect("the log was just seen to have it");
    PathBuf::from(rest.split_whitespace().next().expect("a path follows"))
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
    let kubeconfig = kubeconfig(&engine);
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

#[test]
fn demo_runs_own_configuration_on_simulated_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let config = "[kube]\nkubeconfig = \"/no/such/kubeconfig\"\n[resources.shops]\nmatch = [\"deployments.apps\"]\n\
         namespaces = [\"shop-0\"]\n[handlers.out]\ntype = \"stdout\"\ninitial = \"send\"\n
         [state]\ndir = \"STATE\"\n";
    let state = dir.path().join("state");
    let config = &config.replace("STATE", state.to_str().unwrap());
    fs::write(&file, config).unwrap();
    let stdout = dir.path().join("stdout");
    let engine = Engine::spawn_writing(
        &["demo", "-c", file.to_str().unwrap(), "--listen", "127.0.0.1:0", "--rate", "50"],
        &stdout,
    );
    let events = || fs::read_to_string(&stdout).unwrap_or_default();
    engine.wait_for("an update", PATIENCE, || events().contains("dev.deltabus.resource.updated"));
    assert!(events().lines().all(|line| !line.contains("\"namespace\":\"shop-1\"")));
    let kubeconfig = kubeconfig(&engine);
    assert!(kubeconfig.exists());
    assert!(!engine.log().contains("other users can read"), "{}", engine.log());
    // Without a terminal SIGHUP means a reload, also in this form of the demo.
    fs::write(&file, config.replace("shop-0", "shop-1")).unwrap();
    engine.signal("-HUP");
    engine.wait_for("an event of the other namespace", PATIENCE, || events().contains("\"namespace\":\"shop-1\""));
    assert!(engine.terminate().success());
    assert!(!kubeconfig.exists());
    assert!(!state.exists(), "the state of a demo is temporary");
}

#[test]
fn demo_removes_kubeconfig_when_its_terminal_closes() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::spawn_writing(&["demo", "--listen", "127.0.0.1:0"], &dir.path().join("stdout"));
    let kubeconfig = kubeconfig(&engine);
    assert!(kubeconfig.exists());
    engine.signal("-HUP");
    while engine.is_running() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!kubeconfig.exists());
}
