//! The journal without a directory: one shared log of what some reader has still to read, and a position a reader.
//!
//! A reader that keeps up reads the shared log. One whose bound is reached takes what waits for it out of the log
//! into a `Backlog` of its own, so it never holds records for others (I5, I7), and goes back to the log once that
//! is empty.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::BuildHasher as _,
};

use super::{
    Bounds, EventName, Fenced, Gap, Interest, Losses, ReaderId, ReaderOptions, ReaderStats, Record, Sequence, Start,
    Ticket, UnitId,
    backlog::{Backlog, Tally},
};
use crate::indexer::Change;

/// The pure core of [`Journal`](super::Journal), whose methods say what these do.
#[derive(Debug)]
pub struct MemoryJournal {
    /// The next record's place; the first is 1.
    next: u64,
    /// Everything up to here is visible.
    mark: u64,
    /// The records from `base` on; `None` where one was withdrawn.
    log: VecDeque<Option<Record>>,
    base: u64,
    /// Appends that were not released, in append order.
    outstanding: Vec<(UnitId, Ticket)>,
    epochs: HashMap<UnitId, u64>,
    readers: BTreeMap<ReaderId, Reader>,
    next_reader: u32,
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self {
            next: 1,
            mark: 0,
            log: VecDeque::new(),
            base: 1,
            outstanding: Vec::new(),
            epochs: HashMap::new(),
            readers: BTreeMap::new(),
            next_reader: 0,
        }
    }
}

impl MemoryJournal {
    /// Appends invisible records.
    pub fn append(&mut self, unit: UnitId, epoch: u64, changes: &[Change], now_micros: i64) -> Result<Ticket, Fenced> {
        let current = self.epochs.entry(unit).or_insert(epoch);
        if epoch < *current {
            return Err(Fenced { unit, epoch, current: *current });
        }
        *current = epoch;
        let first = self.next;
        for (sequence, change) in (first..).zip(changes) {
            self.log.push_back(Some(Record {
                sequence: Sequence(sequence),
                unit,
                time_micros: now_micros,
                change: change.clone(),
                old_lost: false,
            }));
        }
        self.next += changes.len() as u64;
        let ticket = Ticket { first: Sequence(first), last: Sequence(self.next - 1) };
        if !changes.is_empty() {
            self.outstanding.push((unit, ticket));
        }
        Ok(ticket)
    }

    /// Makes a ticket's records visible as soon as all older ones are; returns the readers that have something new.
    pub fn release(&mut self, ticket: Ticket) -> Vec<ReaderId> {
        self.outstanding.retain(|(_, outstanding)| *outstanding != ticket);
        self.raise()
    }

    /// Returns the oldest outstanding append of a unit.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        self.outstanding.iter().find(|(owner, _)| *owner == unit).map(|(_, ticket)| *ticket)
    }

    /// Refuses epochs before `epoch` from now on.
    pub fn fence(&mut self, unit: UnitId, epoch: u64) {
        let current = self.epochs.entry(unit).or_insert(epoch);
        *current = epoch.max(*current);
    }

    /// Takes back what is outstanding of a unit; returns how many records, and the readers that have something new.
    pub fn withdraw(&mut self, unit: UnitId) -> (usize, Vec<ReaderId>) {
        let mut withdrawn = 0;
        let tickets: Vec<_> = self.outstanding.extract_if(.., |(owner, _)| *owner == unit).collect();
        for (_, ticket) in tickets {
            for sequence in ticket.first.0..=ticket.last.0 {
                let slot = place(self.base, sequence);
                withdrawn += usize::from(self.log[slot].take().is_some());
            }
        }
        (withdrawn, self.raise())
    }

    /// Returns the release mark.
    pub fn released(&self) -> Sequence {
        Sequence(self.mark)
    }

    /// Opens a reader.
    pub fn open_reader(&mut self, start: Start, options: ReaderOptions) -> Result<ReaderId, Gap> {
        let cursor = match start {
            Start::Next => self.mark + 1,
            Start::After(asked) if asked.0 >= self.base - 1 && asked.0 <= self.mark => asked.0 + 1,
            Start::After(asked) => {
                return Err(Gap { asked, first: Sequence(self.base), last: Sequence(self.mark) });
            }
        };
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        let mut reader = Reader { bounds: options.bounds, interest: options.interest, cursor, ..Reader::default() };
        reader.recount(visible(&self.log, self.base, cursor, self.mark));
        reader.tally.wanted = reader.log_events as u64;
        self.readers.insert(id, reader);
        Ok(id)
    }

    /// Replaces what a reader wants.
    pub fn set_interest(&mut self, reader: ReaderId, interest: Interest) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.interest = interest;
            let before = reader.log_events as u64;
            reader.recount(visible(&self.log, self.base, reader.cursor, self.mark));
            reader.tally.wanted = reader.tally.wanted + reader.log_events as u64 - before;
        }
    }

    /// Closes a reader.
    pub fn close_reader(&mut self, reader: ReaderId) {
        self.readers.remove(&reader);
        self.trim();
    }

    /// Returns the next records for a reader.
    pub fn read(&mut self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        let Some(reader) = self.readers.get_mut(&reader) else { return Vec::new() };
        let room = reader.bounds.max_events.max(1).saturating_sub(reader.in_flight.len());
        let batch = reader.read(&self.log, self.base, self.mark, max_events.min(room), max_bytes);
        self.trim();
        batch
    }

    /// Acknowledges what a reader has read up to `sequence`.
    pub fn ack(&mut self, reader: ReaderId, sequence: Sequence) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            while reader.in_flight.front().is_some_and(|record| record.sequence <= sequence) {
                reader.in_flight.pop_front();
                reader.acknowledged += 1;
            }
            reader.gone_in_flight.retain(|(gone, _)| *gone > sequence);
        }
    }

    /// Hands out again what was read and not acknowledged.
    pub fn rewind(&mut self, reader: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.gone_in_flight.clear();
            while let Some(record) = reader.in_flight.pop_back() {
                reader.again.push_front(record);
            }
        }
    }

    /// Drops what waits for a reader, and shows it nothing more.
    pub fn abandon(&mut self, reader: ReaderId) {
        let (log, base, mark) = (&self.log, self.base, self.mark);
        let Some(reader) = self.readers.get_mut(&reader) else { return };
        for record in std::mem::take(&mut reader.in_flight) {
            reader.tally.lose(&record);
        }
        while let Some(record) = reader.pop(log, base, mark) {
            reader.tally.lose(&record);
        }
        reader.gone_in_flight.clear();
        reader.interest = Interest::default();
        reader.cursor = mark + 1;
        self.trim();
    }

    /// Returns what there is to see of a reader.
    pub fn stats(&self, reader: ReaderId) -> ReaderStats {
        let Some(reader) = self.readers.get(&reader) else { return ReaderStats::default() };
        let oldest = reader.waiting(&self.log, self.base, self.mark).next();
        ReaderStats {
            wanted: reader.tally.wanted,
            queued: (reader.again.len() + reader.log_events + reader.backlog.as_ref().map_or(0, Backlog::len)) as u64,
            in_flight: reader.in_flight.len() as u64,
            acknowledged: reader.acknowledged,
            coalesced: reader.tally.coalesced,
            dropped: reader.tally.dropped,
            olds_given_up: reader.tally.olds_given_up,
            position: oldest.map_or(Sequence(self.mark), |record| Sequence(record.sequence.0 - 1)),
            oldest_micros: oldest.map(|record| record.time_micros),
        }
    }

    /// Names what was dropped since the last call.
    pub fn take_losses(&mut self, reader: ReaderId) -> Losses {
        self.readers.get_mut(&reader).map(|reader| std::mem::take(&mut reader.tally.losses)).unwrap_or_default()
    }

    /// Names what waits for a reader or is in flight.
    pub fn undelivered(&self, reader: ReaderId, limit: usize) -> Vec<EventName> {
        let Some(reader) = self.readers.get(&reader) else { return Vec::new() };
        reader.waiting(&self.log, self.base, self.mark).take(limit).map(Record::event_name).collect()
    }

    /// Raises the mark to just below the oldest outstanding append, and shows the readers what is new.
    fn raise(&mut self) -> Vec<ReaderId> {
        let mark = self.outstanding.first().map_or(self.next, |(_, ticket)| ticket.first.0) - 1;
        let mut woken = Vec::new();
        if mark > self.mark {
            for (id, reader) in &mut self.readers {
                if reader.show(&self.log, self.base, self.mark + 1, mark) {
                    woken.push(*id);
                }
            }
            self.mark = mark;
            self.trim();
        }
        woken
    }

    /// Forgets what every reader has passed.
    fn trim(&mut self) {
        let keep = self.readers.values().map(|reader| reader.cursor).fold(self.mark + 1, u64::min);
        while self.base < keep {
            self.log.pop_front();
            self.base += 1;
        }
    }
}

/// Returns where in the log a sequence lies.
fn place(base: u64, sequence: u64) -> usize {
    usize::try_from(sequence - base).expect("the log fits into memory")
}

/// Returns the records from `from` to `to` that were not withdrawn.
fn visible(log: &VecDeque<Option<Record>>, base: u64, from: u64, to: u64) -> impl Iterator<Item = &Record> {
    log.range(place(base, from)..place(base, to + 1)).flatten()
}

/// One reader.
///
/// Its records, oldest first: `in_flight`, `again`, `backlog`, and those of the log from `cursor` on.
/// **Invariant:** nothing of `in_flight` and `again` is merged with anything.
#[derive(Debug, Default)]
struct Reader {
    bounds: Bounds,
    interest: Interest,
    /// The first record of the log that was not considered.
    cursor: u64,
    /// Wanted records of the log from `cursor` to the mark, and their bytes.
    log_events: usize,
    log_bytes: usize,
    /// Set while the reader is behind; then `cursor` is above the mark.
    backlog: Option<Backlog>,
    again: VecDeque<Record>,
    in_flight: VecDeque<Record>,
    /// Deletions among `in_flight`, by the hash of whose they are.
    gone_in_flight: Vec<(Sequence, u64)>,
    acknowledged: u64,
    tally: Tally,
}

impl Reader {
    /// Takes notice of newly visible records; returns whether one of them is wanted.
    fn show(&mut self, log: &VecDeque<Option<Record>>, base: u64, from: u64, to: u64) -> bool {
        let before = self.tally.wanted;
        for record in visible(log, base, from, to) {
            let wanted = self.interest.wants(record);
            self.tally.wanted += u64::from(wanted);
            if let Some(backlog) = &mut self.backlog {
                if self.interest.units.contains(record.unit) {
                    backlog.push(record, wanted, &self.bounds, &mut self.tally);
                }
            } else if wanted {
                self.log_events += 1;
                self.log_bytes += record.body_bytes();
            }
        }
        let over = self.log_events > self.bounds.max_events || self.log_bytes > self.bounds.max_bytes;
        if over && self.log_events > 1 {
            let mut backlog = Backlog::new(self.bounds.when_full);
            for record in visible(log, base, self.cursor, to) {
                if self.interest.units.contains(record.unit) {
                    backlog.push(record, self.interest.wants(record), &self.bounds, &mut self.tally);
                }
            }
            self.backlog = Some(backlog);
            (self.log_events, self.log_bytes) = (0, 0);
        }
        if self.log_events == 0 {
            self.cursor = to + 1;
        }
        self.tally.wanted > before
    }

    fn recount<'a>(&mut self, visible: impl Iterator<Item = &'a Record>) {
        (self.log_events, self.log_bytes) = (0, 0);
        for record in visible.filter(|record| self.interest.wants(record)) {
            self.log_events += 1;
            self.log_bytes += record.body_bytes();
        }
    }

    fn read(
        &mut self,
        log: &VecDeque<Option<Record>>,
        base: u64,
        mark: u64,
        max_events: usize,
        max_bytes: usize,
    ) -> Vec<Record> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max_events {
            let Some(next) = self.peek(log, base, mark) else { break };
            bytes += next.body_bytes();
            if (bytes > max_bytes && !batch.is_empty()) || self.follows_a_deletion_in_flight(next) {
                break;
            }
            let record = self.pop(log, base, mark).expect("it was just seen");
            if record.is_gone() {
                self.gone_in_flight.push((record.sequence, lane_hash(&record)));
            }
            self.in_flight.push_back(record.clone());
            batch.push(record);
        }
        batch
    }

    fn follows_a_deletion_in_flight(&self, record: &Record) -> bool {
        if self.gone_in_flight.is_empty() || record.object().is_none() {
            return false;
        }
        // Two names with one hash wait for each other; that costs a round trip and nothing else.
        let hash = lane_hash(record);
        self.gone_in_flight.iter().any(|(_, gone)| *gone == hash)
    }

    fn peek<'a>(&'a self, log: &'a VecDeque<Option<Record>>, base: u64, mark: u64) -> Option<&'a Record> {
        self.again.front().or_else(|| self.backlog.as_ref()?.front()).or_else(|| {
            if self.log_events == 0 {
                return None;
            }
            visible(log, base, self.cursor, mark).find(|record| self.interest.wants(record))
        })
    }

    fn pop(&mut self, log: &VecDeque<Option<Record>>, base: u64, mark: u64) -> Option<Record> {
        if let Some(record) = self.again.pop_front() {
            return Some(record);
        }
        if let Some(backlog) = &mut self.backlog {
            let record = backlog.pop_front();
            if backlog.len() == 0 {
                self.backlog = None;
            }
            return record;
        }
        let record = visible(log, base, self.cursor, mark).find(|record| self.interest.wants(record))?.clone();
        self.log_events -= 1;
        self.log_bytes -= record.body_bytes();
        self.cursor = if self.log_events == 0 { mark + 1 } else { record.sequence.0 + 1 };
        Some(record)
    }

    /// Returns everything not acknowledged, oldest first.
    fn waiting<'a>(
        &'a self,
        log: &'a VecDeque<Option<Record>>,
        base: u64,
        mark: u64,
    ) -> impl Iterator<Item = &'a Record> {
        let log = visible(log, base, self.cursor, mark).filter(|record| self.interest.wants(record));
        self.in_flight.iter().chain(&self.again).chain(self.backlog.iter().flat_map(Backlog::iter)).chain(log)
    }
}

/// Returns a hash of the unit and the key of the object a record is about.
fn lane_hash(record: &Record) -> u64 {
    let key = record.object().map(|object| object.key());
    foldhash::fast::FixedState::with_seed(7).hash_one((record.unit, key))
}

#[cfg(test)]
impl MemoryJournal {
    /// Asserts what must hold between any two calls.
    pub(super) fn check(&self) {
        assert_eq!(self.base + self.log.len() as u64, self.next);
        for (id, reader) in &self.readers {
            let stats = self.stats(*id);
            let sum = stats.acknowledged + stats.in_flight + stats.queued + stats.coalesced + stats.dropped;
            assert_eq!(stats.wanted, sum, "reader {id:?}: {stats:?}");
            assert!(reader.cursor <= self.mark + 1 && reader.cursor >= self.base);
            assert!(reader.in_flight.len() <= reader.bounds.max_events.max(1));
            match &reader.backlog {
                Some(backlog) => {
                    assert_eq!(reader.log_events, 0);
                    backlog.check(&reader.bounds);
                }
                None => assert!(
                    reader.log_events <= 1
                        || (reader.log_events <= reader.bounds.max_events
                            && reader.log_bytes <= reader.bounds.max_bytes)
                ),
            }
        }
        let behind = self.readers.values().filter(|reader| reader.backlog.is_none()).map(|reader| reader.cursor).min();
        assert!(behind.unwrap_or(self.mark + 1) == self.base, "records are held that nobody will read");
    }
}
