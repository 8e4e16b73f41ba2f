//! `JSONPath` templates in the syntax of kubectl: text, `{.paths}`, `{"literals"}` and `{range .path}…{end}`.

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::serve::kube_api::action_end;
pub(super) use crate::serve::kube_api::{FindError, JsonPath};

/// Maximum number of values that one path visits. It only stops a path that would not end.
const VISITS_MAX: usize = 50_000_000;

/// Returns the values at a path; none if a member is missing.
pub(super) fn find<'a>(path: &'a JsonPath, value: &'a Value) -> Result<Vec<&'a Value>, FindError> {
    path.find(value, VISITS_MAX)
}

/// Template of `-o jsonpath=`.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Path(JsonPath),
    Range(JsonPath, Vec<Part>),
}

/// Maximum depth of ranges.
const DEPTH_MAX: usize = 32;

impl Template {
    /// Parses a template. Text without braces is a single path.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        if text.trim().is_empty() {
            bail!("expected a template, as in -o jsonpath='{{.items[*].metadata.name}}'");
        }
        if !text.contains('{') {
            return Ok(Self(vec![Part::Path(JsonPath::parse(text)?)]));
        }
        // Ranges without their `{end}` so far, each with its path and the parts before the range.
        let mut ranges: Vec<(JsonPath, Vec<Part>)> = Vec::new();
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, action)) = rest.split_once('{') {
            parts.push(Part::Text(before.to_owned()));
            let end =
                action_end(action).with_context(|| format!("a '}}' is missing after {:?}", &rest[before.len()..]))?;
            let inner = action[..end].trim();
            rest = &action[end + 1..];
            if let Some(path) = inner.strip_prefix("range").filter(|path| !path.starts_with(char::is_alphanumeric)) {
                if ranges.len() == DEPTH_MAX {
                    bail!("expected at most {DEPTH_MAX} ranges inside each other");
                }
                ranges.push((JsonPath::parse_action(path)?, std::mem::take(&mut parts)));
            } else if inner == "end" {
                let (path, before) = ranges.pop().context("{end} has no {range …} before it")?;
                let body = std::mem::replace(&mut parts, before);
                parts.push(Part::Range(path, body));
            } else {
                parts.push(Part::Path(JsonPath::parse_action(inner)?));
            }
        }
        if !ranges.is_empty() {
            bail!("an {{end}} is missing: each {{range …}} needs one");
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// Fills the template with values of `value`, which is an object or a List.
    pub(super) fn fill(&self, value: &Value) -> Result<String, FindError> {
        let mut filled = String::new();
        fill(&self.0, value, &mut filled)?;
        Ok(filled)
    }
}

fn fill(parts: &[Part], value: &Value, filled: &mut String) -> Result<(), FindError> {
    for part in parts {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Path(path) => {
                let texts: Vec<_> = find(path, value)?.into_iter().map(text).collect();
                filled.push_str(&texts.join(" "));
            }
            Part::Range(path, body) => {
                find(path, value)?.into_iter().try_for_each(|value| fill(body, value, filled))?;
            }
        }
    }
    Ok(())
}

/// Returns a string without quotes, and any other value as JSON with sorted members.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => {
            let mut sorted = value.clone();
            sorted.sort_all_objects();
            sorted.to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list() -> Value {
        json!({"kind": "List", "items": [
            {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x", "my-app": "m"},
                "annotations": {"a.b/c": "d"}}, "n": 1, "status": {"phase": "Running", "ready": true},
             "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
            {"metadata": {"name": "b"}, "n": 2.5, "conditions": [], "none": null, "status": {"phase": "Pending"}},
        ], "users": [{"name": "myself", "user": {}}, {"name": "e2e", "user": {"password": "secret", "a": 1}}]})
    }

    fn check(cases: &[(&str, &str)]) {
        for (template, expected) in cases {
            assert_eq!(Template::parse(template).unwrap().fill(&list()).unwrap(), *expected, "{template}");
        }
    }

    #[test]
    fn templates_match_kubectl_output() {
        check(&[
            ("{.items[*].metadata.name}", "a b"),
            ("{$.kind}-{@.kind}!", "List-List!"),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{'\\n'}{end}", "a\t1\nb\t2.5\n"),
            ("{range.items[*]}{.metadata.name},{end}", "a,b,"),
            ("{range .items[*]}[{.metadata.name}, {.status.phase}] {end }{.kind}", "[a, Running] [b, Pending] List"),
            ("{range .items[*]}{range .conditions[*]}{.type},{end};{end}", "Ready,Other,;;"),
            ("{range .none[*]}{.x}{end}after", "after"),
            ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "x"),
            ("{.items[0].metadata.labels['app\\.kubernetes\\.io/name']}", "x"),
            ("{.items[0].metadata.labels['my-app']} {.items[0].metadata.labels.my-app}", "m m"),
            ("{.items[?(@.metadata.annotations.a\\.b/c==\"d\")].metadata.name}", "a"),
            ("{.items[?(@.metadata.annotations['a\\.b/c']=='d')].metadata.name}", "a"),
            ("{.items[0].conditions[?(@.type==\"Ready\")].status}", "True"),
            ("{.items[?(.status.phase == \"Running\")].metadata.name}", "a"),
            ("{.items[?(@.status.phase!=\"Running\")].n}{.items[?(@.none)].metadata.name}", "2.5b"),
            ("{.items[?(@..ready==true)].metadata.name}", "a"),
            ("{.users[?(@.name==\"e2e\")].user.password}", "secret"),
            ("{.items[?(@.n>1)].metadata.name}{.items[?(@.n<=1)].metadata.name}", "ba"),
            ("{.items[*]['metadata.name', 'status.phase']}", "a b Running Pending"),
            ("{.items[0]['metadata.name','status.phase']}", "a Running"),
            ("{.items[0,1].metadata.name}", "a b"),
            ("{.items[].metadata.name}", "a"),
            ("{.items[-1].metadata.name}{.items[0:1].n}", "b1"),
            ("{.items[::2].metadata.name}{.items[-1:].n}{.items[0:0]}{.items[5:5]}{.items[0:-1].n}", "a2.51"),
            ("{..phase}{...phase}{.items..phase}", "Running PendingRunning PendingRunning Pending"),
            ("{.items[1].metadata}{.items[1].status.*}", "{\"name\":\"b\"}Pending"),
            ("{.users[1].user}{.items[1].none}", "{\"a\":1,\"password\":\"secret\"}null"),
            ("{.items[*].none}{.none.deeper}{.none[0]}{.kind.x}", "null"),
            ("{\"{\"}{1}{2.5}{true}{'it\\'s }'}{\"\\u0041\\x41\"} } { .kind }", "{12.5trueit's }AA } List"),
            ("{.kind \"x\"}", "x"),
        ]);
    }

    /// kubectl prints the first as text, and nothing for the others.
    #[test]
    fn paths_beyond_kubectl_have_values() {
        check(&[
            (".items[*].metadata.name", "a b"),
            ("{.items[0].metadata.labels['app.kubernetes.io/name']}", "x"),
            ("{.items[0].metadata[\"name\"]}", "a"),
        ]);
    }

    #[test]
    fn invalid_templates_are_refused_with_reason() {
        for (template, expected) in [
            ("{.items", "'}' is missing"),
            ("{.items[}", "']' is missing"),
            ("{.items]}", "unexpected ']'"),
            ("{range .items[*]}x", "{end} is missing"),
            ("x{end}", "no {range"),
            ("{.items[?]}", "unexpected JSONPath"),
            ("{.items[?@.n]}", "expected an index, a slice such as [0:2], a quoted name, * or a filter"),
            ("{.items[?(@.n==1&&@.x)]}", "expected a filter with one comparison"),
            ("{.items[?(@.n=1)]}", "unexpected operator \"=\""),
            ("{.items[?(@.n[?(@.x)])]}", "expected a filter with one comparison"),
            ("{.items[?(n==1)]}", "unexpected \"n\": a field begins with a dot"),
            ("{kind}", "a field begins with a dot"),
            ("{.}", "expected a name after the dot"),
            ("{..*}", "unexpected '*'"),
            ("{....name}", "at most two dots"),
            ("{'\\q'}", "unexpected escape"),
            ("{\"a}", "'}' is missing"),
            ("", "expected a template"),
            (&"{range .x}".repeat(100_000), "at most 32 ranges"),
        ] {
            let error = Template::parse(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template:.100}: {error}");
        }
    }

    #[test]
    fn template_without_meaning_for_an_object_fails() {
        for (template, expected) in [
            ("{.items[2].kind}", "index 2 is out of bounds: the list has 2 items"),
            ("{range .items[*]}{.conditions[0].type}{end}", "index 0 is out of bounds"),
            ("{.users[0][0]}", "needs a list, found an object"),
            ("{.items[?(@.n==\"x\")]}", "cannot compare a number with a text"),
        ] {
            let error = Template::parse(template).unwrap().fill(&list()).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }
}
