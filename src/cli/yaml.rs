//! YAML as kubectl writes and reads it.

mod parse;

use serde_json::Value;

#[cfg(test)]
pub(crate) use parse::DEPTH_MAX;
pub(crate) use parse::parse;

/// Returns comments, followed by each object as a document, for `kubectl apply -f -`.
pub(super) fn documents<'a>(comments: impl IntoIterator<Item = &'a String>, objects: &[Value]) -> String {
    let comments = comments.into_iter().map(|comment| format!("# {comment}\n"));
    comments.chain(objects.iter().map(|object| format!("---\n{}", yaml(object)))).collect()
}

/// Returns a value as YAML; members keep their order.
pub(super) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|error| format!("# cannot be written as YAML: {error}\n"))
}
