//! `changed`: comparison of two states at some paths, without decoding the rest of the states.

use crate::object::{
    FieldPath, PathStep,
    scan::{JsonCursor, ScanError},
};

/// Item found along a path. Two states with the same items do not differ at this path.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// The path does not exist here.
    Missing,
    /// Name of a member of an object. A step `[*]` gives one for each member.
    Member(std::borrow::Cow<'a, [u8]>),
    /// End of an array or object at a step `[*]`.
    End,
    /// JSON text of the value at the end of the path.
    Value(&'a [u8]),
}

/// Returns true if the values at one of the paths differ. Ignores the formatting of the JSON, but not the order of
/// elements matched by `[*]`.
pub(super) fn differs(paths: &[FieldPath], old: &[u8], new: &[u8]) -> Result<bool, ScanError> {
    for path in paths {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        follow(&mut JsonCursor::new(old), path.steps(), &mut before)?;
        follow(&mut JsonCursor::new(new), path.steps(), &mut after)?;
        let same = |(one, other): (&Piece<'_>, &Piece<'_>)| one == other || one.is_same_value(other);
        if before.len() != after.len() || !before.iter().zip(&after).all(same) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Piece<'_> {
    fn is_same_value(&self, other: &Self) -> bool {
        let (Self::Value(one), Self::Value(other)) = (self, other) else { return false };
        let parse = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).ok();
        parse(one).is_some_and(|one| Some(one) == parse(other))
    }
}

/// Follows a path from the next value. The recursion depth is the length of the path.
fn follow<'a>(cursor: &mut JsonCursor<'a>, steps: &[PathStep], found: &mut Vec<Piece<'a>>) -> Result<(), ScanError> {
    let Some((step, rest)) = steps.split_first() else {
        found.push(Piece::Value(cursor.skip_value()?));
        return Ok(());
    };
    match (step, cursor.peek()?) {
        (PathStep::Member(name), b'{') => {
            cursor.enter(b'{', "an object")?;
            let (mut first, mut at) = (true, None);
            while let Some(member) = cursor.next_member(&mut first)? {
                if *member.key.bytes()? == *name.as_bytes() {
                    at = Some(cursor.clone()); // duplicate names: the last one counts
                }
                cursor.skip_value()?;
            }
            match at {
                Some(mut at) => follow(&mut at, rest, found)?,
                None => found.push(Piece::Missing),
            }
        }
        (PathStep::Each, b'{') => {
            cursor.enter(b'{', "an object")?;
            let mut first = true;
            while let Some(member) = cursor.next_member(&mut first)? {
                found.push(Piece::Member(member.key.bytes()?));
                follow(cursor, rest, found)?;
            }
            found.push(Piece::End);
        }
        (PathStep::Each, b'[') => {
            cursor.enter(b'[', "an array")?;
            let mut first = true;
            while cursor.next_element(&mut first)?.is_some() {
                follow(cursor, rest, found)?;
            }
            found.push(Piece::End);
        }
        _ => {
            cursor.skip_value()?;
            found.push(Piece::Missing);
        }
    }
    Ok(())
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

    #[test]
    fn malformed_json_is_error() {
        let paths = [FieldPath::parse("spec.a").expect("a path")];
        assert!(differs(&paths, b"{\"spec\":{\"a\"", b"{}").is_err());
    }
}
