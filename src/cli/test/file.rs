//! Objects in YAML or JSON files.

use std::{fs, path::Path};

use crate::{engine::dry_run::DryState, handler::stdout::line::printable};
use serde_json::Value;

/// Maximum depth of nested collections, the same as in `serde_json`.
const DEPTH_MAX: usize = 128;

/// Reads the objects of a file: one object, several documents, or a `List` as kubectl prints it. Blocks the thread.
///
/// # Errors
/// Returns an error message that names the file.
pub(super) fn read(path: &Path) -> Result<Vec<DryState>, String> {
    let said = |error: String| printable(&format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| said(format!("failed to read the file: {error}")))?;
    objects(&text).map_err(said)
}

fn objects(text: &str) -> Result<Vec<DryState>, String> {
    let documents: Vec<Value> = documents(text)?.into_iter().filter(|document| !document.is_null()).collect();
    let several = documents.len() > 1;
    let mut states = Vec::new();
    for (number, document) in (1..).zip(documents) {
        let place = if several { format!("document {number}: ") } else { String::new() };
        match document {
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let Some(Value::Array(items)) = list.remove("items") else { continue };
                for (position, item) in items.into_iter().enumerate() {
                    states.push(DryState::new(item).map_err(|error| format!("{place}items[{position}]: {error}"))?);
                }
            }
            object => states.push(DryState::new(object).map_err(|error| format!("{place}{error}"))?),
        }
    }
    if states.is_empty() {
        return Err("expected a Kubernetes object, found none".to_owned());
    }
    Ok(states)
}

/// Parses one or several documents in JSON or YAML. If a text begins like JSON but is not valid JSON, parses it as YAML.
fn documents(text: &str) -> Result<Vec<Value>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let begin = text.trim_start();
    if !begin.starts_with(['{', '[']) {
        return yaml(text).map_err(|error| format!("neither YAML nor JSON: {error}"));
    }
    let json: Result<Vec<Value>, serde_json::Error> =
        serde_json::Deserializer::from_str(text).into_iter::<Value>().collect();
    json.or_else(|json| {
        let is_like_json = begin[1..].trim_start().starts_with(['"', '{', '[']);
        yaml(text).map_err(|yaml| {
            if is_like_json { format!("invalid JSON: {json}") } else { format!("neither YAML nor JSON: {yaml}") }
        })
    })
}

/// Parses YAML like kubectl: `0644` is 420. The size of a file is not limited.
fn yaml(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_documents: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_depth: DEPTH_MAX,
        },
        legacy_octal_numbers: true,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let error = error.to_string();
        error.lines().next().unwrap_or_default().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";

    #[test]
    fn documents_lists_and_json_are_read_as_objects() {
        for (text, count) in [
            (POD.to_owned(), 1),
            (format!("---\n{POD}---\n# nothing\n---\n{}", POD.replace("a}", "b}")), 2),
            (r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#.to_owned(), 1),
            (r#"{"kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]}"#.to_owned(), 1),
            ("\u{feff} {\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}".to_owned(), 1),
            (r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#.repeat(2), 2),
            ("{apiVersion: v1, kind: Pod, metadata: {name: a}}".to_owned(), 1),
            ("{\"apiVersion\": v1, kind: Pod, metadata: {name: a}}\n---\n{}".replace("{}", POD), 2),
        ] {
            assert_eq!(objects(&text).unwrap().len(), count, "{text}");
        }
    }

    #[test]
    fn large_files_are_read() {
        let documents = format!("---\n{POD}").repeat(1_100);
        assert_eq!(objects(&documents).unwrap().len(), 1_100, "more documents than a parser takes from strangers");
        let numbers = vec!["1"; 260_000].join(",");
        for text in [
            format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":[{numbers}]}}"#),
            format!("{POD}spec: [{numbers}]\n"),
        ] {
            assert_eq!(objects(&text).unwrap().len(), 1);
        }
    }

    #[test]
    fn document_depth_is_limited() {
        let read = |depth: usize| {
            let text = format!("{POD}spec: {}{}\n", "[".repeat(depth), "]".repeat(depth));
            std::thread::Builder::new().stack_size(8 << 20).spawn(move || objects(&text)).unwrap().join().unwrap()
        };
        assert_eq!(read(DEPTH_MAX - 2).unwrap().len(), 1);
        assert!(read(DEPTH_MAX + 1).unwrap_err().starts_with("neither YAML nor JSON: "));
    }

    #[test]
    fn numbers_with_leading_zero_are_octal() {
        let text = |mode: &str| format!("{POD}spec: {{defaultMode: {mode}}}\n");
        assert_eq!(objects(&text("0644")), objects(&text("420")));
        assert_eq!(objects(&text("0o644")), objects(&text("420")));
        assert_eq!(objects(&text("0")), objects(&text("0x0")));
        assert_ne!(objects(&text("\"0644\"")), objects(&text("420")));
    }

    #[test]
    fn yaml_values_match_kubernetes() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {on: \"yes\", v: \"1.0\"}\nspec: {a: true, b: 3, c: 1.5, d: null, e: no}\n";
        let expected = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"on":"yes","v":"1.0"}},"spec":{"a":true,"b":3,"c":1.5,"d":null,"e":false}}"#;
        assert_eq!(objects(text), objects(expected));
    }

    #[test]
    fn invalid_objects_are_refused_with_reason() {
        for (text, said) in [
            ("", "found none"),
            ("# a comment\n", "found none"),
            ("a: [", "neither YAML nor JSON: "),
            ("just text", "with `apiVersion`"),
            ("kind: List\nitems: []\n", "found none"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "with `metadata.name`"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: n}\n", "expected `metadata.name` to be text, found false"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n", "expected `metadata.name` to be text, found 5"),
            ("apiVersion: v1\nkind: Pod\nmetadata:\n  name:\n", "expected `metadata.name` to be text, found null"),
            ("kind: List\nitems:\n- 1\n", "items[0]: expected a Kubernetes object with `apiVersion`"),
            ("{\"a\": 1,\n\"b\": [}", "invalid JSON: "),
            ("{\"a\": 1,\n\"b\": [}", "at line 2 column 7"),
            ("[[1, 2}", "invalid JSON: "),
            ("{a: [", "neither YAML nor JSON: "),
        ] {
            let error = objects(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        let second = format!("{POD}---\n{}", POD.replace("{name: a}", "{name: 7}"));
        assert_eq!(objects(&second).unwrap_err(), "document 2: expected `metadata.name` to be text, found 7");
    }
}
