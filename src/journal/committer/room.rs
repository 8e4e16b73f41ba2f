//! Keeps room in the state directory. The committer removes unneeded records. If that is not enough, it compacts the store.
//!
//! A compaction coalesces records that wait for slow readers. The original records can then be removed. If the directory is still
//! full some time later, the engine stops reading from the API server, or drops the oldest records.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tracing::{error, info, warn};

use super::{Work, now, pass::Pass};
use crate::{
    journal::{
        NotWritable, OnFull, Sequence, disk::calls, reader::tally::NAMED_LOSSES_MAX, retention::make_room,
        store::StoreError,
    },
    mutex::lock,
};

/// Interval between searches for removable records. The shorter interval applies while the state directory is full or nearly full.
const RETAIN_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(100));
/// Time for which the disk may free the space of removed records, before another pass or drop starts. The longer time applies while
/// a shrink is running.
const GRACE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Minimum and maximum interval between two shrinks, which free the space of removed records.
const SHRINK_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// Number of waiting records in the log from which on a pass is always worth its cost.
const RECORDS_A_PASS: u64 = 32_768;
/// Ratio of coalesced records to waiting records in the log at which a pass is no longer worth its cost: it would scan too many
/// coalesced records. Does not apply from [`RECORDS_A_PASS`] waiting records on.
const MERGED_A_RECORD: u64 = 8;

/// Progress of the work that keeps the state below its size limit.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) retain_at: Instant,
    /// Records before this position are being removed, one batch after another.
    pub(super) removing: Option<Sequence>,
    pub(super) pass: Option<Pass>,
    /// Time of the last pass or drop, or of a later removal. `None` if no pass or drop has ended since the state became full.
    tried: Option<Instant>,
    shrink: Shrink,
}

impl Room {
    pub(super) fn new() -> Self {
        let now = now();
        let shrink = Shrink { thread: None, at: now, every: SHRINK_EVERY.0, bytes: u64::MAX };
        Self { retain_at: now, removing: None, pass: None, tried: None, shrink }
    }

    /// Returns the next due time; `None` means at once.
    pub(super) fn due(&self) -> Option<Instant> {
        let pass = self.pass.as_ref().map_or(self.retain_at, |pass| pass.due);
        self.removing.is_none().then_some(self.retain_at.min(pass))
    }
}

impl Work<'_> {
    pub(super) fn make_room(&mut self) -> Result<(), StoreError> {
        if let Some(to) = self.room.removing {
            self.remove(to)?;
        } else if self.room.retain_at <= now() {
            self.look_after_room()?;
        }
        if let Some(pass) = self.room.pass.as_mut().filter(|pass| pass.due <= now())
            && pass.step(self.inner, self.disk)?
        {
            (self.room.pass, self.room.tried, self.room.retain_at) = (None, Some(now()), now());
        }
        Ok(())
    }

    /// Finds removable records. If the state is full and no record is removable, calls [`Self::be_full`].
    fn look_after_room(&mut self) -> Result<(), StoreError> {
        let core = self.inner.core();
        let (first, needed, last) = (core.kept_from(), core.needed(), core.last());
        let (visible, passed) = (core.released(), core.passed());
        drop(core);
        let bytes = self.disk.store.disk_bytes();
        lock(&self.disk.figures).disk_bytes = bytes;
        let max_bytes = self.disk.options.max_bytes;
        let (is_full, is_nearly) = (bytes > max_bytes, bytes > max_bytes / 4 * 3);
        let now_micros = Timestamp::now().as_microsecond();
        let mut retention = lock(&self.disk.retention);
        retention.note(now_micros, last);
        let old = retention.keep_from(now_micros);
        drop(retention);
        let mut keep_from = old.min(needed);
        if is_full {
            // After a pass, all unneeded records are removed, not only a part of them. Coalesced entries have replaced these
            // records, and the disk frees space slowly.
            let room = if self.room.tried.is_some() { needed } else { make_room(first, needed) };
            keep_from = keep_from.max(room);
        }
        let is_stuck = is_full && keep_from <= first && needed.0.min(passed.0 + 1) <= last.0;
        if is_stuck {
            if let Some(dropped) = self.be_full(bytes, first, visible)? {
                keep_from = dropped;
            }
            if self.room.pass.is_none() {
                self.shrink(bytes);
            }
        } else {
            self.disk.set_full(None);
            self.room.tried = self.room.tried.filter(|_| is_full).map(|_| now());
        }
        if !is_full {
            self.room.shrink.every = SHRINK_EVERY.0;
        }
        self.inner.core().forget_given_up(if is_full { needed } else { old }, true);
        self.calls |= calls::SAVE; // the watermark advances readers even if no record is for them
        self.room.retain_at = now() + if is_nearly { RETAIN_EVERY.1 } else { RETAIN_EVERY.0 };
        self.room.removing = (keep_from > first).then_some(keep_from);
        Ok(())
    }

    /// Makes room when waiting records fill the state: starts a pass, or drops the oldest records. Stops appends if that is not
    /// enough. Returns the position before which all records were dropped; `None` if none were.
    fn be_full(&mut self, bytes: u64, first: Sequence, visible: Sequence) -> Result<Option<Sequence>, StoreError> {
        let grace = if self.room.shrink.is_running() { GRACE.1 } else { GRACE.0 };
        if self.room.pass.is_some() || self.room.tried.is_some_and(|tried| now() < tried + grace) {
            return Ok(None);
        }
        let core = self.inner.core();
        if !core.dormant.is_empty() {
            return Ok(None); // the engine is still opening or forgetting the readers of the last run
        }
        let (in_log, merged) = core.loads();
        let (slowest, spilled) = (core.slowest().unwrap_or_default(), core.first_spilled());
        drop(core);
        let is_worth_it = in_log >= RECORDS_A_PASS || in_log * MERGED_A_RECORD > merged;
        if is_worth_it {
            info!(bytes, records = in_log, merged, "the state is full; coalescing records of slow handlers");
            self.room.pass = Some(Pass::new(visible));
            if self.room.tried.is_none() {
                return Ok(None);
            }
        } else if self.disk.options.on_full == OnFull::Drop {
            let place = make_room(spilled.map_or(first, |spilled| spilled.min(first)), Sequence(visible.0 + 1));
            self.drop_before(place)?;
            self.disk.set_full(None);
            self.room.tried = Some(now());
            return Ok(Some(place));
        }
        // More records arrive than the pass can coalesce, or there is nothing left to coalesce.
        let max_bytes = self.disk.options.max_bytes;
        self.disk.set_full(Some(NotWritable::Full { bytes, max_bytes, slowest }));
        Ok(None)
    }

    /// Removes some of the records before a position.
    fn remove(&mut self, to: Sequence) -> Result<(), StoreError> {
        let retained = self.disk.store.retain(to)?;
        self.inner.core().set_kept_from(retained.first);
        self.room.removing = retained.more.then_some(to);
        if self.room.removing.is_none() {
            self.calls |= calls::SYNC;
        }
        Ok(())
    }

    /// Drops the records that wait before a position, for all readers.
    fn drop_before(&mut self, place: Sequence) -> Result<(), StoreError> {
        let slow = self.inner.core().spilled_before(place);
        for (reader, name, places) in slow {
            let named = &places[..places.len().min(NAMED_LOSSES_MAX)];
            let records = self.disk.store.load_for(&name, named)?;
            self.inner.with(reader, |reader| reader.drop_spilled(&places, &records, place));
        }
        self.save()
    }

    /// Frees the disk space of removed records on a separate thread, because this may take long. Has no effect while a shrink is
    /// running, or before the next one is due.
    fn shrink(&mut self, bytes: u64) {
        let shrink = &mut self.room.shrink;
        if shrink.is_running() || now() < shrink.at {
            return;
        }
        if let Some(Err(_)) = shrink.thread.take().map(JoinHandle::join) {
            error!("freeing disk space of the state panicked");
        }
        // if the last shrink did not help, the interval grows
        let helped = bytes < shrink.bytes - shrink.bytes / 64;
        shrink.every = if helped { SHRINK_EVERY.0 } else { (shrink.every * 2).min(SHRINK_EVERY.1) };
        (shrink.at, shrink.bytes) = (now() + shrink.every, bytes);
        let store = self.disk.store.clone();
        let spawned = thread::Builder::new().name("journal shrinking".to_owned()).spawn(move || {
            if let Err(error) = store.shrink() {
                warn!(dir = %store.dir().display(), %error, "cannot free disk space of the state");
            }
        });
        match spawned {
            Ok(thread) => shrink.thread = Some(thread),
            Err(error) => warn!(%error, "cannot start the thread that frees disk space of the state"),
        }
    }
}

/// State of the shrinks, which free the space of removed records.
#[derive(Debug)]
struct Shrink {
    thread: Option<JoinHandle<()>>,
    /// Earliest time of the next shrink: `every` after the last one.
    at: Instant,
    every: Duration,
    /// Size of the state at the last shrink.
    bytes: u64,
}

impl Shrink {
    fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}
