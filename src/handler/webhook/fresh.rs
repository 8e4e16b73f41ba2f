//! A value that is made of files, and made again when they change.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Mutex,
};

use crate::mutex::lock;

/// Makes the value; the error says what is wrong with the files.
type Make<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value made of files. While they are half changed, or gone, it stays as it was.
pub(super) struct Fresh<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    made: Mutex<Made<T>>,
}

struct Made<T> {
    value: T,
    seen: Vec<Option<Stamp>>,
}

/// What tells one content of a file from another: device, inode, length, times of change.
type Stamp = (u64, u64, u64, [i64; 4]);

impl<T: Clone> Fresh<T> {
    /// Makes the value for the first time. Reads files: blocks.
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let seen = stamps(&files);
        let first = Made { value: make()?, seen };
        Ok(Self { files, make: Box::new(make), made: Mutex::new(first) })
    }

    /// Returns the value, made again if a file changed. Looks at files: blocks for as long as that takes.
    pub(super) fn get(&self) -> T {
        let mut made = lock(&self.made);
        let now = stamps(&self.files);
        if now != made.seen {
            made.seen = now;
            match (self.make)() {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "read again what has changed");
                    made.value = value;
                }
                Err(error) => tracing::warn!(error, "a changed file is not used: what was read before stays in force"),
            }
        }
        made.value.clone()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let found = fs::metadata(file).ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Some((found.dev(), found.ino(), found.size(), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_one_that_is_wrong_or_gone_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        let replace = |content: &str| {
            fs::write(dir.path().join("next"), content).unwrap();
            fs::rename(dir.path().join("next"), &file).unwrap();
        };
        replace("1");
        let read = {
            let file = file.clone();
            move || fs::read_to_string(&file).unwrap_or_default().parse::<u32>().map_err(|error| error.to_string())
        };
        let fresh = Fresh::new(vec![file.clone()], read).unwrap();
        assert_eq!(fresh.get(), 1);
        replace("2");
        assert_eq!(fresh.get(), 2);
        replace("no number");
        assert_eq!(fresh.get(), 2);
        fs::remove_file(&file).unwrap();
        assert_eq!(fresh.get(), 2);
        replace("3");
        assert_eq!(fresh.get(), 3);
    }

    #[test]
    fn what_cannot_be_made_at_first_is_an_error() {
        assert_eq!(Fresh::<u32>::new(Vec::new(), || Err("no".to_owned())).err(), Some("no".to_owned()));
    }
}
