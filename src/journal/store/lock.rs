//! One process at a time in a state directory.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::StoreError;
use crate::private_dir;

/// Holds a state directory until it is dropped; the system lets go of it when the process ends, however that is.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says which process has it.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::of_io(dir, "take the lock", source);
        let path = dir.join("lock");
        let options = private_dir::file().read(true).create(true).truncate(false).open(path);
        let mut file = options.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let owner = file.read_to_string(&mut owner).ok().and_then(|_| owner.trim().parse().ok());
                return Err(StoreError::Locked { dir: dir.to_owned(), owner });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let pid = format!("{}\n", std::process::id());
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(pid.as_bytes()));
        written.map_err(failed)?;
        Ok(Self { _file: file })
    }
}
