//! Value derived from files, computed again when they change.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crate::{mutex::lock, regular_file};

/// Function that computes the value; its error describes the problem with the files.
type Make<T> = Box<dyn Fn(&mut FilesSeen) -> Result<T, String> + Send + Sync>;

/// A value derived from files. While the files are missing or invalid, the previous value stays.
pub(crate) struct Fresh<T> {
    make: Make<T>,
    /// The value, and the files of the last computation.
    made: Mutex<(Arc<T>, FilesSeen)>,
}

/// Files that a computation has read, and their identities just before.
#[derive(Debug, Default)]
pub(crate) struct FilesSeen(Vec<(PathBuf, Option<Stamp>)>);

/// Identity of a file's content: device, inode, length, times of change.
type Stamp = (u64, u64, u64, [i64; 4]);

impl FilesSeen {
    /// Adds a file. Call it before the file is read, so that a later change is found.
    pub(crate) fn note(&mut self, path: &Path) {
        self.0.push((path.to_owned(), stamp(path)));
    }

    /// Adds a regular file, and reads it.
    pub(crate) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.note(path);
        regular_file::read(path)
    }

    fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, seen)| stamp(path) != *seen)
    }

    fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(|(path, _)| path.as_path()).collect()
    }
}

impl<T> Fresh<T> {
    /// Computes the value for the first time. Blocks while it reads files.
    pub(crate) fn new(
        make: impl Fn(&mut FilesSeen) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let mut seen = FilesSeen::default();
        let first = Arc::new(make(&mut seen)?);
        Ok(Self { make: Box::new(make), made: Mutex::new((first, seen)) })
    }

    /// Returns the value; computes it again if a file has changed. Blocks while it checks the files.
    pub(crate) fn get(&self) -> Arc<T> {
        let mut made = lock(&self.made);
        let (value, seen) = &mut *made;
        if seen.have_changed() {
            let mut files = FilesSeen::default();
            match (self.make)(&mut files) {
                Ok(new) => {
                    tracing::info!(files = ?files.paths(), "reloaded changed files");
                    *value = Arc::new(new);
                }
                Err(error) => tracing::warn!(error, "cannot use a changed file; the previous content stays in use"),
            }
            *seen = files;
        }
        Arc::clone(value)
    }
}

/// Returns the identity of a file's content; `None` for a missing file.
fn stamp(file: &Path) -> Option<Stamp> {
    let found = fs::metadata(file).ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Some((found.dev(), found.ino(), found.size(), times))
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
            move |files: &mut FilesSeen| {
                let text = files.read(&file).map_err(|error| error.to_string())?;
                String::from_utf8_lossy(&text).parse::<u32>().map_err(|error| error.to_string())
            }
        };
        let fresh = Fresh::new(read).unwrap();
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
        assert_eq!(Fresh::<u32>::new(|_| Err("no".to_owned())).err(), Some("no".to_owned()));
    }
}
