//! A store. After a crash it has all synced writes, and a random number of the oldest unsynced writes.

use std::collections::BTreeMap;

use super::RecordName;
use crate::{
    change::{Change, Reached},
    journal::{
        Fsync, Record, Sequence, UnitId,
        compaction::testing::{Entry, Step},
        store::{Head, NOBODY, Recovered, StoredReader, StoredUnit},
        timeline::{TimelinePage, TimelineTail},
    },
    object::Object,
};

/// For each handler, by name: its sink, and the number of acknowledgements that its saved position includes.
pub(super) type Settled = BTreeMap<String, (usize, usize)>;

/// One atomic write.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// Start of a run with this journal id.
    Begin(u64),
    Unit(StoredUnit),
    Append {
        unit: UnitId,
        records: Vec<Record>,
        /// Name of the only reader that gets the records.
        only: Option<String>,
        reached: Option<Reached>,
    },
    /// Positions of readers.
    Readers(Vec<StoredReader>, Settled),
    RemoveReader(String),
    /// A compaction step for a handler, and the resulting reader state.
    Compacted(Step, StoredReader, Settled),
    Timeline(Vec<TimelinePage>),
    /// Removal of the records before this one.
    Remove(u64),
    Clean,
}

/// Content of the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) journal_id: u64,
    pub(super) clean: bool,
    pub(super) first: u64,
    /// Records, each with the name of the only reader that gets it.
    pub(super) records: BTreeMap<u64, (Record, Option<String>)>,
    pub(super) units: BTreeMap<UnitId, StoredUnit>,
    objects: BTreeMap<UnitId, BTreeMap<String, Object>>,
    pub(super) readers: BTreeMap<String, StoredReader>,
    /// Each reader's compacted entries.
    pub(super) entries: BTreeMap<String, BTreeMap<u64, Entry>>,
    /// Pages of the timeline, by their first position.
    pub(super) timeline: BTreeMap<u64, TimelinePage>,
    pub(super) settled: Settled,
}

impl Content {
    fn apply(&mut self, write: &Write) {
        match write {
            Write::Begin(journal_id) => (self.journal_id, self.clean) = (*journal_id, false),
            Write::Unit(unit) => drop(self.units.insert(unit.id, unit.clone())),
            Write::Append { unit, records, only, reached } => {
                for record in records {
                    if only.as_deref().is_none_or(|only| only == NOBODY) {
                        self.change(*unit, record);
                    }
                    self.records.insert(record.sequence.0, (record.clone(), only.clone()));
                }
                let unit = self.units.get_mut(unit).expect("a unit is known before it appends");
                unit.reached = reached.clone().unwrap_or_else(|| unit.reached.clone());
            }
            Write::Readers(states, settled) => {
                for state in states {
                    self.put_reader(state);
                }
                self.settled.extend(settled.clone());
            }
            Write::RemoveReader(name) => {
                self.readers.remove(name);
                self.entries.remove(name);
                self.settled.remove(name);
            }
            Write::Compacted(step, state, settled) => {
                let entries = self.entries.entry(state.name.clone()).or_default();
                entries.retain(|position, _| !step.superseded.contains(*position));
                entries.extend(step.entries.clone());
                self.put_reader(state);
                self.settled.extend(settled.clone());
            }
            Write::Timeline(pages) => {
                self.timeline.extend(pages.iter().map(|page| (page.floor.position.0, page.clone())));
            }
            Write::Remove(before) => {
                self.records = self.records.split_off(before);
                let kept = self.timeline.range(..before).next_back().map_or(0, |(position, _)| *position);
                self.timeline = self.timeline.split_off(&kept);
                self.first = *before;
            }
            Write::Clean => self.clean = true,
        }
    }

    fn change(&mut self, unit: UnitId, record: &Record) {
        let objects = self.objects.entry(unit).or_default();
        match (&record.change, record.object()) {
            (Change::Deleted { .. } | Change::Removed { .. }, Some(object)) => drop(objects.remove(object.name())),
            (_, Some(object)) => drop(objects.insert(object.name().to_owned(), object.clone())),
            (_, None) => {}
        }
    }

    fn put_reader(&mut self, state: &StoredReader) {
        self.readers.insert(state.name.clone(), state.clone());
        if let Some(entries) = self.entries.get_mut(&state.name) {
            entries.retain(|position, _| state.compacted.contains(*position));
        }
    }

    /// Reads a pending record of a reader.
    pub(super) fn load(&self, reader: &str, position: u64) -> Option<Record> {
        let entry = self.entries.get(reader).and_then(|entries| entries.get(&position)).map(|(record, ..)| record);
        entry.or_else(|| self.records.get(&position).map(|(record, _)| record)).cloned()
    }

    /// Returns the objects of a unit, in order.
    pub(super) fn objects(&self, unit: UnitId) -> Vec<Object> {
        self.objects.get(&unit).map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns true if the store has exactly this record.
    pub(super) fn has(&self, (birth, sequence): RecordName) -> bool {
        let mut entries = self.entries.values().filter_map(|entries| entries.get(&sequence));
        let is_it = |record: &Record| record.time_micros == birth;
        self.records.get(&sequence).is_some_and(|(record, _)| is_it(record))
            || entries.any(|(record, ..)| is_it(record))
    }

    /// Returns the input for restoring a journal.
    pub(super) fn recovered(&self) -> Recovered {
        let first = self.first.max(1);
        let page = self.timeline.last_key_value().map(|(_, page)| page.clone());
        let micros = self.records.first_key_value().map_or(0, |(_, (record, _))| record.time_micros);
        let timeline = page.unwrap_or_else(|| TimelinePage::beginning(Sequence(first), micros));
        let known = timeline.last();
        let mut tail = TimelineTail::default();
        for (record, only) in self.records.range(known.0 + 1..).map(|(_, record)| record) {
            if only.as_deref().is_none_or(|only| only == NOBODY) {
                tail.add(record.unit, record.time_micros);
            }
        }
        Recovered {
            journal_id: self.journal_id.to_string(),
            last: Sequence(self.records.last_key_value().map_or(0, |(last, _)| *last).max(first - 1)),
            first: Sequence(first),
            units: self.units.values().cloned().collect(),
            readers: self.readers.values().map(|state| self.restored(state)).collect(),
            clean: self.clean,
            timeline,
            tail,
        }
    }
}

impl Content {
    /// Returns the state of a reader as a start of the process finds it. Its compacted records are the pending or given up
    /// records that have an entry.
    fn restored(&self, state: &StoredReader) -> StoredReader {
        let needed = &state.pending | &state.given_up;
        let entries = self.entries.get(&state.name).into_iter().flat_map(|entries| entries.keys().copied());
        StoredReader { compacted: entries.filter(|position| needed.contains(*position)).collect(), ..state.clone() }
    }
}

/// The engine's disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) synced: Content,
    /// Unsynced writes.
    pub(super) log: Vec<Write>,
    /// Content visible to the process.
    pub(super) now: Content,
}

impl Disk {
    pub(super) fn write(&mut self, write: Write) {
        self.now.apply(&write);
        self.log.push(write);
    }

    /// Syncs the oldest `writes` writes.
    pub(super) fn sync(&mut self, writes: usize) {
        for write in self.log.drain(..writes) {
            self.synced.apply(&write);
        }
    }

    /// Drops the unsynced writes except the oldest `kept`.
    pub(super) fn crash(&mut self, kept: usize) {
        self.sync(kept);
        self.log.clear();
        self.now = self.synced.clone();
    }

    /// Starts a run; returns the journal's id, which changes if the tail may have been lost.
    pub(super) fn open(&mut self, fsync: Fsync) -> u64 {
        let keeps = self.now.clean || fsync == Fsync::Group && self.now.journal_id > 0;
        let id = if keeps { self.now.journal_id } else { self.now.journal_id + 1 };
        self.write(Write::Begin(id));
        self.sync(self.log.len());
        id
    }
}

/// Returns the head of a record in its stored form.
pub(super) fn head((record, only): &(Record, Option<String>)) -> Head<'_> {
    Head::of(&record.change, record.unit, record.sequence.0, record.time_micros, only.as_deref())
}
