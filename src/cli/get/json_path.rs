//! `JSONPath` templates in the syntax of kubectl: text, `{.paths}`, `{"literals"}` and `{range .path}…{end}`.

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

pub(super) use crate::serve::kube_api::JsonPath;
use crate::serve::kube_api::closing;

/// Template of `-o jsonpath=`.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Path(JsonPath),
    Range(JsonPath, Vec<Part>),
}

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
        while let Some(open) = rest.find('{') {
            parts.push(Part::Text(rest[..open].to_owned()));
            let block = &rest[open..];
            let end = closing(block, ['{', '}']).with_context(|| format!("a '}}' is missing after {block:?}"))?;
            let inner = block[1..end].trim();
            rest = &block[end + 1..];
            if let Some(path) = inner.strip_prefix("range ") {
                ranges.push((JsonPath::parse(path)?, std::mem::take(&mut parts)));
            } else if inner == "end" {
                let (path, before) = ranges.pop().context("{end} has no {range …} before it")?;
                let body = std::mem::replace(&mut parts, before);
                parts.push(Part::Range(path, body));
            } else if inner.starts_with(['"', '\'']) {
                parts.push(Part::Text(literal(inner)?));
            } else {
                parts.push(Part::Path(JsonPath::parse(inner)?));
            }
        }
        if !ranges.is_empty() {
            bail!("an {{end}} is missing: each {{range …}} needs one");
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// Fills the template with values of `value`, which is an object or a List.
    pub(super) fn fill(&self, value: &Value) -> String {
        fill(&self.0, value)
    }
}

fn fill(parts: &[Part], value: &Value) -> String {
    let filled = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => path.find(value).into_iter().map(text).collect::<Vec<_>>().join(" "),
        Part::Range(path, body) => path.find(value).into_iter().map(|value| fill(body, value)).collect(),
    };
    parts.iter().map(filled).collect()
}

/// Returns a string without quotes, and any other value as JSON.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses a text in quotes, with the escapes of JSON.
fn literal(quoted: &str) -> anyhow::Result<String> {
    let unquoted = quoted.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    let json = unquoted.map_or_else(|| quoted.to_owned(), |text| format!("\"{}\"", text.replace('"', "\\\"")));
    serde_json::from_str(&json)
        .map_err(|_| anyhow!("unexpected text {quoted} in the template, expected for instance {{\"\\n\"}}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list() -> Value {
        json!({"kind": "List", "items": [
            {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x", "my-app": "m"}}, "n": 1,
             "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
            {"metadata": {"name": "b"}, "n": 2.5, "conditions": []},
        ]})
    }

    #[test]
    fn templates_match_kubectl_output() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            (".items[*].metadata.name", "a b"),
            ("{$.kind}-{@.kind}!", "List-List!"),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{'\\n'}{end}", "a\t1\nb\t2.5\n"),
            ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "x"),
            ("{.items[0].metadata.labels['my-app']} {.items[0].metadata.labels.my-app}", "m m"),
            ("{.items[0].conditions[?(@.type==\"Ready\")].status}", "True"),
            ("{.items[-1].metadata.name}{.items[0:1].n}", "b1"),
            ("{..name}", "a b"),
            ("{.items[1].metadata}", "{\"name\":\"b\"}"),
            ("{.items[*].none}{.none.deeper}", ""),
            ("{range .items[*]}{range .conditions[*]}{.type},{end};{end}", "Ready,Other,;;"),
        ] {
            assert_eq!(Template::parse(template).unwrap().fill(&list()), expected, "{template}");
        }
    }

    #[test]
    fn invalid_templates_are_refused_with_reason() {
        for (template, expected) in [
            ("{.items", "'}' is missing"),
            ("{.items[}", "']' is missing"),
            ("{range .items[*]}x", "{end} is missing"),
            ("x{end}", "no {range"),
            ("{.items[?]}", "unexpected JSONPath"),
            ("{\"a}", "'}' is missing"),
            ("", "expected a template"),
        ] {
            let error = Template::parse(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }
}
