//! Errors in the form of the API server: `Status` objects. The read API and the simulator answer with them.

use std::fmt::Display;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::object::ResourceType;

/// Error response of an API server: HTTP code, reason, message, and details that clients depend on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    pub(crate) code: u16,
    /// Machine-readable reason, such as `NotFound`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// `details` of the `Status`; `null` if there are none.
    pub(crate) details: Box<Value>,
    /// Seconds of the `Retry-After` header.
    pub(crate) retry_after: Option<u32>,
}

impl ApiError {
    /// Creates an error from its HTTP code, with the API server's reason for this code.
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Self {
        let (message, details) = (message.into(), Box::new(Value::Null));
        Self { code, reason: reason(code), message, details, retry_after: None }
    }

    pub(crate) fn with(self, details: Value) -> Self {
        Self { details: Box::new(details), ..self }
    }

    /// Creates an error about a type. If `name` is given, the error is about the object with this name.
    pub(crate) fn about(code: u16, resource: &ResourceType, name: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(code, message).of(&resource.group, &resource.plural, name)
    }

    /// Sets the details to a type. If `name` is given, the details also name the object.
    pub(crate) fn of(self, group: &str, plural: &str, name: Option<&str>) -> Self {
        let mut details = json!({"kind": plural});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        if let Some(name) = name {
            details["name"] = name.into();
        }
        self.with(details)
    }

    /// Asks the client to try again after a second.
    pub(super) fn later(mut self) -> Self {
        self.details["retryAfterSeconds"] = 1.into();
        Self { retry_after: Some(1), ..self }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// Returns 422: contradicting options of a list.
    pub(crate) fn invalid_options(why: &str) -> Self {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {why}");
        Self::new(422, message).with(json!({"group": "meta.k8s.io", "kind": "ListOptions"}))
    }

    pub(crate) fn method_not_allowed(why: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource: {why}");
        Self::new(405, message).with(json!({}))
    }

    pub(super) fn not_acceptable(media_types: &str) -> Self {
        Self::new(406, format!("only the following media types are accepted: {media_types}"))
    }

    /// Returns 406: the requested form does not fit the requested object.
    pub(super) fn unsuitable(form: &str, what: &str) -> Self {
        Self::new(406, format!("you requested {form}, but the requested object is {what}"))
    }

    pub(super) fn internal_error(message: &str) -> Self {
        Self::new(500, message)
    }

    /// Returns 429 with this message, and asks the client to try again after a second.
    pub(super) fn too_many_requests(message: &str) -> Self {
        Self::new(429, message).later()
    }

    /// Returns 503: temporarily unavailable.
    pub(super) fn unavailable(message: &str) -> Self {
        Self::new(503, message).later()
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "the server could not find the requested resource").with(json!({}))
    }

    /// Adds the reason to the message.
    pub(super) fn because(mut self, why: &str) -> Self {
        self.message = format!("{}: {why}", self.message);
        self
    }

    pub(crate) fn not_found(resource: &ResourceType, name: &str) -> Self {
        Self::about(404, resource, Some(name), format!("{resource} {name:?} not found"))
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized")
    }

    /// Returns 403, with the reason.
    pub(super) fn not_allowed(why: &str) -> Self {
        Self::new(403, format!("forbidden: {why}"))
    }

    /// Returns 403: the request comes from a web page of another site.
    pub(super) fn foreign_origin(origin: &str) -> Self {
        Self::not_allowed(&format!(
            "a web page of {origin} may not use this server; if it should, add its host name to [http] allowed_hosts"
        ))
    }

    /// Returns 429: the responses being written have reached the limit.
    pub(super) fn responses_full() -> Self {
        Self::too_many_requests("the responses being written have reached [http] max_response_bytes: try again later")
    }

    /// Returns 410: the requested version is no longer kept.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, message)
    }

    /// Returns 410: the snapshot of a continue token is no longer kept.
    pub(crate) fn expired_token() -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a \
                       new list without the continue parameter.";
        Self::expired(message)
    }

    /// Returns 504: the requested version is newer than the cache.
    pub(crate) fn too_large(asked: impl Display, current: impl Display) -> Self {
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::new(504, message).with(json!({"causes": causes})).later()
    }

    /// Returns the `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = (*self.details).clone();
        }
        status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (code, Json(self.status())).into_response();
        let headers = response.headers_mut();
        match self.code {
            401 => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            405 => drop(headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"))),
            _ => {}
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
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
        421 => "MisdirectedRequest",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
