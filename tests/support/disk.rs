//! A disk that becomes full, failing, stalled or read-only on demand, by a library preloaded into the engine (`disk.c`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::layer::library;

/// State of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It works normally.
    None,
    /// A process can write this number of bytes in total, then the disk is full.
    FullAfter(u64),
    /// Nothing can be changed.
    ReadOnly,
    /// Everything fails.
    Failing,
    /// Writes wait.
    Stuck,
    /// Writes succeed, but are reported as failures.
    Mute,
}

/// The disk below a directory, for engines that run with this environment.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    control: PathBuf,
}

impl Disk {
    /// Creates a disk below the existing `dir`; a file beside the directory controls it.
    pub(crate) fn under(dir: &Path) -> Self {
        let dir = dir.canonicalize().expect("the directory exists");
        let control = dir.with_extension("trouble");
        Self { dir, control }
    }

    /// Returns the environment for engines.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", library("disk")), ("DISK_DIR", self.dir.clone()), ("DISK_CONTROL", self.control.clone())]
    }

    /// Sets the disk's state from now on.
    pub(crate) fn set(&self, trouble: Trouble) {
        let text = match trouble {
            Trouble::None => String::new(),
            Trouble::FullAfter(bytes) => format!("full {bytes}"),
            Trouble::ReadOnly => "read-only".to_owned(),
            Trouble::Failing => "failing".to_owned(),
            Trouble::Stuck => "stuck".to_owned(),
            Trouble::Mute => "mute".to_owned(),
        };
        let unfinished = self.control.with_extension("unfinished");
        fs::write(&unfinished, text).expect("the directory is writable");
        fs::rename(unfinished, &self.control).expect("the directory is writable");
    }
}
