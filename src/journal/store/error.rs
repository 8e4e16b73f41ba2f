//! Errors of a store. Their messages are complete sentences for users.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::DB;

/// Error when a store was opened, read or written. The message states the cause, the directory, and a suggestion.
#[derive(Debug)]
pub struct StoreError {
    dir: PathBuf,
    action: &'static str,
    pub(super) fault: Fault,
}

/// Cause of an error.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another process uses the directory. Contains the id of that process, if known.
    Locked(Option<u32>),
    /// Files are inconsistent. A torn end of the journal file after an interrupted run is no error: it is cut off.
    Corrupt {
        file: PathBuf,
        what: String,
    },
    /// Durable data is missing: files were removed, truncated, or replaced by older ones.
    Lost(String),
    NewerFormat {
        found: u32,
        known: u32,
    },
    OtherCluster {
        bound_to: String,
        found: String,
    },
    /// An earlier write failed: the store must be reopened.
    Failed,
    Closed,
    Io(io::Error),
    Fjall(fjall::Error),
}

impl From<fjall::Error> for Fault {
    fn from(error: fjall::Error) -> Self {
        Self::Fjall(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<fjall::LsmError> for Fault {
    fn from(error: fjall::LsmError) -> Self {
        Self::Fjall(error.into())
    }
}

impl Fault {
    pub(super) fn corrupt(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.into(), what: what.into() }
    }

    /// Returns the error for users: this fault happened during `action` in `dir`.
    pub(super) fn tell(self, dir: &Path, action: &'static str) -> StoreError {
        use fjall::{Error, LsmError};
        use io::ErrorKind::{NotFound, UnexpectedEof};
        let fault = match self {
            Self::Fjall(Error::Io(source) | Error::Storage(LsmError::Io(source))) => match source.kind() {
                NotFound | UnexpectedEof => {
                    Self::corrupt(dir.join(DB), format!("a file is missing or too short: {source}"))
                }
                _ => Self::Io(source),
            },
            Self::Fjall(Error::Poisoned) => probe(dir).map_or_else(Self::Io, |()| Self::Failed),
            Self::Fjall(Error::Locked) => Self::Locked(None),
            Self::Fjall(error) => Self::corrupt(dir.join(DB), error.to_string()),
            fault => fault,
        };
        StoreError { dir: dir.to_owned(), action, fault }
    }
}

/// Writes a test file, and returns its error: fjall reports only that an earlier write failed, not why.
fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join("probe");
    let written = fs::write(&path, vec![1; 1 << 20]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let (dir, action) = (self.dir.display(), self.action);
        match &self.fault {
            Fault::Locked(owner) => {
                let owner = owner.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                write!(
                    f,
                    "the state directory {dir} is in use by {owner}; stop that process, or set another directory in \
                     `[state] dir`"
                )
            }
            Fault::Corrupt { file, what } => write!(
                f,
                "the state in {} is damaged: {what}; move the directory {dir} away and start again; all objects are \
                 then listed again, and undelivered events are lost",
                file.display()
            ),
            Fault::Lost(what) => write!(
                f,
                "the state in {dir} has lost durable data: {what}; restore the missing files, or move the directory \
                 {dir} away and start again; all objects are then listed again, and undelivered events are lost"
            ),
            Fault::NewerFormat { found, known } => write!(
                f,
                "the state in {dir} has format {found}, this version supports up to {known}; run the newer deltabus \
                 that wrote it, or move the directory away; all objects are then listed again, and undelivered events \
                 are lost"
            ),
            Fault::OtherCluster { bound_to, found } => write!(
                f,
                "the state in {dir} belongs to the cluster {bound_to}, this is the cluster {found} (uids of the \
                 namespace kube-system); set another directory in `[state] dir`, or move this one away if the cluster \
                 was replaced"
            ),
            Fault::Failed => write!(
                f,
                "the state in {dir} accepts no writes because an earlier write failed; it is reopened automatically"
            ),
            Fault::Closed => write!(f, "the state in {dir} is closed"),
            Fault::Io(source) => match source.kind() {
                PermissionDenied | ReadOnlyFilesystem => write!(
                    f,
                    "cannot write to the state directory {dir}: {source}; give this user write access, or set another \
                     directory in `[state] dir`"
                ),
                StorageFull | QuotaExceeded | FileTooLarge => write!(
                    f,
                    "the disk of the state directory {dir} is full: {source}; free disk space, or lower `[state] \
                     max_bytes`; a running engine then continues"
                ),
                _ => write!(f, "failed to {action} in the state directory {dir}: {source}"),
            },
            Fault::Fjall(source) => write!(f, "failed to {action} in the state directory {dir}: {source}"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(source) => Some(source),
            _ => None,
        }
    }
}
