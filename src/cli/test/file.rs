//! Objects in YAML or JSON files.

use std::{fs, path::Path};

use crate::{engine::dry_run::DryState, printable::printable};
use serde_json::{Map, Value};

use crate::cli::yaml;

/// Reads the objects of a file: one object, several documents, or a list: a `List` as kubectl prints it, or a `PodList` as the API
/// server sends it. Blocks the thread.
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
        for (position, object) in items(document) {
            let item = position.map(|position| format!("items[{position}]: ")).unwrap_or_default();
            states.push(DryState::new(object).map_err(|error| format!("{place}{item}{error}"))?);
        }
    }
    if states.is_empty() {
        return Err("expected a Kubernetes object, found none".to_owned());
    }
    Ok(states)
}

/// Returns the items of a list with their positions, or the object itself.
fn items(document: Value) -> Vec<(Option<usize>, Value)> {
    let mut list = match document {
        Value::Object(list) if is_list(&list) => list,
        object => return vec![(None, object)],
    };
    let kind = list.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
    let kind = kind.filter(|kind| !kind.is_empty()).map(Value::from);
    let version = list.get("apiVersion").filter(|_| kind.is_some()).cloned();
    let Some(Value::Array(mut items)) = list.remove("items") else { return Vec::new() };
    // The API server leaves out what is the same for all items.
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        for (key, value) in [("kind", &kind), ("apiVersion", &version)] {
            if let Some(value) = value {
                item.entry(key).or_insert_with(|| value.clone());
            }
        }
    }
    items.into_iter().enumerate().map(|(position, item)| (Some(position), item)).collect()
}

/// Returns true for a `List`, and for a list of one kind, such as `PodList`. An object of a kind such as `AccessList` has a name.
fn is_list(object: &Map<String, Value>) -> bool {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let has_name = object.get("metadata").is_some_and(|metadata| metadata.get("name").is_some());
    kind == "List" || kind.ends_with("List") && object.get("items").is_some_and(Value::is_array) && !has_name
}

/// Parses one or several documents in JSON or YAML. If a text begins like JSON but is not valid JSON, parses it as YAML.
fn documents(text: &str) -> Result<Vec<Value>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let begin = text.trim_start();
    if !begin.starts_with(['{', '[']) {
        return yaml::parse(text).map_err(|error| format!("neither YAML nor JSON: {error}"));
    }
    let json: Result<Vec<Value>, serde_json::Error> =
        serde_json::Deserializer::from_str(text).into_iter::<Value>().collect();
    json.or_else(|json| {
        let is_like_json = begin[1..].trim_start().starts_with(['"', '{', '[']);
        yaml::parse(text).map_err(|yaml| {
            if is_like_json { format!("invalid JSON: {json}") } else { format!("neither YAML nor JSON: {yaml}") }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::yaml::DEPTH_MAX;

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
            (
                r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#
                    .to_owned(),
                2,
            ),
            ("kind: PodList\napiVersion: v1\nitems: []\n---\n{}".replace("{}", POD), 1),
            ("kind: AccessList\napiVersion: example.com/v1\nmetadata: {name: a}\nitems: [1]".to_owned(), 1),
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
        let expected = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"true":"yes","v":"1.0"}},"spec":{"a":true,"b":3,"c":1.5,"d":null,"e":false}}"#;
        assert_eq!(objects(text), objects(expected));
    }

    #[test]
    fn yaml_keys_match_kubernetes() {
        let text = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{{data}}}\n");
        for (yaml, expected) in [
            ("on: a, y: b", "the key \"true\" occurs twice"),
            ("n: a, 1: b, 1.5: c, 0644: d, \"yes\": e", ""),
            ("~: a", "expected a text as a key, found null"),
            ("a: 1, a: 2", "duplicate mapping key: a"),
        ] {
            let read = objects(&text(yaml));
            match read {
                Ok(read) => assert_eq!(Ok(read), objects(&text(r#""false": a, "1": b, "1.5": c, "420": d, "yes": e"#))),
                Err(error) => {
                    assert!(!expected.is_empty() && error.contains(expected), "{yaml}: {error}");
                    assert!(!error.contains("Policy") && !error.contains("Options"), "{error}");
                }
            }
        }
        assert_eq!(objects(&text("on: a")), objects(&text("\"true\": a")));
    }

    #[test]
    fn items_of_typed_list_get_its_kind() {
        let pod = r#""metadata":{"name":"a"}"#;
        let list = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{{{pod}}}]}}"#
        );
        assert_eq!(objects(&list), objects(&format!(r#"{{"kind":"Pod","apiVersion":"v1",{pod}}}"#)));
        let error = objects(&list.replace("\"name\"", "\"nam\"")).unwrap_err();
        assert!(error.starts_with("items[0]: "), "{error}");
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
