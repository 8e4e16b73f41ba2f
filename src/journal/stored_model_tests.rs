//! Compares the journal with a store with a simple model: writes, releases, syncs, saves and crashes in any order.
//!
//! The store of the model is a log of writes. A crash keeps all synced writes, and any number of the following ones. The
//! records that a reader must be shown are computed separately. Each comes once, in order, until it is acknowledged and that
//! is saved.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Mutex,
    time::Duration,
};

use proptest::{prelude::*, test_runner::TestRunner};

use roaring::RoaringTreemap;

use super::{
    compaction::testing::{Entry, Merger, Step},
    filter::Judged,
    memory::MemoryJournal,
    reader::Next,
    recovery::with_marker,
    store::{Head, Recovered, StoredReader, StoredUnit},
    testing::*,
    *,
};
use crate::change::{Change, Reached};

const UNITS: u32 = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Number of readers. The last one has no name, so all its records wait in memory.
const READERS: usize = 5;
/// Reader with a filter.
const FILTERED: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Append {
        unit: u32,
        changes: Vec<(usize, u8)>,
    },
    /// The store writes or refuses an append of a unit.
    Write {
        unit: u32,
        refused: bool,
    },
    Release {
        unit: u32,
    },
    BeginSync,
    EndSync,
    Save {
        fails: bool,
    },
    Read {
        reader: usize,
        events: usize,
        bytes: usize,
    },
    Ack {
        reader: usize,
        dice: u8,
        cumulative: bool,
    },
    GiveUp {
        reader: usize,
        dice: u8,
    },
    Replay {
        reader: usize,
    },
    Rewind {
        reader: usize,
    },
    Attachment {
        reader: usize,
        unit: u32,
        silent: bool,
    },
    Retain {
        part: u8,
    },
    SetBounds {
        reader: usize,
        events: usize,
    },
    /// A step of a compaction is planned, for the reader that needs the oldest record.
    BeginCompaction {
        positions: usize,
    },
    /// The step is written, or reported as failed. A failed step may be on disk, and is written again.
    EndCompaction {
        end: End,
    },
    Crash {
        cut: u8,
    },
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Written,
    WrittenAndFailed,
    Failed,
    GivenUp,
}

fn op() -> impl Strategy<Value = Op> {
    let end = || {
        prop::sample::select(vec![
            End::Written,
            End::Written,
            End::Written,
            End::WrittenAndFailed,
            End::Failed,
            End::GivenUp,
        ])
    };
    let changes = proptest::collection::vec((0..NAMES.len(), 0..17_u8), 1..6);
    let reader = || 0..READERS;
    // Usually the reader without a name, which starts over with each restart.
    let mostly_last = || (0..READERS * 2).prop_map(|reader| reader.min(READERS - 1));
    prop_oneof![
        10 => (0..UNITS, changes).prop_map(|(unit, changes)| Op::Append { unit, changes }),
        10 => (0..UNITS, 0..8_u8).prop_map(|(unit, dice)| Op::Write { unit, refused: dice == 0 }),
        10 => (0..UNITS).prop_map(|unit| Op::Release { unit }),
        6 => Just(Op::BeginSync),
        6 => Just(Op::EndSync),
        4 => (0..5_u8).prop_map(|dice| Op::Save { fails: dice == 0 }),
        8 => (reader(), 1..6_usize, 1..2000_usize).prop_map(|(reader, events, bytes)| Op::Read { reader, events, bytes }),
        6 => (reader(), any::<u8>(), any::<bool>()).prop_map(|(reader, dice, cumulative)| Op::Ack { reader, dice, cumulative }),
        8 => (mostly_last(), any::<u8>()).prop_map(|(reader, dice)| Op::GiveUp { reader, dice }),
        6 => mostly_last().prop_map(|reader| Op::Replay { reader }),
        1 => reader().prop_map(|reader| Op::Rewind { reader }),
        3 => (reader(), 0..UNITS, any::<bool>()).prop_map(|(reader, unit, silent)| Op::Attachment { reader, unit, silent }),
        2 => any::<u8>().prop_map(|part| Op::Retain { part }),
        1 => (0..READERS - 1, 1..9_usize).prop_map(|(reader, events)| Op::SetBounds { reader, events }),
        4 => (1..20_usize).prop_map(|positions| Op::BeginCompaction { positions }),
        8 => end().prop_map(|end| Op::EndCompaction { end }),
        1 => any::<u8>().prop_map(|cut| Op::Crash { cut }),
        1 => Just(Op::Stop),
    ]
}

/// The model's part of a reader's saved state.
#[derive(Clone, Debug, Default)]
struct Saved {
    /// Records that it must be shown, up to the watermark.
    open: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
    mark: u64,
}

#[derive(Clone, Debug)]
enum Write {
    Records(Vec<(Record, Option<String>)>),
    Reader(StoredReader, Saved),
    /// A step of a compaction, with the position of its reader.
    Compacted(Step, StoredReader, Saved),
    Remove(u64),
}

/// Content of the store.
#[derive(Clone, Debug, Default)]
struct Content {
    records: BTreeMap<u64, (Record, Option<String>)>,
    readers: BTreeMap<String, (StoredReader, Saved)>,
    /// Coalesced entries of each reader.
    entries: BTreeMap<String, BTreeMap<u64, Entry>>,
    first: u64,
}

impl Content {
    /// Reads a record of a reader in the same way as the store.
    fn load(&self, reader: &str, position: u64) -> Option<Record> {
        let entry = self.entries.get(reader).and_then(|entries| entries.get(&position)).map(|(record, ..)| record);
        entry.or_else(|| self.records.get(&position).map(|(record, _)| record)).cloned()
    }

    fn apply(&mut self, write: &Write) {
        match write {
            Write::Records(records) => {
                self.records
                    .extend(records.iter().map(|(record, only)| (record.sequence.0, (record.clone(), only.clone()))));
            }
            Write::Reader(state, saved) => {
                self.readers.insert(state.name.clone(), (state.clone(), saved.clone()));
                let entries = self.entries.entry(state.name.clone()).or_default();
                entries.retain(|position, _| state.compacted.contains(*position));
            }
            Write::Compacted(step, state, saved) => {
                let entries = self.entries.entry(state.name.clone()).or_default();
                entries.retain(|position, _| !step.superseded.contains(*position));
                entries.extend(step.entries.clone());
                self.apply(&Write::Reader(state.clone(), saved.clone()));
            }
            Write::Remove(before) => {
                self.records = self.records.split_off(before);
                self.first = *before;
            }
        }
    }
}

/// A store. After a crash it has all synced writes, and any number of the following ones.
#[derive(Debug, Default)]
struct Disk {
    synced: Content,
    log: Vec<Write>,
    now: Content,
}

impl Disk {
    fn write(&mut self, write: Write) {
        self.now.apply(&write);
        self.log.push(write);
    }

    fn sync(&mut self, writes: usize) {
        for write in self.log.drain(..writes) {
            self.synced.apply(&write);
        }
    }

    fn crash(&mut self, cut: usize) {
        let left = cut % (self.log.len() + 1);
        self.sync(left);
        self.log.clear();
        self.now = self.synced.clone();
    }
}

#[derive(Debug, Default)]
struct Consumer {
    id: Option<ReaderId>,
    sees: BTreeSet<u32>,
    /// First position of each attachment.
    attachments: Vec<(u64, u32, bool)>,
    /// All records that it ever wanted.
    wanted: BTreeSet<u64>,
    /// Records that it must be shown.
    expected: BTreeSet<u64>,
    in_flight: BTreeSet<u64>,
    /// Records that were read and must be read again, before all others.
    again: BTreeSet<u64>,
    /// Text of the record at each position.
    said: BTreeMap<u64, Option<String>>,
    given_up: BTreeSet<u64>,
    last: u64,
    /// Positions with coalesced entries, as the journal knows them.
    compacted: BTreeSet<u64>,
    /// Number of records that were coalesced in this run.
    coalesced: u64,
}

impl Consumer {
    fn open(&self, mark: u64) -> BTreeSet<u64> {
        let all = self.expected.iter().chain(&self.in_flight).chain(&self.again);
        all.copied().filter(|sequence| *sequence <= mark).collect()
    }
}

#[derive(Debug, Default)]
struct Hits {
    refused: u64,
    lost: u64,
    crashed: u64,
    stopped: u64,
    spilled: u64,
    held_back: u64,
    shown_again: u64,
    replayed: u64,
    replayed_from_memory: u64,
    silent: u64,
    loud: u64,
    removed: u64,
    not_saved: u64,
    out_of_order: u64,
    undurable: u64,
    compacted: u64,
    merged: u64,
    merged_again: u64,
    step_overtaken: u64,
    step_repeated: u64,
    load_overtaken: u64,
    judging_overtaken: u64,
    kept_given_up: u64,
    removed_below_a_waiting_one: u64,
    filtered: u64,
    filtered_by_a_step: u64,
}

struct Run {
    fsync: Fsync,
    journal: MemoryJournal,
    disk: Disk,
    /// The running sync: its number of writes, and the last position that it makes durable.
    syncing: Option<(usize, Option<Sequence>)>,
    /// The planned step of a compaction: its reader, the step, and whether it was tried already.
    compacting: Option<(usize, Step, bool)>,
    /// Table of the current pass.
    merger: Option<(usize, Merger)>,
    /// Running load of a reader.
    loading: Option<(usize, ToLoad, Vec<Record>)>,
    /// Judgements that a reader has not applied yet.
    judging: Option<(usize, Vec<Judged>)>,
    /// Unreleased append of each unit, and whether it is written.
    outstanding: BTreeMap<u32, (Ticket, Vec<Record>, bool)>,
    released: BTreeSet<u64>,
    readers: Vec<Consumer>,
    version: u64,
    generation: u64,
    hits: Hits,
}

fn name_of(reader: usize) -> Option<String> {
    (reader + 1 < READERS).then(|| format!("reader {reader}"))
}

fn changes_of(reader: usize) -> ChangeSet {
    if reader == 1 { ChangeSet::ADDED.with(ChangeSet::DELETED).with(ChangeSet::SYNCED) } else { ChangeSet::ALL }
}

/// Returns true if a reader must be shown a change of a unit that it sees.
fn is_wanted(reader: usize, change: &Change) -> bool {
    changes_of(reader).contains(change) && (reader != FILTERED || ByVersions::passes(change))
}

fn options(reader: usize, attaches: bool) -> ReaderOptions {
    let size = pod("a", "a1", 1).size_bytes();
    let max_bytes = [1 << 20, size * 3, 1 << 20, size * 4, 1 << 20][reader];
    let max_events = [3, 5, 10_000, 3, 10_000][reader];
    let seen = UnitInterest { attaches, resync_every: 0 };
    let units = (0..UNITS).map(|unit| (UnitId(unit), seen)).collect();
    ReaderOptions {
        bounds: Bounds { max_events, max_bytes, when_full: WhenFull::Coalesce },
        interest: Interest {
            units,
            changes: changes_of(reader),
            filter: (reader == FILTERED).then(ByVersions::shared),
        },
        name: name_of(reader),
    }
}

fn terms(unit: u32) -> UnitTerms {
    UnitTerms { resource: TypeNumber(unit), late: false, cached: true }
}

impl Run {
    fn new(fsync: Fsync) -> Self {
        let mut run = Self {
            fsync,
            journal: MemoryJournal::restored(fsync, &recovered(&Content { first: 1, ..Content::default() })),
            disk: Disk::default(),
            syncing: None,
            compacting: None,
            merger: None,
            loading: None,
            judging: None,
            outstanding: BTreeMap::new(),
            released: BTreeSet::new(),
            readers: (0..READERS).map(|_| Consumer::default()).collect(),
            version: 0,
            generation: 1,
            hits: Hits::default(),
        };
        run.disk.synced.first = 1;
        run.disk.now.first = 1;
        for (number, reader) in run.readers.iter_mut().enumerate() {
            reader.id = Some(run.journal.open_reader(options(number, false)));
            reader.sees = (0..UNITS).collect();
        }
        run.save(false);
        run.disk.sync(run.disk.log.len());
        run
    }

    fn change(&mut self, name: usize, dice: u8) -> Change {
        self.version += 1;
        let (name, version) = (NAMES[name], self.version);
        let uid = format!("{name}{}", version / 8);
        match dice {
            0..5 => added(name, &uid, version),
            5..9 => updated(name, &uid, version - 1, version),
            9..14 => deleted(name, &uid, version),
            14 => removed(name, &uid, version),
            15 => Change::Refreshed { object: pod(name, &uid, version) },
            _ => synced(version),
        }
    }

    fn append(&mut self, unit: u32, changes: &[(usize, u8)]) {
        if self.outstanding.contains_key(&unit) {
            return;
        }
        let changes: Vec<_> = changes.iter().map(|(name, dice)| self.change(*name, *dice)).collect();
        let ticket =
            self.journal.append(UnitId(unit).writer(self.generation), &changes, &Reached::default(), 1).unwrap();
        assert!(self.disk.now.records.keys().all(|sequence| *sequence < ticket.first.0), "places only grow");
        let records = records(ticket, unit, &changes);
        for (number, reader) in self.readers.iter_mut().enumerate() {
            let sees = reader.sees.contains(&unit);
            let wanted = records.iter().filter(|record| sees && is_wanted(number, &record.change));
            let wanted: Vec<_> = wanted.map(|record| record.sequence.0).collect();
            reader.wanted.extend(&wanted);
            reader.expected.extend(&wanted);
        }
        self.outstanding.insert(unit, (ticket, records, false));
    }

    fn write(&mut self, unit: u32, refused: bool) {
        let Some((ticket, records, is_written)) = self.outstanding.get_mut(&unit) else { return };
        let ticket = *ticket;
        if *is_written {
            return;
        }
        if refused {
            for reader in &mut self.readers {
                reader.expected.retain(|sequence| *sequence < ticket.first.0 || *sequence > ticket.last.0);
                reader.wanted.retain(|sequence| *sequence < ticket.first.0 || *sequence > ticket.last.0);
            }
            self.journal.advance(|journal| journal.take_back(ticket));
            self.outstanding.remove(&unit);
            self.hits.refused += 1;
            return;
        }
        *is_written = true;
        self.disk.write(Write::Records(records.iter().map(|record| (record.clone(), None)).collect()));
        let of = UnitId(unit).writer(self.generation);
        self.journal.advance(|journal| journal.written(of, ticket, Some(&Reached::default()))).0.unwrap();
    }

    fn release(&mut self, unit: u32) {
        if self.outstanding.get(&unit).is_some_and(|(.., is_written)| *is_written) {
            let (ticket, ..) = self.outstanding.remove(&unit).unwrap();
            assert_eq!(self.journal.outstanding(UnitId(unit)), Some(ticket));
            self.journal.advance(|journal| journal.release(ticket));
            self.released.extend(ticket.first.0..=ticket.last.0);
            let is_visible = self.journal.released() >= ticket.last;
            self.hits.undurable += u64::from(!is_visible);
        }
    }

    fn save(&mut self, fails: bool) {
        if !fails && self.compacting.as_ref().is_some_and(|(.., was_tried)| *was_tried) {
            self.end_compaction(End::Written); // a failed step is written first
        }
        let mark = self.journal.released().0;
        let states = self.journal.save();
        self.journal.saved(&states, !fails);
        self.hits.not_saved += u64::from(fails && !states.is_empty());
        for state in states.into_iter().filter(|_| !fails) {
            let number = (0..READERS).find(|number| name_of(*number).as_deref() == Some(&state.name)).unwrap();
            let reader = &self.readers[number];
            let saved = Saved { open: reader.open(mark), given_up: reader.given_up.clone(), mark };
            let pending: BTreeSet<_> = state.pending.iter().collect();
            assert!(saved.open.is_subset(&pending), "{saved:?} {pending:?}");
            self.readers[number].compacted = state.compacted.iter().collect();
            self.disk.write(Write::Reader(state, saved));
        }
    }

    fn begin_compaction(&mut self, positions: usize) {
        if self.compacting.is_some() {
            return;
        }
        let Some((id, name)) = self.journal.compactable(self.journal.released()) else {
            self.merger = None;
            return;
        };
        let number = (0..READERS).find(|number| name_of(*number).as_deref() == Some(name)).unwrap();
        let content = &self.disk.now;
        let entries = content.entries.get(name).cloned().unwrap_or_default();
        let known: BTreeSet<_> = entries.keys().copied().collect();
        assert!(self.readers[number].compacted.is_subset(&known), "what is merged is in the store");
        let mut merger = match self.merger.take() {
            Some((of, merger)) if of == number => merger,
            _ => Merger::scan(&entries),
        };
        let until = self.journal.released();
        let mut held = self.journal[id].hold(positions, until).unwrap();
        assert!(self.journal[id].to_load().positions.is_empty(), "nothing is read while a step is under way");
        if let Some((filter, positions)) = held.to_judge.take() {
            let records: Vec<_> = positions.iter().map(|position| content.records[position].0.clone()).collect();
            let refused = self.journal[id].refuse(&filter.judge_all(&records));
            held.leave_out(&refused);
            self.hits.filtered_by_a_step += refused.len();
            if held.positions.is_empty() {
                self.journal[id].release();
                self.merger = Some((number, merger));
                return;
            }
        }
        let step = merger.step(&held, |position| content.records.get(&position).cloned(), &entries);
        assert_eq!(step.entries.keys().copied().collect::<RoaringTreemap>(), step.written, "nothing is missing");
        self.merger = Some((number, merger));
        self.compacting = Some((number, step, false));
    }

    fn end_compaction(&mut self, end: End) {
        let Some((number, step, was_tried)) = self.compacting.take() else { return };
        let id = self.readers[number].id.unwrap();
        if end == End::GivenUp && !was_tried {
            self.journal[id].release();
            self.merger = None;
            return;
        }
        self.hits.step_repeated += u64::from(was_tried);
        let mark = self.journal.released().0;
        let state = self.journal.compacting(id, &step.written, &step.superseded).unwrap();
        let reader = &self.readers[number];
        let superseded = |position: &u64| step.superseded.contains(*position);
        let open: BTreeSet<_> = reader.open(mark).into_iter().filter(|position| !superseded(position)).collect();
        let pending: BTreeSet<_> = state.pending.iter().collect();
        assert!(open.is_subset(&pending), "{open:?} {pending:?}");
        let saved = Saved { open, given_up: reader.given_up.clone(), mark };
        if end != End::Failed {
            self.disk.write(Write::Compacted(step.clone(), state.clone(), saved));
        }
        if matches!(end, End::Failed | End::WrittenAndFailed) {
            self.journal.saved(std::slice::from_ref(&state), false);
            self.compacting = Some((number, step, true));
            return;
        }
        let before = reader.compacted.clone();
        self.sync(); // it is not read before it is durable
        self.journal[id].compacted(&step.superseded, &state);
        let reader = &mut self.readers[number];
        reader.compacted = state.compacted.iter().collect();
        let open = reader.expected.len();
        reader.expected.retain(|position| !superseded(position));
        assert!(
            reader.in_flight.iter().chain(&reader.again).all(|position| !superseded(position)),
            "not what was read"
        );
        reader.coalesced += step.superseded.len();
        self.hits.compacted += step.written.len();
        self.hits.merged += (open - reader.expected.len()) as u64;
        self.hits.merged_again += before.intersection(&step.superseded.iter().collect()).count() as u64;
        self.hits.step_overtaken += u64::from(!reader.in_flight.is_empty());
    }

    /// Delivers the loaded records, even if the state has changed since.
    fn end_load(&mut self) {
        let Some((number, asked, records)) = self.loading.take() else { return };
        let is_taken = self.journal.loaded(self.readers[number].id.unwrap(), &asked, records);
        self.hits.load_overtaken += u64::from(!is_taken);
    }

    /// Attaches a reader, or detaches it, between two batches of the unit.
    fn attach(&mut self, number: usize, unit: u32, silent: bool) {
        self.write(unit, false);
        self.release(unit);
        let attaches = !self.readers[number].sees.contains(&unit);
        let id = self.readers[number].id.unwrap();
        self.hits.silent += u64::from(silent);
        self.hits.loud += u64::from(!silent);
        self.version += 1;
        let object = pod("a", "a0", self.version);
        let change = if attaches {
            Change::Added { object, cause: Cause::Replay }
        } else {
            Change::Removed { object, cause: Cause::Reload }
        };
        let changes = with_marker(attaches, if silent { &[] } else { std::slice::from_ref(&change) });
        let ticket =
            self.journal.attach(id, attaches, UnitId(unit).writer(self.generation), &changes, 1).unwrap().unwrap();
        let reader = &mut self.readers[number];
        if !silent && is_wanted(number, &change) {
            reader.wanted.insert(ticket.first.0);
            reader.expected.insert(ticket.first.0);
        }
        if attaches {
            reader.sees.insert(unit);
        } else {
            reader.sees.remove(&unit);
        }
        reader.attachments.push((ticket.first.0, unit, attaches));
        let only = self.journal.address(id).to_string();
        let written = records(ticket, unit, &changes).into_iter().map(|record| (record, Some(only.clone())));
        self.disk.write(Write::Records(written.collect()));
        let of = UnitId(unit).writer(self.generation);
        self.journal.advance(|journal| journal.written(of, ticket, None)).0.unwrap();
        self.released.insert(ticket.first.0);
    }

    fn read(&mut self, number: usize, events: usize, bytes: usize) {
        let id = self.readers[number].id.unwrap();
        self.end_load();
        let asked = self.journal[id].to_load();
        if !asked.positions.is_empty() {
            self.hits.spilled += 1;
            let name = name_of(number).unwrap_or_default();
            let found: Vec<_> =
                asked.positions.iter().filter_map(|position| self.disk.now.load(&name, *position)).collect();
            assert_eq!(found.len(), asked.positions.len(), "nothing is removed that is waited for");
            if events == 1 {
                self.loading = Some((number, asked, found));
            } else {
                self.journal.loaded(id, &asked, found);
            }
        }
        if let Some((of, judged)) = self.judging.take() {
            self.take(of, &judged);
        }
        match self.journal[id].read(events, bytes) {
            Next::Read(batch) => {
                let stats = self.journal.stats(id);
                self.hits.held_back += u64::from(batch.is_empty() && stats.queued > 0 && stats.in_flight > 0);
                self.consume(number, batch);
            }
            Next::Judge(filter, records) => {
                assert!(!records.is_empty());
                let judged = filter.judge_all(&records);
                if events < 6 {
                    self.judging = Some((number, judged));
                } else {
                    self.take(number, &judged);
                }
            }
        }
    }

    fn take(&mut self, number: usize, judged: &[Judged]) {
        let id = self.readers[number].id.unwrap();
        let handled = |stats: ReaderStats| stats.filtered + stats.in_flight;
        let before = self.journal.stats(id);
        let batch = self.journal[id].take(judged);
        let after = self.journal.stats(id);
        self.hits.filtered += after.filtered - before.filtered;
        self.hits.judging_overtaken += u64::from(handled(after) - handled(before) < judged.len() as u64);
        self.consume(number, batch);
    }

    fn consume(&mut self, number: usize, batch: Vec<Record>) {
        let reader = &mut self.readers[number];
        for record in batch {
            let sequence = record.sequence.0;
            let said = record.object().map(|object| format!("{object:?} {}", record.is_gone()));
            let before = reader.said.insert(sequence, said.clone());
            let is_same = before.is_none_or(|before| before == said);
            assert!(is_same || self.fsync != Fsync::Group, "{sequence} is another event than before");
            assert!(self.released.contains(&sequence), "nothing is shown before it is released");
            // A removed record was durable before: a reader without a name replays it from memory.
            let is_durable = self.disk.synced.records.contains_key(&sequence) || sequence < self.disk.now.first;
            assert!(is_durable || self.fsync != Fsync::Group, "nothing is shown before it is durable");
            if reader.again.first() == Some(&sequence) {
                reader.again.remove(&sequence);
            } else {
                assert!(reader.again.is_empty(), "what was in flight comes again first");
                assert!(sequence > reader.last, "in order");
                reader.last = sequence;
                assert!(reader.expected.remove(&sequence), "{sequence} of {:?} was not to come", name_of(number));
                let overtaken = reader.expected.first().filter(|first| **first < sequence);
                assert_eq!(overtaken, None, "nothing is left out");
            }
            reader.in_flight.insert(sequence);
        }
    }

    fn ack(&mut self, number: usize, dice: u8, cumulative: bool) {
        let reader = &mut self.readers[number];
        let id = reader.id.unwrap();
        if cumulative {
            let at = usize::from(dice % 4).min(reader.in_flight.len().saturating_sub(1));
            let Some(until) = reader.in_flight.iter().nth(at).copied() else { return };
            self.journal[id].ack(Sequence(until));
            reader.in_flight = reader.in_flight.split_off(&(until + 1));
            return;
        }
        let chosen = choose(&reader.in_flight, dice);
        let out_of_order = chosen.first().is_some_and(|first| reader.in_flight.first() != Some(&first.0));
        self.hits.out_of_order += u64::from(out_of_order);
        assert_eq!(self.journal[id].ack_each(&chosen), chosen.len());
        assert_eq!(self.journal[id].ack_each(&chosen), 0, "once");
        reader.in_flight.retain(|sequence| !chosen.contains(&Sequence(*sequence)));
    }

    fn give_up(&mut self, number: usize, dice: u8) {
        let reader = &mut self.readers[number];
        let chosen = choose(&reader.in_flight, dice);
        self.journal[reader.id.unwrap()].give_up(&chosen);
        reader.in_flight.retain(|sequence| !chosen.contains(&Sequence(*sequence)));
        reader.given_up.extend(chosen.iter().map(|sequence| sequence.0));
    }

    fn replay(&mut self, number: usize) {
        let reader = &mut self.readers[number];
        let replayed = self.journal[reader.id.unwrap()].replay();
        let given_up = std::mem::take(&mut reader.given_up);
        assert_eq!(replayed, given_up.len() as u64);
        if given_up.is_empty() {
            return;
        }
        if name_of(number).is_some() {
            self.hits.replayed += 1;
            reader.expected.extend(given_up);
            reader.last = 0;
        } else {
            self.hits.replayed_from_memory += 1;
            reader.again.extend(given_up);
        }
    }

    fn retain(&mut self, part: u8) {
        if self.compacting.as_ref().is_some_and(|(.., was_tried)| *was_tried) {
            return; // the repair comes first
        }
        let (first, needed) = (self.disk.now.first, self.journal.needed().0);
        let before = first + needed.saturating_sub(first) * u64::from(part) / 255;
        if before > first {
            self.hits.removed += before - first;
            self.disk.write(Write::Remove(before));
            self.journal.set_kept_from(Sequence(before));
            for reader in &mut self.readers[..READERS - 1] {
                reader.given_up.retain(|position| *position >= before || reader.compacted.contains(position));
                let kept = reader.given_up.range(..before).count();
                self.hits.kept_given_up += kept as u64;
                let waits = reader.expected.first().is_some_and(|first| *first < before);
                self.hits.removed_below_a_waiting_one += u64::from(waits);
            }
        }
    }

    fn restart(&mut self) {
        let content = self.disk.now.clone();
        (self.syncing, self.compacting, self.merger) = (None, None, None);
        (self.loading, self.judging) = (None, None);
        self.outstanding.clear();
        self.journal = MemoryJournal::restored(self.fsync, &recovered(&content));
        let entries = content.entries.values().flat_map(BTreeMap::keys);
        self.released = content.records.keys().chain(entries).copied().collect();
        for number in 0..READERS {
            let Some(name) = name_of(number) else {
                let id = self.journal.open_reader(options(number, false));
                self.readers[number] = Consumer { id: Some(id), sees: (0..UNITS).collect(), ..Consumer::default() };
                continue;
            };
            let saved = content.readers.get(&name).map(|(_, saved)| saved.clone()).unwrap_or_default();
            let options = options(number, true);
            let selected: Result<_, Infallible> = self.journal.select_missed(&options, |after, visit| {
                let missed = content.records.range(after.0 + 1..).map(|(_, record)| record);
                missed.for_each(|(record, only)| visit(&head(record, only.as_deref())));
                Ok(())
            });
            let Ok(()) = selected;
            let id = self.journal.open_reader(options);
            let reader = &mut self.readers[number];
            let survives = |sequence: &u64| content.records.contains_key(sequence);
            reader.id = Some(id);
            self.hits.lost += reader.wanted.iter().filter(|sequence| !survives(sequence)).count() as u64;
            let before = reader.in_flight.len();
            reader.attachments.retain(|(first, ..)| survives(first) || *first < content.first);
            reader.wanted.retain(|sequence| survives(sequence) || *sequence < content.first);
            reader.expected = saved.open;
            reader.expected.extend(reader.wanted.range(saved.mark + 1..));
            self.hits.shown_again += reader.in_flight.intersection(&reader.expected).count().min(before) as u64;
            reader.compacted = compacted_of(&content, &name).iter().collect();
            reader.coalesced = 0;
            let is_kept = |position: &u64| *position >= content.first || reader.compacted.contains(position);
            reader.given_up = saved.given_up.into_iter().filter(is_kept).collect();
            reader.in_flight.clear();
            reader.again.clear();
            reader.last = 0;
            let attached: BTreeSet<_> = self.journal[id].attached().into_iter().map(|unit| unit.0).collect();
            for unit in 0..UNITS {
                let last = reader.attachments.iter().rfind(|(_, of, _)| *of == unit);
                let is_attached = last.is_none_or(|(.., attaches)| *attaches);
                assert_eq!(
                    attached.contains(&unit),
                    is_attached,
                    "{number} {unit}: {:?} {attached:?}",
                    reader.attachments
                );
            }
            reader.sees = attached;
        }
        self.save(false);
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { unit, changes } => self.append(*unit, changes),
            Op::Write { unit, refused } => self.write(*unit, *refused),
            Op::Release { unit } => self.release(*unit),
            Op::BeginSync => self.syncing = Some((self.disk.log.len(), self.journal.to_sync())),
            Op::EndSync => self.end_sync(),
            Op::Save { fails } => self.save(*fails),
            Op::Read { reader, events, bytes } => self.read(*reader, *events, *bytes),
            Op::Ack { reader, dice, cumulative } => self.ack(*reader, *dice, *cumulative),
            Op::GiveUp { reader, dice } => self.give_up(*reader, *dice),
            Op::Replay { reader } => self.replay(*reader),
            Op::Rewind { reader } => {
                let reader = &mut self.readers[*reader];
                self.journal[reader.id.unwrap()].rewind();
                reader.again.append(&mut reader.in_flight);
            }
            Op::Attachment { reader, unit, silent } => self.attach(*reader, *unit, *silent),
            Op::Retain { part } => self.retain(*part),
            Op::SetBounds { reader, events } => {
                let bounds = Bounds { max_events: *events, ..options(*reader, false).bounds };
                self.journal[self.readers[*reader].id.unwrap()].set_bounds(bounds);
            }
            Op::BeginCompaction { positions } => self.begin_compaction(*positions),
            Op::EndCompaction { end } => self.end_compaction(*end),
            Op::Crash { cut } => {
                self.disk.crash(usize::from(*cut));
                self.hits.crashed += 1;
                self.restart();
            }
            Op::Stop => {
                self.end_compaction(End::Written);
                for unit in 0..UNITS {
                    self.write(unit, false);
                }
                self.sync();
                self.save(false);
                self.disk.sync(self.disk.log.len());
                let open: Vec<_> = self.readers.iter().map(|reader| reader.open(self.journal.released().0)).collect();
                let released = self.journal.released().0;
                self.restart();
                self.hits.stopped += 1;
                for (reader, open) in self.readers.iter().zip(open).take(READERS - 1) {
                    let seen = |all: &BTreeSet<u64>| all.range(..=released).copied().collect::<Vec<_>>();
                    assert_eq!(seen(&reader.expected), seen(&open), "after a clean stop nothing comes twice");
                }
            }
        }
        self.journal.check();
        for (number, reader) in self.readers.iter().enumerate() {
            let id = reader.id.unwrap();
            let stats = self.journal.stats(id);
            assert_eq!((stats.dropped, stats.coalesced), (0, reader.coalesced), "{number}");
            let bound = options(number, false).bounds.max_events.max(9);
            assert!(self.journal[id].held() <= 2 * bound, "bodies are bounded by what may wait");
        }
    }

    fn sync(&mut self) {
        self.end_sync();
        self.syncing = Some((self.disk.log.len(), self.journal.to_sync()));
        self.end_sync();
    }

    fn end_sync(&mut self) {
        if let Some((writes, to)) = self.syncing.take() {
            self.disk.sync(writes);
            to.map(|to| self.journal.advance(|journal| journal.synced(to)));
        }
    }

    /// Releases, syncs and reads everything.
    fn finish(mut self, totals: &Mutex<Vec<Hits>>) {
        for unit in 0..UNITS {
            self.write(unit, false);
            self.release(unit);
        }
        self.sync();
        self.end_compaction(End::Written);
        for number in 0..READERS {
            let mut rounds = 0;
            while self.journal.stats(self.readers[number].id.unwrap()).queued > 0
                || !self.readers[number].in_flight.is_empty()
            {
                self.read(number, 100, usize::MAX);
                self.ack(number, 3, true);
                rounds += 1;
                assert!(rounds < 10_000, "it does not end");
            }
            let reader = &self.readers[number];
            assert!(reader.expected.is_empty(), "all of it came: {:?}", reader.expected);
            assert_eq!(self.journal.stats(reader.id.unwrap()).position, self.journal.released());
        }
        self.save(false);
        assert_eq!(self.journal.needed().0, self.journal.released().0 + 1, "nothing is needed any more");
        totals.lock().unwrap().push(self.hits);
    }
}

/// Chooses some positions, in random order.
fn choose(all: &BTreeSet<u64>, dice: u8) -> Vec<Sequence> {
    let chosen = all.iter().enumerate().filter(|(at, _)| dice >> (at % 8) & 1 == 1);
    let mut chosen: Vec<_> = chosen.map(|(_, sequence)| Sequence(*sequence)).collect();
    if dice.is_multiple_of(3) {
        chosen.reverse();
    }
    chosen
}

fn records(ticket: Ticket, unit: u32, changes: &[Change]) -> Vec<Record> {
    let numbered = (ticket.first.0..).zip(changes);
    let record = |(sequence, change): (u64, &Change)| Record {
        sequence: Sequence(sequence),
        unit: UnitId(unit),
        time_micros: 1,
        change: change.clone(),
        old_lost: change.lacks_old(),
    };
    numbered.map(record).collect()
}

fn recovered(content: &Content) -> Recovered {
    let unit = |unit| StoredUnit {
        id: UnitId(unit),
        description: serde_json::Value::Null,
        terms: terms(unit),
        reached: Reached::default(),
        retired: None,
    };
    Recovered {
        journal_id: String::new(),
        last: Sequence(content.records.last_key_value().map_or(0, |(last, _)| *last).max(content.first.max(1) - 1)),
        first: Sequence(content.first.max(1)),
        units: (0..UNITS).map(unit).collect(),
        readers: content.readers.values().map(|(state, _)| restored(content, state)).collect(),
        clean: false,
        timeline: timeline::TimelinePage::default(),
        tail: timeline::TimelineTail::default(),
    }
}

/// Returns the positions of a reader's coalesced entries, as the store finds them when it is opened.
fn compacted_of(content: &Content, name: &str) -> RoaringTreemap {
    let Some((state, _)) = content.readers.get(name) else { return RoaringTreemap::new() };
    let needed = &state.pending | &state.given_up;
    let entries = content.entries.get(name).into_iter().flat_map(|entries| entries.keys().copied());
    entries.filter(|position| needed.contains(*position)).collect()
}

fn restored(content: &Content, state: &StoredReader) -> StoredReader {
    StoredReader { compacted: compacted_of(content, &state.name), ..state.clone() }
}

fn head<'a>(record: &'a Record, only: Option<&'a str>) -> Head<'a> {
    Head::of(&record.change, record.unit, record.sequence.0, record.time_micros, only)
}

fn holds(fsync: Fsync) {
    let totals = Mutex::new(Vec::new());
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
        .run(&proptest::collection::vec(op(), 200..400), |ops| {
            let mut run = Run::new(fsync);
            for op in &ops {
                run.apply(op);
            }
            run.finish(&totals);
            Ok(())
        })
        .unwrap();
    let totals = totals.into_inner().unwrap();
    let tried = |of: fn(&Hits) -> u64| totals.iter().map(of).sum::<u64>();
    let common = [
        tried(|hits| hits.refused),
        tried(|hits| hits.lost),
        tried(|hits| hits.crashed),
        tried(|hits| hits.stopped),
        tried(|hits| hits.spilled),
        tried(|hits| hits.held_back),
        tried(|hits| hits.shown_again),
        tried(|hits| hits.replayed),
        tried(|hits| hits.silent),
        tried(|hits| hits.loud),
        tried(|hits| hits.removed),
        tried(|hits| hits.not_saved),
        tried(|hits| hits.out_of_order),
        tried(|hits| hits.undurable),
        tried(|hits| hits.compacted),
        tried(|hits| hits.merged),
        tried(|hits| hits.step_overtaken),
        tried(|hits| hits.step_repeated),
        tried(|hits| hits.removed_below_a_waiting_one),
        tried(|hits| hits.filtered),
        tried(|hits| hits.filtered_by_a_step),
    ];
    println!("{common:?}");
    assert!(common.iter().all(|count| *count > 20), "something was hardly ever tried: {common:?}");
    // This concerns one reader of five, and each restart ends its given-up records.
    let rare = [
        tried(|hits| hits.replayed_from_memory),
        tried(|hits| hits.kept_given_up),
        tried(|hits| hits.judging_overtaken),
    ];
    println!("{rare:?}");
    assert!(rare.iter().all(|count| *count > 10), "something was hardly ever tried: {rare:?}");
}

/// Checks E3 and E4 with a state directory, for `fsync = "group"`. `PROPTEST_CASES` sets the number of cases.
#[test]
fn unacknowledged_records_return_after_any_crash() {
    holds(Fsync::Group);
}

/// Checks the same for `fsync` with an interval, where written records are handed out at once.
#[test]
fn interval_records_that_survive_crash_return() {
    holds(Fsync::Interval(Duration::ZERO));
}
