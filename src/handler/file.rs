//! Events as JSON lines in files: appended, rotated by size and by name, compressed, pruned.
//!
//! - One write a batch. A write that fails (a full disk) is undone: the file is cut back to its last whole line before
//!   the batch is tried again, so a file never holds half an event.
//! - What a crash left of a last line is cut off when the file is opened again: it was not acknowledged, so it comes
//!   again. A foreign last line, one that does not begin as an event does, is kept and ended with a line break.
//! - `%` patterns in the path are filled in with the time of writing, in UTC; another name is another file.
//! - Past `max_bytes` the file is renamed to `NAME.20261121T064003.123456Z`; `file/rotated.rs` compresses and prunes
//!   what is rotated, on a thread of its own.

mod rotated;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use educe::Educe;
use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{Handler, HandlerError, left_behind::is_left_behind};
use crate::{
    cloud_event::Formatter,
    notification::Notification,
    private_dir,
    text::{Format, Text, of_text},
};
use rotated::Rotated;

/// Buffers above this size are given back.
const BUFFER_KEPT_MAX: usize = 4 << 20;
/// How every line of ours begins.
const EVENT_START: &[u8] = br#"{"specversion""#;

/// When written lines are synced to the disk.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default(expression = Self::Interval(Duration::from_secs(1))))]
pub enum FileFsync {
    /// Before a batch is acknowledged.
    Always,
    /// Left to the system.
    Never,
    /// Not later than so long after it was acknowledged, and at the end.
    Interval(Duration),
}

/// How a closed file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Compress")]
#[serde(rename_all = "kebab-case")]
pub enum FileCompression {
    /// Not at all.
    None,
    /// As `.zst`.
    #[default]
    Zstd,
}

/// Options of a handler of type `file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct FileOptions {
    /// The file. %Y, %m, %d, %H … (strftime, UTC) stand for the time, so that each day or hour has its own. Required.
    #[schemars(schema_with = "path_template")]
    pub path: String,
    /// When a file is closed and a next one begun, apart from what `path` says. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rotate")]
    pub rotate: Option<Rotate>,
    /// When what was written is forced to the disk: `always` (every batch), `never` (the system decides), or an interval.
    #[serde(default, with = "Text::<FileFsync>")]
    pub fsync: FileFsync,
    /// Permissions of the files, in octal. Who may read the files may enter the directories that deltabus makes for them.
    #[serde(default, with = "Text::<Permissions>")]
    pub permissions: Permissions,
}

/// Permissions of a file: nine bits, the owner's reading and writing among them.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default)]
pub struct Permissions(#[educe(Default = 0o640)] pub u32);

/// When a file is closed, and what becomes of it.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Rotate {
    /// A file is closed before it grows beyond this.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 256 << 20)]
    pub max_bytes: u64,
    /// Closed files that are kept; the oldest goes first. 0 = all.
    #[educe(Default = 30)]
    pub keep: u32,
    /// How a closed file is compressed.
    pub compress: FileCompression,
}

fn path_template(_: &mut SchemaGenerator) -> Schema {
    of_text(Format::PathTemplate, Some("[^/]$"), &["/var/lib/deltabus/%Y-%m-%d.jsonl"])
}

/// The handler.
pub struct FileHandler {
    options: FileOptions,
    formatter: Formatter,
    clock: fn() -> Timestamp,
    open: Option<Open>,
    rotated: Rotated,
    buffer: Vec<u8>,
}

/// The file being written.
struct Open {
    file: File,
    path: PathBuf,
    /// Bytes of whole lines.
    len: u64,
    /// It can be cut: it is no pipe and no device.
    regular: bool,
    /// Something was written since the last sync.
    dirty: bool,
    /// A write failed and could not be undone.
    torn: bool,
}

impl FileHandler {
    /// Makes the handler and opens its file, so that a path that cannot be written is known at the start.
    pub fn new(options: FileOptions, formatter: impl Into<Formatter>) -> Result<Self, HandlerError> {
        Self::with_clock(options, formatter, Timestamp::now)
    }

    /// Opens the file once, and fails where it never can be: it is a directory, or this user may not write it. What may
    /// pass, such as a full disk, is left to the retries of the handler.
    ///
    /// # Errors
    /// What the system said.
    pub fn check(options: &FileOptions) -> io::Result<()> {
        use io::ErrorKind as Kind;
        let Ok(path) = path_at(&options.path, Timestamp::now()) else { return Ok(()) };
        if std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
            return Ok(()); // a pipe waits for its reader
        }
        match Open::at(path.clone(), options.permissions.0) {
            Err(error)
                if matches!(
                    error.kind(),
                    Kind::PermissionDenied
                        | Kind::NotADirectory
                        | Kind::IsADirectory
                        | Kind::AlreadyExists
                        | Kind::ReadOnlyFilesystem
                        | Kind::InvalidFilename
                        | Kind::InvalidInput
                ) =>
            {
                Err(io::Error::new(error.kind(), format!("failed to open {}: {error}", path.display())))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn with_clock(
        options: FileOptions,
        formatter: impl Into<Formatter>,
        clock: fn() -> Timestamp,
    ) -> Result<Self, HandlerError> {
        let rotated = Rotated::new(&options.path, options.rotate.as_ref());
        let mut handler = Self { options, formatter: formatter.into(), clock, open: None, rotated, buffer: Vec::new() };
        let path = handler.path_now()?;
        handler.open = Some(handler.open_at(&path)?);
        Ok(handler)
    }

    /// Opens a file, warns of one that others can read or change, and looks for what is rotated beside it.
    fn open_at(&mut self, path: &Path) -> Result<Open, HandlerError> {
        let permissions = self.options.permissions.0;
        let open = Open::at(path.to_owned(), permissions).map_err(|error| failed("open", path, &error))?;
        if open.regular
            && let Some(loose) = private_dir::looseness(path, permissions)
        {
            tracing::warn!("others can read or change these events: {loose}");
        }
        self.rotated.look(path);
        Ok(open)
    }

    fn path_now(&self) -> Result<PathBuf, HandlerError> {
        path_at(&self.options.path, (self.clock)())
    }

    /// Makes sure that the right file is open and has room for `bytes` more.
    fn prepare(&mut self, bytes: u64) -> Result<&mut Open, HandlerError> {
        let path = self.path_now()?;
        if self.open.as_ref().is_some_and(|open| open.path != path || open.torn) {
            self.finish()?;
        }
        if self.open.as_ref().is_some_and(|open| !open.is_untouched()) {
            tracing::warn!(path = %path.display(), "somebody moved, removed or changed the file, opening it anew");
            self.open = None;
        }
        if let (Some(open), Some(max)) = (&self.open, self.options.rotate.as_ref().map(|rotate| rotate.max_bytes))
            && open.regular
            && open.len > 0
            && open.len + bytes > max
        {
            let path = open.path.clone();
            self.finish()?;
            rotated::rename(&path, (self.clock)()).map_err(|error| failed("rotate", &path, &error))?;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => self.open_at(&path)?,
        };
        Ok(self.open.insert(open))
    }

    /// Lets go of the current file, synced.
    fn finish(&mut self) -> Result<(), HandlerError> {
        if let Some(open) = &mut self.open
            && self.options.fsync != FileFsync::Never
        {
            open.sync().map_err(|error| failed("sync", &open.path, &error))?;
        }
        self.open = None;
        Ok(())
    }
}

/// What a thread says that hung and has come back: its successor writes the file now.
const REPLACED: &str = "another thread has taken this one's place";

impl Handler for FileHandler {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        if is_left_behind() {
            return Err(HandlerError::Failed(REPLACED.to_owned()));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let written = notification.events().iter().try_for_each(|event| self.formatter.line(&mut buffer, event));
        let always = self.options.fsync == FileFsync::Always;
        let result = written
            .map_err(HandlerError::from)
            .and_then(|()| self.prepare(buffer.len() as u64))
            .and_then(|open| open.append(&buffer, always).map_err(|error| failed("write to", &open.path, &error)));
        buffer.shrink_to(BUFFER_KEPT_MAX);
        self.buffer = buffer;
        result
    }

    fn tick_interval(&self) -> Option<Duration> {
        match self.options.fsync {
            FileFsync::Interval(interval) => Some(interval),
            FileFsync::Always | FileFsync::Never => None,
        }
    }

    fn tick(&mut self) -> Result<(), HandlerError> {
        match &mut self.open {
            Some(open) => open.sync().map_err(|error| failed("sync", &open.path, &error)),
            None => Ok(()),
        }
    }

    /// Syncs the file, whatever the policy, and waits for what is being compressed.
    fn close(&mut self) -> Result<(), HandlerError> {
        let synced = self.tick();
        self.open = None;
        self.rotated.close();
        synced
    }
}

impl Open {
    fn at(path: PathBuf, permissions: u32) -> io::Result<Self> {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(of_directories(permissions)).create(parent)?;
        }
        let mut options = OpenOptions::new();
        let before = std::fs::metadata(&path).ok();
        let is_regular_before = before.as_ref().is_none_or(Metadata::is_file);
        let mut file = options.append(true).create(true).read(is_regular_before).mode(permissions).open(&path)?;
        let metadata = file.metadata()?;
        let regular = metadata.is_file();
        if before.is_none() {
            file.set_permissions(fs::Permissions::from_mode(permissions))?;
        }
        let len = if regular { mend_tail(&mut file, metadata.len(), &path)? } else { 0 };
        Ok(Self { file, path, len, regular, dirty: false, torn: false })
    }

    /// Returns whether the file at the path is still as it was left.
    fn is_untouched(&self) -> bool {
        !self.regular || std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() == self.len)
    }

    /// Appends whole lines, or nothing.
    fn append(&mut self, lines: &[u8], sync: bool) -> io::Result<()> {
        let written = self.file.write_all(lines).and_then(|()| if sync { self.sync_data() } else { Ok(()) });
        match written {
            Ok(()) => {
                self.len += lines.len() as u64;
                self.dirty = !sync;
                Ok(())
            }
            Err(error) => {
                // Whoever hung and was replaced would cut off what its successor wrote.
                self.torn = self.regular && (is_left_behind() || self.file.set_len(self.len).is_err());
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.dirty {
            self.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.regular { self.file.sync_data() } else { Ok(()) }
    }
}

/// Whoever may read the files may enter their directory.
fn of_directories(permissions: u32) -> u32 {
    permissions | (permissions & 0o444) >> 2
}

/// Makes the file end with a whole line, and returns its length then.
fn mend_tail(file: &mut File, len: u64, path: &Path) -> io::Result<u64> {
    let start = last_line_start(file, len)?;
    if start == len {
        return Ok(len);
    }
    let mut head = [0; EVENT_START.len()];
    let have = usize::try_from(len - start).unwrap_or(head.len()).min(head.len());
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut head[..have])?;
    if head[..have] == EVENT_START[..have] {
        if is_left_behind() {
            return Err(io::Error::other(REPLACED)); // the half event is what its successor is just writing
        }
        tracing::warn!(path = %path.display(), bytes = len - start, "cut off half an event that a crash had left");
        file.set_len(start)?;
        return Ok(start);
    }
    file.write_all(b"\n")?;
    Ok(len + 1)
}

/// Returns where the text behind the last line break begins.
fn last_line_start(file: &mut File, len: u64) -> io::Result<u64> {
    let mut chunk = vec![0; 64 << 10];
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..usize::try_from(end - start).expect("at most one chunk")];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = memchr::memrchr(b'\n', part) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Fills the time into a path.
fn path_at(pattern: &str, time: Timestamp) -> Result<PathBuf, HandlerError> {
    if !pattern.contains('%') {
        return Ok(PathBuf::from(pattern));
    }
    jiff::fmt::strtime::format(pattern, &time.to_zoned(jiff::tz::TimeZone::UTC))
        .map(PathBuf::from)
        .map_err(|error| HandlerError::Failed(format!("failed to fill in path {pattern:?}: {error}")))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> HandlerError {
    HandlerError::Failed(format!("failed to {what} {}: {error}", path.display()))
}
