//! Patches of objects, in the formats of the API server. Pure.

mod strategic;

use json_patch::{CopyOperation, MoveOperation, Patch, PatchOperation, patch_unsafe};
use serde_json::Value;

use super::{ApiError, types::TypeInfo};

pub use strategic::strategic_merge;

/// Largest number of operations of a JSON patch, as in the API server.
const MAX_OPERATIONS: usize = 10_000;

/// Largest total size of the values that a JSON patch copies and moves, in bytes.
const MAX_TAKEN: usize = 3 << 20;

/// Largest depth of an object after a JSON patch: a deeper one could not be decoded again.
const MAX_DEPTH: usize = 100;

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Strategic merge patch. Only built-in types accept it.
    Strategic,
    /// Server-side apply: a merge that creates a missing object.
    Apply,
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl PatchKind {
    /// Returns the format with this media type; 415 if the type of the objects does not accept it.
    pub(super) fn of(content_type: &str, info: &TypeInfo) -> Result<Self, ApiError> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            JSON => Ok(Self::Json),
            MERGE => Ok(Self::Merge),
            STRATEGIC if info.typed => Ok(Self::Strategic),
            APPLY => Ok(Self::Apply),
            _ if info.typed => Err(ApiError::unknown_format(&[JSON, MERGE, STRATEGIC, APPLY])),
            _ => Err(ApiError::unknown_format(&[JSON, MERGE, APPLY])),
        }
    }

    /// Applies a patch to an object of this kind.
    pub(super) fn apply(self, kind: &str, mut object: Value, patch: Value) -> Result<Value, ApiError> {
        match self {
            Self::Json => return apply_operations(object, patch),
            _ if !patch.is_object() => return Err(ApiError::bad_request("a merge patch is an object")),
            Self::Strategic => return strategic_merge(kind, object, patch),
            Self::Merge | Self::Apply => json_patch::merge(&mut object, &patch),
        }
        Ok(object)
    }
}

fn apply_operations(mut object: Value, patch: Value) -> Result<Value, ApiError> {
    let patch: Patch = serde_json::from_value(patch)
        .map_err(|error| ApiError::bad_request(format!("a JSON patch is a list of operations: {error}")))?;
    if patch.0.len() > MAX_OPERATIONS {
        let message = format!("a JSON patch has at most {MAX_OPERATIONS} operations, not {}", patch.0.len());
        return Err(ApiError::new(413, message));
    }
    let mut taken = 0;
    for (at, operation) in patch.0.iter().enumerate() {
        let value = match operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            PatchOperation::Copy(CopyOperation { from, .. }) | PatchOperation::Move(MoveOperation { from, .. }) => {
                let value = from.resolve(&object).ok();
                // copies of copies grow exponentially
                taken += value.map_or(0, |value| value.to_string().len());
                value
            }
            _ => None,
        };
        if taken > MAX_TAKEN {
            return Err(ApiError::new(413, format!("a JSON patch copies and moves at most {MAX_TAKEN} bytes")));
        }
        if operation.path().count() + value.map_or(0, depth) > MAX_DEPTH {
            return Err(ApiError::new(422, format!("operation {at} makes an object of more than {MAX_DEPTH} levels")));
        }
        patch_unsafe(&mut object, std::slice::from_ref(operation)).map_err(|error| {
            ApiError::new(422, format!("operation {at} of the JSON patch, at {}: {}", error.path, error.kind))
        })?;
    }
    Ok(object)
}

/// Returns the number of levels of a value.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(elements) => elements.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    below.unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
    #[track_caller]
    fn check(object: Value, patch: Value, expected: Result<Value, u16>) {
        let text = format!("{object} {patch}");
        let patched = PatchKind::Json.apply("Pod", object, patch);
        assert_eq!(patched.map_err(|error| error.code), expected, "{text}");
    }

    #[test]
    fn json_patch_applies_operations_in_order() {
        let operations = json!([
            {"op": "test", "path": "/a", "value": 1}, {"op": "add", "path": "/b/-", "value": 2},
            {"op": "copy", "from": "/b", "path": "/c"}, {"op": "remove", "path": "/a"},
        ]);
        check(json!({"a": 1, "b": [1]}), operations, Ok(json!({"b": [1, 2], "c": [1, 2]})));
        check(json!({}), json!([{"op": "test", "path": "/a", "value": 1}]), Err(422));
        check(json!({}), json!([{"op": "remove", "path": "/a"}]), Err(422));
        check(json!({}), json!([{"op": "guess", "path": "/a"}]), Err(400));
        check(json!({}), json!({"a": 1}), Err(400));
    }

    #[test]
    fn json_patch_is_bounded() {
        let test = json!({"op": "test", "path": "", "value": {}});
        check(json!({}), vec![test; MAX_OPERATIONS + 1].into(), Err(413));
        let double = |at: usize| json!({"op": "copy", "from": "/a", "path": format!("/a/{at}")});
        check(json!({"a": {"x": "x".repeat(1 << 18)}}), (0..100).map(double).collect(), Err(413));
        let move_inside = |at: usize| {
            let (from, to) = if at.is_multiple_of(2) { ("a", "b") } else { ("b", "a") };
            [
                json!({"op": "add", "path": format!("/{to}"), "value": {}}),
                json!({"op": "move", "from": format!("/{from}"), "path": format!("/{to}/x")}),
            ]
        };
        check(json!({"a": {}}), (0..40).flat_map(move_inside).take(2).collect(), Ok(json!({"b": {"x": {}}})));
        check(json!({"a": {}}), (0..200).flat_map(move_inside).collect(), Err(422));
    }
}
