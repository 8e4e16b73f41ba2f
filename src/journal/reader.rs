//! One reader of the journal: which records it wants, and which of them it has still to acknowledge.
//!
//! What waits lies in a queue, whole, while it is within the reader's bounds; beyond them in a [`Backlog`], until that
//! is empty.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher as _,
};

use super::{
    Bounds, ChangeSet, Interest, Losses, ReaderStats, Record, Sequence, UnitId, WhenFull,
    backlog::{Arrival, Backlog, Tally},
    memory::{Crossing, Lane, Origin, Unit},
};
use crate::indexer::{Cause, Change};

/// What a reader sees of one unit.
#[derive(Clone, Copy, Debug)]
struct Sight {
    lane: Lane,
    /// Where it was introduced to what there was already; `None` while it waits for that, and sees nothing.
    joined: Option<Sequence>,
    /// It is still in what the reader wants; if not, the reader is about to leave it.
    wanted: bool,
    /// Of the unit's resyncs it takes every so many, from `base` on; none where zero (S-11).
    resync_every: u32,
    base: u32,
}

impl Sight {
    fn is_resync_due(&self, round: u32) -> bool {
        self.joined.is_some()
            && self.resync_every > 0
            && round.wrapping_sub(self.base).is_multiple_of(self.resync_every)
    }
}

/// A record that waits, or one that is not wanted behind one that is: it changes what is known of its object.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) record: Record,
    pub(super) origin: Origin,
    pub(super) wanted: bool,
}

/// What waits while it is within the bounds; the first of it is wanted.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    wanted: Load,
    unwanted: Load,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    events: usize,
    bytes: usize,
}

impl Load {
    fn exceeds(self, bounds: &Bounds) -> bool {
        self.events > bounds.max_events || self.bytes > bounds.max_bytes
    }
}

impl Queue {
    fn push(&mut self, waiting: Waiting) {
        let load = self.load(waiting.wanted);
        load.events += 1;
        load.bytes += waiting.record.body_bytes();
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let first = self.take_first()?;
        while self.waiting.front().is_some_and(|next| !next.wanted) {
            self.take_first();
        }
        Some(first)
    }

    fn take_first(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        let load = self.load(first.wanted);
        load.events -= 1;
        load.bytes -= first.record.body_bytes();
        Some(first)
    }

    fn load(&mut self, wanted: bool) -> &mut Load {
        if wanted { &mut self.wanted } else { &mut self.unwanted }
    }

    /// One record alone is never too much.
    fn is_over(&self, bounds: &Bounds) -> bool {
        self.waiting.len() > 1 && (self.wanted.exceeds(bounds) || self.unwanted.exceeds(bounds))
    }
}

/// One reader.
///
/// Its records, oldest first: `in_flight`, `again`, and those of the `backlog` or of the `queue`.
/// **Invariants:** nothing of `in_flight` and `again` is merged with anything; while there is a backlog the queue is
/// empty.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bounds: Bounds,
    changes: ChangeSet,
    units: HashMap<UnitId, Sight>,
    /// Up to where objects of a lane belong to what the reader begins with (S-8).
    marks: HashMap<Lane, Sequence>,
    queue: Queue,
    backlog: Option<Backlog>,
    again: VecDeque<Waiting>,
    in_flight: VecDeque<Waiting>,
    /// Deletions among `in_flight`, by the hash of whose they are.
    gone_in_flight: Vec<(Sequence, u64)>,
    acknowledged: u64,
    abandoned: bool,
    tally: Tally,
}

impl Reader {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    pub(super) fn set_lane(&mut self, unit: UnitId, lane: Lane) {
        if let Some(sight) = self.units.get_mut(&unit) {
            sight.lane = lane;
        }
    }

    pub(super) fn forget_unit(&mut self, unit: UnitId, lane: Option<Lane>) {
        self.units.remove(&unit);
        if let Some(lane) = lane {
            self.marks.remove(&lane);
        }
    }

    /// Takes over what is wanted. A unit that is seen and no longer wanted is seen until the reader leaves it.
    pub(super) fn set_interest(
        &mut self,
        interest: &Interest,
        units: &HashMap<UnitId, Unit>,
        synced: &HashMap<Lane, Sequence>,
        last: Sequence,
    ) {
        if self.abandoned {
            return;
        }
        self.changes = interest.changes;
        self.units.retain(|unit, sight| interest.units.contains_key(unit) || sight.joined.is_some());
        for (unit, sight) in &mut self.units {
            sight.wanted = interest.units.contains_key(unit);
            let every = interest.units.get(unit).map_or(sight.resync_every, |wanted| wanted.resync_every);
            if every != sight.resync_every {
                (sight.resync_every, sight.base) = (every, units[unit].round);
            }
        }
        for (id, wanted) in &interest.units {
            let Unit { origin: Origin { lane, .. }, round, .. } = units[id];
            let joined = (!wanted.joins).then_some(last);
            let sight = Sight { lane, joined, wanted: true, resync_every: wanted.resync_every, base: round };
            self.units.entry(*id).or_insert(sight);
            if let Some(synced) = synced.get(&lane) {
                self.mark(lane, *synced);
            }
        }
    }

    pub(super) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        if let Some(backlog) = &mut self.backlog {
            backlog.adopt(&bounds, &mut self.tally);
        }
        self.settle();
    }

    /// Takes notice of newly visible records of a unit; returns whether one of them is wanted.
    pub(super) fn show(&mut self, records: &[Record], unit: &Unit) -> bool {
        let sees = self.sees(unit.id);
        let before = self.tally.wanted;
        for record in records {
            if matches!(record.change, Change::Synced { .. }) {
                // It speaks of the type, whichever of its units says so last.
                let of_type = || self.units.values().filter(|sight| sight.lane == unit.origin.lane);
                let sees_type = of_type().any(|sight| sight.joined.is_some_and(|joined| joined < record.sequence));
                if of_type().next().is_some() {
                    self.mark(unit.origin.lane, record.sequence);
                }
                if sees_type && self.changes.has(ChangeSet::SYNCED) {
                    self.take(record, unit.origin, true);
                }
            } else if sees {
                self.take(record, unit.origin, self.wants(&record.change, unit));
            }
        }
        self.settle();
        self.tally.wanted > before
    }

    /// Returns which of a unit's resyncs it takes; 0 where none.
    pub(super) fn resync_every(&self, unit: UnitId) -> u32 {
        self.units.get(&unit).map_or(0, |sight| sight.resync_every)
    }

    /// Takes what a join or a leave has for this reader, which takes every so many of the unit's resyncs; returns whether
    /// some of it is wanted.
    pub(super) fn cross(
        &mut self,
        crossing: Crossing,
        records: &[Record],
        last: Sequence,
        unit: &Unit,
        resync_every: u32,
    ) -> bool {
        let sees = self.sees(unit.id);
        if self.abandoned || sees == (crossing == Crossing::Join) {
            return false;
        }
        let before = self.tally.wanted;
        let lane = unit.origin.lane;
        if crossing == Crossing::Join {
            // Its turn may come when the reader wants a successor of the unit already.
            let unseen = Sight { lane, joined: None, wanted: true, resync_every, base: 0 };
            let sight = self.units.entry(unit.id).or_insert(unseen);
            (sight.joined, sight.base) = (Some(last), unit.round);
            self.mark(lane, last);
        } else if let Some(sight) = self.units.get_mut(&unit.id).filter(|sight| sight.wanted) {
            sight.joined = None; // it wants to join again
        } else {
            self.units.remove(&unit.id);
        }
        for record in records {
            self.take(record, unit.origin, self.wants(&record.change, unit));
        }
        self.settle();
        self.tally.wanted > before
    }

    fn sees(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|sight| sight.joined.is_some())
    }

    fn wants(&self, change: &Change, unit: &Unit) -> bool {
        match change {
            Change::Added { cause: Cause::Initial, .. } if unit.late => {
                self.changes.has(ChangeSet::ADDED) || self.changes.has(ChangeSet::INITIAL)
            }
            Change::Unchanged { cause: Cause::Resync { round }, .. } => self.is_resync_due(unit.id, *round),
            _ => self.changes.contains(change),
        }
    }

    pub(super) fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.changes.has(ChangeSet::RESYNC) && self.units.get(&unit).is_some_and(|sight| sight.is_resync_due(round))
    }

    fn mark(&mut self, lane: Lane, place: Sequence) {
        let mark = self.marks.entry(lane).or_insert(place);
        *mark = place.max(*mark);
    }

    fn take(&mut self, record: &Record, origin: Origin, wanted: bool) {
        self.tally.wanted += u64::from(wanted);
        if let Some(backlog) = &mut self.backlog {
            let mark = self.marks.get(&origin.lane).copied();
            backlog.push(Arrival { record, origin, wanted, mark }, &self.bounds, &mut self.tally);
        } else if wanted || self.matters(record) {
            self.queue.push(Waiting { record: record.clone(), origin, wanted });
        }
    }

    /// Returns whether a record that is not wanted tells something of what waits, should that be merged.
    fn matters(&self, record: &Record) -> bool {
        let is_news = !matches!(record.change, Change::Unchanged { cause, .. } if cause != Cause::Reload);
        is_news && !self.queue.waiting.is_empty() && self.bounds.when_full == WhenFull::Coalesce
    }

    /// Goes from the queue to a backlog, if what waits is too much.
    fn settle(&mut self) {
        if self.backlog.is_none() && self.queue.is_over(&self.bounds) {
            let mut backlog = Backlog::new(self.bounds.when_full);
            for Waiting { record, origin, wanted } in std::mem::take(&mut self.queue).waiting {
                let mark = self.marks.get(&origin.lane).copied();
                backlog.push(Arrival { record: &record, origin, wanted, mark }, &self.bounds, &mut self.tally);
            }
            self.backlog = Some(backlog);
        }
        self.backlog.take_if(|backlog| backlog.len() == 0);
    }

    pub(super) fn read(&mut self, max_events: usize, max_bytes: usize) -> Vec<Record> {
        let room = self.bounds.max_events.max(1).saturating_sub(self.in_flight.len());
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max_events.min(room) {
            let Some((next, lane)) = self.peek() else { break };
            bytes += next.body_bytes();
            if (bytes > max_bytes && !batch.is_empty()) || self.follows_a_deletion_in_flight(next, lane) {
                break;
            }
            let waiting = self.pop().expect("it was just seen");
            if waiting.record.is_gone() {
                self.gone_in_flight.push((waiting.record.sequence, lane_hash(&waiting.record, waiting.origin.lane)));
            }
            batch.push(waiting.record.clone());
            self.in_flight.push_back(waiting);
        }
        batch
    }

    fn follows_a_deletion_in_flight(&self, record: &Record, lane: Lane) -> bool {
        if self.gone_in_flight.is_empty() || record.object().is_none() {
            return false;
        }
        // Two names with one hash wait for each other; that costs a round trip and nothing else.
        let hash = lane_hash(record, lane);
        self.gone_in_flight.iter().any(|(_, gone)| *gone == hash)
    }

    fn peek(&self) -> Option<(&Record, Lane)> {
        let again = self.again.front().map(|waiting| (&waiting.record, waiting.origin.lane));
        again.or_else(|| match &self.backlog {
            Some(backlog) => backlog.front(),
            None => self.queue.waiting.front().map(|waiting| (&waiting.record, waiting.origin.lane)),
        })
    }

    fn pop(&mut self) -> Option<Waiting> {
        if let Some(waiting) = self.again.pop_front() {
            return Some(waiting);
        }
        let Some(backlog) = &mut self.backlog else { return self.queue.pop() };
        let waiting = backlog.pop_front();
        self.backlog.take_if(|backlog| backlog.len() == 0);
        waiting
    }

    pub(super) fn ack(&mut self, sequence: Sequence) {
        while self.in_flight.pop_front_if(|waiting| waiting.record.sequence <= sequence).is_some() {
            self.acknowledged += 1;
        }
        self.gone_in_flight.retain(|(gone, _)| *gone > sequence);
    }

    pub(super) fn rewind(&mut self) {
        self.gone_in_flight.clear();
        while let Some(waiting) = self.in_flight.pop_back() {
            self.again.push_front(waiting);
        }
    }

    pub(super) fn abandon(&mut self) {
        for waiting in std::mem::take(&mut self.in_flight) {
            self.tally.lose(&waiting.record);
        }
        while let Some(waiting) = self.pop() {
            self.tally.lose(&waiting.record);
        }
        self.gone_in_flight.clear();
        self.units.clear();
        self.abandoned = true;
    }

    pub(super) fn has_synced(&self, synced: &HashMap<Lane, Sequence>) -> bool {
        let is_past = |place: Sequence| self.oldest().is_none_or(|oldest| oldest.sequence > place);
        let is_done = |sight: &Sight| match (sight.joined, synced.get(&sight.lane)) {
            (Some(joined), Some(synced)) => is_past(joined) && is_past(*synced),
            _ => false,
        };
        !self.abandoned && self.units.values().all(is_done)
    }

    pub(super) fn stats(&self, mark: u64) -> ReaderStats {
        let oldest = self.oldest();
        let waiting = self.backlog.as_ref().map_or(self.queue.wanted.events, Backlog::len);
        ReaderStats {
            wanted: self.tally.wanted,
            queued: (self.again.len() + waiting) as u64,
            in_flight: self.in_flight.len() as u64,
            acknowledged: self.acknowledged,
            coalesced: self.tally.coalesced,
            dropped: self.tally.dropped,
            olds_given_up: self.tally.olds_given_up,
            position: oldest.map_or(Sequence(mark), |record| Sequence(record.sequence.0 - 1)),
            oldest_micros: oldest.map(|record| record.time_micros),
        }
    }

    pub(super) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.tally.losses)
    }

    /// Returns the oldest record that is not acknowledged.
    pub(super) fn oldest(&self) -> Option<&Record> {
        self.in_flight.front().map(|waiting| &waiting.record).or_else(|| self.peek().map(|(record, _)| record))
    }

    /// Returns everything not acknowledged, oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Record> {
        let queue = self.queue.waiting.iter().filter(|waiting| waiting.wanted);
        let first = self.in_flight.iter().chain(&self.again).map(|waiting| &waiting.record);
        let backlog = self.backlog.iter().flat_map(Backlog::iter);
        first.chain(backlog).chain(queue.map(|waiting| &waiting.record))
    }
}

/// Returns a hash of the type and the key of the object a record is about.
fn lane_hash(record: &Record, lane: Lane) -> u64 {
    let key = record.object().map(|object| object.key());
    foldhash::fast::FixedState::with_seed(7).hash_one((lane, key))
}

#[cfg(test)]
impl Reader {
    pub(super) fn held(&self) -> usize {
        self.in_flight.len()
            + self.again.len()
            + self.queue.waiting.len()
            + self.backlog.as_ref().map_or(0, Backlog::len)
    }

    /// Asserts what must hold between any two calls.
    pub(super) fn check(&self) {
        assert!(self.in_flight.len() <= self.bounds.max_events.max(1) || !self.again.is_empty());
        let queue = &self.queue;
        assert!(queue.waiting.front().is_none_or(|first| first.wanted), "what comes first is wanted");
        assert!(!queue.is_over(&self.bounds));
        for wanted in [true, false] {
            let of_kind = || queue.waiting.iter().filter(|waiting| waiting.wanted == wanted);
            let bytes = of_kind().map(|waiting| waiting.record.body_bytes()).sum();
            let load = if wanted { queue.wanted } else { queue.unwanted };
            assert_eq!(load, Load { events: of_kind().count(), bytes });
        }
        if let Some(backlog) = &self.backlog {
            assert!(queue.waiting.is_empty() && backlog.len() > 0);
            backlog.check(&self.bounds);
        }
    }
}
