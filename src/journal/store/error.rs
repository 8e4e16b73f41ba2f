//! Errors of a store, in sentences for people.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::DB;

/// A store could not be opened, read or written. The message names the cause, the directory, and what to do.
#[derive(Debug)]
pub struct StoreError {
    dir: PathBuf,
    action: &'static str,
    pub(super) fault: Fault,
}

/// Cause of an error.
#[derive(Debug)]
pub(super) enum Fault {
    /// The user has no right to write, or the file system is read-only.
    NotWritable(io::Error),
    /// Another process has it open. Its id may be known.
    Locked(Option<u32>),
    DiskFull(io::Error),
    /// Files contradict themselves, and not only where the last run was cut off.
    Corrupt {
        file: PathBuf,
        what: String,
    },
    /// Something durable is gone: files were removed, cut short, or replaced by older ones.
    Lost(String),
    NewerFormat {
        found: u32,
        known: u32,
    },
    OtherCluster {
        bound_to: String,
        found: String,
    },
    /// An earlier write failed.
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

    /// Sorts an error of the system by what can be done about it.
    fn of_io(source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::DiskFull(source),
            PermissionDenied | ReadOnlyFilesystem => Self::NotWritable(source),
            _ => Self::Io(source),
        }
    }

    /// Makes the error of an `action` in `dir`.
    pub(super) fn tell(self, dir: &Path, action: &'static str) -> StoreError {
        use fjall::{Error, LsmError};
        use io::ErrorKind::{NotFound, UnexpectedEof};
        let fault = match self {
            Self::Fjall(Error::Io(source) | Error::Storage(LsmError::Io(source))) => match source.kind() {
                NotFound | UnexpectedEof => {
                    Self::corrupt(dir.join(DB), format!("a file is missing or too short: {source}"))
                }
                _ => Self::of_io(source),
            },
            Self::Io(source) => Self::of_io(source),
            Self::Fjall(Error::Poisoned) => probe(dir).map_or_else(Self::of_io, |()| Self::Failed),
            Self::Fjall(Error::Locked) => Self::Locked(None),
            Self::Fjall(error) => Self::corrupt(dir.join(DB), error.to_string()),
            fault => fault,
        };
        StoreError { dir: dir.to_owned(), action, fault }
    }
}

/// Finds out whether there is room now: fjall says only that an earlier write failed, not why.
fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join("probe");
    let written = fs::write(&path, vec![1; 1 << 20]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, action) = (self.dir.display(), self.action);
        match &self.fault {
            Fault::NotWritable(source) => write!(
                f,
                "the state directory {dir} cannot be written ({source}); give this user the right to write there, or \
                 name another directory in `[state] dir`"
            ),
            Fault::Locked(owner) => {
                let owner = owner.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                write!(
                    f,
                    "the state directory {dir} is in use by {owner}; stop that process, or give this one a directory \
                     of its own in `[state] dir`"
                )
            }
            Fault::DiskFull(source) => write!(
                f,
                "the disk of the state directory {dir} is full ({source}); make room there, or lower `[state] \
                 max_bytes`: a running engine goes on by itself once there is room"
            ),
            Fault::Corrupt { file, what } => write!(
                f,
                "the state in {} is damaged: {what}; move the directory {dir} away and start again: all objects will \
                 be listed anew, what was not delivered yet is lost",
                file.display()
            ),
            Fault::Lost(what) => write!(
                f,
                "the state in {dir} has lost what was durable: {what}; bring the missing files back, or move the \
                 directory {dir} away and start again: all objects will be listed again, events that were not \
                 delivered are lost"
            ),
            Fault::NewerFormat { found, known } => write!(
                f,
                "the state in {dir} has format {found}, this version knows up to {known}; run the newer deltabus that \
                 wrote it, or move the directory away: all objects will be listed anew, what was not delivered yet is \
                 lost"
            ),
            Fault::OtherCluster { bound_to, found } => write!(
                f,
                "the state in {dir} belongs to the cluster {bound_to}, this is the cluster {found} (uids of the \
                 namespace kube-system); name another directory in `[state] dir`, or move this one away if the cluster \
                 was replaced"
            ),
            Fault::Failed => write!(
                f,
                "the state in {dir} takes no writes since an earlier one failed; it is opened again by itself"
            ),
            Fault::Closed => write!(f, "the state in {dir} is closed"),
            Fault::Io(source) => write!(f, "failed to {action} in the state directory {dir} ({source})"),
            Fault::Fjall(source) => write!(f, "failed to {action} in the state directory {dir} ({source})"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::NotWritable(source) | Fault::DiskFull(source) | Fault::Io(source) => Some(source),
            _ => None,
        }
    }
}
