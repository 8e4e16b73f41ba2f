//! Reading of regular files only. Opening a FIFO without a writer blocks, and a device may have no end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a regular file for reading. Never waits for a writer.
///
/// # Errors
/// Fails if the path is a FIFO, socket or device. A directory can be opened, but reading it fails.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a FIFO, socket or device: expected a regular file"))
}

/// Reads a whole regular file.
///
/// # Errors
/// Fails like [`open`], and if reading fails.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole regular file as UTF-8 text.
///
/// # Errors
/// Fails like [`read`], and if the content is not UTF-8.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}
