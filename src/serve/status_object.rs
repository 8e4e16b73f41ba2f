//! Errors in the form of the API server: `Status` objects.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use serde_json::{Value, json};

use crate::object::{ResourceType, ResourceVersion};

/// Error response of the read API.
#[derive(Debug)]
pub(super) struct StatusObject {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Value,
    retry_after: bool,
}

impl StatusObject {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, retry_after: false }
    }

    fn with(self, details: Value) -> Self {
        Self { details, ..self }
    }

    pub(super) fn bad_request(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Returns 422: contradicting options of a list.
    pub(super) fn invalid_options(why: &str) -> Self {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {why}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with(json!({"group": "meta.k8s.io", "kind": "ListOptions"}))
    }

    pub(super) fn method_not_allowed(why: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource: {why}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).with(json!({}))
    }

    pub(super) fn not_acceptable(media_types: &str) -> Self {
        let message = format!("only the following media types are accepted: {media_types}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// Returns 406: the requested form does not fit the requested object.
    pub(super) fn unsuitable(form: &str, what: &str) -> Self {
        let message = format!("you requested {form}, but the requested object is {what}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// Returns 406 for the discovery documents.
    pub(super) fn no_representation() -> Self {
        let message = "406: Not Acceptable\n\nAvailable representations: application/json";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message).with(json!({}))
    }

    pub(super) fn internal_error(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Returns 429: the maximum number is reached.
    pub(super) fn too_many_requests(message: &str) -> Self {
        Self::later(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    /// Returns 503: temporarily unavailable.
    pub(super) fn unavailable(message: &str) -> Self {
        Self::later(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    fn later(code: StatusCode, reason: &'static str, message: &str) -> Self {
        Self { retry_after: true, ..Self::new(code, reason, message).with(json!({"retryAfterSeconds": 1})) }
    }

    pub(super) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with(json!({}))
    }

    pub(super) fn not_found(resource: &ResourceType, name: &str) -> Self {
        let mut status = Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{resource} {name:?} not found"));
        status.details = details(resource);
        status.details["name"] = name.into();
        status
    }

    pub(super) fn forbidden(resource: &ResourceType, name: Option<&str>) -> Self {
        let what = name.map_or_else(String::new, |name| format!(" {name:?}"));
        let message = format!(
            "{resource}{what} is forbidden: values are redacted, only metadata can be read; use Accept: \
             application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with(details(resource))
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Returns 403, with the reason.
    pub(super) fn not_allowed(why: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", format!("forbidden: {why}"))
    }

    /// Returns 403: a browser sends the request for a page of another site.
    pub(super) fn foreign_origin(origin: &str) -> Self {
        let message = format!(
            "forbidden: a web page of {origin} may not use this server; if it should, add its host name to \
             [http] allowed_hosts"
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// Returns 421: the request names a host that is not this server.
    pub(super) fn misdirected(host: &str) -> Self {
        let message = format!(
            "this server is not reachable as {host}: expected localhost, a loopback address or the server's own \
             address in Host; if the name is right, add it to [http] allowed_hosts"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "MisdirectedRequest", message)
    }

    /// Returns 429: the responses being written have reached the limit.
    pub(super) fn responses_full() -> Self {
        Self::too_many_requests("the responses being written have reached [http] max_response_bytes: try again later")
    }

    /// Returns 404: there is no handler of this name.
    pub(super) fn no_such_handler(name: &str, known: &[String]) -> Self {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("no handler {name:?}; configured: {known}"))
            .with(json!({"kind": "handlers", "name": name}))
    }

    /// Returns 404: the type is watched, but its objects are not kept.
    pub(super) fn not_kept(resource: &ResourceType) -> Self {
        let message = format!(
            "{resource} is watched with cache = \"none\": handlers get its changes; its objects are not kept and \
             cannot be read here"
        );
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with(details(resource))
    }

    pub(super) fn not_synced(resource: &ResourceType) -> Self {
        let message = format!("{resource} is not synced yet: see /v1/resources");
        let mut status = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        status.details = details(resource);
        status.details["retryAfterSeconds"] = 1.into();
        status.retry_after = true;
        status
    }

    /// Returns 410: the requested version is no longer kept.
    pub(super) fn expired(message: &str) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// Returns 504: the requested version is newer than the cache.
    pub(super) fn too_large(asked: &ResourceVersion, current: &ResourceVersion) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut status = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        status.details = json!({"causes": causes, "retryAfterSeconds": 1});
        status.retry_after = true;
        status
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> StatusCode {
        self.code
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if !self.details.is_null() {
            status["details"] = self.details;
        }
        let mut response = Response::new(Body::from(status.to_string()));
        *response.status_mut() = self.code;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.code == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Returns the details that name a type; the core group has no name.
fn details(resource: &ResourceType) -> Value {
    let mut details = json!({"kind": resource.plural});
    if !resource.group.is_empty() {
        details["group"] = resource.group.as_str().into();
    }
    details
}
