use std::{
    hash::{BuildHasher, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    Absence, Cause, Change, FirstList, Indexer, IndexerOptions, Recreated, Retirement, Transaction,
    index_func::IndexFunc,
    retirement,
    store::{EvmapStore, IndexExists, KeyHasher, Meta, ReadStore, Snapshot},
};
use crate::{
    delta_fifo::{
        Delta, DeltaFifo, DeltaKind, Deltas, QueueOrder,
        tests::{object, object_with},
    },
    object::{
        FieldPath, IgnoredPaths, Keep, Object, ObjectKey,
        packer::{Compression, Packer, testing as packing},
        scan::TypeMeta,
    },
    reflector::ReflectorEvent,
};

/// Hasher with eight hashes for everything, so that objects and postings often collide.
#[derive(Clone, Default)]
pub(crate) struct BadHasher(foldhash::quality::FixedState);

pub(crate) struct Few(<foldhash::quality::FixedState as BuildHasher>::Hasher);

impl BuildHasher for BadHasher {
    type Hasher = Few;

    fn build_hasher(&self) -> Few {
        Few(self.0.build_hasher())
    }
}

impl Hasher for Few {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.finish() & 7
    }
}

fn batch(deltas: Vec<(DeltaKind, Object)>) -> Deltas {
    let deltas = deltas.into_iter().map(|(kind, object)| Delta { kind, object }).collect();
    Deltas { deltas, ..Deltas::default() }
}

fn apply<H: KeyHasher>(indexer: &mut Indexer<H>, deltas: Deltas) -> Transaction {
    let transaction = indexer.plan(deltas);
    indexer.commit(&transaction);
    indexer.publish();
    transaction
}

fn indexer(options: IndexerOptions, objects: &[Object]) -> Indexer {
    let mut indexer = Indexer::new(EvmapStore::new(1, []), options);
    apply(&mut indexer, batch(objects.iter().map(|object| (DeltaKind::Replaced, object.clone())).collect()));
    indexer
}

pub(crate) fn show(changes: &[Change]) -> String {
    let name = |o: &Object| format!("{}{}", o.name(), o.resource_version());
    let words = changes.iter().map(|change| match change {
        Change::Added { object, cause } => format!("+{} {cause:?}", name(object)),
        Change::Updated { object, cause, .. } => {
            let old = change.old().map_or("?".to_owned(), name);
            format!("{old}>{} {cause:?}", name(object))
        }
        Change::Deleted { object, tombstone: false, cause } => format!("-{} {cause:?}", name(object)),
        Change::Deleted { object, tombstone: true, cause } => format!("!{} {cause:?}", name(object)),
        Change::Removed { object, cause } => format!("x{} {cause:?}", name(object)),
        Change::Unchanged { object, cause } => format!("={} {cause:?}", name(object)),
        Change::Refreshed { object } => format!("~{}", name(object)),
        Change::Synced { objects, resource_version } => format!("synced {objects} {resource_version}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

use DeltaKind::{Added, Deleted, Replaced, Sync, Tombstone, Updated};

#[track_caller]
fn check(options: IndexerOptions, deltas: Vec<(DeltaKind, Object)>, expected: &str) {
    let mut indexer = indexer(options, &[object("n/a", "a", "1")]);
    assert_eq!(show(&apply(&mut indexer, batch(deltas)).changes), expected);
}

fn plain(deltas: Vec<(DeltaKind, Object)>, expected: &str) {
    check(IndexerOptions::default(), deltas, expected);
}

fn a(version: &str) -> Object {
    object("n/a", "a", version)
}

fn b(version: &str) -> Object {
    object("n/b", "b", version)
}

/// Rules: F-2, C-2.
#[test]
fn cache_decides_between_added_and_updated() {
    plain(vec![(Added, a("2"))], "a1>a2 Watch");
    plain(vec![(Updated, b("2"))], "+b2 Watch");
    plain(vec![(Replaced, a("2")), (Replaced, b("2"))], "a1>a2 Relist, +b2 Relist");
}

/// Rule: D-17.
#[test]
fn first_list_after_seed_has_downtime_cause() {
    let bookmark = || Deltas { resume_version: Some("9".into()), ..Deltas::default() };
    let nothing = || batch(vec![]);
    for (before, cause) in [
        (vec![], "Downtime"),
        (vec![batch(vec![(Sync { round: 1 }, a("1"))])], "Downtime"),
        (vec![nothing()], "Downtime"),
        (vec![bookmark()], "Relist"),
        (vec![batch(vec![(Updated, a("1"))])], "Relist"),
        (vec![batch(vec![(Replaced, a("1"))])], "Relist"),
    ] {
        let absence = Absence::begun();
        let mut indexer = indexer(IndexerOptions::default(), &[a("1")]).with_absence(absence.clone());
        let told = before.clone();
        for deltas in before {
            apply(&mut indexer, deltas);
        }
        assert_eq!(absence.lasts(), cause == "Downtime", "{told:?}");
        // The actors are restarted, and another indexer takes over.
        let store = indexer.store;
        let mut indexer = Indexer::new(store, IndexerOptions::default()).with_absence(absence.clone());
        let list = batch(vec![(Tombstone, a("1")), (Replaced, b("2"))]);
        assert_eq!(show(&indexer.plan(list.clone()).changes), format!("!a1 {cause}, +b2 {cause}"), "{told:?}");
        assert_eq!(show(&apply(&mut indexer, list).changes), format!("!a1 {cause}, +b2 {cause}"), "not by planning");
        assert_eq!(show(&apply(&mut indexer, batch(vec![(Tombstone, b("2"))])).changes), "!b2 Relist");
    }
}

#[test]
fn watched_change_of_downtime_has_downtime_cause() {
    for (is_named, asked, expected) in [
        (false, Some("5"), "a1>a2 Watch, -a4 Watch, +b5 Watch, +c6 Watch"),
        (true, None, "a1>a2 Watch, -a4 Watch, +b5 Watch, +c6 Watch"),
        (true, Some("5"), "a1>a2 Downtime, -a4 Downtime, +b5 Downtime, +c6 Watch"),
        (true, Some("opaque"), "a1>a2 Watch, -a4 Watch, +b5 Watch, +c6 Watch"),
    ] {
        let absence = Absence::begun();
        let mut indexer = indexer(IndexerOptions::default(), &[a("1")]).with_absence(absence.clone());
        if is_named {
            absence.be_named();
        }
        if let Some(version) = asked {
            absence.server_is_at(&version.into());
        }
        let watched = vec![(Updated, a("2")), (Deleted, a("4")), (Added, b("5")), (Added, object("c", "c", "6"))];
        assert_eq!(show(&apply(&mut indexer, batch(watched)).changes), expected);
        absence.server_is_at(&"9".into());
        let later = batch(vec![(Updated, object("c", "c", "8")), (Tombstone, b("5"))]);
        assert_eq!(show(&apply(&mut indexer, later).changes), "c6>c8 Watch, !b5 Relist", "it is over");
    }
}

/// Rule: C-3.
#[test]
fn deletion_carries_final_state_or_is_tombstone() {
    plain(vec![(Deleted, a("9"))], "-a9 Watch");
    plain(vec![(Tombstone, a("1"))], "!a1 Relist");
    plain(vec![(Deleted, a("9").unread())], "!a1 Watch");
}

/// Rules: C-11, S-4, D-8.
#[test]
fn equal_version_is_unchanged_and_keeps_cached_body() {
    plain(vec![(Replaced, a("1"))], "=a1 Relist");
    plain(vec![(Sync { round: 7 }, a("1"))], "=a1 Resync { round: 7 }");
    plain(vec![(Updated, a("1"))], "=a1 Watch");
}

/// Returns an indexer before its first list, whose cache has `n/a` and `n/b` of another unit.
fn seeded(options: IndexerOptions, first_list: FirstList) -> Indexer {
    let mut store = EvmapStore::new(1, []);
    for object in [a("1"), b("1")] {
        store.put(&options.keep.of(&object));
    }
    store.publish();
    Indexer::new(store, options).with_first_list(first_list)
}

fn first(deltas: Vec<(DeltaKind, Object)>) -> Deltas {
    let store_version = Some("9".into());
    Deltas { initial: true, completes_initial: true, store_version, ..batch(deltas) }
}

fn relisted() -> Vec<(DeltaKind, Object)> {
    let body = |key: &str, version: &str| object_with(key, &key[2..], version, r#","spec":"new""#);
    vec![(Tombstone, a("1")), (Replaced, body("n/b", "1")), (Replaced, body("n/c", "5"))]
}

fn stub() -> Keep {
    Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod")))
}

#[test]
fn first_list_over_seed_replaces_bodies_with_cause() {
    let reload = FirstList { cause: Cause::Reload, ..FirstList::default() };
    for (selective, gone) in [(false, "!a1"), (true, "xa1")] {
        let mut indexer = seeded(IndexerOptions { selective, ..<_>::default() }, reload);
        let transaction = apply(&mut indexer, first(relisted()));
        assert_eq!(show(&transaction.changes), format!("{gone} Reload, =b1 Reload, +c5 Reload, synced 2 9"));
        let body = |indexer: &Indexer| indexer.store().get(b("1").key()).unwrap().value().unwrap()["spec"].clone();
        assert_eq!(body(&indexer), "new");
        assert_eq!(transaction.changes[1].object().unwrap().value().unwrap()["spec"], "new", "it is what is shown");
        let again = apply(&mut indexer, batch(vec![(Replaced, b("1")), (Replaced, b("2"))]));
        assert_eq!(show(&again.changes), "=b1 Relist, b1>b2 Relist");
    }
}

#[test]
fn watch_events_batched_with_list_keep_watch_cause() {
    let reload = FirstList { cause: Cause::Reload, ..FirstList::default() };
    let deltas = vec![(Replaced, a("1")), (Updated, a("2")), (Deleted, b("3"))];
    let transaction = apply(&mut seeded(IndexerOptions::default(), reload), first(deltas));
    assert_eq!(show(&transaction.changes), "=a1 Reload, a1>a2 Watch, -b3 Watch, synced 1 9");
}

#[test]
fn seed_stubs_are_not_shown_as_old() {
    let reload = FirstList { cause: Cause::Reload, bodies: false, complete: true };
    let mut indexer = seeded(IndexerOptions::default(), reload);
    let transaction = apply(&mut indexer, first(vec![(Replaced, a("2")), (Replaced, b("1"))]));
    assert_eq!(show(&transaction.changes), "?>a2 Reload, =b1 Reload, synced 2 9");
    assert!(transaction.changes[0].lacks_old() && !transaction.changes[1].lacks_old());
    assert_eq!(show(&apply(&mut indexer, batch(vec![(Updated, a("3"))])).changes), "a2>a3 Watch");
}

#[test]
fn stub_cache_emits_whole_events() {
    let options = IndexerOptions { keep: stub(), ..<_>::default() };
    let mut indexer = seeded(options.clone(), FirstList::default());
    let whole = object_with("n/a", "a", "2", r#","spec":"big""#);
    let transaction = apply(&mut indexer, batch(vec![(Updated, whole.clone()), (Tombstone, b("1"))]));
    assert_eq!(show(&transaction.changes), "?>a2 Watch, !b1 Relist");
    assert!(transaction.changes[0].object().unwrap().ptr_eq(&whole));
    let kept = indexer.objects();
    assert_eq!((kept.len(), kept[0].json().into_owned()), (1, options.keep.of(&whole).json().into_owned()));
    assert_eq!(show(&apply(&mut indexer, batch(vec![(Replaced, whole.clone())])).changes), "=a2 Relist");
    assert!(kept[0].ptr_eq(&indexer.objects()[0]), "S-4: nothing is stored for what is unchanged");
    let selective = IndexerOptions { selective: true, ..options };
    let gone = apply(&mut seeded(selective.clone(), FirstList::default()), batch(vec![(Deleted, whole.clone())]));
    assert!(gone.changes[0].object().unwrap().ptr_eq(&whole), "a stub would say less");
    let other = object_with("n/a", "other", "2", "");
    let gone = apply(&mut seeded(selective, FirstList::default()), batch(vec![(Deleted, other)]));
    assert_eq!(gone.changes[0].object().unwrap().uid(), "a", "D-7: of the other one nothing was shown");
}

#[test]
fn completing_change_reports_total_of_all_units() {
    let mut transaction = apply(&mut indexer(<_>::default(), &[]), first(vec![(Replaced, a("1"))]));
    assert!(transaction.completes_initial());
    transaction.set_total(Some(7));
    assert_eq!(show(&transaction.changes), "+a1 Initial, synced 7 9");
    transaction.set_total(None);
    assert_eq!(show(&transaction.changes), "+a1 Initial");
    transaction.set_total(None);
    assert_eq!(transaction.changes.len(), 1, "nothing else is left out");
}

/// Rules: K-3, D-7.
#[test]
fn new_uid_is_tombstone_and_addition() {
    let again = || object("n/a", "other", "5");
    plain(vec![(Updated, again())], "!a1 Watch, +a5 Watch");
    plain(vec![(Deleted, again())], "!a1 Watch");
    let update = IndexerOptions { recreated: Recreated::Update, ..<_>::default() };
    check(update.clone(), vec![(Updated, again())], "a1>a5 Watch");
    check(update, vec![(Deleted, again())], "-a5 Watch");
    plain(vec![(Updated, object("n/a", "", "5"))], "a1>a5 Watch");
}

/// Rules: G-7, D-10.
#[test]
fn deletion_of_uncached_object_is_suppressed() {
    let mut indexer = indexer(<_>::default(), &[]);
    let transaction = apply(&mut indexer, batch(vec![(Deleted, a("1")), (Tombstone, b("1"))]));
    assert_eq!(show(&transaction.changes), "");
}

/// Rule: H-1.
#[test]
fn selective_unit_shows_departed_object_as_removed() {
    let selective = IndexerOptions { selective: true, ..<_>::default() };
    check(selective.clone(), vec![(Deleted, a("9"))], "xa1 Watch");
    check(selective.clone(), vec![(Tombstone, a("1"))], "xa1 Relist");
    check(selective, vec![(Updated, object("n/a", "other", "5"))], "!a1 Watch, +a5 Watch");
}

/// Rule: C-6.
#[test]
fn one_batch_may_touch_a_key_several_times() {
    let deltas = vec![(Updated, a("2")), (Deleted, a("3")), (Deleted, a("3")), (Added, a("4")), (Replaced, a("4"))];
    plain(deltas, "a1>a2 Watch, -a3 Watch, +a4 Watch, =a4 Relist");
}

/// Rules: F-53, D-13.
#[test]
fn first_list_is_initial_and_ends_with_synced() {
    let mut indexer = Indexer::new(EvmapStore::new(1, []), <_>::default());
    let first = |version: &str| Deltas {
        store_version: Some("5".into()),
        resume_version: Some("5".into()),
        initial: true,
        completes_initial: true,
        ..batch(vec![(Replaced, a(version)), (Replaced, b("1"))])
    };
    let transaction = apply(&mut indexer, first("1"));
    assert_eq!(show(&transaction.changes), "+a1 Initial, +b1 Initial, synced 2 5");
    let meta = indexer.store().meta().clone();
    assert_eq!((meta.synced, meta.objects, meta.resume_version.as_str()), (true, 2, "5"));
    assert_eq!(show(&apply(&mut indexer, first("1")).changes), "=a1 Initial, =b1 Initial");
}

/// Rules: A-5, R-62, I-11, C-11.
#[test]
fn store_version_is_that_of_last_write() {
    let mut indexer = indexer(<_>::default(), &[]);
    let mut version = |deltas: Deltas| {
        apply(&mut indexer, deltas);
        indexer.store().meta().store_version.to_string()
    };
    assert_eq!(version(batch(vec![(Added, a("3")), (Added, b("4"))])), "4");
    assert_eq!(version(batch(vec![(Deleted, b("9"))])), "9");
    assert_eq!(version(batch(vec![(Sync { round: 1 }, a("3"))])), "9");
    assert_eq!(version(batch(vec![(Updated, object("n/a", "a", ""))])), "9");
    assert_eq!(version(Deltas { store_version: Some("12".into()), ..batch(vec![]) }), "12");
    assert_eq!(version(Deltas { store_version: Some("".into()), ..batch(vec![(Added, b("1"))]) }), "12");
}

fn keys(meta_of: &impl ReadStore, index: &str, value: &str) -> Vec<String> {
    let mut keys = meta_of.read(|snapshot: &dyn Snapshot| {
        let mut keys = Vec::new();
        let id = snapshot.meta().index_id(index).expect(index);
        snapshot.for_each_with(id, value, &mut |object| keys.push(object.key().to_string()));
        keys
    });
    keys.sort();
    keys
}

fn values(reader: &impl ReadStore, index: &str) -> Vec<String> {
    let mut values = reader.read(|snapshot| {
        let mut values = Vec::new();
        let id = snapshot.meta().index_id(index).expect(index);
        snapshot.for_each_value(id, &mut |value| values.push(value.to_owned()));
        values
    });
    values.sort();
    values
}

/// Rule: I-3.
#[test]
fn index_value_without_objects_disappears() {
    let mut indexer = indexer(<_>::default(), &[a("1"), object("m/c", "c", "1")]);
    let reader = indexer.store().reader();
    assert_eq!(values(&reader, "namespace"), ["m", "n"]);
    apply(&mut indexer, batch(vec![(Deleted, object("m/c", "c", "2"))]));
    assert_eq!((values(&reader, "namespace"), keys(&reader, "namespace", "m")), (vec!["n".into()], vec![]));
}

/// Rules: I-4, C-10.
#[test]
fn readers_see_whole_batch_after_publish() {
    let mut indexer = indexer(<_>::default(), &[a("1")]);
    let reader = indexer.store().reader();
    let transaction = indexer.plan(batch(vec![(Deleted, a("2")), (Added, b("3"))]));
    indexer.commit(&transaction);
    assert_eq!(keys(&reader, "namespace", "n"), ["n/a"]);
    assert_eq!(indexer.store().get(ObjectKey::new("n", "b").as_ref()).map(|o| o.uid().to_owned()), Some("b".into()));
    indexer.publish();
    assert_eq!(keys(&reader, "namespace", "n"), ["n/b"]);
}

/// Rule: I-2.
#[test]
fn colliding_indexes_stay_separate_and_leave_nothing() {
    let by_name = |object: &crate::object::Object| vec![object.name().to_owned()];
    for n in 0..64 {
        let funcs = ["one", "two"].map(|name| IndexFunc::custom(name, by_name));
        let mut indexer = Indexer::new(EvmapStore::with_hasher(BadHasher::default(), funcs), <_>::default());
        let reader = indexer.store().reader();
        let (name, key) = (n.to_string(), format!("n/{n}"));
        apply(&mut indexer, batch(vec![(Added, object(&key, "u", "1"))]));
        for index in ["one", "two"] {
            assert_eq!((keys(&reader, index, &name), values(&reader, index)), (vec![key.clone()], vec![name.clone()]));
        }
        apply(&mut indexer, batch(vec![(Deleted, object(&key, "u", "2"))]));
        assert!(indexer.store().entries().0.is_empty(), "{key}");
    }
}

#[test]
fn keys_and_values_have_distinct_hashes() {
    let objects: Vec<_> = (0..500).map(|n| object(&format!("n{}/{n}", n % 50), "u", "1")).collect();
    let indexer = indexer(<_>::default(), &objects);
    assert_eq!((indexer.store().entries().0.len(), indexer.store().collisions()), (500 + 50, 0));
}

#[test]
fn retirement_is_reported_in_key_order() {
    let objects = || vec![b("2"), a("1")];
    assert_eq!(show(&retirement(objects(), Retirement::Removed(Cause::Reload))), "xa1 Reload, xb2 Reload");
    assert_eq!(show(&retirement(objects(), Retirement::Deleted(Cause::Relist))), "!a1 Relist, !b2 Relist");
}

#[test]
fn discarded_transaction_leaves_no_trace() {
    let mut indexer = indexer(<_>::default(), &[a("1")]);
    let before = indexer.store().meta().clone();
    let transaction = indexer.plan(batch(vec![(Deleted, a("2")), (Added, b("3"))]));
    indexer.commit(&transaction);
    indexer.discard();
    assert_eq!(indexer.store().get(a("1").key()).map(|o| o.resource_version().to_owned()), Some("1".into()));
    assert!(indexer.store().get(b("3").key()).is_none());
    let after = indexer.store().meta();
    assert_eq!((after.generation, after.objects, after.bytes), (before.generation, 1, before.bytes));
    indexer.publish();
    assert_eq!(keys(&indexer.store().reader(), "namespace", "n"), ["n/a"], "nor do its indexes know of it");
}

#[test]
fn transaction_and_late_index_each_advance_generation() {
    let mut indexer = indexer(<_>::default(), &[]);
    let generation = |indexer: &Indexer| indexer.store().reader().read(|snapshot| snapshot.meta().generation);
    let first = generation(&indexer);
    assert_eq!(apply(&mut indexer, batch(vec![(Added, a("1"))])).reached.generation, first + 1);
    assert_eq!(generation(&indexer), first + 1);
    indexer.add_indexers(vec![IndexFunc::parse("metadata.uid").unwrap()]).unwrap();
    assert_eq!(generation(&indexer), first + 2);
}

/// Rule: I-7.
#[test]
fn late_index_has_every_object() {
    let object = |key: &str, node: &str| object_with(key, key, "1", &format!(r#","spec":{{"nodeName":"{node}"}}"#));
    let mut indexer = indexer(<_>::default(), &[object("n/a", "x"), object("n/b", "y"), object("n/c", "x")]);
    let reader = indexer.store().reader();
    let node = || IndexFunc::parse("spec.nodeName").unwrap();
    let uid = || IndexFunc::parse("metadata.uid").unwrap();
    indexer.add_indexers(vec![node()]).unwrap();
    assert_eq!(keys(&reader, "spec.nodeName", "x"), ["n/a", "n/c"]);
    assert_eq!(indexer.add_indexers(vec![uid(), node()]), Err(IndexExists("spec.nodeName".into())));
    assert_eq!(reader.read(|snapshot| snapshot.meta().index_id("metadata.uid")), None);
    assert!(indexer.add_indexers(vec![uid(), uid()]).is_err());
    apply(&mut indexer, batch(vec![(Updated, object_with("n/a", "n/a", "2", ""))]));
    assert_eq!(keys(&reader, "spec.nodeName", "x"), ["n/c"]);
}

/// Rule: I-7.
#[test]
fn late_index_covers_staged_changes() {
    let mut store = EvmapStore::new(1, []);
    store.put(&object("n/a", "x", "1"));
    store.put(&object("n/b", "y", "1"));
    store.publish();
    store.put(&object("n/a", "z", "2"));
    store.remove(ObjectKey::new("n", "b").as_ref());
    store.add_indexes(vec![IndexFunc::parse("metadata.uid").unwrap()]).unwrap();
    store.publish();
    assert_eq!(values(&store.reader(), "metadata.uid"), ["z"]);
}

/// Rule: I-8.
#[test]
fn panicking_index_function_is_counted_and_skipped() {
    let func = |object: &crate::object::Object| {
        assert!(object.name() != "a", "on purpose");
        vec!["all".to_owned()]
    };
    let store = EvmapStore::new(1, [IndexFunc::custom("fragile", func)]);
    let mut indexer = Indexer::new(store, <_>::default());
    apply(&mut indexer, batch(vec![(Added, a("1")), (Added, b("1"))]));
    assert_eq!(keys(&indexer.store().reader(), "fragile", "all"), ["n/b"]);
    assert_eq!(indexer.store().meta().index_failures, 1);
}

#[test]
fn dropped_store_leaves_readers_empty_version() {
    let indexer = indexer(<_>::default(), &[a("1")]);
    let (reader, factory) = (indexer.store().reader(), indexer.store().reader_factory());
    let store = indexer.store;
    let count = |reader: &super::store::StoreReader| reader.read(|snapshot| snapshot.meta().objects);
    assert_eq!((count(&reader), count(&factory.reader())), (1, 1));
    drop(store);
    assert_eq!((count(&reader), count(&factory.reader())), (0, 0));
}

#[test]
fn readers_of_replaced_store_follow_successor() {
    let (old, new) = (indexer(<_>::default(), &[a("1")]), indexer(<_>::default(), &[a("2"), b("2")]));
    let (reader, factory) = (old.store().reader(), old.store().reader_factory());
    let count = |reader: &super::store::StoreReader| reader.read(|snapshot| snapshot.meta().objects);
    factory.lead_to(new.store().reader_factory());
    assert_eq!((count(&reader), count(&reader.clone()), count(&factory.reader())), (2, 2, 2));
    drop(old);
    assert_eq!((count(&reader), count(&factory.reader())), (2, 2));
}

#[test]
fn idle_publish_releases_replaced_objects() {
    let mut indexer = indexer(<_>::default(), &[]);
    let old = a("1");
    apply(&mut indexer, batch(vec![(Added, old.clone())]));
    indexer.publish_idle();
    apply(&mut indexer, batch(vec![(Updated, a("2"))]));
    assert_eq!(old.holders(), 3, "the other copy of the map and the log have it yet");
    indexer.publish_idle();
    assert_eq!(old.holders(), 1);
}

#[test]
fn large_deletion_shrinks_store() {
    let mut store = EvmapStore::with_hasher(BadHasher::default(), []);
    let objects: Vec<_> = (0..2_000).map(|n| object(&format!("n/{n}"), "u", "1")).collect();
    for object in &objects {
        store.put(object);
    }
    store.publish();
    let (hashes, room) = store.entries();
    assert!(hashes.len() == 2_001 && room >= 2_001, "{room}");
    for object in &objects[10..] {
        store.remove(object.key());
    }
    store.publish();
    store.publish_idle();
    let (hashes, room) = store.entries();
    assert!(hashes.len() == 11 && room < 64, "{room}");
}

/// Reads on other threads while every object moves between index values. Checks that the index always matches the objects.
fn torn_pairs(hasher: impl KeyHasher) -> (u64, u64) {
    let node = |object: &crate::object::Object| {
        vec![format!("node-{}", object.resource_version().parse::<u64>().unwrap() % 5)]
    };
    let mut indexer = Indexer::new(EvmapStore::with_hasher(hasher, [IndexFunc::custom("node", node)]), <_>::default());
    let factory = indexer.store().reader_factory();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut version = 0_u64;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let reader = factory.reader();
                while !stop.load(Relaxed) {
                    reader.read(|snapshot| {
                        let meta: &Meta = snapshot.meta();
                        let mut seen = 0;
                        for id in 0..5 {
                            let value = format!("node-{id}");
                            snapshot.for_each_with(1, &value, &mut |object| {
                                assert_eq!(node(object)[0], value, "a torn pair");
                                assert!(snapshot.get(object.key()).unwrap().ptr_eq(object));
                                seen += 1;
                            });
                        }
                        assert_eq!(seen, meta.objects);
                    });
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
        while version < 1_000 || reads.load(Relaxed) < 300 {
            let mut deltas = Vec::new();
            for _ in 0..=version % 7 {
                version += 1;
                let key = format!("n/{}", version * 7 % 40);
                let kind = if version.is_multiple_of(6) { Deleted } else { Updated };
                deltas.push((kind, object(&key, "u", &version.to_string())));
            }
            apply(&mut indexer, batch(deltas));
        }
        stop.store(true, Relaxed);
    });
    (version, reads.load(Relaxed))
}

/// Rule: I-9.
#[test]
fn concurrent_readers_never_see_torn_index() {
    for (written, read) in [torn_pairs(foldhash::quality::FixedState::with_seed(3)), torn_pairs(BadHasher::default())] {
        println!("{written} writes, {read} reads of whole versions");
    }
}

#[test]
fn retired_dictionary_is_repacked_stepwise_and_invisibly() {
    let packer = Arc::new(Packer::new(Compression::Zstd));
    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    let index = IndexFunc::custom("all", move |_| {
        counter.fetch_add(1, Relaxed);
        vec!["x".to_owned()]
    });
    let keep = Keep::Packed(Arc::clone(&packer));
    let mut fifo = DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), true).keeping(keep.clone());
    let mut indexer = Indexer::new(EvmapStore::new(1, [index]), IndexerOptions { keep, ..<_>::default() });
    packer.learn(100);
    (0..600).for_each(|number| fifo.push(ReflectorEvent::Added(packing::object(100, number))));
    apply(&mut indexer, fifo.pop().expect("600 deltas"));
    assert!(fifo.repack().is_empty(), "nothing is on its way out");
    let others: Vec<_> =
        [200, 300, 400, 500].map(|family| (packer.learn(family), packer.pack(&packing::object(family, 1)))).into();
    let retiring = packer.retiring().expect("the first");
    fifo.push(ReflectorEvent::Updated(packing::object(100, 5))); // the cached state again, as from a reopened watch
    apply(&mut indexer, fifo.pop().expect("one delta"));

    let reader = indexer.store().reader();
    let seen = |indexer: &Indexer| {
        let (meta, found) = reader.read(|snapshot| {
            let mut found = 0;
            snapshot.for_each_with(1, "x", &mut |_| found += 1);
            (snapshot.meta().clone(), found)
        });
        let objects = indexer.objects();
        assert_eq!(meta.bytes, objects.iter().map(|object| object.size_bytes() as u64).sum::<u64>());
        let objects: Vec<_> =
            objects.iter().map(|object| (format!("{object:?}"), object.json().into_owned())).collect();
        (objects, found, meta.generation, meta.store_version, meta.objects, meta.synced)
    };
    let step = |fifo: &mut DeltaFifo, indexer: &mut Indexer| {
        let (before, read) = (seen(indexer), reads.load(Relaxed));
        let objects = fifo.repack();
        indexer.replace(&objects);
        assert!(seen(indexer) == before, "readers see the same");
        assert_eq!(reads.load(Relaxed), read, "nothing is unpacked for an index");
        assert!(objects.iter().all(|object| !object.is_packed_with(&retiring)));
        objects.len()
    };
    assert_eq!(step(&mut fifo, &mut indexer), 256);
    let left = indexer.objects().into_iter().find(|object| object.is_packed_with(&retiring)).expect("344 are left");
    fifo.push(ReflectorEvent::Deleted(left));
    apply(&mut indexer, fifo.pop().expect("a deletion"));
    let (second, third) = (step(&mut fifo, &mut indexer), step(&mut fifo, &mut indexer));
    assert_eq!(second + third, 343, "what is gone is left alone");
    assert_eq!(step(&mut fifo, &mut indexer), 0);
    assert!(indexer.objects().iter().all(|object| !object.is_packed_with(&retiring)));
    indexer.publish_idle();
    drop(retiring);
    assert!(packer.retiring().is_none(), "it goes with the last object that used it");
    drop((others, fifo));
}

const OPTED_OUT: DeltaKind = DeltaKind::OptedOut { listed: false };
const LISTED_OPTED_OUT: DeltaKind = DeltaKind::OptedOut { listed: true };

/// Rule: H-1.
#[test]
fn opted_out_object_is_removed_and_added_back() {
    plain(vec![(OPTED_OUT, a("2"))], "xa1 Watch");
    plain(vec![(LISTED_OPTED_OUT, a("2"))], "xa1 Relist");
    plain(vec![(OPTED_OUT, a("2")), (Deleted, a("3"))], "xa1 Watch");
    plain(vec![(OPTED_OUT, a("2")), (Updated, a("3"))], "xa1 Watch, +a3 Watch");
    plain(vec![(OPTED_OUT, b("2")), (Deleted, b("3"))], "");
    let selective = IndexerOptions { selective: true, ..IndexerOptions::default() };
    check(selective, vec![(OPTED_OUT, a("2"))], "xa1 Watch");
    let stubs = Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod")));
    check(IndexerOptions { keep: stubs, ..IndexerOptions::default() }, vec![(OPTED_OUT, a("2"))], "xa1 Watch");
    // The name now belongs to another object, which was never shown.
    plain(vec![(LISTED_OPTED_OUT, object("n/a", "other", "2"))], "!a1 Relist");
}

/// Rule: I-11.
#[test]
fn opt_out_of_uncached_object_moves_version() {
    let mut indexer = indexer(IndexerOptions::default(), &[a("1")]);
    let transaction = apply(&mut indexer, batch(vec![(OPTED_OUT, b("9"))]));
    assert_eq!((transaction.reached.store_version.as_str(), transaction.changes.len()), ("9", 0));
    assert_eq!(indexer.objects().len(), 1);
}

/// Rule: S-4.
#[test]
fn ignored_update_is_stored_as_next_old() {
    let ignored = IgnoredPaths::new(&[FieldPath::parse("status").unwrap()]);
    let options = IndexerOptions { ignored: Some(Arc::new(ignored)), ..IndexerOptions::default() };
    let of = |version: &str, body: &str| object_with("n/a", "a", version, body);
    let first = of("1", r#","spec":1,"status":1"#);
    let mut indexer = indexer(options.clone(), std::slice::from_ref(&first));
    for (kind, version, body, expected) in [
        (Updated, "2", r#","spec":1,"status":2"#, "~a2"),
        (Updated, "3", r#","spec":2,"status":3"#, "a2>a3 Watch"),
        (Replaced, "4", r#","spec":2,"status":4"#, "~a4"),
        (Replaced, "4", r#","spec":2,"status":4"#, "=a4 Relist"),
        (Updated, "5", r#","spec":2"#, "~a5"),
    ] {
        let transaction = apply(&mut indexer, batch(vec![(kind, of(version, body))]));
        assert_eq!(show(&transaction.changes), expected);
        let cached = indexer.objects().pop().unwrap();
        assert_eq!(cached.resource_version(), version);
        assert!(cached.json().ends_with(format!("{body}}}").as_bytes()));
        assert_eq!(transaction.objects, 1);
    }
    let stubs = Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod")));
    let mut without_bodies =
        self::indexer(IndexerOptions { keep: stubs, ..options.clone() }, std::slice::from_ref(&first));
    let transaction = apply(&mut without_bodies, batch(vec![(Updated, of("2", r#","spec":1,"status":2"#))]));
    assert_eq!(show(&transaction.changes), "?>a2 Watch", "there is nothing to compare it with");
    let update = IndexerOptions { recreated: Recreated::Update, ..options };
    check(update, vec![(Updated, object("n/a", "other", "2"))], "a1>a2 Watch");
}
