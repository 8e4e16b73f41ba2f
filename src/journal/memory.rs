//! What was appended and is not visible yet, and what each reader has still to read.
//!
//! A batch that becomes visible is handed to the readers that want it, and kept nowhere else in memory: what waits for
//! one reader is never held for others (I5, I7). Joins and leaves are batches too, so each takes effect in its place.
//!
//! With a store the caller writes what is appended, says when that is [written](MemoryJournal::written) and when it is
//! [durable](MemoryJournal::synced), and reads what a slow reader [waits for](MemoryJournal::to_load). Visible is then
//! what was released and is durable; with [`Durability::Interval`] what was released and is written.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use roaring::RoaringTreemap;

use super::{
    Bounds, EventName, Fenced, Gap, Interest, Losses, ReaderId, ReaderOptions, ReaderStats, Record, Replayed, Sequence,
    Start, Ticket, TypeNumber, UnitId, UnitTerms,
    filter::{Failures, Judged, Unjudged},
    reader::{Held, Reader, needs, waits_from},
    recovery::Judge,
    spill::ToLoad,
    store::{NOBODY, Recovered, StoredReader},
};
use crate::indexer::{Cause, Change, store::Reached};

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
    next_unit: u32,
    durability: Durability,
    /// What was appended and is not durable, in append order.
    unsynced: VecDeque<Unsynced>,
    unsynced_bytes: usize,
    /// Readers of the last run that were not opened again.
    dormant: BTreeMap<Box<str>, StoredReader>,
    /// The first place whose record may be kept.
    kept_from: u64,
}

/// When a released batch becomes visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At once: there is no store.
    #[default]
    Memory,
    /// Once it is written.
    Interval,
    /// Once it is durable.
    Group,
}

/// What was appended to a store and could be lost with the machine.
#[derive(Clone, Debug)]
pub struct Unsynced {
    /// Its unit.
    pub unit: UnitId,
    /// Its places; there is at least one.
    pub ticket: Ticket,
    /// Its records.
    pub records: Arc<Vec<Record>>,
    /// They are for the reader of this name alone.
    pub only: Option<Box<str>>,
    /// How far it brings the unit.
    pub reached: Option<Reached>,
    written: bool,
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
    records: Arc<Vec<Record>>,
    turn: Turn,
    released: bool,
    written: bool,
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
    /// It is what the unit begins with, and for nobody.
    Seed,
    /// It ends what all readers see of the unit.
    Retire,
}

/// What changes for a reader that a batch is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// It sees the unit from then on.
    Join,
    /// It sees the unit no more.
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
    /// Makes the core of a journal with a store, as the last run left it: whatever was written counts as released.
    pub fn restored(durability: Durability, recovered: &Recovered) -> Self {
        // Behind what is lost, too: a reader has decided about these places.
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
        for unit in &recovered.units {
            journal.add_unit(unit.id, unit.terms);
            let known = journal.units.get_mut(&unit.id).expect("it was just added");
            (known.retired, known.synced) = (unit.retired.is_some(), unit.reached.synced);
        }
        let lanes: BTreeSet<_> = journal.units.values().map(|unit| unit.origin.lane).collect();
        let is_synced = |lane: &Lane| {
            let mut units = journal.units.values().filter(|unit| unit.origin.lane == *lane && !unit.retired).peekable();
            units.peek().is_some() && units.all(|unit| unit.synced)
        };
        journal.synced = lanes.into_iter().filter(is_synced).map(|lane| (lane, Sequence(last))).collect();
        journal
    }

    fn is_stored(&self) -> bool {
        self.durability != Durability::Memory
    }

    /// Says what a unit is.
    pub fn add_unit(&mut self, unit: UnitId, terms: UnitTerms) {
        let origin = Origin { lane: u64::from(terms.resource.0), cached: terms.cached };
        let entry = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        (entry.origin, entry.late) = (origin, terms.late);
        self.next_unit = self.next_unit.max(unit.0 + 1);
        for reader in self.readers.values_mut() {
            reader.set_lane(unit, origin.lane);
        }
    }

    /// Ends what readers see of a unit, in its turn; returns the place of its last record at most, and the readers that
    /// have something new.
    pub fn retire_unit(&mut self, unit: UnitId) -> (Sequence, Vec<ReaderId>) {
        let batch = self.batch(unit, &[], 0);
        self.pending.push_back(Batch { turn: Turn::Retire, released: true, written: true, ..batch });
        let woken = self.raise();
        (self.last(), woken)
    }

    /// Returns what was said of a unit.
    pub fn terms(&self, unit: UnitId) -> Option<UnitTerms> {
        let Unit { origin, late, .. } = self.units.get(&unit)?;
        let resource = TypeNumber(u32::try_from(origin.lane).ok()?);
        Some(UnitTerms { resource, late: *late, cached: origin.cached })
    }

    /// Returns the first id above those of all units.
    pub fn next_unit(&self) -> UnitId {
        UnitId(self.next_unit)
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

    /// Forgets the units of the last run that are not in the store any more.
    pub fn forget_units_but(&mut self, is_known: impl Fn(UnitId) -> bool) {
        let gone: Vec<_> = self.units.keys().copied().filter(|unit| !is_known(*unit)).collect();
        for unit in gone {
            self.forget_unit(unit);
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

    /// Appends invisible records. With a store they are to be [written](Self::written), or [taken back](Self::take_back).
    pub fn append(&mut self, unit: UnitId, epoch: u64, changes: &[Change], now_micros: i64) -> Result<Ticket, Fenced> {
        self.check_epoch(unit, epoch)?;
        let batch = self.batch(unit, changes, now_micros);
        let ticket = batch.ticket;
        if !changes.is_empty() {
            self.note_unsynced(&batch, None);
            self.pending.push_back(batch);
        }
        Ok(ticket)
    }

    /// Takes up what a unit begins with: records that no reader sees, to be written as those of
    /// [`MemoryJournal::append`].
    pub fn seed(&mut self, unit: UnitId, changes: &[Change], now_micros: i64) -> Ticket {
        let batch = self.batch(unit, changes, now_micros);
        let ticket = batch.ticket;
        if !changes.is_empty() {
            self.note_unsynced(&batch, Some(NOBODY.into()));
            self.pending.push_back(Batch { turn: Turn::Seed, released: true, ..batch });
        }
        ticket
    }

    /// Returns by which name records are addressed to a reader.
    pub fn address(&self, reader: ReaderId) -> Box<str> {
        let name = self.readers.get(&reader).and_then(Reader::name);
        name.map_or_else(|| format!("#{}", reader.0).into(), Box::from)
    }

    /// Appends records for one reader, which sees the unit from then on, or no more; in its turn. With a store they are
    /// to be written before they are released, as those of [`MemoryJournal::append`]. None where the reader is closed.
    pub fn cross(
        &mut self,
        (reader, crossing): (ReaderId, Crossing),
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now_micros: i64,
    ) -> Result<Option<Ticket>, Fenced> {
        self.check_epoch(unit, epoch)?;
        let Some(resync_every) = self.readers.get(&reader).map(|reader| reader.resync_every(unit)) else {
            return Ok(None);
        };
        let batch = self.batch(unit, changes, now_micros);
        let ticket = batch.ticket;
        if !changes.is_empty() {
            self.note_unsynced(&batch, Some(self.address(reader)));
        }
        let turn = Turn::Cross { reader, crossing, round: self.units[&unit].round, resync_every };
        let written = batch.written || changes.is_empty();
        self.pending.push_back(Batch { turn, released: true, written, ..batch });
        Ok(Some(ticket))
    }

    /// Returns whether a join or a leave of that reader and unit waits for its turn.
    pub fn is_crossing(&self, reader: ReaderId, unit: UnitId) -> bool {
        let waits = |batch: &Batch| matches!(batch.turn, Turn::Cross { reader: of, .. } if of == reader);
        self.pending.iter().any(|batch| batch.unit == unit && waits(batch))
    }

    /// Notes that a reader is about to join a unit that has nothing to show it, before [`MemoryJournal::cross`]; its
    /// state is to be saved first.
    pub fn announce(&mut self, reader: ReaderId, unit: UnitId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.announce(unit);
        }
    }

    /// Notes that the store has what was appended, and how far that brings the unit; returns the readers that have
    /// something new.
    ///
    /// # Errors
    /// When the unit was taken over meanwhile: the append is taken back.
    pub fn written(
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

    /// Takes back what the store refused; returns the readers that have something new, because it stood before that.
    pub fn take_back(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        if let Some(at) = self.unsynced.iter().position(|batch| batch.ticket == ticket) {
            let batch = self.unsynced.remove(at).expect("it was just found");
            self.unsynced_bytes -= bytes(&batch.records);
        }
        self.pending.retain(|batch| batch.ticket != ticket);
        self.raise()
    }

    /// Returns up to where everything is written; `None` where all that is durable. What comes before it is durable once
    /// the store says so that was asked after this.
    pub fn to_sync(&self) -> Option<Sequence> {
        self.unsynced.iter().take_while(|batch| batch.written).last().map(|batch| batch.ticket.last)
    }

    /// Notes that everything up to there is durable; returns the readers that have something new.
    pub fn synced(&mut self, to: Sequence) -> Vec<ReaderId> {
        while let Some(batch) = self.unsynced.pop_front_if(|batch| batch.ticket.last <= to) {
            self.unsynced_bytes -= bytes(&batch.records);
        }
        self.raise()
    }

    /// Returns what is written and not durable, to be written again after an error of the disk.
    pub fn unsynced(&self) -> Vec<Unsynced> {
        self.unsynced.iter().filter(|batch| batch.written).cloned().collect()
    }

    /// Returns the bytes of bodies that are not durable.
    pub fn unsynced_bytes(&self) -> usize {
        self.unsynced_bytes
    }

    /// Returns the place up to which everything is durable; without a store, up to which there is something.
    pub fn durable(&self) -> Sequence {
        Sequence(self.unsynced.front().map_or(self.next, |batch| batch.ticket.first.0) - 1)
    }

    /// Makes a ticket's records visible as soon as all older ones are; returns the readers that have something new.
    pub fn release(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        if let Some(batch) = self.pending.iter_mut().find(|batch| batch.ticket == ticket && batch.turn == Turn::Show) {
            batch.released = true;
        }
        self.raise()
    }

    /// Returns the oldest outstanding append of a unit; one that is being written may yet be taken back.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        let is_outstanding = |batch: &&Batch| batch.unit == unit && batch.written && !batch.released;
        self.pending.iter().find(is_outstanding).map(|batch| batch.ticket)
    }

    /// Refuses epochs before `epoch` from now on.
    pub fn fence(&mut self, unit: UnitId, epoch: u64) {
        let unit = self.units.entry(unit).or_insert_with(|| Unit::new(unit));
        unit.epoch = epoch.max(unit.epoch);
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
        let positions = self.readers.values().filter_map(Reader::first).map(|first| first.0 - 1);
        let dormant = self.dormant.values().map(|state| waits_from(state) - 1);
        Sequence(positions.chain(dormant).fold(self.mark, u64::min))
    }

    /// Opens a reader. With a store, one that goes on elsewhere than at the end is opened by
    /// [`MemoryJournal::open_judged`].
    pub fn open_reader(&mut self, start: Start, options: ReaderOptions) -> Result<ReaderId, Gap> {
        let ReaderOptions { bounds, interest, name } = options;
        let mark = self.released();
        if let Start::After(asked) = start
            && asked != mark
        {
            return Err(Gap { asked, first: Sequence(mark.0 + 1), last: mark });
        }
        let reader = Reader::new(bounds);
        let reader = match name {
            Some(name) if self.is_stored() => {
                let state = StoredReader { name, position: mark, ..StoredReader::default() };
                reader.with_store().with_state(state, |_| None)
            }
            _ if self.is_stored() => reader.with_store(),
            _ => reader,
        };
        Ok(self.add_reader(reader, &interest))
    }

    fn add_reader(&mut self, reader: Reader, interest: &Interest) -> ReaderId {
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        self.readers.insert(id, reader);
        self.set_interest(id, interest);
        id
    }

    /// Returns who decides what of the records of the store a reader wants that goes on behind a place, or where its
    /// name stood in the last run; `None` where it begins at the end, by [`MemoryJournal::open_reader`].
    ///
    /// # Errors
    /// When some of these records are not kept any more, or not there yet.
    pub fn judge(&self, start: Start, options: &ReaderOptions) -> Result<Option<Judge>, Gap> {
        let mark = self.released();
        let name = options.name.as_deref();
        let (state, begins) = match (name.and_then(|name| self.dormant.get(name)), start) {
            _ if !self.is_stored() => return Ok(None),
            (Some(state), _) => (state.clone(), false),
            (None, Start::Next) => return Ok(None),
            (None, Start::After(asked)) if asked > mark || asked.0 + 1 < self.kept_from => {
                return Err(Gap { asked, first: Sequence(self.kept_from), last: mark });
            }
            (None, Start::After(asked)) => {
                let name = options.name.clone().unwrap_or_default();
                (StoredReader { name, position: asked, ..StoredReader::default() }, true)
            }
        };
        let units = self.units.iter().map(|(id, unit)| (*id, (unit.origin.lane, unit.late))).collect();
        Ok(Some(Judge::new(state, units, &options.interest, begins)))
    }

    /// Opens the reader that something was decided for, if that is all up to the release mark; else there is more to
    /// decide.
    pub fn open_judged(&mut self, judge: Judge, options: &ReaderOptions) -> Result<ReaderId, Box<Judge>> {
        if judge.position() != self.released() {
            return Err(Box::new(judge));
        }
        let lane = |unit: UnitId| self.units.get(&unit).filter(|unit| !unit.retired).map(|unit| unit.origin.lane);
        let mut reader = Reader::new(options.bounds).with_store().with_state(judge.into_state(), lane);
        match &options.name {
            Some(name) => drop(self.dormant.remove(name.as_str())),
            None => reader.forget_name(),
        }
        Ok(self.add_reader(reader, &options.interest))
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

    /// Returns the places of what has to be read from the store before there is something to read for a reader.
    pub fn to_load(&self, reader: ReaderId) -> ToLoad {
        self.readers.get(&reader).map(Reader::to_load).unwrap_or_default()
    }

    /// Takes what was read from the store at the places asked for, in order; what is not among it is lost. What was asked
    /// for before a compaction has changed it is ignored: ask again. Returns whether it was taken.
    pub fn loaded(&mut self, reader: ReaderId, asked: &ToLoad, records: Vec<Record>) -> bool {
        let Some(reader) = self.readers.get_mut(&reader) else { return false };
        reader.loaded(asked, records, |unit| self.units.get(&unit).map(|unit| unit.origin))
    }

    /// Returns the next records for a reader.
    pub fn read(&mut self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        self.readers.get_mut(&reader).map(|reader| reader.read(max_events, max_bytes)).unwrap_or_default()
    }

    /// Returns whether a reader has a filter.
    pub fn has_filter(&self, reader: ReaderId) -> bool {
        self.readers.get(&reader).is_some_and(Reader::has_filter)
    }

    /// Returns what has to be [judged](Self::judged) of records that were just read, before anybody is told of them; `None`
    /// where that is nothing.
    pub fn to_judge(&self, reader: ReaderId, read: &[Record]) -> Option<Unjudged> {
        self.readers.get(&reader)?.to_judge(read)
    }

    /// Takes over what was said of records that wait for a reader or are in flight: those that are refused are done with.
    pub fn judged(&mut self, reader: ReaderId, judged: &Judged) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.judged(judged);
        }
    }

    /// Returns of how many records nothing could be said, and why the last time.
    pub fn failures(&self, reader: ReaderId) -> Failures {
        self.readers.get(&reader).map(|reader| reader.failures().clone()).unwrap_or_default()
    }

    /// Acknowledges what a reader has read up to `sequence`.
    pub fn ack(&mut self, reader: ReaderId, sequence: Sequence) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.ack(sequence);
        }
    }

    /// Acknowledges some of what a reader has read, in any order; returns how many.
    pub fn ack_each(&mut self, reader: ReaderId, sequences: &[Sequence]) -> usize {
        self.readers.get_mut(&reader).map_or(0, |reader| reader.ack_each(sequences))
    }

    /// Acknowledges some of what a reader has read, and remembers it for a replay.
    pub fn give_up(&mut self, reader: ReaderId, sequences: &[Sequence]) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.give_up(sequences);
        }
    }

    /// Lets everything wait again that a reader gave up.
    pub fn replay(&mut self, reader: ReaderId) -> Replayed {
        let kept_from = Sequence(self.kept_from);
        self.readers.get_mut(&reader).map(|reader| reader.replay(kept_from)).unwrap_or_default()
    }

    /// Returns the units that a reader sees.
    pub fn joined(&self, reader: ReaderId) -> BTreeSet<UnitId> {
        self.readers.get(&reader).map(Reader::joined).unwrap_or_default()
    }

    /// Returns what to save of the readers of which something changed, and believes it is saved.
    pub fn save(&mut self) -> Vec<StoredReader> {
        let mark = self.released();
        self.readers.values_mut().filter_map(|reader| reader.save(mark)).collect()
    }

    /// Notes whether what was to be saved is.
    pub fn saved(&mut self, states: &[StoredReader], is_saved: bool) {
        let by_name: HashMap<_, _> = states.iter().map(|state| (state.name.as_str(), state)).collect();
        for reader in self.readers.values_mut() {
            match reader.name().and_then(|name| by_name.get(name)) {
                Some(state) if is_saved => reader.saved(state),
                Some(_) => reader.save_again(),
                None => {}
            }
        }
    }

    /// Returns the readers of the last run that were not opened again.
    pub fn dormant(&self) -> Vec<StoredReader> {
        self.dormant.values().cloned().collect()
    }

    /// Forgets a reader of the last run that is not opened again.
    pub fn forget_dormant(&mut self, name: &str) {
        self.dormant.remove(name);
    }

    /// Returns the reader that needs the oldest record of the log, of those with a name that need one up to `until`.
    pub fn compactable(&self, until: Sequence) -> Option<(ReaderId, &str)> {
        let slow =
            self.readers.iter().filter_map(|(id, reader)| Some((reader.compactable(until)?, *id, reader.name()?)));
        slow.min().map(|(_, id, name)| (id, name))
    }

    /// Returns how many records readers with a name wait for, in the log and in entries of their own.
    pub fn loads(&self) -> (u64, u64) {
        self.readers.values().map(Reader::loads).fold((0, 0), |sum, loads| (sum.0 + loads.0, sum.1 + loads.1))
    }

    /// Begins with the next step of a compaction of what waits for a reader up to `until`, of `max` places at most: nothing
    /// is read from the store until it is [released](Self::release_hold), or the step is [done](Self::compacted).
    pub fn hold(&mut self, reader: ReaderId, max: usize, until: Sequence) -> Option<Held> {
        self.readers.get_mut(&reader)?.hold(max, until)
    }

    /// Ends a step that has changed nothing.
    pub fn release_hold(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.release();
        }
    }

    /// Returns what to save of a reader with the entries that a step writes; `None` where it was closed meanwhile.
    pub fn compacting(
        &mut self,
        reader: ReaderId,
        written: &RoaringTreemap,
        superseded: &RoaringTreemap,
    ) -> Option<StoredReader> {
        let mark = self.released();
        self.readers.get_mut(&reader)?.compacting(written, superseded, mark)
    }

    /// Ends a step whose entries were saved with `state`.
    pub fn compacted(&mut self, reader: ReaderId, superseded: &RoaringTreemap, state: &StoredReader) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.compacted(superseded, state);
        }
    }

    /// Returns the first place whose record is needed: by a reader, be it after a crash, or because it is not visible.
    pub fn needed(&self) -> Sequence {
        let mark = self.released();
        let readers = self.readers.values().map(|reader| reader.needs(mark));
        let dormant = self.dormant.values().map(needs);
        let unsynced = self.unsynced.front().map(|batch| batch.ticket.first.0);
        Sequence(readers.chain(dormant).chain(unsynced).fold(mark.0 + 1, u64::min))
    }

    /// Returns the first place whose record may be kept.
    pub fn kept_from(&self) -> Sequence {
        Sequence(self.kept_from)
    }

    /// Returns the name of the reader that waits for the oldest record; none where no named one waits for any.
    pub fn slowest(&self) -> Option<String> {
        let open = self.readers.values().filter_map(|reader| Some((reader.first()?.0, reader.name()?)));
        let dormant = self.dormant.iter().map(|(name, state)| (waits_from(state), &**name));
        let slow = open.chain(dormant).filter(|(first, _)| *first <= self.mark);
        slow.min_by_key(|(first, _)| *first).map(|(_, name)| name.to_owned())
    }

    /// Returns whether a reader of that name is open.
    pub fn is_open(&self, name: &str) -> bool {
        self.readers.values().any(|reader| reader.name() == Some(name))
    }

    /// Notes that records before `first` are not kept any more.
    pub fn set_kept_from(&mut self, first: Sequence) {
        self.kept_from = self.kept_from.max(first.0);
        self.readers.values_mut().for_each(|reader| reader.forget_before(first));
    }

    /// Forgets what readers gave up before a place, and have in entries of their own.
    pub fn forget_entries_before(&mut self, place: Sequence) {
        self.readers.values_mut().for_each(|reader| reader.forget_entries_before(place));
    }

    /// Returns the place of the oldest record that waits in the store alone.
    pub fn first_spilled(&self) -> Option<Sequence> {
        let open = self.readers.values().filter_map(|reader| reader.spilled(1).first().copied());
        let dormant = self.dormant.values().map(waits_from).filter(|first| *first <= self.mark);
        open.chain(dormant).min().map(Sequence)
    }

    /// Returns, for each open reader that waits for something before `place`, what of it waits in the store alone.
    pub fn spilled_before(&self, place: Sequence) -> Vec<(ReaderId, Vec<u64>)> {
        let mark = self.released();
        let waits = |reader: &Reader| reader.needs(mark) < place.0 || reader.first().is_some_and(|first| first < place);
        let slow = self.readers.iter().filter(|(_, reader)| waits(reader));
        slow.map(|(id, reader)| (*id, reader.spilled_before(place))).collect()
    }

    /// Drops what waits in the store for a reader at `places`; `named` are their records, as far as they are known. It
    /// needs nothing before `place` any more.
    pub fn drop_spilled(&mut self, reader: ReaderId, places: &[u64], named: &[Record], place: Sequence) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.drop_spilled(places, named, place);
        }
    }

    /// Drops what waits before `place` for readers of the last run that were not opened again; returns their names, with
    /// how much that was, and their states to be saved.
    pub fn drop_dormant(&mut self, place: Sequence) -> Vec<(u64, StoredReader)> {
        let slow = self.dormant.values_mut().filter(|state| waits_from(state) < place.0);
        let dropped = slow.map(|state| {
            let pending = state.pending.get_or_insert_default();
            let dropped = pending.remove_range(..place.0);
            state.compacted &= &*pending | &state.given_up;
            state.position = state.position.max(Sequence(place.0 - 1));
            (dropped, state.clone())
        });
        dropped.collect()
    }

    /// Returns the places of what waits for a reader in the store alone, oldest first.
    pub fn spilled(&self, reader: ReaderId, limit: usize) -> Vec<u64> {
        self.readers.get(&reader).map(|reader| reader.spilled(limit)).unwrap_or_default()
    }

    /// Returns the name of a reader.
    pub fn reader_name(&self, reader: ReaderId) -> Option<&str> {
        self.readers.get(&reader).and_then(Reader::name)
    }

    /// Hands out again what was read and not acknowledged.
    pub fn rewind(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.rewind();
        }
    }

    /// Drops what waits for a reader, and shows it nothing more.
    pub fn abandon(&mut self, reader: ReaderId) {
        let mark = self.released();
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.abandon(mark);
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
        let written = !self.is_stored();
        Batch { unit, ticket, records: Arc::new(records), turn: Turn::Show, released: false, written }
    }

    fn note_unsynced(&mut self, batch: &Batch, only: Option<Box<str>>) {
        if self.is_stored() {
            let Batch { unit, ticket, .. } = *batch;
            // at an interval many wait for it
            let records = match self.durability {
                Durability::Interval => Arc::new(batch.records.iter().map(Record::packed).collect()),
                _ => Arc::clone(&batch.records),
            };
            self.unsynced_bytes += bytes(&records);
            self.unsynced.push_back(Unsynced { unit, ticket, records, only, reached: None, written: false });
        }
    }

    /// Makes visible what was released and has nothing outstanding before it.
    pub fn raise(&mut self) -> Vec<ReaderId> {
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
            Turn::Seed => return,
            Turn::Retire => {
                unit.retired = true;
                self.readers.values_mut().for_each(|reader| reader.forget_unit(batch.unit, None));
                return;
            }
        }
        for record in &*batch.records {
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

    /// Returns how many records are kept for a reader, wanted or not.
    pub(super) fn held(&self, reader: ReaderId) -> usize {
        self.readers[&reader].held()
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
            let stats = self.stats(*id);
            let sum = stats.acknowledged + stats.in_flight + stats.queued + stats.coalesced + stats.dropped;
            assert_eq!(stats.wanted, sum + stats.filtered, "reader {id:?}: {stats:?}");
            reader.check();
        }
    }
}
