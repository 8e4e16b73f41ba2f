//! FIFOs where the engine expects files: each causes an error with the path, and the engine never waits for a writer.

#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{engine::text, scripted::PATIENCE, simulated::Simulated};

/// Returns the output of an engine that fails to start.
fn refusal(cluster: &Simulated, config: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["run", "-c", config])
        .env("NO_COLOR", "1")
        .stdout(Stdio::null())
        .stderr(fs::File::create(cluster.dir().join("refusal.log")).expect("the directory is writable"))
        .spawn()
        .expect("the binary was built with the tests");
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().expect("the child is ours") {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    drop(child.kill());
    child.wait().expect("the child is ours");
    let printed = fs::read_to_string(cluster.dir().join("refusal.log")).expect("the log is text");
    assert!(status.is_some_and(|status| !status.success()), "the engine ends with an error: {status:?} {printed}");
    printed
}

#[test]
fn fifo_is_refused_as_file() {
    let cluster = Simulated::start();
    let path = |name: &str| text(cluster.dir(), name);
    let made = Command::new("mkfifo").args([path("fifo"), path("fifo.toml")]).status().expect("coreutils are there");
    assert!(made.success());
    let fifo = path("fifo");
    let configs = [
        cluster.config("type = \"stdout\"").replace(&path("kubeconfig"), &fifo),
        format!("[redact]\nhmac_key = {{ file = {fifo:?} }}\n{}", cluster.config("type = \"stdout\"")),
        format!(
            "[http]\nlisten = \"127.0.0.1:0\"\ntls = {{ cert_file = {fifo:?}, key_file = {fifo:?} }}\n{}",
            cluster.config("type = \"stdout\"")
        ),
    ];
    for config in configs {
        fs::write(path("config.toml"), &config).expect("the directory is writable");
        let printed = refusal(&cluster, &path("config.toml"));
        assert!(printed.contains(&fifo) && printed.contains("expected a regular file"), "{config}\n{printed}");
    }
    let printed = refusal(&cluster, &path("fifo.toml"));
    assert!(printed.contains("fifo.toml") && printed.contains("expected a regular file"), "{printed}");
}
