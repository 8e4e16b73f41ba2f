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
    /// `None` if the definition has a text that is not a path. The cells are then empty.
    path: Option<JsonPath>,
}

/// Maximum number of values that one cell visits. Anyone who may write a definition chooses its paths, and these can take exponential
/// time.
const VISITS_MAX: usize = 10_000;

/// Returns the columns of one version of a definition.
pub(super) fn columns(resource_definition: &Value, version: &str) -> Vec<CustomColumn> {
    let mut versions = items(&resource_definition["spec"]["versions"]).iter();
    let Some(version) = versions.find(|served| served["name"] == version) else { return Vec::new() };
    let column = |column: &Value| {
        let field = |name: &str| text(&column[name]);
        let (kind, priority) = (field("type"), column["priority"].as_i64().unwrap_or_default());
        let definition = definition(field("name"), kind, field("format"), field("description"), priority);
        // An empty path would be the whole object.
        let path = Some(field("jsonPath")).filter(|path| !path.is_empty());
        CustomColumn {
            definition,
            kind: kind.to_owned(),
            path: path.and_then(|path| JsonPath::parse_action(path).ok()),
        }
    };
    items(&version["additionalPrinterColumns"]).iter().map(column).collect()
}

impl CustomColumn {
    pub(super) fn cell(&self, row: &Row<'_>) -> Value {
        // As on the API server, a path that has no meaning for an object leaves its cell empty.
        let found = self.path.as_ref().and_then(|path| path.find(row.object, VISITS_MAX).ok());
        let Some(&value) = found.as_ref().and_then(|found| found.first()) else { return Value::Null };
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

    /// Returns the cell of an object in a table with one column.
    fn cell(object: &Value, path: &str, kind: &str) -> Value {
        let column = json!({"name": "C", "type": kind, "jsonPath": path});
        let version = json!({"name": "v1", "additionalPrinterColumns": [column]});
        let columns = columns(&json!({"spec": {"versions": [version]}}), "v1");
        assert_eq!(columns.len(), 1, "{path}");
        columns[0].cell(&Row { object, now: Timestamp::UNIX_EPOCH })
    }

    #[test]
    fn cells_show_values_of_json_paths() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"replicas": 3, "ratio": 1.5, "hosts": ["one", "two"]},
            "status": {"conditions": [{"type": "Old", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
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
            (".metadata.labels['a\\.b/c']", "string", json!("x")),
            (".status['none', 'conditions']", "string", object["status"]["conditions"].to_string().into()),
            (".spec['replicas','ratio']", "integer", json!(3)),
            (".spec..ratio", "number", json!(1.5)),
            (".spec.hosts[]", "string", json!("one")),
        ] {
            assert_eq!(cell(&object, path, kind), expected, "{path}");
        }
    }

    #[test]
    fn column_without_evaluable_path_stays_empty() {
        let nested = (0..14).fold(json!(1), |inner, _| json!([inner, inner]));
        for path in ["", ".", "spec", ".spec[", ".spec[0]", ".spec[?(@.a)].b", ".a[?(@.b=1)]", ".deep.........x"] {
            assert_eq!(cell(&json!({"spec": {"a": 1}, "a": [{"b": 1}]}), path, "string"), Value::Null, "{path}");
        }
        let endless = ".a".to_owned() + &"...*".repeat(20);
        assert_eq!(cell(&json!({"a": [[[[[[[[[1]]]]]]]]]}), &endless, "string"), Value::Null);
        assert_eq!(cell(&json!({"a": nested}), "..b", "string"), Value::Null);
    }
}
