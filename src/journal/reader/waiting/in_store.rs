//! Waiting records of a named reader in a journal with a store.
//!
//! Beyond the reader's limits, only the positions of records are kept in memory. Once there is room, the records are loaded from
//! the store again, in order. The reader's limits never cause a drop: only a full store drops records. Only a compaction of the
//! store coalesces them, and nothing is loaded during the steps of that compaction.

use roaring::RoaringTreemap;

use super::{super::tally::Tally, MANY, WaitingRecord, queue::Queue};
use crate::journal::{Bounds, Record, Sequence, UnitId, UnitTerms, store::StoredReader};

/// Initial and maximum number of records per load.
const CHUNK_MIN: usize = 8;
const CHUNK_MAX: usize = 1024;
/// Target size of a load. After a larger load, the next one has half as many records, otherwise twice as many.
const CHUNK_BYTES: usize = 1 << 20;

/// **Invariant:** all records in the queue are wanted, and come before those that are only in the store.
#[derive(Debug)]
pub(crate) struct InStore {
    pub(super) bounds: Bounds,
    pub(crate) name: Box<str>,
    pub(super) queue: Queue,
    /// Positions of the waiting records that are only in the store.
    pub(crate) spilled: RoaringTreemap,
    /// Number of records to load next. It starts small, because their sizes are known only after the load.
    chunk: usize,
    /// Lower bound for the time of the oldest spilled record; 0 if not known.
    since_micros: i64,
    /// Set during a step of a compaction: nothing is loaded.
    pub(crate) held: bool,
    /// Number of compaction steps so far. A load is void if a step has started since the load was requested.
    epoch: u64,
    pub(crate) given_up: RoaringTreemap,
    /// Released watermark when the reader was abandoned; `None` if it was not. The reader ignores later records. The next run
    /// selects them from the log.
    pub(crate) frozen: Option<Sequence>,
    /// Position at which the reader was opened. The released watermark may be lower.
    pub(crate) opened: Sequence,
    /// Set while there are unsaved changes.
    pub(crate) changed: bool,
    /// First record of the log that the saved state needs.
    pub(crate) needs: u64,
    /// Position before which all waiting records were dropped. The log may remove them even if the saved state still lists them.
    pub(crate) floor: u64,
    /// Positions of waiting or given-up records that are stored as coalesced entries, and no longer needed in the log.
    pub(crate) compacted: RoaringTreemap,
    /// Last position that was handed out.
    pub(crate) shown: u64,
}

/// Positions to load from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToLoad {
    /// Positions, in order.
    pub positions: Vec<u64>,
    epoch: u64,
}

impl InStore {
    pub(crate) fn new(bounds: Bounds, state: StoredReader) -> Self {
        Self {
            bounds,
            needs: needs(&state),
            shown: state.pending.max().unwrap_or_default(),
            name: state.name.into(),
            queue: Queue::default(),
            spilled: state.pending,
            chunk: 0,
            since_micros: 0,
            held: false,
            epoch: 0,
            given_up: state.given_up,
            frozen: None,
            opened: state.position,
            changed: true,
            floor: 0,
            compacted: state.compacted,
        }
    }

    pub(super) fn push(&mut self, record: &Record, terms: UnitTerms) {
        if !self.spilled.is_empty() || !self.queue.has_room(record.body_bytes(), &self.bounds) {
            return self.spill(record);
        }
        let record = if self.queue.waiting.len() >= MANY { record.packed() } else { record.clone() };
        self.queue.push(WaitingRecord { record, terms, wanted: true, judged: false });
    }

    /// Lets a record wait in the store only.
    pub(crate) fn spill(&mut self, record: &Record) {
        let time = record.time_micros;
        self.since_micros = if self.spilled.is_empty() { time } else { self.since_micros.min(time) };
        self.spilled.insert(record.sequence.0);
    }

    pub(super) fn settle(&mut self) {
        while self.queue.is_over(&self.bounds) {
            let last = self.queue.pop_last().expect("too much waits");
            self.spill(&last.record);
        }
    }

    /// Moves the records in memory back to the store.
    pub(crate) fn unload(&mut self) {
        std::mem::take(&mut self.queue).waiting.iter().for_each(|waiting| self.spill(&waiting.record));
    }

    /// Queues all given-up records again. Returns their number. They may be older than the records that already wait.
    pub(super) fn replay(&mut self) -> u64 {
        self.unload(); // the records in memory must be read after the replayed ones
        let given_up = std::mem::take(&mut self.given_up);
        self.spilled |= &given_up;
        self.since_micros = 0;
        given_up.len()
    }

    /// Forgets records that wait. Returns their number. A running load takes only what still waits.
    pub(crate) fn skip(&mut self, positions: &RoaringTreemap) -> u64 {
        let waits = |stored: &Self| stored.queue.waiting.len() as u64 + stored.spilled.len();
        let before = waits(self);
        self.queue.retain(|waiting| !positions.contains(waiting.record.sequence.0));
        self.spilled -= positions;
        (self.changed, self.epoch) = (true, self.epoch + 1);
        before - waits(self)
    }

    pub(crate) fn since_micros(&self) -> Option<i64> {
        (self.since_micros != 0 && !self.spilled.is_empty()).then_some(self.since_micros)
    }

    /// Starts a step of a compaction: all waiting records are only in the store, and none are loaded.
    pub(crate) fn hold(&mut self) {
        self.unload();
        self.held = true;
        self.epoch += 1;
    }

    /// Returns the positions to load before the next read, at most `max`.
    pub(crate) fn to_load(&self, max: usize) -> ToLoad {
        if self.held || !self.queue.waiting.is_empty() {
            return ToLoad::default();
        }
        let max = self.chunk.max(CHUNK_MIN).min(max);
        ToLoad { positions: self.spilled.iter().take(max).collect(), epoch: self.epoch }
    }

    /// Takes the records of a load, in order, until there is no more room. A requested record that is missing counts as lost, and
    /// so does a record of a forgotten unit. Takes nothing and returns false if the load is void.
    pub(crate) fn loaded(
        &mut self,
        asked: &ToLoad,
        records: Vec<Record>,
        terms: impl Fn(UnitId) -> Option<UnitTerms>,
        tally: &mut Tally,
    ) -> bool {
        if !self.queue.waiting.is_empty() || self.held || self.epoch != asked.epoch {
            return false; // another load or a compaction step came first
        }
        let mut records = records.into_iter().peekable();
        let mut bytes = 0;
        for position in &asked.positions {
            if self.spilled.min() != Some(*position) {
                break; // a replay has added earlier positions
            }
            let Some(record) = records.next_if(|record| record.sequence == Sequence(*position)) else {
                self.spilled.remove(*position);
                tally.miss();
                continue;
            };
            bytes += record.body_bytes();
            let terms = terms(record.unit);
            if terms.is_some() && !self.queue.has_room(record.body_bytes(), &self.bounds) {
                break;
            }
            let judged = self.compacted.contains(*position); // the record was judged before it was coalesced
            self.spilled.remove(*position);
            self.since_micros = record.time_micros;
            match terms {
                Some(terms) => self.queue.push(WaitingRecord { record, terms, wanted: true, judged }),
                None => tally.lose(&record),
            }
        }
        let next = if bytes > CHUNK_BYTES { self.chunk / 2 } else { self.chunk.max(CHUNK_MIN) * 2 };
        self.chunk = next.clamp(CHUNK_MIN, CHUNK_MAX);
        true
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.queue.check(&self.bounds);
        assert!(self.queue.waiting.iter().all(|waiting| waiting.wanted));
        assert!(!self.queue.waiting.iter().any(|waiting| self.spilled.contains(waiting.record.sequence.0)));
    }
}

/// Returns the first record of the log that a reader with this state needs.
pub(crate) fn needs(state: &StoredReader) -> u64 {
    (&state.pending - &state.compacted).min().unwrap_or(state.position.0 + 1)
}

/// Returns the first position that a reader with this state has not handled.
pub(crate) fn waits_from(state: &StoredReader) -> u64 {
    state.pending.min().unwrap_or(state.position.0 + 1)
}
