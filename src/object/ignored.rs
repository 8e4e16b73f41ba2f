//! Comparison of two states of an object without the ignored fields (`ignore_changes`).

use super::{
    FieldPath, Object,
    scan::{PathTree, without},
};

/// Fields that every update changes: the version, and the server's record of modifiers.
const ALWAYS: [&str; 2] = ["metadata.resourceVersion", "metadata.managedFields"];

/// Prepared paths of ignored values. An update that changes only these values does not count as a change.
///
/// `metadata.resourceVersion` and `metadata.managedFields` are always ignored. Two states are the same if their JSON is equal
/// without the ignored values: an API server writes equal objects as equal bytes. An update that adds or removes the parent of an
/// ignored value is a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredPaths(PathTree);

impl IgnoredPaths {
    /// Prepares `paths`.
    pub fn new(paths: &[FieldPath]) -> Self {
        let always = ALWAYS.map(|path| FieldPath::parse(path).expect("a valid path"));
        Self(PathTree::new(&[paths, &always].concat()))
    }

    /// Returns true if both states differ only in ignored fields. Unreadable bodies count as different.
    pub fn covers_all_between(&self, old: &Object, new: &Object) -> bool {
        let (old, new) = (old.json(), new.json());
        without(&old, &self.0).is_ok_and(|old| without(&new, &self.0).is_ok_and(|new| old == new))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::{prelude::*, test_runner::TestRunner};
    use serde_json::{Value, json};

    use super::{super::scan::testing::remove, *};

    fn object(value: &Value) -> Object {
        Object::from_json(value.to_string().as_bytes()).unwrap()
    }

    fn ignoring(paths: &[&str]) -> IgnoredPaths {
        let paths: Vec<_> = paths.iter().map(|path| FieldPath::parse(path).unwrap()).collect();
        IgnoredPaths::new(&paths)
    }

    fn node(version: &str, rest: &Value) -> Value {
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n", "uid": "u", "resourceVersion": version, "generation": 1 },
        });
        node.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        node
    }

    /// Request of users: "only tell me when these fields change".
    #[test]
    fn heartbeat_is_no_change_but_other_fields_are() {
        let ignored = ignoring(&["status.conditions[*].lastHeartbeatTime", "metadata.labels['seen']"]);
        let status = |time: &str, ready: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": ready, "lastHeartbeatTime": time }] } });
        let old = node("1", &status("09:00", "True"));
        let check = |new: &Value, expected: bool| {
            assert_eq!(ignored.covers_all_between(&object(&old), &object(new)), expected, "{new}");
        };
        check(&node("2", &status("09:10", "True")), true);
        check(&node("2", &status("09:10", "False")), false);
        check(&node("2", &status("09:00", "True")), true);
        let mut managed = node("2", &status("09:10", "True"));
        managed["metadata"]["managedFields"] = json!([{ "manager": "kubelet" }]);
        check(&managed, true);
        let mut generation = node("2", &status("09:10", "True"));
        generation["metadata"]["generation"] = json!(2);
        check(&generation, false);
        let mut more = node("2", &status("09:10", "True"));
        more["status"]["conditions"].as_array_mut().unwrap().push(json!({ "lastHeartbeatTime": "09:10" }));
        check(&more, false);
        let mut gone = node("2", &status("09:10", "True"));
        gone["status"]["conditions"][0].as_object_mut().unwrap().remove("lastHeartbeatTime");
        check(&gone, true);
        let mut parent = node("2", &status("09:10", "True"));
        parent["metadata"]["labels"] = json!({ "seen": "yes" });
        check(&parent, false);
    }

    #[test]
    fn unreadable_body_counts_as_different() {
        let json = |spec: &str| {
            let json = format!(r#"{{"apiVersion":"v1","kind":"A","metadata":{{"name":"n"}},"spec":{{"a":{spec}}}}}"#);
            Object::from_json(json.as_bytes()).unwrap()
        };
        assert!(!ignoring(&["spec.b"]).covers_all_between(&json("tru"), &json("fals")));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!(null)), (0..2_i64).prop_map(Value::from), "[a<]".prop_map(Value::from)];
        leaf.prop_recursive(3, 12, 3, |inner| {
            let members = proptest::collection::btree_map("[ab]", inner.clone(), 0..3);
            prop_oneof![
                proptest::collection::vec(inner, 0..3).prop_map(Value::from),
                members.prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn steps() -> impl Strategy<Value = String> {
        let step = prop_oneof![Just(".a"), Just(".b"), Just("[*]")];
        proptest::collection::vec(step, 0..3).prop_map(|steps| format!("spec{}", steps.concat()))
    }

    /// Rule: S-4.
    #[test]
    fn ignoring_paths_equals_comparing_without_them() {
        let (same, other) = (Cell::new(0), Cell::new(0));
        let states = (value(), value(), any::<bool>(), proptest::collection::vec(steps(), 1..3));
        let config = ProptestConfig::with_cases(2_000);
        let run = TestRunner::new(config).run(&states, |(old, new, is_alike, paths)| {
            let new = if is_alike { old.clone() } else { new };
            let state = |version: &str, spec: &Value| {
                object(&json!({
                    "apiVersion": "v1", "kind": "A", "metadata": { "name": "n", "resourceVersion": version }, "spec": spec,
                }))
            };
            let (old_object, new_object) = (state("1", &old), state("2", &new));
            let without = |object: &Object| {
                let mut value = object.value().unwrap();
                value["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                for path in &paths {
                    remove(&mut value, FieldPath::parse(path).unwrap().steps());
                }
                value
            };
            let expected = without(&old_object) == without(&new_object);
            let hits = if expected { &same } else { &other };
            hits.set(hits.get() + u64::from(old != new));
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            prop_assert_eq!(ignoring(&paths).covers_all_between(&old_object, &new_object), expected);
            Ok(())
        });
        run.unwrap();
        assert!(same.get() > 100 && other.get() > 100, "{same:?} {other:?}");
    }
}
