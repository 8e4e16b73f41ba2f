//! The thread that makes durable what was written, saves where readers stand, removes what nobody needs, and brings the
//! store back after an error.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tracing::{error, warn};

use super::{
    Fsync, NotWritable, OnFull, Sequence,
    disk::{Calls, Disk},
    handle::Inner,
    retention::make_room,
    store::{Append, StoreError},
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    indexer::Change,
    mutex::lock,
};

/// Where readers stand is saved so often at most, and never for more than a tenth of the time.
const SAVE_EVERY: Duration = Duration::from_millis(100);
/// So often it is seen whether something can be removed; sooner where nothing is taken until it is.
const RETAIN_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(100));
/// When a store that failed is opened again.
const REPAIR: BackoffConfig = BackoffConfig {
    initial: Duration::from_millis(200),
    factor: 2.0,
    jitter: 0.0,
    max: Duration::from_secs(10),
    reset_after: Duration::from_mins(2),
};

/// The thread; ends when this is dropped, which waits for it.
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
            disk.bell.ring(|calls| calls.end = true);
        }
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            error!("the journal's committer has ended in a panic");
        }
    }
}

/// What is to be done when.
struct Work<'a> {
    inner: &'a Inner,
    disk: &'a Disk,
    /// What was called for and is not done, or has its time.
    calls: Calls,
    sync_at: Instant,
    save_at: Instant,
    retain_at: Instant,
    repair_at: Instant,
    /// What retention is about to remove, a part at a time.
    removing: Option<Sequence>,
    backoff: Backoff,
    started: Instant,
}

impl<'a> Work<'a> {
    fn new(inner: &'a Inner, disk: &'a Disk) -> Self {
        let now = now();
        Self {
            inner,
            disk,
            calls: Calls::default(),
            sync_at: now,
            save_at: now,
            retain_at: now,
            repair_at: now,
            removing: None,
            backoff: Backoff::new(REPAIR),
            started: now,
        }
    }

    fn run(mut self) {
        loop {
            let called = self.disk.bell.wait(self.calls, self.due_in());
            if called.end {
                return;
            }
            self.calls.sync |= called.sync;
            self.calls.save |= called.save;
            if called.repair && !self.calls.repair {
                self.calls.repair = true;
                self.put_repair_off();
            }
            // A panic is an error of the store: it is seen, and what can be done again is.
            let done = catch_unwind(AssertUnwindSafe(|| self.step()));
            let failed = match done {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => self.disk.fail(&error),
                Err(panic) => self.disk.fail(&format!("the committer has panicked: {}", said(&*panic))),
            };
            if self.calls.repair {
                warn!(error = %failed, "the state still fails");
            }
            self.calls.repair = true;
            self.put_repair_off();
        }
    }

    fn put_repair_off(&mut self) {
        let delay = self.backoff.fail(self.started.elapsed(), 0.0);
        self.repair_at = now() + delay;
    }

    /// Returns when something is due that nobody has to call for.
    fn due_in(&self) -> Duration {
        if self.calls.repair {
            return self.repair_at.saturating_duration_since(now());
        }
        if self.removing.is_some() {
            return Duration::ZERO;
        }
        let sync = self.calls.sync.then_some(self.sync_at);
        let save = self.calls.save.then_some(self.save_at);
        let due = [sync, save].into_iter().flatten().fold(self.retain_at, Instant::min);
        due.saturating_duration_since(now())
    }

    /// Does what is due.
    fn step(&mut self) -> Result<(), StoreError> {
        let now = now();
        if self.calls.repair {
            return if self.repair_at <= now { self.repair() } else { Ok(()) };
        }
        if self.calls.save && self.save_at <= now {
            self.save()?;
        }
        if self.calls.sync && self.sync_at <= now {
            self.inner.sync(self.disk)?;
            self.calls.sync = false;
            if let Fsync::Interval(interval) = self.disk.options.fsync {
                self.sync_at = now + interval;
            }
        }
        if let Some(to) = self.removing {
            self.remove(to)?;
        } else if self.retain_at <= now {
            self.look_after_room()?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), StoreError> {
        let begin = now();
        self.calls.sync |= self.inner.save(self.disk)?;
        self.calls.save = false;
        self.save_at = now() + SAVE_EVERY.max(begin.elapsed() * 10);
        Ok(())
    }

    /// Opens the store again, and writes again what may have been lost.
    fn repair(&mut self) -> Result<(), StoreError> {
        let _gate = self.disk.shut();
        self.disk.bell.ring(|calls| calls.repair = false);
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
        self.calls = Calls::default();
        self.backoff.healthy(self.started.elapsed());
        self.disk.heal();
        self.inner.wake_all(); // who could not read what waits in the store
        Ok(())
    }

    /// Sees what can be removed, and what is to be done where the state is too large.
    fn look_after_room(&mut self) -> Result<(), StoreError> {
        let core = self.inner.core();
        let (first, needed, last) = (core.kept_from(), core.needed(), core.last());
        let visible = core.released().min(core.durable());
        let slowest = core.slowest();
        drop(core);
        let bytes = self.disk.store.disk_bytes();
        lock(&self.disk.figures).disk_bytes = bytes;
        let max_bytes = self.disk.options.max_bytes;
        let is_full = bytes > max_bytes;
        let now_micros = micros();
        let mut retention = lock(&self.disk.retention);
        retention.note(now_micros, last);
        let mut keep_from = retention.keep_from(now_micros).min(needed);
        drop(retention);
        if is_full {
            keep_from = keep_from.max(make_room(first, needed));
        }
        let is_stuck = is_full && keep_from <= first && needed <= last;
        match self.disk.options.on_full {
            OnFull::Drop if is_stuck => {
                keep_from = make_room(first, Sequence(visible.0 + 1));
                self.drop_before(keep_from)?;
            }
            OnFull::StopReading if is_stuck => {
                let slowest = slowest.unwrap_or_default();
                self.disk.set_full(Some(NotWritable::Full { bytes, max_bytes, slowest }));
            }
            _ => self.disk.set_full(None),
        }
        self.calls.save = true; // readers move on although nothing is for them
        self.retain_at = now() + if is_full { RETAIN_EVERY.1 } else { RETAIN_EVERY.0 };
        self.removing = (keep_from > first).then_some(keep_from);
        Ok(())
    }

    /// Removes some of what lies before a place.
    fn remove(&mut self, to: Sequence) -> Result<(), StoreError> {
        let retained = self.disk.store.retain(to)?;
        self.inner.core().set_kept_from(retained.first);
        self.removing = retained.more.then_some(to);
        if self.removing.is_none() {
            self.calls.sync = true;
        }
        Ok(())
    }

    /// Drops what waits before a place for whoever it is.
    fn drop_before(&mut self, place: Sequence) -> Result<(), StoreError> {
        let slow = self.inner.core().spilled_before(place);
        for (reader, places) in slow {
            let records = self.disk.store.load(&places)?;
            self.inner.core().drop_spilled(reader, &places, &records, place);
        }
        let dormant = self.inner.core().drop_dormant(place);
        for (events, state) in &dormant {
            warn!(handler = state.name, events, "dropped events of a handler that is not there, the state is full");
        }
        let states: Vec<_> = dormant.into_iter().map(|(_, state)| state).collect();
        self.disk.store.put_readers(&states)?;
        self.save()
    }
}

#[expect(clippy::disallowed_methods, reason = "a shell: it waits for what is due")]
fn now() -> Instant {
    Instant::now()
}

fn micros() -> i64 {
    Timestamp::now().as_microsecond()
}

/// Returns what a panic says.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it does not say why")
}
