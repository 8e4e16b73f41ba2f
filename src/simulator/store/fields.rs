//! `managedFields`: the writers of an object, in the API server's format.

use serde_json::{Map, Value, json};

use super::super::types::TypeInfo;

/// Members of `metadata` that clients write. Each write is recorded under the client's manager name.
const MANAGED: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// Records `manager` in `new` as the writer of all fields that differ from `old`. Does nothing if no field differs.
///
/// A member of the object, or of its metadata, counts as one field. If `manager` already has an entry for the subresource, the fields
/// are added to it. All other entries lose these fields.
pub(super) fn note(
    info: &TypeInfo,
    old: &Value,
    new: &mut Value,
    manager: &str,
    subresource: Option<&str>,
    time: &str,
) {
    let differs =
        |name: &&String| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") && old[*name] != new[*name];
    let names = new.as_object().into_iter().flat_map(Map::keys);
    let mut fields: Map<_, _> = names.filter(differs).map(|name| (format!("f:{name}"), json!({}))).collect();
    let of_metadata = MANAGED.into_iter().filter(|name| new["metadata"][name] != old["metadata"][name]);
    let of_metadata: Map<_, _> = of_metadata.map(|name| (format!("f:{name}"), json!({}))).collect();
    if !of_metadata.is_empty() {
        fields.insert("f:metadata".to_owned(), of_metadata.into());
    }
    if fields.is_empty() {
        return;
    }
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let entries = metadata.entry("managedFields").or_insert_with(|| json!([]));
    let Some(entries) = entries.as_array_mut() else { return };
    let subresource = json!(subresource);
    let is_mine = |entry: &Value| entry["manager"] == manager && entry["subresource"] == subresource;
    entries.retain_mut(|entry| is_mine(entry) || !take_away(&mut entry["fieldsV1"], &fields));
    if let Some(entry) = entries.iter_mut().find(|entry| is_mine(entry)) {
        entry["time"] = json!(time);
        json_patch::merge(&mut entry["fieldsV1"], &fields.into());
        return;
    }
    let mut entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": info.resource.api_version(), "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    if !subresource.is_null() {
        entry["subresource"] = subresource;
    }
    entries.push(entry);
}

/// Removes `taken` from the fields of an entry. Returns true if the entry has lost its last field.
fn take_away(fields: &mut Value, taken: &Map<String, Value>) -> bool {
    let Some(fields) = fields.as_object_mut() else { return false };
    let before = fields.len();
    for (name, below) in taken {
        let is_gone = match below.as_object().filter(|below| !below.is_empty()) {
            Some(below) => fields.get_mut(name).is_some_and(|kept| take_away(kept, below)),
            None => true,
        };
        if is_gone {
            fields.shift_remove(name);
        }
    }
    before > 0 && fields.is_empty()
}
