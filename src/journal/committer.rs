//! The committer thread. It makes written records durable, saves the state of readers, removes unneeded records, and reopens
//! the store after an error.

mod pass;
mod room;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing::{debug, error, warn};

use self::room::Room;
use super::{
    Fsync,
    disk::{Disk, calls},
    inner::Inner,
    store::{Append, StoreError},
    timeline::TimelinePage,
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    change::Change,
    mutex::lock,
    supervisor::child::panic_text,
};

/// Minimum time between two saves of readers. The interval grows with the duration of a save, so that saves take about a tenth
/// of the thread's time at most.
const SAVE_EVERY: Duration = Duration::from_millis(100);
/// Delay between a sync and the next write of the seal.
const SEAL_EVERY: Duration = Duration::from_secs(1);
/// Delay between a sync and the next write of the timeline.
const TIMELINE_EVERY: Duration = Duration::from_secs(10);
/// Delays before a failed store is opened again.
const REPAIR: BackoffConfig = BackoffConfig {
    initial: Duration::from_millis(200),
    factor: 2.0,
    jitter: 0.0,
    max: Duration::from_secs(10),
    reset_after: Duration::from_mins(2),
};

/// Handle of the committer thread. Dropping it ends the thread, and waits until the thread has ended.
#[derive(Debug)]
pub(super) struct Committer {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    pub(super) fn start(inner: Arc<Inner>) -> std::io::Result<Self> {
        let shared = Arc::clone(&inner);
        let thread = thread::Builder::new().name("journal committer".to_owned()).spawn(move || {
            if let Some(disk) = shared.disk() {
                Work::new(&shared, disk).run();
            }
        })?;
        Ok(Self { inner, thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if let Some(disk) = self.inner.disk() {
            disk.bell.ring(calls::END);
        }
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            error!("the journal committer panicked");
        }
    }
}

/// Work of the committer, with its due times.
struct Work<'a> {
    inner: &'a Inner,
    disk: &'a Disk,
    /// Calls that are not handled yet.
    calls: u8,
    sync_at: Instant,
    save_at: Instant,
    repair_at: Instant,
    /// Due time of the next write of the seal; `None` while the seal is up to date.
    seal_at: Option<Instant>,
    /// Due time of the next write of the timeline; `None` while the timeline on disk is up to date.
    timeline_at: Option<Instant>,
    /// Pages of the timeline that are written, but not durable.
    pages: Vec<TimelinePage>,
    room: Room,
    backoff: Backoff,
    started: Instant,
}

impl<'a> Work<'a> {
    fn new(inner: &'a Inner, disk: &'a Disk) -> Self {
        let now = now();
        Self {
            inner,
            disk,
            calls: 0,
            sync_at: now,
            save_at: now,
            repair_at: now,
            seal_at: None,
            timeline_at: None,
            pages: Vec::new(),
            room: Room::new(disk.options.on_full),
            backoff: Backoff::new(REPAIR),
            started: now,
        }
    }

    fn run(mut self) {
        loop {
            let called = self.disk.bell.wait(self.calls, self.due_in());
            if called & calls::END != 0 {
                return;
            }
            if called & !self.calls & calls::REPAIR != 0 {
                self.put_repair_off();
            }
            self.calls |= called;
            // A panic counts as an error of the store: it is reported, and the repair does the work again.
            let done = catch_unwind(AssertUnwindSafe(|| self.step()));
            let failed = match done {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => self.disk.fail(&error),
                Err(panic) => self.disk.fail(&format!("the committer panicked: {}", panic_text(&*panic))),
            };
            if self.is_called(calls::REPAIR) {
                warn!(error = %failed, "the state still cannot be written; retrying");
            }
            if let Some(pass) = self.room.pass.take() {
                pass.cancel(self.inner, self.disk);
            }
            self.calls |= calls::REPAIR;
            self.put_repair_off();
        }
    }

    fn is_called(&self, call: u8) -> bool {
        self.calls & call != 0
    }

    fn put_repair_off(&mut self) {
        let delay = self.backoff.fail(self.started.elapsed(), 0.0);
        self.repair_at = now() + delay;
    }

    /// Returns the time to wait until the next work is due. A call may end that wait earlier.
    fn due_in(&self) -> Duration {
        if self.is_called(calls::REPAIR) {
            return self.repair_at.saturating_duration_since(now());
        }
        let Some(room) = self.room.due() else { return Duration::ZERO };
        let sync = self.is_called(calls::SYNC).then_some(self.sync_at);
        let save = self.is_called(calls::SAVE).then_some(self.save_at);
        let due = [sync, save, self.seal_at, self.timeline_at].into_iter().flatten().fold(room, Instant::min);
        due.saturating_duration_since(now())
    }

    /// Does the work that is due.
    fn step(&mut self) -> Result<(), StoreError> {
        let now = now();
        if self.is_called(calls::REPAIR) {
            return if self.repair_at <= now { self.repair() } else { Ok(()) };
        }
        if self.is_called(calls::SAVE) && self.save_at <= now {
            self.save()?;
        }
        if self.is_called(calls::SYNC) && self.sync_at <= now {
            self.inner.sync(self.disk)?;
            self.calls &= !calls::SYNC;
            self.seal_at.get_or_insert(now + SEAL_EVERY);
            self.look_at_timeline();
            if let Fsync::Interval(interval) = self.disk.options.fsync {
                self.sync_at = now + interval;
            }
        }
        if self.seal_at.is_some_and(|at| at <= now) {
            self.seal_at = None;
            // A failed write of the seal is no error: the previous seal stays. Its positions are lower, so it cannot cause a false
            // alarm about lost data.
            if let Err(error) = self.disk.store.seal() {
                debug!(%error, "cannot write the seal of the state");
            }
        }
        if self.timeline_at.is_some_and(|at| at <= now) {
            self.timeline_at = None;
            self.pages = self.inner.core().timeline.to_save();
            self.disk.store.put_timeline(&self.pages)?;
            self.calls |= calls::SYNC;
        }
        self.make_room()
    }

    /// Notes after a sync that the written pages of the timeline are durable, and when the next ones are written: at once if versions
    /// went back, because a crash could hide that.
    fn look_at_timeline(&mut self) {
        let mut core = self.inner.core();
        core.timeline.saved(&std::mem::take(&mut self.pages));
        if core.timeline.is_urgent() {
            self.timeline_at = Some(now());
        } else if core.timeline.is_unsaved() {
            self.timeline_at.get_or_insert(now() + TIMELINE_EVERY);
        }
    }

    fn save(&mut self) -> Result<(), StoreError> {
        let begin = now();
        if self.inner.save(self.disk)? {
            self.calls |= calls::SYNC;
        }
        self.calls &= !calls::SAVE;
        self.save_at = now() + SAVE_EVERY.max(begin.elapsed() * 10);
        Ok(())
    }

    /// Opens the store again, and writes again everything that may have been lost.
    fn repair(&mut self) -> Result<(), StoreError> {
        let _gate = self.disk.shut();
        self.disk.bell.clear(calls::REPAIR);
        self.disk.store.reopen()?;
        for unit in lock(&self.disk.units).values() {
            self.disk.store.put_unit(unit)?;
        }
        let unsynced = self.inner.core().unsynced();
        for batch in &unsynced {
            let changes: Vec<Change> = batch.records.iter().map(|record| record.change.clone()).collect();
            self.disk.store.append(&Append {
                unit: batch.unit,
                first: batch.ticket.first,
                time_micros: batch.records.first().map_or(0, |record| record.time_micros),
                changes: &changes,
                only: batch.only.as_deref(),
                reached: batch.reached.as_ref(),
            })?;
        }
        self.inner.save(self.disk)?;
        self.inner.sync(self.disk)?;
        self.calls = 0;
        self.pages.clear(); // the failure may have lost them: they are written again
        self.look_at_timeline();
        self.backoff.healthy(self.started.elapsed());
        self.disk.heal();
        self.inner.wake_all(); // wakes readers that could not read the store
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a shell: it waits for what is due")]
fn now() -> Instant {
    Instant::now()
}
