//! Subresource `scale`: the number of replicas of an object, as an object of its own.

use serde_json::{Value, json};

use super::{
    super::ApiError,
    write::{copy, metadata_mut},
};
use crate::serve::kube_api::label_selector;

pub(super) const API_VERSION: &str = "autoscaling/v1";
pub(super) const KIND: &str = "Scale";

/// Returns the scale of an object.
pub(crate) fn of(object: &Value) -> Value {
    let metadata = object["metadata"].as_object().into_iter().flatten();
    let shown = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata = metadata.filter(|(name, _)| shown.contains(&name.as_str()));
    let metadata: Value = metadata.map(|(name, value)| (name.clone(), value.clone())).collect();
    let spec = match object["spec"]["replicas"].as_i64().unwrap_or(1) {
        0 => json!({}),
        replicas => json!({"replicas": replicas}),
    };
    let mut status = json!({"replicas": object["status"]["replicas"].as_i64().unwrap_or(0)});
    let selector = label_selector(&object["spec"]["selector"]);
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    json!({"kind": KIND, "apiVersion": API_VERSION, "metadata": metadata, "spec": spec, "status": status})
}

/// Returns the object with the number of replicas of a scale. The name, the uid and the version come from the scale, so that they
/// are checked like those of an object.
pub(super) fn applied(mut object: Value, mut scale: Value) -> Result<Value, ApiError> {
    metadata_mut(&mut scale)?;
    for name in ["name", "uid", "resourceVersion"] {
        copy(name, &scale["metadata"], metadata_mut(&mut object)?);
    }
    let replicas = match &scale["spec"]["replicas"] {
        Value::Null => 0,
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
            ApiError::bad_request(format!("spec.replicas: expected a 32-bit integer, found {number}"))
        })?,
    };
    if replicas < 0 {
        let message = format!(
            "{KIND}.autoscaling {} is invalid: spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0",
            object["metadata"]["name"]
        );
        return Err(ApiError::new(422, message));
    }
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    object["spec"]["replicas"] = json!(replicas);
    Ok(object)
}
