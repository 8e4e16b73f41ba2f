//! A disk that fills up, fails, hangs or turns read-only when a test says so: a layer under the engine (`disk.c`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::layer::library;

/// What the disk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing: it is well.
    None,
    /// So many bytes fit of all that a process writes, then there is no room.
    FullAfter(u64),
    /// Nothing can be changed.
    ReadOnly,
    /// Everything fails.
    Failing,
    /// Writes wait.
    Stuck,
    /// What is written is there, and reported as a failure.
    Mute,
}

/// The disk below a directory, of the engines that run with its environment.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    control: PathBuf,
}

impl Disk {
    /// Puts the layer under `dir`, which exists; it is told what to do by a file beside the directory.
    pub(crate) fn under(dir: &Path) -> Self {
        let dir = dir.canonicalize().expect("the directory exists");
        let control = dir.with_extension("trouble");
        Self { dir, control }
    }

    /// Returns what an engine has to be run with.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", library("disk")), ("DISK_DIR", self.dir.clone()), ("DISK_CONTROL", self.control.clone())]
    }

    /// Makes the disk do something else from now on.
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
