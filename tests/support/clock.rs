//! A wall clock that jumps: a layer under the engine (`clock.c`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::layer::library;

/// The wall clock of the engines that run with its environment.
#[derive(Debug)]
pub(crate) struct Clock {
    control: PathBuf,
}

impl Clock {
    /// Makes a clock that is right, and told what to do by a file in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { control: dir.join("clock") }
    }

    /// Returns what an engine has to be run with.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", library("clock")), ("CLOCK_CONTROL", self.control.clone())]
    }

    /// Lets the clock go so many hours ahead of the time from now on; behind it, where they are negative.
    pub(crate) fn set_ahead(&self, hours: i64) {
        let unfinished = self.control.with_extension("unfinished");
        fs::write(&unfinished, (hours * 3600).to_string()).expect("the directory is writable");
        fs::rename(unfinished, &self.control).expect("the directory is writable");
    }
}
