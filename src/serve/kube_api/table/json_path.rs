//! Paths in the `JSONPath` dialect of Kubernetes: of kubectl, and of the columns of custom resource definitions.
//!
//! The dialect is older than RFC 9535 and differs from it: `.labels.a\.b/c`, `['metadata.name', 'status.phase']`,
//! `[?(@.type=="Ready")]`. A missing member yields no value. An index out of bounds, an index of something that is not a list, and
//! a comparison of different types are errors, as in kubectl.
//!
//! Three spellings have a meaning here, and none in kubectl: `["name"]`, quoted names with any character, and `['a.b/c']` for a member
//! `a.b/c` if the object has it.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

/// Path to values of an object.
#[derive(Clone, Debug)]
pub(crate) struct JsonPath {
    text: String,
    steps: Vec<Step>,
}

#[cfg(feature = "cli")]
impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.text))
    }
}

/// Part of a path. It maps the values that the steps before it found to further values.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Member in quotes with dots in its name: either this member, or a path of several members.
    Quoted(String, Vec<Self>),
    Wildcard,
    /// Each non-empty list, object and text at any depth.
    Descend,
    Index(i64),
    /// Start, end and step.
    Slice([Option<i64>; 3]),
    Union(Vec<Vec<Self>>),
    Filter(Filter),
    Literal(Value),
}

/// Selection of list items. Without a test, the items that have a value at `left`.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Vec<Step>,
    test: Option<(Operator, Vec<Step>)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Text that is not a path.
#[derive(Debug, thiserror::Error)]
#[error("unexpected JSONPath {0}")]
pub(crate) struct JsonPathError(String);

/// Path that has no meaning for an object.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("JSONPath {path}: {reason}")]
pub(crate) struct FindError {
    path: String,
    reason: Failure,
}

#[derive(Clone, Debug, PartialEq)]
enum Failure {
    NoList(&'static str),
    OutOfBounds { index: i64, len: usize },
    Reversed,
    Step,
    Several,
    Incomparable(&'static str, &'static str),
    TooMany(usize),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoList(kind) => write!(f, "[…] needs a list, found {kind}"),
            Self::OutOfBounds { index, len } => write!(f, "index {index} is out of bounds: the list has {len} items"),
            Self::Reversed => f.write_str("the start of the slice is behind its end"),
            Self::Step => f.write_str("the step of a slice must be positive"),
            Self::Several => f.write_str("a filter compares single values, found several"),
            Self::Incomparable(left, right) => write!(f, "cannot compare {left} with {right}"),
            Self::TooMany(max) => write!(f, "visits more than {max} values"),
        }
    }
}

/// Maximum number of characters of a path in a message.
const SHOWN_CHARS: usize = 200;

fn shown(text: &str) -> String {
    let cut = text.char_indices().nth(SHOWN_CHARS).map_or(text, |(end, _)| &text[..end]);
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

impl JsonPath {
    /// Parses `{.metadata.name}`, `.metadata.name` or `metadata.name`.
    #[cfg(feature = "cli")]
    pub(crate) fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.trim();
        let inner = inner.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(inner);
        let is_bare = inner.starts_with(|first: char| first.is_alphanumeric() || first == '_');
        let dot = if is_bare { "." } else { "" };
        Self::of(&format!("{dot}{inner}"), text)
    }

    /// Parses a path as between the braces of a template: `.metadata.name`, `"text"`.
    pub(crate) fn parse_action(text: &str) -> Result<Self, JsonPathError> {
        Self::of(text, text)
    }

    fn of(action: &str, text: &str) -> Result<Self, JsonPathError> {
        match steps(action, false) {
            Ok(steps) => Ok(Self { text: text.to_owned(), steps }),
            Err(reason) => Err(JsonPathError(format!("{}: {reason}", shown(text)))),
        }
    }

    /// Returns the values at the path; none if a member is missing. Visits at most `visits_max` values.
    pub(crate) fn find<'a>(&'a self, value: &'a Value, visits_max: usize) -> Result<Vec<&'a Value>, FindError> {
        let mut walk = Walk { left: visits_max, max: visits_max };
        let found = walk.follow(vec![value], &self.steps);
        found.map_err(|reason| FindError { path: shown(&self.text), reason })
    }
}

/// Returns the position of the brace that ends an action of a template. Quoted text is skipped.
#[cfg(feature = "cli")]
pub(crate) fn action_end(text: &str) -> Option<usize> {
    unquoted(text, |letter| letter == '}')
}

const EXPECTED: &str = "expected for instance {.metadata.name} or {.items[*].spec.nodeName}";
const EXPECTED_FILTER: &str = "expected a filter with one comparison, as in [?(@.type==\"Ready\")]";

/// Parses steps. `in_filter` refuses a filter in a filter, which kubectl does not know.
fn steps(text: &str, in_filter: bool) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        match first {
            ' ' | '\t' | '@' | '$' => rest = behind,
            '.' if behind.starts_with('.') => {
                if steps.last() == Some(&Step::Descend) {
                    return Err("expected at most two dots and a name".to_owned());
                }
                steps.push(Step::Descend);
                rest = &behind[1..];
                if rest.starts_with(|next: char| next.is_alphanumeric() || next == '_') {
                    rest = field(rest, &mut steps)?;
                }
            }
            '.' if behind.starts_with('[') => rest = behind,
            '.' => rest = field(behind, &mut steps)?,
            '[' => rest = bracket(rest, in_filter, &mut steps)?,
            '"' | '\'' => {
                let end = quote_end(rest).ok_or("a closing quote is missing")?;
                steps.push(Step::Literal(unescape(&rest[1..end])?.into()));
                rest = &rest[end + 1..];
            }
            '+' | '-' | '0'..='9' => {
                let end = behind.find(|next: char| next != '.' && !next.is_ascii_digit()).unwrap_or(behind.len()) + 1;
                let number = &rest[..end];
                let value = number.parse::<i64>().map(Value::from);
                let value = value.or_else(|_| number.parse::<f64>().map(Value::from));
                steps.push(Step::Literal(value.map_err(|_| format!("unexpected number {number}"))?));
                rest = &rest[end..];
            }
            _ => {
                let end = rest.find(ends_name).unwrap_or(rest.len());
                match &rest[..end] {
                    word @ ("true" | "false") => steps.push(Step::Literal((word == "true").into())),
                    word if first.is_alphanumeric() => {
                        let word = shown(word);
                        return Err(format!("unexpected {word}: a field begins with a dot, text is in quotes"));
                    }
                    _ => return Err(format!("unexpected {first:?}, {EXPECTED}")),
                }
                rest = &rest[end..];
            }
        }
    }
    Ok(steps)
}

fn ends_name(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// Parses the name of a member, or `*`. Returns the text behind it.
fn field<'t>(text: &'t str, steps: &mut Vec<Step>) -> Result<&'t str, String> {
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((at, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if ends_name(letter) {
            end = at;
            break;
        }
    }
    match &text[..end] {
        "" => return Err(format!("expected a name after the dot; {{@}} is the whole object, and {EXPECTED}")),
        "*" => steps.push(Step::Wildcard),
        name => steps.push(Step::Field(name.replace('\\', ""))),
    }
    Ok(&text[end..])
}

/// Parses `[…]`: a filter, or a union of indexes, slices and quoted names. Returns the text behind it.
fn bracket<'t>(text: &'t str, in_filter: bool, steps: &mut Vec<Step>) -> Result<&'t str, String> {
    if let Some(inner) = text.strip_prefix("[?(") {
        let end =
            unquoted(inner, |letter| letter == ')').ok_or_else(|| format!("a ')' is missing, {EXPECTED_FILTER}"))?;
        let rest = inner[end + 1..].strip_prefix(']').ok_or_else(|| format!("a ']' is missing, {EXPECTED_FILTER}"))?;
        if in_filter {
            return Err(EXPECTED_FILTER.to_owned());
        }
        steps.push(Step::Filter(filter(&inner[..end])?));
        return Ok(rest);
    }
    let inner = &text[1..];
    let end = unquoted(inner, |letter| letter == ']').ok_or("a ']' is missing")?;
    let mut items = Vec::new();
    let mut rest = &inner[..end];
    while let Some(comma) = unquoted(rest, |letter| letter == ',') {
        items.push(vec![item(&rest[..comma])?]);
        rest = &rest[comma + 1..];
    }
    let last = item(rest)?;
    if items.is_empty() {
        steps.push(last);
    } else {
        items.push(vec![last]);
        steps.push(Step::Union(items));
    }
    Ok(&inner[end + 1..])
}

/// Parses one item of `[…]`.
fn item(text: &str) -> Result<Step, String> {
    let text = text.trim();
    if text.starts_with(['\'', '"']) && quote_end(text) == Some(text.len() - 1) {
        let name = &text[1..text.len() - 1];
        let member = name.replace('\\', "");
        if name.contains(['[', '"', '\'']) {
            return Ok(Step::Field(member));
        }
        // A name with characters that a path cannot have is only the name of a member.
        return Ok(match steps(&format!(".{name}"), true) {
            Ok(path) if path == [Step::Field(member.clone())] => Step::Field(member),
            Ok(path) => Step::Quoted(member, path),
            Err(_) => Step::Field(member),
        });
    }
    let unexpected =
        || format!("unexpected [{text}], expected an index, a slice such as [0:2], a quoted name, * or a filter");
    let number = |text: &str| match text {
        "" => Ok(None),
        text if text.starts_with('+') => Err(unexpected()),
        text => text.parse().map(Some).map_err(|_| unexpected()),
    };
    let parts: Vec<_> = text.split(':').collect();
    Ok(match parts[..] {
        ["*"] => Step::Slice([None; 3]),
        // As in kubectl, [] is [0].
        [index] => Step::Index(number(index)?.unwrap_or(0)),
        [start, end] => Step::Slice([number(start)?, number(end)?, None]),
        [start, end, step] => Step::Slice([number(start)?, number(end)?, number(step)?]),
        _ => return Err(unexpected()),
    })
}

fn filter(text: &str) -> Result<Filter, String> {
    let is_operator = |letter| matches!(letter, '!' | '<' | '>' | '=');
    let Some(at) = unquoted(text, is_operator) else { return Ok(Filter { left: steps(text, true)?, test: None }) };
    let end = text[at..].find(|letter| !is_operator(letter)).map_or(text.len(), |len| at + len);
    let operator = match &text[at..end] {
        "==" => Operator::Equal,
        "!=" => Operator::NotEqual,
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        other => return Err(format!("unexpected operator {}, {EXPECTED_FILTER}", shown(other))),
    };
    let side = |text: &str| match steps(text, true) {
        Ok(steps) if steps.is_empty() && text.trim().is_empty() => Err(EXPECTED_FILTER.to_owned()),
        Ok(steps) => Ok(steps),
        Err(why) if text.contains(['&', '|']) => Err(format!("{why}; {EXPECTED_FILTER}")),
        Err(why) => Err(why),
    };
    Ok(Filter { left: side(&text[..at])?, test: Some((operator, side(&text[end..])?)) })
}

/// Returns the position of the first matching character outside quotes.
fn unquoted(text: &str, is_match: impl Fn(char) -> bool) -> Option<usize> {
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        match letter {
            '"' | '\'' => at += quote_end(&text[at..])?,
            letter if is_match(letter) => return Some(at),
            _ => {}
        }
        at += letter.len_utf8();
    }
    None
}

/// Returns the position of the quote that closes the quote at the start of the text.
fn quote_end(text: &str) -> Option<usize> {
    let mut letters = text.char_indices();
    let (_, quote) = letters.next()?;
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            letter if letter == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// Replaces the escapes of a quoted text.
fn unescape(quoted: &str) -> Result<String, String> {
    let mut text = String::with_capacity(quoted.len());
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        let escape = letters.next();
        let mut code = |digits| {
            let digits: String = letters.by_ref().take(digits).collect();
            u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
        };
        let escaped = match escape {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('a') => Some('\u{7}'),
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('v') => Some('\u{b}'),
            Some(plain @ ('\\' | '"' | '\'' | '/')) => Some(plain),
            Some('x') => code(2),
            Some('u') => code(4),
            Some('U') => code(8),
            _ => None,
        };
        text.push(
            escaped.ok_or_else(|| format!("unexpected escape in {}, expected for instance \"\\n\"", shown(quoted)))?,
        );
    }
    Ok(text)
}

/// One evaluation of a path, with the number of values that it may still visit.
struct Walk {
    left: usize,
    max: usize,
}

type Found<'a> = Result<Vec<&'a Value>, Failure>;

impl Walk {
    fn visit(&mut self, values: usize) -> Result<(), Failure> {
        self.left = self.left.checked_sub(values).ok_or(Failure::TooMany(self.max))?;
        Ok(())
    }

    fn follow<'a>(&mut self, mut values: Vec<&'a Value>, steps: &'a [Step]) -> Found<'a> {
        for step in steps {
            self.visit(values.len() + 1)?;
            values = self.step(values, step)?;
        }
        Ok(values)
    }

    fn step<'a>(&mut self, values: Vec<&'a Value>, step: &'a Step) -> Found<'a> {
        let mut found = Vec::new();
        match step {
            Step::Field(name) => found.extend(values.into_iter().filter_map(|value| value.get(name))),
            Step::Quoted(name, path) => {
                for value in values {
                    match value.get(name) {
                        Some(member) => found.push(member),
                        None => found.append(&mut self.follow(vec![value], path)?),
                    }
                }
            }
            Step::Wildcard => {
                for value in values {
                    self.visit(len(value))?;
                    found.extend(children(value));
                }
            }
            Step::Descend => values.into_iter().try_for_each(|value| self.descend(value, &mut found))?,
            Step::Index(index) => {
                for items in lists(&values) {
                    let items = items?;
                    let item = position(*index, items.len()).and_then(|at| items.get(at));
                    found.push(item.ok_or(out_of(items, *index))?);
                }
            }
            Step::Slice(bounds) => {
                for items in lists(&values) {
                    let items = slice(items?, *bounds)?;
                    self.visit(items.len())?;
                    let step = bounds[2].map_or(Some(1), |step| usize::try_from(step).ok()).filter(|step| *step > 0);
                    found.extend(items.iter().step_by(step.ok_or(Failure::Step)?));
                }
            }
            Step::Union(paths) => {
                for path in paths {
                    found.append(&mut self.follow(values.clone(), path)?);
                }
            }
            Step::Filter(filter) => {
                for value in values {
                    let Value::Array(items) = value else { return Err(Failure::NoList(kind(value))) };
                    for item in items {
                        if self.passes(item, filter)? {
                            found.push(item);
                        }
                    }
                }
            }
            Step::Literal(value) => found.push(value),
        }
        Ok(found)
    }

    fn descend<'a>(&mut self, value: &'a Value, found: &mut Vec<&'a Value>) -> Result<(), Failure> {
        self.visit(1)?;
        if len(value) > 0 || value.as_str().is_some_and(|text| !text.is_empty()) {
            found.push(value);
        }
        children(value).try_for_each(|child| self.descend(child, found))
    }

    fn passes(&mut self, item: &Value, filter: &Filter) -> Result<bool, Failure> {
        self.visit(1)?;
        let left = self.follow(vec![item], &filter.left);
        let Some((operator, right)) = &filter.test else {
            return match left {
                Ok(found) => Ok(!found.is_empty()),
                Err(error @ Failure::TooMany(_)) => Err(error),
                Err(_) => Ok(false),
            };
        };
        match (&left?[..], &self.follow(vec![item], right)?[..]) {
            ([], _) | (_, []) => Ok(false),
            ([left], [right]) => compare(left, *operator, right),
            _ => Err(Failure::Several),
        }
    }
}

fn len(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    }
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value.as_array().into_iter().flatten();
    items.chain(value.as_object().into_iter().flat_map(serde_json::Map::values))
}

/// Returns the lists among values. `null` is skipped; any other value is an error.
fn lists<'a>(values: &[&'a Value]) -> impl Iterator<Item = Result<&'a [Value], Failure>> {
    values.iter().filter(|value| !value.is_null()).map(|value| match value {
        Value::Array(items) => Ok(items.as_slice()),
        other => Err(Failure::NoList(kind(other))),
    })
}

/// Returns the position of an index, which counts from the end if it is negative.
fn position(index: i64, len: usize) -> Option<usize> {
    let from_end = usize::try_from(index.unsigned_abs()).ok()?;
    if index < 0 { len.checked_sub(from_end) } else { Some(from_end) }
}

fn out_of(items: &[Value], index: i64) -> Failure {
    Failure::OutOfBounds { index, len: items.len() }
}

fn slice(items: &[Value], [start, end, _]: [Option<i64>; 3]) -> Result<&[Value], Failure> {
    let len = items.len();
    let end_index = end.unwrap_or(i64::try_from(len).unwrap_or(i64::MAX));
    let start_index = start.unwrap_or(0);
    let (start, end) = (position(start_index, len), position(end_index, len));
    // As in kubectl, an empty slice may be out of bounds.
    if start == end && (start.is_some() || start_index == end_index) {
        return Ok(&[]);
    }
    let start = start.filter(|start| *start < len).ok_or(out_of(items, start_index))?;
    let end = end.filter(|end| *end <= len).ok_or(out_of(items, end_index))?;
    items.get(start..end).ok_or(Failure::Reversed)
}

fn compare(left: &Value, operator: Operator, right: &Value) -> Result<bool, Failure> {
    let incomparable = || Failure::Incomparable(kind(left), kind(right));
    let order = match (left, right) {
        (Value::Bool(left), Value::Bool(right)) if matches!(operator, Operator::Equal | Operator::NotEqual) => {
            left.cmp(right)
        }
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => left.as_f64().partial_cmp(&right.as_f64()).ok_or_else(incomparable)?,
        },
        _ => return Err(incomparable()),
    };
    Ok(match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VISITS: usize = 1000;

    #[test]
    fn hostile_paths_end_within_their_visits() {
        let nested = (0..100).fold(json!([1, 2, 3]), |inner, _| json!({"a": inner}));
        let wide = (0..10).fold(json!(1), |inner, _| json!({"a": inner, "b": [inner]}));
        for path in ["...*".repeat(8), "['a','a','a']".repeat(200), "..a".repeat(30), "[0,0,0]".repeat(200)] {
            let parsed = JsonPath::parse_action(&path).unwrap();
            for value in [&nested, &wide, &json!([[[[[[[[1]]]]]]]])] {
                match parsed.find(value, VISITS) {
                    Ok(found) => assert!(found.len() <= VISITS, "{path}"),
                    Err(error) => assert!(error.to_string().len() < 500, "{error}"),
                }
            }
        }
        for path in ["[?(".repeat(10_000), "(".repeat(10_000), "['".repeat(9_999), ".a[".repeat(10_000)] {
            let error = JsonPath::parse_action(&path).unwrap_err().to_string();
            assert!(error.len() < 1000, "{error}");
        }
        let long = JsonPath::parse_action(&".a".repeat(10_000)).unwrap();
        assert_eq!(long.find(&json!({}), VISITS).unwrap_err().reason, Failure::TooMany(VISITS));
    }

    #[test]
    fn paths_without_meaning_for_an_object_are_errors() {
        let object = json!({"list": [1, 2], "empty": [], "text": "x", "items": [{"n": 1}, {"n": "x"}, {"n": null}]});
        for (path, expected) in [
            (".list[2]", "index 2 is out of bounds: the list has 2 items"),
            (".list[-3]", "index -3 is out of bounds"),
            (".list[0:3]", "index 3 is out of bounds"),
            (".list[1:0]", "behind its end"),
            (".list[0:2:0]", "step of a slice must be positive"),
            (".list[0:2:-1]", "step of a slice must be positive"),
            (".empty[0]", "index 0 is out of bounds: the list has 0 items"),
            (".text[0]", "[…] needs a list, found a text"),
            (".text[?(@.a)]", "[…] needs a list, found a text"),
            (".items[?(@.n==1)]", "cannot compare a text with a number"),
            (".items[?(@.*==1)]", "cannot compare"),
            (".items[?(1==$..*)]", "unexpected"),
        ] {
            let found = JsonPath::parse_action(path).map_err(|error| error.to_string());
            let error =
                found.and_then(|path| path.find(&object, VISITS).map(|_| ()).map_err(|error| error.to_string()));
            let error = error.unwrap_err();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }
}
