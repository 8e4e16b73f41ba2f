//! Position of one subscriber in the stream, and its next step.

use std::{collections::HashMap, sync::Arc};

use super::{
    gap::{GapReason, StreamGap},
    ring::{Entry, Ring},
};
use crate::journal::{Sequence, UnitId};

/// Start of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// The next event.
    #[default]
    Now,
    /// The first event after a position.
    Place {
        /// Id of the journal; `None` means the engine's own journal.
        journal: Option<String>,
        /// The position.
        sequence: Sequence,
        /// The position as the client wrote it.
        text: String,
    },
    /// The first event at or after a time.
    Time {
        /// Microseconds since the Unix epoch.
        micros: i64,
        /// The time as the client wrote it.
        text: String,
    },
}

/// Maximum number of events processed in one step.
pub(crate) const STEP_EVENTS: usize = 32;

/// Next action for a subscriber.
#[derive(Clone, Debug)]
pub(crate) enum CursorStep {
    /// Send these events, if [`SubscriberCursor::is_due`] and the filter accept them.
    Events(Vec<Arc<Entry>>),
    /// Report a gap.
    Gap(StreamGap),
    /// Send the existing objects, then call [`SubscriberCursor::state_shown`].
    State,
    /// Read the store after `after` up to `until`, then call [`SubscriberCursor::read`] or [`SubscriberCursor::expired`].
    Read {
        /// Exclusive start.
        after: Sequence,
        /// Inclusive end.
        until: Sequence,
    },
    /// No new event.
    Rest,
}

/// Facts about the journal when a subscriber connects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalFacts<'a> {
    pub journal: &'a str,
    /// The released watermark of the journal: readers see no record above it.
    pub released: Sequence,
    /// The position just before the requested time; `None` if no time was requested. The flag is set if events after that time may
    /// be missing. The position is then the oldest one from which events can be read.
    pub time: Option<(Sequence, bool)>,
}

/// Position of one subscriber.
#[derive(Debug)]
pub(crate) struct SubscriberCursor {
    /// Every event up to here was sent, reported missing, or filtered out.
    position: Sequence,
    /// Set if the subscriber wants the existing objects, at the start and after every gap.
    wants_state: bool,
    state_due: bool,
    gap: Option<StreamGap>,
    /// The requested position as the client wrote it. It is set until a gap reports it, or until events after it are read.
    asked: Option<String>,
    /// Position of each unit's cache when the cache was read. Events of the unit up to this position are not sent.
    shown: HashMap<UnitId, Sequence>,
}

impl SubscriberCursor {
    /// Makes the cursor of a subscriber that starts at `since`.
    pub(crate) fn new(since: &Since, wants_state: bool, ring: &Ring, facts: &JournalFacts<'_>) -> Self {
        let (position, shown) = (ring.head, HashMap::new());
        let mut cursor = Self { position, wants_state, state_due: false, gap: None, asked: None, shown };
        match since {
            Since::Now => cursor.state_due = wants_state,
            Since::Place { journal, sequence, text } => {
                cursor.asked = Some(text.clone());
                if journal.as_deref().is_some_and(|journal| journal != facts.journal) {
                    cursor.miss(GapReason::Journal, None, ring.head);
                } else if *sequence > facts.released {
                    cursor.miss(GapReason::Unknown, None, ring.head);
                } else {
                    cursor.position = *sequence;
                }
            }
            Since::Time { text, .. } => match facts.time {
                Some((position, false)) => cursor.position = position,
                Some((position, true)) => {
                    cursor.asked = Some(text.clone());
                    cursor.miss(GapReason::Expired, None, position);
                }
                None => cursor.state_due = wants_state,
            },
        }
        cursor
    }

    /// Returns the position up to which all events are processed.
    pub(crate) fn position(&self) -> Sequence {
        self.position
    }

    /// Returns the position at which a reconnecting client can resume; `None` while an earlier event, gap or object must still be
    /// sent.
    pub(crate) fn resumable(&self) -> Option<Sequence> {
        (!self.state_due && self.gap.is_none() && self.shown.is_empty()).then_some(self.position)
    }

    fn miss(&mut self, reason: GapReason, from: Option<Sequence>, to: Sequence) {
        self.gap = Some(StreamGap { reason, asked: self.asked.take(), from, to, events: None });
        self.position = to;
        self.state_due = self.wants_state;
    }

    /// Returns the next step; `has_store` means that events missing from the ring may be in the store.
    pub(crate) fn step(&mut self, ring: &Ring, has_store: bool) -> CursorStep {
        if let Some(gap) = self.gap.take() {
            return CursorStep::Gap(gap);
        }
        if self.state_due {
            self.position = ring.head; // caches are at least as new as the released watermark (E3)
            self.shown.clear();
            return CursorStep::State;
        }
        if self.position < ring.floor {
            if has_store {
                return CursorStep::Read { after: self.position, until: ring.floor };
            }
            let reason = if self.asked.is_some() { GapReason::Expired } else { GapReason::Behind };
            self.miss(reason, Some(self.position), ring.floor);
            return self.step(ring, has_store);
        }
        self.asked = None;
        let entries = ring.after(self.position, STEP_EVENTS);
        let Some(last) = entries.last() else {
            self.position = self.position.max(ring.head);
            self.shown.retain(|_, shown| *shown > self.position);
            return CursorStep::Rest;
        };
        self.position = last.position();
        CursorStep::Events(entries)
    }

    /// Makes the next step a gap up to `kept_behind`, because the store has only events after that position.
    pub(crate) fn expired(&mut self, kept_behind: Sequence) {
        self.miss(GapReason::Expired, Some(self.position), kept_behind);
    }

    /// Moves the cursor to `to`, after the events of the store up to `to` were read. If `missing` of these events could not be
    /// read, returns a gap. The caller reports this gap before the events that were read.
    pub(crate) fn read(&mut self, to: Sequence, missing: u64) -> Option<StreamGap> {
        self.asked = None;
        let from = self.position;
        self.position = to.max(from);
        let gap = || StreamGap { reason: GapReason::Expired, asked: None, from: Some(from), to, events: Some(missing) };
        (missing > 0).then(gap)
    }

    /// Stores the position `position` that a unit's cache had when it was read. Events of the unit up to this position are not sent.
    pub(crate) fn saw(&mut self, unit: UnitId, position: Sequence) {
        if position > self.position {
            self.shown.insert(unit, position);
        }
    }

    /// Ends [`CursorStep::State`] after the existing objects were sent.
    pub(crate) fn state_shown(&mut self) {
        self.state_due = false;
    }

    /// Returns true if the event must be sent; false if the unit's cache already contained the event when the cache was read.
    pub(crate) fn is_due(&mut self, unit: UnitId, position: Sequence) -> bool {
        if self.shown.is_empty() {
            return true;
        }
        let is_due = self.shown.get(&unit).is_none_or(|shown| position > *shown);
        self.shown.retain(|_, shown| *shown > position);
        is_due
    }
}

#[cfg(test)]
#[path = "cursor/tests.rs"]
mod tests;
