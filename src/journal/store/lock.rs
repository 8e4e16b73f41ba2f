//! Lock that lets only one process use a state directory.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::Fault;
use crate::private_dir;

/// Lock on a state directory, until it is dropped. The system releases it when the process ends for any reason.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock. If another process has it, the error contains its id.
    pub(super) fn take(dir: &Path) -> Result<Self, Fault> {
        let mut file = private_dir::file().read(true).create(true).truncate(false).open(dir.join("lock"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let read = file.read_to_string(&mut owner);
                return Err(Fault::Locked(read.ok().and_then(|_| owner.trim().parse().ok())));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Self { _file: file })
    }
}
