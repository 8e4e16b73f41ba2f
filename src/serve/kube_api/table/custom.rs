//! Columns of custom resource definitions: `additionalPrinterColumns`.

use serde_json::Value;

use super::{
    cells::{Row, items, since, text},
    definition,
    json_path::JsonPath,
};

/// Column of a custom resource.
#[derive(Debug)]
pub(in crate::serve::kube_api) struct CustomColumn {
    /// Entry of the column in `columnDefinitions`.
    pub(super) definition: Value,
    kind: String,
    path: JsonPath,
}

/// Maximum length of a `jsonPath` in bytes. The parser is recursive, so a long path could overflow the stack.
const PATH_BYTES_MAX: usize = 256;

/// Returns true if a path is short, and if its evaluation takes linear time in the size of the object. Descendants, unions,
/// functions and nested filters can take exponential time. Such paths are refused, because anyone who may write a definition
/// chooses the path.
fn is_bounded(path: &str) -> bool {
    let inner = path.trim_start_matches(['{', '$']);
    (1..=PATH_BYTES_MAX).contains(&path.len())
        && !inner.contains("..")
        && !inner.contains([',', '$'])
        && inner.matches('?').count() <= 1
        && inner.matches('(').count() == inner.matches("?(").count()
}

/// Returns the columns of one version of a definition, without those whose path is not supported.
pub(super) fn columns(resource_definition: &Value, version: &str) -> Vec<CustomColumn> {
    let mut versions = items(&resource_definition["spec"]["versions"]).iter();
    let Some(version) = versions.find(|served| served["name"] == version) else { return Vec::new() };
    let column = |column: &Value| {
        let field = |name: &str| text(&column[name]);
        let path = Some(field("jsonPath")).filter(|path| is_bounded(path))?;
        let (kind, priority) = (field("type"), column["priority"].as_i64().unwrap_or_default());
        let definition = definition(field("name"), kind, field("format"), field("description"), priority);
        Some(CustomColumn { definition, kind: kind.to_owned(), path: JsonPath::parse(path).ok()? })
    };
    items(&version["additionalPrinterColumns"]).iter().filter_map(column).collect()
}

impl CustomColumn {
    pub(super) fn cell(&self, row: &Row<'_>) -> Value {
        let Some(value) = self.path.find(row.object).first().copied() else { return Value::Null };
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_show_values_of_json_paths() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"replicas": 3, "ratio": 1.5, "hosts": ["one", "two"]},
            "status": {"conditions": [{"type": "Old", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let cell = |path: &str, kind: &str| {
            let column = json!({"name": "C", "type": kind, "jsonPath": path});
            let version = json!({"name": "v1", "additionalPrinterColumns": [column]});
            let columns = columns(&json!({"spec": {"versions": [version]}}), "v1");
            columns.first().map(|column| column.cell(&Row { object: &object, now: Timestamp::UNIX_EPOCH }))
        };
        for (path, kind, expected) in [
            (".spec.replicas", "integer", json!(3)),
            (".spec.ratio", "integer", json!(1)),
            (".spec.replicas", "string", json!("3")),
            (".spec.none.deeper", "string", Value::Null),
            (".metadata.labels['a.b/c']", "string", json!("x")),
            (".metadata.labels.a\\.b/c", "string", json!("x")),
            (".spec.hosts[0]", "string", json!("one")),
            (".spec.hosts[-1]", "string", json!("two")),
            (".spec.hosts[*]", "string", json!("one")),
            (".status.conditions[?(@.type==\"Ready\")].status", "string", json!("True")),
        ] {
            assert_eq!(cell(path, kind), Some(expected), "{path}");
        }
        let too_long = format!(".{}", "x".repeat(PATH_BYTES_MAX));
        let unbounded = [
            ".a..b",
            ".a['b','b']",
            ".a[?(@.b[?(@.c)])]",
            ".a[?count(count(x]",
            ".a[?(search(@.b,\"c\"))]",
            ".a[?(@.b==$.c)]",
        ];
        for invalid in ["", ".spec[", &too_long].into_iter().chain(unbounded) {
            assert_eq!(cell(invalid, "string"), None, "{invalid}");
        }
    }
}
