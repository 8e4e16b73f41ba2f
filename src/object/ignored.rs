//! Comparison of two states of an object without the ignored fields (`ignore_changes`).

use serde_json::Value;

use super::{
    FieldPath, Object,
    field_path::PathStep,
    scan::{JsonCursor, PathTree, ScanError},
};

/// Fields that every update changes: the version, and the server's record of modifiers.
const ALWAYS: [&str; 2] = ["metadata.resourceVersion", "metadata.managedFields"];

/// Prepared paths whose values may change without counting as a change.
///
/// `metadata.resourceVersion` and `metadata.managedFields` are always ignored. Two states are the same if they are equal
/// without the ignored values. If an ignored path adds or removes its parent, that is a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredPaths {
    paths: Vec<FieldPath>,
    tree: PathTree,
}

/// Reason why two texts cannot be compared side by side.
enum Apart {
    /// One has a member that the other lacks or has at another position; it may be an ignored one.
    Members,
    Malformed,
}

impl From<ScanError> for Apart {
    fn from(_: ScanError) -> Self {
        Self::Malformed
    }
}

impl IgnoredPaths {
    /// Prepares `paths`.
    pub fn new(paths: &[FieldPath]) -> Self {
        let always = ALWAYS.map(|path| FieldPath::parse(path).expect("a valid path"));
        let paths: Vec<_> = paths.iter().cloned().chain(always).collect();
        Self { tree: PathTree::new(&paths), paths }
    }

    /// Returns true if both states differ only in ignored fields. Unreadable bodies count as different.
    ///
    /// Both texts are walked side by side up to the first difference. They are decoded only if that gives no result: one has a
    /// member that the other lacks, or has in another order.
    pub fn covers_all_between(&self, old: &Object, new: &Object) -> bool {
        let (old, new) = (old.json(), new.json());
        match same(&mut JsonCursor::new(&old), &mut JsonCursor::new(&new), Some(&self.tree)) {
            Ok(same) => same,
            Err(Apart::Malformed) => false,
            Err(Apart::Members) => {
                let without = |json: &[u8]| {
                    let mut value = serde_json::from_slice(json).ok()?;
                    self.paths.iter().for_each(|path| cut(&mut value, path.steps()));
                    Some(value)
                };
                without(&old).is_some_and(|old| without(&new) == Some(old))
            }
        }
    }
}

/// Compares two values; if they are the same, both cursors end after them. The recursion is limited by the bracket depth.
fn same(old: &mut JsonCursor<'_>, new: &mut JsonCursor<'_>, ignored: Option<&PathTree>) -> Result<bool, Apart> {
    let ignored = ignored.filter(|tree| tree.goes_on());
    let (old_begins, new_begins) = (old.peek()?, new.peek()?);
    if ignored.is_none() {
        let begin = (old.clone(), new.clone());
        if old.skip_value()? == new.skip_value()? {
            return Ok(true);
        }
        (*old, *new) = begin; // the same value may be written differently
    }
    match (old_begins, new_begins) {
        (b'{', b'{') => same_members(old, new, ignored),
        (b'[', b'[') => same_elements(old, new, ignored),
        _ => {
            let decoded = |json: &[u8]| serde_json::from_slice::<Value>(json).map_err(|_| Apart::Malformed);
            Ok(decoded(old.skip_value()?)? == decoded(new.skip_value()?)?)
        }
    }
}

fn same_members(old: &mut JsonCursor<'_>, new: &mut JsonCursor<'_>, ignored: Option<&PathTree>) -> Result<bool, Apart> {
    old.enter(b'{', "an object")?;
    new.enter(b'{', "an object")?;
    let (mut old_first, mut new_first) = (true, true);
    loop {
        match (old.next_member(&mut old_first)?, new.next_member(&mut new_first)?) {
            (None, None) => return Ok(true),
            (Some(one), Some(other)) => {
                let key = one.key.bytes()?;
                if key != other.key.bytes()? {
                    return Err(Apart::Members);
                }
                let below = ignored.and_then(|tree| tree.member(&key)).map(|(_, below)| below);
                if below.is_some_and(|below| !below.ends().is_empty()) {
                    old.skip_value()?;
                    new.skip_value()?;
                } else if !same(old, new, below)? {
                    return Ok(false);
                }
            }
            _ => return Err(Apart::Members),
        }
    }
}

fn same_elements(
    old: &mut JsonCursor<'_>,
    new: &mut JsonCursor<'_>,
    ignored: Option<&PathTree>,
) -> Result<bool, Apart> {
    let each = ignored.and_then(PathTree::each);
    if each.is_some_and(|each| !each.ends().is_empty()) {
        old.skip_value()?;
        new.skip_value()?;
        return Ok(true);
    }
    old.enter(b'[', "an array")?;
    new.enter(b'[', "an array")?;
    let (mut old_first, mut new_first) = (true, true);
    loop {
        match (old.next_element(&mut old_first)?, new.next_element(&mut new_first)?) {
            (None, None) => return Ok(true),
            (Some(_), Some(_)) => {
                if !same(old, new, each)? {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
    }
}

/// Removes the value at a path.
fn cut(value: &mut Value, steps: &[PathStep]) {
    let Some((step, rest)) = steps.split_first() else { return };
    match (step, value) {
        (PathStep::Member(name), Value::Object(members)) if rest.is_empty() => drop(members.remove(&**name)),
        (PathStep::Member(name), Value::Object(members)) => {
            if let Some(member) = members.get_mut(&**name) {
                cut(member, rest);
            }
        }
        (PathStep::Each, Value::Object(members)) if rest.is_empty() => members.clear(),
        (PathStep::Each, Value::Object(members)) => members.values_mut().for_each(|member| cut(member, rest)),
        (PathStep::Each, Value::Array(elements)) if rest.is_empty() => elements.clear(),
        (PathStep::Each, Value::Array(elements)) => elements.iter_mut().for_each(|element| cut(element, rest)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::{prelude::*, test_runner::TestRunner};
    use serde_json::json;

    use super::*;

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

    /// Row 16 of the users' requests: "only tell me when these fields change".
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
    fn different_spelling_of_equal_json_is_no_change() {
        let [old, new] = [
            r#"{"apiVersion":"v1","kind":"A","metadata":{"name":"n","resourceVersion":"1"},"data":{"a":"<","b":[1, 2.0]}}"#,
            r#"{"kind":"A","apiVersion":"v1","data":{"b":[1,2.0],"a":"\u003c"},"metadata":{"resourceVersion":"2","name":"n"}}"#,
        ]
        .map(|json| Object::from_json(json.as_bytes()).unwrap());
        assert!(ignoring(&["status"]).covers_all_between(&old, &new));
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

    /// Writes members in reverse order; the result must compare as the same.
    fn turned(value: &Value) -> String {
        match value {
            Value::Object(members) => {
                let members: Vec<_> =
                    members.iter().rev().map(|(key, value)| format!("{}:{}", json!(key), turned(value))).collect();
                format!("{{{}}}", members.join(","))
            }
            Value::Array(elements) => format!("[{}]", elements.iter().map(turned).collect::<Vec<_>>().join(" ,")),
            other => other.to_string(),
        }
    }

    /// Rule: S-4.
    #[test]
    fn ignoring_paths_equals_comparing_without_them() {
        let (same, other) = (Cell::new(0), Cell::new(0));
        let states = (value(), value(), any::<bool>(), proptest::collection::vec(steps(), 1..3), any::<bool>());
        let config = ProptestConfig::with_cases(2_000);
        let run = TestRunner::new(config).run(&states, |(old, new, is_alike, paths, is_turned)| {
            let new = if is_alike { old.clone() } else { new };
            let object = |version: &str, spec: &Value, text: &dyn Fn(&Value) -> String| {
                let value = json!({
                    "apiVersion": "v1", "kind": "A", "metadata": { "name": "n", "resourceVersion": version }, "spec": spec,
                });
                Object::from_json(text(&value).as_bytes()).unwrap()
            };
            let old_object = object("1", &old, &Value::to_string);
            let new_object = object("2", &new, if is_turned { &turned } else { &Value::to_string });
            let without = |object: &Object| {
                let mut value = object.value().unwrap();
                value["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                for path in &paths {
                    cut(&mut value, FieldPath::parse(path).unwrap().steps());
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
