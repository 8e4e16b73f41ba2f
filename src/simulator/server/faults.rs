//! Executes faults: a layer around the server that changes requests, answers and streams.

mod body;
mod stream;

use std::{error::Error, io, iter::successors, sync::Arc};

use axum::{
    Json,
    body::{Body, to_bytes},
    response::{IntoResponse as _, Response},
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use self::{
    body::cut,
    stream::{FaultyStream, table},
};
use super::{
    super::{
        ApiError,
        faults::{ServerFault, StreamPlan},
        rights::Attempt,
    },
    RequestKind, Shared,
    request::Call,
    respond::respond as answer,
};
use crate::serve::kube_api::Target;

/// Answers one request, changed by the faults that match it. `Err` closes the connection without an answer.
pub(super) async fn respond(shared: &Arc<Shared>, mut call: Call, body: Body) -> io::Result<Response> {
    let verb = call.seen.verb;
    let faults = shared.faults.decide(&call.seen.path, verb);
    for fault in &faults {
        match fault {
            ServerFault::Close => return Err(io::Error::other("a fault closes the connection")),
            ServerFault::Reset => {
                return Err(io::Error::new(io::ErrorKind::ConnectionReset, "a fault resets the connection"));
            }
            ServerFault::Stall => std::future::pending::<()>().await,
            ServerFault::Delay(delay) => tokio::time::sleep(*delay).await,
            ServerFault::Status { code, retry_after } => {
                let error = ApiError { retry_after: *retry_after, ..ApiError::new(*code, "a fault on demand") };
                return Ok(error.into_response());
            }
            ServerFault::Table if verb == RequestKind::List => return Ok(Json(table("1")).into_response()),
            ServerFault::WrongList if verb == RequestKind::List => {
                let (kind, version) = ("BananaList", "fruit.example/v1");
                let metadata = json!({"resourceVersion": "1"});
                let list = json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": []});
                return Ok(Json(list).into_response());
            }
            ServerFault::Lag(versions) if !call.param("resourceVersion").is_empty() => {
                call.past = Some(shared.store.version().saturating_sub(*versions));
            }
            _ => {}
        }
    }
    let mut response = with_rights(shared, &call, body).await;
    let plan = StreamPlan::of(&faults);
    if verb == RequestKind::Watch && response.status() == StatusCode::OK && plan != StreamPlan::default() {
        response = response.map(|body| FaultyStream::new(shared, &call, plan, body).into_body());
    }
    for fault in &faults {
        response = match fault {
            ServerFault::EmptyList if verb == RequestKind::List => change(response, empty).await,
            ServerFault::CutAfterBytes(bytes) => response.map(|body| cut(body, *bytes, io::ErrorKind::Other)),
            ServerFault::ResetAfterBytes(bytes) => {
                response.map(|body| cut(body, *bytes, io::ErrorKind::ConnectionReset))
            }
            _ => response,
        };
    }
    Ok(response)
}

/// Makes a connection end with RST instead of FIN if `error` comes from a fault that resets the connection.
pub(super) fn close(stream: &TcpStream, error: &hyper::Error) {
    let mut causes = successors(error.source(), |error| (**error).source()).filter_map(|cause| cause.downcast_ref());
    if causes.any(|cause: &io::Error| cause.kind() == io::ErrorKind::ConnectionReset)
        && let Err(error) = stream.set_zero_linger()
    {
        tracing::debug!(%error, "simulator: the connection closes without a reset");
    }
}

/// Answers 403 if the caller lacks the right; otherwise answers the request. As on a real server, an unknown type is answered with
/// 403, not 404, if the right is missing. The answers of access reviews also report the removed rights as missing.
async fn with_rights(shared: &Arc<Shared>, call: &Call, body: Body) -> Response {
    let Some(target) = Target::parse(&call.seen.path) else { return answer(shared, call, body).await };
    if target.group == "authorization.k8s.io" && call.method == Method::POST {
        let response = answer(shared, call, body).await;
        return change(response, |review| review_rights(shared, review)).await;
    }
    if let Some(error) = forbidden(shared, call, target) {
        return error.into_response();
    }
    answer(shared, call, body).await
}

fn forbidden(shared: &Shared, call: &Call, target: Target<'_>) -> Option<ApiError> {
    let Target { group, plural, .. } = target;
    let (verb, namespace) = (right(call, target), target.namespace.unwrap_or_default());
    if shared.faults.allows(Attempt { verb, group, plural, namespace }) {
        return None;
    }
    let resource = target.subresource.map_or_else(|| plural.to_owned(), |sub| format!("{plural}/{sub}"));
    let of_group = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let name = target.name.map(|name| format!(" {name:?}")).unwrap_or_default();
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let message = format!(
        "{of_group}{name} is forbidden: User \"simulator\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
    );
    Some(ApiError::new(403, message).of(group, plural, target.name))
}

/// Returns the RBAC verb of a request.
fn right(call: &Call, target: Target<'_>) -> &'static str {
    match (&call.method, target.name.is_some()) {
        (&Method::GET, _) if call.flag("watch") => "watch",
        (&Method::GET, true) => "get",
        (&Method::GET, false) => "list",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, false) => "deletecollection",
        _ => "delete",
    }
}

/// Changes the answer of an access review: a right that `Faults::forbid` has removed is reported as missing.
fn review_rights(shared: &Shared, review: &mut Value) {
    let asked = &review["spec"]["resourceAttributes"];
    if review["status"]["allowed"] == true && !asked.is_null() {
        let text = |field: &str| asked[field].as_str().unwrap_or_default();
        let (verb, group, plural) = (text("verb"), text("group"), text("resource"));
        let is_allowed = shared.faults.allows(Attempt { verb, group, plural, namespace: text("namespace") });
        review["status"]["allowed"] = json!(is_allowed);
    } else if review["status"]["incomplete"] == false {
        // the answer lists granted rights only, so it cannot express refusals
        review["status"]["incomplete"] = json!(shared.faults.is_restricted());
    }
}

/// Removes the objects of a list.
fn empty(list: &mut Value) {
    list["items"] = json!([]);
    if let Some(metadata) = list["metadata"].as_object_mut() {
        metadata.retain(|name, _| name == "resourceVersion");
    }
}

/// Changes the JSON of a successful answer.
async fn change(response: Response, change: impl FnOnce(&mut Value)) -> Response {
    if !response.status().is_success() {
        return response;
    }
    let (head, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let mut json = serde_json::from_slice(&bytes).unwrap_or_default();
    change(&mut json);
    Response::from_parts(head, Body::from(json.to_string()))
}
