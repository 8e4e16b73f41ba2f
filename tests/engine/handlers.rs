//! `deltabus handlers` and its API: list, pause and resume handlers.

use std::{fs, process::Command};

use crate::support::{
    engine::{Engine, request, text},
    scripted::PATIENCE,
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

/// Runs the program against an engine; returns its exit code, stdout and stderr.
fn deltabus(engine: &Engine, arguments: &[&str]) -> (i32, String, String) {
    let engine = format!("http://{}", engine.http);
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .env("DELTABUS_ENGINE", engine)
        .output()
        .expect("the binary was built with the tests");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn handler(engine: &Engine) -> Value {
    engine.json("/v1/handlers")["handlers"][0].clone()
}

#[test]
fn paused_handler_survives_reload_and_resumes() {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
    let kubeconfig = text(dir.path(), "kubeconfig");
    let config = |more: &str| {
        format!(
            "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.count]\ntype = \"blackhole\"\n{more}"
        )
    };
    let engine = Engine::run(dir.path(), &config(""));
    engine.wait_ready(PATIENCE);
    let create = |name: &str| {
        let object = json!({"metadata": {"namespace": "default", "name": name}});
        simulator.store().create("configmaps", object).expect("a valid object");
    };

    let (code, _, said) = deltabus(&engine, &["handlers", "pause", "count"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("count: paused"), "{said}");
    create("a");
    engine.wait_for("queued", PATIENCE, || handler(&engine)["queued"] == 1);
    Engine::configure(dir.path(), &config("rate_limit = \"1000/s\"\n"));
    engine.signal("-HUP");
    engine.wait_for("reloaded", PATIENCE, || engine.log().contains("was replaced"));
    create("b");
    engine.wait_for("queued", PATIENCE, || handler(&engine)["queued"] == 2);
    let row = handler(&engine);
    assert_eq!((row["state"].as_str(), row["delivered"].as_u64()), (Some("paused"), Some(0)), "{row}");
    let (_, table, _) = deltabus(&engine, &["handlers"]);
    let words: Vec<_> = table.lines().nth(1).expect("a line a handler").split_whitespace().take(4).collect();
    assert_eq!(words, ["count", "blackhole", "paused", "2"]);

    let resume = "/v1/handlers/count/resume";
    let foreign = request(&engine.http, "POST", resume, &[("Origin", "https://example.com")]).expect("it answers");
    assert_eq!((foreign.code, foreign.json()["reason"].as_str()), (403, Some("Forbidden")));
    assert_eq!(request(&engine.http, "GET", resume, &[]).expect("it answers").code, 405);
    assert_eq!(handler(&engine)["state"], "paused");
    let resumed = request(&engine.http, "POST", resume, &[]).expect("it answers");
    assert_eq!((resumed.code, resumed.json()["handler"]["name"].as_str()), (200, Some("count")));
    engine.wait_for("delivered", PATIENCE, || handler(&engine)["delivered"] == 2);
    assert_eq!(handler(&engine)["state"], "running");

    let (code, _, said) = deltabus(&engine, &["handlers", "replay", "count"]);
    assert!(code == 0 && said.contains("nothing to replay"), "{said}");
    let (code, _, said) = deltabus(&engine, &["handlers", "pause", "cuont"]);
    assert_eq!(code, 1);
    assert!(said.contains("no handler \"cuont\"; configured: count"), "{said}");
    assert!(engine.terminate().success());
}
