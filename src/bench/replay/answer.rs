//! Answers of requests.

use std::sync::Arc;

use axum::extract::Query;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;

use super::{
    Body, Shared,
    stream::{Page, Watch},
};

/// Query of a request for the generated type.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    watch: String,
    resource_version: String,
    send_initial_events: String,
    allow_watch_bookmarks: String,
    timeout_seconds: Option<u64>,
    limit: Option<u64>,
    #[serde(rename = "continue")]
    continue_token: String,
    label_selector: String,
    field_selector: String,
}

fn is_true(text: &str) -> bool {
    matches!(text, "true" | "1")
}

/// Answers a request.
pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET || request.uri().path() != shared.generator.resource().path(None) {
        return forward(&shared, request).await;
    }
    let asked = match Query::<Asked>::try_from_uri(request.uri()) {
        Ok(Query(asked)) => asked,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if !asked.label_selector.is_empty() || !asked.field_selector.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "the replay server knows no selectors");
    }
    let body = if is_true(&asked.watch) { watch(shared, &asked) } else { list(shared, &asked) };
    body.map_or_else(
        || refuse(StatusCode::BAD_REQUEST, "resourceVersion or continue is not of this server"),
        |body| respond(StatusCode::OK, body),
    )
}

fn watch(shared: Arc<Shared>, asked: &Asked) -> Option<Body> {
    let initial = is_true(&asked.send_initial_events);
    let from = match asked.resource_version.as_str() {
        _ if initial => None,
        "" | "0" => None,
        version => Some(shared.generator.change_of(version.parse().ok()?)),
    };
    let bookmarks = is_true(&asked.allow_watch_bookmarks);
    // A watch without version begins with the existing objects, and has no marker after them.
    Some(Watch::open(shared, from, initial, bookmarks, asked.timeout_seconds).into_body())
}

fn list(shared: Arc<Shared>, asked: &Asked) -> Option<Body> {
    let head = shared.head.borrow().changes;
    let (at, first) = match asked.continue_token.split_once('.') {
        Some((at, first)) => (at.parse().ok().filter(|at| *at <= head)?, first.parse().ok()?),
        None if asked.continue_token.is_empty() => (head, 0),
        None => return None,
    };
    Some(Page::open(shared, at, first, asked.limit.filter(|limit| *limit > 0)).into_body())
}

/// Forwards a request to the simulated API server.
async fn forward(shared: &Shared, mut request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri = Uri::builder().scheme("http").authority(shared.behind.to_string()).path_and_query(path).build();
    let Ok(uri) = uri else { return refuse(StatusCode::BAD_REQUEST, "the path cannot be read") };
    *request.uri_mut() = uri;
    match shared.client.request(request).await {
        Ok(response) => response.map(BodyExt::boxed_unsync),
        Err(error) => refuse(StatusCode::BAD_GATEWAY, &error.to_string()),
    }
}

fn refuse(code: StatusCode, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""), "code": code.as_u16(),
    });
    let never = |never: std::convert::Infallible| match never {};
    respond(code, Full::from(status.to_string()).map_err(never).boxed_unsync())
}

fn respond(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
