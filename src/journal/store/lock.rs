//! One process at a time in a state directory.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::Fault;
use crate::private_dir;

/// Holds a state directory until it is dropped; the system lets go of it when the process ends, however that is.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or names the process that has it.
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
