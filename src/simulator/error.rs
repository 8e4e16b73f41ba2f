//! Error answers of the API server, as `Status` objects.

use serde_json::{Value, json};

use super::types::TypeInfo;

/// An error as a client sees it: HTTP code, reason, message, and details that clients depend on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, such as `NotFound`; empty if the server gives none.
    pub reason: &'static str,
    /// Human-readable text.
    pub message: String,
    /// `details` of the Status.
    pub details: Option<Box<Value>>,
    /// Seconds of the `Retry-After` header.
    pub retry_after: Option<u32>,
    /// A new continue token, sent with the error for an expired one.
    pub continue_token: Option<String>,
}

impl ApiError {
    /// Creates an error from its HTTP code, with Kubernetes' reason for it.
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, reason: reason(code), message, details: None, retry_after: None, continue_token: None }
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(info: &TypeInfo, name: &str) -> Self {
        Self::about(404, info, name, format!("{} {name:?} not found", info.resource))
    }

    /// 404: the path does not exist.
    pub(crate) fn no_such_path() -> Self {
        Self {
            details: Some(Box::new(json!({}))),
            ..Self::new(404, "the server could not find the requested resource")
        }
    }

    /// 404 in a group that is not served: plain text, because no API server can answer with a `Status`.
    pub(crate) fn no_such_page() -> Self {
        Self { reason: "", ..Self::new(404, "404 page not found") }
    }

    /// 405: the method has no meaning here.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "the server does not allow this method on the requested resource")
    }

    /// 403: the caller lacks the right. `name` and `namespace` may be empty.
    pub(crate) fn forbidden(group: &str, resource: &str, name: &str, verb: &str, namespace: &str) -> Self {
        let plural = resource.split('/').next().unwrap_or_default();
        let of_group = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let what = if name.is_empty() { of_group } else { format!("{of_group} {name:?}") };
        let place = match namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let message = format!(
            "{what} is forbidden: User \"simulator\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
        );
        Self { details: Some(Box::new(details(name, group, plural))), ..Self::new(403, message) }
    }

    /// 403: the namespace is being deleted.
    pub(crate) fn namespace_terminating(info: &TypeInfo, namespace: &str, name: &str) -> Self {
        let message = format!(
            "{} {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            info.resource
        );
        let mut error = Self::about(403, info, name, message);
        if let Some(details) = &mut error.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        error
    }

    /// 409: the name is taken.
    pub(crate) fn already_exists(info: &TypeInfo, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", info.resource);
        Self { reason: "AlreadyExists", ..Self::about(409, info, name, message) }
    }

    /// 409: the object has changed since the caller read it.
    pub(crate) fn conflict(info: &TypeInfo, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", info.resource);
        Self::about(409, info, name, message)
    }

    /// 422: the object is not valid.
    pub(crate) fn invalid(info: &TypeInfo, name: &str, why: &str) -> Self {
        Self::about(422, info, name, format!("{} {name:?} is invalid: {why}", info.resource.kind))
    }

    /// 400: the request is malformed.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// 410: the version is older than the available history.
    pub(crate) fn too_old(asked: u64, oldest: u64) -> Self {
        Self::new(410, format!("too old resource version: {asked} ({oldest})"))
    }

    /// 410 for a continue token; `fresh` continues inconsistently, from the most recent state.
    pub(crate) fn expired_token(fresh: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a \
                       new list without the continue parameter, or use the continue token in this response to retrieve \
                       the remainder of the results.";
        Self { continue_token: Some(fresh), ..Self::new(410, message) }
    }

    /// 504: the requested version is newer than the server's.
    pub(crate) fn too_large(asked: u64, current: u64) -> Self {
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        Self {
            details: Some(Box::new(json!({"causes": causes, "retryAfterSeconds": 1}))),
            retry_after: Some(1),
            ..Self::new(504, format!("Timeout: Too large resource version: {asked}, current: {current}"))
        }
    }

    /// Returns the `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = Value::clone(details);
        }
        status
    }

    fn about(code: u16, info: &TypeInfo, name: &str, message: String) -> Self {
        let details = details(name, &info.resource.group, &info.resource.plural);
        Self { details: Some(Box::new(details)), ..Self::new(code, message) }
    }
}

/// Returns the `details` that name an object; empty fields are omitted.
fn details(name: &str, group: &str, plural: &str) -> Value {
    let fields = [("name", name), ("group", group), ("kind", plural)];
    let named = fields.into_iter().filter(|(_, value)| !value.is_empty());
    named.map(|(field, value)| (field.to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into()
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Expired",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
