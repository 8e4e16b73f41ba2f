//! The Go module of the peers, built when the scenario starts.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::harness::Outcome;

/// Program of `benches/scenarios/peers/go`.
pub(super) struct GoPeers {
    binary: PathBuf,
}

impl GoPeers {
    /// Builds the program, which takes minutes the first time, and a second if the sources have not changed.
    pub(super) fn build() -> Outcome<Self> {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/scenarios/peers/go");
        let binary = target_dir().join("peers");
        fs::create_dir_all(target_dir())?;
        eprintln!("peers: building benches/scenarios/peers/go; minutes the first time");
        let mut command = Command::new("go");
        command.current_dir(module).args(["build", "-trimpath", "-o"]).arg(&binary).arg(".");
        let output =
            command.output().map_err(|error| format!("the go tool cannot be run: {error}; install Go 1.26"))?;
        if !output.status.success() {
            return Err(format!(
                "failed to build benches/scenarios/peers/go: {}",
                String::from_utf8_lossy(&output.stderr)
            )
            .into());
        }
        Ok(Self { binary })
    }

    /// Returns the command that plays a role.
    pub(super) fn command(&self, role: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(role);
        command
    }

    /// Returns the versions of its components, such as `client-go v0.36.3`.
    pub(super) fn versions(&self) -> Outcome<Vec<String>> {
        let output = self.command("versions").output()?;
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

/// Returns `target/peers` next to `target/tmp`, the directory that Cargo gives to benches.
pub(super) fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers")
}
