//! Compression and removal of closed files, off the hot path.
//!
//! - A closed file has a name of the path template, with or without a [`SUFFIX`], and is not the current file. Files in the
//!   directories of earlier dates are closed files too.
//! - A file is removed if there are more than `keep` closed files, or if its last event is older than `keep_for`. The thread looks
//!   once an hour, because a handler without events closes no file.
//! - No closed file is ever overwritten. If a name is taken, because the template repeats (`%H`) or the clock was set back, the
//!   next name contains a time.
//! - A handler holds a shared lock on its current file; this thread takes an exclusive lock before it changes a file. So it never
//!   changes a file that is written, not even by a replaced thread or another process.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, tick};
use jiff::{SignedDuration, Timestamp, fmt::strtime, tz::TimeZone};
use rustix::{
    fs::{CWD, OFlags, RenameFlags, renameat_with},
    io::Errno,
};

use super::{FileCompression, Rotate, constant_directory};
use crate::{mutex::lock, private_dir};

/// Suffix of a file that was rotated by size: the time of the rotation. If such files are sorted by name, they are in order of
/// time.
const SUFFIX: &str = "%Y%m%dT%H%M%S.%6fZ";
/// Length of a [`SUFFIX`] with the dot before it.
const SUFFIX_LEN: usize = ".20261121T064003.123456Z".len();
const ZSTD_LEVEL: i32 = 3;
const COMPRESSED: &str = ".zst";
/// Suffix of an incomplete compressed file.
const HALF: &str = ".zst.part";
/// Time after which a closing handler leaves further files uncompressed. They are compressed after the next start.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Interval at which files are checked against `keep_for`.
const AGE_CHECK: Duration = Duration::from_hours(1);

/// Thread that compresses and removes closed files. `None` without rotation.
pub(super) struct Rotated(Option<Running>);

struct Running {
    shared: Arc<Shared>,
    wake: Sender<()>,
    thread: JoinHandle<()>,
}

/// State that the handler shares with the thread.
#[derive(Default)]
struct Shared {
    /// Path of the current file.
    current: Mutex<PathBuf>,
    /// Time after which the thread begins with no further file.
    deadline: OnceLock<Instant>,
}

impl Rotated {
    /// Starts the thread, if files are rotated.
    pub(super) fn new(template: &str, rotate: Option<&Rotate>, clock: fn() -> Timestamp) -> Self {
        let Some(rotate) = rotate else { return Self(None) };
        let shared = Arc::<Shared>::default();
        let (wake, woken) = bounded(1);
        let tidy = Tidy {
            template: Template::new(template),
            keep: rotate.files_max().map(|files| files as usize),
            keep_for: Some(rotate.keep_for).filter(|time| !time.is_zero()),
            compress: rotate.compress,
            clock,
            shared: shared.clone(),
        };
        let work = move || tidy.work(&woken);
        let thread = std::thread::Builder::new().name("rotated-files".to_owned()).spawn(work);
        let failed = |error: &io::Error| {
            tracing::error!(%error, "failed to start the thread that compresses and removes rotated files");
        };
        Self(thread.inspect_err(failed).ok().map(|thread| Running { shared, wake, thread }))
    }

    /// Asks the thread to compress closed files and to remove the oldest ones. `current` itself is not changed.
    pub(super) fn look(&self, current: &Path) {
        if let Some(Running { shared, wake, .. }) = &self.0 {
            current.clone_into(&mut lock(&shared.current));
            wake.try_send(()).ok(); // a full queue has the same request
        }
    }

    /// Waits until the requested work is done, or [`CLOSE_WITHIN`] has passed and the file in work is done. Ends the thread.
    pub(super) fn close(&mut self) {
        if let Some(Running { shared, wake, thread }) = self.0.take() {
            shared.deadline.get_or_init(close_by);
            drop(wake); // ends the thread
            drop(thread.join());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread ends at a time")]
fn close_by() -> Instant {
    Instant::now() + CLOSE_WITHIN
}

/// Returns true if closed files of this template can be found by their names. Some directives cannot be read back (`%q`), and
/// `%D` makes directories.
pub(super) fn can_find(template: &str, example: &Path) -> bool {
    let Template { directory, steps } = Template::new(template);
    let Ok(below) = example.strip_prefix(directory) else { return false };
    let names: Vec<_> = below.iter().map(|name| name.to_string_lossy()).collect();
    names.len() == steps.len() && steps.iter().zip(names).all(|(step, name)| matches(step, &name))
}

/// Renames a full file to its rotated name. If the name is taken, because the clock was set back, a later time is used.
pub(super) fn rename(path: &Path, now: Timestamp) -> io::Result<()> {
    for name in stamped(path, now) {
        let name = name?;
        if !is_taken(&with_suffix(&name, COMPRESSED)) {
            match rename_new(path, &name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                renamed => return renamed,
            }
        }
    }
    Err(io::Error::other("no free name is left"))
}

/// Path template, split for the search of its files.
struct Template {
    /// Directory that does not depend on the time.
    directory: PathBuf,
    /// Directories below it, and the name of the file.
    steps: Vec<String>,
}

/// Work of the thread.
struct Tidy {
    template: Template,
    keep: Option<usize>,
    keep_for: Option<Duration>,
    compress: FileCompression,
    clock: fn() -> Timestamp,
    shared: Arc<Shared>,
}

/// Closed file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Closed {
    modified: SystemTime,
    path: PathBuf,
    /// Path without suffixes.
    base: PathBuf,
    /// Time in the name.
    rotated: Option<Timestamp>,
    is_compressed: bool,
}

impl Template {
    fn new(template: &str) -> Self {
        let directory = constant_directory(template);
        let below = Path::new(template).strip_prefix(directory).unwrap_or(Path::new(template));
        let steps = below.iter().filter_map(|step| step.to_str()).map(str::to_owned).collect();
        Self { directory: directory.to_owned(), steps }
    }
}

impl Tidy {
    /// Works at each request, and once an hour if the age of files is limited. Returns when the sender is dropped.
    fn work(&self, woken: &Receiver<()>) {
        let hourly = if self.keep_for.is_some() { tick(AGE_CHECK) } else { never() };
        loop {
            select! {
                recv(woken) -> request => match request {
                    Ok(()) => self.run(),
                    Err(_) => return,
                },
                recv(hourly) -> _ => self.run(),
            }
        }
    }

    /// Removes closed files older than `keep_for`, and the oldest ones until `keep` are left. Compresses the others, if requested.
    fn run(&self) {
        let mut files = Vec::new();
        find(&self.template.directory, &self.template.steps, &mut files);
        let is_timed = self.template.steps.iter().any(|step| step.contains('%'));
        files.retain(|file| (is_timed || file.rotated.is_some()) && !self.is_current(&file.path));
        files.sort();
        let old = self.keep_for.and_then(|time| SystemTime::from((self.clock)()).checked_sub(time));
        let too_old = old.map_or(0, |old| files.partition_point(|file| file.modified < old));
        let too_many = self.keep.map_or(0, |keep| files.len().saturating_sub(keep));
        for file in files.drain(..too_old.max(too_many)) {
            warn_if_failed(&file.path, self.remove(&file.path));
        }
        for file in files {
            if self.compress == FileCompression::None || self.is_late() {
                break;
            }
            if !file.is_compressed {
                warn_if_failed(&file.path, self.compress(&file));
            }
        }
    }

    fn is_current(&self, path: &Path) -> bool {
        *lock(&self.shared.current) == path
    }

    #[expect(clippy::disallowed_methods, reason = "the thread ends at a time")]
    fn is_late(&self) -> bool {
        self.shared.deadline.get().is_some_and(|deadline| *deadline <= Instant::now())
    }

    /// Opens and locks a closed file. `None` if it is in use.
    fn claim(&self, path: &Path) -> io::Result<Option<File>> {
        let claimed = claim(path)?;
        Ok(claimed.filter(|_| !self.is_current(path))) // where locks do not work, the path still protects the current file
    }

    /// Removes a file, and its directories of an earlier date if they are empty now.
    fn remove(&self, path: &Path) -> io::Result<()> {
        let Some(_claimed) = self.claim(path)? else { return Ok(()) };
        fs::remove_file(path)?;
        let of_dates = path.ancestors().skip(1).take_while(|directory| *directory != self.template.directory);
        of_dates
            .take(self.template.steps.len() - 1)
            .map_while(|directory| fs::remove_dir(directory).ok())
            .for_each(drop);
        Ok(())
    }

    /// Replaces a file with its compressed copy. A crash can leave both the file and an incomplete copy (`.part`).
    fn compress(&self, closed: &Closed) -> io::Result<()> {
        let Some(file) = self.claim(&closed.path)? else { return Ok(()) };
        let part = with_suffix(&closed.path, HALF);
        let done = closed.replace(&file, &part);
        if done.is_err() {
            fs::remove_file(part).ok(); // a full disk needs the room
        }
        done
    }
}

impl Closed {
    /// Compresses the open file to `part`, which gets the same modification time, and replaces the file with it.
    fn replace(&self, file: &File, part: &Path) -> io::Result<()> {
        let Self { modified, path, base, rotated, .. } = self;
        let out = private_dir::file().create_new(true).open(part)?; // follows no link
        out.set_permissions(file.metadata()?.permissions())?;
        zstd::stream::copy_encode(file, &out, ZSTD_LEVEL)?;
        out.set_modified(*modified)?;
        out.sync_all()?;
        let written = rotated.or_else(|| Timestamp::try_from(*modified).ok()).unwrap_or_default();
        let later =
            stamped(base, written).filter(|name| name.as_ref().ok().is_none_or(|name| name != path && !is_taken(name)));
        for name in std::iter::once(Ok(path.clone())).chain(later) {
            match rename_new(part, &with_suffix(&name?, COMPRESSED)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                renamed => {
                    renamed?;
                    sync_directory(path)?; // the copy must be on disk before the file is removed
                    return fs::remove_file(path);
                }
            }
        }
        Err(io::Error::other("no free name is left"))
    }
}

/// Adds the files below a directory whose names match the steps of a template. Removes incomplete files that a crash has left.
fn find(directory: &Path, steps: &[String], found: &mut Vec<Closed>) {
    let Some((step, below)) = steps.split_first() else { return };
    if !below.is_empty() && !step.contains('%') {
        return find(&directory.join(step), below, found);
    }
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = match fs::read_dir(listed) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return warn_if_failed(listed, Err(error)),
    };
    for entry in entries.filter_map(Result::ok) {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        let path = directory.join(&name);
        if !below.is_empty() {
            if kind.is_dir() && matches(step, &name) {
                find(&path, below, found);
            }
        } else if let Some(of) = name.strip_suffix(HALF) {
            if read_name(of, step).is_some() {
                warn_if_failed(&path, remove_half(&path, &directory.join(of)));
            }
        } else if kind.is_file()
            && let Some((base, rotated)) = read_name(name.strip_suffix(COMPRESSED).unwrap_or(&name), step)
            && let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified())
        {
            let (base, is_compressed) = (directory.join(base), name.ends_with(COMPRESSED));
            found.push(Closed { modified, path, base, rotated, is_compressed });
        }
    }
}

/// Splits the name of a file, without the suffix of compression, into its name in the template and the time of its rotation.
/// `None` if the file does not belong to the template.
fn read_name<'a>(name: &'a str, step: &str) -> Option<(&'a str, Option<Timestamp>)> {
    let split = name.len().checked_sub(SUFFIX_LEN).and_then(|at| name.split_at_checked(at));
    let stamp = split.and_then(|(base, suffix)| Some((base, rotation_time(suffix.strip_prefix('.')?)?)));
    match stamp {
        Some((base, time)) if matches(step, base) => Some((base, Some(time))),
        _ => matches(step, name).then_some((name, None)),
    }
}

/// Returns true if a template with the time of some moment is this name.
fn matches(step: &str, name: &str) -> bool {
    if step.contains('%') { strtime::parse(step, name).is_ok() } else { step == name }
}

/// Reads a [`SUFFIX`].
fn rotation_time(text: &str) -> Option<Timestamp> {
    strtime::parse(SUFFIX, text).ok()?.to_datetime().ok()?.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp())
}

/// Returns the names of a file with the time of its rotation, and with later times.
fn stamped(path: &Path, time: Timestamp) -> impl Iterator<Item = io::Result<PathBuf>> {
    (0..i64::MAX).map(move |micros| {
        let time = time.checked_add(SignedDuration::from_micros(micros)).map_err(io::Error::other)?;
        let suffix = strtime::format(SUFFIX, &time.to_zoned(TimeZone::UTC)).map_err(io::Error::other)?;
        Ok(with_suffix(path, &format!(".{suffix}")))
    })
}

/// Opens and locks a file, without following a link. `None` if another thread or process has locked it.
fn claim(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)), // not every file system has locks
    }
}

/// Removes an incomplete compressed file, unless a thread is writing it.
fn remove_half(path: &Path, original: &Path) -> io::Result<()> {
    match claim(original) {
        Ok(None) => Ok(()),
        Ok(Some(_)) | Err(_) => fs::remove_file(path),
    }
}

/// Renames a file.
///
/// # Errors
/// Fails with `AlreadyExists` if the new name is taken.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can check and rename in one step.
        Err(Errno::INVAL | Errno::NOSYS) if is_taken(to) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Returns true if a name exists, even as a link to nothing.
fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn sync_directory(of: &Path) -> io::Result<()> {
    let directory = of.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn warn_if_failed(path: &Path, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(path = %path.display(), %error, "failed to compress or remove closed files");
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
