//! Coalesced records of a reader that has fallen behind (D-11).
//!
//! A [`Backlog`] keeps one lane per resource type, namespace and name, shared by all units of the type. A lane is a list of
//! records, oldest first, which are coalesced by the [rules](crate::journal::coalesce).
//!
//! **Memory (E5).** A living object has one or two records, and shares its body with the cache. Bodies that the cache does not hold
//! are *loose*: `old`s, deleted objects, and all objects of units without a cache. Three steps enforce the limits:
//!
//! 1. While loose bodies and the records themselves together exceed `max_bytes`, the oldest `old` is discarded, until none is left.
//! 2. While loose bodies alone exceed `max_bytes`, the oldest record of a loose object is dropped.
//! 3. While more than `max_events` records of loose objects wait, the oldest of them is dropped.
//!
//! Steps 2 and 3 drop an unread Added together with the waiting deletion of its object. Unwanted records are processed too: they
//! show which objects are deleted, and which bodies the cache holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, RandomState},
};

use hashbrown::{HashMap, hash_map};

use super::{super::tally::Tally, queue::WaitingRecord};
use crate::{
    change::{Cause, Change},
    journal::{
        Bounds, ChangeKind, Record, Sequence, UnitTerms,
        coalesce::{Effect, Next, Shows, Waiting, coalesce, folds},
    },
    object::{KeyRef, Object},
};

/// Approximate size of a waiting record without bodies, including its table entries.
pub(crate) const ENTRY_BYTES: usize = 320;

/// Hash of resource type, namespace and name of an object. It is wide enough that collisions need not be handled.
type Lane = [u64; 2];

#[derive(Debug)]
struct Entry {
    record: Record,
    terms: UnitTerms,
    /// Lane of the object; `None` for a record without an object.
    lane: Option<Lane>,
    /// Set when the object is deleted: the cache no longer holds its body.
    dead: bool,
    /// Set for an update that changed the uid. A later deletion does not replace this update, which stands for the Added of the new
    /// uid.
    recreated: bool,
}

impl Entry {
    /// Returns the size of the bodies that only this entry keeps in memory.
    fn extra_bytes(&self) -> usize {
        let old = self.record.old().map_or(0, Object::size_bytes);
        let object = self.record.object().filter(|_| self.is_loose()).map_or(0, Object::size_bytes);
        old + object
    }

    /// Returns true if no cache holds the object of this entry.
    fn is_loose(&self) -> bool {
        self.dead || (!self.terms.cached && self.record.object().is_some())
    }

    fn uid(&self) -> &str {
        self.record.object().map_or("", |object| object.uid())
    }
}

/// Coalesced records of one reader, in order.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    entries: BTreeMap<Sequence, Entry>,
    /// Entries of each lane, oldest first.
    lanes: HashMap<Lane, Vec<Sequence>>,
    hashers: [RandomState; 2],
    loose: BTreeSet<Sequence>,
    with_old: BTreeSet<Sequence>,
    extra_bytes: usize,
}

impl Backlog {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn front(&self) -> Option<&Record> {
        self.entries.first_key_value().map(|(_, entry)| &entry.record)
    }

    pub(super) fn pop_front(&mut self) -> Option<WaitingRecord> {
        let (first, entry) = self.entries.first_key_value()?;
        let (first, terms) = (*first, entry.terms);
        Some(WaitingRecord { record: self.take(first), terms, wanted: true, judged: true })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.entries.values().map(|entry| &entry.record)
    }

    /// Adds a judged record. An unwanted one only updates the waiting records of its object. Added records up to `mark` belong
    /// to the reader's initial state.
    pub(super) fn push(&mut self, new: &WaitingRecord, mark: Option<Sequence>, bounds: &Bounds, tally: &mut Tally) {
        self.add(new, mark, tally);
        self.enforce(bounds, tally);
    }

    fn add(&mut self, new: &WaitingRecord, mark: Option<Sequence>, tally: &mut Tally) {
        let WaitingRecord { record, terms, wanted, .. } = new;
        let (terms, wanted) = (*terms, *wanted);
        let arrives = |lane, recreated| Entry { record: record.clone(), terms, lane, dead: false, recreated };
        let Some(object) = record.object() else {
            if wanted {
                self.insert(arrives(None, false));
            }
            return;
        };
        let lane = self.lane(terms, object);
        let tail = self.lanes.get(&lane).and_then(|entries| entries.last()).copied();
        let effect = tail.map_or(Effect::Both, |tail| self.effect(tail, object, new, mark));
        tally.stats.coalesced += u64::from(wanted && effect != Effect::Both);
        let shown = |tail: Sequence, cause| showing(&self.entries[&tail].record.change, object, cause);
        match (effect, tail) {
            (Effect::Next, Some(tail)) => self.replace(tail, record.change.clone(), new),
            (Effect::Move, Some(tail)) => self.replace(tail, shown(tail, None), new),
            (Effect::Join, Some(tail)) => self.replace(tail, shown(tail, record.change.cause()), new),
            (Effect::Refresh, Some(tail)) => self.refresh(tail, shown(tail, None), terms),
            (Effect::Both, _) if wanted => self.insert(arrives(Some(lane), recreates(record))),
            (Effect::Both | Effect::Waiting, _) | (_, None) => {}
        }
        if record.is_gone() {
            self.bury(lane, object.uid(), wanted, tally);
        }
    }

    fn lane(&self, terms: UnitTerms, object: &Object) -> Lane {
        let KeyRef { namespace, name } = object.key();
        self.hashers.each_ref().map(|hasher| hasher.hash_one((terms.resource, namespace, name)))
    }

    /// Decides how a record changes the last entry of its lane. An Added up to `mark` is delivered before a `Synced`.
    fn effect(&self, tail: Sequence, object: &Object, new: &WaitingRecord, mark: Option<Sequence>) -> Effect {
        let WaitingRecord { record, wanted, .. } = new;
        let entry = &self.entries[&tail];
        let before = if let Change::Updated { old, .. } = &record.change { old } else { object };
        let is_version = |waiting: &Object| waiting.resource_version() == object.resource_version();
        let shows = if entry.dead || entry.uid() != before.uid() {
            Shows::AnotherObject
        } else if entry.record.object().is_some_and(is_version) {
            Shows::SameVersion // the cache may hold another body of it, which this entry must not keep in memory too
        } else {
            Shows::AnotherVersion
        };
        let waiting = Waiting {
            kind: ChangeKind::of(&entry.record.change),
            recreated: entry.recreated,
            keeps_position: mark.is_some_and(|mark| tail <= mark),
        };
        coalesce(waiting, Next { kind: ChangeKind::of(&record.change), is_wanted: *wanted, shows })
    }

    /// Replaces the entry at `tail` by a coalesced one, at the position of the new record.
    fn replace(&mut self, tail: Sequence, mut change: Change, WaitingRecord { record, terms, .. }: &WaitingRecord) {
        let Entry { lane, recreated, .. } = self.entries[&tail];
        let before = self.take(tail);
        let old_lost = before.old_lost && matches!(change, Change::Updated { .. });
        if old_lost {
            give_up_old(&mut change);
        }
        let recreated = matches!(change, Change::Updated { .. }) && (recreated || recreates(record));
        let record = Record { change, old_lost, ..record.clone() };
        self.insert(Entry { record, terms: *terms, lane, dead: false, recreated });
    }

    /// Replaces the content of an entry, which keeps its position.
    fn refresh(&mut self, sequence: Sequence, mut change: Change, terms: UnitTerms) {
        self.update(sequence, |entry| {
            if entry.record.old_lost {
                give_up_old(&mut change);
            }
            (entry.record.change, entry.terms) = (change, terms);
        });
    }

    /// Changes an entry, and updates the counters.
    fn update(&mut self, sequence: Sequence, act: impl FnOnce(&mut Entry)) {
        let entry = self.entries.get_mut(&sequence).expect("indexed entries exist");
        self.extra_bytes -= entry.extra_bytes();
        act(entry);
        self.extra_bytes += entry.extra_bytes();
        if entry.is_loose() {
            self.loose.insert(sequence);
        } else {
            self.loose.remove(&sequence);
        }
    }

    /// Marks the entries of a deleted object as dead. If an earlier deletion and a re-add of the object still wait, coalesces both
    /// with the new deletion.
    fn bury(&mut self, lane: Lane, uid: &str, wanted: bool, tally: &mut Tally) {
        let is_alive = |sequence: &Sequence| {
            let entry = &self.entries[sequence];
            entry.uid() == uid && !entry.dead
        };
        let waiting = self.lanes.get(&lane).into_iter().flat_map(|waiting| waiting.iter().rev().copied());
        for sequence in waiting.take_while(is_alive).collect::<Vec<_>>() {
            self.update(sequence, |entry| entry.dead = true);
        }
        while wanted && self.fold(lane, uid, tally) {}
    }

    /// Coalesces the last three entries of a lane into the last one, if they are a deletion, an Added and a deletion of one uid.
    /// Returns false if they are not.
    fn fold(&mut self, lane: Lane, uid: &str, tally: &mut Tally) -> bool {
        let waiting = self.lanes.get(&lane).map(Vec::as_slice).unwrap_or_default();
        let &[.., first, middle, last] = waiting else { return false };
        let [gone, added, end] = [first, middle, last].map(|sequence| &self.entries[&sequence]);
        let kinds = [gone, added, end].map(|entry| ChangeKind::of(&entry.record.change));
        let folds = [gone, added, end].iter().all(|entry| entry.uid() == uid) && folds(kinds);
        if folds {
            drop((self.take(middle), self.take(first)));
            tally.stats.coalesced += 2;
        }
        folds
    }

    /// Discards `old`s, and drops records until the rest is within the limits.
    pub(super) fn enforce(&mut self, bounds: &Bounds, tally: &mut Tally) {
        while self.extra_bytes + self.entries.len() * ENTRY_BYTES > bounds.max_bytes
            && let Some(oldest) = self.with_old.pop_first()
        {
            self.update(oldest, |entry| {
                give_up_old(&mut entry.record.change);
                entry.record.old_lost = true;
            });
            tally.stats.olds_given_up += 1;
        }
        while self.extra_bytes > bounds.max_bytes && self.drop_oldest_loose(tally) {}
        while self.loose.len() > bounds.max_events && self.drop_oldest_loose(tally) {}
    }

    /// Drops the oldest loose entry. If its object is deleted, also drops the object's next entries up to that deletion. Returns
    /// false if no entry is loose.
    fn drop_oldest_loose(&mut self, tally: &mut Tally) -> bool {
        let Some(oldest) = self.loose.first().copied() else { return false };
        let entry = &self.entries[&oldest];
        let lane = &self.lanes[&entry.lane.expect("only objects are loose")];
        // Entries to drop: from the oldest one up to and including the first deletion.
        let mut doomed = Vec::new();
        for sequence in lane.iter().copied().skip_while(|sequence| *sequence != oldest) {
            let other = &self.entries[&sequence];
            if other.uid() != entry.uid() {
                break;
            }
            doomed.push(sequence);
            if other.record.is_gone() || !other.dead {
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
        if let Some(lane) = entry.lane {
            self.lanes.entry(lane).or_default().push(sequence);
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

    /// Removes an entry from all tables, and returns its record.
    fn take(&mut self, sequence: Sequence) -> Record {
        let entry = self.entries.remove(&sequence).expect("indexed entries exist");
        self.extra_bytes -= entry.extra_bytes();
        self.loose.remove(&sequence);
        self.with_old.remove(&sequence);
        if let Some(lane) = entry.lane
            && let hash_map::Entry::Occupied(mut waiting) = self.lanes.entry(lane)
        {
            if let Ok(at) = waiting.get().binary_search(&sequence) {
                waiting.get_mut().remove(at);
            }
            if waiting.get().is_empty() {
                waiting.remove();
            }
        }
        entry.record
    }
}

/// Returns a waiting change with a newer object, and with another cause if one is given.
fn showing(waiting: &Change, object: &Object, cause: Option<Cause>) -> Change {
    let mut change = waiting.clone();
    match &mut change {
        Change::Added { object: shown, cause: of }
        | Change::Updated { object: shown, cause: of, .. }
        | Change::Unchanged { object: shown, cause: of } => {
            *shown = object.clone();
            *of = cause.unwrap_or(*of);
        }
        Change::Deleted { .. } | Change::Removed { .. } | Change::Refreshed { .. } | Change::Synced { .. } => {}
    }
    change
}

/// Sets the `old` of an update to its `object`, as a placeholder: any other value would keep a body in memory.
fn give_up_old(change: &mut Change) {
    if let Change::Updated { old, object, .. } = change {
        *old = object.clone();
    }
}

/// Returns true if the update changed the uid of the object (`recreated = "update"`).
fn recreates(record: &Record) -> bool {
    record.old().is_some_and(|old| record.object().is_some_and(|object| object.uid() != old.uid()))
}

#[cfg(test)]
impl Backlog {
    /// Asserts the invariants between two calls.
    pub(super) fn check(&self, bounds: &Bounds) {
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
            *alive.entry(entry.lane).or_default() += 1;
        }
        alive.remove(&None);
        assert!(alive.values().all(|count| *count <= 2), "what waits of one living object is bounded");
        for (lane, waiting) in &self.lanes {
            let of_lane = self.entries.iter().filter(|(_, entry)| entry.lane == Some(*lane)).map(|(at, _)| *at);
            assert!(!waiting.is_empty() && of_lane.eq(waiting.iter().copied()));
        }
        let with_lane = self.entries.values().filter(|entry| entry.lane.is_some()).count();
        assert_eq!(self.lanes.values().map(Vec::len).sum::<usize>(), with_lane);
    }
}
