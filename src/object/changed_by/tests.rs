//! Tests of the writer: which entry is found, and that it stays with the object.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::object::{
    FieldPath, Head, Keep, Object,
    packer::{Compression, Packer, testing},
    scan::{ScanPlan, TypeMeta, scan_object, testing::Writer},
};

const EARLY: &str = "2026-11-21T06:40:03Z";
const LATE: &str = "2026-11-21T06:40:04Z";

/// Returns an entry of `managedFields`: `manager` or `manager/subresource`. An empty `time` is left out.
fn entry(manager: &str, time: &str, fields: Value) -> Value {
    let (manager, subresource) = manager.split_once('/').unwrap_or((manager, ""));
    let mut entry = json!({ "manager": manager, "operation": "Update", "fieldsType": "FieldsV1" });
    entry["fieldsV1"] = fields;
    for (name, text) in [("time", time), ("subresource", subresource)] {
        if !text.is_empty() {
            entry[name] = text.into();
        }
    }
    entry
}

fn scanned(value: &Value) -> Object {
    let mut plan = ScanPlan::new(&[FieldPath::parse("metadata.managedFields").unwrap()], None);
    plan.notes_who_changed = true;
    scan_object(value.to_string().as_bytes(), &plan).unwrap()
}

/// Returns a state as a scan notes it.
fn state(version: &str, body: &Value, entries: &[Value]) -> Object {
    let mut value = json!({ "apiVersion": "v1", "kind": "A", "metadata": { "name": "a", "uid": "u" } });
    value.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    value["metadata"]["resourceVersion"] = version.into();
    value["metadata"]["managedFields"] = entries.into();
    scanned(&value)
}

/// Returns `manager` or `manager/subresource` of the writer between two states; empty if it is not known.
fn writer(old: (&Value, &[Value]), new: (&Value, &[Value])) -> String {
    let old = state("1", old.0, old.1).with_writer_since(None, true);
    let new = state("2", new.0, new.1).with_writer_since(Some(&old), true);
    name(new.changed_by_since(Some(&old)))
}

fn name(who: Option<ChangedBy<'_>>) -> String {
    let Some(who) = who else { return String::new() };
    if who.subresource.is_empty() { who.manager.into_owned() } else { format!("{}/{}", who.manager, who.subresource) }
}

fn replicas(count: u64, ready: u64) -> Value {
    json!({ "spec": { "replicas": count, "paused": true }, "status": { "replicas": ready } })
}

#[test]
fn scale_without_time_is_writer() {
    let edit = |fields| entry("kubectl-edit", EARLY, fields);
    let controller = entry("controller/status", LATE, json!({ "f:status": { "f:replicas": {} } }));
    let scale = entry("kubectl/scale", "", json!({ "f:spec": { "f:replicas": {} } }));
    let created = [edit(json!({ "f:spec": { "f:paused": {}, "f:replicas": {} } })), controller.clone()];
    let scaled = [edit(json!({ "f:spec": { "f:paused": {} } })), controller, scale];
    assert_eq!(writer((&replicas(1, 1), &created), (&replicas(2, 1), &scaled)), "kubectl/scale");
    // the second time, the entry stays as it is
    assert_eq!(writer((&replicas(2, 1), &scaled), (&replicas(3, 1), &scaled)), "kubectl/scale");
    assert_eq!(writer((&replicas(2, 1), &scaled), (&replicas(2, 2), &scaled)), "controller/status");
}

#[test]
fn changed_values_decide_within_one_second() {
    let entries = [
        entry("a", LATE, json!({ "f:data": { "f:x": {} } })),
        entry("b", LATE, json!({ "f:data": { "f:y": {}, ".": {} } })),
        entry("old", EARLY, json!({ "f:data": { "f:z": {} } })),
    ];
    let data = |x: u64, y: u64, z: u64| json!({ "data": { "x": x, "y": y, "z": z } });
    let check = |new: Value, expected: &str| {
        assert_eq!(writer((&data(1, 1, 1), &entries), (&new, &entries)), expected, "{new}");
    };
    check(data(2, 1, 1), "a");
    check(data(1, 2, 1), "b");
    check(data(2, 2, 1), ""); // of two writers
    check(data(1, 1, 2), ""); // its owner wrote earlier, so another client wrote it without an entry
    check(data(1, 1, 1), "");
    check(json!({ "data": { "x": 1, "z": 1 } }), ""); // a removed value has no owner
}

#[test]
fn new_time_names_writer_of_removed_field() {
    let fields = |names: &[&str]| json!({ "f:data": names.iter().map(|name| (format!("f:{name}"), json!({}))).collect::<serde_json::Map<_, _>>() });
    let both = (&json!({ "data": { "x": 1, "y": 1 } }), &[entry("owner", EARLY, fields(&["x", "y"]))][..]);
    let one = json!({ "data": { "x": 1 } });
    // the owner itself
    assert_eq!(writer(both, (&one, &[entry("owner", LATE, fields(&["x"]))])), "owner");
    // another client: only the entry of the owner shrinks
    assert_eq!(writer(both, (&one, &[entry("owner", EARLY, fields(&["x"]))])), "");
}

#[test]
fn owner_decides_between_several_new_entries() {
    let old = (&json!({ "data": { "x": 1 } }), &[entry("a", EARLY, json!({ "f:data": { "f:x": {} } }))][..]);
    let new = [entry("a", LATE, json!({ "f:spec": {} })), entry("b", LATE, json!({ "f:data": { "f:x": {} } }))];
    assert_eq!(writer(old, (&json!({ "data": { "x": 2 } }), &new)), "b");
    let invented = [
        entry("before-first-apply", LATE, json!({ "f:data": { "f:x": {} } })),
        entry("b", LATE, json!({ "f:data": { "f:x": {} } })),
    ];
    assert_eq!(writer(old, (&json!({ "data": { "x": 2 } }), &invented)), "b");
}

#[test]
fn elements_are_owned_by_key() {
    let containers = json!({ "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": { ".": {}, "f:image": {} } } } });
    let ports = json!({ "f:spec": { "f:ports": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { "f:nodePort": {} } } } });
    let finalizers = json!({ "f:metadata": { "f:finalizers": { "v:\"x\"": {} } } });
    let entries =
        [entry("image", LATE, containers), entry("ports", LATE, ports), entry("finalizers", LATE, finalizers)];
    let body = |image: &str, port: u64| {
        json!({ "spec": { "containers": [{ "name": "b" }, { "name": "a", "image": image }],
            "ports": [{ "port": 80, "protocol": "UDP" }, { "port": 80, "protocol": "TCP", "nodePort": port }] } })
    };
    let check = |new: &Value, expected: &str| {
        assert_eq!(writer((&body("1", 1), &entries), (new, &entries)), expected, "{new}");
    };
    check(&body("2", 1), "image");
    check(&body("1", 2), "ports");
    let mut other = body("1", 1);
    other["spec"]["containers"][0]["image"] = "3".into();
    check(&other, "");
    other = body("1", 1);
    other["spec"]["containers"].as_array_mut().unwrap().swap(0, 1);
    check(&other, "");
    other = body("1", 1);
    other["metadata"] = json!({ "name": "a", "uid": "u", "finalizers": ["x"] });
    check(&other, "finalizers");
}

#[test]
fn new_object_has_writer_if_it_has_one_entry() {
    let one = [entry("a", EARLY, json!({}))];
    let two = [entry("a", EARLY, json!({})), entry("b/status", LATE, json!({}))];
    let of =
        |entries: &[Value]| name(state("1", &json!({}), entries).with_writer_since(None, true).changed_by_since(None));
    assert_eq!((of(&one), of(&two), of(&[])), ("a".to_owned(), String::new(), String::new()));
    // the first entry of an object whose entries were removed
    let old = state("1", &json!({}), &[]).with_writer_since(None, true);
    assert_eq!(name(state("2", &json!({}), &one).with_writer_since(Some(&old), true).changed_by()), "a");
    // it was created again
    let mut old = json!({ "metadata": { "name": "a", "uid": "another" } });
    old["metadata"]["managedFields"] = json!(one);
    old.as_object_mut().unwrap().extend([("apiVersion".to_owned(), json!("v1")), ("kind".to_owned(), json!("A"))]);
    let old = scanned(&old).with_writer_since(None, true);
    assert_eq!(name(state("2", &json!({}), &one).with_writer_since(Some(&old), true).changed_by()), "a");
}

#[test]
fn writer_without_previous_body_needs_new_time() {
    let entries = |time: &str| [entry("a", time, json!({ "f:x": {} })), entry("b", EARLY, json!({ "f:y": {} }))];
    let stub = Keep::Stub(Arc::new(TypeMeta::new("v1", "A")));
    let old = stub.of(&state("1", &json!({ "x": 1 }), &entries(EARLY)).with_writer_since(None, false));
    let next = |time: &str| state("2", &json!({ "x": 2 }), &entries(time)).with_writer_since(Some(&old), false);
    assert_eq!(name(next(LATE).changed_by()), "a");
    assert_eq!(name(next(EARLY).changed_by()), "");
}

#[test]
fn same_version_keeps_its_writer() {
    let entries = [entry("a", EARLY, json!({ "f:x": {} })), entry("b", LATE, json!({ "f:y": {} }))];
    let first = state("1", &json!({ "x": 1 }), &entries[..1]).with_writer_since(None, true);
    let second = || state("2", &json!({ "x": 1, "y": 1 }), &entries);
    let told = second().with_writer_since(Some(&first), true);
    assert_eq!(name(told.changed_by()), "b");
    assert_eq!(second().with_writer_since(Some(&told), true).who(), told.who());
}

/// Three writes arrive as one event, because the handler was slow.
#[test]
fn coalesced_change_of_several_writers_names_none() {
    let entries =
        |times: [&str; 2]| [entry("a", times[0], json!({ "f:x": {} })), entry("b", times[1], json!({ "f:y": {} }))];
    let first = state("1", &json!({}), &entries([EARLY, EARLY])).with_writer_since(None, true);
    let second = state("2", &json!({ "x": 1 }), &entries([LATE, EARLY])).with_writer_since(Some(&first), true);
    let third = state("3", &json!({ "x": 1, "y": 1 }), &entries([LATE, LATE])).with_writer_since(Some(&second), true);
    assert_eq!(name(third.changed_by_since(Some(&second))), "b");
    assert_eq!(name(third.changed_by_since(Some(&first))), "", "`a` wrote too");
    assert_eq!(name(third.changed_by_since(None)), "", "a coalesced `added`");
    let again = state("4", &json!({ "x": 1, "y": 2 }), &entries([LATE, "2026-11-21T06:41:00Z"]));
    let again = again.with_writer_since(Some(&third), true);
    assert_eq!(name(again.changed_by_since(Some(&second))), "b", "both writes were made by `b`");
}

#[test]
fn unreadable_entries_name_no_writer() {
    for text in ["[]", "null", "{}", "7", "[7]", "", "[{", "[{\"manager\":\"\\x\"}]", "[{\"time\":\"\\ud800\"}]"] {
        let noted = note(text.as_bytes(), NotedParts::WithFields);
        assert!(ManagedEntry::decode_all(&noted).is_none_or(|entries| entries.is_empty()), "{text}");
    }
    let many: Vec<_> = (0..300).map(|number| entry(&format!("m{number}"), EARLY, json!({}))).collect();
    let object = state("1", &json!({}), &many).with_writer_since(None, true);
    assert!(object.who().len() < 10 && object.changed_by().is_none(), "a bounded record");
}

/// A hostile writer can give an object many entries that own large values.
#[test]
fn huge_comparison_is_left_out() {
    let entries: Vec<_> = (0..200).map(|number| entry(&format!("m{number}"), LATE, json!({ "f:data": {} }))).collect();
    let body = |x: u64| json!({ "data": "x".repeat(100_000), "x": x });
    assert_eq!(writer((&body(1), &entries), (&body(2), &entries)), "");
}

fn any_entry() -> impl Strategy<Value = Value> {
    let text =
        || prop_oneof![4 => any::<String>().prop_map(Value::from), 1 => Just(Value::Null), 1 => Just(json!([{}]))];
    let time = prop_oneof![8 => Just(json!(EARLY)), 1 => Just(Value::Null), 1 => Just(json!(3))];
    let entry =
        (text(), text(), time, proptest::option::of(text())).prop_map(|(manager, operation, time, subresource)| {
            let mut entry = json!({ "manager": manager, "operation": operation, "time": time,
                "fieldsV1": { "f:spec": { "k:{\"name\":\"a\",\"time\":\"x\"}": { ".": {} } } } });
            if let Some(subresource) = subresource {
                entry["subresource"] = subresource;
            }
            entry
        });
    prop_oneof![9 => entry, 1 => Just(json!("manager")), 1 => Just(json!([[]]))]
}

proptest! {
    /// JSON in any form: any order, whitespace, escapes, repeated keys, before or after the name.
    #[test]
    fn noted_entries_agree_with_serde_json(entries in proptest::collection::vec(any_entry(), 0..6), seed: u64, dropped: bool) {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": { "managedFields": [entry("no", LATE, json!({}))] },
            "metadata": { "name": "web", "managedFields": entries, "annotations": { "managedFields": "no" } },
        });
        let mut text = String::new();
        Writer::new(seed).given(&object, &mut text);
        let drop: Vec<_> = dropped.then(|| FieldPath::parse("metadata.managedFields").unwrap()).into_iter().collect();
        let plain = ScanPlan::new(&drop, None);
        let mut noting = plain.clone();
        noting.notes_who_changed = true;
        let noted = scan_object(text.as_bytes(), &noting).unwrap();
        let part = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let expected: Vec<_> = entries.iter().filter(|entry| entry.is_object()).map(|entry| {
            let [manager, operation, time, subresource] = ["manager", "operation", "time", "subresource"].map(|name| part(entry, name).into());
            (ChangedBy { manager, operation, time, subresource }, entry["fieldsV1"].clone())
        }).collect();
        let found = ManagedEntry::decode_all(noted.who()).unwrap().into_iter();
        let found: Vec<_> = found.map(|entry| (entry.writer, serde_json::from_slice::<Value>(entry.fields).unwrap())).collect();
        prop_assert_eq!(found, expected, "{}", text);
        let plain = scan_object(text.as_bytes(), &plain).unwrap();
        prop_assert!(plain.who().is_empty());
        prop_assert_eq!(noted.json(), plain.json());
        prop_assert_eq!(noted.size_bytes(), plain.size_bytes() + noted.who().len());
        prop_assert_eq!(noted.value().unwrap()["metadata"].get("managedFields").is_some(), !dropped);
    }

    /// Damaged bytes lead at most to a missing answer.
    #[test]
    fn no_bytes_panic_writer_search(entries in proptest::collection::vec(any_entry(), 1..4), seed: u64) {
        let mut bytes = Value::from(entries).to_string().into_bytes();
        Writer::new(seed).mutate(&mut bytes);
        let of = |who: &[u8]| Object::from_json(br#"{"apiVersion":"v1","kind":"A","metadata":{"name":"a","resourceVersion":"2"},"spec":[]}"#).unwrap().with_who(who);
        let old = Object::from_json(br#"{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}"#).unwrap().with_who(&bytes);
        for who in [&note(&bytes, NotedParts::WithFields), &bytes, &[&[KEPT], &bytes[..]].concat(), &[&[NOTED], &bytes[..]].concat()] {
            let new = of(who).with_writer_since(Some(&old), true);
            drop(new.changed_by());
            drop(new.changed_by_since(Some(&old)));
            drop(of(who).changed_by());
            let _readable = Object::stored_who(who);
        }
    }
}

/// Returns an object of some size with a known writer.
fn noted(number: usize) -> Object {
    let mut value = testing::object(1, number).value().unwrap();
    value["metadata"]["managedFields"] = json!([entry("kubectl-edit", EARLY, json!({}))]);
    scanned(&value).with_writer_since(None, true)
}

#[test]
fn changed_by_survives_packing_and_unpacking() {
    let one = noted(7);
    let who = one.changed_by().expect("it was noted");
    assert_eq!((&*who.manager, &*who.time), ("kubectl-edit", EARLY));
    for compression in [Compression::Zstd, Compression::Lz4] {
        let packer = Packer::new(compression);
        let kept = packer.pack(&one);
        assert!(kept.size_bytes() < one.size_bytes());
        for object in [&kept, &packer.repack(&kept), &Packer::new(Compression::None).pack(&kept)] {
            assert_eq!((object.changed_by(), object.json()), (Some(who.clone()), one.json()), "{compression:?}");
            assert_eq!((object.identity(), object.json_bytes()), (one.identity(), one.json_bytes()));
        }
    }
}

#[test]
fn changed_by_takes_only_its_own_bytes() {
    let plain = Object::from_json(&noted(7).json()).unwrap();
    let bytes = "kubectl-edit Update 2026-11-21T06:40:03Z ".len() + 2 + 8 + 8;
    assert_eq!(noted(7).size_bytes(), plain.size_bytes() + bytes);
    assert_eq!(size_of::<Head>(), 40, "what is in front of every object of a cache");
}

#[test]
fn opted_out_object_lacks_changed_by() {
    let out = Object::opted_out(noted(7).identity(), &TypeMeta::new("v1", "Pod")).with_who(noted(7).who());
    assert!(out.opts_out() && out.changed_by().is_none());
}

#[test]
fn derived_object_inherits_changed_by() {
    let made = Object::from_json(br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#).unwrap();
    let json = made.json().into_owned();
    let made = made.with_who(noted(7).who());
    assert_eq!((made.changed_by(), &*made.json()), (noted(7).changed_by(), &*json));
    let other = ChangedBy { manager: "other".into(), ..ChangedBy::default() };
    assert_eq!(made.with_changed_by(&other).changed_by(), noted(7).changed_by());
    let plain = Object::from_json(&json).unwrap();
    assert_eq!(plain.with_changed_by(&other).changed_by(), Some(other));
}
