//! Files, written by the file handler and by stdout, both on a disk with faults on demand.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Manner, Sink};
use crate::support::{
    disk::{Disk, Trouble},
    engine::Engine,
};

/// The file of a file handler.
pub(crate) struct File {
    path: PathBuf,
    disk: Disk,
}

impl File {
    /// Creates a directory for the file in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        let sink = dir.join("sink");
        fs::create_dir(&sink).expect("the directory is writable");
        Self { path: sink.join("out.jsonl"), disk: Disk::under(&sink) }
    }

    /// Returns the environment for engines.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        self.disk.environment()
    }
}

impl Sink for File {
    fn handler(&self) -> String {
        format!("type = \"file\"\npath = \"{}\"", self.path.display())
    }

    fn be(&mut self, manner: Manner) {
        // The next write is cut in the middle.
        let full = || fs::metadata(&self.path).map_or(0, |file| file.len()) + 150;
        self.disk.set(match manner {
            Manner::Well => Trouble::None,
            Manner::Refuses => Trouble::FullAfter(full()),
            Manner::Gone => Trouble::Failing,
            Manner::Stuck => Trouble::Stuck,
            Manner::Mute => Trouble::Mute,
        });
    }

    fn arrived(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The handler truncates writes that were not confirmed.
    fn shows_repetitions(&self) -> bool {
        false
    }

    fn run(&self, dir: &Path) -> Engine {
        Engine::run_again(dir, &self.environment())
    }
}

/// The file to which stdout is redirected.
pub(crate) struct Stdout(File);

impl Stdout {
    /// Creates a directory for the file in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self(File::new(dir))
    }
}

impl Sink for Stdout {
    fn handler(&self) -> String {
        "type = \"stdout\"".to_owned()
    }

    fn be(&mut self, manner: Manner) {
        self.0.be(manner);
    }

    fn arrived(&self) -> Vec<Value> {
        self.0.arrived()
    }

    fn shows_repetitions(&self) -> bool {
        true
    }

    fn run(&self, dir: &Path) -> Engine {
        Engine::run_again_to(dir, &self.0.environment(), &self.0.path)
    }
}
