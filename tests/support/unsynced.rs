//! Loss of unsynced writes, by a library preloaded into the engine (`unsynced.c`).

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::layer::library;

/// State of a directory after a power failure at the current moment.
#[derive(Debug)]
pub(crate) struct Unsynced {
    library: PathBuf,
    dir: PathBuf,
    log: PathBuf,
}

impl Unsynced {
    /// Observes the existing `dir`, with a log in `work`.
    pub(crate) fn over(dir: &Path, work: &Path) -> Self {
        let dir = dir.canonicalize().expect("the directory exists");
        Self { library: library("unsynced"), dir, log: work.join("unsynced.log") }
    }

    /// Returns the environment for engines. It makes their disk slow, so that there are unsynced writes.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.library.clone()),
            ("UNSYNCED_DIR", self.dir.clone()),
            ("UNSYNCED_LOG", self.log.clone()),
            ("UNSYNCED_DELAY_MS", PathBuf::from("40")),
        ]
    }

    /// Truncates every file to its synced length, once the engine is dead; returns the number of lost bytes. A file that
    /// was never synced stays as an empty file, because a sync of another file may have synced its name.
    pub(crate) fn lose(&self) -> u64 {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut kept: HashMap<u64, u64> = HashMap::new();
        for line in log.lines() {
            let (inode, end) = line.split_once(' ').expect("a line has an inode and an end");
            let end: u64 = end.parse().expect("an end is a number");
            // The last line counts: the inode of a removed file may have been reused.
            kept.insert(inode.parse().expect("an inode is a number"), end);
        }
        let mut lost = 0;
        for file in files_below(&self.dir) {
            let meta = fs::metadata(&file).expect("nobody else is at work here");
            let end = kept.get(&meta.ino()).copied().unwrap_or_default();
            if end < meta.len() {
                lost += meta.len() - end;
                let open = fs::File::options().write(true).open(&file).expect("the files are ours");
                open.set_len(end).expect("a file can be cut");
            }
        }
        fs::write(&self.log, log_of_what_is_left(&self.dir)).expect("the directory is writable");
        lost
    }
}

/// Returns a log in which all remaining data are synced, for the next run.
fn log_of_what_is_left(dir: &Path) -> String {
    let line = |file: PathBuf| {
        let meta = fs::metadata(file).expect("nobody else is at work here");
        format!("{} {}\n", meta.ino(), meta.len())
    };
    files_below(dir).into_iter().map(line).collect()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("the directory is readable") {
            let path = entry.expect("the directory is readable").path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    files
}
