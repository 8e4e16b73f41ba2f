//! Core of the journal: appends that are not visible yet, and the readers.
//!
//! When a batch becomes visible, the journal passes it to the readers that want it, and keeps no other copy of a durable batch in
//! memory. So a record that waits for one reader uses no memory of other readers (E5, E7). Attachments are batches too, so
//! each takes effect after all earlier batches.
//!
//! With a store, the caller writes each append. It reports which appends are [written](MemoryJournal::written) and which are
//! [durable](MemoryJournal::synced). It also reads the [waiting records](super::reader::JournalReader::to_load) of slow readers
//! from the store. A batch is visible once it is released and durable; with [`Fsync::Interval`], once it is released and written.

mod readers;
pub(super) mod units;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU64,
    sync::Arc,
};

use educe::Educe;

use self::units::Units;
use super::{
    Fenced, Fsync, ReaderId, Record, Sequence, Ticket, TypeNumber, UnitId, UnitWriter,
    reader::JournalReader,
    store::{NOBODY, Recovered, StoredReader},
    timeline::{self, Appended, Timeline},
};
use crate::change::{Change, Reached};

/// Pure core of [`Journal`](super::Journal), which documents the methods of the same names.
#[derive(Debug, Educe)]
#[educe(Default)]
pub(crate) struct MemoryJournal {
    /// Position of the next record.
    #[educe(Default = 1)]
    next: u64,
    /// Released watermark: all records up to here are visible.
    released: Sequence,
    /// Batches above the watermark, in append order.
    pending: VecDeque<Batch>,
    units: Units,
    /// Position at which the initial state of a type was complete, for each such type.
    synced: HashMap<TypeNumber, Sequence>,
    /// Set when all units of the first discovery are known.
    pub(super) discovered: bool,
    readers: BTreeMap<ReaderId, JournalReader>,
    next_reader: u32,
    /// Id above the ids of all units.
    pub(super) next_unit: u32,
    /// Policy for when written records become durable; `None` without a store.
    fsync: Option<Fsync>,
    /// Batches that are not durable, in append order.
    unsynced: VecDeque<Unsynced>,
    /// Size of the bodies in `unsynced`.
    pub(super) unsynced_bytes: usize,
    /// Readers of the last run that were not opened again.
    pub(super) dormant: BTreeMap<Box<str>, StoredReader>,
    /// Position before which no record is kept.
    #[educe(Default = Sequence(1))]
    kept_from: Sequence,
    pub(crate) timeline: Timeline,
}

/// Append that is not durable: a failure of the machine could lose it. It has at least one record.
#[derive(Clone, Debug)]
pub(super) struct Unsynced {
    pub(super) unit: UnitId,
    pub(super) ticket: Ticket,
    pub(super) records: Arc<Vec<Record>>,
    /// Name of the only reader that gets the records; `None` for all readers.
    pub(super) only: Option<Box<str>>,
    pub(super) reached: Option<Reached>,
    written: bool,
}

/// Batch of one append.
#[derive(Debug)]
struct Batch {
    unit: UnitId,
    ticket: Ticket,
    records: Arc<Vec<Record>>,
    turn: Turn,
    /// Version that the unit reaches with the batch.
    version: Option<NonZeroU64>,
    released: bool,
    written: bool,
}

/// Effect of a batch when it becomes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Readers that see the unit get the records.
    Show,
    /// One reader gets the records, and starts or stops seeing the unit.
    Attachment {
        reader: ReaderId,
        /// `Some(n)` to attach: the reader gets every nth resync of the unit, unless a later interest sets another number. `None`
        /// to detach.
        attach: Option<u32>,
    },
    /// First state of the unit. No reader gets the records.
    Seed,
    /// All readers stop seeing the unit.
    Retire,
}

impl MemoryJournal {
    /// Returns the core for a journal with a store, as the last run left it. All written records count as released.
    pub(crate) fn restored(fsync: Fsync, recovered: &Recovered) -> Self {
        // A reader's position may be above the last record that survived. New records get positions above the reader's: the reader
        // would ignore lower ones, because it has already selected its records up to there.
        let positions = recovered.readers.iter().map(|reader| reader.position.0);
        let last = positions.fold(recovered.last.0, u64::max);
        let dormant = recovered.readers.iter().map(|reader| (reader.name.as_str().into(), reader.clone()));
        let mut journal = Self {
            next: last + 1,
            released: Sequence(last),
            fsync: Some(fsync),
            dormant: dormant.collect(),
            kept_from: recovered.first,
            timeline: Timeline::restored(
                &recovered.timeline,
                &recovered.tail,
                recovered.units.iter().map(|unit| (unit.id, timeline::number(unit.reached.resume_version.as_str()))),
                recovered.last,
            ),
            ..Self::default()
        };
        let mut synced: HashMap<TypeNumber, bool> = HashMap::new();
        for stored in &recovered.units {
            journal.add_unit(stored.id, stored.terms);
            let unit = journal.unit(stored.id);
            unit.retired = stored.retired.is_some();
            if !unit.retired {
                *synced.entry(unit.terms.resource).or_insert(true) &= stored.reached.synced;
            }
        }
        let synced = synced.into_iter().filter(|(_, is_synced)| *is_synced);
        journal.synced = synced.map(|(resource, _)| (resource, Sequence(last))).collect();
        journal
    }

    fn is_stored(&self) -> bool {
        self.fsync.is_some()
    }

    /// Appends invisible records. With a store, the caller must then call [`Self::written`] or [`Self::take_back`].
    pub(crate) fn append(
        &mut self,
        writer: UnitWriter,
        changes: &[Change],
        reached: &Reached,
        now_micros: i64,
    ) -> Result<Ticket, Fenced> {
        self.check_generation(writer)?;
        let unit = writer.unit;
        let version = timeline::number(reached.resume_version.as_str());
        if changes.is_empty() {
            self.reach(unit, version);
        }
        Ok(self.push(unit, version, changes, now_micros, Turn::Show))
    }

    /// Notes that a unit reaches a version without a change, once its earlier changes are visible.
    fn reach(&mut self, unit: UnitId, version: Option<NonZeroU64>) {
        match self.pending.iter_mut().rfind(|batch| batch.unit == unit && batch.turn == Turn::Show) {
            Some(batch) => batch.version = version.or(batch.version),
            None => self.timeline.reach(unit, version),
        }
    }

    /// Appends the first state of a unit, which no reader sees. The caller must then call [`Self::written`] or [`Self::take_back`].
    /// With `reached`, the state is complete.
    pub(crate) fn seed(
        &mut self,
        unit: UnitId,
        changes: &[Change],
        reached: Option<&Reached>,
        now_micros: i64,
    ) -> Ticket {
        let version = reached.and_then(|reached| timeline::number(reached.resume_version.as_str()));
        if changes.is_empty() {
            self.timeline.reach(unit, version);
        }
        self.push(unit, version, changes, now_micros, Turn::Seed)
    }

    /// Appends released records for one reader. When they become visible, the reader starts to see the unit if `attaches` is set, and
    /// otherwise stops seeing it. Returns `None`, and appends nothing, if the reader is closed or [needs no
    /// change](Self::changes_view). With a store, the caller must otherwise call [`Self::written`] or [`Self::take_back`].
    pub(crate) fn attach(
        &mut self,
        reader: ReaderId,
        attaches: bool,
        writer: UnitWriter,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Option<Ticket>, Fenced> {
        self.check_generation(writer)?;
        let unit = writer.unit;
        let Some(open) = self.readers.get(&reader).filter(|_| self.changes_view(reader, attaches, unit)) else {
            return Ok(None);
        };
        let attach = attaches.then(|| open.resync_every(unit));
        Ok(Some(self.push(unit, None, changes, now_micros, Turn::Attachment { reader, attach })))
    }

    fn push(
        &mut self,
        unit: UnitId,
        version: Option<NonZeroU64>,
        changes: &[Change],
        now_micros: i64,
        turn: Turn,
    ) -> Ticket {
        let first = self.next;
        let records = (first..).zip(changes).map(|(sequence, change)| Record {
            sequence: Sequence(sequence),
            unit,
            time_micros: now_micros,
            change: change.clone(),
            old_lost: change.lacks_old(),
        });
        let records: Arc<Vec<_>> = Arc::new(records.collect());
        self.next += records.len() as u64;
        let ticket = Ticket { first: Sequence(first), last: Sequence(self.next - 1) };
        let (is_empty, is_stored) = (records.is_empty(), self.is_stored());
        if !is_empty && is_stored {
            let only = match turn {
                Turn::Attachment { reader, .. } => Some(self.address(reader)),
                Turn::Seed => Some(NOBODY.into()),
                _ => None,
            };
            // With [`Fsync::Interval`] many records wait here, so they are kept packed.
            let records = match self.fsync {
                Some(Fsync::Interval(_)) => Arc::new(records.iter().map(Record::packed).collect()),
                _ => Arc::clone(&records),
            };
            self.unsynced_bytes += bytes(&records);
            self.unsynced.push_back(Unsynced { unit, ticket, records, only, reached: None, written: false });
        }
        if !is_empty || !matches!(turn, Turn::Show | Turn::Seed) {
            let (released, written) = (turn != Turn::Show, is_empty || !is_stored);
            self.pending.push_back(Batch { unit, ticket, records, turn, version, released, written });
        }
        ticket
    }

    /// Returns true if an attachment changes what an open reader sees, once its pending ones are visible. Records of one without
    /// an effect would reach the reader after a crash.
    pub(crate) fn changes_view(&self, reader: ReaderId, attaches: bool, unit: UnitId) -> bool {
        let pending = self.pending.iter().rev().find_map(|batch| match batch.turn {
            Turn::Attachment { reader: of, attach } if of == reader && batch.unit == unit => Some(attach.is_some()),
            _ => None,
        });
        let sees = || self.readers.get(&reader).is_some_and(|reader| reader.sees(unit));
        pending.unwrap_or_else(sees) != attaches
    }

    /// Calls `act`, which may make batches due, and makes all due batches visible. Returns the readers to wake.
    pub(crate) fn advance<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> (R, Vec<ReaderId>) {
        let result = act(self);
        (result, self.raise())
    }

    /// Notes that the store has written an append, and that the unit has thereby reached the versions in `reached`. If a newer
    /// generation owns the unit by now, takes the append back and fails.
    pub(crate) fn written(
        &mut self,
        writer: UnitWriter,
        ticket: Ticket,
        reached: Option<&Reached>,
    ) -> Result<(), Fenced> {
        if let Err(fenced) = self.check_generation(writer) {
            self.take_back(ticket);
            return Err(fenced);
        }
        if let Some(batch) = self.unsynced.iter_mut().rfind(|batch| batch.ticket == ticket) {
            (batch.written, batch.reached) = (true, reached.cloned());
        }
        if let Some(batch) = self.pending.iter_mut().rfind(|batch| batch.ticket == ticket) {
            batch.written = true;
        }
        Ok(())
    }

    /// Takes back an append that the store refused. Later batches may be due without it.
    pub(crate) fn take_back(&mut self, ticket: Ticket) {
        if let Some(at) = self.unsynced.iter().position(|batch| batch.ticket == ticket) {
            let batch = self.unsynced.remove(at).expect("it was just found");
            self.unsynced_bytes -= bytes(&batch.records);
        }
        self.pending.retain(|batch| batch.ticket != ticket);
    }

    /// Returns the position up to which all records are durable after a sync that starts now. Returns `None` if the sync makes no
    /// further record durable.
    pub(crate) fn to_sync(&self) -> Option<Sequence> {
        self.unsynced.iter().take_while(|batch| batch.written).last().map(|batch| batch.ticket.last)
    }

    /// Raises the durable watermark.
    pub(crate) fn synced(&mut self, to: Sequence) {
        while let Some(batch) = self.unsynced.pop_front_if(|batch| batch.ticket.last <= to) {
            self.unsynced_bytes -= bytes(&batch.records);
        }
    }

    /// Returns the appends that are written and not durable. They are written again after an error of the disk.
    pub(super) fn unsynced(&self) -> Vec<Unsynced> {
        self.unsynced.iter().filter(|batch| batch.written).cloned().collect()
    }

    /// Returns the durable watermark. Without a store this is the last position.
    pub(crate) fn durable(&self) -> Sequence {
        Sequence(self.unsynced.front().map_or(self.next, |batch| batch.ticket.first.0) - 1)
    }

    /// Lets the records of a ticket become visible, once all older records are.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        if let Some(batch) = self.pending.iter_mut().find(|batch| batch.ticket == ticket && batch.turn == Turn::Show) {
            batch.released = true;
        }
    }

    /// Returns the oldest append of a unit that is written and not released. Skips appends that are still being written, because
    /// they may be taken back.
    pub(crate) fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        let is_outstanding = |batch: &&Batch| batch.unit == unit && batch.written && !batch.released;
        self.pending.iter().find(is_outstanding).map(|batch| batch.ticket)
    }

    /// Returns the released watermark.
    pub(crate) fn released(&self) -> Sequence {
        self.released
    }

    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.next - 1)
    }

    /// Makes the oldest batches visible, up to the first one that is not due. A batch is due once it is released, and written or
    /// (with [`Fsync::Group`]) durable. Returns the readers to wake.
    fn raise(&mut self) -> Vec<ReaderId> {
        let mut woken = Vec::new();
        let (fsync, durable) = (self.fsync, self.durable());
        let is_durable = |batch: &Batch| fsync != Some(Fsync::Group) || batch.ticket.last <= durable;
        let is_due = |batch: &mut Batch| batch.released && batch.written && is_durable(batch);
        while let Some(batch) = self.pending.pop_front_if(is_due) {
            self.hand_out(&batch, &mut woken);
        }
        self.released = Sequence(self.pending.front().map_or(self.next, |batch| batch.ticket.first.0) - 1);
        woken
    }

    fn hand_out(&mut self, batch: &Batch, woken: &mut Vec<ReaderId>) {
        let Some(unit) = self.units.get_mut(&batch.unit).filter(|unit| !unit.retired) else { return };
        let mut wake = |id: ReaderId| {
            if !woken.contains(&id) {
                woken.push(id);
            }
        };
        if matches!(batch.turn, Turn::Show | Turn::Seed)
            && let Some(record) = batch.records.first()
        {
            let is_change =
                |record: &Record| !matches!(record.change, Change::Unchanged { .. } | Change::Synced { .. });
            self.timeline.note(&Appended {
                unit: batch.unit,
                first: batch.ticket.first,
                last: batch.ticket.last,
                has_changes: batch.records.iter().any(is_change),
                version: batch.version,
                micros: record.time_micros,
            });
        }
        match batch.turn {
            Turn::Seed => return,
            Turn::Retire => {
                unit.retired = true;
                return self.readers.values_mut().for_each(|reader| reader.forget_unit(batch.unit, None));
            }
            Turn::Attachment { reader: id, attach } => {
                let Some(reader) = self.readers.get_mut(&id) else { return };
                if reader.attach(attach, &batch.records, batch.ticket.last, unit) {
                    wake(id);
                }
                return;
            }
            Turn::Show => {}
        }
        for record in &*batch.records {
            if matches!(record.change, Change::Synced { .. }) {
                self.synced.entry(unit.terms.resource).or_insert(record.sequence);
            }
        }
        let unit = *unit;
        for (id, reader) in &mut self.readers {
            if reader.show(&batch.records, &unit, &self.units) {
                wake(*id);
            }
        }
    }
}

fn bytes(records: &[Record]) -> usize {
    records.iter().map(Record::body_bytes).sum()
}

#[cfg(test)]
impl MemoryJournal {
    /// Asserts the invariants between two calls.
    pub(crate) fn check(&self) {
        let is_due = |batch: &Batch| {
            let is_durable = self.fsync != Some(Fsync::Group) || batch.ticket.last <= self.durable();
            batch.released && batch.written && is_durable
        };
        assert!(self.pending.front().is_none_or(|batch| !is_due(batch)), "a visible batch is held back");
        assert_eq!(self.unsynced_bytes, self.unsynced.iter().map(|batch| bytes(&batch.records)).sum::<usize>());
        assert!(
            self.fsync != Some(Fsync::Group) || self.released() <= self.durable(),
            "nothing above the durable mark"
        );
        assert!(self.released.0 < self.next);
        for (id, reader) in &self.readers {
            let stats = reader.stats(self.released());
            let sum = stats.acknowledged + stats.in_flight + stats.queued + stats.coalesced + stats.dropped;
            assert_eq!(stats.wanted, sum + stats.filtered, "reader {id:?}: {stats:?}");
            reader.check();
        }
    }
}

#[cfg(test)]
impl std::ops::Index<ReaderId> for MemoryJournal {
    type Output = JournalReader;

    fn index(&self, reader: ReaderId) -> &JournalReader {
        &self.readers[&reader]
    }
}

#[cfg(test)]
impl std::ops::IndexMut<ReaderId> for MemoryJournal {
    fn index_mut(&mut self, reader: ReaderId) -> &mut JournalReader {
        self.readers.get_mut(&reader).expect("it is open")
    }
}
