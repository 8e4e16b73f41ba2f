//! `deltabus verify` as a separate process.

use std::{path::Path, process::Command};

use serde_json::Value;

/// Result of the command.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Returns its output with `-o json`.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }
}

/// Verifies an engine against a kubeconfig's cluster; by default it may lag for a minute.
pub(crate) fn verify(engine: &str, kubeconfig: &Path, args: &[&str]) -> Outcome {
    let patience: &[&str] = if args.contains(&"--wait") { &[] } else { &["--wait", "1m"] };
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["verify", "--engine", engine])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(patience)
        .args(args)
        .env("NO_COLOR", "1")
        .output()
        .expect("the binary was built with the tests");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}
