//! One run of the program in a directory, without this process's environment variables.

use std::{fs, path::Path, process::Command};

use deltabus::internals::simulator::{Simulator, SimulatorOptions};

use super::engine::text;

/// Runs `deltabus ARGS` to its end; returns its exit code, stdout and stderr.
pub(crate) fn deltabus(
    dir: &Path,
    kubeconfig: &Path,
    args: &[&str],
    environment: &[(&str, &str)],
) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        .envs(environment.iter().copied())
        .output()
        .expect("the binary was built with the tests");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("deltabus prints UTF-8");
    (output.status.code().expect("it ends by itself"), text(output.stdout), text(output.stderr))
}

/// Starts a simulator; returns it with a directory that has its kubeconfig, and the path of the kubeconfig.
pub(crate) fn simulator() -> (Simulator, tempfile::TempDir, String) {
    let simulator = Simulator::start(SimulatorOptions::default()).expect("loopback");
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).expect("the directory is writable");
    let kubeconfig = text(dir.path(), "kubeconfig");
    (simulator, dir, kubeconfig)
}
