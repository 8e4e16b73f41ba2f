//! Answers to requests.

use std::sync::Arc;

use axum::{
    Json,
    body::{Body, to_bytes},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    super::{
        ApiError,
        patch::PatchKind,
        shared::now,
        store::{Deletion, ListQuery, Part, Preconditions, Stored, WriteContext, scale},
        types::{TypeInfo, is_builtin_group},
    },
    Shared, discovery,
    list::{self, shaped},
    protobuf,
    request::{Ask, Call, Shape},
    watch,
};
use crate::{
    object::ObjectKey,
    serve::{
        discovery as documents,
        kube_api::{HEADERS, Target},
    },
};

/// Largest accepted body: etcd's limit for a request.
const MAX_BODY: usize = 3 << 20;

/// Answers one request.
pub(super) async fn respond(shared: &Arc<Shared>, call: &Call, body: Body) -> Response {
    answer(shared, call, body).await.unwrap_or_else(refusal)
}

async fn answer(shared: &Arc<Shared>, call: &Call, body: Body) -> Result<Response, ApiError> {
    if let Some(answer) = shared.front.as_ref().and_then(|front| Arc::clone(front).answer(call)) {
        return Ok((HEADERS, answer?).into_response());
    }
    let Some(target) = Target::parse(&call.seen.path) else { return other(shared, call) };
    if target.group == "authorization.k8s.io" && call.method == Method::POST {
        return review(target, decode(call, true, &read_body(body).await?)?);
    }
    let (id, info) = {
        let store = shared.store.lock();
        let found = store.find(target.group, target.version, target.plural);
        let id = found.ok_or_else(|| unserved(target.group))?;
        (id, Arc::clone(store.info(id)))
    };
    let part = match target.subresource {
        None => Part::Main,
        Some("status") if info.status => Part::Status,
        Some("scale") if info.scale => Part::Scale,
        Some(_) => return Err(ApiError::no_such_path()),
    };
    if target.namespace.is_some() && !info.resource.namespaced {
        return Err(ApiError::no_such_path());
    }
    let ask = Ask { shared, call, target, id, info, part };
    if call.method == Method::GET {
        return match target.name {
            _ if call.flag("watch") && part == Part::Main => Ok((HEADERS, watch::watch(ask).await?).into_response()),
            Some(name) => get(&ask, name).await,
            None => Ok((HEADERS, list::list(&ask).await?).into_response()),
        };
    }
    if call.seen.query.contains_key("dryRun") {
        return Err(ApiError::bad_request("dryRun is not simulated"));
    }
    write(&ask, &read_body(body).await?)
}

/// Answers a request that names no resource.
fn other(shared: &Shared, call: &Call) -> Result<Response, ApiError> {
    if call.method != Method::GET {
        return Err(method_not_allowed());
    }
    let path = call.seen.path.trim_end_matches('/');
    if ["/readyz", "/livez", "/healthz"].iter().any(|health| path.starts_with(health)) {
        return Ok("ok".into_response());
    }
    if path == "/version" {
        return Ok(Json(documents::version()).into_response());
    }
    let group = if path.starts_with("/api/") { "" } else { path.split('/').nth(2).unwrap_or("-") };
    let store = shared.store.lock();
    match documents::answer(path, &call.headers, || discovery::served(&store)) {
        Some(document) => document.map_err(|error| if error.code == 404 { unserved(group) } else { error }),
        None => discovery::openapi(&store, path).map(|json| Json(json).into_response()).ok_or_else(|| unserved(group)),
    }
}

/// Returns the error for a path that is not served.
fn unserved(group: &str) -> ApiError {
    if is_builtin_group(group) { ApiError::no_such_path() } else { ApiError::no_such_page() }
}

fn method_not_allowed() -> ApiError {
    ApiError::method_not_allowed("it has no meaning here")
}

/// Answers access reviews about the caller's own rights: everything is allowed.
fn review(target: Target<'_>, mut review: Value) -> Result<Response, ApiError> {
    let status = match target.plural {
        "selfsubjectaccessreviews" | "subjectaccessreviews" => json!({"allowed": true}),
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        _ => return Err(ApiError::no_such_path()),
    };
    review.as_object_mut().ok_or_else(|| ApiError::bad_request("not an object"))?.insert("status".to_owned(), status);
    Ok((StatusCode::CREATED, Json(review)).into_response())
}

async fn get(ask: &Ask<'_>, name: &str) -> Result<Response, ApiError> {
    if let Some(version) = list::parse_version(ask.call.param("resourceVersion"))? {
        list::wait_for_version(ask.shared, version).await?;
    }
    let key = ObjectKey::new(ask.target.namespace.unwrap_or_default(), name);
    let object = ask.shared.store.lock().present(ask.id, &key)?;
    Ok(shown(ask, StatusCode::OK, &object))
}

/// Returns an object, or its scale if the path names that.
fn shown(ask: &Ask<'_>, code: StatusCode, object: &Stored) -> Response {
    match ask.part {
        Part::Scale => (code, HEADERS, scale::of(&object.value()).to_string()).into_response(),
        _ => object_response(code, object, ask.call.shape()),
    }
}

fn write(ask: &Ask<'_>, body: &Bytes) -> Result<Response, ApiError> {
    let Ask { shared, call, target, id, info, part } = ask;
    let id = *id;
    let namespace = target.namespace.unwrap_or_default();
    if info.resource.namespaced && namespace.is_empty() {
        return Err(method_not_allowed());
    }
    let time = now();
    let context = WriteContext { time: &time, manager: call.manager(), part: *part };
    let decoded = || decode(call, info.typed, body);
    let key = target.name.map(|name| ObjectKey::new(namespace, name));
    let mut store = shared.store.lock();
    let before = store.version();
    let answer = match (&call.method, key) {
        (&Method::POST, None) => {
            if let Some(namespaces) = store.find_name("namespaces").filter(|_| info.resource.namespaced) {
                store.present(namespaces, &ObjectKey::new("", namespace))?;
            }
            let object = store.create(id, namespace, decoded()?, &context)?;
            shown(ask, StatusCode::CREATED, &object)
        }
        (&Method::PUT, Some(key)) => {
            let object = store.update(id, &key, decoded()?, &context)?;
            shown(ask, StatusCode::OK, &object)
        }
        (&Method::PATCH, Some(key)) => {
            let kind = PatchKind::of(call.content_type(), info)?;
            let existed = store.get(id, &key).is_some();
            let object = store.patch(id, &key, parse(body)?, kind, &context)?;
            let code = if existed { StatusCode::OK } else { StatusCode::CREATED };
            shown(ask, code, &object)
        }
        _ if *part != Part::Main => return Err(method_not_allowed()),
        (&Method::DELETE, Some(key)) => {
            let options = if body.is_empty() { Value::Null } else { decoded()? };
            deleted(info, &store.delete(id, &key, &preconditions(&options), &context)?)
        }
        (&Method::DELETE, None) => {
            let (namespace, selector) = (target.namespace.map(str::to_owned), ask.selector()?);
            let page = store.list(id, &ListQuery { namespace, selector, ..ListQuery::default() })?;
            for object in page.items {
                store.delete(id, object.key(), &Preconditions::default(), &context)?;
            }
            success(&Value::Null)
        }
        _ => return Err(method_not_allowed()),
    };
    if store.version() != before {
        shared.store.announce(store);
    }
    Ok(answer)
}

fn preconditions(options: &Value) -> Preconditions {
    let text = |name: &str| options["preconditions"][name].as_str().map(str::to_owned);
    Preconditions { uid: text("uid"), resource_version: text("resourceVersion") }
}

fn deleted(info: &TypeInfo, deletion: &Deletion) -> Response {
    match deletion {
        Deletion::Done(object) if !info.is_lifecycle() => success(&json!({
            "name": object.key().as_ref().name, "group": info.resource.group, "kind": info.resource.plural,
            "uid": object.value()["metadata"]["uid"],
        })),
        // as on a real server, the answer is the object: namespaces and definitions are always marked before they are removed
        Deletion::Done(object) | Deletion::Waiting(object) => object_response(StatusCode::OK, object, Shape::Whole),
    }
}

fn success(details: &Value) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Json(status).into_response()
}

async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    to_bytes(body, MAX_BODY).await.map_err(|error| ApiError::new(413, error.to_string()))
}

/// Decodes the object in a body. Only built-in types accept protobuf.
fn decode(call: &Call, is_built_in: bool, body: &Bytes) -> Result<Value, ApiError> {
    if !call.content_type().starts_with(protobuf::MEDIA_TYPE) {
        return parse(body);
    }
    if is_built_in { protobuf::decode(body) } else { Err(ApiError::unknown_format(&["application/json"])) }
}

fn parse(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

fn refusal(error: ApiError) -> Response {
    if error.code == 404 && error.reason.is_empty() {
        return (StatusCode::NOT_FOUND, format!("{}\n", error.message)).into_response();
    }
    error.into_response()
}

fn object_response(code: StatusCode, object: &Stored, shape: Shape) -> Response {
    (code, HEADERS, shaped(object, shape)).into_response()
}
