//! Handlers of type `exec`, from a user's view; shared behaviour of all handlers is in `tests/sinks/contract.rs`.

use std::{collections::BTreeSet, fs, process::Command};

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::{Simulated, row, wait_all},
};

fn handler(command: &str) -> String {
    format!("type = \"exec\"\ncommand = [\"sh\", \"-c\", {command:?}]\n")
}

#[test]
fn programs_need_permission_to_run() {
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
fn reload_cannot_introduce_a_program() {
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
fn program_output_is_logged_and_poison_event_isolated() {
    let mut cluster = Simulated::start();
    let taken = text(cluster.dir(), "taken");
    let script = format!(
        "lines=$(cat); case $lines in *poison*) echo 'cannot read it' >&2; exit 65;; esac; echo \"$lines\" >>{taken}; echo took $DELTABUS_EVENTS"
    );
    Engine::configure(cluster.dir(), &cluster.config(&handler(&script)));
    let engine = Engine::run_allowing_programs(cluster.dir(), &[]);
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

/// Returns the names of the variables that a program receives with these options. The engine gets `TEAM` and a secret.
fn variables(options: &str) -> BTreeSet<String> {
    let mut cluster = Simulated::start();
    let file = text(cluster.dir(), "variables");
    let handler = handler(&format!("tr '\\0' '\\n' </proc/$$/environ >{file}"));
    Engine::configure(cluster.dir(), &cluster.config(&format!("{handler}{options}\n")));
    let environment = [("TEAM", "platform".into()), ("API_TOKEN", "s3cret".into())];
    let engine = Engine::run_allowing_programs(cluster.dir(), &environment);
    engine.wait_ready(PATIENCE);
    cluster.put("a", "1");
    wait_all(&engine, 1);
    let text = fs::read_to_string(file).expect("the program has run");
    text.lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect()
}

#[test]
fn program_gets_only_base_and_named_variables() {
    let plain = variables("");
    let ours = ["DELTABUS_CLUSTER", "DELTABUS_EVENTS", "DELTABUS_HANDLER", "HOME", "LANG", "PATH", "TZ"];
    let unexpected: Vec<&String> = plain.iter().filter(|name| !ours.contains(&name.as_str())).collect();
    assert_eq!(unexpected, Vec::<&String>::new());
    assert!(plain.contains("PATH") && plain.contains("DELTABUS_HANDLER"), "{plain:?}");
    let named = variables("env = [\"TEAM\", \"NOT_SET\"]");
    assert_eq!(named.difference(&plain).collect::<Vec<_>>(), ["TEAM"]);
    let all = variables("env = [\"*\"]");
    assert!(all.contains("TEAM") && all.contains("API_TOKEN"), "{all:?}");
}
