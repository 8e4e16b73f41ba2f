//! Columns of custom resource definitions: `additionalPrinterColumns`.

use serde_json::Value;

use super::{
    cells::{Row, items, since, text},
    definition,
};

/// Column of a custom resource.
#[derive(Debug)]
pub(in crate::serve::kube_api) struct CustomColumn {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Vec<Step>,
}

/// Step of a `jsonPath`.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// `.name` or `['name']`.
    Member(String),
    /// `[0]`; negative numbers count from the end.
    Element(i64),
    /// `[*]`: the first of several elements is shown.
    First,
    /// `[?(@.name=="value")]`.
    Where(String, String),
}

/// Returns the columns of one version of a definition, without those whose path is not supported.
pub(super) fn columns(definition: &Value, version: &str) -> Vec<CustomColumn> {
    let mut versions = items(&definition["spec"]["versions"]).iter();
    let Some(version) = versions.find(|served| served["name"] == version) else { return Vec::new() };
    let column = |column: &Value| {
        let field = |name: &str| text(&column[name]).to_owned();
        Some(CustomColumn {
            name: field("name"),
            kind: field("type"),
            format: field("format"),
            description: field("description"),
            priority: column["priority"].as_i64().unwrap_or_default(),
            path: parse(text(&column["jsonPath"]))?,
        })
    };
    items(&version["additionalPrinterColumns"]).iter().filter_map(column).collect()
}

impl CustomColumn {
    pub(super) fn definition(&self) -> Value {
        definition(&self.name, &self.kind, &self.format, &self.description, self.priority)
    }

    pub(super) fn cell(&self, row: &Row<'_>) -> Value {
        let found = self.path.iter().try_fold(row.object, |value, step| step.follow(value));
        let Some(value) = found else { return Value::Null };
        match &*self.kind {
            "integer" => value.as_i64().or_else(|| whole(value)).map_or(Value::Null, Value::from),
            "number" => value.as_f64().map_or(Value::Null, Value::from),
            "boolean" => value.as_bool().map_or(Value::Null, Value::from),
            "date" if value.is_string() => match since(row.now, value) {
                unknown if unknown == "<unknown>" => "<invalid>".into(),
                age => age.into(),
            },
            "string" if value.is_string() => value.clone(),
            "string" => value.to_string().into(),
            _ => Value::Null,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "as the API server does")]
fn whole(value: &Value) -> Option<i64> {
    value.as_f64().map(|number| number as i64)
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Member(name) => value.get(name),
            Self::Element(at) => {
                let items = value.as_array()?;
                let back = usize::try_from(at.unsigned_abs()).ok()?;
                items.get(if *at < 0 { items.len().checked_sub(back)? } else { back })
            }
            Self::First => match value {
                Value::Array(items) => items.first(),
                Value::Object(members) => members.values().next(),
                _ => None,
            },
            Self::Where(name, wanted) => items(value).iter().find(|item| text(&item[name]) == wanted),
        }
    }
}

/// Parses the simple paths that definitions use; returns `None` for others.
fn parse(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.trim().strip_prefix('$').unwrap_or(path.trim());
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let (inside, after) = bracket.split_once(']')?;
            steps.push(subscript(inside.trim())?);
            rest = after;
        } else {
            let (name, after) = member(rest.strip_prefix('.')?)?;
            steps.push(Step::Member(name));
            rest = after;
        }
    }
    Some(steps).filter(|steps| !steps.is_empty())
}

/// Parses a name; a backslash precedes a dot that belongs to it.
fn member(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.push(letters.next()?.1),
            '.' | '[' => return Some((name, &text[at..])).filter(|(name, _)| !name.is_empty()),
            '*' | '{' | '}' | ' ' => return None,
            letter => name.push(letter),
        }
    }
    Some((name, "")).filter(|(name, _)| !name.is_empty())
}

fn subscript(inside: &str) -> Option<Step> {
    let quoted = |text: &str| {
        let text = text.trim();
        let unquoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
        unquoted('\'').or_else(|| unquoted('"')).map(str::to_owned)
    };
    if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, right) = condition.split_once("==")?;
        let (name, rest) = member(left.trim().strip_prefix("@.")?)?;
        return Some(Step::Where(name, quoted(right)?)).filter(|_| rest.is_empty());
    }
    match inside {
        "*" => Some(Step::First),
        _ => quoted(inside).map(Step::Member).or_else(|| inside.parse().ok().map(Step::Element)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_paths_of_definitions_are_parsed() {
        let member = |name: &str| Step::Member(name.to_owned());
        for (path, expected) in [
            (".spec.replicas", Some(vec![member("spec"), member("replicas")])),
            (".metadata.labels['a.b/c']", Some(vec![member("metadata"), member("labels"), member("a.b/c")])),
            (".metadata.labels.a\\.b/c", Some(vec![member("metadata"), member("labels"), member("a.b/c")])),
            (".spec.hosts[0]", Some(vec![member("spec"), member("hosts"), Step::Element(0)])),
            (".spec.hosts[*]", Some(vec![member("spec"), member("hosts"), Step::First])),
            (
                ".status.conditions[?(@.type==\"Ready\")].status",
                Some(vec![
                    member("status"),
                    member("conditions"),
                    Step::Where("type".to_owned(), "Ready".to_owned()),
                    member("status"),
                ]),
            ),
            ("spec", None),
            ("", None),
            (".spec..x", None),
            (".spec[?(@.a>1)]", None),
        ] {
            assert_eq!(parse(path), expected, "{path}");
        }
    }
}
