//! Value derived from files, computed again when they change.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::mutex::lock;

/// Function that computes the value; its error describes the problem with the files.
type Make<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value derived from files. While the files are missing or invalid, the previous value stays.
pub(super) struct Fresh<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    /// The value, and the identities of the files at the last computation; `None` for a missing file.
    made: Mutex<(Arc<T>, Vec<Option<Stamp>>)>,
}

/// Identity of a file's content: device, inode, length, times of change.
type Stamp = (u64, u64, u64, [i64; 4]);

impl<T> Fresh<T> {
    /// Computes the value for the first time. Blocks while it reads files.
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let seen = stamps(&files);
        let first = Arc::new(make()?);
        Ok(Self { files, make: Box::new(make), made: Mutex::new((first, seen)) })
    }

    /// Returns the value; computes it again if a file has changed. Blocks while it checks the files.
    pub(super) fn get(&self) -> Arc<T> {
        let mut made = lock(&self.made);
        let (value, seen) = &mut *made;
        let now = stamps(&self.files);
        if now != *seen {
            *seen = now;
            match (self.make)() {
                Ok(new) => {
                    tracing::info!(files = ?self.files, "reloaded changed files");
                    *value = Arc::new(new);
                }
                Err(error) => tracing::warn!(error, "a changed file is invalid; the previous content stays in use"),
            }
        }
        Arc::clone(value)
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |found: fs::Metadata| {
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        (found.dev(), found.ino(), found.size(), times)
    };
    files.iter().map(|file| fs::metadata(file).ok().map(stamp)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_reread_and_invalid_one_ignored() {
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
        assert_eq!(*fresh.get(), 1);
        replace("2");
        assert_eq!(*fresh.get(), 2);
        replace("no number");
        assert_eq!(*fresh.get(), 2);
        fs::remove_file(&file).unwrap();
        assert_eq!(*fresh.get(), 2);
        replace("3");
        assert_eq!(*fresh.get(), 3);
    }

    #[test]
    fn invalid_initial_value_is_error() {
        assert_eq!(Fresh::<u32>::new(Vec::new(), || Err("no".to_owned())).err(), Some("no".to_owned()));
    }
}
