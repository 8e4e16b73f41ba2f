//! What a journal with a store has beside its core: the store, whether it takes writes, and what the committer is told.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tracing::{error, info};

use super::{
    ReaderId, Sequence, UnitId,
    memory::Durability,
    retention::Retention,
    store::{CompactionStep, Recovered, Store, StoreError, StoreOptions, StoredUnit},
};
use crate::{
    histogram::{Histogram, Snapshot},
    mutex::lock,
};

/// Upper bounds for the duration of an fsync, in seconds.
const SYNC_BOUNDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// When what was written becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// As often as the disk allows; only what is durable is handed out.
    #[default]
    Group,
    /// So often; what was handed out since may be lost with the machine.
    Interval(Duration),
}

/// What happens when the state has `max_bytes`, readers wait for all of it, and merging that does not help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Appends are refused until there is room.
    #[default]
    StopReading,
    /// The oldest of what waits is dropped, counted and named.
    Drop,
}

/// How a journal with a store is run; `[state]` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// See [`Fsync`].
    pub fsync: Fsync,
    /// How long records are kept that nobody waits for.
    pub retention: Duration,
    /// How many bytes the state shall have on disk at most, about. At this bound records go before their time, and what
    /// waits for readers is merged.
    pub max_bytes: u64,
    /// See [`OnFull`].
    pub on_full: OnFull,
    /// How many bytes of bodies may be written and not durable; then appends wait for the disk.
    pub unsynced_max_bytes: usize,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            fsync: Fsync::Group,
            retention: Duration::from_hours(24),
            max_bytes: 4 << 30,
            on_full: OnFull::StopReading,
            unsynced_max_bytes: 64 << 20,
        }
    }
}

/// Why a journal takes no appends now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWritable {
    /// The store failed; it is tried again with growing delays.
    #[error("stopped reading: {0}")]
    Failed(String),
    /// The state has its maximum of bytes, readers wait for what is in it, and merging that has not made room.
    #[error(
        "stopped reading: the state has {bytes} bytes of `[state] max_bytes` = {max_bytes}, although what waits for \
         handlers is merged; the slowest is {slowest:?}: let it catch up, remove it, or raise `max_bytes`"
    )]
    Full {
        /// What it has.
        bytes: u64,
        /// What it may have.
        max_bytes: u64,
        /// The reader that waits for the oldest record.
        slowest: String,
    },
    /// More was written than the disk makes durable.
    #[error("waiting for the disk: {bytes} bytes are written and not durable yet")]
    Behind {
        /// How many.
        bytes: usize,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// A journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenJournalError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its thread could not be started.
    #[error("failed to start the thread that commits the journal: {0}")]
    Thread(#[from] std::io::Error),
}

/// What there is to see of a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalHealth {
    /// There is a store.
    pub stored: bool,
    /// Why it takes no appends; `None` where it does.
    pub not_writable: Option<NotWritable>,
    /// Bytes on disk, about.
    pub disk_bytes: u64,
    /// The first record kept.
    pub first: Sequence,
    /// The first record needed.
    pub needed: Sequence,
    /// The release mark.
    pub released: Sequence,
    /// The durable mark.
    pub durable: Sequence,
    /// The last record appended.
    pub last: Sequence,
    /// How often something was made durable.
    pub syncs: u64,
    /// How long the last time took.
    pub last_sync: Duration,
    /// Duration of each fsync, in seconds.
    pub sync_duration: Snapshot,
    /// How often the store has failed.
    pub failures: u64,
}

/// Why no appends are taken, each for itself; the first that is there is shown.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    closed: bool,
    failed: Option<NotWritable>,
    full: Option<NotWritable>,
    behind: Option<NotWritable>,
}

impl Obstacles {
    pub(super) fn first(&self) -> Option<NotWritable> {
        let closed = self.closed.then_some(NotWritable::Closed);
        closed.or_else(|| self.failed.clone()).or_else(|| self.full.clone()).or_else(|| self.behind.clone())
    }
}

/// What the committer shall do.
#[expect(clippy::struct_excessive_bools, reason = "each is called for by itself")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    /// Something was written.
    pub(super) sync: bool,
    /// A reader has something to save.
    pub(super) save: bool,
    /// The store has failed.
    pub(super) repair: bool,
    /// End.
    pub(super) end: bool,
}

impl Calls {
    fn with(self, other: Self) -> Self {
        Self {
            sync: self.sync || other.sync,
            save: self.save || other.save,
            repair: self.repair || other.repair,
            end: self.end || other.end,
        }
    }
}

/// How the committer is called: a call that was made before needs no lock held long, and wakes nobody.
#[derive(Debug, Default)]
pub(super) struct Bell {
    calls: Mutex<Calls>,
    rung: Condvar,
}

impl Bell {
    pub(super) fn ring(&self, what: impl FnOnce(&mut Calls)) {
        let mut calls = lock(&self.calls);
        let before = *calls;
        what(&mut calls);
        if *calls != before {
            self.rung.notify_one();
        }
    }

    /// Waits until something is called that is not in `known`, or until `at_most` has passed; takes what was called.
    pub(super) fn wait(&self, known: Calls, at_most: Duration) -> Calls {
        let calls = lock(&self.calls);
        let is_known = |calls: &mut Calls| calls.with(known) == known;
        let (mut calls, _) =
            self.rung.wait_timeout_while(calls, at_most, is_known).unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut calls)
    }
}

/// What was seen of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) disk_bytes: u64,
    pub(super) last_sync: Duration,
    pub(super) failures: u64,
}

pub(super) struct Disk {
    pub(super) store: Store,
    pub(super) options: JournalOptions,
    /// Held for reading while something is appended, for writing while that must not be.
    gate: RwLock<()>,
    /// Held while states of readers are taken and saved: the last taken is the last saved. In it a step of a compaction that
    /// failed, and is written or not: it comes before all that is saved then.
    pub(super) saving: Mutex<Option<(ReaderId, CompactionStep)>>,
    pub(super) units: Mutex<BTreeMap<UnitId, StoredUnit>>,
    obstacles: watch::Sender<Obstacles>,
    pub(super) bell: Bell,
    pub(super) figures: Mutex<Figures>,
    pub(super) sync_duration: Histogram,
    pub(super) retention: Mutex<Retention>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("dir", &self.store.dir()).finish_non_exhaustive()
    }
}

impl Disk {
    pub(super) fn open(
        dir: &Path,
        mut store_options: StoreOptions,
        options: JournalOptions,
    ) -> Result<(Self, Recovered), StoreError> {
        store_options.group_fsync = options.fsync == Fsync::Group;
        let (store, recovered) = Store::open(dir, &store_options)?;
        let units = recovered.units.iter().map(|unit| (unit.id, unit.clone())).collect();
        let retention = Retention::new(options.retention);
        let disk = Self {
            store,
            options,
            gate: RwLock::default(),
            saving: Mutex::default(),
            units: Mutex::new(units),
            obstacles: watch::Sender::default(),
            bell: Bell::default(),
            figures: Mutex::default(),
            sync_duration: Histogram::new(SYNC_BOUNDS),
            retention: Mutex::new(retention),
        };
        Ok((disk, recovered))
    }

    pub(super) fn durability(&self) -> Durability {
        match self.options.fsync {
            Fsync::Group => Durability::Group,
            Fsync::Interval(_) => Durability::Interval,
        }
    }

    /// Lets an append pass, until what it returns is dropped.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, NotWritable> {
        match self.not_writable() {
            Some(why) => Err(why),
            None => Ok(self.gate.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Waits until no append is under way, and lets none pass until what it returns is dropped.
    pub(super) fn shut(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn not_writable(&self) -> Option<NotWritable> {
        self.obstacles.borrow().first()
    }

    pub(super) async fn writable(&self) {
        let mut obstacles = self.obstacles.subscribe();
        if obstacles.wait_for(|obstacles| obstacles.first().is_none()).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Makes durable what was written before.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        #[expect(clippy::disallowed_methods, reason = "a shell: how long the disk takes is to be seen")]
        let begin = Instant::now();
        self.store.sync()?;
        let took = begin.elapsed();
        self.sync_duration.observe(took);
        lock(&self.figures).last_sync = took;
        Ok(())
    }

    pub(super) fn close(&self) {
        self.obstacles.send_modify(|obstacles| obstacles.closed = true);
    }

    /// Notes that the store has failed, and calls for help.
    pub(super) fn fail(&self, what: &impl fmt::Display) -> NotWritable {
        if self.obstacles.borrow().closed {
            return NotWritable::Closed;
        }
        let why = NotWritable::Failed(what.to_string());
        let mut is_new = false;
        self.obstacles.send_modify(|obstacles| {
            is_new = obstacles.failed.is_none();
            obstacles.failed = Some(why.clone());
        });
        if is_new {
            lock(&self.figures).failures += 1;
            error!(dir = %self.store.dir().display(), error = %what, "the state cannot be written, stopped reading");
        }
        self.bell.ring(|calls| calls.repair = true);
        why
    }

    /// Notes that the store works again.
    pub(super) fn heal(&self) {
        self.obstacles.send_modify(|obstacles| obstacles.failed = None);
        info!(dir = %self.store.dir().display(), "the state can be written again");
    }

    /// Notes whether the state has all the bytes that it may have.
    pub(super) fn set_full(&self, full: Option<NotWritable>) {
        self.obstacles.send_if_modified(|obstacles| {
            let (is_news, is_full) = (obstacles.full.is_some() != full.is_some(), full.is_some());
            match &full {
                Some(why) if is_news => error!(error = %why, "the state is full"),
                None if is_news => info!("there is room in the state again"),
                _ => {}
            }
            obstacles.full = full;
            is_news || is_full
        });
    }

    /// Notes how many bytes are not durable yet; nothing is taken from the bound on until half of it is left.
    pub(super) fn set_unsynced(&self, bytes: usize) {
        let max = self.options.unsynced_max_bytes;
        self.obstacles.send_if_modified(|obstacles| {
            let was_behind = obstacles.behind.is_some();
            let is_behind = bytes > if was_behind { max / 2 } else { max };
            obstacles.behind = is_behind.then_some(NotWritable::Behind { bytes });
            was_behind != is_behind
        });
    }
}
