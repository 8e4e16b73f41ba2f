//! Clock jumps by a library preloaded into the engine (`clock.c`).

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use super::layer::library;

/// Clocks of engines that run with this environment.
#[derive(Debug)]
pub(crate) struct Clock {
    control: PathBuf,
    /// Number of seconds by which the wall clock and the monotonic clock are ahead.
    ahead: Cell<(i64, u64)>,
}

impl Clock {
    /// Creates correct clocks, controlled by a file in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { control: dir.join("clock"), ahead: Cell::default() }
    }

    /// Returns the environment for engines.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", library("clock")), ("CLOCK_CONTROL", self.control.clone())]
    }

    /// Sets the wall clock ahead by this number of hours from now on; back if negative.
    pub(crate) fn set_ahead(&self, hours: i64) {
        self.set((hours * 3600, self.ahead.get().1));
    }

    /// Advances all timers of the engine by this number of seconds. The wall clock is unchanged.
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
