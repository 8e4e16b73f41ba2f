//! One reader of the journal: which records it wants, and which of them it has still to acknowledge.
//!
//! What waits lies in a queue, whole, while it is within the reader's bounds; beyond them in a [`Backlog`], until that
//! is empty. With a store, the places alone are kept of what is beyond them, in a [`Spill`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::BuildHasher as _,
};

use roaring::RoaringTreemap;

use super::{
    Bounds, ChangeSet, Interest, Losses, ReaderStats, Record, Replayed, Sequence, UnitId, WhenFull,
    backlog::{Arrival, Backlog, Tally},
    filter::{Failures, Judged, RecordFilter, Unjudged},
    memory::{Crossing, Lane, Origin, Unit},
    spill::{Spill, ToLoad},
    store::StoredReader,
};
use crate::indexer::{Cause, Change};

/// Records given up that are kept in memory to be replayed.
const GIVEN_UP_MAX: usize = 1_000;

/// While so many wait, what comes waits packed: it takes no more than the cache does, and whoever reads it unpacks it.
const PACKED_FROM: usize = 512;

/// While so many wait in memory, what comes is judged at once: so few are to be judged together before they are merged.
const JUDGED_FROM: usize = 512;

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
    /// It passed the reader's filter, or was wanted when there was none.
    pub(super) judged: bool,
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

    /// Returns whether a wanted record of so many bytes fits; one alone always does.
    fn has_room(&self, bytes: usize, bounds: &Bounds) -> bool {
        let load = Load { events: self.wanted.events + 1, bytes: self.wanted.bytes + bytes };
        self.waiting.is_empty() || !load.exceeds(bounds)
    }

    /// Takes the newest record out.
    fn pop_last(&mut self) -> Option<Waiting> {
        let last = self.waiting.pop_back()?;
        let load = self.load(last.wanted);
        load.events -= 1;
        load.bytes -= last.record.body_bytes();
        Some(last)
    }

    /// Takes out what was refused; returns how many that were.
    fn remove(&mut self, judged: &Judged) -> u64 {
        let before = self.waiting.len();
        let waiting = std::mem::take(&mut self.waiting);
        (self.wanted, self.unwanted) = <_>::default();
        waiting.into_iter().filter(|waiting| !judged.refuses(waiting.record.sequence)).for_each(|rest| self.push(rest));
        (before - self.waiting.len()) as u64
    }

    /// One record alone is never too much.
    fn is_over(&self, bounds: &Bounds) -> bool {
        self.waiting.len() > 1 && (self.wanted.exceeds(bounds) || self.unwanted.exceeds(bounds))
    }
}

/// One reader.
///
/// Its records, oldest first: `in_flight`, `again`, and those of the `backlog` or of the `queue`, behind that the `spill`.
/// **Invariants:** nothing of `in_flight` and `again` is merged with anything; while there is a backlog the queue is
/// empty; with a spill there is never a backlog, and all that is in memory is wanted.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bounds: Bounds,
    changes: ChangeSet,
    filter: Option<RecordFilter>,
    units: HashMap<UnitId, Sight>,
    /// Up to where objects of a lane belong to what the reader begins with (S-8).
    marks: HashMap<Lane, Sequence>,
    queue: Queue,
    backlog: Option<Backlog>,
    /// There is a store.
    spill: Option<Spill>,
    /// Places of the spill that passed the filter before.
    passed: RoaringTreemap,
    again: VecDeque<Waiting>,
    /// In the order of their places.
    in_flight: VecDeque<Waiting>,
    /// Deletions among `in_flight`, by the hash of whose they are.
    gone_in_flight: Vec<(Sequence, u64)>,
    /// What its handler gave up, to be replayed, where that is not kept by a store.
    given_up: BTreeMap<Sequence, Waiting>,
    acknowledged: u64,
    abandoned: bool,
    tally: Tally,
    /// What it goes on with after a restart; none of a reader that ends with the process.
    kept: Option<Kept>,
}

/// What is saved of a reader, beside what waits for it.
#[derive(Debug, Default)]
struct Kept {
    name: Box<str>,
    given_up: RoaringTreemap,
    /// Units it is about to join with nothing to be shown: no record says so, were the process to end before its turn.
    joining: BTreeSet<UnitId>,
    /// Where it was abandoned; what comes behind that is not decided.
    frozen: Option<Sequence>,
    /// Something of it is not saved.
    changed: bool,
    /// The first place that it needs as it is saved.
    needs: u64,
    /// What is before that may be removed, be it needed or not.
    floor: u64,
    /// What waits, or was given up, in entries of its own, and needs no record of the log.
    compacted: RoaringTreemap,
    /// What lies behind here was never handed out.
    shown: u64,
}

/// What the next step of a compaction is about.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// What is to be judged before anything is merged: records at these places that are in memory,
    pub to_judge: Option<Unjudged>,
    /// and the places of those that are not.
    pub unjudged: Vec<u64>,
    /// The places, in order.
    pub places: Vec<u64>,
    /// What waits in the store alone, of these and of all before.
    pub may_merge: RoaringTreemap,
    /// What lies behind here was never handed out.
    pub shown: u64,
}

impl Reader {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Lets it keep places of a store in place of bodies.
    pub(super) fn with_store(self) -> Self {
        Self { spill: Some(Spill::default()), ..self }
    }

    /// Lets it go on where the reader of that name stood. `sight` says what its units are.
    pub(super) fn with_state(mut self, state: StoredReader, lane: impl Fn(UnitId) -> Option<Lane>) -> Self {
        let needs = needs(&state);
        let StoredReader { name, pending, joined, given_up, compacted, position: _ } = state;
        let pending = pending.unwrap_or_default();
        let shown = pending.max().unwrap_or_default();
        self.tally.wanted = pending.len();
        self.spill = Some(Spill::of(pending));
        for unit in joined {
            if let Some(lane) = lane(unit) {
                let sight = Sight { lane, joined: Some(Sequence(0)), wanted: false, resync_every: 0, base: 0 };
                self.units.insert(unit, sight);
            }
        }
        let name = name.into();
        self.kept = Some(Kept { name, given_up, compacted, shown, needs, changed: true, ..Kept::default() });
        self
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
        self.filter.clone_from(&interest.filter);
        self.units.retain(|unit, sight| interest.units.contains_key(unit) || sight.joined.is_some());
        for (unit, sight) in &mut self.units {
            sight.wanted = interest.units.contains_key(unit);
            let every = interest.units.get(unit).map_or(sight.resync_every, |wanted| wanted.resync_every);
            if every != sight.resync_every {
                (sight.resync_every, sight.base) = (every, units[unit].round);
            }
        }
        self.touch();
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
        self.touch(); // its position moves
        for record in records {
            if self.abandoned {
                break;
            }
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
        self.touch();
        if let Some(kept) = &mut self.kept {
            kept.joining.remove(&unit.id);
        }
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
        if let Some(spill) = self.spill.as_mut().filter(|spill| !spill.is_empty()) {
            if wanted {
                spill.push(record);
            }
            return; // its place alone
        }
        // What may be merged is judged before.
        let many_wait = self.backlog.is_some() || self.queue.waiting.len() >= JUDGED_FROM;
        let judged = wanted && self.spill.is_none() && many_wait;
        let wanted = wanted && (!judged || self.passes(record));
        let packed = (self.backlog.is_some() || self.queue.waiting.len() >= PACKED_FROM).then(|| record.packed());
        let record = packed.as_ref().unwrap_or(record);
        if let Some(spill) = &mut self.spill {
            if wanted && self.queue.has_room(record.body_bytes(), &self.bounds) {
                self.queue.push(Waiting { record: record.clone(), origin, wanted, judged });
            } else if wanted {
                spill.push(record);
            }
        } else if let Some(backlog) = &mut self.backlog {
            let mark = self.marks.get(&origin.lane).copied();
            backlog.push(Arrival { record, origin, wanted, mark }, &self.bounds, &mut self.tally);
        } else if wanted || self.matters(record) {
            self.queue.push(Waiting { record: record.clone(), origin, wanted, judged });
        }
    }

    /// Judges a record that is of interest at once; what is refused is counted.
    fn passes(&mut self, record: &Record) -> bool {
        let passes = self.filter.as_ref().is_none_or(|filter| filter.judge(record, &mut self.tally.failures));
        self.tally.filtered += u64::from(!passes);
        passes
    }

    /// Returns whether a record that is not wanted tells something of what waits, should that be merged.
    fn matters(&self, record: &Record) -> bool {
        let is_news = !matches!(record.change, Change::Unchanged { cause, .. } if cause != Cause::Reload);
        is_news && !self.queue.waiting.is_empty() && self.bounds.when_full == WhenFull::Coalesce
    }

    /// Goes from the queue to a backlog, if what waits is too much.
    fn settle(&mut self) {
        if let Some(spill) = &mut self.spill {
            while self.queue.is_over(&self.bounds) {
                let last = self.queue.pop_last().expect("there is too much");
                put_back(spill, &mut self.passed, &last);
            }
        } else if self.backlog.is_none() && self.queue.is_over(&self.bounds) {
            let mut backlog = Backlog::new(self.bounds.when_full);
            for Waiting { record, origin, wanted, judged } in std::mem::take(&mut self.queue).waiting {
                let wanted = wanted && (judged || self.passes(&record));
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
            let mut waiting = self.pop().expect("it was just seen");
            waiting.judged |= self.filter.is_none(); // it is handed out as it is, whatever a reload brings
            if waiting.record.is_gone() {
                self.gone_in_flight.push((waiting.record.sequence, lane_hash(&waiting.record, waiting.origin.lane)));
            }
            if let Some(kept) = &mut self.kept {
                kept.shown = kept.shown.max(waiting.record.sequence.0);
            }
            batch.push(waiting.record.clone());
            let place = self.in_flight.partition_point(|other| other.record.sequence < waiting.record.sequence);
            self.in_flight.insert(place, waiting); // at the end, unless it is replayed
        }
        batch
    }

    pub(super) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns what has to be judged of records that were just read, before anybody is told of them.
    pub(super) fn to_judge(&self, read: &[Record]) -> Option<Unjudged> {
        let filter = self.filter.clone()?;
        let is_new = |record: &&Record| {
            let place = |waiting: &Waiting| waiting.record.sequence;
            let at = self.in_flight.binary_search_by_key(&record.sequence, place);
            at.is_ok_and(|at| !self.in_flight[at].judged)
        };
        let records: Vec<_> = read.iter().filter(is_new).cloned().collect();
        (!records.is_empty()).then_some(Unjudged { filter, records })
    }

    /// Takes over what was said of records; those that are refused are done with, wherever they are.
    pub(super) fn judged(&mut self, judged: &Judged) {
        self.tally.failures.add(&judged.failures);
        let mut marked = 0;
        for place in &judged.wanted {
            if let Ok(at) = self.in_flight.binary_search_by_key(place, |waiting| waiting.record.sequence) {
                self.in_flight[at].judged = true;
                marked += 1;
            }
        }
        if marked < judged.wanted.len() {
            let passes = |waiting: &Waiting| judged.wanted.binary_search(&waiting.record.sequence).is_ok();
            let waiting = self.again.iter_mut().chain(&mut self.queue.waiting).filter(|waiting| !waiting.judged);
            waiting.for_each(|waiting| waiting.judged = passes(waiting));
            let places = judged.wanted.iter().map(|place| place.0);
            let spilled = |place: &u64| self.spill.as_ref().is_some_and(|spill| spill.places().contains(*place));
            self.passed.extend(places.filter(spilled));
        }
        let mut refused = self.ack_each(&judged.refused) as u64;
        self.acknowledged -= refused;
        if refused < judged.refused.len() as u64 {
            let before = self.again.len();
            self.again.retain(|waiting| !judged.refuses(waiting.record.sequence));
            refused += (before - self.again.len()) as u64 + self.queue.remove(judged);
            if let Some(spill) = &mut self.spill {
                refused += judged.refused.iter().filter(|place| spill.miss(place.0)).count() as u64;
            }
        }
        self.tally.filtered += refused;
        // one may be judged twice, by who reads and by a compaction; it is refused once
        self.tally.failures.count = self.tally.failures.count.min(self.tally.filtered);
    }

    /// Returns the places of what has to be read from the store before anything can be read from here.
    pub(super) fn to_load(&self) -> ToLoad {
        let has_room = self.in_flight.len() < self.bounds.max_events.max(1);
        match &self.spill {
            Some(spill) if has_room && !self.abandoned && self.again.is_empty() && self.queue.waiting.is_empty() => {
                spill.next(self.bounds.max_events.max(1))
            }
            _ => ToLoad::default(),
        }
    }

    /// Takes what was read from the store at the places asked for, as far as there is room. What is not there any more
    /// is lost. `origin` knows the units; of one that is forgotten nothing is shown. Returns whether it was still asked for.
    pub(super) fn loaded(
        &mut self,
        asked: &ToLoad,
        records: Vec<Record>,
        origin: impl Fn(UnitId) -> Option<Origin>,
    ) -> bool {
        let Some(spill) = &mut self.spill else { return false };
        if !self.again.is_empty() || !self.queue.waiting.is_empty() || !spill.expects(asked) {
            return false; // another one was faster
        }
        let mut records = records.into_iter().peekable();
        let mut bytes = 0;
        for place in &asked.places {
            if spill.first() != Some(Sequence(*place)) {
                break; // something came before it meanwhile
            }
            let Some(record) = records.next_if(|record| record.sequence.0 == *place) else {
                self.tally.miss(u64::from(spill.miss(*place)));
                continue;
            };
            bytes += record.body_bytes();
            match origin(record.unit) {
                None => {
                    spill.take(&record);
                    self.tally.lose(&record);
                }
                Some(origin) if self.queue.has_room(record.body_bytes(), &self.bounds) => {
                    spill.take(&record);
                    // what was merged was judged before
                    let is_merged = self.kept.as_ref().is_some_and(|kept| kept.compacted.contains(*place));
                    let judged = self.passed.remove(*place) || is_merged;
                    self.queue.push(Waiting { record, origin, wanted: true, judged });
                }
                Some(_) => break,
            }
        }
        spill.adapt(bytes);
        true
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
        self.touch();
    }

    /// Acknowledges what of it is in flight; returns how many that was.
    pub(super) fn ack_each(&mut self, sequences: &[Sequence]) -> usize {
        let mut acknowledged = 0;
        for sequence in sequences {
            if let Ok(at) = self.in_flight.binary_search_by_key(sequence, |waiting| waiting.record.sequence) {
                self.in_flight.remove(at);
                acknowledged += 1;
            }
        }
        self.acknowledged += acknowledged as u64;
        if !self.gone_in_flight.is_empty() {
            let in_flight = &self.in_flight;
            let is_there =
                |gone: &Sequence| in_flight.binary_search_by_key(gone, |waiting| waiting.record.sequence).is_ok();
            self.gone_in_flight.retain(|(gone, _)| is_there(gone));
        }
        self.touch();
        acknowledged
    }

    /// Acknowledges what of it is in flight, and remembers it for a replay.
    pub(super) fn give_up(&mut self, sequences: &[Sequence]) {
        let in_flight = &self.in_flight;
        let is_there = |at: &&Sequence| in_flight.binary_search_by_key(*at, |waiting| waiting.record.sequence).is_ok();
        if let Some(kept) = &mut self.kept {
            kept.given_up.extend(sequences.iter().filter(is_there).map(|sequence| sequence.0));
        } else {
            let given_up = self.in_flight.iter().filter(|waiting| sequences.contains(&waiting.record.sequence));
            self.given_up.extend(given_up.map(|waiting| (waiting.record.sequence, waiting.clone())));
            self.bound_given_up();
        }
        self.ack_each(sequences);
    }

    /// Forgets the oldest of what was given up, beyond what memory may hold of it.
    fn bound_given_up(&mut self) {
        let bytes = |waiting: &Waiting| waiting.record.body_bytes();
        let mut held: usize = self.given_up.values().map(bytes).sum();
        while self.given_up.len() > GIVEN_UP_MAX || held > self.bounds.max_bytes {
            let Some((_, oldest)) = self.given_up.pop_first() else { break };
            held -= bytes(&oldest);
        }
    }

    /// Lets everything wait again that it gave up and that lies behind `kept_from`, or in entries of its own.
    pub(super) fn replay(&mut self, kept_from: Sequence) -> Replayed {
        if self.abandoned {
            return Replayed::default();
        }
        let (Some(spill), Some(kept)) = (&mut self.spill, &mut self.kept) else {
            let given_up = std::mem::take(&mut self.given_up);
            let queued = given_up.len() as u64;
            self.tally.wanted += queued;
            self.again.extend(given_up.into_values());
            self.again.make_contiguous().sort_by_key(|waiting| waiting.record.sequence);
            return Replayed { queued, gone: 0 };
        };
        let mut given_up = std::mem::take(&mut kept.given_up);
        let gone = forget_removed(&mut given_up, &kept.compacted, kept_from);
        kept.changed = true;
        // Order: what waits in memory lies behind it.
        while let Some(waiting) = self.queue.pop_last() {
            put_back(spill, &mut self.passed, &waiting);
        }
        self.passed |= &given_up;
        spill.extend(&given_up);
        self.tally.wanted += given_up.len();
        Replayed { queued: given_up.len(), gone }
    }

    pub(super) fn rewind(&mut self) {
        self.gone_in_flight.clear();
        while let Some(waiting) = self.in_flight.pop_back() {
            self.again.push_front(waiting);
        }
        self.again.make_contiguous().sort_by_key(|waiting| waiting.record.sequence); // a replay may wait there
    }

    /// With a store nothing is dropped: it waits there for a reader of that name.
    pub(super) fn abandon(&mut self, mark: Sequence) {
        if self.abandoned {
            return;
        }
        self.abandoned = true;
        if let (Some(spill), Some(kept)) = (&mut self.spill, &mut self.kept) {
            let queue = std::mem::take(&mut self.queue).waiting;
            let again = std::mem::take(&mut self.again);
            for waiting in std::mem::take(&mut self.in_flight).into_iter().chain(again).chain(queue) {
                put_back(spill, &mut self.passed, &waiting);
            }
            (kept.frozen, kept.changed) = (Some(mark), true);
            self.gone_in_flight.clear();
            return;
        }
        for waiting in std::mem::take(&mut self.in_flight) {
            self.tally.lose(&waiting.record);
        }
        while let Some(waiting) = self.pop() {
            self.tally.lose(&waiting.record);
        }
        if let Some(spill) = self.spill.take() {
            self.tally.miss(spill.len());
        }
        self.gone_in_flight.clear();
        self.units.clear();
    }

    pub(super) fn has_synced(&self, synced: &HashMap<Lane, Sequence>) -> bool {
        let oldest = self.first();
        let is_past = |place: Sequence| oldest.is_none_or(|oldest| oldest > place);
        let is_done = |sight: &Sight| match (sight.joined, synced.get(&sight.lane)) {
            (Some(joined), Some(synced)) => is_past(joined) && is_past(*synced),
            _ => false,
        };
        !self.abandoned && self.units.values().all(is_done)
    }

    pub(super) fn stats(&self, mark: u64) -> ReaderStats {
        let waiting = self.backlog.as_ref().map_or(self.queue.wanted.events, Backlog::len);
        let spilled = self.spill.as_ref().map_or(0, Spill::len);
        ReaderStats {
            wanted: self.tally.wanted,
            queued: (self.again.len() + waiting) as u64 + spilled,
            spilled,
            in_flight: self.in_flight.len() as u64,
            acknowledged: self.acknowledged,
            coalesced: self.tally.coalesced,
            dropped: self.tally.dropped,
            olds_given_up: self.tally.olds_given_up,
            filtered: self.tally.filtered,
            filter_errors: self.tally.failures.count,
            given_up: self.kept.as_ref().map_or(0, |kept| kept.given_up.len()),
            position: self.first().map_or(Sequence(mark), |first| Sequence(first.0 - 1)),
            oldest_micros: self.oldest_micros(),
        }
    }

    /// Returns of which record nothing could be said the last time, and why.
    pub(super) fn failures(&self) -> &Failures {
        &self.tally.failures
    }

    pub(super) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.tally.losses)
    }

    /// Returns the place of the oldest record that is not acknowledged.
    pub(super) fn first(&self) -> Option<Sequence> {
        let in_flight = self.in_flight.front().map(|waiting| waiting.record.sequence);
        let waiting = self.peek().map(|(record, _)| record.sequence);
        let spilled = self.spill.as_ref().and_then(Spill::first);
        [in_flight, waiting, spilled].into_iter().flatten().min()
    }

    fn oldest_micros(&self) -> Option<i64> {
        let in_flight = self.in_flight.front().map(|waiting| waiting.record.time_micros);
        let oldest = in_flight.or_else(|| self.peek().map(|(record, _)| record.time_micros));
        oldest.or_else(|| self.spill.as_ref().and_then(Spill::since_micros))
    }

    /// Returns the places of what waits in the store alone, oldest first.
    pub(super) fn spilled(&self, limit: usize) -> Vec<u64> {
        self.spill.as_ref().map(|spill| spill.places().iter().take(limit).collect()).unwrap_or_default()
    }

    /// Notes that something is to be saved.
    fn touch(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.changed = true;
        }
    }

    /// Notes that it is about to join a unit that has nothing to show it.
    pub(super) fn announce(&mut self, unit: UnitId) {
        if let Some(kept) = &mut self.kept {
            kept.joining.insert(unit);
            kept.changed = true;
        }
    }

    /// Returns the units it sees.
    pub(super) fn joined(&self) -> BTreeSet<UnitId> {
        let seen = self.units.iter().filter(|(_, sight)| sight.joined.is_some());
        seen.map(|(unit, _)| *unit).collect()
    }

    /// Returns what to save of it, if that is another than what was saved last; `mark` is the release mark. From then on
    /// it needs what it would need if it went on with that.
    pub(super) fn save(&mut self, mark: Sequence) -> Option<StoredReader> {
        let is_idle = self.first().is_none();
        // The mark moves over what was refused, and nobody has anything to say of that: who waits for nothing needs nothing
        // before it.
        let lags = |kept: &Kept| is_idle && kept.frozen.is_none() && kept.needs <= mark.0;
        self.kept.as_ref().filter(|kept| kept.changed || lags(kept))?;
        self.state(mark)
    }

    /// Returns where it stands, and believes that this is saved.
    fn state(&mut self, mark: Sequence) -> Option<StoredReader> {
        let (pending, joined) = (self.pending(), self.joined());
        let kept = self.kept.as_mut()?;
        kept.changed = false;
        if !kept.compacted.is_empty() {
            kept.compacted &= &pending | &kept.given_up;
        }
        Some(StoredReader {
            name: kept.name.to_string(),
            position: kept.frozen.unwrap_or(mark),
            pending: Some(pending),
            joined: joined.union(&kept.joining).copied().collect(),
            given_up: kept.given_up.clone(),
            compacted: kept.compacted.clone(),
        })
    }

    /// Returns the places of all that waits or is in flight.
    fn pending(&self) -> RoaringTreemap {
        let mut pending = self.spill.as_ref().map(|spill| spill.places().clone()).unwrap_or_default();
        pending.extend(self.in_memory());
        pending
    }

    fn in_memory(&self) -> impl Iterator<Item = u64> {
        let waiting = self.in_flight.iter().chain(&self.again).chain(&self.queue.waiting);
        waiting.map(|waiting| waiting.record.sequence.0)
    }

    /// Returns the first place of what waits, up to `until`, whose record of the log it needs.
    pub(super) fn compactable(&self, until: Sequence) -> Option<u64> {
        self.kept.as_ref()?;
        self.first_in_log().filter(|first| *first <= until.0)
    }

    /// Returns how many records it waits for, in the log and in entries of its own.
    pub(super) fn loads(&self) -> (u64, u64) {
        let Some(kept) = &self.kept else { return (0, 0) };
        let pending = self.pending();
        let compacted = pending.intersection_len(&kept.compacted);
        (pending.len() - compacted, compacted)
    }

    /// Begins with the next step of a compaction, of `max` places at most; until its end nothing is read from the store.
    pub(super) fn hold(&mut self, max: usize, until: Sequence) -> Option<Held> {
        let kept = self.kept.as_ref()?;
        let places = &self.pending() - &kept.compacted;
        let places: Vec<_> = places.iter().take_while(|place| *place <= until.0).take(max).collect();
        let spill = self.spill.as_mut().filter(|_| !places.is_empty())?;
        spill.hold();
        let waiting = self.in_flight.iter().chain(&self.again).chain(&self.queue.waiting);
        let is_due = |waiting: &&Waiting| !waiting.judged && places.binary_search(&waiting.record.sequence.0).is_ok();
        let records = waiting.filter(is_due).map(|waiting| waiting.record.clone());
        let to_judge = self.filter.clone().map(|filter| Unjudged { filter, records: records.collect() });
        let is_unjudged = |place: &&u64| spill.places().contains(**place) && !self.passed.contains(**place);
        let unjudged = places.iter().filter(|_| to_judge.is_some()).filter(is_unjudged).copied().collect();
        Some(Held { to_judge, unjudged, places, may_merge: spill.places().clone(), shown: kept.shown })
    }

    /// Ends a step that has changed nothing.
    pub(super) fn release(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.release();
        }
    }

    /// Returns what to save of it with a step that writes entries of its own, into which others are merged.
    pub(super) fn compacting(
        &mut self,
        written: &RoaringTreemap,
        superseded: &RoaringTreemap,
        mark: Sequence,
    ) -> Option<StoredReader> {
        let mut state = self.state(mark)?;
        let pending = state.pending.get_or_insert_default();
        *pending -= superseded;
        state.compacted -= superseded;
        state.compacted |= written;
        state.compacted &= &*pending | &state.given_up;
        Some(state)
    }

    /// Ends a step that was saved with `state`.
    pub(super) fn compacted(&mut self, superseded: &RoaringTreemap, state: &StoredReader) {
        let (Some(spill), Some(kept)) = (&mut self.spill, &mut self.kept) else { return };
        self.tally.coalesced += spill.supersede(superseded);
        spill.release();
        self.passed &= spill.places();
        kept.compacted.clone_from(&state.compacted);
        kept.needs = needs(state);
    }

    /// Notes that `state` was saved.
    pub(super) fn saved(&mut self, state: &StoredReader) {
        if let Some(kept) = &mut self.kept {
            kept.needs = needs(state);
        }
    }

    /// Notes that what it has to say was not saved.
    pub(super) fn save_again(&mut self) {
        self.touch();
    }

    /// Lets it end with the process.
    pub(super) fn forget_name(&mut self) {
        self.kept = None;
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.kept.as_ref().map(|kept| &*kept.name)
    }

    /// Returns the place of the oldest record that is not acknowledged, and that lies in the log.
    fn first_in_log(&self) -> Option<u64> {
        match self.kept.as_ref().map(|kept| &kept.compacted).filter(|compacted| !compacted.is_empty()) {
            Some(compacted) => {
                let spilled = self.spill.as_ref().and_then(|spill| (spill.places() - compacted).min());
                self.in_memory().filter(|place| !compacted.contains(*place)).chain(spilled).min()
            }
            None => self.first().map(|first| first.0),
        }
    }

    /// Returns the first place whose record of the log it needs, be it after a crash; `mark` is the release mark.
    pub(super) fn needs(&self, mark: Sequence) -> u64 {
        let waiting = self.first_in_log().unwrap_or(mark.0 + 1);
        self.kept.as_ref().map_or(waiting, |kept| kept.needs.min(waiting).max(kept.floor))
    }

    /// Forgets what it gave up before a place whose record is gone.
    pub(super) fn forget_before(&mut self, first: Sequence) {
        if let Some(kept) = &mut self.kept {
            kept.changed |= forget_removed(&mut kept.given_up, &kept.compacted, first) > 0;
        }
    }

    /// Forgets what it gave up before a place, and what is in entries of its own.
    pub(super) fn forget_entries_before(&mut self, place: Sequence) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| !kept.compacted.is_empty()) {
            let mut old = &kept.given_up & &kept.compacted;
            old.remove_range(place.0..);
            kept.changed |= !old.is_empty();
            kept.given_up -= old;
        }
    }

    /// Returns the places before `place` of what waits in the store alone.
    pub(super) fn spilled_before(&self, place: Sequence) -> Vec<u64> {
        let Some(spill) = &self.spill else { return Vec::new() };
        spill.places().iter().take_while(|at| *at < place.0).collect()
    }

    /// Drops what waits in the store at `places`; `named` are their records, as far as they are known. What is before
    /// `place` it needs no more.
    pub(super) fn drop_spilled(&mut self, places: &[u64], named: &[Record], place: Sequence) {
        let (Some(spill), Some(kept)) = (&mut self.spill, &mut self.kept) else { return };
        let mut unnamed = 0;
        for at in places.iter().filter(|at| spill.miss(**at)) {
            match named.iter().find(|record| record.sequence.0 == *at) {
                Some(record) => self.tally.lose(record),
                None => unnamed += 1,
            }
        }
        self.tally.miss(unnamed);
        kept.floor = kept.floor.max(place.0);
        kept.changed = true;
    }

    /// Returns everything not acknowledged, oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Record> {
        let queue = self.queue.waiting.iter().filter(|waiting| waiting.wanted);
        let first = self.in_flight.iter().chain(&self.again).map(|waiting| &waiting.record);
        let backlog = self.backlog.iter().flat_map(Backlog::iter);
        first.chain(backlog).chain(queue.map(|waiting| &waiting.record))
    }
}

/// Keeps the place alone of what was in memory.
fn put_back(spill: &mut Spill, passed: &mut RoaringTreemap, waiting: &Waiting) {
    if waiting.judged {
        passed.insert(waiting.record.sequence.0);
    }
    spill.push(&waiting.record);
}

/// Returns the first place whose record of the log a reader needs that goes on with `state`.
pub(super) fn needs(state: &StoredReader) -> u64 {
    let first = state.pending.as_ref().and_then(|pending| (pending - &state.compacted).min());
    first.unwrap_or(state.position.0 + 1)
}

/// Returns the first place that a reader which goes on with `state` is not done with.
pub(super) fn waits_from(state: &StoredReader) -> u64 {
    state.pending.as_ref().and_then(RoaringTreemap::min).unwrap_or(state.position.0 + 1)
}

/// Forgets what was given up before a place where the log begins, but for what is `compacted`; returns how many.
fn forget_removed(given_up: &mut RoaringTreemap, compacted: &RoaringTreemap, first: Sequence) -> u64 {
    let mut gone = &*given_up - compacted;
    gone.remove_range(first.0..);
    *given_up -= &gone;
    gone.len()
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
        assert!(
            self.in_flight.len() <= self.bounds.max_events.max(1) || !self.again.is_empty() || self.spill.is_some()
        );
        let queue = &self.queue;
        assert!(queue.waiting.front().is_none_or(|first| first.wanted), "what comes first is wanted");
        assert!(!queue.is_over(&self.bounds));
        for wanted in [true, false] {
            let of_kind = || queue.waiting.iter().filter(|waiting| waiting.wanted == wanted);
            let bytes = of_kind().map(|waiting| waiting.record.body_bytes()).sum();
            let load = if wanted { queue.wanted } else { queue.unwanted };
            assert_eq!(load, Load { events: of_kind().count(), bytes });
        }
        assert!(self.in_flight.iter().is_sorted_by_key(|waiting| waiting.record.sequence));
        if let Some(spill) = &self.spill {
            let in_memory = self.in_flight.iter().chain(&self.again).chain(&queue.waiting);
            let mut places = in_memory.map(|waiting| waiting.record.sequence.0);
            assert!(self.backlog.is_none() && !places.any(|place| spill.places().contains(place)));
        }
        if let Some(backlog) = &self.backlog {
            assert!(queue.waiting.is_empty() && backlog.len() > 0);
            backlog.check(&self.bounds);
        }
    }
}
