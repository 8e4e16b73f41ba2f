//! Tests of the last modifier: which entry is found, and that it stays with the object.

use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::object::{
    FieldPath, Head, Keep, Object,
    packer::{Compression, Packer, testing},
    scan::{ScanPlan, TypeMeta, scan_object, testing::Writer},
};

fn of(manager: &str, time: &str) -> Value {
    json!({ "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1" })
}

/// Returns manager and time of the newest entry.
fn told(managed_fields: &Value) -> Option<(String, String)> {
    let text = managed_fields.to_string();
    ChangedBy::newest(text.as_bytes()).map(|who| (who.manager.into_owned(), who.time.into_owned()))
}

#[track_caller]
fn check(entries: &[(&str, &str)], expected: &str) {
    let entries: Vec<_> = entries.iter().map(|(manager, time)| of(manager, time)).collect();
    assert_eq!(told(&entries.into()).map(|(manager, _)| manager).as_deref(), Some(expected));
}

#[test]
fn latest_managed_fields_entry_wins() {
    let [one, two] = ["2026-11-21T06:40:03Z", "2026-11-21T06:40:04Z"];
    check(&[("a", one), ("b", two)], "b");
    check(&[("b", two), ("a", one)], "b");
    check(&[("a", one), ("b", one), ("c", one)], "c");
    check(&[("a", one), ("b", "")], "a");
    check(&[("a", ""), ("b", "")], "b");
}

#[test]
fn subresource_entry_counts_and_missing_fields_are_omitted() {
    let status = json!([
        of("kubectl-edit", "2026-11-21T06:40:03Z"),
        { "manager": "kubelet", "operation": "Update", "time": "2026-11-21T06:41:00Z", "subresource": "status" },
    ]);
    let who = |entries: &Value| serde_json::to_value(ChangedBy::newest(entries.to_string().as_bytes())).unwrap();
    assert_eq!(who(&status), status[1]);
    assert_eq!(
        who(&json!([{ "manager": "a", "operation": "Apply", "time": null }])),
        json!({"manager":"a","operation":"Apply"})
    );
    assert_eq!(who(&json!([{ "manager": 7 }, 8])), json!({"manager":"","operation":""}));
}

#[test]
fn unreadable_entries_name_no_manager() {
    for text in ["[]", "null", "{}", "7", "[7]", "", "[{", "[{}", "[{\"manager\":\"\\x\"}]", "[{\"time\":\"\\ud800\"}]"]
    {
        assert_eq!(ChangedBy::newest(text.as_bytes()), None, "{text}");
    }
}

/// Finds the newest entry with `serde_json`.
fn model(managed_fields: &Value) -> Option<ChangedBy<'_>> {
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let instant = |entry: &&Value| text(entry, "time").parse::<Timestamp>().ok();
    let entries = managed_fields.as_array()?.iter().filter(|entry| entry.is_object());
    let newest = entries.max_by_key(instant)?;
    let [manager, operation, time, subresource] =
        ["manager", "operation", "time", "subresource"].map(|name| text(newest, name).into());
    Some(ChangedBy { manager, operation, time, subresource })
}

fn any_time() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (0..4_i64).prop_map(|second| Timestamp::new(second, 0).unwrap().to_string().into()),
        1 => prop_oneof![Just(Value::Null), Just(json!(3)), Just(json!(""))],
    ]
}

fn any_entry() -> impl Strategy<Value = Value> {
    let text =
        || prop_oneof![4 => any::<String>().prop_map(Value::from), 1 => Just(Value::Null), 1 => Just(json!([{}]))];
    let entry = (text(), text(), any_time(), proptest::option::of(text())).prop_map(
        |(manager, operation, time, subresource)| {
            let mut entry = json!({ "manager": manager, "operation": operation, "time": time,
                "fieldsV1": { "f:spec": { "k:{\"name\":\"a\",\"time\":\"x\"}": { ".": {} } } } });
            if let Some(subresource) = subresource {
                entry["subresource"] = subresource;
            }
            entry
        },
    );
    prop_oneof![9 => entry, 1 => Just(json!("manager")), 1 => Just(json!([[]]))]
}

proptest! {
    /// JSON in any form: any order, whitespace, escapes, repeated keys, before or after the name.
    #[test]
    fn changed_by_agrees_with_serde_json(entries in proptest::collection::vec(any_entry(), 0..6), seed: u64, dropped: bool) {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": { "managedFields": [of("no", "2999-01-01T00:00:00Z")] },
            "metadata": { "name": "web", "managedFields": entries, "annotations": { "managedFields": "no" } },
        });
        let mut text = String::new();
        Writer::new(seed).given(&object, &mut text);
        let drop: Vec<_> = dropped.then(|| FieldPath::parse("metadata.managedFields").unwrap()).into_iter().collect();
        let plain = ScanPlan::new(&drop, None);
        let mut noted = plain.clone();
        noted.notes_who_changed = true;
        let noted = scan_object(text.as_bytes(), &noted).unwrap();
        let expected = model(&object["metadata"]["managedFields"]);
        prop_assert_eq!(noted.changed_by(), expected.clone(), "{}", text);
        let plain = scan_object(text.as_bytes(), &plain).unwrap();
        prop_assert_eq!(plain.changed_by(), None);
        prop_assert_eq!(noted.json(), plain.json());
        prop_assert_eq!(noted.json_bytes(), plain.json_bytes());
        prop_assert_eq!(noted.size_bytes(), plain.size_bytes() + expected.map_or(0, |who| who.encode().len()));
        prop_assert_eq!(noted.value().unwrap()["metadata"].get("managedFields").is_some(), !dropped);
    }

    /// Damaged bytes lead at most to a missing answer.
    #[test]
    fn no_bytes_panic_changed_by_decoder(entries in proptest::collection::vec(any_entry(), 1..4), seed: u64) {
        let mut bytes = Value::from(entries).to_string().into_bytes();
        Writer::new(seed).mutate(&mut bytes);
        drop(ChangedBy::newest(&bytes));
        drop(ChangedBy::decode(&bytes));
    }
}

/// Returns an object of some size with a recorded modifier.
fn noted(number: usize) -> Object {
    let mut value = testing::object(1, number).value().unwrap();
    value["metadata"]["managedFields"] = json!([of("kubectl-edit", "2026-11-21T06:40:03Z")]);
    let mut plan = ScanPlan::new(&[FieldPath::parse("metadata.managedFields").unwrap()], None);
    plan.notes_who_changed = true;
    scan_object(value.to_string().as_bytes(), &plan).unwrap()
}

#[test]
fn changed_by_survives_packing_and_unpacking() {
    let one = noted(7);
    let who = one.changed_by().expect("it was noted");
    assert_eq!((&*who.manager, &*who.time), ("kubectl-edit", "2026-11-21T06:40:03Z"));
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
    let bytes = "kubectl-edit Update 2026-11-21T06:40:03Z ".len();
    assert_eq!(noted(7).size_bytes(), plain.size_bytes() + bytes);
    assert_eq!(size_of::<Head>(), 40, "what is in front of every object of a cache");
}

#[test]
fn stub_and_opted_out_object_lack_changed_by() {
    let stub = Keep::Stub(Arc::new(TypeMeta::new("v1", "Pod"))).of(&noted(7));
    assert_eq!(stub.changed_by(), None);
    let out = Object::opted_out(stub.identity(), &TypeMeta::new("v1", "Pod")).with_who(noted(7).who());
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
