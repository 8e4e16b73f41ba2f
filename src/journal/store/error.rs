//! What can go wrong with a store, in sentences for people.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A store could not be opened, read or written. Each message says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be written: its rights, or a read-only file system.
    #[error(
        "the state directory {dir} cannot be written ({source}); give this user the right to write there, or name \
         another directory in `[state] dir`"
    )]
    NotWritable {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it open.
    #[error(
        "the state directory {dir} is in use by {}; stop that process, or give this one a directory of its own in \
         `[state] dir`",
        owner.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process that has it, where known.
        owner: Option<u32>,
    },
    /// No room is left. [`Store::reopen`](super::Store::reopen) goes on once there is.
    #[error(
        "the disk of the state directory {dir} is full ({source}); make room there, or lower `[state] max_bytes`: \
         a running engine goes on by itself once there is room"
    )]
    DiskFull {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The files contradict themselves, and not only where the last run was cut off.
    #[error(
        "the state in {} is damaged: {what}; move the directory {dir} away and start again: all objects will be listed \
         anew, what was not delivered yet is lost",
        file.display()
    )]
    Corrupt {
        /// The directory.
        dir: PathBuf,
        /// The file at fault; the directory where that is not known.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Something that was durable is not there any more: files were removed, cut short, or replaced by older ones.
    #[error(
        "the state in {dir} has lost what was durable: {what}; bring the missing files back, or move the directory {dir} \
         away and start again: all objects will be listed again, events that were not delivered are lost"
    )]
    Lost {
        /// The directory.
        dir: PathBuf,
        /// The fact that is lost.
        what: String,
    },
    /// It was written by a newer deltabus.
    #[error(
        "the state in {dir} has format {found}, this version knows up to {known}; run the newer deltabus that wrote it, \
         or move the directory away: all objects will be listed anew, what was not delivered yet is lost"
    )]
    NewerFormat {
        /// The directory.
        dir: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// It belongs to another cluster.
    #[error(
        "the state in {dir} belongs to the cluster {bound_to}, this is the cluster {found} (uids of the namespace \
         kube-system); name another directory in `[state] dir`, or move this one away if the cluster was replaced"
    )]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// The cluster it belongs to.
        bound_to: String,
        /// The cluster that was found.
        found: String,
    },
    /// An earlier write failed; [`Store::reopen`](super::Store::reopen) may help.
    #[error("the state in {dir} takes no writes since an earlier one failed; it is opened again by itself")]
    Failed {
        /// The directory.
        dir: PathBuf,
    },
    /// [`Store::close`](super::Store::close) was called, or a reopening failed.
    #[error("the state in {dir} is closed")]
    Closed {
        /// The directory.
        dir: PathBuf,
    },
    /// Any other error of the system.
    #[error("failed to {action} in the state directory {dir} ({source})")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl StoreError {
    /// Sorts an error of the system by what can be done about it.
    pub(super) fn of_io(dir: &Path, action: &'static str, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let dir = dir.to_owned();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::DiskFull { dir, source },
            PermissionDenied | ReadOnlyFilesystem => Self::NotWritable { dir, source },
            _ => Self::Io { dir, action, source },
        }
    }
}

/// What went wrong below, before it is told.
#[derive(Debug)]
pub(super) enum Fault {
    Fjall(fjall::Error),
    Io(io::Error),
    Damaged { file: PathBuf, what: String },
    Told(StoreError),
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
    pub(super) fn damaged(file: PathBuf, what: String) -> Self {
        Self::Damaged { file, what }
    }

    /// Tells what happened while `action` was done in `dir`.
    pub(super) fn tell(self, dir: &Path, action: &'static str) -> StoreError {
        match self {
            Self::Told(error) => error,
            Self::Io(source) => StoreError::of_io(dir, action, source),
            Self::Damaged { file, what } => StoreError::Corrupt { dir: dir.to_owned(), file, what },
            Self::Fjall(error) => tell_fjall(error, dir, action),
        }
    }
}

fn tell_fjall(error: fjall::Error, dir: &Path, action: &'static str) -> StoreError {
    use fjall::{Error, LsmError};
    match error {
        Error::Io(source) | Error::Storage(LsmError::Io(source)) => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => {
                let what = format!("a file is missing or too short: {source}");
                StoreError::Corrupt { dir: dir.to_owned(), file: dir.join(super::DB), what }
            }
            _ => StoreError::of_io(dir, action, source),
        },
        Error::Poisoned => match probe(dir) {
            Err(source) => StoreError::of_io(dir, action, source),
            Ok(()) => StoreError::Failed { dir: dir.to_owned() },
        },
        Error::Locked => StoreError::Locked { dir: dir.to_owned(), owner: None },
        error => {
            let what = error.to_string();
            StoreError::Corrupt { dir: dir.to_owned(), file: dir.join(super::DB), what }
        }
    }
}

/// Finds out whether there is room now: fjall says only that an earlier write failed, not why.
fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join("probe");
    let written = fs::write(&path, vec![1; 1 << 20]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}
