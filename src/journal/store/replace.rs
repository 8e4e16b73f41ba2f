//! Atomic replacement of small files.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use crate::private_dir;

/// Replaces a small file of the state directory with another text. Syncs the content but not the name: after a power failure
/// the previous file may be there.
pub(super) fn replace(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = private_dir::file().create(true).truncate(true).open(&new)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(new, dir.join(name))
}
