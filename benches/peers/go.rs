//! The Go module of this bench: built when the bench starts.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The program made of `benches/peers/go`.
pub(crate) struct GoPeers {
    binary: PathBuf,
}

impl GoPeers {
    /// Builds it: minutes the first time, a second where nothing has changed.
    pub(crate) fn build() -> Result<Self, Box<dyn Error>> {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/go");
        let binary = target_dir().join("peers");
        fs::create_dir_all(target_dir())?;
        eprintln!("peers: building benches/peers/go; minutes the first time");
        let mut command = Command::new("go");
        command.current_dir(module).args(["build", "-trimpath", "-o"]).arg(&binary).arg(".");
        let output =
            command.output().map_err(|error| format!("the go tool cannot be run: {error}; install Go 1.26"))?;
        if !output.status.success() {
            return Err(format!("failed to build benches/peers/go: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(Self { binary })
    }

    /// Returns the command that plays a role.
    pub(crate) fn command(&self, role: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(role);
        command
    }

    /// Returns the versions of what it was built from, `client-go v0.36.3`.
    pub(crate) fn versions(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let output = self.command("versions").output()?;
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }
}

/// `target/peers`, wherever the target directory is: Cargo gives benches `target/tmp`.
pub(crate) fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers")
}
