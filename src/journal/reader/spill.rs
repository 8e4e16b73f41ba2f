//! Records beyond a reader's bounds, in a journal with a store: their positions only (D7).
//!
//! The bodies are read from the store again, in order, once there is room. Nothing is dropped. Only a compaction of the
//! store coalesces records here, and the spill is held during each of its steps.

use roaring::RoaringTreemap;

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::{Record, Sequence, UnitId, units::RecordOrigin};

/// Records asked for at a time: at first, and at most.
const CHUNK: (usize, usize) = (8, 1024);
/// The next chunk is larger if this one was below it, so that a read of the disk is worth its call.
const CHUNK_BYTES: usize = 1 << 20;

/// Positions of waiting records, in order.
#[derive(Debug, Default)]
pub(super) struct Spill {
    pub(super) positions: RoaringTreemap,
    /// Of these, what passed the filter before.
    pub(super) passed: RoaringTreemap,
    /// Records to read next, from the least chunk on: their sizes are known only afterwards.
    chunk: usize,
    /// Time of the oldest of them, at the earliest. 0 where it is not known.
    since_micros: i64,
    /// Set during a step of a compaction: nothing is read.
    held: bool,
    /// Count of such steps: an answer to a question from before one is void.
    epoch: u64,
}

/// Positions to read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToLoad {
    /// The positions, in order.
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

    /// Adds positions that passed the filter before, and may come before all others.
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

    /// Lets nothing be read until it is [released](Self::release).
    pub(super) fn hold(&mut self) {
        self.held = true;
        self.epoch += 1;
    }

    pub(super) fn release(&mut self) {
        self.held = false;
    }

    /// Removes records that were coalesced into others. Returns their count.
    pub(super) fn supersede(&mut self, positions: &RoaringTreemap) -> u64 {
        let before = self.positions.len();
        self.positions -= positions;
        self.passed &= &self.positions;
        before - self.positions.len()
    }

    /// Removes a position. Returns whether it was there.
    pub(super) fn remove(&mut self, position: u64) -> bool {
        self.passed.remove(position);
        self.positions.remove(position)
    }
}

impl JournalReader {
    /// Returns the positions to read from the store before anything can be read from here.
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

    /// Takes what was read from the store at the positions asked for, in order, as far as there is room. What is not
    /// among it is lost, and so is a record of a forgotten unit. Returns whether the answer was still valid.
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
                break; // something came before it meanwhile
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
            // what was coalesced was judged before
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
