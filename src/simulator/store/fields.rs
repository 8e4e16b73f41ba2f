//! `managedFields`: the writers of all fields, in the API server's format.

use serde_json::{Map, Value, json};

use super::{super::types::TypeInfo, stored::TYPED_METADATA};

/// Metadata that clients own: writes to it are recorded under their manager.
const MANAGED: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// Records in `new` that `manager` wrote the fields that differ from `old`; nothing if they are equal.
///
/// A list counts as one field. An earlier entry of the same manager is extended.
pub(super) fn note(info: &TypeInfo, old: Option<&Value>, new: &mut Value, manager: &str, status: bool, time: &str) {
    let mut written = Map::new();
    let empty = Map::new();
    let before = old.and_then(Value::as_object).unwrap_or(&empty);
    let after = new.as_object().unwrap_or(&empty);
    for (name, value) in after {
        let fields = match name.as_str() {
            "apiVersion" | "kind" => continue,
            "metadata" => changed(&managed(before.get("metadata")), &managed(Some(value))),
            _ => changed_value(before.get(name), value),
        };
        if let Some(fields) = fields {
            written.insert(format!("f:{name}"), fields);
        }
    }
    if written.is_empty() {
        return;
    }
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let entries = metadata.entry("managedFields").or_insert_with(|| json!([]));
    let Some(entries) = entries.as_array_mut() else { return };
    let subresource = if status { "status" } else { "" };
    let mine = entries
        .iter_mut()
        .find(|entry| entry["manager"] == manager && entry["subresource"].as_str().unwrap_or_default() == subresource);
    if let Some(entry) = mine {
        entry["time"] = json!(time);
        merge(&mut entry["fieldsV1"], Value::Object(written));
        return;
    }
    let mut entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": info.resource.api_version(), "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": written,
    });
    if status {
        entry["subresource"] = json!("status");
    }
    entries.push(entry);
}

fn managed(metadata: Option<&Value>) -> Map<String, Value> {
    let members = metadata.and_then(Value::as_object).into_iter().flatten();
    members
        .filter(|(name, _)| !TYPED_METADATA.contains(&name.as_str()) || MANAGED.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn changed_value(old: Option<&Value>, new: &Value) -> Option<Value> {
    match (old, new) {
        (Some(old), new) if old == new => None,
        (old, Value::Object(after)) => {
            let empty = Map::new();
            changed(old.and_then(Value::as_object).unwrap_or(&empty), after)
        }
        _ => Some(json!({})),
    }
}

fn changed(old: &Map<String, Value>, new: &Map<String, Value>) -> Option<Value> {
    let field = |(name, value): (&String, &Value)| {
        changed_value(old.get(name), value).map(|fields| (format!("f:{name}"), fields))
    };
    let fields: Map<String, Value> = new.iter().filter_map(field).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert_with(|| json!({})), value);
            }
        }
        (into, from) => *into = from,
    }
}
