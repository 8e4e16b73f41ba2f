use std::sync::Arc;

use super::{Delta, DeltaFifo, DeltaKind, QueueOrder};
use crate::{
    object::{
        Identity, Keep, Object,
        packer::{Compression, Packer, testing as packing},
        scan::{ScanPlan, TypeMeta, scan_object},
    },
    reflector::{Comparison, ReflectorEvent},
};

/// Returns an object with this identity, also in its JSON.
pub(crate) fn object(key: &str, uid: &str, version: &str) -> Object {
    object_with(key, uid, version, "")
}

/// Returns such an object with further members after `metadata`: `,"spec":{…}`.
pub(crate) fn object_with(key: &str, uid: &str, version: &str, more: &str) -> Object {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}{more}}}"#
    );
    Object::assemble(Identity { namespace, name, uid, resource_version: version }, &[json.as_bytes()])
}

/// Returns an object with its key as uid.
fn at(key: &str, version: &str) -> Object {
    object(key, key, version)
}

fn list(items: &[Object], version: &str) -> ReflectorEvent {
    ReflectorEvent::Replace { items: items.to_vec(), spared: Vec::new(), resource_version: version.into() }
}

fn list_sparing(items: &[Object], spared: &[Object], version: &str) -> ReflectorEvent {
    ReflectorEvent::Replace { items: items.to_vec(), spared: spared.to_vec(), resource_version: version.into() }
}

fn resync(round: u32) -> ReflectorEvent {
    ReflectorEvent::Resync { round }
}

fn fifo(order: QueueOrder, known: &[Object]) -> DeltaFifo {
    DeltaFifo::new(order, known.iter().cloned(), true)
}

/// Returns a text form: `+a1` added, `~a1` updated, `-a1` deleted, `!a1` tombstone, `=a1` replaced, `@a1` sync, `oa1` opted out.
fn show(deltas: &[Delta]) -> String {
    let sign = |kind| match kind {
        DeltaKind::Added => '+',
        DeltaKind::Updated => '~',
        DeltaKind::Deleted => '-',
        DeltaKind::Tombstone => '!',
        DeltaKind::OptedOut { .. } => 'o',
        DeltaKind::Replaced => '=',
        DeltaKind::Sync { .. } => '@',
    };
    let words = deltas.iter().map(|d| format!("{}{}{}", sign(d.kind), d.object.key(), d.object.resource_version()));
    words.collect::<Vec<_>>().join(" ")
}

/// Pops everything. The batches in the text are separated by ` | `.
fn drain(fifo: &mut DeltaFifo) -> String {
    let mut batches = Vec::new();
    while let Some(deltas) = fifo.pop() {
        batches.push(show(&deltas.deltas));
    }
    assert_eq!((fifo.len(), fifo.queued_bytes(), fifo.is_empty()), (0, 0, true));
    batches.join(" | ")
}

#[track_caller]
fn check(order: QueueOrder, known: &[Object], events: Vec<ReflectorEvent>, expected: &str) {
    let mut fifo = fifo(order, known);
    for event in events {
        fifo.push(event);
    }
    assert_eq!(drain(&mut fifo), expected);
}

use QueueOrder::{PerKey, Stream};
use ReflectorEvent::{Added, Bookmark, Deleted, Updated};

/// Rule: F-10.
#[test]
fn popped_key_moves_to_tail() {
    check(PerKey, &[], vec![Added(at("a", "1")), Added(at("b", "2")), Updated(at("a", "3"))], "+a1 ~a3 +b2");
    let mut fifo = fifo(PerKey, &[]);
    fifo.push(Added(at("a", "1")));
    assert_eq!(show(&fifo.pop().unwrap().deltas), "+a1");
    fifo.push(Added(at("b", "2")));
    fifo.push(Updated(at("a", "3")));
    assert_eq!(drain(&mut fifo), "+b2 ~a3");
}

#[test]
fn newer_bookmark_replaces_queued_bookmark() {
    let mut fifo = fifo(Stream, &[]);
    for version in ["5", "6", "7"] {
        fifo.push(Bookmark(version.into()));
    }
    assert_eq!(format!("{fifo:?}").matches("Bookmark").count(), 1, "an idle watch does not make the queue longer");
    assert_eq!(fifo.pop().unwrap().resume_version, Some("7".into()));
}

#[test]
fn debug_text_shows_counts_without_objects() {
    let mut fifo = fifo(PerKey, &[at("a", "1")]);
    fifo.push(Added(at("b", "2")));
    let text = format!("{fifo:?}");
    assert!(text.contains("Known(1 objects)") && text.contains("PerKeyQueue(1 keys, 1 deltas)"), "{text}");
}

/// Rule: F-11.
#[test]
fn only_deletions_merge() {
    let known = [at("a", "1")];
    check(PerKey, &known, vec![Deleted(at("a", "2")), Deleted(at("a", "3"))], "-a2");
    check(PerKey, &known, vec![list(&[], "5"), Deleted(at("a", "6"))], "-a6");
    check(PerKey, &known, vec![Deleted(at("a", "2")), list(&[], "5")], "-a2");
    check(PerKey, &[], vec![Added(at("a", "1")), Added(at("a", "1")), Updated(at("a", "2"))], "+a1 +a1 ~a2");
}

/// Rule: F-12.
#[test]
fn deletion_of_unknown_key_moves_only_version() {
    let mut fifo = fifo(PerKey, &[at("a", "1")]);
    fifo.push(Deleted(at("b", "9")));
    assert_eq!(fifo.len(), 0);
    let deltas = fifo.pop().unwrap();
    assert!(deltas.deltas.is_empty());
    assert_eq!(deltas.resume_version, Some("9".into()));
    fifo.push(Deleted(at("a", "10")));
    assert_eq!(drain(&mut fifo), "-a10");
}

/// Rules: F-13, F-14.
#[test]
fn list_appends_items_then_deletes_missing_keys() {
    let events = vec![Added(at("q", "2")), Updated(at("b", "3")), list(&[at("b", "4"), at("c", "4")], "5")];
    check(PerKey, &[at("a", "1"), at("b", "1")], events, "+q2 !q2 ~b3 =b4 =c4 !a1");
}

/// Rules: F-16, F-24.
#[test]
fn resync_repeats_known_objects_that_are_not_queued() {
    for order in [Stream, PerKey] {
        let known = [at("a", "1"), at("b", "1")];
        check(order, &known, vec![Updated(at("a", "2")), resync(1)], "~a2 @b1");
        check(order, &[], vec![resync(1)], "");
    }
}

/// Rule: S-11.
#[test]
fn queued_rounds_repeat_the_same_objects() {
    let rounds = |order| {
        let mut fifo = fifo(order, &[at("a", "1")]);
        for event in [resync(1), resync(3), Updated(at("a", "2")), resync(4)] {
            fifo.push(event);
        }
        let mut kinds = Vec::new();
        while let Some(deltas) = fifo.pop() {
            kinds.extend(deltas.deltas.iter().map(|delta| delta.kind));
        }
        kinds
    };
    for order in [Stream, PerKey] {
        let sync = |round| DeltaKind::Sync { round };
        assert_eq!(rounds(order), [sync(1), sync(3), DeltaKind::Updated], "F-24: the fourth finds a change queued");
    }
}

/// Rule: F-17.
#[test]
fn all_deltas_of_a_key_leave_together() {
    let mut fifo = fifo(PerKey, &[]);
    for version in 0..1_500 {
        fifo.push(Updated(at("a", &version.to_string())));
    }
    fifo.push(Added(at("b", "1")));
    assert_eq!(fifo.pop().unwrap().deltas.len(), 1_500);
    assert_eq!(drain(&mut fifo), "+b1");
}

/// Rules: F-20, F-21.
#[test]
fn stream_order_keeps_every_event_in_order() {
    let events = vec![Added(at("a", "1")), Deleted(at("x", "2")), Updated(at("b", "3")), Deleted(at("b", "4"))];
    check(Stream, &[], events, "+a1 -x2 ~b3 | -b4");
}

/// Rule: F-22.
#[test]
fn list_deletes_missing_keys_before_adding_items() {
    let events =
        vec![Added(at("q", "2")), Added(at("p", "3")), Deleted(at("p", "4")), list(&[at("c", "5"), at("b", "5")], "6")];
    check(Stream, &[at("k", "1"), at("j", "1"), at("p", "1")], events, "+q2 +p3 | -p4 | !q2 !j1 !k1 =c5 =b5");
}

/// Rule: F-22.
#[test]
fn second_list_accounts_for_queued_list() {
    let events = vec![list(&[at("a", "2"), at("b", "2")], "3"), list(&[at("b", "4")], "5")];
    check(Stream, &[at("k", "1")], events, "!k1 =a2 =b2 | !a2 =b4");
}

/// Rule: F-23.
#[test]
fn queued_deletion_of_listed_key_stays() {
    check(Stream, &[at("a", "1")], vec![Deleted(at("a", "2")), list(&[at("a", "3")], "4")], "-a2 | =a3");
}

/// Rule: F-40.
#[test]
fn batch_ends_at_repeated_key_list_or_limit() {
    check(Stream, &[], vec![Added(at("a", "1")), Added(at("b", "2")), Updated(at("a", "3"))], "+a1 +b2 | ~a3");
    check(Stream, &[], vec![Added(at("a", "1")), list(&[at("a", "2")], "2"), Updated(at("a", "3"))], "+a1 | =a2 | ~a3");
    let mut fifo = fifo(Stream, &[]);
    for key in 0..2_500 {
        fifo.push(Added(at(&format!("k{key}"), "1")));
    }
    let sizes: Vec<usize> = std::iter::from_fn(|| fifo.pop()).map(|deltas| deltas.deltas.len()).collect();
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

/// Rules: F-40, F-51.
#[test]
fn list_is_never_split() {
    let items: Vec<Object> = (0..3_000).map(|key| at(&format!("k{key}"), "1")).collect();
    for order in [Stream, PerKey] {
        let mut fifo = fifo(order, &[at("gone", "0")]);
        fifo.push(list(&items, "2"));
        assert_eq!(fifo.pop().unwrap().deltas.len(), 3_001);
        assert!(fifo.pop().is_none());
    }
}

#[test]
fn list_shares_body_of_unchanged_object() {
    for order in [Stream, PerKey] {
        let known = [at("a", "1"), at("b", "1"), at("c", "")];
        let mut fifo = fifo(order, &known);
        fifo.push(list(&[at("a", "1"), at("b", "2"), object("c", "c", "")], "3"));
        assert!(fifo.queued_bytes() < 3 * known[1].size_bytes());
        let deltas = fifo.pop().unwrap().deltas;
        let shared = deltas.iter().map(|d| known.iter().any(|known| known.ptr_eq(&d.object)));
        assert_eq!(shared.collect::<Vec<_>>(), [true, false, true]);
        fifo.push(list(&[object("a", "other", "1")], "4"));
        let mut deltas = fifo.pop().unwrap().deltas;
        deltas.retain(|delta| delta.kind == DeltaKind::Replaced);
        assert!(!deltas[0].object.ptr_eq(&known[0]), "another uid is another object");
    }
}

#[test]
fn unversioned_objects_are_compared_byte_by_byte() {
    let known = object_with("a", "", "", r#","spec":1"#);
    let mut fifo = fifo(Stream, std::slice::from_ref(&known));
    fifo.push(list(&[object_with("a", "", "", r#","spec":2"#)], "1"));
    assert!(!fifo.pop().unwrap().deltas[0].object.ptr_eq(&known));
}

/// Rules: F-50, F-52.
#[test]
fn first_list_syncs_once_processed() {
    for order in [Stream, PerKey] {
        for items in [vec![], vec![at("a", "1")]] {
            let mut fifo = DeltaFifo::new(order, std::iter::empty(), false);
            fifo.push(list(&items, "2"));
            let deltas = fifo.pop().unwrap();
            assert!(
                deltas.initial && deltas.completes_initial,
                "the consumer has synced once it has applied the batch"
            );
            assert_eq!((deltas.store_version, deltas.deltas.len()), (Some("2".into()), items.len()));
            fifo.push(list(&items, "3"));
            assert!(!fifo.pop().unwrap().completes_initial);
        }
    }
}

/// Rules: F-50, F-52.
#[test]
fn change_before_any_list_syncs_at_once() {
    for order in [Stream, PerKey] {
        let mut fifo = DeltaFifo::new(order, std::iter::empty(), false);
        fifo.push(Added(at("a", "1")));
        let deltas = fifo.pop().unwrap();
        assert!(!deltas.initial && deltas.completes_initial);
        fifo.push(list(&[at("a", "1")], "2"));
        let deltas = fifo.pop().unwrap();
        assert!(!deltas.initial && !deltas.completes_initial);
    }
}

/// Rules: F-53, S-12.
#[test]
fn only_first_list_is_initial() {
    for order in [Stream, PerKey] {
        let mut first = DeltaFifo::new(order, std::iter::empty(), false);
        let mut again = DeltaFifo::new(order, [at("a", "1")].into_iter(), true);
        first.push(list(&[at("a", "1")], "2"));
        assert!(first.pop().unwrap().initial);
        for fifo in [&mut first, &mut again] {
            fifo.push(list(&[at("a", "3")], "4"));
            let deltas = fifo.pop().unwrap();
            assert!(!deltas.initial && !deltas.completes_initial);
        }
    }
}

/// Rule: F-70.
#[test]
fn closed_queue_drains_and_accepts_more() {
    let mut fifo = fifo(Stream, &[]);
    fifo.push(Added(at("a", "1")));
    fifo.close();
    fifo.push(Added(at("b", "2")));
    assert!(fifo.is_closed());
    assert_eq!(drain(&mut fifo), "+a1 +b2");
}

/// Rule: I-11.
#[test]
fn stream_order_reaches_version_of_last_element() {
    let mut fifo = fifo(Stream, &[at("k", "1")]);
    let mut versions = |events: Vec<ReflectorEvent>| {
        for event in events {
            fifo.push(event);
        }
        let deltas = fifo.pop().unwrap();
        let text = |v: Option<crate::object::ResourceVersion>| v.map_or("-".into(), |v| v.to_string());
        (text(deltas.store_version), text(deltas.resume_version))
    };
    let both = |store: &str, resume: &str| (store.to_owned(), resume.to_owned());
    assert_eq!(versions(vec![Added(at("a", "2")), Deleted(at("b", "3"))]), both("-", "3"));
    assert_eq!(versions(vec![Updated(at("a", "4")), Bookmark("9".into())]), both("9", "9"));
    assert_eq!(versions(vec![Bookmark("10".into()), Updated(at("a", "11"))]), both("-", "11"));
    assert_eq!(versions(vec![Bookmark("12".into()), Bookmark("13".into())]), both("13", "13"));
    assert_eq!(versions(vec![Updated(at("a", "14")), resync(1)]), both("14", "14"));
    assert_eq!(versions(vec![resync(1)]), both("-", "-"));
    assert_eq!(versions(vec![list(&[], "20")]), both("20", "20"));
}

/// Rule: I-11.
#[test]
fn per_key_order_resumes_only_from_empty_queue() {
    let mut fifo = fifo(PerKey, &[]);
    for key in 0..1_001 {
        fifo.push(Added(at(&format!("k{key}"), &(key + 1).to_string())));
    }
    let deltas = fifo.pop().unwrap();
    assert_eq!((deltas.deltas.len(), deltas.store_version, deltas.resume_version), (1_000, Some("".into()), None));
    let deltas = fifo.pop().unwrap();
    assert_eq!((deltas.store_version, deltas.resume_version), (Some("1001".into()), Some("1001".into())));
    fifo.push(Bookmark("2000".into()));
    let deltas = fifo.pop().unwrap();
    assert_eq!((deltas.deltas.len(), deltas.resume_version), (0, Some("2000".into())));
    assert!(fifo.pop().is_none());
}

#[test]
fn queued_bytes_exclude_shared_objects() {
    for order in [Stream, PerKey] {
        let mut fifo = fifo(order, &[at("a", "1"), at("b", "1")]);
        let (own, delta) = (at("c", "2").size_bytes(), size_of::<Delta>());
        assert!(fifo.is_empty() && !fifo.is_closed());
        fifo.push(Added(at("c", "2")));
        assert_eq!(fifo.queued_bytes(), own + delta, "{order:?}");
        assert!(!fifo.is_empty());
        // The cache has a, and b of the tombstone; c comes once more.
        fifo.push(list(&[at("a", "1"), at("c", "3")], "5"));
        assert_eq!(fifo.queued_bytes(), 2 * own + 4 * delta, "{order:?}");
        assert_eq!(drain(&mut fifo).split(' ').filter(|word| *word != "|").count(), 4, "{order:?}");
        fifo.push(resync(1));
        assert_eq!(fifo.queued_bytes(), 2 * delta, "{order:?}: the cache holds both");
    }
}

#[test]
fn spared_objects_stay_known() {
    let known = [at("a", "1"), at("b", "1"), at("c", "1")];
    for order in [Stream, PerKey] {
        let expected = if order == Stream { "~b2 | !c1 =a1" } else { "~b2 =a1 !c1" };
        let events = vec![Updated(at("b", "2")), list_sparing(&[at("a", "1")], &[at("b", "9"), at("x", "9")], "5")];
        check(order, &known, events, expected);
    }
}

/// Rule: R-56.
#[test]
fn unread_item_keeps_its_last_state() {
    let known = [at("a", "1"), at("b", "1"), at("c", "1")];
    for order in [Stream, PerKey] {
        let items = [at("a", "1"), at("b", "9").unread(), at("x", "9").unread()];
        let mut fifo = fifo(order, &known);
        assert_eq!(fifo.compare(&items), Comparison { known: 3, missing: 1 });
        fifo.push(list(&items, "9"));
        let expected = if order == Stream { "!c1 =a1" } else { "=a1 !c1" };
        assert_eq!(drain(&mut fifo), expected, "{order:?}");
        fifo.push(Deleted(at("b", "10").unread()));
        assert_eq!(drain(&mut fifo), "-b10", "{order:?}: it was still known");
    }
}

#[test]
fn list_is_compared_with_state_after_queue() {
    let known = [at("a", "1"), at("b", "1"), at("c", "1")];
    for order in [Stream, PerKey] {
        let mut fifo = fifo(order, &known);
        let compare = |fifo: &DeltaFifo, items: &[Object]| {
            let Comparison { known, missing } = fifo.compare(items);
            (known, missing)
        };
        assert_eq!(compare(&fifo, &[at("a", "7"), at("z", "7")]), (3, 2));
        fifo.push(Deleted(at("b", "2")));
        fifo.push(Added(at("d", "3")));
        fifo.push(Updated(at("a", "4")));
        fifo.push(resync(1));
        assert_eq!(compare(&fifo, &[at("a", "7"), at("b", "7")]), (3, 2), "b is not known any more, d is");
        fifo.push(list(&[at("e", "5")], "5"));
        assert_eq!(compare(&fifo, &[]), (1, 1));
        drain(&mut fifo);
        assert_eq!(compare(&fifo, &[at("e", "5")]), (1, 0));
        assert_eq!(compare(&DeltaFifo::new(order, std::iter::empty(), false), &[at("e", "5")]), (0, 0));
    }
}

#[test]
fn changed_object_is_not_repacked() {
    for order in [Stream, PerKey] {
        let packer = Arc::new(Packer::new(Compression::Zstd));
        let mut fifo = fifo(order, &[]).keeping(Keep::Packed(Arc::clone(&packer)));
        packer.learn(100);
        (0..300).for_each(|number| fifo.push(Added(packing::object(100, number))));
        drain(&mut fifo);
        assert!(fifo.repack().is_empty());
        let held: Vec<_> = [200, 300, 400, 500]
            .into_iter()
            .map(|family| {
                packer.learn(family);
                packer.pack(&packing::object(family, family))
            })
            .collect();
        let retiring = packer.retiring().expect("the first");
        let outdated = |fifo: &DeltaFifo| -> Vec<Object> {
            fifo.known.iter().filter(|object| object.is_packed_with(&retiring)).cloned().collect()
        };
        assert_eq!((outdated(&fifo).len(), held.len()), (300, 4));
        assert_eq!((fifo.repack().len(), outdated(&fifo).len()), (256, 44));
        let changed = outdated(&fifo).pop().expect("44 are left");
        fifo.push(Updated(object(&changed.key().to_string(), changed.uid(), "newer")));
        drain(&mut fifo);
        let repacked = fifo.repack();
        assert_eq!((repacked.len(), outdated(&fifo).len()), (43, 0));
        assert!(repacked.iter().all(|object| fifo.known.get(object.key()).is_some_and(|known| known.ptr_eq(object))));
        assert!(fifo.known.get(changed.key()).is_some_and(|known| known.resource_version() == "newer"));
        assert!(fifo.repack().is_empty());
    }
}

fn opted_out(key: &str, version: &str) -> Object {
    let object = at(key, version);
    Object::opted_out(object.identity(), &TypeMeta::new("v1", "Pod"))
}

#[test]
fn opted_out_object_is_removed_and_not_missing() {
    let known = [at("a", "1"), at("b", "1")];
    for order in [Stream, PerKey] {
        check(order, &known, vec![list(&[opted_out("a", "2"), at("b", "1")], "5")], "oa2 =b1");
        check(
            order,
            &known,
            vec![list(&[opted_out("b", "2"), opted_out("c", "2")], "5")],
            match order {
                Stream => "!a1 ob2",
                PerKey => "ob2 !a1",
            },
        );
        let fifo = fifo(order, &known);
        assert_eq!(fifo.compare(&[opted_out("a", "2")]), Comparison { known: 2, missing: 1 });
    }
    check(Stream, &known, vec![Updated(opted_out("a", "2")), Updated(at("a", "3"))], "oa2 | ~a3");
    check(PerKey, &known, vec![Updated(opted_out("a", "2")), Updated(at("a", "3"))], "oa2 ~a3");
    check(PerKey, &known, vec![Updated(opted_out("a", "2")), Deleted(at("a", "3"))], "oa2");
    check(PerKey, &known, vec![list(&[at("b", "1")], "5"), Added(opted_out("a", "6"))], "=b1 !a1");
}

/// Rule: F-12.
#[test]
fn unknown_opted_out_object_moves_only_version() {
    for order in [Stream, PerKey] {
        let mut fifo = fifo(order, &[]);
        fifo.push(Added(opted_out("a", "9")));
        let deltas = fifo.pop().unwrap();
        assert_eq!((deltas.resume_version, fifo.known.len()), (Some("9".into()), 0));
        assert_eq!(fifo.queued_bytes(), 0);
    }
}

/// The entries of a state are compared with the state just before it, also within one batch.
#[test]
fn each_state_of_key_gets_its_own_writer() {
    let state = |version: u32, managers: &[&str]| {
        let entries = managers.iter().map(|manager| {
            format!(r#"{{"manager":"{manager}","operation":"Update","time":"2026-11-21T06:40:03Z","fieldsV1":{{}}}}"#)
        });
        let entries = entries.collect::<Vec<_>>().join(",");
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a","uid":"u","resourceVersion":"{version}","managedFields":[{entries}]}}}}"#
        );
        let mut plan = ScanPlan::default();
        plan.notes_who_changed = true;
        scan_object(json.as_bytes(), &plan).unwrap()
    };
    for order in [QueueOrder::Stream, QueueOrder::PerKey] {
        let mut fifo = fifo(order, &[]);
        fifo.push(ReflectorEvent::Added(state(1, &["one"])));
        fifo.push(ReflectorEvent::Updated(state(2, &["one", "two"])));
        fifo.push(ReflectorEvent::Updated(state(3, &["one", "two", "three"])));
        fifo.push(ReflectorEvent::Deleted(state(4, &["one", "two", "three"])));
        fifo.push(ReflectorEvent::Added(state(5, &["four"])));
        let deltas: Vec<_> = std::iter::from_fn(|| fifo.pop()).flat_map(|batch| batch.deltas).collect();
        assert!(deltas.iter().all(|delta| !delta.object.has_noted_writers()));
        let is_there = |delta: &&Delta| !delta.kind.is_deletion();
        let writers = deltas.iter().filter(is_there).map(|delta| delta.object.changed_by().unwrap().manager);
        assert_eq!(writers.collect::<Vec<_>>(), ["one", "two", "three", "four"], "{order:?}");
        // a list repeats the version: its writer stays
        fifo.push(list(&[state(5, &["four", "of another server"])], "6"));
        let again = fifo.pop().unwrap().deltas.remove(0);
        assert_eq!(
            (again.object.changed_by().unwrap().manager.as_ref(), fifo.queued_bytes()),
            ("four", 0),
            "{order:?}"
        );
    }
}
