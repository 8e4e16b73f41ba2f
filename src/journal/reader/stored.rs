//! State of a named reader in a journal with a store, and the steps of a compaction of its records.
//!
//! Beyond the reader's limits, only the positions of records are kept in memory. Once there is room, the records are loaded from
//! the store again, in order. The reader's limits never cause a drop: only a full store drops records. Only a compaction of the
//! store coalesces them, and nothing is loaded during the steps of that compaction.

use roaring::RoaringTreemap;

use super::{JournalReader, queue::WaitingRecord};
use crate::journal::{Record, Sequence, UnitId, UnitTerms, filter::RecordFilter, store::StoredReader};

/// Initial and maximum number of records per load.
const CHUNK: (usize, usize) = (8, 1024);
/// Target size of a load. After a larger load, the next one has half as many records, otherwise twice as many.
const CHUNK_BYTES: usize = 1 << 20;

/// Part of a named reader's state that only a journal with a store has.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) name: Box<str>,
    /// Positions of the waiting records that are only in the store.
    pub(super) spilled: RoaringTreemap,
    /// Number of records to load next. It starts small, because their sizes are known only after the load.
    chunk: usize,
    /// Lower bound for the time of the oldest spilled record; 0 if not known.
    since_micros: i64,
    /// Set during a step of a compaction: nothing is loaded.
    held: bool,
    /// Number of compaction steps so far. A load is void if a step has started since the load was requested.
    epoch: u64,
    pub(super) given_up: RoaringTreemap,
    /// Released watermark when the reader was abandoned; `None` if it was not. The reader ignores later records. The next run
    /// selects them from the log.
    pub(super) frozen: Option<Sequence>,
    /// Position at which the reader was opened. The released watermark may be lower.
    opened: Sequence,
    /// Set while there are unsaved changes.
    changed: bool,
    /// First record of the log that the saved state needs.
    needs: u64,
    /// Position before which all waiting records were dropped. The log may remove them even if the saved state still lists them.
    floor: u64,
    /// Positions of waiting or given-up records that are stored as coalesced entries, and no longer needed in the log.
    pub(super) compacted: RoaringTreemap,
    /// Last position that was handed out.
    pub(super) shown: u64,
}

impl Stored {
    pub(super) fn of(state: StoredReader) -> Self {
        Self {
            needs: needs(&state),
            shown: state.pending.max().unwrap_or_default(),
            name: state.name.into(),
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

    pub(super) fn push(&mut self, record: &Record) {
        if self.spilled.is_empty() {
            self.since_micros = record.time_micros;
        }
        self.spilled.insert(record.sequence.0);
    }

    /// Queues all given-up records again. Returns their number. They may be older than the records that already wait.
    pub(super) fn replay(&mut self) -> u64 {
        let given_up = std::mem::take(&mut self.given_up);
        self.spilled |= &given_up;
        self.since_micros = 0;
        given_up.len()
    }

    pub(super) fn since_micros(&self) -> Option<i64> {
        (self.since_micros != 0 && !self.spilled.is_empty()).then_some(self.since_micros)
    }
}

/// Positions to load from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToLoad {
    /// Positions, in order.
    pub places: Vec<u64>,
    epoch: u64,
}

/// Records of the next step of a compaction.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The reader's filter, and the positions of the records to judge before anything is coalesced; `None` without a filter.
    pub to_judge: Option<(RecordFilter, Vec<u64>)>,
    /// Positions of the records, in order.
    pub places: Vec<u64>,
    /// Positions of all records that wait only in the store. Only these may be coalesced.
    pub may_merge: RoaringTreemap,
    /// Last position that was handed out.
    pub shown: u64,
}

impl JournalReader {
    /// Returns the name of a reader whose state is saved.
    pub(crate) fn name(&self) -> Option<&str> {
        self.stored.as_ref().map(|stored| &*stored.name)
    }

    /// Returns the positions to load from the store before the next read.
    pub(crate) fn to_load(&self) -> ToLoad {
        let has_room =
            self.in_flight.len() < self.in_flight_max() && self.again.is_empty() && self.queue.waiting.is_empty();
        match &self.stored {
            Some(stored) if has_room && !self.abandoned && !stored.held => {
                let max = stored.chunk.max(CHUNK.0).min(self.in_flight_max());
                ToLoad { places: stored.spilled.iter().take(max).collect(), epoch: stored.epoch }
            }
            _ => ToLoad::default(),
        }
    }

    /// Takes the records of a load, in order, until there is no more room. A requested record that is missing counts as lost, and
    /// so does a record of a forgotten unit. Takes nothing and returns false if the load is void.
    pub(crate) fn loaded(
        &mut self,
        asked: &ToLoad,
        records: Vec<Record>,
        terms: impl Fn(UnitId) -> Option<UnitTerms>,
    ) -> bool {
        let Some(stored) = &mut self.stored else { return false };
        if !self.again.is_empty() || !self.queue.waiting.is_empty() || stored.held || stored.epoch != asked.epoch {
            return false; // another load or a compaction step came first
        }
        let mut records = records.into_iter().peekable();
        let mut bytes = 0;
        for position in &asked.places {
            if stored.spilled.min() != Some(*position) {
                break; // a replay has added earlier positions
            }
            let Some(record) = records.next_if(|record| record.sequence == Sequence(*position)) else {
                stored.spilled.remove(*position);
                self.tally.miss();
                continue;
            };
            bytes += record.body_bytes();
            let terms = terms(record.unit);
            if terms.is_some() && !self.queue.has_room(record.body_bytes(), &self.bounds) {
                break;
            }
            let judged = stored.compacted.contains(*position); // the record was judged before it was coalesced
            stored.spilled.remove(*position);
            stored.since_micros = record.time_micros;
            match terms {
                Some(terms) => self.queue.push(WaitingRecord { record, terms, wanted: true, judged }),
                None => self.tally.lose(&record),
            }
        }
        let next = if bytes > CHUNK_BYTES { stored.chunk / 2 } else { stored.chunk.max(CHUNK.0) * 2 };
        stored.chunk = next.clamp(CHUNK.0, CHUNK.1);
        true
    }

    /// Marks the state as changed.
    pub(crate) fn touch(&mut self) {
        if let Some(stored) = &mut self.stored {
            stored.changed = true;
        }
    }

    /// Returns the state to save if it differs from the saved one. `mark` is the released watermark.
    pub(crate) fn save(&mut self, mark: Sequence) -> Option<StoredReader> {
        let stored = self.stored.as_ref()?;
        // If no record waits, the reader needs no record up to the watermark. A saved state that still needs one is outdated.
        let lags = stored.frozen.is_none() && stored.needs <= mark.0 && self.first().is_none();
        if stored.changed || lags { self.state(mark) } else { None }
    }

    /// Returns the state, and marks it as saved.
    fn state(&mut self, mark: Sequence) -> Option<StoredReader> {
        let (pending, joined) = (self.pending(), self.joined());
        let stored = self.stored.as_mut()?;
        stored.changed = false;
        if !stored.compacted.is_empty() {
            stored.compacted &= &pending | &stored.given_up;
        }
        Some(StoredReader {
            name: stored.name.to_string(),
            position: stored.frozen.unwrap_or(mark).max(stored.opened),
            pending,
            joined,
            given_up: stored.given_up.clone(),
            compacted: stored.compacted.clone(),
        })
    }

    /// Notes that `state` was saved.
    pub(crate) fn saved(&mut self, state: &StoredReader) {
        if let Some(stored) = &mut self.stored {
            stored.needs = needs(state);
        }
    }

    fn in_memory(&self) -> impl Iterator<Item = &WaitingRecord> {
        self.in_flight.iter().chain(&self.again).chain(&self.queue.waiting)
    }

    /// Returns the positions of all records that wait or are in flight.
    fn pending(&self) -> RoaringTreemap {
        let mut pending = self.stored.as_ref().map(|stored| stored.spilled.clone()).unwrap_or_default();
        pending.extend(self.in_memory().map(|waiting| waiting.sequence().0));
        pending
    }

    /// Returns the oldest unacknowledged record that has no coalesced entry.
    fn first_in_log(&self) -> Option<u64> {
        let Stored { compacted, spilled, .. } = self.stored.as_ref()?;
        if compacted.is_empty() {
            return self.first().map(|first| first.0);
        }
        let in_memory = self.in_memory().map(|waiting| waiting.sequence().0);
        in_memory.filter(|position| !compacted.contains(*position)).chain((spilled - compacted).min()).min()
    }

    /// Returns the first record of the log that the reader needs, now or after a crash. `mark` is the released watermark.
    pub(crate) fn needs(&self, mark: Sequence) -> u64 {
        let Some(stored) = &self.stored else { return mark.0 + 1 };
        stored.needs.min(self.first_in_log().unwrap_or(mark.0 + 1)).max(stored.floor)
    }

    /// Forgets the given-up records that are before a position. If `coalesced` is set, only records with coalesced entries are
    /// forgotten; otherwise only records in the log.
    pub(crate) fn forget_given_up(&mut self, before: Sequence, coalesced: bool) {
        if let Some(Stored { given_up, compacted, changed, .. }) = &mut self.stored {
            let mut forgotten = if coalesced { &*given_up & &*compacted } else { &*given_up - &*compacted };
            forgotten.remove_range(before.0..);
            *changed |= !forgotten.is_empty();
            *given_up -= forgotten;
        }
    }

    /// Returns the positions of the records that wait only in the store, oldest first.
    pub(crate) fn spilled(&self) -> impl Iterator<Item = u64> {
        self.stored.iter().flat_map(|stored| stored.spilled.iter())
    }

    /// Drops the records at `positions` that wait only in the store. Reports the losses of records in `named` by name, and only
    /// counts the other losses. From now on the reader needs no record before `upto`.
    pub(crate) fn drop_spilled(&mut self, positions: &[u64], named: &[Record], upto: Sequence) {
        let Some(stored) = &mut self.stored else { return };
        for at in positions.iter().filter(|at| stored.spilled.remove(**at)) {
            match named.iter().find(|record| record.sequence.0 == *at) {
                Some(record) => self.tally.lose(record),
                None => self.tally.miss(),
            }
        }
        stored.floor = stored.floor.max(upto.0);
        stored.changed = true;
    }

    /// Returns the first record of the log that the reader needs, and the reader's name. Returns `None` if that record is after
    /// `until`.
    pub(crate) fn compactable(&self, until: Sequence) -> Option<(u64, &str)> {
        self.first_in_log().filter(|first| *first <= until.0).zip(self.name())
    }

    /// Returns two numbers of unacknowledged records of a named reader: records in the log, and coalesced entries.
    pub(crate) fn loads(&self) -> (u64, u64) {
        let Some(stored) = &self.stored else { return (0, 0) };
        let pending = self.pending();
        let compacted = pending.intersection_len(&stored.compacted);
        (pending.len() - compacted, compacted)
    }

    /// Starts the next step of a compaction, with at most `max` records up to `until`. Nothing is loaded from the store until the
    /// step is [released](Self::release) or [completed](Self::compacted). Returns `None` if no such record is left.
    pub(crate) fn hold(&mut self, max: usize, until: Sequence) -> Option<Held> {
        let places = self.pending() - &self.stored.as_ref()?.compacted;
        let places: Vec<_> = places.iter().take_while(|position| *position <= until.0).take(max).collect();
        let judged: RoaringTreemap = self.in_memory().filter(|at| at.judged).map(|at| at.sequence().0).collect();
        let stored = self.stored.as_mut().filter(|_| !places.is_empty())?;
        stored.held = true;
        stored.epoch += 1;
        let is_unjudged = |at: &&u64| !judged.contains(**at);
        let to_judge = self.filter.clone().map(|filter| (filter, places.iter().filter(is_unjudged).copied().collect()));
        Some(Held { to_judge, places, may_merge: stored.spilled.clone(), shown: stored.shown })
    }

    /// Ends a step that changed nothing.
    pub(crate) fn release(&mut self) {
        self.stored.iter_mut().for_each(|stored| stored.held = false);
    }

    /// Returns the state that must be saved together with the entries of a step.
    pub(crate) fn compacting(
        &mut self,
        written: &RoaringTreemap,
        superseded: &RoaringTreemap,
        mark: Sequence,
    ) -> Option<StoredReader> {
        let mut state = self.state(mark)?;
        state.pending -= superseded;
        state.compacted -= superseded;
        state.compacted |= written;
        state.compacted &= &state.pending | &state.given_up;
        Some(state)
    }

    /// Completes a step, after the store has saved it with `state`. The step coalesced the `superseded` records into others.
    pub(crate) fn compacted(&mut self, superseded: &RoaringTreemap, state: &StoredReader) {
        let Some(stored) = &mut self.stored else { return };
        let before = stored.spilled.len();
        stored.spilled -= superseded;
        self.tally.stats.coalesced += before - stored.spilled.len();
        stored.held = false;
        stored.compacted.clone_from(&state.compacted);
        stored.needs = needs(state);
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
