//! Disk side of a journal with a store: the store, the obstacles to writes, and the calls to the committer.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{error, info};

use super::{
    ReaderId, Sequence, UnitId,
    retention::Retention,
    store::{CompactionStep, Recovered, Store, StoreError, StoredUnit},
};
use crate::{
    histogram::{Histogram, HistogramSnapshot},
    mutex::lock,
    text::Text,
};

/// Upper bounds of the histogram of fsync durations, in seconds.
const SYNC_BOUNDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Policy for when written records become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Records are synced as often as the disk allows. Only durable records are handed out.
    #[default]
    Group,
    /// Records are synced at this interval, and may be handed out earlier. If the machine fails, all records written since the last
    /// sync are lost.
    Interval(Duration),
}

/// Policy when the state directory reaches its size limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The engine stops reading from the API server until handlers have taken their waiting records.
    #[default]
    StopReading,
    /// The oldest changes are dropped. They are counted and named.
    Drop,
}

/// Options of a journal with a store: `[state]` of the configuration.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct JournalOptions {
    /// Policy for forcing writes to the disk. `group` forces them as often as the disk allows; only changes on the disk are
    /// delivered. With an interval, a power failure may lose the stored changes of the last interval, although they
    /// were delivered.
    #[serde(with = "Text::<Fsync>")]
    pub fsync: Fsync,
    /// Time for which delivered changes are kept.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_hours(24))]
    pub retention: Duration,
    /// Approximate maximum size of the directory. At this size, delivered changes are removed early, and changes that wait
    /// for a handler are coalesced. If that is not enough, `on_full` applies.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 4 << 30)]
    pub max_bytes: u64,
    /// Behaviour if the directory is full of waiting changes that cannot be coalesced further. `stop_reading` stops reading
    /// from the API server. `drop` drops the oldest changes, and counts and names them.
    pub on_full: OnFull,
    /// Maximum size of the bodies that are written but not durable yet, in bytes. Beyond this size, appends wait for the disk.
    #[serde(skip)]
    #[educe(Default = 64 << 20)]
    pub unsynced_max_bytes: usize,
}

/// Reason why a journal takes no appends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWritable {
    /// The store failed. It is opened again, with growing delays.
    #[error("stopped reading: {0}")]
    Failed(String),
    /// The state has reached `max_bytes`, readers need its records, and coalescing them has not made room.
    #[error(
        "stopped reading: the state is full ({bytes} bytes, `[state] max_bytes` = {max_bytes}), and coalescing made no \
         room; the slowest handler is {slowest:?}: let it catch up, remove it, or raise `max_bytes`"
    )]
    Full {
        /// Size of the state.
        bytes: u64,
        /// Size limit.
        max_bytes: u64,
        /// Name of the reader with the oldest unacknowledged record.
        slowest: String,
    },
    /// Too many written records are not durable yet.
    #[error("waiting for the disk: {bytes} written bytes are not durable yet")]
    Behind {
        /// Size of the bodies that are not durable, in bytes.
        bytes: usize,
    },
    /// The journal is closed.
    #[error("the journal is closed")]
    Closed,
}

/// Reason why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenJournalError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The committer thread could not be started.
    #[error("cannot start the thread that commits the journal: {0}")]
    Thread(#[from] std::io::Error),
}

/// Figures about a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalHealth {
    /// Set when the journal has a store.
    pub stored: bool,
    /// Reason why the journal takes no appends; `None` if it does.
    pub not_writable: Option<NotWritable>,
    /// Approximate size on disk, in bytes.
    pub disk_bytes: u64,
    /// First record that is kept.
    pub first: Sequence,
    /// First record that must be kept: a reader needs it, or it is not visible or not durable yet.
    pub needed: Sequence,
    /// Released watermark.
    pub released: Sequence,
    /// Durable watermark.
    pub durable: Sequence,
    /// Last appended record.
    pub last: Sequence,
    /// Number of fsyncs.
    pub syncs: u64,
    /// Duration of the last fsync.
    pub last_sync: Duration,
    /// Durations of all fsyncs, in seconds.
    pub sync_duration: HistogramSnapshot,
    /// Number of failures of the store.
    pub failures: u64,
}

/// Reason why no appends are taken. Several may be present; the first one is reported.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    Closed,
    Failed,
    Full,
    Behind,
}

/// Calls to the committer, as bits.
pub(super) mod calls {
    /// Records were written.
    pub(in crate::journal) const SYNC: u8 = 1;
    /// The state of a reader changed.
    pub(in crate::journal) const SAVE: u8 = 1 << 1;
    /// The store has failed.
    pub(in crate::journal) const REPAIR: u8 = 1 << 2;
    /// The committer must end.
    pub(in crate::journal) const END: u8 = 1 << 3;
}

/// Pending calls to the committer. A call wakes the committer, unless the same call is already pending.
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

    /// Waits up to `at_most` for a call that is not in `known`. Returns all pending calls, and removes them.
    pub(super) fn wait(&self, known: u8, at_most: Duration) -> u8 {
        let is_known = |calls: &mut u8| *calls & !known == 0;
        let waited = self.rung.wait_timeout_while(lock(&self.calls), at_most, is_known);
        let (mut calls, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut calls)
    }
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) store: Store,
    pub(super) options: JournalOptions,
    /// Read-locked during an append; write-locked where appends must be kept out.
    gate: RwLock<()>,
    /// Held while the states of readers are taken and saved, so that no older state overwrites a newer one. Contains the compaction
    /// step whose write failed, if any. That step may or may not be on disk, and is written again before any other state is saved.
    pub(super) saving: Mutex<Option<(ReaderId, CompactionStep)>>,
    pub(super) units: Mutex<BTreeMap<UnitId, StoredUnit>>,
    /// Current obstacles, in the order of [`Obstacle`].
    obstacles: watch::Sender<[Option<NotWritable>; 4]>,
    pub(super) bell: Bell,
    /// Figures that are counted here; [`Disk::health`] adds the others.
    pub(super) figures: Mutex<JournalHealth>,
    pub(super) sync_duration: Histogram,
    pub(super) retention: Mutex<Retention>,
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

    /// Returns a guard for an append, or an error if there is an obstacle. [`Disk::shut`] waits until the guard is dropped.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, NotWritable> {
        match self.not_writable() {
            Some(why) => Err(why),
            None => Ok(self.gate.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Waits for running appends, and keeps new ones out until the guard is dropped.
    pub(super) fn shut(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn not_writable(&self) -> Option<NotWritable> {
        self.obstacles.borrow().iter().flatten().next().cloned()
    }

    pub(super) async fn writable(&self) {
        let mut obstacles = self.obstacles.subscribe();
        if obstacles.wait_for(|obstacles| obstacles.iter().all(Option::is_none)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn has(&self, obstacle: Obstacle) -> bool {
        self.obstacles.borrow()[obstacle as usize].is_some()
    }

    /// Sets or removes an obstacle. Returns true if its presence has changed.
    fn set(&self, obstacle: Obstacle, why: Option<NotWritable>) -> bool {
        self.obstacles.send_if_modified(|obstacles| {
            let before = std::mem::replace(&mut obstacles[obstacle as usize], why);
            before.is_some() != obstacles[obstacle as usize].is_some()
        })
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
        self.set(Obstacle::Closed, Some(NotWritable::Closed));
    }

    /// Notes that the store has failed, and calls for a repair.
    pub(super) fn fail(&self, what: &impl fmt::Display) -> NotWritable {
        if self.has(Obstacle::Closed) {
            return NotWritable::Closed;
        }
        let why = NotWritable::Failed(what.to_string());
        if self.set(Obstacle::Failed, Some(why.clone())) {
            lock(&self.figures).failures += 1;
            error!(dir = %self.store.dir().display(), error = %what, "the state cannot be written; stopped reading");
        }
        self.bell.ring(calls::REPAIR);
        why
    }

    /// Notes the error of `done`, if any, for a caller that returns no errors. The repair then writes the data again.
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
        self.set(Obstacle::Failed, None);
        info!(dir = %self.store.dir().display(), "the state can be written again");
    }

    /// Notes that the state is full, or has room again.
    pub(super) fn set_full(&self, full: Option<NotWritable>) {
        match (self.set(Obstacle::Full, full.clone()), full) {
            (true, Some(why)) => error!(error = %why, "the state is full"),
            (true, None) => info!("the state has room again"),
            (false, _) => {}
        }
    }

    /// Notes the size of the bodies that are not durable. Above the limit, appends are refused until the size has fallen to half
    /// the limit.
    pub(super) fn set_unsynced(&self, bytes: usize) {
        let max = self.options.unsynced_max_bytes;
        let is_behind = bytes > if self.has(Obstacle::Behind) { max / 2 } else { max };
        self.set(Obstacle::Behind, is_behind.then_some(NotWritable::Behind { bytes }));
    }
}
