//! Records beyond a reader's limits, in a journal with a store. Only their positions are kept.
//!
//! The bodies are loaded from the store again, in order, once there is room. No record is dropped. Only a compaction of the
//! store coalesces these records, and the spill is held during each of its steps.

use roaring::RoaringTreemap;

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::{Record, Sequence, UnitId, units::RecordOrigin};

/// Initial and maximum number of records per load.
const CHUNK: (usize, usize) = (8, 1024);
/// Size of a load up to which the next one is larger, so that each call reads a useful amount.
const CHUNK_BYTES: usize = 1 << 20;

/// Positions of waiting records, in order.
#[derive(Debug, Default)]
pub(super) struct Spill {
    pub(super) positions: RoaringTreemap,
    /// Positions whose records passed the filter before.
    pub(super) passed: RoaringTreemap,
    /// Number of records to load next. It starts small, because their sizes are known only after the load.
    chunk: usize,
    /// Lower bound for the time of the oldest record; 0 if not known.
    since_micros: i64,
    /// Set during a step of a compaction: nothing is loaded.
    held: bool,
    /// Number of such steps. A load that was requested before a step is void after it.
    epoch: u64,
}

/// Positions to load from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToLoad {
    /// Positions, in order.
    pub places: Vec<u64>,
    epoch: u64,
}

impl Spill {
    pub(super) fn of(positions: RoaringTreemap) -> Self {
        Self { positions, ..Self::default() }
    }

    pub(super) fn push(&mut self, record: &Record) {
        if self.positions.is_empty() {
            self.since_micros = record.time_micros;
        }
        self.positions.insert(record.sequence.0);
    }

    /// Keeps only the position of a record that was in memory.
    pub(super) fn put_back(&mut self, waiting: &WaitingRecord) {
        if waiting.judged {
            self.passed.insert(waiting.sequence().0);
        }
        self.push(&waiting.record);
    }

    /// Adds positions whose records passed the filter before. They may be before all others.
    pub(super) fn extend(&mut self, positions: &RoaringTreemap) {
        self.passed |= positions;
        self.positions |= positions;
        self.since_micros = 0;
    }

    pub(super) fn since_micros(&self) -> Option<i64> {
        (self.since_micros != 0 && !self.positions.is_empty()).then_some(self.since_micros)
    }

    pub(super) fn pass(&mut self, positions: impl Iterator<Item = u64>) {
        let positions = positions.filter(|position| self.positions.contains(*position));
        self.passed.extend(positions);
    }

    /// Prevents loads until [`Self::release`].
    pub(super) fn hold(&mut self) {
        self.held = true;
        self.epoch += 1;
    }

    pub(super) fn release(&mut self) {
        self.held = false;
    }

    /// Removes records that were coalesced into others. Returns their number.
    pub(super) fn supersede(&mut self, positions: &RoaringTreemap) -> u64 {
        let before = self.positions.len();
        self.positions -= positions;
        self.passed &= &self.positions;
        before - self.positions.len()
    }

    /// Removes a position. Returns true if it was there.
    pub(super) fn remove(&mut self, position: u64) -> bool {
        self.passed.remove(position);
        self.positions.remove(position)
    }
}

impl JournalReader {
    /// Returns the positions to load from the store before the next read.
    pub(crate) fn to_load(&self) -> ToLoad {
        let has_room =
            self.in_flight.len() < self.in_flight_max() && self.again.is_empty() && self.queue.waiting.is_empty();
        match &self.spill {
            Some(spill) if has_room && !self.abandoned && !spill.held => {
                let max = spill.chunk.max(CHUNK.0).min(self.in_flight_max());
                ToLoad { places: spill.positions.iter().take(max).collect(), epoch: spill.epoch }
            }
            _ => ToLoad::default(),
        }
    }

    /// Takes records that were loaded at the requested positions, in order, until there is no more room. Missing
    /// records and records of a forgotten unit are lost. Returns true if the load was still valid.
    pub(crate) fn loaded(
        &mut self,
        asked: &ToLoad,
        records: Vec<Record>,
        origin: impl Fn(UnitId) -> Option<RecordOrigin>,
    ) -> bool {
        let Some(spill) = &mut self.spill else { return false };
        if !self.again.is_empty() || !self.queue.waiting.is_empty() || spill.held || spill.epoch != asked.epoch {
            return false; // another call was faster
        }
        let mut records = records.into_iter().peekable();
        let mut bytes = 0;
        for position in &asked.places {
            if spill.positions.min() != Some(*position) {
                break; // a replay has added earlier positions
            }
            let Some(record) = records.next_if(|record| record.sequence == Sequence(*position)) else {
                spill.remove(*position);
                self.tally.miss(1);
                continue;
            };
            bytes += record.body_bytes();
            let origin = origin(record.unit);
            if origin.is_some() && !self.queue.has_room(record.body_bytes(), &self.bounds) {
                break;
            }
            // Coalesced records were judged before.
            let judged = spill.passed.contains(*position) || self.kept.compacted.contains(*position);
            spill.remove(*position);
            spill.since_micros = record.time_micros;
            match origin {
                Some(origin) => self.queue.push(WaitingRecord { record, origin, wanted: true, judged }),
                None => self.tally.lose(&record),
            }
        }
        let next = if bytes > CHUNK_BYTES { spill.chunk / 2 } else { spill.chunk.max(CHUNK.0) * 2 };
        spill.chunk = next.clamp(CHUNK.0, CHUNK.1);
        true
    }
}
