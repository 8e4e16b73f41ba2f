//! Output of each format for each kind of event.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::tests::*;
use super::*;
use crate::{
    change::Cause,
    journal::testing::synced,
    object::{ChangedBy, Identity},
};

const OLD: &str = r#"{"kind":"Pod","metadata":{"name":"web"},"spec":{"image":"web:1","gone":[1]}}"#;
const NEW: &str = "{\"kind\":\"Pod\",\n\"metadata\":{\"name\":\"web\"},\"spec\":{\"image\":\"web:2\",\"come\":{}}}";

fn pod(version: &str, json: &str) -> Object {
    let identity = Identity { namespace: "default", name: "web", uid: "5f1c", resource_version: version };
    Object::assemble(identity, &[json.as_bytes()])
}

fn of(change: Change) -> Event {
    event(unit("", "pods", "Pod"), change)
}

fn update(old: &str, new: &str) -> Event {
    of(Change::Updated { old: pod("1", old), object: pod("2", new), cause: Cause::Watch })
}

/// Returns an event of each kind: an update, an update without its previous object, a resync, an addition, a tombstone,
/// a removal, and the end of a list.
fn all() -> Vec<(&'static str, Event)> {
    let new = || pod("2", NEW);
    let mut lost = update(NEW, NEW);
    lost.record.old_lost = true;
    vec![
        ("updated", update(OLD, NEW)),
        ("lost", lost),
        ("unchanged", of(Change::Unchanged { object: new(), cause: Cause::Resync { round: 1 } })),
        ("added", of(Change::Added { object: new(), cause: Cause::Watch })),
        ("deleted", of(Change::Deleted { object: new(), tombstone: true, cause: Cause::Relist })),
        ("removed", of(Change::Removed { object: new(), cause: Cause::Reload })),
        ("synced", of(synced(3))),
    ]
}

fn data_formats() -> Vec<DataFormat> {
    vec![
        DataFormat::CloudEvents,
        DataFormat::Object,
        DataFormat::Patch,
        DataFormat::MergePatch,
        DataFormat::Diff,
        DataFormat::Ref,
    ]
}

fn name(format: DataFormat) -> &'static str {
    format.into()
}

fn template(text: &str) -> Formatter {
    Formatter::of_template(encoder(), Template::compile(text).unwrap())
}

fn binary(format: DataFormat, event: &Event, form: Form) -> Result<(String, Value), FormatError> {
    let body = Formatter::new(encoder(), format).body(event, form, ContentMode::Binary)?;
    Ok((body.content_type.to_owned(), serde_json::from_slice(&body.bytes).unwrap()))
}

#[test]
fn each_format_encodes_each_change() {
    let [old, new]: [Value; 2] = [OLD, NEW].map(|json| serde_json::from_str(json).unwrap());
    let synced = json!({ "objects": 3, "resourceversion": "77" });
    let patch = json!([
        { "op": "replace", "path": "/spec/image", "value": "web:2" },
        { "op": "add", "path": "/spec/come", "value": {} },
        { "op": "remove", "path": "/spec/gone" },
    ]);
    let merge = json!({ "spec": { "image": "web:2", "come": {}, "gone": null } });
    let changes = json!([
        { "path": "spec.image", "old": "web:1", "new": "web:2" },
        { "path": "spec.gone", "old": [1] },
        { "path": "spec.come", "new": {} },
    ]);
    let object = json!({ "object": new });
    let tombstone = json!({ "object": new, "finalstateunknown": true });
    let expected = |format: &DataFormat, kind: &str| -> (&str, Value) {
        let json = |value: &Value| (DATA_CONTENT_TYPE, value.clone());
        match (format, kind) {
            (_, "synced") => json(&synced),
            (DataFormat::CloudEvents, "updated") => json(&json!({ "object": new, "old": old })),
            (DataFormat::CloudEvents, "unchanged") => json(&json!({ "object": new, "old": new })),
            (DataFormat::CloudEvents | DataFormat::Diff, "deleted") => json(&tombstone),
            (DataFormat::Patch, "updated") => (JSON_PATCH, patch.clone()),
            (DataFormat::Patch, "unchanged") => (JSON_PATCH, json!([])),
            (DataFormat::MergePatch, "updated") => (MERGE_PATCH, merge.clone()),
            (DataFormat::MergePatch, "unchanged") => (MERGE_PATCH, json!({})),
            (DataFormat::Patch | DataFormat::MergePatch, "deleted" | "removed") => json(&Value::Null),
            (DataFormat::Diff, "updated") => json(&json!({ "changes": changes })),
            (DataFormat::Diff, "unchanged") => json(&json!({ "changes": [] })),
            (DataFormat::CloudEvents | DataFormat::Diff, _) => json(&object),
            (DataFormat::Ref, "deleted") => json(&json!({ "finalstateunknown": true })),
            (DataFormat::Ref, _) => json(&json!({})),
            (DataFormat::Object | DataFormat::Patch | DataFormat::MergePatch, _) => json(&new),
            (DataFormat::Template, _) => unreachable!("it has no data"),
        }
    };
    for (kind, event) in all() {
        for format in data_formats() {
            let (content_type, data) = binary(format, &event, Form::Whole).unwrap();
            let (expected_type, expected) = expected(&format, kind);
            assert_eq!((content_type.as_str(), data), (expected_type, expected), "{} {kind}", name(format));
        }
    }
}

/// Returns the same events, for an object that `manager` has changed.
fn all_by(manager: &str) -> Vec<(&'static str, Event)> {
    let (operation, time) = ("Update".into(), "2026-11-21T06:40:03Z".into());
    let who = ChangedBy { manager: manager.into(), operation, time, subresource: "".into() };
    let told = |event: Event| {
        let of = |object: Object| Object::assemble(object.identity(), &[&object.json()]).with_changed_by(&who);
        let change = match event.record.change.clone() {
            Change::Updated { old, object, cause } => Change::Updated { old, object: of(object), cause },
            Change::Unchanged { object, cause } => Change::Unchanged { object: of(object), cause },
            Change::Added { object, cause } => Change::Added { object: of(object), cause },
            Change::Deleted { object, tombstone, cause } => Change::Deleted { object: of(object), tombstone, cause },
            Change::Removed { object, cause } => Change::Removed { object: of(object), cause },
            other => other,
        };
        Event { record: crate::journal::Record { change, ..event.record }, ..event }
    };
    all().into_iter().map(|(kind, event)| (kind, told(event))).collect()
}

#[test]
fn only_diff_format_names_changed_by() {
    let changed_by = json!({ "manager": "kubectl-\"edit", "operation": "Update", "time": "2026-11-21T06:40:03Z" });
    for ((kind, event), (_, plain)) in all_by("kubectl-\"edit").into_iter().zip(all()) {
        let has_writer = !matches!(kind, "synced" | "deleted" | "removed");
        for format in data_formats() {
            for form in [Form::Whole, Form::WithoutOld, Form::Reference] {
                let (Ok(told), Ok((content_type, mut expected))) =
                    (binary(format, &event, form), binary(format, &plain, form))
                else {
                    continue;
                };
                if matches!(format, DataFormat::Diff) && form != Form::Reference && has_writer {
                    expected["changed_by"] = changed_by.clone();
                }
                assert_eq!(told, (content_type, expected), "{} {kind} {form:?}", name(format));
            }
        }
        let mut line = Vec::new();
        encoder().encode(&mut line, &event);
        let line: Value = serde_json::from_slice(&line).unwrap();
        let told = line["data"].get("changed_by");
        assert_eq!(told, Some(&changed_by).filter(|_| has_writer), "{kind}");
    }
}

#[test]
fn structured_mode_matches_binary_mode() {
    for (kind, event) in all() {
        for format in data_formats() {
            let (content_type, data) = binary(format, &event, Form::Whole).unwrap();
            let formatter = Formatter::new(encoder(), format);
            let body = formatter.body(&event, Form::Whole, ContentMode::Structured).unwrap();
            assert_eq!(body.content_type, "application/cloudevents+json");
            let mut joined = json!(attributes(&event));
            joined["datacontenttype"] = content_type.into();
            joined["data"] = data;
            assert_eq!(serde_json::from_slice::<Value>(&body.bytes).unwrap(), joined, "{kind}");
            let mut line = Vec::new();
            formatter.line(&mut line, &event).unwrap();
            assert_eq!(line.pop(), Some(b'\n'));
            assert_eq!(line, body.bytes);
            assert!(!line.contains(&b'\n'), "{kind}");
        }
    }
}

#[test]
fn default_format_matches_encoder() {
    for (kind, event) in all() {
        let mut expected = Vec::new();
        encoder().encode(&mut expected, &event);
        let body = Formatter::from(encoder()).body(&event, Form::Whole, ContentMode::Structured).unwrap();
        assert_eq!(body.bytes, expected, "{kind}");
    }
}

#[test]
fn oversized_body_shrinks_only_where_parts_are_optional() {
    let event = update(OLD, NEW);
    let smaller = |format: DataFormat| binary(format, &event, Form::WithoutOld);
    let new: Value = serde_json::from_str(NEW).unwrap();
    assert_eq!(smaller(DataFormat::CloudEvents).unwrap().1, json!({ "object": new }));
    let changes =
        json!([{ "path": "spec.image", "new": "web:2" }, { "path": "spec.gone" }, { "path": "spec.come", "new": {} }]);
    assert_eq!(smaller(DataFormat::Diff).unwrap().1, json!({ "changes": changes }));
    assert_eq!(smaller(DataFormat::Ref).unwrap().1, json!({}));
    for format in [DataFormat::Object, DataFormat::Patch, DataFormat::MergePatch] {
        let name = name(format);
        assert!(matches!(smaller(format), Err(FormatError::NoSmaller(said)) if said == name));
    }
    for format in data_formats() {
        assert_eq!(binary(format, &event, Form::Reference).unwrap(), (DATA_CONTENT_TYPE.to_owned(), json!({})));
    }
    for form in [Form::WithoutOld, Form::Reference] {
        let refused = template("x").body(&event, form, ContentMode::Binary);
        assert!(matches!(refused, Err(FormatError::NoSmaller("template"))));
        assert!(matches!(
            template("1").batch(std::slice::from_ref(&event), form),
            Err(FormatError::NoSmaller("template"))
        ));
    }
}

#[test]
fn null_member_sends_object_instead_of_merge_patch() {
    let event = update(r#"{"a":1}"#, r#"{"a":null}"#);
    assert_eq!(
        binary(DataFormat::MergePatch, &event, Form::Whole).unwrap(),
        (DATA_CONTENT_TYPE.to_owned(), json!({ "a": null }))
    );
    assert_eq!(
        binary(DataFormat::Patch, &event, Form::Whole).unwrap().1,
        json!([{ "op": "replace", "path": "/a", "value": null }])
    );
}

#[test]
fn damaged_json_fails_only_formats_that_parse_it() {
    let event = update(OLD, r#"{"spec":[tru]}"#);
    for format in [DataFormat::Patch, DataFormat::MergePatch, DataFormat::Diff] {
        assert!(matches!(binary(format, &event, Form::Whole), Err(FormatError::Undecodable(_))));
    }
    let copied = Formatter::new(encoder(), DataFormat::Object).body(&event, Form::Whole, ContentMode::Binary).unwrap();
    assert_eq!(copied.bytes, br#"{"spec":[tru]}"#);
}

#[test]
fn template_is_body_in_both_modes() {
    let event = update(OLD, NEW);
    for (text, content_type) in [("{\"x\": {{ id | tojson }} }\n\n", DATA_CONTENT_TYPE), ("{{ id }} changed\n\n", TEXT)]
    {
        let formatter = template(text);
        let made = text.replacen("{{ id | tojson }}", "\"5f1c.2\"", 1).replacen("{{ id }}", "5f1c.2", 1);
        for mode in [ContentMode::Structured, ContentMode::Binary] {
            let body = formatter.body(&event, Form::Whole, mode).unwrap();
            assert_eq!(body.content_type, content_type);
            assert_eq!(String::from_utf8(body.bytes).unwrap().trim_end(), made.trim_end());
        }
        let mut line = Vec::new();
        formatter.line(&mut line, &event).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), format!("{}\n", made.trim_end()));
    }
}

#[test]
fn batch_is_json_array() {
    let events: Vec<Event> = all().into_iter().map(|(_, event)| event).collect();
    for format in data_formats() {
        let formatter = Formatter::new(encoder(), format);
        let body = formatter.batch(&events, Form::Whole).unwrap();
        assert_eq!(body.content_type, "application/cloudevents-batch+json");
        let array: Vec<Value> = serde_json::from_slice(&body.bytes).unwrap();
        let single = |event| formatter.body(event, Form::Whole, ContentMode::Structured).unwrap().bytes;
        let singles: Vec<Value> = events.iter().map(|event| serde_json::from_slice(&single(event)).unwrap()).collect();
        assert_eq!(array, singles);
    }
    let body = template("{{ type | tojson }}\n").batch(&events[..2], Form::Whole).unwrap();
    assert_eq!((body.content_type, &*body.bytes), (DATA_CONTENT_TYPE, &br#"["updated","updated"]"#[..]));
    assert_eq!(template("x").batch(&[], Form::Whole).unwrap().bytes, b"[]");
    assert!(matches!(template("{{ type }}").batch(&events[..1], Form::Whole), Err(FormatError::NoJson(_))));
}

#[test]
fn format_names_are_unique() {
    let names: BTreeSet<_> = data_formats().iter().map(|format| name(*format)).collect();
    assert_eq!(names.len(), data_formats().len());
}

/// The examples in `docs/formats.md` equal the encoder's output.
#[test]
fn documented_examples_match_encoder() {
    let documented = include_str!("../../../docs/formats.md");
    let state = |version: u8, data: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"web","resourceVersion":"{version}"}},"data":{data}}}"#
        )
    };
    let (old, new) = (state(1, r#"{"image":"web:1","debug":"on"}"#), state(2, r#"{"image":"web:2"}"#));
    let update = update(&old, &new);
    let addition = of(Change::Added { object: pod("2", &new), cause: Cause::Watch });
    let deletion = of(Change::Deleted { object: pod("2", &new), tombstone: false, cause: Cause::Watch });
    for format in data_formats() {
        let name = name(format);
        let section = documented.split("\n## ").find(|section| section.starts_with(&format!("`{name}`"))).unwrap();
        let formatter = Formatter::new(encoder(), format);
        for (kind, event) in [("updated", &update), ("added", &addition), ("deleted", &deletion)] {
            let body = formatter.body(event, Form::Whole, ContentMode::Binary).unwrap();
            let data = String::from_utf8(body.bytes).unwrap();
            assert!(section.contains(&format!("\n{kind}: {data}\n")), "{name}\n{kind}: {data}");
            assert!(section.contains(body.content_type) || body.content_type == DATA_CONTENT_TYPE, "{name} {kind}");
        }
    }
}
