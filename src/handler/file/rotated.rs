//! Compression and removal of rotated files, off the hot path.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::SystemTime,
};

use crossbeam_channel::{Sender, bounded};
use jiff::{SignedDuration, Timestamp, fmt::strtime, tz::TimeZone};

use super::{FileCompression, Rotate};
use crate::private_dir;

/// Suffix of a file that was rotated by size: the time of the rotation. If such files are sorted by name, they are in order of
/// time.
const SUFFIX: &str = "%Y%m%dT%H%M%S.%6fZ";
const ZSTD_LEVEL: i32 = 3;
/// Suffix of an incomplete compressed file.
const HALF: &str = ".zst.part";

/// Thread that compresses and removes rotated files, and the queue of its jobs. `None` without rotation. A job is the path of a
/// current file; the thread works on the rotated files in the same directory.
pub(super) struct Rotated(Option<(Sender<PathBuf>, JoinHandle<()>)>);

impl Rotated {
    /// Starts the thread, if files are rotated.
    pub(super) fn new(pattern: &str, rotate: Option<&Rotate>) -> Self {
        let Some(&Rotate { keep, compress, .. }) = rotate else { return Self(None) };
        let (current, tidy) = bounded::<PathBuf>(16);
        let pattern = pattern.to_owned();
        let work = move || {
            for path in tidy {
                if let Err(error) = tidy_up(&pattern, &path, keep as usize, compress) {
                    tracing::warn!(path = %path.display(), %error, "failed to compress or remove rotated files");
                }
            }
        };
        let thread = std::thread::Builder::new().name("rotated-files".to_owned()).spawn(work);
        let failed = |error: &io::Error| {
            tracing::error!(%error, "failed to start the thread that compresses and removes rotated files");
        };
        Self(thread.inspect_err(failed).ok().map(|thread| (current, thread)))
    }

    /// Asks the thread to compress rotated files and to remove the oldest ones. `current` itself is not changed.
    pub(super) fn look(&self, current: &Path) {
        if let Some((sender, _)) = &self.0 {
            // If the queue is full, this path is dropped, because a queued path usually covers the same directory.
            drop(sender.try_send(current.to_owned()));
        }
    }

    /// Waits until all requested work is done, and ends the thread.
    pub(super) fn close(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender); // ends the thread
            drop(thread.join());
        }
    }
}

/// Renames a full file to its rotated name. If the name is taken, because the clock was set back, a later time is used.
pub(super) fn rename(path: &Path, mut now: Timestamp) -> io::Result<()> {
    loop {
        let suffix = strtime::format(SUFFIX, &now.to_zoned(TimeZone::UTC)).map_err(io::Error::other)?;
        let name = with_suffix(path, &format!(".{suffix}"));
        if !name.exists() && !with_suffix(&name, ".zst").exists() {
            return fs::rename(path, name);
        }
        now += SignedDuration::from_micros(1);
    }
}

/// Removes the oldest rotated files until `keep` files are left. Compresses these files, if requested. If `keep` is 0, removes
/// none.
fn tidy_up(pattern: &str, current: &Path, keep: usize, compression: FileCompression) -> io::Result<()> {
    let directory = current.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        if path.file_name() == current.file_name() || !entry.file_type()?.is_file() {
            continue;
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let uncompressed = name.strip_suffix(HALF).or(name.strip_suffix(".zst")).unwrap_or(name);
        if !is_ours(uncompressed, pattern, current) {
            continue;
        }
        if name.ends_with(HALF) {
            fs::remove_file(&path)?;
        } else {
            files.push((entry.metadata()?.modified()?, path));
        }
    }
    files.sort();
    let excess = if keep == 0 { 0 } else { files.len().saturating_sub(keep) };
    for (_, path) in files.drain(..excess) {
        fs::remove_file(&path)?;
    }
    if compression == FileCompression::Zstd {
        for (modified, path) in files.iter().filter(|(_, path)| path.extension().is_none_or(|end| end != "zst")) {
            compress(path, *modified)?;
        }
    }
    Ok(())
}

/// Returns true if a file belongs to this handler: its name matches the pattern, with or without a [`SUFFIX`].
fn is_ours(name: &str, pattern: &str, current: &Path) -> bool {
    let pattern_name = Path::new(pattern).file_name().and_then(|name| name.to_str()).unwrap_or(pattern);
    let current_name = current.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let made = |name: &str| name == current_name || made_by(pattern_name, name);
    let mut cuts = name.match_indices('.').map(|(at, _)| (&name[..at], &name[at + 1..]));
    made(name) || cuts.any(|(base, suffix)| is_rotated_suffix(suffix) && made(base))
}

fn made_by(pattern: &str, name: &str) -> bool {
    pattern.contains('%') && strtime::parse(pattern, name).is_ok()
}

/// Returns true if text is a [`SUFFIX`].
fn is_rotated_suffix(text: &str) -> bool {
    let shape = text.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    shape.eq(*b"00000000T000000.000000Z")
}

/// Replaces a file with its compressed copy, which gets the same modification time. A crash can leave both the file and an
/// incomplete copy (`.part`).
fn compress(path: &Path, modified: SystemTime) -> io::Result<()> {
    let (target, part) = (with_suffix(path, ".zst"), with_suffix(path, HALF));
    let file = File::open(path)?;
    let permissions = file.metadata()?.permissions();
    let out = private_dir::file().create(true).truncate(true).open(&part)?;
    out.set_permissions(permissions)?;
    zstd::stream::copy_encode(file, &out, ZSTD_LEVEL)?;
    out.set_modified(modified)?;
    out.sync_all()?;
    fs::rename(&part, &target)?;
    fs::remove_file(path)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
