//! Paths in the syntax of kubectl and of custom resource definitions.
//!
//! They are evaluated according to RFC 9535; kubectl's spelling of names (`.app\.kubernetes\.io/name`) is translated.

use jsonpath_rust::{
    parser::{model::JpQuery, parse_json_path},
    query::{QueryRef, js_path_process},
};
use serde_json::Value;

/// Maximum depth of parentheses. The parser tries each level of a call several times, so its time grows exponentially with the depth.
const PARENTHESES_MAX: usize = 6;

/// Path to values of an object.
#[derive(Clone, Debug)]
pub(crate) struct JsonPath(JpQuery);

/// Text that is not a path.
#[derive(Debug, thiserror::Error)]
#[error("unexpected JSONPath {0}")]
pub(crate) struct JsonPathError(String);

impl JsonPath {
    /// Parses `{.metadata.name}`, `.metadata.name` or `metadata.name`.
    pub(crate) fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.trim().strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text.trim());
        if parentheses(inner) > PARENTHESES_MAX {
            let expected = format!("expected at most {PARENTHESES_MAX} levels of parentheses");
            return Err(JsonPathError(format!("of {} bytes, {expected}", text.len())));
        }
        let path = standard(inner)?;
        let expected = "expected for instance {.metadata.name} or {.items[*].spec.nodeName}";
        parse_json_path(&path).map(Self).map_err(|_| JsonPathError(format!("{text:?}, {expected}")))
    }

    /// Returns the values at the path; none if a member is missing.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let found = js_path_process(&self.0, value).unwrap_or_default();
        found.into_iter().map(QueryRef::val).collect()
    }
}

/// Returns the depth of the parentheses of a path, including those in quoted text.
fn parentheses(path: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for letter in path.bytes() {
        match letter {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Translates a path from kubectl's spelling to that of RFC 9535.
fn standard(path: &str) -> Result<String, JsonPathError> {
    let path = path.trim();
    let mut rest = path.strip_prefix(['$', '@']).unwrap_or(path);
    let mut standard = String::from("$");
    while !rest.is_empty() {
        if rest.starts_with('[') {
            let end = closing(rest, ['[', ']']).ok_or_else(|| JsonPathError(format!("{path:?}: a ']' is missing")))?;
            standard.push_str(&rest[..=end]);
            rest = &rest[end + 1..];
            continue;
        }
        let descends = rest.starts_with("..");
        rest = rest.trim_start_matches('.');
        let (name, behind) = member(rest);
        rest = behind;
        if descends {
            standard.push_str("..");
        }
        match &*name {
            "" if rest.is_empty() || rest.starts_with('[') => {}
            "" => return Err(JsonPathError(format!("{path:?}, expected a name at {rest:?}"))),
            "*" => standard.push_str("[*]"),
            name => {
                let escaped = name.replace('\\', "\\\\").replace('\'', "\\'");
                standard.extend(["['", &escaped, "']"]);
            }
        }
    }
    Ok(standard)
}

/// Splits a path after its first member name. Returns the name and the rest. In the name, a backslash escapes the next character.
fn member(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(letters.next().map(|(_, escaped)| escaped)),
            _ => name.push(letter),
        }
    }
    (name, "")
}

/// Returns the position of the bracket that closes the first bracket of the text. Quoted text is skipped.
pub(crate) fn closing(text: &str, [open, close]: [char; 2]) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (Some(_), '\\') => drop(letters.next()),
            (Some(opened), _) if opened == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, _) if letter == open => depth += 1,
            (None, _) if letter == close && depth == 1 => return Some(at),
            (None, _) if letter == close => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_do_not_hang_parser() {
        let nested =
            |levels: usize, inner: &str| format!(".items[?{}{inner}{}]", "length(".repeat(levels), ")".repeat(levels));
        for levels in [PARENTHESES_MAX + 1, 30, 120, 10_000] {
            let error = JsonPath::parse(&nested(levels, "!")).unwrap_err().to_string();
            assert!(error.contains("at most 6 levels of parentheses") && error.len() < 200, "{error}");
        }
        assert!(JsonPath::parse(&nested(PARENTHESES_MAX, "!")).is_err());
        assert!(JsonPath::parse(".items[?(@.type==\"Ready\")].status").is_ok());
        assert!(JsonPath::parse(&format!("{}.a{}", "[?@".repeat(50), "]".repeat(50))).is_ok());
        assert!(JsonPath::parse(&format!("[?{}@.a{}]", "(".repeat(6), ")".repeat(6))).is_ok());
    }
}
