//! Errors that the simulator adds to those of the read API.

use serde_json::json;

use super::types::TypeInfo;
use crate::serve::ApiError;

impl ApiError {
    /// 404 in a group that is not served. The answer is plain text, because only the API server of a group writes a `Status`.
    pub(super) fn no_such_page() -> Self {
        Self { reason: "", ..Self::new(404, "404 page not found") }
    }

    /// 403: the namespace is being deleted.
    pub(super) fn namespace_terminating(info: &TypeInfo, namespace: &str, name: &str) -> Self {
        let message = format!(
            "{} {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            info.resource
        );
        let mut error = Self::about(403, &info.resource, Some(name), message);
        error.details["causes"] = json!([{
            "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        error
    }

    /// 409: the name is taken.
    pub(super) fn already_exists(info: &TypeInfo, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", info.resource);
        Self { reason: "AlreadyExists", ..Self::about(409, &info.resource, Some(name), message) }
    }

    /// 409: the object has changed since the caller read it.
    pub(super) fn conflict(info: &TypeInfo, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", info.resource);
        Self::about(409, &info.resource, Some(name), message)
    }

    /// 422: the object is not valid.
    pub(super) fn invalid(info: &TypeInfo, name: &str, why: &str) -> Self {
        Self::about(422, &info.resource, Some(name), format!("{} {name:?} is invalid: {why}", info.resource.kind))
    }

    /// 415: the body has none of these media types.
    pub(super) fn unknown_format(accepted: &[&str]) -> Self {
        let accepted = accepted.join(", ");
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, message)
    }

    /// 410: the version is older than the available history.
    pub(super) fn too_old(asked: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {asked} ({oldest})"))
    }
}
