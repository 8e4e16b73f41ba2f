//! A store of which a crash leaves what was synced and any beginning of the rest.

use std::collections::BTreeMap;

use super::{HANDLERS, RecordName};
use crate::{
    indexer::{Change, store::Reached},
    journal::{
        ChangeKind, Record, Sequence, UnitId,
        memory::Durability,
        store::{Head, Recovered, StoredReader, StoredUnit},
    },
    object::{KeyRef, SharedObject},
};

/// One atomic write.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// A run begins, under this journal id.
    Begin(u64),
    Unit(StoredUnit),
    Append {
        unit: UnitId,
        records: Vec<Record>,
        reached: Reached,
    },
    /// Where readers stand, and how many acknowledgements of each handler that says.
    Readers(Vec<StoredReader>, [usize; HANDLERS]),
    /// Records before here are gone.
    Remove(u64),
    Clean,
}

/// What is in the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) journal_id: u64,
    pub(super) clean: bool,
    pub(super) first: u64,
    pub(super) records: BTreeMap<u64, Record>,
    pub(super) units: BTreeMap<UnitId, StoredUnit>,
    objects: BTreeMap<UnitId, BTreeMap<String, SharedObject>>,
    readers: BTreeMap<String, StoredReader>,
    pub(super) settled: [usize; HANDLERS],
}

impl Content {
    fn apply(&mut self, write: &Write) {
        match write {
            Write::Begin(journal_id) => (self.journal_id, self.clean) = (*journal_id, false),
            Write::Unit(unit) => drop(self.units.insert(unit.id, unit.clone())),
            Write::Append { unit, records, reached } => {
                let objects = self.objects.entry(*unit).or_default();
                for record in records {
                    match (&record.change, record.object()) {
                        (Change::Deleted { .. } | Change::Removed { .. }, Some(object)) => {
                            objects.remove(object.name());
                        }
                        (_, Some(object)) => drop(objects.insert(object.name().to_owned(), object.clone())),
                        (_, None) => {}
                    }
                    self.records.insert(record.sequence.0, record.clone());
                }
                self.units.get_mut(unit).expect("a unit is known before it appends").reached = reached.clone();
            }
            Write::Readers(states, settled) => {
                self.readers.extend(states.iter().map(|state| (state.name.clone(), state.clone())));
                self.settled = *settled;
            }
            Write::Remove(before) => {
                self.records = self.records.split_off(before);
                self.first = *before;
            }
            Write::Clean => self.clean = true,
        }
    }

    /// Returns the objects of a unit, in order.
    pub(super) fn objects(&self, unit: UnitId) -> Vec<SharedObject> {
        self.objects.get(&unit).map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns whether the store has that very record.
    pub(super) fn has(&self, (birth, sequence): RecordName) -> bool {
        self.records.get(&sequence).is_some_and(|record| record.time_micros == birth)
    }

    /// Returns what a journal is restored from.
    pub(super) fn recovered(&self) -> Recovered {
        let first = self.first.max(1);
        Recovered {
            journal_id: self.journal_id.to_string(),
            last: Sequence(self.records.last_key_value().map_or(0, |(last, _)| *last).max(first - 1)),
            first: Sequence(first),
            units: self.units.values().cloned().collect(),
            readers: self.readers.values().cloned().collect(),
            clean: self.clean,
        }
    }
}

/// The disk under the engine.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) synced: Content,
    /// What was written and is not synced.
    pub(super) log: Vec<Write>,
    /// What the process sees.
    pub(super) now: Content,
}

impl Disk {
    pub(super) fn write(&mut self, write: Write) {
        self.now.apply(&write);
        self.log.push(write);
    }

    /// Makes the oldest `writes` durable.
    pub(super) fn sync(&mut self, writes: usize) {
        for write in self.log.drain(..writes) {
            self.synced.apply(&write);
        }
    }

    /// Loses all but the oldest `kept` of what is not synced.
    pub(super) fn crash(&mut self, kept: usize) {
        self.sync(kept);
        self.log.clear();
        self.now = self.synced.clone();
    }

    /// Begins a run; returns the journal's id, kept where the tail cannot be lost.
    pub(super) fn open(&mut self, durability: Durability) -> u64 {
        let keeps = self.now.clean || durability == Durability::Group && self.now.journal_id > 0;
        let id = if keeps { self.now.journal_id } else { self.now.journal_id + 1 };
        self.write(Write::Begin(id));
        self.sync(self.log.len());
        id
    }
}

/// Returns the head of a record as the store has it.
pub(super) fn head(record: &Record) -> Head<'_> {
    let cause = match &record.change {
        Change::Added { cause, .. }
        | Change::Updated { cause, .. }
        | Change::Deleted { cause, .. }
        | Change::Removed { cause, .. }
        | Change::Unchanged { cause, .. } => Some(*cause),
        Change::Synced { .. } => None,
    };
    Head {
        sequence: record.sequence,
        unit: record.unit,
        time_micros: record.time_micros,
        kind: ChangeKind::of(&record.change),
        cause,
        only: None,
        key: record.object().map_or(KeyRef { namespace: "", name: "" }, |object| object.key()),
        uid: record.object().map_or("", |object| object.uid()),
        resource_version: record.object().map_or("", |object| object.resource_version()),
        json_bytes: 0,
    }
}
