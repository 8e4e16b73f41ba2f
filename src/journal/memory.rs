//! The core of the journal: what was appended and is not visible yet, and the readers.
//!
//! A batch that becomes visible is handed to the readers that want it, and kept nowhere else in memory: records that wait for
//! one reader are never held for others (I5, I7). Joins and leaves are batches too, so each takes effect in its turn.
//!
//! With a store, the caller writes what is appended. It reports what is [written](MemoryJournal::written) and what is
//! [durable](MemoryJournal::synced), and reads what a slow reader [waits for](super::reader::JournalReader::to_load). Visible
//! is what was released and is durable; with [`Durability::Interval`], what was released and is written.

mod readers;
mod units;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use super::{
    Fenced, ReaderId, Record, Sequence, Ticket, UnitId,
    reader::JournalReader,
    store::{NOBODY, Recovered, StoredReader},
    units::{Crossing, JournalUnit, Lane, Units},
};
use crate::change::{Cause, Change, Reached};

/// The pure core of [`Journal`](super::Journal), whose methods say what these do.
#[derive(Debug)]
pub(crate) struct MemoryJournal {
    /// Position of the next record. The first is 1.
    next: u64,
    /// The released watermark: everything up to here is visible.
    mark: u64,
    /// Batches above the watermark, in append order.
    pending: VecDeque<Batch>,
    units: Units,
    /// Position at which the initial state of a type was complete.
    synced: HashMap<Lane, Sequence>,
    discovered: bool,
    readers: BTreeMap<ReaderId, JournalReader>,
    next_reader: u32,
    /// Above the ids of all units.
    pub(super) next_unit: u32,
    durability: Durability,
    /// Batches that are not durable, in append order.
    unsynced: VecDeque<Unsynced>,
    /// Bytes of their bodies.
    pub(super) unsynced_bytes: usize,
    /// Readers of the last run that were not opened again.
    pub(super) dormant: BTreeMap<Box<str>, StoredReader>,
    /// The first position whose record may be kept.
    kept_from: u64,
}

/// When a released batch becomes visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Durability {
    /// At once: there is no store.
    #[default]
    Memory,
    /// Once it is written.
    Interval,
    /// Once it is durable.
    Group,
}

/// An append to a store that could be lost with the machine. It has records.
#[derive(Clone, Debug)]
pub(super) struct Unsynced {
    pub(super) unit: UnitId,
    pub(super) ticket: Ticket,
    pub(super) records: Arc<Vec<Record>>,
    /// Name of the only reader that it is for.
    pub(super) only: Option<Box<str>>,
    pub(super) reached: Option<Reached>,
    written: bool,
}

/// The records of one append.
#[derive(Debug)]
struct Batch {
    unit: UnitId,
    ticket: Ticket,
    records: Arc<Vec<Record>>,
    turn: Turn,
    released: bool,
    written: bool,
}

/// Effect of a batch when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Readers that see its unit are shown it.
    Show,
    /// It is for one reader alone, and begins or ends what that sees of the unit.
    Cross {
        reader: ReaderId,
        crossing: Crossing,
        /// The unit's last resync before.
        round: u32,
        /// The reader's interest in the resyncs after it.
        resync_every: u32,
    },
    /// It is the unit's first state, and for no reader.
    Seed,
    /// It ends what all readers see of the unit.
    Retire,
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self {
            next: 1,
            mark: 0,
            pending: VecDeque::new(),
            units: HashMap::new(),
            synced: HashMap::new(),
            discovered: false,
            readers: BTreeMap::new(),
            next_reader: 0,
            next_unit: 0,
            durability: Durability::Memory,
            unsynced: VecDeque::new(),
            unsynced_bytes: 0,
            dormant: BTreeMap::new(),
            kept_from: 1,
        }
    }
}

impl MemoryJournal {
    /// Makes the core of a journal with a store, as the last run left it. Everything written counts as released.
    pub(crate) fn restored(durability: Durability, recovered: &Recovered) -> Self {
        // A reader's position may lie behind what is lost: it has decided about these records.
        let positions = recovered.readers.iter().map(|reader| reader.position.0);
        let last = positions.fold(recovered.last.0, u64::max);
        let dormant = recovered.readers.iter().map(|reader| (reader.name.as_str().into(), reader.clone()));
        let mut journal = Self {
            next: last + 1,
            mark: last,
            durability,
            dormant: dormant.collect(),
            kept_from: recovered.first.0,
            ..Self::default()
        };
        let mut synced: HashMap<Lane, bool> = HashMap::new();
        for stored in &recovered.units {
            journal.add_unit(stored.id, stored.terms);
            let unit = journal.unit(stored.id);
            unit.retired = stored.retired.is_some();
            if !unit.retired {
                *synced.entry(unit.origin.lane).or_insert(true) &= stored.reached.synced;
            }
        }
        let synced = synced.into_iter().filter(|(_, is_synced)| *is_synced);
        journal.synced = synced.map(|(lane, _)| (lane, Sequence(last))).collect();
        journal
    }

    fn is_stored(&self) -> bool {
        self.durability != Durability::Memory
    }

    /// Appends invisible records. With a store they are to be [written](Self::written), or [taken back](Self::take_back).
    pub(crate) fn append(
        &mut self,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Ticket, Fenced> {
        self.check_epoch(unit, epoch)?;
        Ok(self.push(unit, changes, now_micros, Turn::Show))
    }

    /// Appends the first state of a unit, which no reader sees. It is to be written like an append.
    pub(crate) fn seed(&mut self, unit: UnitId, changes: &[Change], now_micros: i64) -> Ticket {
        self.push(unit, changes, now_micros, Turn::Seed)
    }

    /// Appends released records for one reader. In its turn, the reader begins or ceases to see the unit. `None` where it
    /// is closed. It is to be written like an append.
    pub(crate) fn cross(
        &mut self,
        (reader, crossing): (ReaderId, Crossing),
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Option<Ticket>, Fenced> {
        self.check_epoch(unit, epoch)?;
        let round = self.units[&unit].round;
        let Some(resync_every) = self.readers.get(&reader).map(|reader| reader.resync_every(unit)) else {
            return Ok(None);
        };
        Ok(Some(self.push(unit, changes, now_micros, Turn::Cross { reader, crossing, round, resync_every })))
    }

    fn push(&mut self, unit: UnitId, changes: &[Change], now_micros: i64, turn: Turn) -> Ticket {
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
                Turn::Cross { reader, .. } => Some(self.address(reader)),
                Turn::Seed => Some(NOBODY.into()),
                _ => None,
            };
            // at an interval many wait for it
            let records = match self.durability {
                Durability::Interval => Arc::new(records.iter().map(Record::packed).collect()),
                _ => Arc::clone(&records),
            };
            self.unsynced_bytes += bytes(&records);
            self.unsynced.push_back(Unsynced { unit, ticket, records, only, reached: None, written: false });
        }
        if !is_empty || !matches!(turn, Turn::Show | Turn::Seed) {
            let (released, written) = (turn != Turn::Show, is_empty || !is_stored);
            self.pending.push_back(Batch { unit, ticket, records, turn, released, written });
        }
        ticket
    }

    /// Returns whether a join or a leave of that reader and unit waits for its turn.
    pub(crate) fn is_crossing(&self, reader: ReaderId, unit: UnitId) -> bool {
        let waits = |batch: &Batch| matches!(batch.turn, Turn::Cross { reader: of, .. } if of == reader);
        self.pending.iter().any(|batch| batch.unit == unit && waits(batch))
    }

    /// Notes that the store has an append, which brings the unit to `reached`. Returns the readers that have something new.
    /// Takes the append back, and fails, when the unit was taken over meanwhile.
    pub(crate) fn written(
        &mut self,
        (unit, epoch): (UnitId, u64),
        ticket: Ticket,
        reached: Option<&Reached>,
    ) -> Result<Vec<ReaderId>, Fenced> {
        if let Err(fenced) = self.check_epoch(unit, epoch) {
            drop(self.take_back(ticket));
            return Err(fenced);
        }
        if let Some(batch) = self.unsynced.iter_mut().rfind(|batch| batch.ticket == ticket) {
            (batch.written, batch.reached) = (true, reached.cloned());
        }
        if let Some(batch) = self.pending.iter_mut().rfind(|batch| batch.ticket == ticket) {
            batch.written = true;
        }
        Ok(self.raise())
    }

    /// Takes back an append that the store refused. Returns the readers that have something new: it stood before that.
    pub(crate) fn take_back(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        if let Some(at) = self.unsynced.iter().position(|batch| batch.ticket == ticket) {
            let batch = self.unsynced.remove(at).expect("it was just found");
            self.unsynced_bytes -= bytes(&batch.records);
        }
        self.pending.retain(|batch| batch.ticket != ticket);
        self.raise()
    }

    /// Returns the position up to which everything is written; `None` where all of it is durable. A sync of the store that
    /// begins after this makes it durable.
    pub(crate) fn to_sync(&self) -> Option<Sequence> {
        self.unsynced.iter().take_while(|batch| batch.written).last().map(|batch| batch.ticket.last)
    }

    /// Raises the durable watermark. Returns the readers that have something new.
    pub(crate) fn synced(&mut self, to: Sequence) -> Vec<ReaderId> {
        while let Some(batch) = self.unsynced.pop_front_if(|batch| batch.ticket.last <= to) {
            self.unsynced_bytes -= bytes(&batch.records);
        }
        self.raise()
    }

    /// Returns what is written and not durable, to be written again after an error of the disk.
    pub(super) fn unsynced(&self) -> Vec<Unsynced> {
        self.unsynced.iter().filter(|batch| batch.written).cloned().collect()
    }

    /// Returns the durable watermark; without a store, the last position.
    pub(crate) fn durable(&self) -> Sequence {
        Sequence(self.unsynced.front().map_or(self.next, |batch| batch.ticket.first.0) - 1)
    }

    /// Makes a ticket's records visible once all older ones are. Returns the readers that have something new.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        if let Some(batch) = self.pending.iter_mut().find(|batch| batch.ticket == ticket && batch.turn == Turn::Show) {
            batch.released = true;
        }
        self.raise()
    }

    /// Returns the oldest outstanding append of a unit; one that is being written may yet be taken back.
    pub(crate) fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        let is_outstanding = |batch: &&Batch| batch.unit == unit && batch.written && !batch.released;
        self.pending.iter().find(is_outstanding).map(|batch| batch.ticket)
    }

    /// Returns the released watermark.
    pub(crate) fn released(&self) -> Sequence {
        Sequence(self.mark)
    }

    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.next - 1)
    }

    /// Makes visible what was released and has nothing outstanding before it. Returns the readers that have something new.
    pub(crate) fn raise(&mut self) -> Vec<ReaderId> {
        let mut woken = Vec::new();
        let (durability, durable) = (self.durability, self.durable());
        let is_durable = |batch: &Batch| durability != Durability::Group || batch.ticket.last <= durable;
        let is_due = |batch: &mut Batch| batch.released && batch.written && is_durable(batch);
        while let Some(batch) = self.pending.pop_front_if(is_due) {
            self.hand_out(&batch, &mut woken);
        }
        self.mark = self.pending.front().map_or(self.next, |batch| batch.ticket.first.0) - 1;
        woken
    }

    fn hand_out(&mut self, batch: &Batch, woken: &mut Vec<ReaderId>) {
        let Some(unit) = self.units.get_mut(&batch.unit).filter(|unit| !unit.retired) else { return };
        let mut wake = |id: ReaderId| {
            if !woken.contains(&id) {
                woken.push(id);
            }
        };
        match batch.turn {
            Turn::Seed => return,
            Turn::Retire => {
                unit.retired = true;
                return self.readers.values_mut().for_each(|reader| reader.forget_unit(batch.unit, None));
            }
            Turn::Cross { reader: id, crossing, round, resync_every } => {
                let Some(reader) = self.readers.get_mut(&id) else { return };
                let unit = JournalUnit { round, ..*unit };
                if reader.cross(crossing, &batch.records, batch.ticket.last, &unit, resync_every) {
                    wake(id);
                }
                return;
            }
            Turn::Show => {}
        }
        for record in &*batch.records {
            match record.change {
                // a later round may have been noted while this one waited for its turn
                Change::Unchanged { cause: Cause::Resync { round }, .. } => unit.round = unit.round.max(round),
                Change::Synced { .. } => drop(self.synced.entry(unit.origin.lane).or_insert(record.sequence)),
                _ => {}
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
    /// As [`MemoryJournal::cross`], without a store.
    pub(super) fn join(
        &mut self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Vec<ReaderId>, Fenced> {
        self.cross((reader, Crossing::Join), unit, epoch, changes, now_micros)?;
        Ok(self.raise())
    }

    /// As [`MemoryJournal::cross`], without a store.
    pub(super) fn leave(
        &mut self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Vec<ReaderId>, Fenced> {
        self.cross((reader, Crossing::Leave), unit, epoch, changes, now_micros)?;
        Ok(self.raise())
    }

    /// Asserts what must hold between any two calls.
    pub(crate) fn check(&self) {
        let is_due = |batch: &Batch| {
            let is_durable = self.durability != Durability::Group || batch.ticket.last <= self.durable();
            batch.released && batch.written && is_durable
        };
        assert!(self.pending.front().is_none_or(|batch| !is_due(batch)), "a visible batch is held back");
        assert_eq!(self.unsynced_bytes, self.unsynced.iter().map(|batch| bytes(&batch.records)).sum::<usize>());
        assert!(
            self.durability != Durability::Group || self.released() <= self.durable(),
            "nothing above the durable mark"
        );
        assert!(self.mark < self.next);
        for (id, reader) in &self.readers {
            let stats = reader.stats(self.released());
            let sum = stats.acknowledged + stats.in_flight + stats.queued + stats.coalesced + stats.dropped;
            assert_eq!(stats.wanted, sum + stats.filtered, "reader {id:?}: {stats:?}");
            reader.check();
        }
    }
}

/// A reader that is open.
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
