//! Opening, reopening and closing of a store.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, Permissions, TryLockError},
    io::{self, Seek as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use fjall::PersistMode;
use tracing::{info, warn};

use super::{
    DB, Fault, Files, Inner, Recovered, State, Store, StoreError, compact,
    parts::FORMAT_FILE,
    read,
    retain::FIRST_KEY,
    rewrite,
    seal::{self, Facts, Sealer, replace},
    state, timeline,
};
use crate::{
    journal::{Sequence, UnitId, timeline::TimelinePage},
    mutex::lock,
    object::packer::Packer,
    private_dir::{self, OWNER_ALONE},
};

const CLUSTER_KEY: &[u8] = b"cluster";
const JOURNAL_ID_KEY: &[u8] = b"journal_id";
/// Key of a byte with two flags: `GROUP_FSYNC` is set if the last run was opened with `group_fsync`, `CLEAN` if the last run ended
/// cleanly.
const RUN_KEY: &[u8] = b"run";
const CLEAN: u8 = 1;
const GROUP_FSYNC: u8 = 1 << 1;

/// Newest format of a state directory. Format 2 has one more keyspace than format 1. Opening a store of format 1 creates this
/// keyspace empty, and converts no heads.
const FORMAT: u32 = 2;

impl Store {
    /// Opens the store in `dir`, which is created if absent. Reads fjall's journal file, up to about 100 MB. The store holds the lock
    /// of `dir` until [`Store::close`], or until its last clone is dropped. Set `group_fsync` if this run hands out only durable
    /// appends. Otherwise handed-out appends may be lost: if this run ends uncleanly, the next one gets a new journal id.
    pub fn open(dir: &Path, group_fsync: bool) -> Result<(Self, Recovered), StoreError> {
        // Messages name the whole path, since a relative one leads to other places from other working directories.
        let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        open(dir, group_fsync).map_err(|fault| fault.tell(dir, "open the store"))
    }

    /// Binds the store to a cluster on the first call. Later calls fail if the cluster is another one.
    pub fn bind(&self, cluster_uid: &str) -> Result<(), StoreError> {
        self.with("store the cluster uid", |_, files| {
            let Some(bound_to) = files.meta.get(CLUSTER_KEY)? else {
                let mut batch = files.db.batch();
                batch.insert(&files.meta, CLUSTER_KEY, cluster_uid.as_bytes());
                files.commit(batch)?;
                return Ok(files.db.persist(PersistMode::SyncAll)?);
            };
            if *bound_to == *cluster_uid.as_bytes() {
                return Ok(());
            }
            let bound_to = String::from_utf8_lossy(&bound_to).into_owned();
            Err(Fault::OtherCluster { bound_to, found: cluster_uid.to_owned() })
        })
    }

    /// Closes the files after an error, and opens them again. First waits for running calls. Fails if the opened files lack a
    /// successful append; `reopen` may then be called again.
    pub fn reopen(&self) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let mut state = inner.files.write().unwrap_or_else(PoisonError::into_inner);
        let reopened = if matches!(*state, State::Closed) {
            Err(Fault::Closed)
        } else {
            // drops fjall's files first, which releases fjall's own lock
            *state = State::Failed;
            *lock(&inner.journal) = None;
            open_again(inner).map(|files| *state = State::Open(files))
        };
        reopened.map_err(|fault| fault.tell(self.dir(), "open the store again"))
    }

    /// Makes everything durable, marks the run as cleanly ended, and releases the directory. Every later call fails.
    pub fn close(&self) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let mut state = inner.files.write().unwrap_or_else(PoisonError::into_inner);
        let closed = match &*state {
            State::Open(files) => end(inner, files),
            State::Failed => Err(Fault::Failed),
            State::Closed => Ok(()),
        };
        *state = State::Closed;
        *lock(&inner.journal) = None;
        *lock(&inner.lock) = None;
        closed.map_err(|fault| fault.tell(self.dir(), "close the store"))
    }
}

fn open(dir: &Path, group_fsync: bool) -> Result<(Store, Recovered), Fault> {
    make_private(dir)?;
    let taken = lock_dir(dir)?;
    rewrite::recover(dir)?;
    let earlier = seal::read(dir)?;
    if earlier.is_some() {
        seal::check_files(dir)?;
    }
    let format = format_of(dir)?;
    let files = Files::open(&dir.join(DB))?;
    let (mut recovered, forgotten) = begin(dir, &files, format, group_fsync, earlier.as_ref())?;
    let facts = Facts::new(&recovered.journal_id, recovered.last.0, &recovered.readers);
    let compacted = compact::recover(&files, &mut recovered.readers)?;
    let packers = dictionaries(&files)?;
    let sealer = Sealer::new(facts, earlier);
    seal_or_warn(&sealer, dir);
    let inner = Inner {
        dir: dir.to_owned(),
        lock: Mutex::new(Some(taken)),
        files: RwLock::new(State::Open(files)),
        packers: RwLock::new(packers),
        recent: Mutex::default(),
        forgotten: Mutex::new(forgotten),
        compacted: Mutex::new(compacted),
        first: AtomicU64::new(recovered.first.0),
        dropped: AtomicU64::new(0),
        last: AtomicU64::new(recovered.last.0),
        synced: AtomicU64::new(recovered.last.0),
        sync_failed: AtomicBool::new(false),
        journal: Mutex::new(None),
        retaining: Mutex::new(()),
        sealer,
    };
    Ok((Store { inner: Arc::new(inner) }, recovered))
}

/// Locks a state directory until the returned file is closed, or the process ends. If another process has the lock, the error
/// contains the id of that process.
fn lock_dir(dir: &Path) -> Result<File, Fault> {
    let mut file = private_dir::file().read(true).create(true).truncate(false).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let owner = io::read_to_string(&file).ok();
            return Err(Fault::Locked(owner.and_then(|owner| owner.trim().parse().ok())));
        }
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

fn seal_or_warn(sealer: &Sealer, dir: &Path) {
    if let Err(error) = sealer.seal(dir) {
        warn!(dir = %dir.display(), %error, "cannot write the seal of the state; the previous one is kept");
    }
}

/// Creates a directory for this user alone. Warns if an existing directory is open to others.
fn make_private(dir: &Path) -> io::Result<()> {
    private_dir::make(dir)?;
    if dir.parent().is_some_and(private_dir::belongs_to_a_group) {
        // Kubernetes gives the volume's group access again at each mount. If the permissions cannot be set, the next lines warn.
        drop(fs::set_permissions(dir, Permissions::from_mode(OWNER_ALONE)));
    }
    if let Some(loose) = private_dir::looseness(dir, OWNER_ALONE) {
        warn!("other users can read or change the state: {loose}");
    }
    Ok(())
}

/// Reads the format of a directory. Writes the newest format into a new directory.
fn format_of(dir: &Path) -> Result<u32, Fault> {
    let path = dir.join(FORMAT_FILE);
    let known = FORMAT;
    let text = match crate::regular_file::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !dir.join(DB).exists() => {
            write_format(dir)?;
            return Ok(known);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    match text.trim().parse() {
        Ok(found) if found > known => Err(Fault::NewerFormat { found, known }),
        Ok(found) if found > 0 => Ok(found),
        _ => Err(Fault::corrupt(path, "expected a format number")),
    }
}

fn write_format(dir: &Path) -> io::Result<()> {
    replace(dir, FORMAT_FILE, &FORMAT.to_string())?;
    File::open(dir)?.sync_all()
}

/// Reads the content of the store, and notes the start of a run. Also returns the forgotten units.
fn begin(
    dir: &Path,
    files: &Files,
    format: u32,
    group_fsync: bool,
    sealed: Option<&Facts>,
) -> Result<(Recovered, HashSet<UnitId>), Fault> {
    let (first, last) = bounds(files)?;
    let readers = state::readers(files)?;
    let earlier_id = files.meta.get(JOURNAL_ID_KEY)?;
    if let Some(sealed) = sealed {
        let id = earlier_id.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        if let Some(what) = sealed.lost(&Facts::new(&id, last, &readers)) {
            return Err(Fault::Lost(what));
        }
    }
    if format < FORMAT {
        // If the process ends between these steps, the next start repeats them.
        files.db.persist(PersistMode::SyncAll)?;
        files.flush()?;
        write_format(dir)?;
        info!(dir = %dir.display(), from = format, to = FORMAT, "upgraded the state of an earlier version");
    }
    let (units, forgotten) = state::units(files)?;
    let run = files.meta.get(RUN_KEY)?.and_then(|run| run.first().copied());
    let clean = run.is_none_or(|run| run & CLEAN != 0);
    let keeps_its_tail = run.is_none_or(|run| run & (CLEAN | GROUP_FSYNC) != 0);
    let known_id = earlier_id.filter(|_| keeps_its_tail);
    let journal_id = known_id.and_then(|id| String::from_utf8(id.to_vec()).ok());
    let journal_id = journal_id.unwrap_or_else(|| format!("{:012x}", rand::random::<u64>() >> 16));
    let mut batch = files.db.batch();
    batch.insert(&files.meta, JOURNAL_ID_KEY, journal_id.as_bytes());
    batch.insert(&files.meta, RUN_KEY, [if group_fsync { GROUP_FSYNC } else { 0 }]);
    files.commit(batch)?;
    files.db.persist(PersistMode::SyncAll)?;
    let timeline = match timeline::last_page(files)? {
        Some(page) => page,
        None => TimelinePage::beginning(Sequence(first), read::first_micros(files, first)?),
    };
    let tail = read::timeline_tail(files, timeline.last().0)?;
    let (last, first) = (Sequence(last), Sequence(first));
    let recovered = Recovered { journal_id, last, first, units, readers, clean, timeline, tail };
    Ok((recovered, forgotten))
}

/// Returns the first position that is kept, and the last one that was used.
pub(super) fn bounds(files: &Files) -> Result<(u64, u64), Fault> {
    let first = files.meta.get(FIRST_KEY)?.and_then(|first| read::sequence_of(&first)).unwrap_or(1);
    let last = match files.records.last_key_value() {
        Some(entry) => {
            let key = entry.key()?;
            read::sequence_of(&key).ok_or_else(|| read::unreadable(files, &key))?
        }
        None => 0,
    };
    Ok((first, last.max(first - 1)))
}

fn dictionaries(files: &Files) -> Result<HashMap<UnitId, Arc<Packer>>, Fault> {
    let mut packers: HashMap<UnitId, Arc<Packer>> = HashMap::new();
    for entry in files.dictionaries.iter() {
        let (key, bytes) = entry.into_inner()?;
        let bad = || Fault::corrupt(files.dictionaries.path(), format!("the dictionary {key:02x?} is unreadable"));
        let unit = key.first_chunk::<4>().map(|unit| UnitId(u32::from_be_bytes(*unit))).ok_or_else(bad)?;
        let packer = packers.entry(unit).or_insert_with(|| Arc::new(Packer::of_store()));
        if !packer.restore(&bytes) {
            return Err(bad());
        }
    }
    Ok(packers)
}

fn open_again(inner: &Inner) -> Result<Files, Fault> {
    let files = Files::open(&inner.dir.join(DB))?;
    let (_, last) = bounds(&files)?;
    let appended = inner.last.load(SeqCst);
    if last < appended {
        let what = format!("records up to {appended} were written, but only those up to {last} exist");
        return Err(Fault::corrupt(inner.dir.join(DB), what));
    }
    // After a failed sync the page cache may mark pages as written that are not on disk. So the data is written again, into
    // new files.
    if inner.sync_failed.load(SeqCst) {
        files.flush()?;
    }
    files.db.persist(PersistMode::SyncAll)?;
    inner.sync_failed.store(false, SeqCst);
    inner.last.fetch_max(last, SeqCst);
    Ok(files)
}

/// Syncs everything, and then marks the end as clean.
pub(super) fn end(inner: &Inner, files: &Files) -> Result<(), Fault> {
    inner.sync()?;
    let run = files.meta.get(RUN_KEY)?.and_then(|run| run.first().copied()).unwrap_or_default();
    let mut batch = files.db.batch();
    batch.insert(&files.meta, RUN_KEY, [run | CLEAN]);
    files.commit(batch)?;
    files.db.persist(PersistMode::SyncAll)?;
    seal_or_warn(&inner.sealer, &inner.dir);
    Ok(())
}
