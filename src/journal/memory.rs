//! The journal without a directory: what was appended and is not visible yet, and what each reader has still to read.
//!
//! A batch that becomes visible is handed to the readers that want it, and kept nowhere else: what waits for one reader
//! is never held for others (I5, I7). Joins and leaves are batches too, so each takes effect in its place.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{
    Bounds, EventName, Fenced, Gap, Interest, Losses, ReaderId, ReaderOptions, ReaderStats, Record, Sequence, Start,
    Ticket, UnitId, UnitTerms, reader::Reader,
};
use crate::indexer::{Cause, Change};

/// The pure core of [`Journal`](super::Journal), whose methods say what these do.
#[derive(Debug)]
pub struct MemoryJournal {
    /// The next record's place; the first is 1.
    next: u64,
    /// Everything up to here is visible.
    mark: u64,
    /// What lies above the mark, in append order.
    pending: VecDeque<Batch>,
    units: HashMap<UnitId, Unit>,
    /// Where the initial state of a type was complete.
    synced: HashMap<Lane, Sequence>,
    discovered: bool,
    readers: BTreeMap<ReaderId, Reader>,
    next_reader: u32,
}

/// Names what the units of one type share: an object is in one of them only, and may move to another.
pub(super) type Lane = u64;

/// What readers need to know of the unit that a record is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) lane: Lane,
    /// Its cache holds the bodies of living objects.
    pub(super) cached: bool,
}

/// One unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) id: UnitId,
    pub(super) origin: Origin,
    /// Nothing of its first list existed at the very first start.
    pub(super) late: bool,
    /// Its last resync.
    pub(super) round: u32,
    /// Its own part of the initial state is complete.
    synced: bool,
    /// It appends nothing more, and nobody sees it.
    retired: bool,
    epoch: u64,
}

impl Unit {
    fn new(id: UnitId) -> Self {
        // A unit of which nothing was said shares its lane with no other.
        let origin = Origin { lane: u64::MAX - u64::from(id.0), cached: true };
        Self { id, origin, late: false, round: 0, synced: false, retired: false, epoch: 0 }
    }
}

/// The records of one append.
#[derive(Debug)]
struct Batch {
    unit: UnitId,
    ticket: Ticket,
    records: Vec<Record>,
    turn: Turn,
    released: bool,
}

/// What a batch does when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It is shown to those who see its unit.
    Show,
    /// It is for one reader alone, and begins or ends what that sees of the unit.
    Cross {
        reader: ReaderId,
        crossing: Crossing,
        /// The unit's last resync before.
        round: u32,
        /// Which of the resyncs after it the reader takes.
        resync_every: u32,
    },
    /// It ends what all readers see of the unit.
    Retire,
}

/// What changes for a reader that a batch is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    Join,
    Leave,
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
        }
    }
}

impl MemoryJournal {
    /// Says what a unit is.
    pub fn add_unit(&mut self, unit: UnitId, terms: UnitTerms) {
        let origin = Origin { lane: u64::from(terms.resource.0), cached: terms.cached };
        let entry = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        (entry.origin, entry.late) = (origin, terms.late);
        for reader in self.readers.values_mut() {
            reader.set_lane(unit, origin.lane);
        }
    }

    /// Ends what readers see of a unit, in its turn; returns the place of its last record at most.
    pub fn retire_unit(&mut self, unit: UnitId) -> Sequence {
        let batch = self.batch(unit, &[], 0);
        self.pending.push_back(Batch { turn: Turn::Retire, released: true, ..batch });
        drop(self.raise());
        self.last()
    }

    /// Forgets a unit.
    pub fn forget_unit(&mut self, unit: UnitId) {
        let Some(Unit { origin, .. }) = self.units.remove(&unit) else { return };
        let is_last = self.units.values().all(|unit| unit.origin.lane != origin.lane);
        if is_last {
            self.synced.remove(&origin.lane);
        }
        for reader in self.readers.values_mut() {
            reader.forget_unit(unit, is_last.then_some(origin.lane));
        }
    }

    /// Says that all units of the first discovery are known.
    pub fn set_discovered(&mut self) {
        self.discovered = true;
    }

    /// Notes that a unit's own part of the initial state is complete; its type is if the others' are.
    pub fn mark_synced(&mut self, unit: UnitId) {
        let place = self.last();
        let unit = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        unit.synced = true;
        let lane = unit.origin.lane;
        if self.units.values().filter(|unit| unit.origin.lane == lane && !unit.retired).all(|unit| unit.synced) {
            self.synced.entry(lane).or_insert(place);
        }
    }

    /// Appends invisible records.
    pub fn append(&mut self, unit: UnitId, epoch: u64, changes: &[Change], now_micros: i64) -> Result<Ticket, Fenced> {
        self.check_epoch(unit, epoch)?;
        let batch = self.batch(unit, changes, now_micros);
        let ticket = batch.ticket;
        if !changes.is_empty() {
            self.pending.push_back(batch);
        }
        Ok(ticket)
    }

    /// Appends records for one reader, which sees the unit from then on; returns the readers that have something new.
    pub fn join(
        &mut self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Vec<ReaderId>, Fenced> {
        self.cross(reader, Crossing::Join, unit, epoch, changes, now_micros)
    }

    /// Appends records for one reader, which does not see the unit any more; returns the readers that have something
    /// new.
    pub fn leave(
        &mut self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Vec<ReaderId>, Fenced> {
        self.cross(reader, Crossing::Leave, unit, epoch, changes, now_micros)
    }

    /// Makes a ticket's records visible as soon as all older ones are; returns the readers that have something new.
    pub fn release(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        if let Some(batch) = self.pending.iter_mut().find(|batch| batch.ticket == ticket && batch.turn == Turn::Show) {
            batch.released = true;
        }
        self.raise()
    }

    /// Returns the oldest outstanding append of a unit.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        self.pending.iter().find(|batch| batch.unit == unit && !batch.released).map(|batch| batch.ticket)
    }

    /// Refuses epochs before `epoch` from now on.
    pub fn fence(&mut self, unit: UnitId, epoch: u64) {
        let unit = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        unit.epoch = epoch.max(unit.epoch);
    }

    /// Takes back what is outstanding of a unit; returns how many records, and the readers that have something new.
    pub fn withdraw(&mut self, unit: UnitId) -> (usize, Vec<ReaderId>) {
        let mut withdrawn = 0;
        self.pending.retain(|batch| {
            let is_doomed = batch.unit == unit && !batch.released;
            withdrawn += if is_doomed { batch.records.len() } else { 0 };
            !is_doomed
        });
        (withdrawn, self.raise())
    }

    /// Returns the release mark.
    pub fn released(&self) -> Sequence {
        Sequence(self.mark)
    }

    /// Returns the place of the last record appended.
    pub fn last(&self) -> Sequence {
        Sequence(self.next - 1)
    }

    /// Returns the place up to which every reader is done with everything.
    pub fn passed(&self) -> Sequence {
        let positions = self.readers.values().filter_map(Reader::oldest).map(|oldest| oldest.sequence.0 - 1);
        Sequence(positions.fold(self.mark, u64::min))
    }

    /// Opens a reader.
    pub fn open_reader(&mut self, start: Start, options: ReaderOptions) -> Result<ReaderId, Gap> {
        let ReaderOptions { bounds, interest } = options;
        let mark = self.released();
        if let Start::After(asked) = start
            && asked != mark
        {
            return Err(Gap { asked, first: Sequence(mark.0 + 1), last: mark });
        }
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        self.readers.insert(id, Reader::new(bounds));
        self.set_interest(id, &interest);
        Ok(id)
    }

    /// Replaces what a reader wants.
    pub fn set_interest(&mut self, reader: ReaderId, interest: &Interest) {
        let Some(reader) = self.readers.get_mut(&reader) else { return };
        for unit in interest.units.keys() {
            self.units.entry(*unit).or_insert_with(|| Unit::new(*unit));
        }
        reader.set_interest(interest, &self.units, &self.synced, Sequence(self.next - 1));
    }

    /// Replaces how much may wait for a reader.
    pub fn set_bounds(&mut self, reader: ReaderId, bounds: Bounds) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.set_bounds(bounds);
        }
    }

    /// Closes a reader.
    pub fn close_reader(&mut self, reader: ReaderId) {
        self.readers.remove(&reader);
    }

    /// Returns the next records for a reader.
    pub fn read(&mut self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        self.readers.get_mut(&reader).map(|reader| reader.read(max_events, max_bytes)).unwrap_or_default()
    }

    /// Acknowledges what a reader has read up to `sequence`.
    pub fn ack(&mut self, reader: ReaderId, sequence: Sequence) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.ack(sequence);
        }
    }

    /// Hands out again what was read and not acknowledged.
    pub fn rewind(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.rewind();
        }
    }

    /// Drops what waits for a reader, and shows it nothing more.
    pub fn abandon(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.abandon();
        }
    }

    /// Returns what there is to see of a reader.
    pub fn stats(&self, reader: ReaderId) -> ReaderStats {
        self.readers.get(&reader).map(|reader| reader.stats(self.mark)).unwrap_or_default()
    }

    /// Returns whether a reader is done with the initial state of all that it takes.
    pub fn has_synced(&self, reader: ReaderId) -> bool {
        self.discovered && self.readers.get(&reader).is_some_and(|reader| reader.has_synced(&self.synced))
    }

    /// Returns whether a reader is due for a resync of a unit, which is noted.
    pub fn is_resync_due(&mut self, unit: UnitId, round: u32) -> bool {
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.round = round;
        }
        // Who joins in its turn may be due then.
        let is_joined = |batch: &Batch| batch.unit == unit && matches!(batch.turn, Turn::Cross { .. });
        self.readers.values().any(|reader| reader.is_resync_due(unit, round)) || self.pending.iter().any(is_joined)
    }

    /// Names what was dropped since the last call.
    pub fn take_losses(&mut self, reader: ReaderId) -> Losses {
        self.readers.get_mut(&reader).map(Reader::take_losses).unwrap_or_default()
    }

    /// Names what waits for a reader or is in flight.
    pub fn undelivered(&self, reader: ReaderId, limit: usize) -> Vec<EventName> {
        let Some(reader) = self.readers.get(&reader) else { return Vec::new() };
        reader.waiting().take(limit).map(Record::event_name).collect()
    }

    fn check_epoch(&mut self, unit: UnitId, epoch: u64) -> Result<(), Fenced> {
        let state = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        if epoch < state.epoch {
            return Err(Fenced { unit, epoch, current: state.epoch });
        }
        state.epoch = epoch;
        Ok(())
    }

    fn batch(&mut self, unit: UnitId, changes: &[Change], now_micros: i64) -> Batch {
        let first = self.next;
        let records = (first..).zip(changes).map(|(sequence, change)| Record {
            sequence: Sequence(sequence),
            unit,
            time_micros: now_micros,
            change: change.clone(),
            old_lost: change.lacks_old(),
        });
        let records: Vec<_> = records.collect();
        self.next += records.len() as u64;
        let ticket = Ticket { first: Sequence(first), last: Sequence(self.next - 1) };
        Batch { unit, ticket, records, turn: Turn::Show, released: false }
    }

    fn cross(
        &mut self,
        reader: ReaderId,
        crossing: Crossing,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Vec<ReaderId>, Fenced> {
        self.check_epoch(unit, epoch)?;
        let Some(resync_every) = self.readers.get(&reader).map(|reader| reader.resync_every(unit)) else {
            return Ok(Vec::new());
        };
        let batch = self.batch(unit, changes, now_micros);
        let turn = Turn::Cross { reader, crossing, round: self.units[&unit].round, resync_every };
        self.pending.push_back(Batch { turn, released: true, ..batch });
        Ok(self.raise())
    }

    /// Makes visible what was released and has nothing outstanding before it.
    fn raise(&mut self) -> Vec<ReaderId> {
        let mut woken = Vec::new();
        while let Some(batch) = self.pending.pop_front_if(|batch| batch.released) {
            self.hand_out(&batch, &mut woken);
        }
        self.mark = self.pending.front().map_or(self.next, |batch| batch.ticket.first.0) - 1;
        woken
    }

    fn hand_out(&mut self, batch: &Batch, woken: &mut Vec<ReaderId>) {
        let Some(unit) = self.units.get_mut(&batch.unit).filter(|unit| !unit.retired) else { return };
        match batch.turn {
            Turn::Show => {}
            Turn::Cross { reader: id, crossing, round, resync_every } => {
                let Some(reader) = self.readers.get_mut(&id) else { return };
                let unit = Unit { round, ..*unit };
                let news = reader.cross(crossing, &batch.records, batch.ticket.last, &unit, resync_every);
                if news && !woken.contains(&id) {
                    woken.push(id);
                }
                return;
            }
            Turn::Retire => {
                unit.retired = true;
                self.readers.values_mut().for_each(|reader| reader.forget_unit(batch.unit, None));
                return;
            }
        }
        for record in &batch.records {
            match record.change {
                // a later round may have been noted while this one waited for its turn
                Change::Unchanged { cause: Cause::Resync { round }, .. } => unit.round = unit.round.max(round),
                Change::Synced { .. } => {
                    unit.synced = true;
                    self.synced.entry(unit.origin.lane).or_insert(record.sequence);
                }
                _ => {}
            }
        }
        for (id, reader) in &mut self.readers {
            if reader.show(&batch.records, unit) && !woken.contains(id) {
                woken.push(*id);
            }
        }
    }
}

#[cfg(test)]
impl MemoryJournal {
    /// Returns how many records are kept for a reader, wanted or not.
    pub(super) fn held(&self, reader: ReaderId) -> usize {
        self.readers[&reader].held()
    }

    /// Asserts what must hold between any two calls.
    pub(super) fn check(&self) {
        assert!(self.pending.front().is_none_or(|batch| !batch.released), "a released batch is held back");
        assert!(self.mark < self.next);
        for (id, reader) in &self.readers {
            let stats = self.stats(*id);
            let sum = stats.acknowledged + stats.in_flight + stats.queued + stats.coalesced + stats.dropped;
            assert_eq!(stats.wanted, sum, "reader {id:?}: {stats:?}");
            reader.check();
        }
    }
}
