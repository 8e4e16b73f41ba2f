//! `changes`: where two states differ, as a list of paths.

use serde_json::Value;

use crate::object::difference::differences;

/// Returns the paths of all [`differences`] between two documents. Nothing where one of them is malformed.
pub(super) fn between(old: &[u8], new: &[u8]) -> Vec<String> {
    let parse = |json: &[u8]| serde_json::from_slice::<Value>(json).ok();
    let (Some(old), Some(new)) = (parse(old), parse(new)) else { return Vec::new() };
    differences(&old, &new).into_iter().map(|difference| difference.path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_at_its_deepest_path() {
        let check = |old: &str, new: &str, expected: &[&str]| {
            assert_eq!(between(old.as_bytes(), new.as_bytes()), expected, "{old} {new}");
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
