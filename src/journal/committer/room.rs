//! The thread's part of the [policy](crate::journal::room) for room in the state directory: it finds the facts, and takes the steps.

use std::{
    thread::{self, JoinHandle},
    time::Instant,
};

use jiff::Timestamp;
use tracing::{error, info, warn};

use super::{Work, now, pass::Pass};
use crate::{
    journal::{
        NotWritable, OnFull, Sequence,
        disk::calls,
        reader::tally::NAMED_LOSSES_MAX,
        room::{RoomFacts, RoomPolicy, RoomStep},
        store::StoreError,
    },
    mutex::lock,
};

/// Progress of the work that keeps the state below its size limit.
#[derive(Debug)]
pub(super) struct Room {
    policy: RoomPolicy,
    look_at: Instant,
    /// Records before this position are being removed, one batch after another.
    removing: Option<Sequence>,
    pub(super) pass: Option<Pass>,
    /// Thread that frees disk space.
    shrinking: Option<JoinHandle<()>>,
}

impl Room {
    pub(super) fn new(on_full: OnFull) -> Self {
        Self { policy: RoomPolicy::new(on_full), look_at: now(), removing: None, pass: None, shrinking: None }
    }

    /// Returns the next due time; `None` means at once.
    pub(super) fn due(&self) -> Option<Instant> {
        let pass = self.pass.as_ref().map_or(self.look_at, |pass| pass.due);
        self.removing.is_none().then_some(self.look_at.min(pass))
    }

    fn is_shrinking(&self) -> bool {
        self.shrinking.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Work<'_> {
    pub(super) fn make_room(&mut self) -> Result<(), StoreError> {
        if let Some(to) = self.room.removing {
            self.remove(to)?;
        } else if self.room.look_at <= now() {
            let facts = self.look();
            for step in self.room.policy.look(&facts, self.started.elapsed()) {
                self.take(step, &facts)?;
            }
        }
        if let Some(pass) = self.room.pass.as_mut().filter(|pass| pass.due <= now())
            && pass.step(self.inner, self.disk)?
        {
            self.room.policy.pass_ended(self.started.elapsed());
            (self.room.pass, self.room.look_at) = (None, now());
        }
        Ok(())
    }

    fn look(&self) -> RoomFacts {
        let (bytes, max_bytes) = (self.disk.store.disk_bytes(), self.disk.options.max_bytes);
        lock(&self.disk.figures).disk_bytes = bytes;
        let core = self.inner.core();
        let (in_log, merged) = if bytes > max_bytes { core.loads() } else { (0, 0) };
        let now_micros = Timestamp::now().as_microsecond();
        let mut retention = lock(&self.disk.retention);
        retention.note(now_micros, core.last());
        RoomFacts {
            bytes,
            max_bytes,
            first: core.kept_from(),
            needed: core.needed(),
            recent: retention.keep_from(now_micros),
            last: core.last(),
            released: core.released(),
            passed: core.passed(),
            first_spilled: core.first_spilled(),
            in_log,
            merged,
            is_opening: !core.dormant.is_empty(),
            is_compacting: self.room.pass.is_some(),
            is_shrinking: self.room.is_shrinking(),
        }
    }

    fn take(&mut self, step: RoomStep, facts: &RoomFacts) -> Result<(), StoreError> {
        match step {
            RoomStep::ForgetGivenUp(before) => {
                self.inner.core().forget_given_up(before, true);
                self.calls |= calls::SAVE; // the watermark advances readers even if no record is for them
            }
            RoomStep::Remove(to) => self.room.removing = Some(to),
            RoomStep::Compact => {
                let RoomFacts { bytes, in_log: records, merged, .. } = *facts;
                info!(bytes, records, merged, "the state is full; coalescing records of slow handlers");
                self.room.pass = Some(Pass::new(facts.released));
            }
            RoomStep::Drop(before) => self.drop_before(before)?,
            RoomStep::StopReading => {
                let RoomFacts { bytes, max_bytes, .. } = *facts;
                let slowest = self.inner.core().slowest().unwrap_or_default();
                self.disk.set_full(Some(NotWritable::Full { bytes, max_bytes, slowest }));
            }
            RoomStep::Resume => self.disk.set_full(None),
            RoomStep::Shrink => self.shrink(),
            RoomStep::Wait(time) => self.room.look_at = now() + time,
        }
        Ok(())
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
    fn drop_before(&mut self, position: Sequence) -> Result<(), StoreError> {
        let slow = self.inner.core().spilled_before(position);
        for (reader, name, positions) in slow {
            let named = &positions[..positions.len().min(NAMED_LOSSES_MAX)];
            let records = self.disk.store.load_for(&name, named)?;
            self.inner.with(reader, |reader| reader.drop_spilled(&positions, &records, position));
        }
        self.save()
    }

    /// Frees the disk space of removed records on a separate thread, because this may take long.
    fn shrink(&mut self) {
        if let Some(Err(_)) = self.room.shrinking.take().map(JoinHandle::join) {
            error!("freeing disk space of the state panicked");
        }
        let store = self.disk.store.clone();
        let spawned = thread::Builder::new().name("journal shrinking".to_owned()).spawn(move || {
            if let Err(error) = store.shrink() {
                warn!(dir = %store.dir().display(), %error, "cannot free disk space of the state");
            }
        });
        match spawned {
            Ok(thread) => self.room.shrinking = Some(thread),
            Err(error) => warn!(%error, "cannot start the thread that frees disk space of the state"),
        }
    }
}
