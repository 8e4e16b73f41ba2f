//! Kubernetes objects as YAML, for `kubectl apply -f -`.

use serde_json::Value;

/// Returns comments, followed by each object as a document.
pub(super) fn documents<'a>(comments: impl IntoIterator<Item = &'a String>, objects: &[Value]) -> String {
    let comments = comments.into_iter().map(|comment| format!("# {comment}\n"));
    comments.chain(objects.iter().map(|object| format!("---\n{}", yaml(object)))).collect()
}

/// Returns a value as YAML; members keep their order.
pub(super) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|error| format!("# cannot be written as YAML: {error}\n"))
}
