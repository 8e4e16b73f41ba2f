//! `changed`: comparison of two states at some paths, without decoding the rest of the states.

use serde_json::Value;

use crate::object::{
    FieldPath, PathStep,
    merge_key::Pairs,
    scan::{JsonCursor, ScanError},
};

/// Returns true if the values at one of the paths differ. Ignores the formatting of the JSON. A step `[*]` compares the elements of
/// a list by their merge key, so their order does not matter; without a merge key, by their position.
pub(super) fn differs(paths: &[FieldPath], old: &[u8], new: &[u8]) -> Result<bool, ScanError> {
    for path in paths {
        let members = path.steps().iter().take_while(|step| matches!(step, PathStep::Member(_))).count();
        let (members, rest) = path.steps().split_at(members);
        let (before, after) = (follow(old, members)?, follow(new, members)?);
        if before == after {
            continue;
        }
        let decode = |json: &[u8]| serde_json::from_slice::<Value>(json);
        let (before, after) = (before.map(decode).transpose(), after.map(decode).transpose());
        match (before, after) {
            (Ok(before), Ok(after)) if !differs_below(rest, before.as_ref(), after.as_ref()) => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns the JSON of the value at a path of members.
fn follow<'a>(json: &'a [u8], members: &[PathStep]) -> Result<Option<&'a [u8]>, ScanError> {
    let mut value = JsonCursor::new(json).skip_value()?;
    for step in members {
        let PathStep::Member(name) = step else { return Ok(None) };
        if !value.starts_with(b"{") {
            return Ok(None);
        }
        let [member] = JsonCursor::new(value).values([name.as_bytes()])?;
        let Some(member) = member else { return Ok(None) };
        value = member;
    }
    Ok(Some(value))
}

/// Compares two values at a path. The recursion depth is the length of the path.
fn differs_below(steps: &[PathStep], old: Option<&Value>, new: Option<&Value>) -> bool {
    let Some((step, rest)) = steps.split_first() else { return old != new };
    match (step, old, new) {
        (PathStep::Member(name), old, new) => {
            let name = &**name;
            differs_below(rest, old.and_then(|old| old.get(name)), new.and_then(|new| new.get(name)))
        }
        (PathStep::Each, Some(Value::Object(old)), Some(Value::Object(new))) => {
            old.len() != new.len()
                || old
                    .iter()
                    .any(|(name, old)| new.get(name).is_none_or(|new| differs_below(rest, Some(old), Some(new))))
        }
        (PathStep::Each, Some(Value::Array(old)), Some(Value::Array(new))) => match Pairs::of(old, new) {
            Some(pairs) => pairs.positions.iter().any(|pair| match *pair {
                (Some(before), Some(after)) => differs_below(rest, Some(&old[before]), Some(&new[after])),
                _ => true,
            }),
            None => {
                old.len() != new.len()
                    || old.iter().zip(new).any(|(old, new)| differs_below(rest, Some(old), Some(new)))
            }
        },
        (PathStep::Each, old, new) => {
            [old, new].into_iter().flatten().any(|value| value.is_object() || value.is_array())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, old: &str, new: &str, expected: bool) {
        let paths = [FieldPath::parse(path).expect(path)];
        assert_eq!(differs(&paths, old.as_bytes(), new.as_bytes()), Ok(expected), "{path}: {old} {new}");
        assert_eq!(differs(&paths, new.as_bytes(), old.as_bytes()), Ok(expected), "{path}: {new} {old}");
    }

    #[test]
    fn path_differs_by_its_value() {
        check("spec", r#"{"spec":{"a":1}}"#, r#"{"spec":{"a":2}}"#, true);
        check("spec", r#"{"spec":{"a":1},"status":1}"#, r#"{"spec":{"a":1},"status":2}"#, false);
        check("spec", r#"{"spec":{"a":1,"b":2}}"#, r#"{"spec":{ "b":2, "a":1 }}"#, false);
        check("spec", r#"{"spec":null}"#, "{}", true);
        check("spec.a", r#"{"spec":{"a":1}}"#, r#"{"spec":3}"#, true);
        check("spec.a.b", r#"{"spec":{"a":1}}"#, r#"{"spec":3}"#, false);
        check(
            "labels['a/b']",
            r#"{"metadata":{"labels":{"a\/b":"x"}}}"#,
            r#"{"metadata":{"labels":{"a/b":"y"}}}"#,
            true,
        );
        check("spec", r#"{"spec":1,"spec":2}"#, r#"{"spec":2}"#, false);
    }

    #[test]
    fn every_array_element_and_member_counts() {
        let images = |images: &[&str]| {
            let containers: Vec<_> = images.iter().map(|image| format!(r#"{{"image":"{image}","x":[1]}}"#)).collect();
            format!(r#"{{"spec":{{"containers":[{}]}}}}"#, containers.join(","))
        };
        let path = "spec.containers[*].image";
        check(path, &images(&["a", "b"]), &images(&["a", "b"]), false);
        check(path, &images(&["a", "b"]), &images(&["a", "c"]), true);
        check(path, &images(&["a", "b"]), &images(&["b", "a"]), true);
        check(path, &images(&["a"]), &images(&["a", "b"]), true);
        check(path, &images(&[]), r#"{"spec":{}}"#, true);
        let absent = [r#"{"spec":{"containers":[{"image":1},{}]}}"#, r#"{"spec":{"containers":[{},{"image":1}]}}"#];
        check(path, absent[0], absent[1], true);
        check("data.*", r#"{"data":{"a":1}}"#, r#"{"data":{"b":1}}"#, true);
        check("data.*", r#"{"data":{"a":1}}"#, r#"{"data":{"a":1}}"#, false);
        check("a[*][*]", r#"{"a":[[1],[2]]}"#, r#"{"a":[[1,2],[]]}"#, true);
    }

    /// Request of users: only a change of an image counts, not a change of the order.
    #[test]
    fn elements_are_compared_by_merge_key() {
        let pod = |containers: &[(&str, &str)]| {
            let containers = containers.iter().map(|(name, image)| serde_json::json!({ "name": name, "image": image }));
            serde_json::json!({ "spec": { "containers": containers.collect::<Vec<_>>() } }).to_string()
        };
        let (old, swapped) = (pod(&[("a", "1"), ("b", "2")]), pod(&[("b", "2"), ("a", "1")]));
        check("spec.containers[*].image", &old, &swapped, false);
        check("spec.containers", &old, &swapped, true);
        check("spec.containers[*]", &old, &swapped, false);
        check("spec.containers[*].image", &old, &pod(&[("b", "3"), ("a", "1")]), true);
        check("spec.containers[*].name", &old, &pod(&[("b", "3"), ("a", "1")]), false);
        check("spec.containers[*].image", &old, &pod(&[("side", "1"), ("a", "1"), ("b", "2")]), true);
        // repeated names are compared by position
        check("spec.containers[*].image", &pod(&[("a", "1"), ("a", "2")]), &pod(&[("a", "2"), ("a", "1")]), true);
        check("spec[*][*].image", &old, &swapped, false);
    }

    #[test]
    fn malformed_json_is_error() {
        let paths = [FieldPath::parse("spec.a").expect("a path")];
        assert!(differs(&paths, b"{\"spec\":{\"a\"", b"{}").is_err());
    }
}
