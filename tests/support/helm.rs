//! Helm for tests, built from the Go module in `tests/cluster/helm`, so that none needs to be installed.

use std::{path::PathBuf, process::Command};

use super::cluster::{build, or_skip};

/// Builds helm, which takes minutes the first time in a checkout. Otherwise prints the reason for skipping to stderr and
/// returns `None`.
///
/// # Panics
/// See [`super::cluster::Cluster::start_or_skip`].
pub(crate) fn build_or_skip(test_name: &str) -> Option<Helm> {
    or_skip(test_name, build("helm")).map(Helm)
}

/// A helm binary.
#[derive(Clone, Debug)]
pub(crate) struct Helm(PathBuf);

impl Helm {
    /// Runs helm and returns its output; a failure fails the test.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        self.try_run(args).unwrap_or_else(|error| panic!("helm {args:?}: {error}"))
    }

    /// Runs helm and returns its output or its error.
    pub(crate) fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.0).args(args).output().expect("helm was built");
        let text = |bytes| String::from_utf8(bytes).expect("helm prints UTF-8");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}
