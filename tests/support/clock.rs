//! Clocks that jump: a layer under the engine (`clock.c`).

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use super::layer::library;

/// The clocks of the engines that run with its environment.
#[derive(Debug)]
pub(crate) struct Clock {
    control: PathBuf,
    /// Seconds that the wall clock and the monotonic clock are ahead.
    ahead: Cell<(i64, u64)>,
}

impl Clock {
    /// Makes clocks that are right, and take what they do from a file in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { control: dir.join("clock"), ahead: Cell::default() }
    }

    /// Returns what an engine has to be run with.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", library("clock")), ("CLOCK_CONTROL", self.control.clone())]
    }

    /// Lets the wall clock go so many hours ahead of the time from now on; behind it, where they are negative.
    pub(crate) fn set_ahead(&self, hours: i64) {
        self.set((hours * 3600, self.ahead.get().1));
    }

    /// Lets so many seconds pass at once for whatever waits in the engine. The wall clock stays.
    pub(crate) fn skip(&self, seconds: u64) {
        let (wall, monotonic) = self.ahead.get();
        self.set((wall, monotonic + seconds));
    }

    fn set(&self, (wall, monotonic): (i64, u64)) {
        self.ahead.set((wall, monotonic));
        let unfinished = self.control.with_extension("unfinished");
        fs::write(&unfinished, format!("{wall} {monotonic}")).expect("the directory is writable");
        fs::rename(unfinished, &self.control).expect("the directory is writable");
    }
}
