//! `promtool` of Prometheus, which checks its conventions (Debian package `prometheus`).

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use super::cluster::{Unavailable, or_skip};

/// Returns the output of `promtool check metrics`, which is empty if all is correct. If there is no `promtool`, prints the
/// reason for skipping to stderr and returns `None`.
pub(crate) fn check_metrics(test_name: &str, metrics: &str) -> Option<String> {
    run(test_name, Command::new("promtool").args(["check", "metrics"]), metrics)
}

/// Returns the output of `promtool test rules` for a test file; skips like [`check_metrics`].
pub(crate) fn test_rules(test_name: &str, tests: &Path) -> Option<String> {
    run(test_name, Command::new("promtool").args(["test", "rules"]).arg(tests), "")
}

fn run(test_name: &str, command: &mut Command, stdin: &str) -> Option<String> {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let missing = |error| Unavailable::Missing(format!("promtool cannot be run: {error}"));
    let mut promtool = or_skip(test_name, started.map_err(missing))?;
    promtool.stdin.take().expect("it is piped").write_all(stdin.as_bytes()).expect("promtool reads all of it");
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    let status = if output.status.success() { String::new() } else { format!("{}\n", output.status) };
    Some(status + &String::from_utf8_lossy(&said))
}
