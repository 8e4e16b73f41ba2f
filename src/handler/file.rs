//! Events as JSON lines in files. Files are rotated by size or name. Rotated files are compressed, and the oldest are removed.
//!
//! - Each batch is one write; a batch larger than `max_bytes` is one write per file. If a write fails (full disk), the file is
//!   truncated to its length before the write, and the rest of the batch is retried. So no part of an event remains in the file.
//! - An incomplete last line after a crash is removed when the file is opened. Its event was not acknowledged, so it is
//!   delivered again. A last line that is not an event is kept and terminated with a line break.
//! - `%` patterns in the path are replaced by the time of writing, in UTC. A new name is a new file.
//! - Before a write would exceed `max_bytes`, the file is renamed to `NAME.20261121T064003.123456Z`. `file/rotated.rs`
//!   compresses and removes closed files on its own thread.
//! - The handler holds a shared lock on its file, so that no such thread takes the file for a closed one.

mod rotated;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use educe::Educe;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BUFFER_KEPT_MAX, Handler, HandlerError, replaced::Replaced};
use crate::{
    cloud_event::Formatter,
    journal::Sequence,
    notification::Notification,
    private_dir,
    text::{Format, Text},
};
use rotated::Rotated;

/// Beginning of each line that this handler writes.
const EVENT_START: &[u8] = br#"{"specversion""#;

/// Policy for syncs (`fsync`) of written lines to disk.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default(expression = Self::Interval(Duration::from_secs(1))))]
pub enum FileFsync {
    /// Sync before a batch is acknowledged.
    Always,
    /// Sync only when the handler closes. Until then, the operating system decides when lines reach the disk.
    Never,
    /// Sync at most this long after a batch was acknowledged, and when the handler closes.
    Interval(Duration),
}

/// Compression of a closed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Compress")]
#[serde(rename_all = "kebab-case")]
pub enum FileCompression {
    /// No compression.
    None,
    /// Zstandard, as `.zst`.
    #[default]
    Zstd,
}

/// Options of a handler of type `file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct FileOptions {
    /// Path of the file. %Y, %m, %d, %H … (strftime, UTC) are replaced by the time, for one file per day or hour. If a name repeats,
    /// events are appended to the file of this name, unless it was compressed. Required.
    #[schemars(transform = Format::PathTemplate)]
    pub path: String,
    /// Rotation by size, and removal and compression of closed files. Default: none; only the time in `path` starts a new
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rotate")]
    pub rotate: Option<Rotate>,
    /// Syncs to disk: `always` (after every batch), `never` (left to the system), or an interval.
    #[serde(default, with = "Text::<FileFsync>")]
    pub fsync: FileFsync,
    /// Permissions of the files, in octal. Users who may read the files may also enter the directories that deltabus
    /// creates.
    #[serde(default, with = "Text::<Permissions>")]
    pub permissions: Permissions,
}

/// Permissions of a file: nine bits. The owner can always read and write.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default)]
pub struct Permissions(#[educe(Default = 0o640)] pub u32);

/// Rotation of files.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Rotate {
    /// Maximum size of a file; it is closed before it exceeds this. Only a single event may be larger.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 256 << 20)]
    pub max_bytes: u64,
    /// Number of closed files to keep, in all directories of the path; the oldest are removed first. 0 = all. Default: 30, or all if
    /// `keep_for` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub keep: Option<u32>,
    /// Time for which a closed file is kept after its last event. Older files are removed within an hour. "0s" = no limit.
    #[serde(with = "Text::<Duration>")]
    pub keep_for: Duration,
    /// Compression of closed files.
    pub compress: FileCompression,
}

impl Rotate {
    /// Number of closed files kept by default.
    const KEEP: u32 = 30;

    /// Maximum number of closed files. `None` = no limit.
    pub(crate) fn files_max(&self) -> Option<u32> {
        let default = if self.keep_for.is_zero() { Self::KEEP } else { 0 };
        Some(self.keep.unwrap_or(default)).filter(|files| *files > 0)
    }
}

/// The handler of type `file`.
pub(crate) struct FileHandler {
    options: FileOptions,
    formatter: Formatter,
    clock: fn() -> Timestamp,
    replaced: Replaced,
    open: Option<Open>,
    rotated: Rotated,
    buffer: Vec<u8>,
    /// First event of the last batch, if its delivery failed, and the number of its events that are in a closed file.
    partial: Option<(Sequence, usize)>,
}

/// The file that is being written.
struct Open {
    file: File,
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    /// Size of all complete lines, in bytes.
    len: u64,
    /// Set for a regular file; a pipe or a device cannot be truncated.
    regular: bool,
    /// Set if the file was written after the last sync.
    dirty: bool,
    /// Set if a failed write could not be undone.
    torn: bool,
    replaced: Replaced,
}

impl FileHandler {
    /// Makes the handler and opens its file, so that an invalid path is reported at the start. `replaced` is the token of the thread.
    pub(crate) fn new(
        options: FileOptions,
        formatter: impl Into<Formatter>,
        replaced: &Replaced,
    ) -> Result<Self, HandlerError> {
        Self::with_clock(options, formatter, Timestamp::now, replaced)
    }

    /// Opens the file as a test. Fails if a retry cannot help, for example because the path is a directory, or because this user
    /// has no right to write to the file. Ignores temporary problems, such as a full disk.
    ///
    /// # Errors
    /// Names the file and the error of the system.
    pub(crate) fn check(options: &FileOptions) -> Result<(), String> {
        use io::ErrorKind as Kind;
        let Ok(path) = path_at(&options.path, Timestamp::now()) else { return Ok(()) };
        if std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
            return Ok(()); // opening a pipe waits for its reader
        }
        let Err(error) = Open::at(path.clone(), options.permissions.0, &Replaced::default()) else { return Ok(()) };
        let is_permanent = matches!(
            error.kind(),
            Kind::PermissionDenied
                | Kind::NotADirectory
                | Kind::IsADirectory
                | Kind::AlreadyExists
                | Kind::ReadOnlyFilesystem
                | Kind::InvalidFilename
                | Kind::InvalidInput
        );
        if is_permanent { Err(format!("failed to open {}: {error}", path.display())) } else { Ok(()) }
    }

    fn with_clock(
        options: FileOptions,
        formatter: impl Into<Formatter>,
        clock: fn() -> Timestamp,
        replaced: &Replaced,
    ) -> Result<Self, HandlerError> {
        let rotated = Rotated::new(&options.path, options.rotate.as_ref(), clock);
        let (formatter, replaced, buffer) = (formatter.into(), replaced.clone(), Vec::new());
        let mut handler = Self { options, formatter, clock, replaced, open: None, rotated, buffer, partial: None };
        let path = handler.path_now()?;
        handler.open = Some(handler.open_at(&path)?);
        Ok(handler)
    }

    /// Opens a file, and warns if other users can read or change it. Also starts the compression and removal of closed files.
    fn open_at(&mut self, path: &Path) -> Result<Open, HandlerError> {
        let permissions = self.options.permissions.0;
        let open =
            Open::at(path.to_owned(), permissions, &self.replaced).map_err(|error| failed("open", path, &error))?;
        if open.regular
            && let Some(loose) = private_dir::looseness(path, permissions)
        {
            tracing::warn!("other users can read or change the events: {loose}");
        }
        self.rotated.look(path);
        Ok(open)
    }

    fn path_now(&self) -> Result<PathBuf, HandlerError> {
        path_at(&self.options.path, (self.clock)())
    }

    /// Opens the file for the current time, if necessary. Rotates the open file if `bytes` more would exceed `max_bytes`.
    fn prepare(&mut self, bytes: u64) -> Result<&mut Open, HandlerError> {
        let path = self.path_now()?;
        if self.open.as_ref().is_some_and(|open| open.path != path || open.torn) {
            self.finish()?;
        }
        if self.open.as_ref().is_some_and(|open| !open.is_untouched()) {
            tracing::warn!(path = %path.display(), "the file was moved, removed or changed; reopening it");
            self.open = None;
        }
        if let Some(open) = &self.open
            && open.regular
            && open.len > 0
            && open.len + bytes > self.max_bytes()
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

    fn max_bytes(&self) -> u64 {
        self.options.rotate.as_ref().map_or(u64::MAX, |rotate| rotate.max_bytes)
    }

    /// Appends the lines of a batch, which end at `ends`. A batch that is larger than a file continues in the next file. After a
    /// failure, the retry begins with the first event that is in no file.
    fn write(&mut self, lines: &[u8], ends: &[usize], first: Sequence) -> Result<(), HandlerError> {
        let mut done = self.partial.take().filter(|(batch, _)| *batch == first).map_or(0, |(_, done)| done);
        let always = self.options.fsync == FileFsync::Always;
        while let Some(rest @ [_, ..]) = ends.get(done..) {
            let start = if done == 0 { 0 } else { ends[done - 1] };
            let count = rest.partition_point(|end| (end - start) as u64 <= self.max_bytes()).max(1);
            let part = &lines[start..rest[count - 1]];
            let written = self
                .prepare(part.len() as u64)
                .and_then(|open| open.append(part, always).map_err(|error| failed("write to", &open.path, &error)));
            if let Err(error) = written {
                self.partial = Some((first, done));
                return Err(error);
            }
            done += count;
        }
        Ok(())
    }

    /// Closes the current file. Syncs it first, except with [`FileFsync::Never`].
    fn finish(&mut self) -> Result<(), HandlerError> {
        if self.options.fsync != FileFsync::Never {
            self.tick()?;
        }
        self.open = None;
        Ok(())
    }
}

/// Error text of a thread that hung, was replaced, and then continues. Now only the new thread may write to the file.
const REPLACED: &str = "this thread hung and was replaced";

impl Handler for FileHandler {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        if self.replaced.is_set() {
            return Err(HandlerError::Failed(REPLACED.to_owned()));
        }
        let events = notification.events();
        let Some(first) = events.first().map(|event| event.record.sequence) else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let line = |event| self.formatter.line(&mut buffer, event).map(|()| buffer.len());
        let ends: Result<Vec<_>, _> = events.iter().map(line).collect();
        let result = ends.map_err(HandlerError::from).and_then(|ends| self.write(&buffer, &ends, first));
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

    /// Syncs the file, even with [`FileFsync::Never`], and waits some seconds for running compressions.
    fn close(&mut self) -> Result<(), HandlerError> {
        let synced = self.tick();
        self.open = None;
        self.rotated.close();
        synced
    }
}

impl Open {
    fn at(path: PathBuf, permissions: u32, replaced: &Replaced) -> io::Result<Self> {
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
        let id = (metadata.dev(), metadata.ino());
        let mut len = 0;
        if regular {
            drop(file.lock_shared()); // waits while the file is compressed; not every file system has locks
            let metadata = std::fs::metadata(&path)?;
            if id != (metadata.dev(), metadata.ino()) {
                return Err(io::Error::other("it was just compressed or moved"));
            }
            len = mend_tail(&mut file, metadata.len(), &path, replaced)?;
        }
        Ok(Self { file, path, id, len, regular, dirty: false, torn: false, replaced: replaced.clone() })
    }

    /// Returns true if the file at the path is the open file, and unchanged since the last write.
    fn is_untouched(&self) -> bool {
        let found = || std::fs::metadata(&self.path).ok().map(|found| ((found.dev(), found.ino()), found.len()));
        !self.regular || found() == Some((self.id, self.len))
    }

    /// Appends all lines, or nothing.
    fn append(&mut self, lines: &[u8], sync: bool) -> io::Result<()> {
        let written = self.file.write_all(lines).and_then(|()| if sync { self.sync_data() } else { Ok(()) });
        if written.is_ok() {
            self.len += lines.len() as u64;
            self.dirty = !sync;
        } else {
            // A replaced thread must not truncate the file, as its replacement may have written to it.
            self.torn = self.regular && (self.replaced.is_set() || self.file.set_len(self.len).is_err());
        }
        written
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

/// Returns the permissions of a directory, from the permissions of its files. Users who may read the files may also enter the
/// directory.
fn of_directories(permissions: u32) -> u32 {
    permissions | (permissions & 0o444) >> 2
}

/// Makes the file end with a complete line, and returns the length of the file.
fn mend_tail(file: &mut File, len: u64, path: &Path, replaced: &Replaced) -> io::Result<u64> {
    let start = last_line_start(file, len)?;
    if start == len {
        return Ok(len);
    }
    let mut head = [0; EVENT_START.len()];
    let have = usize::try_from(len - start).unwrap_or(head.len()).min(head.len());
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut head[..have])?;
    if head[..have] == EVENT_START[..have] {
        if replaced.is_set() {
            return Err(io::Error::other(REPLACED)); // the incomplete line is being written by the replacement
        }
        tracing::warn!(path = %path.display(), bytes = len - start, "cut off half an event that a crash had left");
        file.set_len(start)?;
        return Ok(start);
    }
    file.write_all(b"\n")?;
    Ok(len + 1)
}

/// Returns the position after the last line break.
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

impl FileOptions {
    /// Returns the path at a fixed time, without `.` and `..`. Two templates with the same result write to the same file.
    pub(crate) fn identity(&self) -> Option<PathBuf> {
        let mut plain = PathBuf::new();
        for component in std::path::absolute(path_at(&self.path, EXAMPLE_TIME).ok()?).ok()?.components() {
            if component == Component::ParentDir {
                plain.pop();
            } else {
                plain.push(component);
            }
        }
        Some(plain)
    }

    /// Returns true if the handler can find the closed files of this path by their names.
    pub(crate) fn can_find_closed(&self) -> bool {
        path_at(&self.path, EXAMPLE_TIME).is_ok_and(|example| rotated::can_find(&self.path, &example))
    }
}

/// Time with a different number in each field: 2031-12-28T23:59:58Z.
const EXAMPLE_TIME: Timestamp = Timestamp::constant(1_956_268_798, 0);

/// Returns the directory of a path template that does not depend on the time: the part above the first `%`.
pub(crate) fn constant_directory(template: &str) -> &Path {
    let fixed = template.split('%').next().unwrap_or_default();
    Path::new(fixed.rsplit_once('/').map_or("", |(directory, _)| if directory.is_empty() { "/" } else { directory }))
}

/// Inserts the time in a path.
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
