use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    testing::{Writer, pod, remove},
    *,
};
use crate::object::field_path::PathStep;

fn cases(at_least: u32) -> ProptestConfig {
    ProptestConfig { cases: ProptestConfig::default().cases.max(at_least), ..Default::default() }
}

fn paths(paths: &[&str]) -> Vec<FieldPath> {
    paths.iter().map(|path| FieldPath::parse(path).unwrap()).collect()
}

pub(crate) fn pod_type() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

/// Returns namespace, name, uid and resourceVersion by `serde_json`. `None` if one is not a string, or there is no name.
fn identity_by_serde(value: &Value) -> Option<[String; 4]> {
    let texts = ["namespace", "name", "uid", "resourceVersion"].map(|key| match value.get("metadata")?.get(key) {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => None,
    });
    let [Some(namespace), Some(name), Some(uid), Some(resource_version)] = texts else { return None };
    (value["metadata"].is_object() && !name.is_empty()).then_some([namespace, name, uid, resource_version])
}

fn has_types(value: &Value, or_null: bool) -> bool {
    let fits = |key: &str| match value.get(key) {
        Some(Value::String(_)) => true,
        None | Some(Value::Null) => or_null,
        Some(_) => false,
    };
    fits("apiVersion") && fits("kind")
}

/// Removes the drop paths, except the object's identity.
fn removed_by_serde(original: &Value, drop: &[FieldPath], type_meta: Option<&TypeMeta>) -> Value {
    let mut value = original.clone();
    for path in drop {
        remove(&mut value, path.steps());
    }
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
        // `metadata` itself is never cut; longer paths cut its members
        let mut metadata = original["metadata"].clone();
        for path in drop {
            if let [PathStep::Each, rest @ ..] = path.steps()
                && !rest.is_empty()
            {
                remove(&mut metadata, rest);
            }
            if let [PathStep::Member(name), rest @ ..] = path.steps()
                && **name == *"metadata"
                && !rest.is_empty()
            {
                remove(&mut metadata, rest);
            }
        }
        value["metadata"] = metadata;
    }
    for key in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(kept) = original["metadata"].get(key) {
            value["metadata"][key] = kept.clone();
        }
    }
    for key in ["apiVersion", "kind"] {
        if let Some(kept) = original.get(key) {
            value[key] = kept.clone();
        }
    }
    if let Some(types) = type_meta {
        value["apiVersion"] = types.api_version.clone().into();
        value["kind"] = types.kind.clone().into();
    }
    value
}

/// Compares one scan with `serde_json`; returns true if both accepted the object. If `exact`, the scan must accept
/// everything that serde accepts.
pub(crate) fn check(
    json: &[u8],
    drop: &[FieldPath],
    type_meta: Option<&TypeMeta>,
    exact: bool,
) -> Result<bool, TestCaseError> {
    let plan = ScanPlan::new(drop, type_meta.cloned());
    let scanned = scan_object(json, &plan);
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return Ok(false) };
    let expected = identity_by_serde(&value).filter(|_| has_types(&value, type_meta.is_some()));
    match (scanned, expected) {
        (Ok(object), Some(expected)) => {
            let found = [object.namespace(), object.name(), object.uid(), object.resource_version()];
            prop_assert_eq!(found.map(str::to_owned), expected);
            let cut = object.value().map_err(|error| TestCaseError::fail(format!("{error}: {:?}", object.json())))?;
            prop_assert_eq!(cut, removed_by_serde(&value, drop, type_meta));
            Ok(true)
        }
        (Err(_), None) => Ok(false),
        (Err(error), Some(_)) => {
            prop_assert!(!exact, "refused, though serde_json reads it: {}", error);
            Ok(false)
        }
        (Ok(object), None) => Err(TestCaseError::fail(format!("accepted: {object:?}"))),
    }
}

fn generated(seed: u64, repeats: bool) -> (Writer, String, Vec<FieldPath>, Option<TypeMeta>) {
    let mut writer = Writer::new(seed);
    writer.repeats = repeats;
    let mut json = String::new();
    writer.object(&mut json);
    let drop = (0..writer.below(5)).map(|_| writer.path()).collect();
    let type_meta = writer.one_in(2).then(pod_type);
    (writer, json, drop, type_meta)
}

#[test]
fn scan_agrees_with_serde_json_on_generated_objects() {
    let (total, accepted) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    proptest!(cases(3000), |(seed in any::<u64>())| {
        let (_, json, drop, type_meta) = generated(seed, false);
        total.set(total.get() + 1);
        if check(json.as_bytes(), &drop, type_meta.as_ref(), true)? {
            accepted.set(accepted.get() + 1);
        }
    });
    assert!(accepted.get() * 10 > total.get() * 4, "{} of {} objects had an identity", accepted.get(), total.get());
}

#[test]
fn last_of_repeated_keys_wins() {
    let accepted = std::cell::Cell::new(0);
    proptest!(cases(2500), |(seed in any::<u64>())| {
        let (_, json, drop, type_meta) = generated(seed, true);
        if check(json.as_bytes(), &drop, type_meta.as_ref(), false)? {
            accepted.set(accepted.get() + 1);
        }
    });
    assert!(accepted.get() > 300, "{}", accepted.get());
}

#[test]
fn damaged_objects_give_equal_answer_or_error() {
    proptest!(cases(3500), |(seed in any::<u64>())| {
        let (mut writer, json, drop, type_meta) = generated(seed, false);
        let mut json = json.into_bytes();
        writer.mutate(&mut json);
        // damage can make a key a repeated one, so a rejection is also correct
        check(&json, &drop, type_meta.as_ref(), false)?;
    });
}

#[test]
fn truncated_object_is_reported_as_truncated() {
    for seed in 0..20 {
        let (_, json, drop, type_meta) = generated(seed, false);
        let plan = ScanPlan::new(&drop, type_meta);
        if matches!(scan_object(json.as_bytes(), &plan), Err(ScanError::Malformed { .. })) {
            continue;
        }
        for len in 0..json.len() {
            assert_eq!(
                scan_object(&json.as_bytes()[..len], &plan).map(|object| object.value()).unwrap_err(),
                ScanError::Truncated(len),
                "{json}"
            );
        }
    }
}

/// Returns the values that `serde_json` finds at a path.
pub(crate) fn values(value: &Value, steps: &[PathStep]) -> Vec<String> {
    match (value, steps) {
        (Value::String(text), []) => vec![text.clone()],
        (Value::Bool(_) | Value::Number(_), []) => vec![value.to_string()],
        (Value::Object(members), [PathStep::Member(name), rest @ ..]) => {
            members.get(&**name).map_or(Vec::new(), |value| values(value, rest))
        }
        (Value::Object(members), [PathStep::Each, rest @ ..]) => {
            members.values().flat_map(|v| values(v, rest)).collect()
        }
        (Value::Array(elements), [PathStep::Each, rest @ ..]) => {
            elements.iter().flat_map(|v| values(v, rest)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn plucked_values_agree_with_serde_json() {
    let found = std::cell::Cell::new(0);
    proptest!(cases(1500), |(seed in any::<u64>())| {
        let (mut writer, json, ..) = generated(seed, false);
        let Ok(object) = scan_object(json.as_bytes(), &ScanPlan::new(&[], Some(pod_type()))) else { return Ok(()) };
        let value = object.value().expect("accepted and undamaged");
        let wanted: Vec<_> = (0..4).map(|_| writer.path()).collect();
        let many = object.pluck_many(&Plucker::new(&wanted));
        for (path, many) in wanted.iter().zip(many) {
            let mut expected = values(&value, path.steps());
            found.set(found.get() + expected.len());
            let mut one = object.pluck(path);
            let mut many = many;
            for list in [&mut expected, &mut one, &mut many] {
                list.sort();
            }
            prop_assert_eq!(&one, &expected, "{} of {}", path, json);
            prop_assert_eq!(&many, &expected, "{} of {}", path, json);
        }
        for (member, pairs) in [("labels", object.labels()), ("annotations", object.annotations())] {
            let pairs: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
            let texts = value["metadata"][member].as_object().into_iter().flatten();
            let expected: std::collections::BTreeMap<_, _> =
                texts.filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into()))).collect();
            prop_assert_eq!(pairs, expected);
        }
    });
    assert!(found.get() > 500, "{}", found.get());
}

#[test]
fn every_combination_of_cut_members_leaves_valid_commas() {
    for mask in 0_u8..32 {
        let names = ["a", "b", "c", "d", "e"];
        let drop: Vec<_> = (0..5).filter(|i| mask >> i & 1 == 1).map(|i| format!("spec.{}", names[i])).collect();
        let drop = paths(&drop.iter().map(String::as_str).collect::<Vec<_>>());
        for space in ["", " ", "\n  "] {
            let spec = names.map(|name| format!("{space}\"{name}\"{space}:{space}[{{\"x\":1}}]{space}")).join(",");
            let json = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"n"}},"spec":{{{spec}}}}}"#);
            assert!(check(json.as_bytes(), &drop, None, true).unwrap(), "{json}");
        }
    }
}

/// Rule: A-7.
#[test]
fn missing_type_is_inserted_and_wrong_one_replaced() {
    let check = |json: &str, expected: &str| {
        let plan = ScanPlan::new(&paths(&["x"]), Some(pod_type()));
        let object = scan_object(json.as_bytes(), &plan).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(String::from_utf8_lossy(&object.json()), expected);
    };
    check(r#"{"metadata":{"name":"a"}}"#, r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#);
    check(r#" { "metadata":{"name":"a"}}"#, r#"{"apiVersion":"v1","kind":"Pod", "metadata":{"name":"a"}}"#);
    check(r#"{"x":1,"metadata":{"name":"a"}}"#, r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#);
    check(r#"{"kind":"Pod","metadata":{"name":"a"}}"#, r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#);
    check(
        r#"{"apiVersion":"v1","metadata":{"name":"a"}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#,
    );
    check(
        r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#,
    );
    check(
        r#"{"x":{},"kind":null,"x":2,"apiVersion":"v1","metadata":{"name":"a"}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#,
    );
}

#[test]
fn escaped_keys_are_decoded() {
    let json = br#"{"\u006bind":"P\u006fd","apiVersi\u006Fn":"v1","m\u0065tadata":{"n\u0061me":"\u0061\ud83d\ude00","uid":"\/"}}"#;
    let object = Object::from_json(json).unwrap();
    assert_eq!((object.name(), object.uid()), ("a\u{1F600}", "/"));
}

#[test]
fn odd_objects_are_refused_with_reason() {
    let check = |json: &str, expected: &str| {
        let error = Object::from_json(json.as_bytes()).expect_err(json);
        assert_eq!(error.to_string(), expected, "{json}");
    };
    let nameless = "object without metadata.name";
    check(r#"{"apiVersion":"v1","kind":"Pod"}"#, nameless);
    check(r#"{"apiVersion":"v1","kind":"Pod","metadata":null}"#, nameless);
    check(r#"{"apiVersion":"v1","kind":"Pod","metadata":{}}"#, nameless);
    check(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":null}}"#, nameless);
    check(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":""}}"#, nameless);
    check(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"metadata":{"uid":"u"}}"#, nameless);
    check(r#"{"apiVersion":"v1","metadata":{"name":"a"}}"#, "object without apiVersion and kind");
    check(r#"{"apiVersion":"v1","kind":null,"metadata":{"name":"a"}}"#, "object without apiVersion and kind");
    let no_text = "expected a string as name, namespace, uid and resourceVersion";
    check(r#"{"metadata":{"name":1}}"#, &format!("malformed JSON at byte 20: {no_text}"));
    check(r#"{"metadata":{"name":"a","uid":[]}}"#, &format!("malformed JSON at byte 30: {no_text}"));
    check(r#"{"metadata":[]}"#, "malformed JSON at byte 12: expected an object as metadata");
    check(r#"{"kind":{}}"#, "malformed JSON at byte 8: expected a string as apiVersion and as kind");
    check("[]", "malformed JSON at byte 0: expected an object");
    check("  ", "truncated JSON after 2 bytes");
    check(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} x"#,
        "malformed JSON at byte 57: expected the end",
    );
    check(r#"{"a":1,}"#, "malformed JSON at byte 7: expected another one after the comma");
    check(r#"{"a":tru}"#, "malformed JSON at byte 5: expected a value");
    check(r#"{"a":[1}"#, "malformed JSON at byte 7: expected the matching bracket");
    check(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"\ud800"}}"#,
        "malformed JSON at byte 52: expected valid escapes in a string",
    );
}

#[test]
fn invalid_utf8_is_refused_anywhere() {
    let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"x":["y"]}}"#;
    for at in [52, 70] {
        let mut json = json.to_vec();
        json[at] = 0xff;
        assert_eq!(Object::from_json(&json).unwrap_err(), ScanError::Malformed { at, expected: "UTF-8" });
    }
}

#[test]
fn invalid_utf8_is_refused_around_cut_members() {
    let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"},"x":1,"uid":"u"},"spec":{"y":"z"}}"#;
    let cut = ScanPlan::new(&paths(&["metadata.x"]), None);
    for at in [70, 100] {
        let mut json = json.to_vec();
        assert!(matches!(json[at], b'b' | b'y'), "{}", char::from(json[at]));
        json[at] = 0xff;
        assert_eq!(scan_object(&json, &cut).unwrap_err(), ScanError::Malformed { at, expected: "UTF-8" });
    }
}

#[test]
fn nesting_limit_equals_that_of_serde_json() {
    for depth in [1, 63, 64, 65, 125, 126, 127, 128, 1_000_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let json = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{deep}}}"#);
        let plain = scan_object(json.as_bytes(), &ScanPlan::default());
        let walked = scan_object(json.as_bytes(), &ScanPlan::new(&paths(&["spec[*][*][*].x"]), None));
        assert_eq!(plain.is_ok(), serde_json::from_str::<Value>(&json).is_ok(), "{depth}");
        assert_eq!(walked.is_ok(), plain.is_ok(), "{depth}");
    }
}

#[test]
fn skipped_values_are_checked_only_for_structure() {
    let object = |spec: &str| {
        let json = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{spec}}}"#);
        Object::from_json(json.as_bytes())
    };
    for accepted in [r#"{"x" tru}"#, "[1 2]", "[[1}]", r#"["\x"]"#] {
        let object = object(accepted).unwrap();
        assert_eq!(object.name(), "a");
        object.value().unwrap_err();
        let path = FieldPath::parse("spec.*").unwrap();
        assert_eq!(object.pluck(&path), Vec::<String>::new(), "{accepted}");
    }
    for refused in [r#"["a]"#, "[[1]", "[1}", "{]", "[1]]"] {
        object(refused).unwrap_err();
    }
}

#[test]
fn drop_paths_remove_managed_fields_of_bench_pod() {
    let pod = pod();
    let drop =
        paths(&["metadata.managedFields", "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']"]);
    assert!(check(pod.as_bytes(), &drop, Some(&pod_type()), true).unwrap());
    let object = scan_object(pod.as_bytes(), &ScanPlan::new(&drop, Some(pod_type()))).unwrap();
    assert!((8_500..9_500).contains(&pod.len()), "{}", pod.len());
    assert!(object.json().len() < pod.len() - 3_400, "{} of {}", object.json().len(), pod.len());
    assert_eq!(object.pluck(&FieldPath::parse("spec.nodeName").unwrap()), ["node-17"]);
    let [owner] = &object.owners()[..] else { panic!("one owner") };
    assert_eq!((&*owner.kind, owner.controller), ("ReplicaSet", Some(true)));
}
