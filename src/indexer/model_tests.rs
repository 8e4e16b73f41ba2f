//! Random batches, crashes and indexes. Compares the indexer with a map, and its postings with its objects.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

use super::{
    Absence, Cause, FirstList, Indexer, IndexerOptions, Recreated, Transaction,
    index_func::IndexFunc,
    store::{EvmapStore, KeyHasher, ReadStore},
    tests::{BadHasher, show},
};
use crate::{
    change::Reached,
    delta_fifo::{Delta, DeltaKind, Deltas, is_same_state, tests::object_with},
    object::{FieldPath, IgnoredPaths, Keep, KeyRef, Object, scan::TypeMeta},
};

/// Cases that must occur at least once.
#[derive(Default)]
struct Hits {
    tombstones: Cell<u64>,
    recreations: Cell<u64>,
    relists_in_relists: Cell<u64>,
    restarts: Cell<u64>,
    collisions: Cell<u64>,
    suppressed: Cell<u64>,
    late_indexes: Cell<u64>,
    seeds: Cell<u64>,
    replaced_bodies: Cell<u64>,
    lost_olds: Cell<u64>,
    take_overs: Cell<u64>,
    downtimes: Cell<u64>,
    opted_out: Cell<u64>,
    refreshed: Cell<u64>,
}

fn hit(counter: &Cell<u64>, times: usize) {
    counter.set(counter.get() + times as u64);
}

type Func = fn(&Object) -> Vec<String>;

/// One step: its kind, and three random numbers.
type Step = (u8, u8, u8, u8);

/// Returns zero to two values that change with the version.
fn node(object: &Object) -> Vec<String> {
    let version: u32 = object.resource_version().parse().unwrap();
    (0..version % 3).map(|n| format!("node-{}", (version + n) % 4)).collect()
}

fn keep(stubs: bool) -> Keep {
    if stubs { Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod"))) } else { Keep::Whole }
}

fn cause_of(kind: DeltaKind, listed: Cause) -> String {
    match kind {
        DeltaKind::Replaced | DeltaKind::Tombstone | DeltaKind::OptedOut { listed: true } => format!("{listed:?}"),
        DeltaKind::Sync { round } => format!("Resync {{ round: {round} }}"),
        _ => "Watch".to_owned(),
    }
}

fn same_status(old: &Object, object: &Object) -> bool {
    old.value().unwrap()["status"] == object.value().unwrap()["status"]
}

fn zone(object: &Object) -> Vec<String> {
    vec![format!("zone-{}", object.uid().len() % 2), object.name().to_owned()]
}

struct World<H: KeyHasher> {
    indexer: Indexer<H>,
    options: IndexerOptions,
    first_list: FirstList,
    absence: Absence,
    /// Set while no data has arrived since the cache was saved.
    unheard: bool,
    cache: BTreeMap<String, Object>,
    indexes: Vec<(&'static str, Func)>,
    synced: bool,
    clock: u32,
}

impl<H: KeyHasher> World<H> {
    fn new(hasher: H, options: IndexerOptions) -> Self {
        let namespace: Func = |o| if o.namespace().is_empty() { vec![] } else { vec![o.namespace().to_owned()] };
        let store = EvmapStore::with_hasher(hasher, [IndexFunc::custom("node", node)]);
        let indexes = vec![("namespace", namespace), ("node", node as _)];
        Self {
            indexer: Indexer::new(store, options.clone()),
            options,
            first_list: FirstList::default(),
            absence: Absence::default(),
            unheard: false,
            cache: BTreeMap::new(),
            indexes,
            synced: false,
            clock: 0,
        }
    }

    /// Returns a state of one of twelve keys, sometimes with another uid or the cached version.
    fn object(&mut self, key: u8, dice: u8) -> Object {
        self.clock += 1;
        let key = match key % 12 {
            key @ 0..6 => format!("n/{key}"),
            key @ 6..10 => format!("m/{key}"),
            key => format!("{key}"),
        };
        // The body differs each time, as if other parts were removed.
        let (version, body) =
            (self.clock.to_string(), format!(r#","spec":{},"status":{}"#, self.clock, self.clock % 4 / 3));
        match self.cache.get(&key) {
            Some(cached) if dice < 40 => object_with(&key, cached.uid(), cached.resource_version(), &body),
            Some(cached) if dice < 200 => object_with(&key, cached.uid(), &version, &body),
            _ => object_with(&key, &format!("u{version}"), &version, &body),
        }
    }

    fn watch_batch(&mut self, (_, key, dice, len): Step) -> Deltas {
        let mut deltas = Vec::new();
        for n in 0..=len % 6 {
            let sync = DeltaKind::Sync { round: u32::from(len) };
            let opted_out = DeltaKind::OptedOut { listed: false };
            let kind = [DeltaKind::Added, DeltaKind::Updated, DeltaKind::Deleted, sync, opted_out];
            let object = self.object(key.wrapping_add(n.wrapping_mul(dice)), dice.wrapping_mul(n + 1));
            deltas.push(Delta { kind: kind[usize::from(dice.wrapping_add(n) % 5)], object });
        }
        deltas.sort_by_cached_key(|delta| delta.object.key().to_owned());
        let told = deltas.iter().any(|delta| !matches!(delta.kind, DeltaKind::Sync { .. }));
        let resume_version = told.then(|| self.clock.to_string().as_str().into());
        Deltas { deltas, resume_version, ..Deltas::default() }
    }

    /// Returns a list, or two lists in one batch as in per-key order.
    fn list_batch(&mut self, (_, key, dice, len): Step, hits: &Hits) -> Deltas {
        let mut deltas = Vec::new();
        let lists = 1 + usize::from(len % 4 == 0);
        let mut shadow = self.cache.clone();
        for list in 0..lists {
            let mut items = BTreeMap::new();
            for n in 0..len % 12 {
                let object = self.object(key.wrapping_add(n), dice.wrapping_mul(n + 7));
                items.insert(object.key().to_string(), object);
            }
            for (_, object) in shadow.iter().filter(|(key, _)| !items.contains_key(*key)) {
                deltas.push(Delta { kind: DeltaKind::Tombstone, object: object.clone() });
                hit(&hits.tombstones, 1);
            }
            let opts_out =
                |o: &Object| shadow.contains_key(&o.key().to_string()) && o.resource_version().ends_with('7');
            let (opted, shown): (BTreeMap<_, _>, BTreeMap<_, _>) = items.into_iter().partition(|(_, o)| opts_out(o));
            hit(&hits.opted_out, opted.len());
            let ends = opted.into_values().map(|object| Delta { kind: DeltaKind::OptedOut { listed: true }, object });
            deltas.extend(ends);
            deltas.extend(shown.values().map(|o| Delta { kind: DeltaKind::Replaced, object: o.clone() }));
            shadow = shown;
            hit(&hits.relists_in_relists, usize::from(list > 0));
        }
        if lists > 1 {
            deltas.sort_by_cached_key(|delta| delta.object.key().to_owned());
        }
        Deltas {
            deltas,
            store_version: Some(self.clock.to_string().as_str().into()),
            resume_version: None,
            initial: !self.synced,
            completes_initial: !self.synced,
        }
    }

    /// Returns the expected changes of the batch, and updates `cache`.
    fn expect(&mut self, deltas: &Deltas, hits: &Hits) -> String {
        let (mut words, mut suppressed) = (Vec::new(), 0);
        let hidden = !self.options.keep.is_whole() || deltas.initial && !self.first_list.bodies;
        let later = if self.unheard { Cause::Downtime } else { Cause::Relist };
        let listed = if deltas.initial { self.first_list.cause } else { later };
        let replaces_bodies = deltas.initial && listed != Cause::Initial;
        for Delta { kind, object } in &deltas.deltas {
            let key = object.key().to_string();
            let word = |o: &Object| format!("{}{}", o.name(), o.resource_version());
            let cause = cause_of(*kind, listed);
            let old = self.cache.get(&key).cloned();
            let is_list = matches!(kind, DeltaKind::Replaced | DeltaKind::Tombstone);
            hit(&hits.downtimes, usize::from(is_list && listed == Cause::Downtime));
            let another = old.as_ref().is_some_and(|old| old.uid() != object.uid());
            let recreated = another && self.options.recreated == Recreated::DeleteAdd;
            hit(&hits.recreations, usize::from(recreated && !kind.is_deletion()));
            match (kind.is_deletion(), old) {
                (true, None) => suppressed += usize::from(!matches!(kind, DeltaKind::OptedOut { .. })),
                (true, Some(old)) => {
                    self.cache.remove(&key);
                    let opted_out = matches!(kind, DeltaKind::OptedOut { .. });
                    words.push(match (self.options.selective, recreated) {
                        (_, false) if opted_out => format!("x{} {cause}", word(&old)),
                        (true, false) if hidden => format!("x{} {cause}", word(object)),
                        (true, _) => format!("x{} {cause}", word(&old)),
                        (false, true) => format!("!{} {cause}", word(&old)),
                        (false, false) if *kind == DeltaKind::Tombstone => format!("!{} {cause}", word(object)),
                        (false, false) => format!("-{} {cause}", word(object)),
                    });
                }
                (false, old) => {
                    match old {
                        None => words.push(format!("+{} {cause}", word(object))),
                        Some(old) if is_same_state(&old, object) => {
                            words.push(format!("={} {cause}", word(&old)));
                            if !replaces_bodies {
                                continue;
                            }
                            hit(&hits.replaced_bodies, 1);
                        }
                        Some(old) if recreated => {
                            words.push(format!("!{} {cause}", word(&old)));
                            words.push(format!("+{} {cause}", word(object)));
                        }
                        Some(old)
                            if !hidden && !another && self.options.ignored.is_some() && same_status(&old, object) =>
                        {
                            hit(&hits.refreshed, 1);
                            words.push(format!("~{}", word(object)));
                        }
                        Some(_) if hidden => {
                            hit(&hits.lost_olds, 1);
                            words.push(format!("?>{} {cause}", word(object)));
                        }
                        Some(old) => words.push(format!("{}>{} {cause}", word(&old), word(object))),
                    }
                    self.cache.insert(key, self.options.keep.of(object));
                }
            }
        }
        self.unheard &= deltas.deltas.iter().all(|delta| matches!(delta.kind, DeltaKind::Sync { .. }));
        if deltas.completes_initial {
            self.synced = true;
            words.push(format!("synced {} {}", self.cache.len(), self.clock));
        }
        hit(&hits.suppressed, suppressed);
        words.join(", ")
    }

    fn step(&mut self, step: Step, hits: &Hits) {
        let deltas = match step.0 {
            0..=2 => return self.add_index(hits),
            3..=5 => return self.reseed(step, hits),
            6..=20 => self.list_batch(step, hits),
            _ => self.watch_batch(step),
        };
        let expected = self.expect(&deltas, hits);
        let transaction = self.indexer.plan(deltas);
        assert_eq!(show(&transaction.changes), expected);
        assert_eq!(transaction.objects, self.cache.len() as u64);
        assert_eq!(transaction.completes_initial(), expected.contains("synced"));
        // A crash may come at each of these points. The journal has the transaction, and it is committed again.
        match step.3 % 9 {
            0 => self.indexer.discard(),
            1 => self.indexer.commit(&transaction),
            2 => {
                self.indexer.commit(&transaction);
                self.indexer.discard();
            }
            3 => {
                self.indexer.commit(&transaction);
                self.indexer.publish();
            }
            4 => {
                // The actor has ended, the store is kept.
                let nothing = self.make(self.empty_store());
                let store = std::mem::replace(&mut self.indexer, nothing).store;
                self.indexer = self.make(store);
            }
            5 => self.take_over(&transaction, hits),
            _ => {}
        }
        hit(&hits.restarts, usize::from(step.3 % 9 < 6));
        self.indexer.commit(&transaction);
        self.indexer.publish();
        if step.3.is_multiple_of(5) {
            self.indexer.publish_idle();
        }
        if step.2.is_multiple_of(3) {
            self.check(hits);
        }
    }

    fn make(&self, store: EvmapStore<H>) -> Indexer<H> {
        let indexer = Indexer::new(store, self.options.clone());
        indexer.with_first_list(self.first_list).with_absence(self.absence.clone())
    }

    fn empty_store(&self) -> EvmapStore<H> {
        let funcs: Vec<_> = self.indexes.iter().skip(1).map(|(name, func)| IndexFunc::custom(name, *func)).collect();
        EvmapStore::with_hasher(self.hasher(), funcs)
    }

    /// Replaces an indexer that a hung actor holds, with the objects that readers see.
    fn take_over(&mut self, transaction: &Transaction, hits: &Hits) {
        let mut store = self.empty_store();
        self.indexer.objects().into_iter().for_each(|object| store.put(&object));
        let meta = self.indexer.store().reader().read(|snapshot| snapshot.meta().clone());
        let (store_version, resume_version) = (meta.store_version, meta.resume_version);
        store.reach(Reached { generation: meta.generation + 1, store_version, resume_version, synced: meta.synced });
        store.publish();
        self.indexer = self.make(store);
        self.indexer.commit(transaction);
        hit(&hits.take_overs, 1);
    }

    /// Replaces the unit by one with other options. It continues with the cache, or lists its own scope.
    fn reseed(&mut self, (_, key, dice, len): Step, hits: &Hits) {
        let had_bodies = self.options.keep.is_whole() && (self.synced || self.first_list.bodies);
        let resumes = self.synced && len.is_multiple_of(2);
        if !resumes {
            self.options.selective = dice.is_multiple_of(2);
            self.options.keep = keep(dice.is_multiple_of(3));
            self.first_list = FirstList { cause: Cause::Reload, bodies: had_bodies, complete: false };
            self.synced = false;
            let left = format!("n/{}", key % 6);
            self.cache.retain(|key, _| *key != left);
        }
        self.unheard = resumes && dice.is_multiple_of(2);
        self.absence = if self.unheard { Absence::begun() } else { Absence::default() };
        let mut store = self.empty_store();
        for object in self.cache.values_mut() {
            *object = self.options.keep.of(object);
            store.put(object);
        }
        store.reach(Reached { synced: resumes, ..Reached::default() });
        store.publish();
        self.indexer = self.make(store);
        hit(&hits.seeds, 1);
        self.check(hits);
    }

    fn hasher(&self) -> H {
        self.indexer.store().hasher.clone()
    }

    fn add_index(&mut self, hits: &Hits) {
        let added = self.indexer.add_indexers(vec![IndexFunc::custom("zone", zone)]);
        assert_eq!(added.is_err(), self.indexes.len() == 3);
        if added.is_ok() {
            hit(&hits.late_indexes, 1);
            self.indexes.push(("zone", zone));
        }
        self.check(hits);
    }

    fn check(&self, hits: &Hits) {
        self.indexer.store().reader().read(|snapshot| {
            let mut found = BTreeMap::new();
            snapshot.for_each(&mut |object| {
                assert!(found.insert(object.key().to_string(), object.clone()).is_none(), "listed twice");
            });
            assert_eq!(found.len(), self.cache.len());
            let mut bytes = 0;
            for (key, object) in &self.cache {
                assert!(is_same_state(&found[key], object) && found[key].json() == object.json());
                assert!(is_same_state(snapshot.get(object.key()).expect("it is listed"), object));
                bytes += object.size_bytes() as u64;
            }
            let absent = KeyRef { namespace: "none", name: "none" };
            let keys: Vec<_> = self.cache.values().flat_map(|object| [object.key(), absent]).collect();
            let one_by_one: Vec<_> = keys.iter().map(|key| snapshot.get(*key).map(std::ptr::from_ref)).collect();
            let at_once = snapshot.get_all(&mut keys.into_iter());
            assert!(at_once.into_iter().map(|found| found.map(std::ptr::from_ref)).eq(one_by_one), "many keys at once");
            let meta = snapshot.meta();
            assert_eq!((meta.objects, meta.bytes, meta.synced), (self.cache.len() as u64, bytes, self.synced));
            for (id, (name, func)) in (0..).zip(&self.indexes) {
                let mut postings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
                for (key, object) in &self.cache {
                    for value in func(object) {
                        postings.entry(value).or_default().insert(key.clone());
                    }
                }
                let mut values = BTreeSet::new();
                snapshot.for_each_value(id, &mut |value| assert!(values.insert(value.to_owned()), "{value} twice"));
                assert!(values.iter().eq(postings.keys()), "{name}: {values:?} {postings:?}");
                for (value, expected) in postings {
                    let mut keys = BTreeSet::new();
                    snapshot.for_each_with(id, &value, &mut |o| assert!(keys.insert(o.key().to_string())));
                    assert_eq!(keys, expected, "{name}={value}");
                }
            }
        });
        hit(&hits.collisions, self.indexer.store().collisions());
    }
}

fn run<H: KeyHasher>(hasher: impl Fn() -> H) -> Hits {
    let hits = Hits::default();
    let config = Config { failure_persistence: None, ..Config::default() };
    let steps = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        vec((0..100_u8, any::<u8>(), any::<u8>(), any::<u8>()), 200..220),
    );
    let outcome = TestRunner::new(config).run(&steps, |(selective, update, stubs, ignores, steps)| {
        let recreated = if update { Recreated::Update } else { Recreated::DeleteAdd };
        let spec = FieldPath::parse("spec").unwrap();
        let ignored = ignores.then(|| Arc::new(IgnoredPaths::new(&[spec])));
        let options = IndexerOptions { selective, recreated, ignored, keep: keep(stubs) };
        let mut world = World::new(hasher(), options);
        for step in steps {
            world.step(step, &hits);
        }
        world.check(&hits);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let counts = [
        ("tombstones", &hits.tombstones),
        ("re-creations", &hits.recreations),
        ("relists inside relists", &hits.relists_in_relists),
        ("restarts between append and publish", &hits.restarts),
        ("suppressed deletions", &hits.suppressed),
        ("indexes added late", &hits.late_indexes),
        ("seeds", &hits.seeds),
        ("bodies replaced by a first list", &hits.replaced_bodies),
        ("updates without the state before", &hits.lost_olds),
        ("take-overs", &hits.take_overs),
        ("differences of a downtime", &hits.downtimes),
        ("objects that a list says opt out", &hits.opted_out),
        ("updates of what is ignored", &hits.refreshed),
    ];
    for (name, count) in counts {
        println!("{name}: {}", count.get());
        assert!(count.get() > 0, "no case had {name}");
    }
    hits
}

/// Rules: F-41, I-2.
#[test]
fn indexer_equals_plain_map_with_consistent_postings() {
    run(|| foldhash::quality::FixedState::with_seed(5));
}

#[test]
fn indexer_equals_plain_map_with_colliding_hashes() {
    let hits = run(BadHasher::default);
    println!("slots with a collision: {}", hits.collisions.get());
    assert!(hits.collisions.get() > 0);
}
