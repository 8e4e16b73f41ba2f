use super::{copies::LAYERS, *};
use serde_json::json;

fn key() -> Key {
    Key::new(b"0123456789abcdef").unwrap()
}

/// Panics, because no condition should be in doubt.
fn unexpected(rule: &Rule) {
    panic!("{rule:?} is in doubt");
}

fn object(value: &Value) -> Object {
    Object::from_json(value.to_string().as_bytes()).unwrap()
}

fn secret(uid: &str, data: &Value) -> Object {
    object(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": { "name": "db", "namespace": "n", "uid": uid, "resourceVersion": "7", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"password\":\"aHVudGVyMg==\"}}", "team": "a",
        }},
    }))
}

fn redacted(object: &Object, treatment: Treatment) -> Value {
    let redactor = Redactor::new(key(), &Rule::of_secrets(treatment)).unwrap();
    redactor.apply(object, unexpected).unwrap().expect("there is something to redact").value().unwrap()
}

#[test]
fn redacted_secret_keeps_key_names_and_base64_digests() {
    let before = secret("u1", &json!({ "password": "aHVudGVyMg==", "user": "cm9vdA==" }));
    let after = redacted(&before, Treatment::Hmac);
    assert!(!after.to_string().contains("aHVudGVyMg") && !after.to_string().contains("last-applied"));
    assert_eq!(after["metadata"]["annotations"], json!({ "team": "a" }));
    for name in ["password", "user"] {
        let digest = STANDARD.decode(after["data"][name].as_str().unwrap()).unwrap();
        let digest = String::from_utf8(digest).unwrap();
        assert_eq!((digest.len(), digest.starts_with(MARK)), (MARK.len() + 64, true), "{digest}");
    }
    assert_eq!(after["type"], "Opaque");
    let typed: k8s_openapi::api::core::v1::Secret = serde_json::from_value(after).unwrap();
    assert_eq!(typed.data.unwrap().len(), 2, "typed decoding still works");
}

#[test]
fn digest_reveals_only_changes() {
    let digest = |uid: &str, name: &str, value: &str| {
        redacted(&secret(uid, &json!({ name: value })), Treatment::Hmac)["data"][name].clone()
    };
    let first = digest("u1", "a", "eA==");
    assert_eq!(first, digest("u1", "a", "eA=="), "equal values have equal digests");
    for (other, what) in [
        (digest("u1", "a", "eQ=="), "another value"),
        (digest("u2", "a", "eA=="), "another object"),
        (digest("u1", "b", "eA=="), "another place"),
    ] {
        assert_ne!(first, other, "{what}");
    }
    let other_key =
        Redactor::new(Key::new(b"another key of some length").unwrap(), &Rule::of_secrets(Treatment::Hmac)).unwrap();
    let other = other_key.apply(&secret("u1", &json!({ "a": "eA==" })), unexpected).unwrap().unwrap().value().unwrap();
    assert_ne!(first, other["data"]["a"], "another key");
}

#[test]
fn dropped_values_are_absent() {
    let after = redacted(&secret("u1", &json!({ "password": "aHVudGVyMg==" })), Treatment::Drop);
    assert_eq!(after["data"], json!({}));
}

#[test]
fn configured_paths_reach_arrays_and_subtrees() {
    let before = object(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
        "spec": { "containers": [
            { "name": "a", "env": [{ "name": "X", "value": "secret" }, { "name": "Y" }] },
            { "name": "b", "args": { "deep": ["secret"] } },
        ]},
    }));
    let rule =
        |path: &str, treatment| Rule { path: FieldPath::parse(path).unwrap(), treatment, base64: false, only: None };
    let rules = [
        rule("spec.containers[*].env[*].value", Treatment::Hmac),
        rule("spec.containers[*].args", Treatment::Hmac),
        rule("spec.nowhere[*].to", Treatment::Hmac),
    ];
    let after = Redactor::new(key(), &rules).unwrap().apply(&before, unexpected).unwrap().unwrap().value().unwrap();
    assert!(!after.to_string().contains("secret"), "{after}");
    let digest = after["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap();
    assert!(digest.starts_with(MARK));
    assert_eq!(after["spec"]["containers"][0]["env"][1], json!({ "name": "Y" }), "an absent value is not added");
    assert!(after["spec"]["containers"][1]["args"].as_str().unwrap().starts_with(MARK));
    let untouched = object(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" } }));
    assert!(Redactor::new(key(), &rules).unwrap().apply(&untouched, unexpected).unwrap().is_none());
}

#[test]
fn only_existing_digests_are_spared() {
    let before = secret("u1", &json!({ "password": "aHVudGVyMg==", "empty": "" }));
    let rules = Rule::of_secrets(Treatment::Hmac);
    let first = Redactor::new(key(), &rules).unwrap().apply(&before, unexpected).unwrap().unwrap();
    let other = Redactor::new(Key::new(b"another key of some length").unwrap(), &rules).unwrap().for_redacted();
    assert!(other.apply(&first, unexpected).unwrap().is_none(), "a digest is not digested again");
    let redacted = other.apply(&before, unexpected).unwrap().unwrap().value().unwrap();
    assert!(!redacted.to_string().contains("aHVudGVyMg"), "{redacted}");
    let like = STANDARD.encode(format!("{MARK}hunter2"));
    let redacted = other.apply(&secret("u1", &json!({ "a": like })), unexpected).unwrap().unwrap().value().unwrap();
    assert_ne!(redacted["data"]["a"], like.as_str());
}

#[test]
fn fingerprint_distinguishes_keys_only_with_digests() {
    let (one, other) = (key().fingerprint(), Key::new(b"another key of some length").unwrap().fingerprint());
    assert_eq!(one, key().fingerprint());
    assert_ne!(one, other);
    let redaction = |treatment, key| Redaction::new(false, Rule::of_secrets(treatment), Some(key));
    assert_ne!(redaction(Treatment::Hmac, &one), redaction(Treatment::Hmac, &other));
    assert_eq!(redaction(Treatment::Drop, &one), redaction(Treatment::Drop, &other));
}

#[test]
fn debug_output_hides_keys_and_short_keys_fail() {
    assert_eq!(format!("{:?}", key()), "Key(***)");
    assert_eq!(Key::new(b"short").unwrap_err(), "expected a key of at least 16 bytes, found 5");
}

/// Returns rules for paths, each with its condition, or `""`.
fn conditional(rules: &[(&str, &str)]) -> Vec<Rule> {
    let only = |expression: &str| {
        let only = Only { expression: expression.to_owned(), cluster: "prod".to_owned() };
        (!expression.is_empty()).then_some(only)
    };
    let rule = |(path, expression): &(&str, &str)| Rule {
        path: FieldPath::parse(path).unwrap(),
        treatment: Treatment::Hmac,
        base64: false,
        only: only(expression),
    };
    rules.iter().map(rule).collect()
}

fn config_map(name: &str) -> Object {
    object(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "kind": "db", "password": "hunter2" },
    }))
}

#[test]
fn path_is_redacted_where_its_condition_holds() {
    let rules = conditional(&[("data.password", "object.metadata.name.endsWith('-credentials') && cluster == 'prod'")]);
    let redactor = Redactor::new(key(), &rules).unwrap();
    assert!(redactor.apply(&config_map("settings"), unexpected).unwrap().is_none(), "it is unchanged");
    let after = redactor.apply(&config_map("db-credentials"), unexpected).unwrap().unwrap().value().unwrap();
    assert!(after["data"]["password"].as_str().unwrap().starts_with(MARK), "{after}");
    assert_eq!(after["data"]["kind"], "db");
}

#[test]
fn conditions_see_the_original_object() {
    let rules = conditional(&[("data.kind", ""), ("data.password", "object.data.kind == 'db'")]);
    let after = Redactor::new(key(), &rules).unwrap().apply(&config_map("a"), unexpected).unwrap().unwrap();
    let after = after.value().unwrap();
    for name in ["kind", "password"] {
        assert!(after["data"][name].as_str().unwrap().starts_with(MARK), "{name}: {after}");
    }
}

#[test]
fn failing_condition_redacts_and_is_reported() {
    let rules = conditional(&[("data.password", "object.spec.secret"), ("data.kind", "false")]);
    let mut doubts = Vec::new();
    let redactor = Redactor::new(key(), &rules).unwrap();
    let after = redactor.apply(&config_map("a"), |rule| doubts.push(rule.path.to_string())).unwrap().unwrap();
    let after = after.value().unwrap();
    assert!(after["data"]["password"].as_str().unwrap().starts_with(MARK), "{after}");
    assert_eq!(after["data"]["kind"], "db", "other values are unchanged");
    assert_eq!(doubts, ["data.password"]);
}

#[test]
fn redacted_objects_are_not_judged_again() {
    let redactor = Redactor::new(key(), &conditional(&[("data.*", "object.data.kind == 'db'")])).unwrap();
    let before = Redactor::new(key(), &conditional(&[("data.kind", "")])).unwrap();
    let before = before.apply(&config_map("a"), unexpected).unwrap().unwrap();
    assert!(redactor.apply(&before, unexpected).unwrap().is_none(), "the condition reads a digest");
    let after = redactor.for_redacted().apply(&before, unexpected).unwrap().unwrap().value().unwrap();
    assert!(after["data"]["password"].as_str().unwrap().starts_with(MARK), "{after}");
}

#[test]
fn different_condition_is_different_redaction() {
    let redaction = |expression: &str| Redaction::new(false, conditional(&[("data.*", expression)]), None);
    assert_ne!(redaction("true"), redaction(""));
    for expression in ["", "true"] {
        let kept = serde_json::to_value(redaction(expression)).unwrap();
        assert_eq!(kept["rules"][0].get("only").is_some(), !expression.is_empty(), "same form as in earlier releases");
        assert_eq!(serde_json::from_value::<Redaction>(kept).unwrap(), redaction(expression));
    }
    let error = Redactor::new(key(), &conditional(&[("data.*", "old.x")])).unwrap_err().to_string();
    assert!(error.contains("unknown variable `old`"), "{error}");
}

/// Returns a Secret with one annotation, and its annotations after redaction.
fn annotated(data: &Value, annotation: &Value, treatment: Treatment) -> Value {
    let before = object(&json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": { "name": "database", "namespace": "payments", "uid": "u1", "annotations": { "a": annotation, "team": "x" } },
    }));
    redacted(&before, treatment)["metadata"]["annotations"].clone()
}

/// "hunter2hunter2", a value with characters that JSON escapes, and short ones.
fn values() -> Value {
    json!({ "long": "aHVudGVyMmh1bnRlcjI=", "odd": "cCJhXHMiPHM+dwo=", "short": "aHVudGVyMg==", "port": "NTQzMg==" })
}

#[test]
fn annotation_with_copy_of_value_becomes_digest() {
    let twice = json!({ "manifest": json!({ "x": ["hunter2hunter2"] }).to_string() }).to_string();
    for copy in [
        "hunter2hunter2",
        "postgres://admin:hunter2hunter2@db/x",
        "aHVudGVyMmh1bnRlcjI=",
        "password: aHVudGVyMmh1bnRlcjI",
        "  hunter2\n",
        "aHVudGVyMg",
        "{\"x\":[\"hunter2\"]}",
        "{\"port\":5432}",
        "{\"hunter2hunter2\":1}",
        "{\"x\":\"p\\\"a\\\\s\\\"\\u003cs\\u003ew\"}",
        &twice,
        &STANDARD.encode("user:hunter2hunter2"),
        &STANDARD.encode(STANDARD.encode(&twice)),
        // An earlier value, in a copy of the whole object.
        "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"data\":{\"long\":\"b2xk\"}}",
        "[{\"old\":{\"stringData\":{\"long\":\"old\"}}}]",
        // gzip, zip
        "H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==",
        "UEsDBBQACAAIAAAAAAAAAAAAAAAAAAAAAAA=",
    ] {
        let after = annotated(&values(), &json!(copy), Treatment::Hmac);
        assert!(is_digest(&after["a"], false), "{copy}: {after}");
        assert_eq!(after["team"], "x", "other annotations stay");
        let after = annotated(&values(), &json!(copy), Treatment::Drop);
        assert_eq!(after, json!({ "team": "x" }), "{copy}");
    }
    let of = |copy: &str| annotated(&values(), &json!(copy), Treatment::Hmac)["a"].clone();
    assert_eq!(of("hunter2"), of("hunter2"));
    assert_ne!(of("hunter2"), of("hunter2 "), "a change is visible");
}

#[test]
fn annotation_without_copy_stays() {
    let public = json!({ "namespace": "cGF5bWVudHM=", "name": "ZGF0YWJhc2U=", "empty": "", "short": "aHVudGVyMg==" });
    for other in [
        "",
        "true",
        "payments",
        "database",
        "payments/database",
        "hunter2 is short",
        "{\"x\":[\"hunter\",1,true,null,\"\"]}",
        "{\"data\":null}",
        "{\"metadata\":{\"annotations\":{}}}",
        "{hunter2",
        "c29tZSB0ZXh0IGluIGJhc2U2NA==",
    ] {
        let after = annotated(&public, &json!(other), Treatment::Hmac);
        assert_eq!(after, json!({ "a": other, "team": "x" }));
    }
}

#[test]
fn deep_and_long_annotations_are_searched() {
    let many: serde_json::Map<_, _> =
        (0..4_000).map(|i| (format!("k{i}"), json!(STANDARD.encode(format!("aaaaaaa{i}"))))).collect();
    let nested = (0..=LAYERS).fold("\"x\"".to_owned(), |text, _| json!([text]).to_string());
    let long = "a".repeat(256 << 10);
    for (text, is_copy) in [
        (long.clone(), false),
        (long + "3999", true),
        ("[".repeat(100) + &"]".repeat(100), false),
        ("[".repeat(256 << 10), false),
        (nested, true),
    ] {
        let after = annotated(&Value::Object(many.clone()), &json!(text), Treatment::Hmac);
        assert_eq!(is_digest(&after["a"], false), is_copy, "{text:.40}");
    }
}

/// Rule of a tool that keeps the applied object, for any type with redacted paths.
#[test]
fn copies_of_configured_paths_are_found_too() {
    let custom = |original: &str, other: &str| {
        object(&json!({
            "apiVersion": "acme.io/v1", "kind": "Database", "spec": { "password": "hunter2hunter2", "debug": "true", "port": 54321 },
            "metadata": { "name": "db", "annotations": { "kapp.k14s.io/original": original, "other": other } },
        }))
    };
    let rules = conditional(&[("spec.password", ""), ("spec.debug", "")]);
    let redactor = Redactor::new(key(), &rules).unwrap();
    let after = |object: Object| redactor.apply(&object, unexpected).unwrap().unwrap().value().unwrap();
    let found = after(custom("{\"spec\":{\"password\":\"old\"}}", "is hunter2hunter2"));
    for name in ["kapp.k14s.io/original", "other"] {
        assert!(is_digest(&found["metadata"]["annotations"][name], false), "{name}: {found}");
    }
    let left = json!({ "kapp.k14s.io/original": "{\"spec\":{\"port\":54321}}", "other": "true" });
    assert_eq!(after(custom("{\"spec\":{\"port\":54321}}", "true"))["metadata"]["annotations"], left);
    let where_not = Redactor::new(key(), &conditional(&[("spec.password", "false")])).unwrap();
    assert!(where_not.apply(&custom("hunter2hunter2", ""), unexpected).unwrap().is_none(), "no value is redacted");
}

#[test]
fn managed_fields_keep_no_value_and_no_dropped_name() {
    let managed = |fields: &Value| json!([{ "manager": "m", "fieldsV1": fields }]);
    let secret = |fields: &Value| {
        object(&json!({
            "apiVersion": "v1", "kind": "Secret", "data": { "password": "aHVudGVyMg==" },
            "metadata": { "name": "db", "managedFields": managed(fields) },
        }))
    };
    let names = json!({ "f:data": { ".": {}, "f:password": {} }, "f:stringData": { "f:x": {} }, "f:type": {} });
    assert_eq!(redacted(&secret(&names), Treatment::Hmac)["metadata"]["managedFields"], managed(&names));
    let after = redacted(&secret(&names), Treatment::Drop);
    assert_eq!(after["metadata"]["managedFields"], managed(&json!({ "f:type": {} })));
    let custom = object(&json!({
        "apiVersion": "acme.io/v1", "kind": "Access", "spec": { "tokens": ["hunter2hunter2"], "keys": [{ "key": "sesame-open" }] },
        "metadata": { "name": "db", "managedFields": managed(&json!({ "f:spec": {
            "f:tokens": { ".": {}, "v:\"hunter2hunter2\"": {}, "v:\"public\"": {} },
            "f:keys": { "k:{\"key\":\"sesame-open\"}": { "f:key": {} } },
        }})) },
    }));
    let redactor = Redactor::new(key(), &conditional(&[("spec.tokens[*]", ""), ("spec.keys[*].key", "")])).unwrap();
    let after = redactor.apply(&custom, unexpected).unwrap().unwrap().value().unwrap();
    let left = managed(&json!({ "f:spec": { "f:tokens": { ".": {}, "v:\"public\"": {} }, "f:keys": {} } }));
    assert_eq!(after["metadata"]["managedFields"], left);
}

/// A peer that is no API server may send this.
#[test]
fn text_in_place_of_data_is_redacted() {
    for data in [json!("aHVudGVyMg=="), json!(12_345_678)] {
        let before = secret("u1", &data);
        let after = redacted(&before, Treatment::Hmac);
        assert!(is_digest(&after["data"], true), "{after}");
        assert_eq!(redacted(&before, Treatment::Drop)["data"], Value::Null);
    }
    let redactor = Redactor::new(key(), &conditional(&[("*.*.*", "")])).unwrap();
    let after = redactor.apply(&secret("u1", &json!("aHVudGVyMg==")), unexpected).unwrap().unwrap();
    let value = after.value().unwrap();
    assert_eq!((after.name(), after.uid(), &value["kind"]), ("db", "u1", &json!("Secret")), "the identity stays");
    assert!(is_digest(&value["data"], false) && is_digest(&value["type"], false), "{value}");
}

/// Objects that an earlier release saved.
#[test]
fn saved_copies_of_objects_are_redacted_after_upgrade() {
    let kept = serde_json::to_value(Redaction::new(false, Rule::of_secrets(Treatment::Hmac), None)).unwrap();
    let mut earlier = kept.clone();
    earlier.as_object_mut().unwrap().remove("copies");
    let [kept, earlier] = [kept, earlier].map(|kept| serde_json::from_value::<Redaction>(kept).unwrap());
    assert_ne!(kept, earlier, "the type is listed again");
    let mut saved = redacted(&secret("u1", &values()), Treatment::Hmac);
    saved["metadata"]["annotations"]["kapp.k14s.io/original"] = json!("{\"data\":{\"long\":\"aHVudGVyMmh1bnRlcjI=\"}}");
    let redactor = Redactor::new(key(), &Rule::of_secrets(Treatment::Hmac)).unwrap().for_redacted();
    let first = redactor.apply(&object(&saved), unexpected).unwrap().unwrap();
    assert!(is_digest(&first.value().unwrap()["metadata"]["annotations"]["kapp.k14s.io/original"], false));
    assert!(redactor.apply(&first, unexpected).unwrap().is_none(), "digests stay");
}
