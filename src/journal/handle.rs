//! The handle of a journal: one short lock a call, and what touches the disk outside of it.

use std::{
    collections::{BTreeSet, HashMap},
    ops::ControlFlow,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use tokio::sync::Notify;
use tracing::{error, warn};

use super::{
    AppendError, Bounds, EventName, Interest, JournalHealth, JournalOptions, Losses, NotWritable, OpenJournalError,
    OpenReaderError, ReaderId, ReaderOptions, ReaderStats, Record, Replayed, Sequence, Start, Ticket, UnitId,
    UnitTerms,
    committer::Committer,
    disk::Disk,
    memory::{Crossing, MemoryJournal},
    store::{Append, CompactionStep, NOBODY, Page, PageSize, Recovered, StoreError, StoreOptions, StoredUnit},
};
use crate::{
    indexer::{Cause, Change, store::Reached},
    mutex::lock,
    object::{
        Object,
        packer::{Compression, Packer},
    },
};

/// What a unit begins with is written in parts of so many objects.
const SEED_OBJECTS: usize = 1_000;

/// Records judged at a time: a filter may take some microseconds for each.
const JUDGED_MAX: usize = 256;

/// The journal of an engine: shared by indexers, which append, and readers.
///
/// One short lock per call, which is per batch. Without a store nothing here waits but [`Journal::readable`]. With one,
/// what says so may block on the disk, but for its `fsync`s, which a thread of its own makes; it ends with
/// [`Journal::close`] or with the last handle.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<Inner>,
    committer: Mutex<Option<Committer>>,
}

/// What the committer shares with the handles.
#[derive(Debug)]
pub(super) struct Inner {
    id: Box<str>,
    /// The last place of earlier runs.
    earlier: Sequence,
    core: Mutex<MemoryJournal>,
    wakers: Mutex<HashMap<ReaderId, Arc<Notify>>>,
    disk: Option<Disk>,
}

impl Journal {
    /// Makes an empty journal in memory, with a random id of 12 hex digits.
    pub fn in_memory() -> Self {
        Self::with_id(&format!("{:012x}", rand::random::<u64>() >> 16))
    }

    fn with_id(id: &str) -> Self {
        let (core, wakers) = (Mutex::default(), Mutex::default());
        let inner = Inner { id: id.into(), earlier: Sequence(0), core, wakers, disk: None };
        Self { shared: Arc::new(Shared { inner: Arc::new(inner), committer: Mutex::default() }) }
    }

    /// Opens the journal in `dir`, which is made if absent, and returns it with what it holds from the last run. Blocks
    /// on the disk.
    ///
    /// Units and readers go on by their names: [`Journal::add_unit`] of a unit of the last run says only what changed,
    /// and [`Journal::open_reader`] finds where a reader stood. A unit that is not there any more is to be retired, a
    /// reader to be [forgotten](Journal::forget_reader): both hold records back until then.
    pub fn open(
        dir: &Path,
        store: StoreOptions,
        options: JournalOptions,
    ) -> Result<(Self, Recovered), OpenJournalError> {
        let (disk, recovered) = Disk::open(dir, store, options)?;
        let mut core = MemoryJournal::restored(disk.durability(), &recovered);
        let passed = core.passed();
        let is_over = |unit: &&StoredUnit| unit.retired.is_some_and(|last| last <= passed);
        for unit in recovered.units.iter().filter(is_over).filter(|unit| unit.id.0 + 1 < core.next_unit().0) {
            disk.store.forget_unit(unit.id)?;
            lock(&disk.units).remove(&unit.id);
        }
        let mut recovered = recovered;
        recovered.units = lock(&disk.units).values().cloned().collect();
        let known = |unit: UnitId| lock(&disk.units).contains_key(&unit);
        core.forget_units_but(known);
        let inner = Arc::new(Inner {
            id: recovered.journal_id.as_str().into(),
            earlier: recovered.last,
            core: Mutex::new(core),
            wakers: Mutex::default(),
            disk: Some(disk),
        });
        let committer = Committer::start(Arc::clone(&inner))?;
        Ok((Self { shared: Arc::new(Shared { inner, committer: Mutex::new(Some(committer)) }) }, recovered))
    }

    /// Makes durable what was appended so far, so that it can be handed out: what is about to end must not leave it behind.
    /// Blocks on the disk. Has no effect without a store.
    ///
    /// # Errors
    /// When the store could not be written.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.disk().map_or(Ok(()), |disk| self.shared.inner.sync(disk))
    }

    /// Makes everything durable, saves where each reader stands, and marks the end as clean; appends are refused from now
    /// on, and named readers stay where they are. Blocks on the disk. Has no effect without a store.
    ///
    /// # Errors
    /// When the store could not be written; the next run finds it as after a crash.
    pub fn close(&self) -> Result<(), StoreError> {
        let Some(disk) = self.disk() else { return Ok(()) };
        disk.close();
        drop(lock(&self.shared.committer).take()); // waits for its end
        let _gate = disk.shut();
        self.shared.inner.sync(disk)?;
        self.shared.inner.save(disk)?;
        disk.store.close()
    }

    /// Returns the id: sequences are comparable within it.
    pub fn id(&self) -> &str {
        &self.shared.inner.id
    }

    /// Returns the last place that earlier runs gave: records behind it were appended by this one.
    pub fn earlier(&self) -> Sequence {
        self.shared.inner.earlier
    }

    /// Returns whether it outlives the process.
    pub fn is_stored(&self) -> bool {
        self.disk().is_some()
    }

    /// Binds the state to a cluster, the first time. Blocks on the disk.
    ///
    /// # Errors
    /// When it is bound to another one.
    pub fn bind(&self, cluster_uid: &str) -> Result<(), StoreError> {
        self.disk().map_or(Ok(()), |disk| disk.store.bind(cluster_uid))
    }

    /// Waits until appends are taken; at once where they are.
    pub async fn writable(&self) {
        if let Some(disk) = self.disk() {
            disk.writable().await;
        }
    }

    /// Returns what there is to see of the journal.
    pub fn health(&self) -> JournalHealth {
        let core = self.core();
        let marks = JournalHealth {
            first: core.kept_from(),
            needed: core.needed(),
            released: core.released(),
            durable: core.durable(),
            last: core.last(),
            ..JournalHealth::default()
        };
        drop(core);
        let Some(disk) = self.disk() else { return marks };
        let figures = *lock(&disk.figures);
        let sync_duration = disk.sync_duration.snapshot();
        JournalHealth {
            stored: true,
            not_writable: disk.not_writable(),
            disk_bytes: figures.disk_bytes,
            syncs: sync_duration.count(),
            last_sync: figures.last_sync,
            sync_duration,
            failures: figures.failures,
            ..marks
        }
    }

    /// Says what a unit is; before its first append. May block on the disk.
    pub fn add_unit(&self, unit: UnitId, terms: UnitTerms) {
        self.core().add_unit(unit, terms);
        self.update_unit(unit, |stored| stored.terms = terms);
    }

    /// Keeps with a unit what the engine has to know of it after a restart; after [`Journal::add_unit`]. Without a store
    /// it is forgotten. May block on the disk.
    pub fn describe_unit(&self, unit: UnitId, description: serde_json::Value) {
        self.update_unit(unit, |stored| stored.description = description);
    }

    /// Returns what the store has of a unit; `None` where there is neither.
    pub fn unit_state(&self, unit: UnitId) -> Option<StoredUnit> {
        lock(&self.disk()?.units).get(&unit).cloned()
    }

    /// Returns the units that the store has, retired ones included.
    pub fn units(&self) -> Vec<StoredUnit> {
        self.disk().map(|disk| lock(&disk.units).values().cloned().collect()).unwrap_or_default()
    }

    /// Returns what packs the bodies of a unit, told how; a store takes them as it packs them.
    pub fn packer(&self, unit: UnitId, compression: Compression) -> Arc<Packer> {
        let Some(disk) = self.disk() else { return Arc::new(Packer::new(compression)) };
        let packer = disk.store.packer(unit);
        packer.set_compression(compression);
        packer
    }

    /// Returns the first id that is above those of all units of this and the last run.
    pub fn next_unit(&self) -> UnitId {
        self.core().next_unit()
    }

    /// Visits the objects of a unit as its last append left them, in order of their keys. Blocks on the disk.
    pub fn objects(&self, unit: UnitId, visit: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        self.disk().map_or(Ok(()), |disk| disk.store.objects(unit, visit))
    }

    /// Says that a unit appends nothing more. What it appended before is still delivered; when every reader has passed
    /// the returned place, the unit can be forgotten. May block on the disk.
    pub fn retire_unit(&self, unit: UnitId) -> Sequence {
        let (last, woken) = self.core().retire_unit(unit);
        self.wake(&woken);
        self.update_unit(unit, |stored| stored.retired = Some(last));
        last
    }

    /// Forgets a unit that appends nothing more, and that every reader has passed. May block on the disk.
    pub fn forget_unit(&self, unit: UnitId) {
        let mut core = self.core();
        core.forget_unit(unit);
        let is_last = unit.0 + 1 == core.next_unit().0;
        drop(core);
        // The last one stays for now: it says which ids were used.
        let Some(disk) = self.disk().filter(|_| !is_last) else { return };
        let _gate = disk.shut();
        lock(&disk.units).remove(&unit);
        if let Err(error) = disk.store.forget_unit(unit) {
            disk.fail(&error); // it is retired still: the next run forgets it
        }
    }

    fn update_unit(&self, unit: UnitId, change: impl FnOnce(&mut StoredUnit)) {
        let Some(disk) = self.disk() else { return };
        let Some(terms) = self.core().terms(unit) else { return };
        let _gate = disk.shut(); // an append moves what it reached
        let mut units = lock(&disk.units);
        let stored = units.entry(unit).or_insert_with(|| StoredUnit {
            id: unit,
            description: serde_json::Value::Null,
            terms,
            reached: Reached::default(),
            retired: None,
        });
        change(stored);
        if let Err(error) = disk.store.put_unit(stored) {
            disk.fail(&error); // what is known of units is written again then
        }
    }

    /// Appends the changes of one transaction of `unit`, which bring it to `reached`; they stay invisible until
    /// [`Journal::release`]. Writes to the disk and may block on that, not on what makes it durable.
    ///
    /// # Errors
    /// An append with an older epoch than the unit's last one, or than [`Journal::fence`] named, is refused; so is any
    /// while the store takes none.
    pub fn append(
        &self,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        reached: &Reached,
        now: Timestamp,
    ) -> Result<Ticket, AppendError> {
        let time_micros = now.as_microsecond();
        let Some(disk) = self.disk() else { return Ok(self.core().append(unit, epoch, changes, time_micros)?) };
        let _gate = disk.enter()?;
        let ticket = self.core().append(unit, epoch, changes, time_micros)?;
        let append = Append { unit, first: ticket.first, time_micros, changes, only: None, reached: Some(reached) };
        self.write(disk, (unit, epoch), ticket, &append)?;
        if let Some(stored) = lock(&disk.units).get_mut(&unit) {
            stored.reached = reached.clone();
        }
        Ok(ticket)
    }

    /// Keeps with a unit the objects that it begins with, and how far it has come with them, so that a restart finds them;
    /// no reader is told. Before its first append. Has no effect without a store.
    ///
    /// # Errors
    /// While the store takes nothing; some of the objects may be kept then, call it again with all of them.
    pub fn seed(&self, unit: UnitId, objects: &[Object], reached: &Reached, now: Timestamp) -> Result<(), AppendError> {
        let Some(disk) = self.disk() else { return Ok(()) };
        let time_micros = now.as_microsecond();
        let _gate = disk.enter()?;
        let added = |object: &Object| Change::Added { object: object.clone(), cause: Cause::Reload };
        let mut parts = objects.chunks(SEED_OBJECTS).peekable();
        loop {
            let changes: Vec<_> = parts.next().unwrap_or_default().iter().map(added).collect();
            let is_last = parts.peek().is_none();
            let ticket = self.core().seed(unit, &changes, time_micros);
            let reached = is_last.then_some(reached);
            let append =
                Append { unit, first: ticket.first, time_micros, changes: &changes, only: Some(NOBODY), reached };
            self.write(disk, (unit, 0), ticket, &append)?;
            if is_last {
                break;
            }
        }
        if let Some(stored) = lock(&disk.units).get_mut(&unit) {
            stored.reached = reached.clone();
        }
        Ok(())
    }

    /// Writes what has a ticket, or takes it back.
    fn write(
        &self,
        disk: &Disk,
        writer: (UnitId, u64),
        ticket: Ticket,
        append: &Append<'_>,
    ) -> Result<(), AppendError> {
        let mut ticketed = Ticketed { inner: &self.shared.inner, ticket, is_written: false };
        if let Err(error) = disk.store.append(append) {
            drop(ticketed);
            return Err(disk.fail(&error).into());
        }
        ticketed.is_written = true;
        let mut core = self.core();
        let woken = core.written(writer, ticket, append.reached);
        let unsynced = core.unsynced_bytes();
        drop(core);
        self.wake(&woken?);
        if !append.changes.is_empty() {
            disk.set_unsynced(unsynced);
            disk.bell.ring(|calls| calls.sync = true);
        }
        Ok(())
    }

    /// Makes the records of a ticket visible, once nothing older is outstanding. Tickets of several units may come
    /// in any order; one that is not outstanding is ignored.
    pub fn release(&self, ticket: Ticket) {
        let woken = self.core().release(ticket);
        self.wake(&woken);
    }

    /// Returns the oldest append of `unit` that was not released.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        self.core().outstanding(unit)
    }

    /// Refuses from now on what comes from epochs of `unit` before `epoch`.
    pub fn fence(&self, unit: UnitId, epoch: u64) {
        self.core().fence(unit, epoch);
    }

    /// Returns the release mark: readers see nothing above it.
    pub fn released(&self) -> Sequence {
        self.core().released()
    }

    /// Returns the place up to which every reader is done with everything.
    pub fn passed(&self) -> Sequence {
        self.core().passed()
    }

    /// Opens a reader. It holds its place until [`Journal::close_reader`].
    ///
    /// With a store, one whose name is known from the last run goes on where that stood, whatever `start` says: with what
    /// it had not acknowledged, and with what of later records it wants now; resyncs are not repeated. It sees the units
    /// that it had joined; those it no longer wants, until [`Journal::leave`]. May block on the disk.
    pub fn open_reader(&self, start: Start, options: ReaderOptions) -> Result<ReaderId, OpenReaderError> {
        let disk = self.disk().filter(|_| options.name.is_some() || start != Start::Next);
        let reader = match disk {
            None => self.core().open_reader(start, options)?,
            Some(disk) => self.open_stored(disk, start, options)?,
        };
        self.wakers().insert(reader, Arc::default());
        Ok(reader)
    }

    fn open_stored(&self, disk: &Disk, start: Start, options: ReaderOptions) -> Result<ReaderId, OpenReaderError> {
        let failed = |error: StoreError| OpenReaderError::Store(error.to_string());
        let core = self.core();
        if let Some(name) = options.name.as_deref().filter(|name| core.is_open(name)) {
            return Err(OpenReaderError::Taken(name.to_owned()));
        }
        let judge = core.judge(start, &options)?;
        let mut until = core.released();
        drop(core);
        let reader = match judge {
            None => self.core().open_reader(start, options)?,
            Some(mut judge) => loop {
                let behind = judge.position();
                let mut visit = |head: &super::store::Head<'_>| {
                    if head.sequence <= until {
                        judge.visit(head);
                    }
                };
                disk.store.heads(behind, &mut visit).map_err(failed)?;
                let mut core = self.core();
                match core.open_judged(judge.up_to(until), &options) {
                    Ok(reader) => break reader,
                    Err(further) => (judge, until) = (*further, core.released()),
                }
            },
        };
        // Without a name in the store a crash would let it begin at the end.
        if let Err(error) = self.shared.inner.save(disk) {
            disk.fail(&error);
        }
        Ok(reader)
    }

    /// Forgets a reader of the last run that is not opened again; records that it alone waited for can go. May block on
    /// the disk.
    pub fn forget_reader(&self, name: &str) {
        self.core().forget_dormant(name);
        self.remove_reader(name);
    }

    fn remove_reader(&self, name: &str) {
        if let Some(disk) = self.disk()
            && let Err(error) = disk.store.remove_reader(name)
        {
            disk.fail(&error);
        }
    }

    /// Reads a part of the log behind `range.0`, up to `range.1`, as every reader is shown it; for who has no place here, and
    /// holds nothing back. `None` without a store, which has all there is. `range.1` must be
    /// [released](Journal::released). Blocks on the disk.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn page(&self, range: (Sequence, Sequence), size: PageSize) -> Result<Option<Page>, StoreError> {
        let Some(disk) = self.disk() else { return Ok(None) };
        let is_known = |unit: UnitId| lock(&disk.units).contains_key(&unit);
        disk.store.page(range, size, &is_known).map(Some)
    }

    /// Returns the place behind which lies what was appended at a time or later, and the first place whose record is kept.
    /// `None` without a store. Blocks on the disk.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn place_at(&self, micros: i64) -> Result<Option<(Sequence, Sequence)>, StoreError> {
        let Some(disk) = self.disk() else { return Ok(None) };
        let (last, first) = {
            let core = self.core();
            (core.released(), core.kept_from())
        };
        Ok(Some((disk.store.place_at(micros, last)?, first)))
    }

    /// Returns what was said of a unit by [`Journal::add_unit`].
    pub fn terms(&self, unit: UnitId) -> Option<UnitTerms> {
        self.core().terms(unit)
    }

    /// Returns the names of the readers of the last run that were not opened again.
    pub fn dormant_readers(&self) -> Vec<String> {
        self.core().dormant().into_iter().map(|reader| reader.name).collect()
    }

    /// Returns the units that a reader sees.
    pub fn joined(&self, reader: ReaderId) -> BTreeSet<UnitId> {
        self.core().joined(reader)
    }

    /// Replaces what a reader wants to see, from the next release on; what waits already stays. A unit that it sees and
    /// no longer wants is seen until [`Journal::leave`].
    /// May block on the disk.
    pub fn set_interest(&self, reader: ReaderId, interest: &Interest) {
        self.core().set_interest(reader, interest);
        // Before anything more is appended: after a crash it shall see what it sees now.
        if let Some(disk) = self.disk()
            && let Err(error) = self.shared.inner.save(disk)
        {
            disk.fail(&error);
        }
    }

    /// Replaces how much may wait for a reader.
    pub fn set_bounds(&self, reader: ReaderId, bounds: Bounds) {
        self.core().set_bounds(reader, bounds);
    }

    /// Appends `changes` of `unit` for `reader` alone, already released, and lets it see what `unit` appends from then
    /// on, nothing that it appended before (S-5). Call it between two batches of the unit. A reader that sees the
    /// unit already, or is closed, is told nothing.
    pub fn join(
        &self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), AppendError> {
        self.cross((reader, Crossing::Join), unit, epoch, changes, now)
    }

    /// Appends `changes` of `unit` for `reader` alone, already released, after which it sees nothing more of `unit`;
    /// what was appended before is still delivered. A reader that does not see the unit is told nothing.
    pub fn leave(
        &self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), AppendError> {
        self.cross((reader, Crossing::Leave), unit, epoch, changes, now)
    }

    fn cross(
        &self,
        crossing: (ReaderId, Crossing),
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), AppendError> {
        let time_micros = now.as_microsecond();
        let Some(disk) = self.disk() else {
            self.core().cross(crossing, unit, epoch, changes, time_micros)?;
            self.raise();
            return Ok(());
        };
        let _gate = disk.enter()?;
        if changes.is_empty() {
            // No record says so: where a join may be lost, the reader would miss what comes behind it.
            if crossing.1 == Crossing::Join {
                let mut core = self.core();
                if core.is_crossing(crossing.0, unit) {
                    // After a crash its leave would be found, behind a join that is saved already.
                    return Err(NotWritable::Behind { bytes: core.unsynced_bytes() }.into());
                }
                core.announce(crossing.0, unit);
                drop(core);
                self.shared.inner.save(disk).map_err(|error| disk.fail(&error))?;
            }
            self.core().cross(crossing, unit, epoch, changes, time_micros)?;
            self.raise();
            return Ok(());
        }
        let mut core = self.core();
        let Some(ticket) = core.cross(crossing, unit, epoch, changes, time_micros)? else { return Ok(()) };
        let only = core.address(crossing.0);
        drop(core);
        let append = Append { unit, first: ticket.first, time_micros, changes, only: Some(&only), reached: None };
        self.write(disk, (unit, epoch), ticket, &append)
    }

    fn raise(&self) {
        let woken = self.core().raise();
        self.wake(&woken);
    }

    /// Returns whether every unit that the reader takes has synced, and the reader has acknowledged everything up to
    /// there (S-8). A type has synced with the first [`Change::Synced`] of one of its units, or once all of them are
    /// marked so by [`Journal::mark_synced`]; no reader has before
    /// [`Journal::set_discovered`]. A reader that takes more has synced again once it is done with that too.
    pub fn has_synced(&self, reader: ReaderId) -> bool {
        self.core().has_synced(reader)
    }

    /// Notes that the initial state of `unit` is complete with what it has appended so far. For units that append no
    /// [`Change::Synced`], because others of their type are not synced or it was said before; that change implies it.
    pub fn mark_synced(&self, unit: UnitId) {
        self.core().mark_synced(unit);
    }

    /// Says that all units are known that the first discovery found.
    pub fn set_discovered(&self) {
        self.core().set_discovered();
    }

    /// Returns whether some reader shall see the `round`-th resync of `unit` (S-11), one that nobody is due for need
    /// not be made. Ask before each round: what readers are due for is counted from the last one asked for.
    pub fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.core().is_resync_due(unit, round)
    }

    /// Closes a reader and forgets what waited for it, and its name: not for the end of a process. May block on the disk.
    pub fn close_reader(&self, reader: ReaderId) {
        let mut core = self.core();
        let name = core.reader_name(reader).map(str::to_owned);
        core.close_reader(reader);
        drop(core);
        self.wakers().remove(&reader);
        if let (Some(name), Some(disk)) = (name, self.disk()) {
            let _saving = lock(&disk.saving); // nor is it saved again
            self.remove_reader(&name);
        }
    }

    /// Returns the next records, in order, at most `max_events` of them, and of at most `max_bytes` unless one alone
    /// has more. They are in flight until they are acknowledged; at most `max_events` of the reader's bounds are.
    ///
    /// A record of a new object is held back while the deletion of another object of that name is in flight (D7).
    ///
    /// What the reader's filter refuses is acknowledged, and not among them.
    ///
    /// What waits in the store is read from there, which blocks on the disk: see [`Journal::fetch`].
    pub fn read(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            self.load(reader);
            if let ControlFlow::Break(batch) = self.read_judged(reader, max_events, max_bytes) {
                return batch;
            }
        }
    }

    /// Reads once; goes on where all that was read is refused, and there may be more.
    fn read_judged(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> ControlFlow<Vec<Record>> {
        let mut core = self.core();
        let max_events = if core.has_filter(reader) { max_events.min(JUDGED_MAX) } else { max_events };
        let mut batch = core.read(reader, max_events, max_bytes);
        let Some(unjudged) = core.to_judge(reader, &batch) else { return ControlFlow::Break(batch) };
        drop(core);
        let judged = unjudged.judge();
        self.core().judged(reader, &judged);
        if !judged.refused.is_empty() {
            self.call_for_save();
        }
        batch.retain(|record| !judged.refuses(record.sequence));
        if batch.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(batch) }
    }

    /// As [`Journal::read`], without blocking the thread it is awaited on. Nothing is in flight if it is dropped early.
    pub async fn fetch(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            match self.try_fetch(reader, max_events, max_bytes).await {
                ControlFlow::Break(batch) => return batch,
                ControlFlow::Continue(()) => tokio::task::yield_now().await,
            }
        }
    }

    /// As [`Journal::fetch`], once: `Continue` where all that was read is refused by the reader's filter, and there may be
    /// more.
    pub async fn try_fetch(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> ControlFlow<Vec<Record>> {
        self.load_elsewhere(reader).await;
        self.read_judged(reader, max_events, max_bytes)
    }

    async fn load_elsewhere(&self, reader: ReaderId) {
        if self.disk().is_some() && !self.core().to_load(reader).places.is_empty() {
            let journal = self.clone();
            if tokio::task::spawn_blocking(move || journal.load(reader)).await.is_err() {
                error!("reading the journal has panicked, it is tried again");
                self.nudge(reader);
            }
        }
    }

    /// Brings what waits next for a reader from the store into memory.
    fn load(&self, reader: ReaderId) {
        let Some(disk) = self.disk() else { return };
        let core = self.core();
        let asked = core.to_load(reader);
        let Some(first) = asked.places.first() else { return };
        let name = core.reader_name(reader).map(str::to_owned).unwrap_or_default();
        drop(core);
        match disk.store.load_for(&name, &asked.places) {
            Ok(records) => {
                let missing = asked.places.len() - records.len();
                let is_taken = self.core().loaded(reader, &asked, records);
                if missing > 0 && is_taken {
                    warn!(missing, first, "records that a reader waits for are not in the state");
                }
            }
            // The reader is woken when the store works again.
            Err(error) => drop(disk.fail(&error)),
        }
    }

    /// Acknowledges everything read up to `sequence`; it is forgotten.
    pub fn ack(&self, reader: ReaderId, sequence: Sequence) {
        self.core().ack(reader, sequence);
        self.call_for_save();
    }

    /// Acknowledges some of what was read, in any order; what is not in flight is ignored. Returns how many were.
    pub fn ack_each(&self, reader: ReaderId, sequences: &[Sequence]) -> usize {
        let acknowledged = self.core().ack_each(reader, sequences);
        self.call_for_save();
        acknowledged
    }

    /// Acknowledges some of what was read, and remembers it for [`Journal::replay`]. Without a store, and of a reader
    /// without a name, the newest thousand are kept, within its bounds; else all, for the time of `retention` from now on.
    pub fn give_up(&self, reader: ReaderId, sequences: &[Sequence]) {
        if let (Some(disk), Some(first)) = (self.disk(), sequences.iter().min()) {
            lock(&disk.retention).note_given_up(Timestamp::now().as_microsecond(), *first);
        }
        self.core().give_up(reader, sequences);
        self.call_for_save();
    }

    /// Lets everything wait again that a reader gave up and that is still kept; it is read before what waits already, but
    /// for what is in flight or was [rewound](Journal::rewind).
    pub fn replay(&self, reader: ReaderId) -> Replayed {
        let replayed = self.core().replay(reader);
        self.call_for_save();
        self.nudge(reader);
        replayed
    }

    fn call_for_save(&self) {
        if let Some(disk) = self.disk() {
            disk.bell.ring(|calls| calls.save = true);
        }
    }

    /// Hands out again, unmerged, what was read and not acknowledged.
    pub fn rewind(&self, reader: ReaderId) {
        self.core().rewind(reader);
    }

    /// Drops everything that waits for a reader or is in flight, counted and named, and shows it nothing more: for a
    /// handler that has ended while its numbers are still to be seen. A reader with a name loses nothing where there is a
    /// store: it goes on here after a restart.
    pub fn abandon(&self, reader: ReaderId) {
        self.core().abandon(reader);
    }

    /// Waits until there may be something new to read; returns at once if that was so since the last call.
    pub async fn readable(&self, reader: ReaderId) {
        let waker = self.wakers().get(&reader).cloned();
        match waker {
            Some(waker) => waker.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Wakes [`Journal::readable`] of one reader.
    pub fn nudge(&self, reader: ReaderId) {
        self.wake(&[reader]);
    }

    /// Returns of which record its filter could say nothing the last time, and why.
    pub fn last_filter_error(&self, reader: ReaderId) -> Option<String> {
        self.core().failures(reader).last
    }

    /// Returns what there is to see of a reader.
    pub fn stats(&self, reader: ReaderId) -> ReaderStats {
        self.core().stats(reader)
    }

    /// Names what was dropped since the last call.
    pub fn take_losses(&self, reader: ReaderId) -> Losses {
        self.core().take_losses(reader)
    }

    /// Names what waits for a reader or is in flight, oldest first, up to `limit` events.
    /// May block on the disk.
    pub fn undelivered(&self, reader: ReaderId, limit: usize) -> Vec<EventName> {
        let core = self.core();
        let mut names = core.undelivered(reader, limit);
        let spilled = core.spilled(reader, limit - names.len());
        let name = core.reader_name(reader).map(str::to_owned).unwrap_or_default();
        drop(core);
        if let Some(disk) = self.disk()
            && !spilled.is_empty()
        {
            match disk.store.load_for(&name, &spilled) {
                Ok(records) => names.extend(records.iter().map(Record::event_name)),
                Err(error) => warn!(%error, "failed to name what waits in the state"),
            }
        }
        names
    }

    fn wake(&self, readers: &[ReaderId]) {
        self.shared.inner.wake(readers);
    }

    fn core(&self) -> MutexGuard<'_, MemoryJournal> {
        self.shared.inner.core()
    }

    fn wakers(&self) -> MutexGuard<'_, HashMap<ReaderId, Arc<Notify>>> {
        lock(&self.shared.inner.wakers)
    }

    fn disk(&self) -> Option<&Disk> {
        self.shared.inner.disk.as_ref()
    }
}

#[cfg(test)]
impl Journal {
    pub(super) fn shared_core(&self) -> MutexGuard<'_, MemoryJournal> {
        self.core()
    }
}

impl Inner {
    pub(super) fn core(&self) -> MutexGuard<'_, MemoryJournal> {
        lock(&self.core)
    }

    pub(super) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    pub(super) fn wake(&self, readers: &[ReaderId]) {
        if readers.is_empty() {
            return;
        }
        // Whoever is woken asks for this lock first, and to wake a thread takes long: it is not held meanwhile.
        let wakers = lock(&self.wakers);
        let woken: Vec<_> = readers.iter().filter_map(|reader| wakers.get(reader)).cloned().collect();
        drop(wakers);
        for waker in woken {
            waker.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        lock(&self.wakers).values().for_each(|waker| waker.notify_one());
    }

    /// Makes durable what is written.
    pub(super) fn sync(&self, disk: &Disk) -> Result<(), StoreError> {
        let to_sync = self.core().to_sync();
        disk.sync()?;
        if let Some(to) = to_sync {
            let mut core = self.core();
            let woken = core.synced(to);
            let unsynced = core.unsynced_bytes();
            drop(core);
            disk.set_unsynced(unsynced);
            self.wake(&woken);
        }
        Ok(())
    }

    /// Saves where readers stand, as far as that changed; returns whether it did.
    pub(super) fn save(&self, disk: &Disk) -> Result<bool, StoreError> {
        let mut unfinished = lock(&disk.saving);
        self.finish_step(disk, &mut unfinished)?;
        let states = self.core().save();
        if states.is_empty() {
            return Ok(false);
        }
        let saved = disk.store.put_readers(&states);
        self.core().saved(&states, saved.is_ok());
        saved.map(|()| true)
    }

    /// Writes what a step of a compaction has found, with where its reader stands, and makes it durable. After an error it
    /// may be written or not: nothing is read for its reader until it is, before all that is saved. What was read of it and
    /// then lost would be followed by the states that it had merged.
    pub(super) fn put_compacted(&self, disk: &Disk, reader: ReaderId, step: CompactionStep) -> Result<(), StoreError> {
        let mut unfinished = lock(&disk.saving);
        *unfinished = Some((reader, step));
        self.finish_step(disk, &mut unfinished)
    }

    fn finish_step(&self, disk: &Disk, unfinished: &mut Option<(ReaderId, CompactionStep)>) -> Result<(), StoreError> {
        let Some((reader, step)) = unfinished else { return Ok(()) };
        let state = self.core().compacting(*reader, &step.written, &step.superseded);
        if let Some(state) = state {
            let saved = disk.store.put_compacted(step, &state).and_then(|()| self.sync(disk));
            let mut core = self.core();
            if saved.is_err() {
                core.saved(std::slice::from_ref(&state), false);
                return saved;
            }
            core.compacted(*reader, &step.superseded, &state);
            drop(core);
            self.wake(&[*reader]);
        } // else it was closed meanwhile
        *unfinished = None;
        Ok(())
    }
}

/// What has a ticket and is not written: taken back if the writing fails, or panics.
struct Ticketed<'a> {
    inner: &'a Inner,
    ticket: Ticket,
    is_written: bool,
}

impl Drop for Ticketed<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            let woken = self.inner.core().take_back(self.ticket);
            self.inner.wake(&woken);
        }
    }
}
