//! What waits for a reader of a journal with a store, beyond its bounds: only the places of it (D7).
//!
//! Bodies are read from the store again, in order, once there is room. Nothing is dropped, and nothing is merged but by a
//! compaction of the store, for whose steps it is held.

use roaring::RoaringTreemap;

use super::{Record, Sequence};

/// Records asked for at a time: at first, and at most.
const CHUNK: (usize, usize) = (8, 1024);
/// The next chunk is larger if this one was below it: enough that a reading of the disk is worth its call.
const CHUNK_BYTES: usize = 1 << 20;

/// The places of what waits, in order.
#[derive(Debug)]
pub(super) struct Spill {
    places: RoaringTreemap,
    /// How many records are read next. Their sizes are known only afterwards.
    chunk: usize,
    /// When the oldest of them was appended, at the earliest; 0 where that is not known.
    since_micros: i64,
    /// A step of a compaction is under way: nothing is read meanwhile.
    held: bool,
    /// How many such steps have begun: what was asked for before one is not what it seems behind it.
    epoch: u64,
}

/// What has to be read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToLoad {
    /// The places, in order.
    pub places: Vec<u64>,
    epoch: u64,
}

impl Default for Spill {
    fn default() -> Self {
        Self { places: RoaringTreemap::new(), chunk: CHUNK.0, since_micros: 0, held: false, epoch: 0 }
    }
}

impl Spill {
    pub(super) fn of(places: RoaringTreemap) -> Self {
        Self { places, ..Self::default() }
    }

    pub(super) fn push(&mut self, record: &Record) {
        if self.places.is_empty() {
            self.since_micros = record.time_micros;
        }
        self.places.insert(record.sequence.0);
    }

    /// Adds places that may lie before all others.
    pub(super) fn extend(&mut self, places: &RoaringTreemap) {
        self.places |= places;
        self.since_micros = 0;
    }

    pub(super) fn len(&self) -> u64 {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn places(&self) -> &RoaringTreemap {
        &self.places
    }

    pub(super) fn first(&self) -> Option<Sequence> {
        self.places.min().map(Sequence)
    }

    pub(super) fn since_micros(&self) -> Option<i64> {
        (self.since_micros != 0 && !self.is_empty()).then_some(self.since_micros)
    }

    /// Returns the first places, as many as are read at a time, and `max` at most; none while it is held.
    pub(super) fn next(&self, max: usize) -> ToLoad {
        let max = if self.held { 0 } else { self.chunk.min(max) };
        ToLoad { places: self.places.iter().take(max).collect(), epoch: self.epoch }
    }

    /// Returns whether what was asked for is still what waits.
    pub(super) fn expects(&self, asked: &ToLoad) -> bool {
        !self.held && self.epoch == asked.epoch
    }

    /// Lets nothing be read until it is [released](Self::release).
    pub(super) fn hold(&mut self) {
        self.held = true;
        self.epoch += 1;
    }

    pub(super) fn release(&mut self) {
        self.held = false;
    }

    /// Takes out what was merged into others; returns how many that were.
    pub(super) fn supersede(&mut self, places: &RoaringTreemap) -> u64 {
        let before = self.places.len();
        self.places -= places;
        before - self.places.len()
    }

    /// Takes a place out whose record was read; returns whether it was still there.
    pub(super) fn take(&mut self, record: &Record) -> bool {
        let is_there = self.places.remove(record.sequence.0);
        if is_there {
            self.since_micros = record.time_micros;
        }
        is_there
    }

    /// Takes a place out whose record the store no longer has; returns whether it was still there.
    pub(super) fn miss(&mut self, place: u64) -> bool {
        self.places.remove(place)
    }

    /// Learns how large records are.
    pub(super) fn adapt(&mut self, bytes: usize) {
        let next = if bytes > CHUNK_BYTES { self.chunk / 2 } else { self.chunk * 2 };
        self.chunk = next.clamp(CHUNK.0, CHUNK.1);
    }
}
