//! Handlers of type `exec`, as a user runs them; what all handlers do alike is in `tests/sinks/contract.rs`.

use std::{fs, process::Command};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::{Simulated, row, wait_all},
};

fn handler(command: &str) -> String {
    format!("type = \"exec\"\ncommand = [\"sh\", \"-c\", {command:?}]\n")
}

#[test]
fn without_leave_no_program_is_run_and_the_exit_code_is_2() {
    let cluster = Simulated::start();
    Engine::configure(cluster.dir(), &cluster.config(&handler("touch ran")));
    let config = text(cluster.dir(), "config.toml");
    let run = Command::new(env!("CARGO_BIN_EXE_deltabus")).args(["run", "-c", &config]).output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("config.toml:9:8: handlers.out.type: ") && said.contains("--allow-exec"), "{said}");
    let validate = |more: &[&str]| {
        let args = [&["validate", "--offline", "-c", &config], more].concat();
        Command::new(env!("CARGO_BIN_EXE_deltabus")).args(args).output().unwrap()
    };
    let validated = validate(&[]);
    let said = String::from_utf8(validated.stderr).unwrap();
    assert_eq!(validated.status.code(), Some(2), "{said}");
    assert!(said.contains("config.toml:9:8: handlers.out.type: ") && said.contains("--allow-exec"), "{said}");
    assert!(validate(&["--allow-exec"]).status.success());
}

#[test]
fn a_reload_cannot_bring_a_program_in() {
    let mut cluster = Simulated::start();
    let engine = cluster.run("type = \"blackhole\"");
    let ran = text(cluster.dir(), "ran");
    Engine::configure(cluster.dir(), &cluster.config(&handler(&format!("cat >{ran}"))));
    engine.signal("-HUP");
    engine.wait_for_log("--allow-exec");
    cluster.put("a", "1");
    wait_all(&engine, 1);
    assert_eq!(row(&engine)["type"], "blackhole");
    assert!(!fs::exists(ran).unwrap());
}

#[test]
fn what_a_program_says_is_in_the_log_and_a_poison_event_goes_alone() {
    let mut cluster = Simulated::start();
    let taken = text(cluster.dir(), "taken");
    let script = format!(
        "lines=$(cat); case $lines in *poison*) echo 'cannot read it' >&2; exit 65;; esac; echo \"$lines\" >>{taken}; echo took $DELTABUS_EVENTS"
    );
    Engine::configure(cluster.dir(), &cluster.config(&handler(&script)));
    let engine = Engine::run_allowing_programs(cluster.dir());
    engine.wait_ready(PATIENCE);
    for name in ["a", "poison", "b"] {
        cluster.put(name, "1");
    }
    wait_all(&engine, 3);
    assert_eq!(row(&engine)["dropped"], 1, "{}", row(&engine));
    assert!(row(&engine)["lastError"].to_string().contains("cannot read it"), "{}", row(&engine));
    engine.wait_for_log("took 1");
    let text = fs::read_to_string(taken).unwrap();
    let name = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone();
    assert_eq!(text.lines().map(name).collect::<Vec<_>>(), ["a", "b"]);
}
