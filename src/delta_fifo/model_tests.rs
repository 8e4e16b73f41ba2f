//! Random events, lists, restarts and pops. Compares the queue with a simple one, and its output with the server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

use super::{DeltaFifo, DeltaKind, QueueOrder, is_same_state, tests::object};
use crate::{
    object::{Keep, Object, ResourceVersion, scan::TypeMeta},
    reflector::ReflectorEvent,
};

const KEYS: u8 = 12;
const LEN_MAX: usize = super::BATCH_LEN_MAX;

/// Kind, key, uid and version of a delta.
type Row = (DeltaKind, u8, u32, u32);
/// Key, uid and version of an item of a list.
type Item = (u8, u32, u32);
/// Uid and version of every key.
type State = BTreeMap<u8, (u32, u32)>;

#[derive(Clone, Debug)]
enum Pushed {
    Change(Row),
    Bookmark(u32),
    /// Items, items that opt out, spared keys, version.
    List(Vec<Item>, Vec<Item>, Vec<u8>, u32),
    /// Number of the round, and the known keys in the order of their delivery.
    Resync(u32, Vec<u8>),
}

/// Rows, store version and resume version, initial, completes.
type Batch = (Vec<Row>, Option<u32>, Option<u32>, bool, bool);

/// Rows, store version, resume version, and whether a list is among them.
type Taken = (Vec<Row>, Option<u32>, Option<u32>, bool);

/// Model of a queue of either order: a plain list with linear search.
#[expect(clippy::struct_excessive_bools, reason = "the naive model is naive")]
#[derive(Default)]
struct Model {
    per_key: bool,
    stream: Vec<Element>,
    keyed: Vec<(u8, Vec<Row>)>,
    list_pending: Option<(usize, u32)>,
    last: Option<u32>,
    reached: u32,
    known: State,
    populated: bool,
    synced: bool,
    unannounced: bool,
    merged: u64,
    unknown: u64,
}

enum Element {
    Row(Row),
    Bookmark(u32),
    List(Vec<Row>, u32),
}

fn gone(kind: DeltaKind) -> bool {
    matches!(kind, DeltaKind::Deleted | DeltaKind::Tombstone | DeltaKind::OptedOut { .. })
}

impl Model {
    fn queued(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for element in &self.stream {
            match element {
                Element::Row(row) => rows.push(*row),
                Element::Bookmark(_) => {}
                Element::List(list, _) => rows.extend(list),
            }
        }
        rows.extend(self.keyed.iter().flat_map(|(_, rows)| rows));
        rows
    }

    fn append_keyed(&mut self, row: Row) {
        match self.keyed.iter_mut().find(|(key, _)| *key == row.1) {
            None => self.keyed.push((row.1, vec![row])),
            Some((_, rows)) => {
                let newest = rows.last_mut().unwrap();
                if gone(newest.0) && gone(row.0) {
                    self.merged += 1;
                    if newest.0 == DeltaKind::Tombstone && !matches!(row.0, DeltaKind::OptedOut { .. }) {
                        *newest = row;
                    }
                } else {
                    rows.push(row);
                }
            }
        }
    }

    fn push(&mut self, pushed: &Pushed) {
        let queued = self.queued();
        let newest = |key: u8| queued.iter().rfind(|row| row.1 == key);
        match pushed {
            Pushed::Change(row) => {
                if self.per_key {
                    self.last = Some(row.3);
                    let unknown = newest(row.1).is_none() && !self.known.contains_key(&row.1);
                    if gone(row.0) && unknown {
                        self.unknown += 1;
                        return;
                    }
                    self.append_keyed(*row);
                } else {
                    self.stream.push(Element::Row(*row));
                }
                if !self.populated {
                    (self.populated, self.synced, self.unannounced) = (true, true, true);
                }
            }
            Pushed::Bookmark(version) if self.per_key => self.last = Some(*version),
            Pushed::Bookmark(version) => self.stream.push(Element::Bookmark(*version)),
            Pushed::Resync(round, keys) => {
                let kind = DeltaKind::Sync { round: *round };
                assert_eq!(keys.len(), self.known.len());
                let rows = keys.iter().map(|key| (kind, *key, self.known[key].0, self.known[key].1));
                for row in rows.filter(|row| newest(row.1).is_none_or(|row| row.0.is_sync())).collect::<Vec<Row>>() {
                    if self.per_key { self.append_keyed(row) } else { self.stream.push(Element::Row(row)) }
                }
            }
            Pushed::List(items, opted_out, spared, version) => {
                self.populated = true;
                let items: Vec<Row> = items.iter().map(|&(key, uid, rv)| (DeltaKind::Replaced, key, uid, rv)).collect();
                let opts_out = |key: u8| opted_out.iter().any(|item| item.0 == key);
                let listed = |key: u8| spared.contains(&key) || opts_out(key) || items.iter().any(|row| row.1 == key);
                let present = |key: u8| newest(key).map_or(self.known.contains_key(&key), |row| !gone(row.0));
                let kind = DeltaKind::OptedOut { listed: true };
                let ends = opted_out.iter().filter(|item| present(item.0)).map(|&(key, uid, rv)| (kind, key, uid, rv));
                let ends: Vec<Row> = ends.collect();
                let mut deletions: Vec<Row> = Vec::new();
                let mut seen = Vec::new();
                for row in &queued {
                    if !seen.contains(&row.1) {
                        seen.push(row.1);
                        let newest = newest(row.1).unwrap();
                        if !listed(row.1) && (self.per_key || !gone(newest.0)) {
                            deletions.push((DeltaKind::Tombstone, newest.1, newest.2, newest.3));
                        }
                    }
                }
                for (&key, &(uid, rv)) in &self.known {
                    if !listed(key) && !seen.contains(&key) {
                        deletions.push((DeltaKind::Tombstone, key, uid, rv));
                    }
                }
                if self.per_key {
                    ends.into_iter().chain(items).chain(deletions).for_each(|row| self.append_keyed(row));
                    self.list_pending = Some((self.keyed.len(), *version));
                    self.last = Some(*version);
                } else {
                    deletions.extend(ends.into_iter().chain(items));
                    self.stream.push(Element::List(deletions, *version));
                }
            }
        }
    }

    fn pop(&mut self) -> Option<Batch> {
        let before_sync = !self.synced;
        let (rows, store, resume, list) = if self.per_key { self.pop_keyed()? } else { self.pop_stream()? };
        for &(kind, key, uid, rv) in &rows {
            if gone(kind) {
                self.known.remove(&key)
            } else {
                self.known.insert(key, (uid, rv))
            };
        }
        let completes = before_sync && list || self.unannounced;
        self.unannounced = false;
        self.synced |= completes;
        Some((rows, store, resume, before_sync, completes))
    }

    fn pop_stream(&mut self) -> Option<Taken> {
        let (mut rows, mut store, mut resume): (Vec<Row>, _, _) = (Vec::new(), None, None);
        if self.stream.is_empty() {
            return None;
        }
        while let Some(element) = self.stream.first() {
            match element {
                Element::List(list, version) if rows.is_empty() && resume.is_none() => {
                    let popped = (list.clone(), Some(*version), Some(*version), true);
                    self.stream.remove(0);
                    return Some(popped);
                }
                Element::List(..) => break,
                Element::Row(row) if rows.len() == LEN_MAX || rows.iter().any(|r| r.1 == row.1) => break,
                Element::Row(row) => {
                    if row.0.is_sync() {
                        store = resume;
                    } else {
                        (store, resume) = (None, Some(row.3));
                    }
                    rows.push(*row);
                }
                Element::Bookmark(version) => (store, resume) = (Some(*version), Some(*version)),
            }
            self.stream.remove(0);
        }
        Some((rows, store, resume, false))
    }

    fn pop_keyed(&mut self) -> Option<Taken> {
        if self.keyed.is_empty() && self.last.is_none() {
            return None;
        }
        let list = self.list_pending.take();
        let count = list.map_or(self.keyed.len(), |(count, _)| count); // never a thousand in this test
        let rows = self.keyed.drain(..count).flat_map(|(_, rows)| rows).collect();
        if let Some((_, version)) = list {
            self.reached = version;
        }
        let mut resume = None;
        if self.keyed.is_empty()
            && let Some(last) = self.last.take()
        {
            self.reached = last;
            resume = Some(last);
        }
        Some((rows, Some(self.reached), resume, list.is_some()))
    }
}

/// Cases that must occur at least once.
#[derive(Default)]
struct Hits {
    tombstones: AtomicU64,
    opted_out: AtomicU64,
    recreations: AtomicU64,
    relists_in_relists: AtomicU64,
    merged: AtomicU64,
    unknown: AtomicU64,
    shared: AtomicU64,
    restarts: AtomicU64,
    syncs: AtomicU64,
    rounds_behind_rounds: AtomicU64,
    seeds: AtomicU64,
    spared: AtomicU64,
    compared: AtomicU64,
}

struct World {
    fifo: DeltaFifo,
    model: Model,
    /// State that the pushed events describe.
    described: State,
    /// State after applying the popped deltas.
    replayed: BTreeMap<u8, Object>,
    /// State of the server, from which lists are made.
    server: State,
    /// Objects of the server that opt out.
    opted_out: BTreeSet<u8>,
    clock: u32,
    lists_queued: u32,
    /// Number of the last resync.
    round: u32,
    keep: Keep,
    /// State cached by another unit, until the first list is popped.
    seeds: Option<BTreeMap<u8, Object>>,
    per_key: bool,
}

fn make(key: u8, uid: u32, version: u32) -> Object {
    object(&format!("n/{key:02}"), &uid.to_string(), &version.to_string())
}

fn opted_out(key: u8, uid: u32, version: u32) -> Object {
    let object = make(key, uid, version);
    Object::opted_out(object.identity(), &TypeMeta::new("v1", "Pod"))
}

fn row(kind: DeltaKind, object: &Object) -> Row {
    let number = |text: &str| text.parse().unwrap();
    (kind, object.name().parse().unwrap(), number(object.uid()), number(object.resource_version()))
}

fn state(objects: &BTreeMap<u8, Object>) -> State {
    let numbers = |object| row(DeltaKind::Replaced, object);
    objects.iter().map(|(&key, object)| (key, (numbers(object).2, numbers(object).3))).collect()
}

impl World {
    fn new(per_key: bool, keep: Keep) -> Self {
        let order = if per_key { QueueOrder::PerKey } else { QueueOrder::Stream };
        Self {
            fifo: DeltaFifo::new(order, std::iter::empty(), false).keeping(keep.clone()),
            model: Model { per_key, ..Model::default() },
            described: State::new(),
            replayed: BTreeMap::new(),
            server: State::new(),
            opted_out: BTreeSet::new(),
            clock: 0,
            lists_queued: 0,
            round: 0,
            keep,
            seeds: None,
            per_key,
        }
    }

    /// Changes the server's state of `key`. The watch may miss the change.
    fn change(&mut self, key: u8, dice: u8) -> Row {
        self.clock += 1;
        let version = self.clock;
        match self.server.get(&key).copied() {
            Some((uid, _)) if dice.is_multiple_of(3) => {
                self.server.remove(&key);
                self.opted_out.remove(&key);
                (DeltaKind::Deleted, key, uid, version)
            }
            Some((uid, _)) => {
                self.server.insert(key, (uid, version));
                (self.shown(key, dice, DeltaKind::Updated), key, uid, version)
            }
            // A server may send a superfluous deletion.
            None if dice.is_multiple_of(5) => (DeltaKind::Deleted, key, 0, version),
            None => {
                self.server.insert(key, (version, version));
                (self.shown(key, dice, DeltaKind::Added), key, version, version)
            }
        }
    }

    /// Lets an object opt out at random. Returns the resulting kind of a change.
    fn shown(&mut self, key: u8, dice: u8, kind: DeltaKind) -> DeltaKind {
        if dice % 7 == 1 {
            self.opted_out.insert(key);
            return DeltaKind::OptedOut { listed: false };
        }
        self.opted_out.remove(&key);
        kind
    }

    fn push(&mut self, pushed: Pushed, hits: &Hits) {
        let was_populated = self.model.populated;
        self.model.push(&pushed);
        if !was_populated && self.model.populated && matches!(pushed, Pushed::Change(_)) {
            self.seeds = None; // no unit starts with a change
        }
        let event = match pushed {
            Pushed::Change((kind, key, uid, rv)) => {
                if gone(kind) {
                    self.described.remove(&key);
                } else {
                    self.described.insert(key, (uid, rv));
                }
                let object = make(key, uid, rv);
                match kind {
                    DeltaKind::Added => ReflectorEvent::Added(object),
                    DeltaKind::Updated => ReflectorEvent::Updated(object),
                    DeltaKind::OptedOut { .. } => ReflectorEvent::Updated(opted_out(key, uid, rv)),
                    _ => ReflectorEvent::Deleted(object),
                }
            }
            Pushed::Bookmark(version) => ReflectorEvent::Bookmark(version.to_string().as_str().into()),
            Pushed::Resync(round, _) => ReflectorEvent::Resync { round },
            Pushed::List(items, opted, spared, version) => {
                hits.spared
                    .fetch_add(spared.iter().filter(|key| self.described.contains_key(key)).count() as u64, Relaxed);
                self.described.retain(|key, _| spared.contains(key));
                let listed: State = items.iter().map(|&(key, uid, rv)| (key, (uid, rv))).collect();
                self.described.extend(listed);
                hits.relists_in_relists.fetch_add(u64::from(self.lists_queued > 0), Relaxed);
                self.lists_queued += 1;
                let opted = opted.iter().map(|&(key, uid, rv)| opted_out(key, uid, rv));
                let items = items.iter().map(|&(key, uid, rv)| make(key, uid, rv)).chain(opted).collect();
                // The version differs, but has no meaning here.
                let spared = spared.iter().map(|&key| make(key, 1, version)).collect();
                ReflectorEvent::Replace { items, spared, resource_version: version.to_string().as_str().into() }
            }
        };
        self.fifo.push(event);
    }

    fn pop(&mut self, hits: &Hits) -> bool {
        let expected = self.model.pop();
        let Some(batch) = self.fifo.pop() else {
            assert!(expected.is_none(), "expected {expected:?}");
            return false;
        };
        let (rows, store, resume, initial, completes) = expected.expect("the model has a batch too");
        let popped: Vec<Row> = batch.deltas.iter().map(|d| row(d.kind, &d.object)).collect();
        assert_eq!(popped, rows);
        let mut keys: Vec<u8> = popped.iter().map(|row| row.1).collect();
        keys.dedup();
        let distinct: BTreeSet<u8> = keys.iter().copied().collect();
        assert_eq!(keys.len(), distinct.len(), "the deltas of a key are consecutive: {popped:?}");
        let version = |v: &Option<ResourceVersion>| v.as_ref().map(|v| v.as_str().parse().unwrap_or(0));
        assert_eq!((version(&batch.store_version), version(&batch.resume_version)), (store, resume));
        assert_eq!((batch.initial, batch.completes_initial), (initial, completes));
        self.lists_queued = if self.per_key { 0 } else { self.model.lists_queued() };
        for delta in &batch.deltas {
            let (kind, key, uid, _) = row(delta.kind, &delta.object);
            let before = self.replayed.get(&key);
            if let Some(before) = before {
                hits.recreations.fetch_add(u64::from(!gone(kind) && row(kind, before).2 != uid), Relaxed);
                let replaced_by_same = kind == DeltaKind::Replaced && is_same_state(before, &delta.object);
                let seeded = self.seeds.as_ref().and_then(|seeds| seeds.get(&key));
                let is_seed = seeded.is_some_and(|seed| seed.ptr_eq(before));
                let expected = self.keep.is_whole() && !is_seed;
                let shared = before.ptr_eq(&delta.object);
                assert!(!replaced_by_same || shared == expected, "whether the body is shared: {shared}");
                hits.seeds.fetch_add(u64::from(replaced_by_same && is_seed), Relaxed);
            }
            let is_shared = before.is_some_and(|before| kind == DeltaKind::Replaced && before.ptr_eq(&delta.object));
            hits.shared.fetch_add(u64::from(is_shared), Relaxed);
            hits.tombstones.fetch_add(u64::from(kind == DeltaKind::Tombstone), Relaxed);
            hits.opted_out.fetch_add(u64::from(kind == DeltaKind::OptedOut { listed: true }), Relaxed);
            hits.syncs.fetch_add(u64::from(kind.is_sync()), Relaxed);
            if gone(kind) {
                self.replayed.remove(&key);
            } else {
                self.replayed.insert(key, delta.object.clone());
            }
        }
        if self.model.synced {
            self.seeds = None;
        }
        assert_eq!(self.fifo.known.len(), self.replayed.len());
        for known in self.fifo.known.iter() {
            let kept = self.keep.of(&self.replayed[&row(DeltaKind::Replaced, known).1]);
            assert!(is_same_state(&kept, known) && kept.json() == known.json());
        }
        true
    }

    /// Restarts the unit: queued deltas are lost, popped ones are known. If `replaced`, another unit takes over. It has the same
    /// objects and is not synced.
    fn restart(&mut self, replaced: bool, hits: &Hits) {
        hits.restarts.fetch_add(1, Relaxed);
        self.count(hits);
        let order = if self.per_key { QueueOrder::PerKey } else { QueueOrder::Stream };
        let synced = self.model.synced && !replaced;
        let known = self.replayed.values_mut().map(|object| {
            *object = self.keep.of(object);
            object.clone()
        });
        self.fifo = DeltaFifo::new(order, known, synced).keeping(self.keep.clone());
        self.seeds = (!synced).then(|| self.replayed.clone());
        self.described = state(&self.replayed);
        let known = self.described.clone();
        self.model = Model { per_key: self.per_key, known, populated: synced, synced, ..Model::default() };
        self.lists_queued = 0;
    }

    fn step(&mut self, (action, key, dice): (u8, u8, u8), hits: &Hits) {
        match action {
            0..=44 => {
                let row = self.change(key, dice);
                self.push(Pushed::Change(row), hits);
            }
            // The watch misses this change.
            45..=54 => drop(self.change(key, dice)),
            55..=62 => {
                // Spares nothing while there are seeds: a spared object would keep the seed's body until its next change.
                let is_sparing = dice.is_multiple_of(3) && self.seeds.is_none();
                let spared: Vec<u8> = is_sparing.then_some(key).into_iter().collect();
                let mut items: Vec<_> = self.server.iter().map(|(&key, &(uid, rv))| (key, uid, rv)).collect();
                items.retain(|(key, ..)| !spared.contains(key));
                let (opted, items): (Vec<_>, Vec<_>) =
                    items.into_iter().partition(|(key, ..)| self.opted_out.contains(key));
                self.push(Pushed::List(items, opted, spared, self.clock), hits);
            }
            63..=66 => self.push(Pushed::Bookmark(self.clock), hits),
            67..=69 => {
                // The order does not matter, so the queue's own order is used.
                let keys = self.fifo.known.iter().map(|object| row(DeltaKind::Replaced, object).1).collect();
                self.round += 1;
                let behind = self.model.queued().iter().any(|row| row.0.is_sync());
                hits.rounds_behind_rounds.fetch_add(u64::from(behind), Relaxed);
                self.push(Pushed::Resync(self.round, keys), hits);
            }
            70 => self.restart(dice.is_multiple_of(2), hits),
            _ => drop(self.pop(hits)),
        }
        let items: Vec<_> = (0..key).map(|key| make(key, 1, 1)).collect();
        let missing = self.described.keys().filter(|known| **known >= key).count();
        let comparison = self.fifo.compare(&items);
        assert_eq!((comparison.known, comparison.missing), (self.described.len(), missing));
        hits.compared.fetch_add(missing as u64, Relaxed);
        assert_eq!(self.fifo.len(), self.model.queued().len());
    }

    fn count(&self, hits: &Hits) {
        hits.merged.fetch_add(self.model.merged, Relaxed);
        hits.unknown.fetch_add(self.model.unknown, Relaxed);
    }
}

impl Model {
    fn lists_queued(&self) -> u32 {
        self.stream.iter().map(|element| u32::from(matches!(element, Element::List(..)))).sum()
    }
}

fn run(per_key: bool) -> Hits {
    let hits = Hits::default();
    let config = Config { failure_persistence: None, ..Config::default() };
    let steps = (any::<bool>(), vec((0..100_u8, 0..KEYS, any::<u8>()), 200..240));
    let outcome = TestRunner::new(config).run(&steps, |(stubs, steps)| {
        let keep = if stubs { Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod"))) } else { Keep::Whole };
        let mut world = World::new(per_key, keep);
        for step in steps {
            world.step(step, &hits);
        }
        while world.pop(&hits) {}
        assert_eq!(state(&world.replayed), world.described);
        assert_eq!((world.fifo.queued_bytes(), world.fifo.is_empty()), (0, true));
        world.count(&hits);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    hits
}

impl Hits {
    /// Fails if one of the cases of both orders, or one of `others`, never occurred.
    fn check(&self, others: &[(&str, &AtomicU64)]) {
        let cases = [
            ("tombstones", &self.tombstones),
            ("objects that a list says opt out", &self.opted_out),
            ("re-creations", &self.recreations),
            ("relists inside relists", &self.relists_in_relists),
            ("shared bodies", &self.shared),
            ("restarts", &self.restarts),
            ("syncs", &self.syncs),
            ("rounds behind rounds", &self.rounds_behind_rounds),
            ("bodies of seeds replaced", &self.seeds),
            ("spared objects", &self.spared),
            ("missing objects", &self.compared),
        ];
        for (name, count) in cases.iter().chain(others) {
            let count = count.load(Relaxed);
            println!("{name}: {count}");
            assert!(count > 0, "no case had {name}");
        }
    }
}

/// Rules: F-33, G-2, G-3.
#[test]
fn stream_order_equals_model_and_replays_correctly() {
    run(false).check(&[]);
}

#[test]
fn per_key_order_equals_model_and_replays_correctly() {
    let hits = run(true);
    hits.check(&[("merged deletions", &hits.merged), ("deletions of unknown keys", &hits.unknown)]);
}
