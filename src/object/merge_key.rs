//! Merge keys: the members that identify an element of a list, such as `name` of a container.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Merge keys of Kubernetes' built-in types. The first one that fits a list is used, so the more special ones come first.
///
/// Custom resources often use the same names. Their own `x-kubernetes-list-map-keys` are not known, because the engine does not
/// read the schemas of types.
const MERGE_KEYS: [&[&str]; 10] = [
    &["uid"],
    &["containerPort", "protocol"],
    &["mountPath"],
    &["devicePath"],
    &["topologyKey", "whenUnsatisfiable"],
    &["name"],
    &["type"],
    &["port", "protocol"],
    &["key"],
    &["ip"],
];

/// Elements of two states of a list, paired by their merge key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pairs {
    merge_key: &'static [&'static str],
    /// Positions of each element in the old and in the new list. Elements of the old list come first, in its order; added elements
    /// follow.
    pub(crate) positions: Vec<(Option<usize>, Option<usize>)>,
}

impl Pairs {
    /// Pairs the elements of two lists. `None` if no merge key fits: it fits if every element has it, and if no two elements of a
    /// list have the same.
    pub(crate) fn of(old: &[Value], new: &[Value]) -> Option<Self> {
        let first = old.first().or(new.first())?.as_object()?;
        MERGE_KEYS.into_iter().filter(|merge_key| merge_key.iter().all(|name| first.contains_key(*name))).find_map(
            |merge_key| {
                let (old, mut new) = (index(merge_key, old)?, index(merge_key, new)?);
                let mut positions: Vec<_> = old.into_iter().map(|(key, at)| (Some(at), new.remove(&key))).collect();
                positions.sort_unstable();
                let mut added: Vec<_> = new.into_values().map(|at| (None, Some(at))).collect();
                added.sort_unstable();
                positions.append(&mut added);
                Some(Self { merge_key, positions })
            },
        )
    }

    /// Returns the positions of the elements in both lists.
    fn common(&self) -> impl Iterator<Item = (usize, usize)> {
        self.positions.iter().filter_map(|(old, new)| old.zip(*new))
    }

    /// Returns true if the elements that are in both lists have another order.
    pub(crate) fn is_reordered(&self) -> bool {
        !self.common().is_sorted_by_key(|(_, new)| new)
    }

    /// Returns the merge keys of the elements that are in both lists, in the old and in the new order.
    pub(crate) fn orders(&self, old: &[Value]) -> [Value; 2] {
        let keys = |positions: &[(usize, usize)]| -> Value {
            let key = |(at, _): &(usize, usize)| -> Value {
                let member = |name: &&str| ((*name).to_owned(), old[*at][*name].clone());
                self.merge_key.iter().map(member).collect::<Map<_, _>>().into()
            };
            positions.iter().map(key).collect()
        };
        let mut common: Vec<_> = self.common().collect();
        let before = keys(&common);
        common.sort_unstable_by_key(|(_, new)| *new);
        [before, keys(&common)]
    }
}

/// Returns the position of each merge key; `None` if one is missing or repeated.
fn index(merge_key: &[&str], list: &[Value]) -> Option<HashMap<String, usize>> {
    let mut positions = HashMap::with_capacity(list.len());
    for (at, element) in list.iter().enumerate() {
        let mut key = String::new();
        for name in merge_key {
            let part =
                element.get(*name).filter(|part| !matches!(part, Value::Null | Value::Array(_) | Value::Object(_)));
            key.push_str(&part?.to_string());
            key.push(',');
        }
        if positions.insert(key, at).is_some() {
            return None;
        }
    }
    Some(positions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(old: &Value, new: &Value, expected: Option<&[(Option<usize>, Option<usize>)]>) {
        let pairs = Pairs::of(old.as_array().unwrap(), new.as_array().unwrap());
        assert_eq!(pairs.map(|pairs| pairs.positions).as_deref(), expected, "{old} {new}");
    }

    #[test]
    fn elements_are_paired_by_first_fitting_key() {
        let swapped: &[_] = &[(Some(0), Some(1)), (Some(1), Some(0))];
        for [one, other] in [
            [json!({ "name": "a" }), json!({ "name": "b" })],
            [json!({ "type": "Ready" }), json!({ "type": "Synced" })],
            [json!({ "key": "a" }), json!({ "key": "b" })],
            [json!({ "ip": "10.0.0.1" }), json!({ "ip": "::1" })],
            [json!({ "name": "a", "mountPath": "/1" }), json!({ "name": "a", "mountPath": "/2" })],
            [json!({ "name": "a", "uid": "1" }), json!({ "name": "a", "uid": "2" })],
            [json!({ "port": 53, "protocol": "TCP" }), json!({ "port": 53, "protocol": "UDP" })],
            [
                json!({ "name": "x", "containerPort": 53, "protocol": "TCP" }),
                json!({ "containerPort": 53, "protocol": "UDP" }),
            ],
        ] {
            check(&json!([one, other]), &json!([other, one]), Some(swapped));
        }
    }

    #[test]
    fn repeated_or_missing_key_pairs_nothing() {
        let list = |names: &[Value]| names.iter().map(|name| json!({ "name": name })).collect::<Value>();
        let (a, b) = (json!("a"), json!("b"));
        check(&list(&[a.clone(), a.clone()]), &list(&[a.clone(), b.clone()]), None);
        check(&list(&[a.clone(), b.clone()]), &list(&[b.clone(), b.clone()]), None);
        check(&list(&[a.clone(), Value::Null]), &list(std::slice::from_ref(&b)), None);
        check(&list(&[json!({})]), &list(&[json!({})]), None);
        check(&json!([{ "name": "a" }, { "image": "x" }]), &list(&[a]), None);
        check(&json!(["a"]), &json!(["b"]), None);
        check(&json!([]), &json!([]), None);
        // a repeated name, but another key fits
        let typed = |types: [&str; 2]| types.iter().map(|of| json!({ "name": "a", "type": of })).collect::<Value>();
        check(&typed(["1", "2"]), &typed(["2", "1"]), Some(&[(Some(0), Some(1)), (Some(1), Some(0))]));
        // 80 and "80" are two keys
        check(&list(&[json!(80), json!("80")]), &list(&[json!("80")]), Some(&[(Some(0), None), (Some(1), Some(0))]));
    }

    proptest! {
        /// Every element is in one pair, and both sides of a pair have the same name.
        #[test]
        fn pairs_cover_both_lists(old in names(), new in names()) {
            let list = |names: &[String]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
            let (old_list, new_list) = (list(&old), list(&new));
            let Some(pairs) = Pairs::of(&old_list, &new_list) else {
                prop_assert!(old.is_empty() && new.is_empty());
                return Ok(());
            };
            let sorted = |positions: &mut dyn Iterator<Item = usize>| {
                let mut positions: Vec<_> = positions.collect();
                positions.sort_unstable();
                positions
            };
            let positions = || pairs.positions.iter();
            prop_assert_eq!(sorted(&mut positions().filter_map(|pair| pair.0)), (0..old.len()).collect::<Vec<_>>());
            prop_assert_eq!(sorted(&mut positions().filter_map(|pair| pair.1)), (0..new.len()).collect::<Vec<_>>());
            prop_assert!(pairs.common().all(|(before, after)| old[before] == new[after]));
            let common = |one: &[String], other: &[String]| one.iter().filter(|name| other.contains(name)).cloned().collect::<Vec<_>>();
            prop_assert_eq!(pairs.common().count(), common(&old, &new).len());
            prop_assert_eq!(pairs.is_reordered(), common(&old, &new) != common(&new, &old));
        }
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        Just(["a", "b", "c", "d", "e"].map(String::from).to_vec())
            .prop_shuffle()
            .prop_flat_map(|names| (0..=names.len()).prop_map(move |len| names[..len].to_vec()))
    }
}
