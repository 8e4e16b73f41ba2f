//! What waits for a reader that has fallen behind (D7, D-11).
//!
//! [`Backlog::Merging`] keeps a lane per (resource type, namespace, name), whichever unit of the type the records are
//! from, and in it a chain of records, oldest first:
//!
//! | waiting, not read | comes | stays |
//! |---|---|---|
//! | Added | Updated | Added with the new state |
//! | Updated | Updated | Updated: first `old`, last state |
//! | Updated | Deleted, Removed | Deleted, Removed |
//! | Updated to another uid | Deleted, Removed | both, as for Added |
//! | Added | Deleted, Removed | both: a deletion is never cancelled, and nobody is told of the end of what he never saw (I2) |
//! | gone, Added | gone, of the same uid | the last one: an object that goes in and out costs one record |
//! | anything | Unchanged, Refreshed | what waited, with the body that the cache has now |
//!
//! A merged record stands where its last part stood, so sequence order stays the order of the cache (I3); only an
//! Added that the reader begins with keeps its place, before the `Synced` that waits behind it and below the place up
//! to which the reader must be done to have synced (S-8).
//!
//! **Memory (I5).** An object that is alive has one or two records, and its body is the cache's own. What the cache
//! does not hold, that is `old`s, objects that are gone, and all objects of units without a cache, is *loose*: it is
//! counted against `max_bytes`, and beyond it the oldest `old`s are given up, then the oldest loose objects. For `old`s
//! the room that the records themselves take counts too: many objects that wait leave few of them. Beyond
//! `max_events` loose records the oldest of them are dropped, each deletion with the never-read Added of its object: how
//! many objects live and wait is no reason to drop a deletion. To see which objects are gone, and which body the cache
//! has, this takes records that are not wanted too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::{Equivalent, HashMap};

use super::{
    Bounds, Losses, Record, Sequence, WhenFull,
    filter::Failures,
    memory::{Lane, Origin},
    reader::Waiting,
};
use crate::{
    indexer::Change,
    object::{KeyRef, Object, ObjectKey},
};

/// Losses named between two questions; further ones are only counted.
pub(super) const NAMED_LOSSES_MAX: usize = 1024;
/// What a record that waits to be merged takes beside bodies, with its places in the tables, about.
pub(super) const ENTRY_BYTES: usize = 320;

/// What happened to the records of one reader.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) wanted: u64,
    pub(super) coalesced: u64,
    pub(super) dropped: u64,
    pub(super) olds_given_up: u64,
    /// Of interest, and refused by the filter.
    pub(super) filtered: u64,
    pub(super) failures: Failures,
    pub(super) losses: Losses,
}

impl Tally {
    pub(super) fn lose(&mut self, record: &Record) {
        self.dropped += 1;
        if self.losses.named.len() < NAMED_LOSSES_MAX {
            self.losses.named.push(record.event_name());
        } else {
            self.losses.unnamed += 1;
        }
    }

    /// Counts losses of which nothing is known.
    pub(super) fn miss(&mut self, records: u64) {
        self.dropped += records;
        self.losses.unnamed += records;
    }
}

/// A record that comes to wait, and was judged. One that is not `wanted` only changes what is known of its object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) record: &'a Record,
    pub(super) origin: Origin,
    pub(super) wanted: bool,
    /// Up to where objects of its lane belong to what the reader begins with.
    pub(super) mark: Option<Sequence>,
}

/// What waits for one reader, in order.
#[derive(Debug)]
pub(super) enum Backlog {
    Merging(Merging),
    Dropping { records: VecDeque<Waiting>, bytes: usize, oldest: bool },
}

impl Backlog {
    pub(super) fn new(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Coalesce => Self::Merging(Merging::default()),
            WhenFull::DropOldest | WhenFull::DropNewest => {
                Self::Dropping { records: VecDeque::new(), bytes: 0, oldest: when_full == WhenFull::DropOldest }
            }
        }
    }

    pub(super) fn push(&mut self, arrival: Arrival<'_>, bounds: &Bounds, tally: &mut Tally) {
        match self {
            Self::Merging(merging) => merging.push(arrival, tally),
            Self::Dropping { records, bytes, .. } if arrival.wanted => {
                let Arrival { record, origin, wanted, .. } = arrival;
                records.push_back(Waiting { record: record.clone(), origin, wanted, judged: true });
                *bytes += record.body_bytes();
            }
            Self::Dropping { .. } => {}
        }
        self.enforce(bounds, tally);
    }

    /// Goes on with other bounds.
    pub(super) fn adopt(&mut self, bounds: &Bounds, tally: &mut Tally) {
        let drops = bounds.when_full != WhenFull::Coalesce;
        match self {
            Self::Dropping { oldest, .. } if drops => *oldest = bounds.when_full == WhenFull::DropOldest,
            Self::Merging(_) if !drops => {}
            _ => {
                let mut before = std::mem::replace(self, Self::new(bounds.when_full));
                while let Some(Waiting { record, origin, wanted, .. }) = before.pop_front() {
                    self.push(Arrival { record: &record, origin, wanted, mark: None }, bounds, tally);
                }
            }
        }
        self.enforce(bounds, tally);
    }

    fn enforce(&mut self, bounds: &Bounds, tally: &mut Tally) {
        match self {
            Self::Merging(merging) => merging.enforce(bounds, tally),
            Self::Dropping { records, bytes, oldest } => {
                while records.len() > 1 && (records.len() > bounds.max_events || *bytes > bounds.max_bytes) {
                    let dropped = if *oldest { records.pop_front() } else { records.pop_back() };
                    let dropped = dropped.expect("there is more than one").record;
                    *bytes -= dropped.body_bytes();
                    tally.lose(&dropped);
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Merging(merging) => merging.entries.len(),
            Self::Dropping { records, .. } => records.len(),
        }
    }

    pub(super) fn front(&self) -> Option<(&Record, Lane)> {
        match self {
            Self::Merging(merging) => {
                merging.entries.first_key_value().map(|(_, entry)| (&entry.record, entry.origin.lane))
            }
            Self::Dropping { records, .. } => records.front().map(|first| (&first.record, first.origin.lane)),
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Waiting> {
        match self {
            Self::Merging(merging) => {
                let (first, entry) = merging.entries.first_key_value()?;
                let (first, origin) = (*first, entry.origin);
                Some(Waiting { record: merging.take(first), origin, wanted: true, judged: true })
            }
            Self::Dropping { records, bytes, .. } => {
                let waiting = records.pop_front()?;
                *bytes -= waiting.record.body_bytes();
                Some(waiting)
            }
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &Record> + '_> {
        match self {
            Self::Merging(merging) => Box::new(merging.entries.values().map(|entry| &entry.record)),
            Self::Dropping { records, .. } => Box::new(records.iter().map(|waiting| &waiting.record)),
        }
    }
}

/// Names a lane.
#[derive(Debug, Hash, PartialEq, Eq)]
struct LaneKey {
    lane: Lane,
    key: ObjectKey,
}

/// A borrowed [`LaneKey`]; hashes as it does.
#[derive(Clone, Copy, Debug, Hash)]
struct LaneRef<'a> {
    lane: Lane,
    key: KeyRef<'a>,
}

impl Equivalent<LaneKey> for LaneRef<'_> {
    fn equivalent(&self, other: &LaneKey) -> bool {
        self.lane == other.lane && self.key == other.key.as_ref()
    }
}

fn lane_of(record: &Record, origin: Origin) -> Option<LaneRef<'_>> {
    record.object().map(|object| LaneRef { lane: origin.lane, key: object.key() })
}

#[derive(Debug)]
struct Entry {
    record: Record,
    origin: Origin,
    /// The entry before it in its lane, if that still waits.
    previous: Option<Sequence>,
    /// The object is gone; the cache no longer holds its body.
    dead: bool,
    /// An update that made another uid of it: the only sign of that uid, so its end does not replace it.
    recreated: bool,
}

impl Entry {
    /// Returns the bytes that it alone keeps in memory.
    fn extra_bytes(&self) -> usize {
        let old = self.record.old().map_or(0, Object::size_bytes);
        let object = self.record.object().filter(|_| self.is_loose()).map_or(0, Object::size_bytes);
        old + object
    }

    /// Returns whether no cache holds its object.
    fn is_loose(&self) -> bool {
        self.dead || (!self.origin.cached && self.record.object().is_some())
    }

    fn lane(&self) -> Option<LaneRef<'_>> {
        lane_of(&self.record, self.origin)
    }

    fn uid(&self) -> &str {
        self.record.object().map_or("", |object| object.uid())
    }
}

/// What a record does to the last one of its lane.
enum Merge {
    /// It stands beside it.
    Append,
    /// Both become this, at the place of the new one.
    Replace(Change),
    /// The waiting one gets this content and keeps its place.
    Refresh(Change),
    /// There is nothing to add.
    Nothing,
}

/// The merging backlog; the module's documentation has the rules.
#[derive(Debug, Default)]
pub(super) struct Merging {
    entries: BTreeMap<Sequence, Entry>,
    /// The last entry of each lane.
    tails: HashMap<LaneKey, Sequence>,
    loose: BTreeSet<Sequence>,
    with_old: BTreeSet<Sequence>,
    extra_bytes: usize,
}

impl Merging {
    fn push(&mut self, arrival: Arrival<'_>, tally: &mut Tally) {
        let Arrival { record, origin, wanted, .. } = arrival;
        let arrives = |previous, recreated| Entry { record: record.clone(), origin, previous, dead: false, recreated };
        let Some(lane) = lane_of(record, origin) else {
            if wanted {
                self.insert(arrives(None, false));
            }
            return;
        };
        let tail = self.tails.get(&lane).copied();
        let merge = tail.map_or(Merge::Append, |tail| self.merge(tail, arrival));
        match (merge, tail) {
            (Merge::Append, _) if wanted => self.insert(arrives(tail, recreates(record))),
            (Merge::Append, _) => {}
            (Merge::Nothing, _) => tally.coalesced += u64::from(wanted),
            (Merge::Refresh(change), tail) => {
                tally.coalesced += u64::from(wanted);
                self.refresh(tail.expect("merged with it"), change, origin);
            }
            (Merge::Replace(change), tail) => {
                tally.coalesced += u64::from(wanted);
                self.replace(tail.expect("merged with it"), change, arrival);
            }
        }
        if record.is_gone() {
            self.bury(lane, record, wanted, tally);
        }
    }

    /// Decides what becomes of the last entry of a lane and the record that follows it.
    fn merge(&self, tail: Sequence, Arrival { record, wanted, mark, .. }: Arrival<'_>) -> Merge {
        let entry = &self.entries[&tail];
        let Some((before, object)) = before_and_after(record) else { return Merge::Append };
        if entry.dead || entry.uid() != before.uid() {
            return Merge::Append;
        }
        let object = object.clone();
        match (&entry.record.change, &record.change) {
            (Change::Added { .. }, Change::Deleted { .. } | Change::Removed { .. }) => Merge::Append,
            (_, Change::Deleted { .. } | Change::Removed { .. }) if entry.recreated => Merge::Append,
            (_, Change::Deleted { .. } | Change::Removed { .. }) if wanted => Merge::Replace(record.change.clone()),
            (_, Change::Deleted { .. } | Change::Removed { .. }) => Merge::Nothing,
            (Change::Added { cause, .. }, Change::Unchanged { .. } | Change::Refreshed { .. }) => {
                Merge::Refresh(Change::Added { object, cause: *cause })
            }
            (Change::Updated { old, cause, .. }, Change::Unchanged { .. } | Change::Refreshed { .. }) => {
                Merge::Refresh(Change::Updated { old: old.clone(), object, cause: *cause })
            }
            (Change::Unchanged { cause, .. }, Change::Unchanged { .. } | Change::Refreshed { .. }) => {
                Merge::Refresh(Change::Unchanged { object, cause: *cause })
            }
            (Change::Added { cause, .. }, _) => {
                let added = Change::Added { object, cause: *cause };
                if mark.is_some_and(|mark| tail <= mark) { Merge::Refresh(added) } else { Merge::Replace(added) }
            }
            (Change::Updated { old, .. }, Change::Updated { cause, .. } | Change::Added { cause, .. }) => {
                Merge::Replace(Change::Updated { old: old.clone(), object, cause: *cause })
            }
            (Change::Unchanged { .. }, Change::Updated { .. } | Change::Added { .. }) if wanted => {
                Merge::Replace(record.change.clone())
            }
            (Change::Unchanged { cause, .. }, _) => Merge::Replace(Change::Unchanged { object, cause: *cause }),
            _ => Merge::Append,
        }
    }

    /// Puts a merged record at the place of the new one.
    fn replace(&mut self, tail: Sequence, mut change: Change, Arrival { record, origin, .. }: Arrival<'_>) {
        let Entry { previous, recreated, .. } = self.entries[&tail];
        let before = self.take(tail);
        let old_lost = before.old_lost && matches!(change, Change::Updated { .. });
        if old_lost {
            give_up_old(&mut change);
        }
        let recreated = matches!(change, Change::Updated { .. }) && (recreated || recreates(record));
        let record = Record { change, old_lost, ..record.clone() };
        self.insert(Entry { record, origin, previous, dead: false, recreated });
    }

    /// Gives an entry another content at its place.
    fn refresh(&mut self, sequence: Sequence, mut change: Change, origin: Origin) {
        let entry = self.entries.get_mut(&sequence).expect("it was merged with");
        self.extra_bytes -= entry.extra_bytes();
        if entry.record.old_lost {
            give_up_old(&mut change);
        }
        entry.record.change = change;
        entry.origin = origin;
        self.extra_bytes += entry.extra_bytes();
        if entry.is_loose() {
            self.loose.insert(sequence);
        } else {
            self.loose.remove(&sequence);
        }
    }

    /// Marks what waits of an object that is gone, and folds gone, Added, gone into one.
    fn bury(&mut self, lane: LaneRef<'_>, record: &Record, wanted: bool, tally: &mut Tally) {
        let uid = record.object().map_or("", |object| object.uid());
        let mut at = self.tails.get(&lane).copied();
        while let Some((sequence, entry)) = at.and_then(|at| self.entries.get_mut(&at).map(|entry| (at, entry))) {
            if entry.uid() != uid || entry.dead {
                break;
            }
            at = entry.previous;
            self.extra_bytes -= entry.extra_bytes();
            entry.dead = true;
            self.extra_bytes += entry.extra_bytes();
            self.loose.insert(sequence);
        }
        while wanted && self.fold(lane, uid, tally) {}
    }

    /// Folds the last three entries of a lane, gone, Added and gone of one uid, into the last.
    fn fold(&mut self, lane: LaneRef<'_>, uid: &str, tally: &mut Tally) -> bool {
        let Some((last, end)) = self.tails.get(&lane).map(|at| (*at, &self.entries[at])) else { return false };
        let Some((middle, added)) = end.previous.and_then(|at| Some((at, self.entries.get(&at)?))) else {
            return false;
        };
        let Some((first, gone)) = added.previous.and_then(|at| Some((at, self.entries.get(&at)?))) else {
            return false;
        };
        let is_deleted = |entry: &Entry| matches!(entry.record.change, Change::Deleted { .. });
        let folds = [gone, added, end].iter().all(|entry| entry.uid() == uid)
            && gone.record.is_gone()
            && matches!(added.record.change, Change::Added { .. })
            && end.record.is_gone()
            && (is_deleted(end) || !is_deleted(gone));
        if folds {
            let previous = gone.previous;
            drop((self.take(middle), self.take(first)));
            self.entries.get_mut(&last).expect("it is the tail").previous = previous;
            tally.coalesced += 2;
        }
        folds
    }

    fn enforce(&mut self, bounds: &Bounds, tally: &mut Tally) {
        while self.extra_bytes + self.entries.len() * ENTRY_BYTES > bounds.max_bytes
            && let Some(oldest) = self.with_old.pop_first()
        {
            self.lose_old(oldest, tally);
        }
        while self.extra_bytes > bounds.max_bytes && self.drop_oldest_loose(tally) {}
        while self.loose.len() > bounds.max_events && self.drop_oldest_loose(tally) {}
    }

    fn lose_old(&mut self, sequence: Sequence, tally: &mut Tally) {
        let entry = self.entries.get_mut(&sequence).expect("indexed entries exist");
        self.extra_bytes -= entry.extra_bytes();
        give_up_old(&mut entry.record.change);
        entry.record.old_lost = true;
        tally.olds_given_up += 1;
        self.extra_bytes += entry.extra_bytes();
    }

    /// Drops the oldest entry of an object that no cache holds, and what else waits of that life of it if it is over.
    fn drop_oldest_loose(&mut self, tally: &mut Tally) -> bool {
        let Some(oldest) = self.loose.first().copied() else { return false };
        let entry = &self.entries[&oldest];
        let lane = entry.lane().expect("only objects are loose");
        let mut chain = Vec::new();
        let mut at = self.tails.get(&lane).copied();
        while let Some((sequence, entry)) = at.and_then(|at| self.entries.get(&at).map(|entry| (at, entry))) {
            chain.push((sequence, entry.record.is_gone() || !entry.dead));
            at = entry.previous;
        }
        // From the oldest on, up to and with the first that ends a life.
        let of_this_life = chain.iter().rev().skip_while(|(sequence, _)| *sequence != oldest);
        let mut doomed = Vec::new();
        for (sequence, ends) in of_this_life {
            if self.entries[sequence].uid() != entry.uid() {
                break;
            }
            doomed.push(*sequence);
            if *ends {
                break;
            }
        }
        for sequence in doomed {
            let record = self.take(sequence);
            tally.lose(&record);
        }
        true
    }

    fn insert(&mut self, entry: Entry) {
        let sequence = entry.record.sequence;
        if let Some(lane) = entry.lane() {
            match self.tails.get_mut(&lane) {
                Some(tail) => *tail = sequence,
                None => {
                    self.tails.insert(LaneKey { lane: lane.lane, key: lane.key.to_owned() }, sequence);
                }
            }
        }
        if entry.is_loose() {
            self.loose.insert(sequence);
        }
        self.extra_bytes += entry.extra_bytes();
        if entry.record.old().is_some() {
            self.with_old.insert(sequence);
        }
        self.entries.insert(sequence, entry);
    }

    /// Takes an entry out, and its traces.
    fn take(&mut self, sequence: Sequence) -> Record {
        let entry = self.entries.remove(&sequence).expect("indexed entries exist");
        self.extra_bytes -= entry.extra_bytes();
        self.loose.remove(&sequence);
        self.with_old.remove(&sequence);
        if let Some(lane) = entry.lane()
            && self.tails.get(&lane) == Some(&sequence)
        {
            match entry.previous.filter(|previous| self.entries.contains_key(previous)) {
                Some(previous) => *self.tails.get_mut(&lane).expect("just seen") = previous,
                None => drop(self.tails.remove(&lane)),
            }
        }
        entry.record
    }
}

/// Lets the `old` of an update stand for what was given up; anything else would keep a body alive.
fn give_up_old(change: &mut Change) {
    if let Change::Updated { old, object, .. } = change {
        *old = object.clone();
    }
}

/// Returns whether the object has another uid after the update (`recreated = "update"`).
fn recreates(record: &Record) -> bool {
    record.old().is_some_and(|old| record.object().is_some_and(|object| object.uid() != old.uid()))
}

/// Returns the object as it was before a change, and after it.
fn before_and_after(record: &Record) -> Option<(&Object, &Object)> {
    match &record.change {
        Change::Updated { old, object, .. } => Some((old, object)),
        _ => record.object().map(|object| (object, object)),
    }
}

#[cfg(test)]
impl Backlog {
    /// Asserts what must hold between any two calls.
    pub(super) fn check(&self, bounds: &Bounds) {
        match self {
            Self::Dropping { records, bytes, .. } => {
                assert_eq!(*bytes, records.iter().map(|waiting| waiting.record.body_bytes()).sum::<usize>());
                assert!(records.len() <= 1 || (records.len() <= bounds.max_events && *bytes <= bounds.max_bytes));
            }
            Self::Merging(merging) => merging.check(bounds),
        }
    }
}

#[cfg(test)]
impl Merging {
    fn check(&self, bounds: &Bounds) {
        let extra = self.entries.values().map(Entry::extra_bytes).sum::<usize>();
        assert_eq!(self.extra_bytes, extra);
        let loose: BTreeSet<_> = self.entries.iter().filter(|(_, e)| e.is_loose()).map(|(s, _)| *s).collect();
        assert_eq!(self.loose, loose);
        let with_old: BTreeSet<_> =
            self.entries.iter().filter(|(_, e)| e.record.old().is_some()).map(|(s, _)| *s).collect();
        assert_eq!(self.with_old, with_old);
        assert!(extra <= bounds.max_bytes, "{extra} bytes of {}", bounds.max_bytes);
        assert!(loose.len() <= bounds.max_events, "too many wait of objects that no cache holds");
        for entry in self.entries.values().filter(|entry| entry.record.old_lost) {
            let Change::Updated { old, object, .. } = &entry.record.change else { panic!("only updates have an old") };
            assert!(old.ptr_eq(object), "an old given up is kept alive");
        }
        let mut alive = HashMap::<_, usize>::new();
        for entry in self.entries.values().filter(|entry| !entry.dead) {
            *alive.entry(entry.lane().map(|lane| (lane.lane, lane.key))).or_default() += 1;
        }
        alive.remove(&None);
        assert!(alive.values().all(|count| *count <= 2), "what waits of one living object is bounded");
        for (key, tail) in &self.tails {
            assert!(self.entries[tail].lane().expect("an object").equivalent(key));
            assert!(
                self.entries
                    .range((std::ops::Bound::Excluded(*tail), std::ops::Bound::Unbounded))
                    .all(|(_, e)| { e.lane().is_none_or(|lane| !lane.equivalent(key)) })
            );
        }
    }
}
