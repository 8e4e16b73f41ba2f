//! Appends, their release, and attachments of readers.

use std::{
    borrow::Cow,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use jiff::Timestamp;

use super::Journal;
use crate::{
    change::{Cause, Change, Reached},
    journal::{
        AppendError, Attachment, AttachmentKind, Fenced, Sequence, Ticket, UnitId, UnitWriter,
        disk::{Disk, calls},
        interest::worth_recording,
        recovery::with_marker,
        store::{Append, NOBODY},
    },
    mutex::lock,
    object::Object,
};

/// Number of objects that [`Journal::seed`] writes at a time.
const SEED_OBJECTS: usize = 1_000;

impl Journal {
    /// Appends the changes of one transaction of a unit. `reached` contains the versions that the unit reaches with these changes.
    /// The records stay invisible until [`Journal::release`]. Writes to the disk, which may block. Does not wait until the records
    /// are durable.
    ///
    /// # Errors
    /// Refuses an append if the writer is older than the last one of the unit, or than the one passed to [`Journal::fence`]. Refuses every
    /// append while the store takes none.
    pub fn append(
        &self,
        writer: UnitWriter,
        changes: &[Change],
        reached: &Reached,
        now: Timestamp,
    ) -> Result<Ticket, AppendError> {
        let time_micros = now.as_microsecond();
        let Some(disk) = self.inner.disk() else {
            return Ok(self.inner.core().append(writer, changes, reached, time_micros)?);
        };
        let _gate = disk.enter()?;
        let ticket = self.inner.core().append(writer, changes, reached, time_micros)?;
        let unit = writer.unit;
        let append = Append { unit, first: ticket.first, time_micros, changes, only: None, reached: Some(reached) };
        self.write(disk, writer.generation, ticket, &append)?;
        Ok(ticket)
    }

    /// Leaves out the unchanged objects of a relist if no reader wants them. Without a reader they would only be written and read
    /// again: one record for each object of the type.
    pub fn worth_recording<'a>(&self, unit: UnitId, changes: &'a [Change]) -> Cow<'a, [Change]> {
        worth_recording(changes, || self.inner.core().wants_unchanged(unit))
    }

    /// Stores the objects of a unit's first state, and the versions that the unit has reached, so that a restart finds both. No
    /// reader gets these records. Call it before the first append of the unit. Has no effect without a store.
    ///
    /// # Errors
    /// Fails while the store takes no appends. Some objects may be stored already: call it again with all of them.
    pub fn seed(&self, unit: UnitId, objects: &[Object], reached: &Reached, now: Timestamp) -> Result<(), AppendError> {
        let Some(disk) = self.inner.disk() else { return Ok(()) };
        let (time_micros, only) = (now.as_microsecond(), Some(NOBODY));
        let _gate = disk.enter()?;
        let added = |object: &Object| Change::Added { object: object.clone(), cause: Cause::Reload };
        let mut parts = objects.chunks(SEED_OBJECTS).peekable();
        loop {
            let changes: Vec<_> = parts.next().unwrap_or_default().iter().map(added).collect();
            let reached = parts.peek().is_none().then_some(reached);
            let ticket = self.inner.core().seed(unit, &changes, reached, time_micros);
            let append = Append { unit, first: ticket.first, time_micros, changes: &changes, only, reached };
            self.write(disk, 0, ticket, &append)?;
            if reached.is_some() {
                return Ok(());
            }
        }
    }

    /// Writes an append that has a ticket. Takes the ticket back if the write fails or panics.
    fn write(&self, disk: &Disk, generation: u64, ticket: Ticket, append: &Append<'_>) -> Result<(), AppendError> {
        let done = catch_unwind(AssertUnwindSafe(|| disk.store.append(append)));
        if !matches!(done, Ok(Ok(()))) {
            self.inner.advance(|core| core.take_back(ticket));
        }
        done.unwrap_or_else(|panic| resume_unwind(panic)).map_err(|error| disk.fail(&error))?;
        let (written, unsynced) = self.inner.advance(|core| {
            let written = core.written(append.unit.writer(generation), ticket, append.reached);
            (written, core.unsynced_bytes)
        });
        written?;
        if let Some(reached) = append.reached
            && let Some(stored) = lock(&disk.units).get_mut(&append.unit)
        {
            stored.reached = reached.clone();
        }
        if !append.changes.is_empty() {
            disk.set_unsynced(unsynced);
            disk.bell.ring(calls::SYNC);
        }
        Ok(())
    }

    /// Releases an append: its records become visible once all older appends are visible. With a store, the records must also be
    /// durable; with [`Fsync::Interval`](super::Fsync::Interval), only written. Tickets of different units may be released in any
    /// order. A ticket that needs no release is ignored.
    pub fn release(&self, ticket: Ticket) {
        self.inner.advance(|core| core.release(ticket));
    }

    /// Returns the oldest append of `unit` that is not released.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        self.inner.core().outstanding(unit)
    }

    /// Refuses further appends of the earlier writers of the unit.
    pub fn fence(&self, writer: UnitWriter) {
        self.inner.core().fence(writer);
    }

    /// Returns the released watermark: readers see no record above it.
    pub fn released(&self) -> Sequence {
        self.inner.core().released()
    }

    /// Returns the position up to which every reader has handled all records.
    pub fn passed(&self) -> Sequence {
        self.inner.core().passed()
    }

    /// Attaches a reader to the unit of `writer`, or detaches it. Appends `changes` for this reader alone, and releases them. Call it between two
    /// batches of the unit. Earlier appends of the unit are delivered as before. Has no effect on a closed reader.
    ///
    /// Once attached, the reader sees the later appends of the unit, and none of its earlier ones (S-5). Attaching has no effect if
    /// the reader sees the unit already. Once detached, the reader sees no later appends of the unit.
    pub fn attach(
        &self,
        Attachment { reader, kind }: Attachment,
        writer: UnitWriter,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), AppendError> {
        let attaches = matches!(kind, AttachmentKind::Attach(_));
        let time_micros = now.as_microsecond();
        let _gate = self.inner.disk().map(Disk::enter).transpose()?;
        let stored = self.inner.disk().map(|_| with_marker(attaches, changes));
        let changes = stored.as_deref().unwrap_or(changes);
        let appended = self.inner.advance(|core| {
            let ticket = core.attach(reader, attaches, writer, changes, time_micros)?;
            Ok::<_, Fenced>(ticket.map(|ticket| (ticket, core.address(reader))))
        })?;
        let (Some((ticket, only)), Some(disk)) = (appended, self.inner.disk()) else { return Ok(()) };
        let unit = writer.unit;
        let append = Append { unit, first: ticket.first, time_micros, changes, only: Some(&only), reached: None };
        self.write(disk, writer.generation, ticket, &append)
    }
}
