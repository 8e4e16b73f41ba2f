//! Difference between two states of an object: as a JSON Patch, as a JSON Merge Patch, or as a list of paths.
//!
//! The patches are complete: applied to the old state, each gives the new one. They compare elements of arrays by position, so an
//! element inserted at the front changes all later ones. The list of paths is made for readers: it compares the elements of a list
//! of objects by their [merge key](super::merge_key), if there is one.
//!
//! A long name of a member is part of the path of each value below it. So that one object cannot take gigabytes, it is one
//! difference if its paths would take more than 64 MiB.

use std::{borrow::Cow, fmt::Write as _};

use json_patch::{Patch, PatchOperation, ReplaceOperation};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{field_path::write_member, merge_key::Pairs};

/// One difference between two states, at the deepest path of the change. An added member is one difference, whatever its
/// content. Another order of a list with merge keys is one difference at the path of the list; its values are the merge keys in the
/// old and the new order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference<'a> {
    /// Path in the syntax of a [`FieldPath`](super::FieldPath), with positions in arrays: `spec.containers[0].image`. The position
    /// is that in the new state; of a removed element, that in the old state. Empty if the two states are different kinds of
    /// value, or have too long paths.
    pub path: String,
    /// Old value; `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Cow<'a, Value>>,
    /// New value; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Cow<'a, Value>>,
}

/// Maximum number of bytes of all paths in a state. A normal object of 1 MiB has a tenth of it.
const PATHS_MAX: usize = 64 << 20;

/// Returns the JSON Patch (RFC 6902) from one value to another. It only has the operations `add`, `remove` and `replace`.
pub(crate) fn json_patch(old: &Value, new: &Value) -> Patch {
    if have_short_paths(old, new) {
        return json_patch::diff(old, new);
    }
    let whole = ReplaceOperation { value: new.clone(), ..ReplaceOperation::default() };
    Patch(if old == new { Vec::new() } else { vec![PatchOperation::Replace(whole)] })
}

/// Returns the JSON Merge Patch (RFC 7386) from `old` to `new`. `None` if no such patch exists: `null` in a patch deletes
/// a member, so no patch can set a member to `null`.
pub(crate) fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    let Value::Object(new) = new else { return Some(new.clone()) };
    let nothing = Map::new();
    let old = old.as_object().unwrap_or(&nothing);
    let mut patch = Map::new();
    for (name, value) in new {
        let before = old.get(name);
        if before == Some(value) {
            continue;
        }
        if value.is_null() {
            return None;
        }
        patch.insert(name.clone(), merge_patch(before.unwrap_or(&Value::Null), value)?);
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

/// Returns all differences in the order of `old`. The added members of an object follow its other members.
pub(crate) fn differences<'a>(old: &'a Value, new: &'a Value) -> Vec<Difference<'a>> {
    let mut walk = Walk { path: String::new(), found: Vec::new() };
    if have_short_paths(old, new) {
        walk.values(Some(old), Some(new));
    } else if old != new {
        walk.push(Some(Cow::Borrowed(old)), Some(Cow::Borrowed(new)));
    }
    walk.found
}

fn have_short_paths(old: &Value, new: &Value) -> bool {
    [old, new].into_iter().all(|state| paths_size(state, 0) <= PATHS_MAX)
}

/// Returns the number of bytes of the paths of all values below a value whose own path has `length` bytes, without separators.
fn paths_size(value: &Value, length: usize) -> usize {
    let below = |length: usize, value| length.saturating_add(paths_size(value, length));
    match value {
        Value::Object(members) => {
            members.iter().fold(0, |size, (name, value)| size.saturating_add(below(length + name.len(), value)))
        }
        Value::Array(elements) => elements.iter().fold(0, |size, value| size.saturating_add(below(length, value))),
        _ => 0,
    }
}

/// Returns the paths of all [`differences`] between two documents; empty if one of them is malformed.
pub(crate) fn paths_between(old: &[u8], new: &[u8]) -> Vec<String> {
    let parse = |json: &[u8]| serde_json::from_slice::<Value>(json).ok();
    let (Some(old), Some(new)) = (parse(old), parse(new)) else { return Vec::new() };
    differences(&old, &new).into_iter().map(|difference| difference.path).collect()
}

struct Walk<'a> {
    path: String,
    found: Vec<Difference<'a>>,
}

impl<'a> Walk<'a> {
    fn push(&mut self, old: Option<Cow<'a, Value>>, new: Option<Cow<'a, Value>>) {
        self.found.push(Difference { path: self.path.clone(), old, new });
    }

    fn values(&mut self, old: Option<&'a Value>, new: Option<&'a Value>) {
        match (old, new) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                for (name, value) in old {
                    self.member(name, Some(value), new.get(name));
                }
                for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                    self.member(name, None, Some(value));
                }
            }
            (Some(Value::Array(old)), Some(Value::Array(new))) if old == new => {}
            (Some(Value::Array(old)), Some(Value::Array(new))) if let Some(pairs) = Pairs::of(old, new) => {
                for &(before, after) in &pairs.positions {
                    let step = |path: &mut String| write!(path, "[{}]", after.or(before).unwrap_or_default());
                    self.under(step, before.map(|at| &old[at]), after.map(|at| &new[at]));
                }
                if pairs.is_reordered() {
                    let [old, new] = pairs.orders(old).map(|order| Some(Cow::Owned(order)));
                    self.push(old, new);
                }
            }
            (Some(Value::Array(old)), Some(Value::Array(new))) => {
                for index in 0..old.len().max(new.len()) {
                    let step = |path: &mut String| write!(path, "[{index}]");
                    self.under(step, old.get(index), new.get(index));
                }
            }
            (old, new) if old != new => {
                self.push(old.map(Cow::Borrowed), new.map(Cow::Borrowed));
            }
            _ => {}
        }
    }

    fn member(&mut self, name: &str, old: Option<&'a Value>, new: Option<&'a Value>) {
        let first = self.path.is_empty();
        self.under(|path| write_member(path, name, first), old, new);
    }

    fn under(
        &mut self,
        step: impl FnOnce(&mut String) -> std::fmt::Result,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
    ) {
        let len = self.path.len();
        step(&mut self.path).expect("text takes everything");
        self.values(old, new);
        self.path.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::object::FieldPath;

    enum At {
        Member(String),
        Index(usize),
    }

    /// Parses a path with positions, independently of the path code under test.
    fn steps(path: &str) -> Vec<At> {
        let (mut steps, mut letters) = (Vec::new(), path.chars().peekable());
        while let Some(first) = letters.next() {
            if first == '[' && letters.next_if_eq(&'\'').is_some() {
                let mut name = String::new();
                while let Some(letter) = letters.next().filter(|letter| *letter != '\'') {
                    name.push(if letter == '\\' { letters.next().unwrap() } else { letter });
                }
                assert_eq!(letters.next(), Some(']'), "{path}");
                steps.push(At::Member(name));
                continue;
            }
            let mut word = if matches!(first, '.' | '[') { String::new() } else { first.to_string() };
            while let Some(letter) = letters.next_if(|letter| !matches!(letter, '.' | '[' | ']')) {
                word.push(letter);
            }
            steps.push(if first == '[' { At::Index(word.parse().unwrap()) } else { At::Member(word) });
            letters.next_if_eq(&']');
        }
        steps
    }

    /// Applies one difference to `old`.
    fn apply(target: &mut Value, path: &[At], new: Option<&Value>) {
        let [first, rest @ ..] = path else {
            *target = new.unwrap().clone();
            return;
        };
        if rest.is_empty() {
            match (first, new) {
                (At::Member(name), Some(new)) => target[name] = new.clone(),
                (At::Member(name), None) => drop(target.as_object_mut().unwrap().shift_remove(name).unwrap()),
                (At::Index(at), Some(new)) if *at == target.as_array().unwrap().len() => {
                    target.as_array_mut().unwrap().push(new.clone());
                }
                (At::Index(at), Some(new)) => target[*at] = new.clone(),
                (At::Index(at), None) => drop(target.as_array_mut().unwrap().remove(*at)),
            }
            return;
        }
        let inner = match first {
            At::Member(name) => target.get_mut(name),
            At::Index(at) => target.get_mut(*at),
        };
        apply(inner.unwrap(), rest, new);
    }

    fn found(old: &Value, new: &Value) -> Value {
        json!(differences(old, new))
    }

    #[test]
    fn difference_has_path_old_and_new_value() {
        let old = json!({
            "metadata": { "labels": { "app": "web", "a/b": "1" } },
            "spec": { "containers": [{ "image": "web:1" }, { "image": "side:1" }], "replicas": 2 },
        });
        let new = json!({
            "metadata": { "labels": { "app": "web", "a/b": "2" } },
            "spec": { "containers": [{ "image": "web:2" }], "replicas": 2, "paused": { "by": "me" } },
        });
        assert_eq!(
            found(&old, &new),
            json!([
                { "path": "metadata.labels['a/b']", "old": "1", "new": "2" },
                { "path": "spec.containers[0].image", "old": "web:1", "new": "web:2" },
                { "path": "spec.containers[1]", "old": { "image": "side:1" } },
                { "path": "spec.paused", "new": { "by": "me" } },
            ])
        );
        assert_eq!(found(&new, &new), json!([]));
    }

    #[test]
    fn sidecar_in_front_is_one_difference() {
        let spec = |containers: Value| json!({ "spec": { "containers": containers } });
        let nginx = |image: &str| json!({ "name": "nginx", "image": image });
        let side = json!({ "name": "side", "image": "side:1" });
        let alone = spec(json!([nginx("nginx:1")]));
        assert_eq!(
            found(&alone, &spec(json!([side, nginx("nginx:1")]))),
            json!([{ "path": "spec.containers[0]", "new": side }])
        );
        assert_eq!(
            found(&spec(json!([side, nginx("nginx:1")])), &alone),
            json!([{ "path": "spec.containers[0]", "old": side }])
        );
        assert_eq!(
            found(&alone, &spec(json!([side, nginx("nginx:2")]))),
            json!([
                { "path": "spec.containers[1].image", "old": "nginx:1", "new": "nginx:2" },
                { "path": "spec.containers[0]", "new": side },
            ])
        );
    }

    #[test]
    fn change_of_order_is_one_difference() {
        let condition = |of: &str, status: &str| json!({ "type": of, "status": status, "reason": of });
        let old = json!({ "conditions": [condition("Ready", "True"), condition("Synced", "True")] });
        let order = |types: [&str; 2]| types.iter().map(|of| json!({ "type": of })).collect::<Value>();
        let moved =
            json!({ "path": "conditions", "old": order(["Ready", "Synced"]), "new": order(["Synced", "Ready"]) });
        let new = json!({ "conditions": [condition("Synced", "True"), condition("Ready", "True")] });
        assert_eq!(found(&old, &new), json!([moved]));
        let new = json!({ "conditions": [condition("Synced", "False"), condition("New", "True"), condition("Ready", "True")] });
        assert_eq!(
            found(&old, &new),
            json!([
                { "path": "conditions[0].status", "old": "True", "new": "False" },
                { "path": "conditions[1]", "new": condition("New", "True") },
                moved,
            ])
        );
        // the patches keep their meaning: positions
        assert!(json_patch(&old, &new).0.len() > 3);
        assert_eq!(merge_patch(&old, &new), Some(new));
    }

    #[test]
    fn long_member_names_take_bounded_memory() {
        let state = |length: usize, value: usize| json!({ "x".repeat(length): vec![value; 1_000], "y": value });
        let (old, new) = (state(1_000, 1), state(1_000, 2));
        assert_eq!((differences(&old, &new).len(), json_patch(&old, &new).0.len()), (1_001, 1_001));
        let (old, new) = (state(100_000, 1), state(100_000, 2));
        assert_eq!(found(&old, &new), json!([{ "path": "", "old": old, "new": new }]));
        assert_eq!(json!(json_patch(&old, &new)), json!([{ "op": "replace", "path": "", "value": new }]));
        assert!(found(&new, &new) == json!([]) && json_patch(&new, &new).is_empty());
    }

    #[test]
    fn null_is_value_and_top_path_is_bracketed() {
        assert_eq!(
            found(&json!({ "labels": null, "a": 1 }), &json!({ "a": null })),
            json!([{ "path": "['labels']", "old": null }, { "path": "a", "old": 1, "new": null }])
        );
        assert_eq!(found(&json!(1), &json!([])), json!([{ "path": "", "old": 1, "new": [] }]));
    }

    #[test]
    fn merge_patch_cannot_create_null() {
        let none = |old: Value, new: Value| assert_eq!(merge_patch(&old, &new), None, "{old} {new}");
        none(json!({}), json!({ "a": null }));
        none(json!({ "a": 1 }), json!({ "a": null }));
        none(json!({ "a": 1 }), json!({ "a": { "b": null } }));
        let same = |old: Value, new: Value, patch: Value| assert_eq!(merge_patch(&old, &new), Some(patch));
        same(json!({ "a": null, "b": 1 }), json!({ "a": null, "b": 2 }), json!({ "b": 2 }));
        same(json!({ "a": 1 }), json!({ "a": [null] }), json!({ "a": [null] }));
        same(json!({ "a": { "b": 1 } }), json!({ "a": {} }), json!({ "a": { "b": null } }));
        same(json!({ "a": 1 }), json!({ "a": {} }), json!({ "a": {} }));
    }

    /// Generates values from few names and scalars, so that two values often have common parts.
    fn value() -> BoxedStrategy<Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2_i64..3).prop_map(Value::from),
            prop_oneof![Just(0.0), Just(1.5)].prop_map(Value::from),
            "[ab]{0,1}".prop_map(Value::from),
        ];
        let values = scalar.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from), object(inner)]
        });
        values.boxed()
    }

    fn object(values: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
        let name = prop_oneof![
            "[a-c]",
            Just("labels".to_owned()),
            Just("owner".to_owned()),
            Just(String::new()),
            r"[a/~.'\\\]\[0 é-]{1,3}"
        ];
        let members = proptest::collection::vec((name, values), 0..5);
        members.prop_map(|members| Value::Object(members.into_iter().collect())).boxed()
    }

    /// Generates two values: independent values, or two objects of which one contains all member names of the other.
    fn pair() -> impl Strategy<Value = (Value, Value)> {
        let mixed = (object(value()), object(value())).prop_map(|(old, other)| {
            let mut new = old.clone();
            if let (Value::Object(new), Value::Object(other)) = (&mut new, other) {
                new.extend(other);
            }
            (old, new)
        });
        let mixed = mixed.boxed();
        prop_oneof![(value(), value()), mixed.clone(), mixed.prop_map(|(old, new)| (new, old))]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn old_plus_json_patch_equals_new((old, new) in pair()) {
            let mut patched = old.clone();
            json_patch::patch(&mut patched, &json_patch(&old, &new)).unwrap();
            prop_assert_eq!(patched, new);
        }

        #[test]
        fn old_plus_merge_patch_equals_new((old, new) in pair()) {
            if let Some(patch) = merge_patch(&old, &new) {
                let mut patched = old.clone();
                json_patch::merge(&mut patched, &patch);
                prop_assert_eq!(patched, new);
            } else {
                prop_assert!(new.to_string().contains("null"));
            }
        }

        #[test]
        fn old_plus_differences_equals_new((old, new) in pair()) {
            let mut patched = old.clone();
            let found = differences(&old, &new);
            let (gone, there): (Vec<_>, Vec<_>) = found.iter().partition(|found| found.new.is_none());
            // remove elements from the end, so that no index shifts before it is used
            for found in there.into_iter().chain(gone.into_iter().rev()) {
                let steps = steps(&found.path);
                apply(&mut patched, &steps, found.new.as_deref());
                if !steps.is_empty() && steps.iter().all(|step| matches!(step, At::Member(_))) {
                    prop_assert_eq!(FieldPath::parse(&found.path).unwrap().to_string(), found.path.clone());
                }
            }
            prop_assert_eq!(patched, new);
        }

        #[test]
        fn only_equal_values_have_no_differences((old, new) in pair()) {
            prop_assert_eq!(differences(&old, &new).is_empty(), old == new);
            prop_assert_eq!(json_patch(&old, &new).is_empty(), old == new);
            prop_assert!(differences(&new, &new).is_empty());
        }
    }

    #[test]
    fn change_is_reported_at_deepest_path() {
        let check = |old: &str, new: &str, expected: &[&str]| {
            assert_eq!(paths_between(old.as_bytes(), new.as_bytes()), expected, "{old} {new}");
        };
        check(r#"{"a":{"b":1,"c":2}}"#, r#"{"a":{"b":2,"c":2}}"#, &["a.b"]);
        check(r#"{"a":{"b":1}}"#, r#"{"a":{}}"#, &["a.b"]);
        check(r#"{"a":1}"#, r#"{"a":1,"b":{"c":1}}"#, &["b"]);
        check(r#"{"a":[{"i":1},{"i":2}]}"#, r#"{"a":[{"i":1},{"i":3},4]}"#, &["a[1].i", "a[2]"]);
        check(r#"{"m":{"a/b":1,"it's":1}}"#, r#"{"m":{"a/b":2,"it's":2}}"#, &["m['a/b']", r"m['it\'s']"]);
        check(r#"{"labels":1}"#, r#"{"labels":2}"#, &["['labels']"]);
        check(r#"{"a":1}"#, r#"{ "a" : 1 }"#, &[]);
        check(r#"{"a":1}"#, r#"{"a":"#, &[]);
    }
}
