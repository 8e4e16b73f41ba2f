//! The disk side of a journal with a store: the store, whether it takes writes, and calls of the committer.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{error, info};

use super::{
    ReaderId, Sequence, UnitId,
    memory::Durability,
    retention::Retention,
    store::{CompactionStep, Recovered, Store, StoreError, StoredUnit},
};
use crate::{
    histogram::{Histogram, HistogramSnapshot},
    mutex::lock,
};

/// Upper bounds for the duration of an fsync, in seconds.
const SYNC_BOUNDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Moment at which written records become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// As often as the disk allows; only what is durable is handed out.
    #[default]
    Group,
    /// At this interval. What was handed out since may be lost with the machine.
    Interval(Duration),
}

/// What happens when the directory is as large as it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The API server is not read until handlers have taken what waits for them.
    #[default]
    StopReading,
    /// The oldest changes are dropped, counted and named.
    Drop,
}

/// Options of a journal with a store: `[state]` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// See [`Fsync`].
    pub fsync: Fsync,
    /// Time that records are kept for which no reader waits.
    pub retention: Duration,
    /// Approximate limit of the state on disk, in bytes. At this limit records are removed early, and those that wait for
    /// readers are coalesced.
    pub max_bytes: u64,
    /// See [`OnFull`].
    pub on_full: OnFull,
    /// Bytes of bodies that may be written and not durable. Beyond it appends wait for the disk.
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

/// Reason why a journal takes no appends now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWritable {
    /// The store failed. It is tried again with growing delays.
    #[error("stopped reading: {0}")]
    Failed(String),
    /// The state has `max_bytes`, readers wait for what is in it, and coalescing that has not made room.
    #[error(
        "stopped reading: the state has {bytes} bytes of `[state] max_bytes` = {max_bytes}, although what waits for \
         handlers is merged; the slowest is {slowest:?}: let it catch up, remove it, or raise `max_bytes`"
    )]
    Full {
        /// Its size.
        bytes: u64,
        /// Its limit.
        max_bytes: u64,
        /// The reader that waits for the oldest record.
        slowest: String,
    },
    /// More was written than the disk makes durable.
    #[error("waiting for the disk: {bytes} bytes are written and not durable yet")]
    Behind {
        /// Bytes that are not durable.
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

/// Figures about a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalHealth {
    /// There is a store.
    pub stored: bool,
    /// Reason why it takes no appends; `None` where it does.
    pub not_writable: Option<NotWritable>,
    /// Approximate bytes on disk.
    pub disk_bytes: u64,
    /// The first record kept.
    pub first: Sequence,
    /// The first record needed.
    pub needed: Sequence,
    /// The released watermark.
    pub released: Sequence,
    /// The durable watermark.
    pub durable: Sequence,
    /// The last record appended.
    pub last: Sequence,
    /// Count of fsyncs.
    pub syncs: u64,
    /// Duration of the last fsync.
    pub last_sync: Duration,
    /// Duration of each fsync, in seconds.
    pub sync_duration: HistogramSnapshot,
    /// Count of failures of the store.
    pub failures: u64,
}

/// Reasons why no appends are taken, each on its own. The first that is present is shown.
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

/// Work that the committer is called for: bits.
pub(super) mod calls {
    /// Something was written.
    pub(in crate::journal) const SYNC: u8 = 1;
    /// A reader has something to save.
    pub(in crate::journal) const SAVE: u8 = 1 << 1;
    /// The store has failed.
    pub(in crate::journal) const REPAIR: u8 = 1 << 2;
    /// The committer shall end.
    pub(in crate::journal) const END: u8 = 1 << 3;
}

/// Calls of the committer. One that was made before needs no lock held long, and wakes nothing.
#[derive(Debug, Default)]
pub(super) struct Bell {
    calls: Mutex<u8>,
    rung: Condvar,
}

impl Bell {
    pub(super) fn ring(&self, call: u8) {
        let mut calls = lock(&self.calls);
        if *calls & call != call {
            *calls |= call;
            self.rung.notify_one();
        }
    }

    pub(super) fn clear(&self, call: u8) {
        *lock(&self.calls) &= !call;
    }

    /// Waits for a call that is not in `known`, up to `at_most`. Takes all calls.
    pub(super) fn wait(&self, known: u8, at_most: Duration) -> u8 {
        let is_known = |calls: &mut u8| *calls & !known == 0;
        let waited = self.rung.wait_timeout_while(lock(&self.calls), at_most, is_known);
        let (mut calls, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut calls)
    }
}

pub(super) struct Disk {
    pub(super) store: Store,
    pub(super) options: JournalOptions,
    /// Held for reading while something is appended, for writing while that must not be.
    gate: RwLock<()>,
    /// Held while states of readers are taken and saved: the last taken is the last saved. It holds a failed step of a
    /// compaction, which may be written or not, and is written again before anything else is saved.
    pub(super) saving: Mutex<Option<(ReaderId, CompactionStep)>>,
    pub(super) units: Mutex<BTreeMap<UnitId, StoredUnit>>,
    obstacles: watch::Sender<Obstacles>,
    pub(super) bell: Bell,
    /// Figures that are known here; the others are added when they are asked for.
    pub(super) figures: Mutex<JournalHealth>,
    pub(super) sync_duration: Histogram,
    pub(super) retention: Mutex<Retention>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("dir", &self.store.dir()).finish_non_exhaustive()
    }
}

impl Disk {
    pub(super) fn open(dir: &Path, options: JournalOptions) -> Result<(Self, Recovered), StoreError> {
        let (store, recovered) = Store::open(dir, options.fsync == Fsync::Group)?;
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

    /// Lets an append pass, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, NotWritable> {
        match self.not_writable() {
            Some(why) => Err(why),
            None => Ok(self.gate.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Waits until no append is under way, and lets none pass until the guard is dropped.
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

    /// Notes that the store has failed, and calls for repair.
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
        self.bell.ring(calls::REPAIR);
        why
    }

    /// Notes an error of a call that may fail: the store is written again later.
    pub(super) fn note<T>(&self, done: Result<T, StoreError>) {
        if let Err(error) = done {
            self.fail(&error);
        }
    }

    /// Returns the figures of the store.
    pub(super) fn health(&self) -> JournalHealth {
        let (not_writable, sync_duration) = (self.not_writable(), self.sync_duration.snapshot());
        let (syncs, figures) = (sync_duration.count(), lock(&self.figures).clone());
        JournalHealth { stored: true, not_writable, syncs, sync_duration, ..figures }
    }

    /// Notes that the store works again.
    pub(super) fn heal(&self) {
        self.obstacles.send_modify(|obstacles| obstacles.failed = None);
        info!(dir = %self.store.dir().display(), "the state can be written again");
    }

    /// Notes whether the state is full.
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

    /// Notes the bytes that are not durable yet. Above the limit nothing is taken until half of it is left.
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
