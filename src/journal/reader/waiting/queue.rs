//! Records that wait in memory, in order. They are not coalesced.

use std::collections::VecDeque;

use crate::journal::{Bounds, Record, UnitTerms};

/// A waiting record. Coalescing needs every change of an object, so unwanted records wait too, but only behind a wanted one.
#[derive(Clone, Debug)]
pub(crate) struct WaitingRecord {
    pub(super) record: Record,
    pub(super) terms: UnitTerms,
    pub(super) wanted: bool,
    /// Set when the record needs no further judgement: it passed the filter, or the reader had no filter.
    pub(super) judged: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

impl Load {
    fn exceeds(self, bounds: &Bounds) -> bool {
        self.events > bounds.max_events || self.bytes > bounds.max_bytes
    }
}

/// Records that wait within the limits. The first one is wanted.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) waiting: VecDeque<WaitingRecord>,
    pub(super) wanted: Load,
    unwanted: Load,
}

impl Queue {
    pub(super) fn push(&mut self, waiting: WaitingRecord) {
        let load = self.load(waiting.wanted);
        load.events += 1;
        load.bytes += waiting.record.body_bytes();
        self.waiting.push_back(waiting);
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&WaitingRecord) -> bool) {
        std::mem::take(self).waiting.into_iter().filter(is_kept).for_each(|waiting| self.push(waiting));
    }

    /// Removes the first record, and the unwanted records directly behind it.
    pub(super) fn pop(&mut self) -> Option<WaitingRecord> {
        let first = self.waiting.pop_front();
        let first = self.unload(first)?;
        while let next @ Some(_) = self.waiting.pop_front_if(|next| !next.wanted) {
            self.unload(next);
        }
        Some(first)
    }

    pub(super) fn pop_last(&mut self) -> Option<WaitingRecord> {
        let last = self.waiting.pop_back();
        self.unload(last)
    }

    fn unload(&mut self, removed: Option<WaitingRecord>) -> Option<WaitingRecord> {
        let waiting = removed?;
        let load = self.load(waiting.wanted);
        load.events -= 1;
        load.bytes -= waiting.record.body_bytes();
        Some(waiting)
    }

    fn load(&mut self, wanted: bool) -> &mut Load {
        if wanted { &mut self.wanted } else { &mut self.unwanted }
    }

    /// Returns true if a wanted record of this size fits. Into an empty queue, any record fits.
    pub(super) fn has_room(&self, bytes: usize, bounds: &Bounds) -> bool {
        let load = Load { events: self.wanted.events + 1, bytes: self.wanted.bytes + bytes };
        self.waiting.is_empty() || !load.exceeds(bounds)
    }

    /// Returns true if the waiting records exceed the limits. A single record never does.
    pub(super) fn is_over(&self, bounds: &Bounds) -> bool {
        self.waiting.len() > 1 && (self.wanted.exceeds(bounds) || self.unwanted.exceeds(bounds))
    }

    /// Asserts the invariants between two calls.
    #[cfg(test)]
    pub(super) fn check(&self, bounds: &Bounds) {
        assert!(self.waiting.front().is_none_or(|first| first.wanted), "what comes first is wanted");
        assert!(!self.is_over(bounds));
        for wanted in [true, false] {
            let of_kind = || self.waiting.iter().filter(|waiting| waiting.wanted == wanted);
            let bytes = of_kind().map(|waiting| waiting.record.body_bytes()).sum();
            let load = if wanted { self.wanted } else { self.unwanted };
            assert_eq!(load, Load { events: of_kind().count(), bytes });
        }
    }
}
