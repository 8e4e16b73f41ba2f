//! What one subscriber is due next: a place in the stream, and what it does not have to be told.

use std::{collections::HashMap, sync::Arc};

use super::{
    gap::{GapReason, StreamGap},
    ring::{Entry, Ring},
};
use crate::journal::{Sequence, UnitId};

/// Where a subscriber begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// With what comes next.
    #[default]
    Now,
    /// Behind a place.
    Place {
        /// Of this journal; of the engine's own where none is named.
        journal: Option<String>,
        /// The place.
        sequence: Sequence,
        /// As it was written.
        text: String,
    },
    /// With what happened at a time or later.
    Time {
        /// In microseconds since the Unix epoch.
        micros: i64,
        /// As it was written.
        text: String,
    },
}

/// Events that are looked at in one step.
pub const STEP_EVENTS: usize = 32;

/// What is to be done next for a subscriber.
#[derive(Clone, Debug)]
pub enum CursorStep {
    /// Show these, as far as [`SubscriberCursor::is_due`] and the filter say so.
    Events(Vec<Arc<Entry>>),
    /// Tell that something is missing.
    Gap(StreamGap),
    /// Show what exists, then call [`SubscriberCursor::state_shown`].
    State,
    /// Read the store behind `after`, up to `until`, then call [`SubscriberCursor::read`].
    Read {
        /// Behind here.
        after: Sequence,
        /// Up to here.
        until: Sequence,
    },
    /// There is nothing new.
    Rest,
}

/// What a journal knows as a subscriber comes.
#[derive(Clone, Copy, Debug)]
pub struct JournalFacts<'a> {
    /// The journal's id.
    pub journal: &'a str,
    /// How far it has come.
    pub released: Sequence,
    /// The place behind which lies what happened at the time asked for or later, and whether something before it is
    /// not kept that should be shown.
    pub time: Option<(Sequence, bool)>,
}

/// The place of one subscriber.
#[derive(Debug)]
pub struct SubscriberCursor {
    /// Everything up to here was shown, told missing, or not wanted.
    place: Sequence,
    /// It wants to see what exists, at its begin and whenever something is missing.
    wants_state: bool,
    state_due: bool,
    gap: Option<StreamGap>,
    /// The place asked for, as it was written, until something behind it is known.
    asked: Option<String>,
    /// What was seen in the cache of each unit: up to here its events are not news.
    shown: HashMap<UnitId, Sequence>,
}

impl SubscriberCursor {
    /// Makes the cursor of a subscriber that begins at `since`.
    pub fn new(since: &Since, wants_state: bool, ring: &Ring, facts: &JournalFacts<'_>) -> Self {
        let (place, shown) = (ring.head(), HashMap::new());
        let mut cursor = Self { place, wants_state, state_due: false, gap: None, asked: None, shown };
        match since {
            Since::Now => cursor.state_due = wants_state,
            Since::Place { journal, sequence, text } => {
                cursor.asked = Some(text.clone());
                if journal.as_deref().is_some_and(|journal| journal != facts.journal) {
                    cursor.miss(GapReason::Journal, None, ring.head());
                } else if *sequence > facts.released {
                    cursor.miss(GapReason::Unknown, None, ring.head());
                } else {
                    cursor.place = *sequence;
                }
            }
            Since::Time { text, .. } => match facts.time {
                Some((place, false)) => cursor.place = place,
                Some((place, true)) => {
                    cursor.asked = Some(text.clone());
                    cursor.miss(GapReason::Expired, None, place);
                }
                None => cursor.state_due = wants_state,
            },
        }
        cursor
    }

    /// Returns the place up to which it is done.
    pub fn place(&self) -> Sequence {
        self.place
    }

    /// Returns the place to resume at: none while something is still to be told that lies before it.
    pub fn resumable(&self) -> Option<Sequence> {
        (!self.state_due && self.gap.is_none() && self.shown.is_empty()).then_some(self.place)
    }

    fn miss(&mut self, reason: GapReason, from: Option<Sequence>, to: Sequence) {
        self.gap = Some(StreamGap { reason, asked: self.asked.take(), from, to, events: None });
        self.place = to;
        self.state_due = self.wants_state;
    }

    /// Decides what is next; `has_store` says that what the ring lacks may be in the store.
    pub fn step(&mut self, ring: &Ring, has_store: bool) -> CursorStep {
        if let Some(gap) = self.gap.take() {
            return CursorStep::Gap(gap);
        }
        if self.state_due {
            self.place = ring.head(); // what is published is at least as new as what is released (I3)
            self.shown.clear();
            return CursorStep::State;
        }
        if self.place < ring.floor() {
            if has_store {
                return CursorStep::Read { after: self.place, until: ring.floor() };
            }
            let reason = if self.asked.is_some() { GapReason::Expired } else { GapReason::Behind };
            self.miss(reason, Some(self.place), ring.floor());
            return self.step(ring, has_store);
        }
        self.asked = None;
        let entries = ring.after(self.place, STEP_EVENTS);
        let Some(last) = entries.last() else {
            self.place = self.place.max(ring.head());
            self.shown.retain(|_, shown| *shown > self.place);
            return CursorStep::Rest;
        };
        self.place = last.place();
        CursorStep::Events(entries)
    }

    /// Takes notice of what was read of the store: everything up to `to` is here, but for `missing` events; or what is kept
    /// begins behind `first` only. Returns what is to be told before the events that were read.
    pub fn read(&mut self, to: Sequence, missing: u64, first: Option<Sequence>) -> Option<StreamGap> {
        if let Some(first) = first.filter(|first| *first > self.place) {
            self.miss(GapReason::Expired, Some(self.place), first);
            return None;
        }
        self.asked = None;
        let from = self.place;
        self.place = to.max(from);
        let gap = || StreamGap { reason: GapReason::Expired, asked: None, from: Some(from), to, events: Some(missing) };
        (missing > 0).then(gap)
    }

    /// Notes that the cache of a unit was seen with everything up to `place` in it.
    pub fn saw(&mut self, unit: UnitId, place: Sequence) {
        if place > self.place {
            self.shown.insert(unit, place);
        }
    }

    /// Notes that what exists was shown.
    pub fn state_shown(&mut self) {
        self.state_due = false;
    }

    /// Returns whether an event is news: what was seen in the cache is not.
    pub fn is_due(&mut self, unit: UnitId, place: Sequence) -> bool {
        if self.shown.is_empty() {
            return true;
        }
        let is_due = self.shown.get(&unit).is_none_or(|shown| place > *shown);
        self.shown.retain(|_, shown| *shown > place);
        is_due
    }
}

#[cfg(test)]
#[path = "cursor/tests.rs"]
mod tests;
