//! Answers of requests.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{
    super::{
        error::ApiError,
        faults::{RequestKind, ServerFault},
        rights::Attempt,
        shared::now,
        store::{Deletion, ListQuery, Part, PatchKind, Preconditions, Stored, WriteContext},
        types::{TypeInfo, is_builtin_group},
    },
    Shared,
    ask::Ask,
    body::{Batch, Body, cut, full},
    discovery, list,
    list::shaped,
    request::{Call, Resource, Shape},
    watch,
};
use crate::object::ObjectKey;

/// Largest accepted body: etcd's limit for a request.
const MAX_BODY: usize = 3 << 20;

/// Answers one request. An error closes the connection without an answer; `resets` makes it end with RST instead of FIN.
pub(super) async fn respond(
    shared: Arc<Shared>,
    resets: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let call = match Call::of(request.method(), request.uri(), request.headers()) {
        Ok(call) => call,
        Err(error) => return Ok(refusal(&error)),
    };
    shared.saw(call.seen());
    let faults = shared.faults.decide(&call.path, call.verb());
    let mut limit = None;
    for fault in &faults {
        match fault {
            ServerFault::Close => return Err(io::Error::other("a fault closes the connection")),
            ServerFault::Reset => {
                resets.store(true, Ordering::Relaxed);
                return Err(io::Error::other("a fault resets the connection"));
            }
            ServerFault::Stall => std::future::pending::<()>().await,
            ServerFault::Delay(delay) => tokio::time::sleep(*delay).await,
            ServerFault::Status { code, retry_after } => {
                let error = ApiError { retry_after: *retry_after, ..ApiError::new(*code, "a fault on demand") };
                return Ok(refusal(&error));
            }
            ServerFault::CutAfterBytes(bytes) => limit = Some((*bytes, None)),
            ServerFault::ResetAfterBytes(bytes) => limit = Some((*bytes, Some(Arc::clone(&resets)))),
            ServerFault::Table | ServerFault::WrongList if call.verb() == RequestKind::List => {
                return Ok(wrong_list(fault));
            }
            _ => {}
        }
    }
    let answer = answer(&shared, &resets, &call, request, &faults).await;
    let response = answer.unwrap_or_else(|error| refusal(&error));
    Ok(match limit {
        Some((bytes, resets)) => response.map(|body| cut(body, bytes, resets)),
        None => response,
    })
}

async fn answer(
    shared: &Arc<Shared>,
    resets: &Arc<AtomicBool>,
    call: &Call,
    request: Request<Incoming>,
    faults: &[ServerFault],
) -> Result<Response<Body>, ApiError> {
    let Some(resource) = &call.resource else { return other(shared, call) };
    if resource.group == "authorization.k8s.io" && call.method == Method::POST {
        return review(shared, resource, &read_body(request).await?);
    }
    check_rights(shared, call, resource)?;
    let (id, info) = {
        let store = shared.store.lock();
        let found = store.find(&resource.group, &resource.version, &resource.plural);
        let id = found.ok_or_else(|| unserved(&resource.group))?;
        (id, Arc::clone(store.info(id)))
    };
    if resource.namespace.is_some() && !info.resource.namespaced {
        return Err(ApiError::no_such_path());
    }
    if resource.subresource.as_ref().is_some_and(|name| name != "status" || !info.status) {
        return Err(ApiError::no_such_path());
    }
    let ask = Ask { shared, resets, call, resource, id, info, faults };
    if call.method == Method::GET {
        if call.flag("watch") {
            return Ok(response(StatusCode::OK, watch::watch(ask).await?));
        }
        if let Some(name) = &resource.name {
            return get(&ask, name).await;
        }
        return Ok(response(StatusCode::OK, full(list::list(&ask).await?)));
    }
    if call.query.contains_key("dryRun") {
        return Err(ApiError::bad_request("dryRun is not simulated"));
    }
    if call.content_type.contains("protobuf") {
        return Err(ApiError::new(415, "the simulator reads JSON only, not protobuf"));
    }
    let body = read_body(request).await?;
    write(&ask, &body)
}

fn other(shared: &Shared, call: &Call) -> Result<Response<Body>, ApiError> {
    if call.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let path = call.path.trim_end_matches('/');
    if ["/readyz", "/livez", "/healthz"].iter().any(|health| path == *health || path.starts_with(&format!("{health}/")))
    {
        return Ok(plain(StatusCode::OK, "ok"));
    }
    let group = path.strip_prefix("/apis/").map_or("-", |rest| rest.split('/').next().unwrap_or_default());
    let group = if path.starts_with("/api/") { "" } else { group };
    let document = discovery::answer(&shared.store.lock(), call).ok_or_else(|| unserved(group))?;
    let mut response = json_response(StatusCode::OK, &document);
    if discovery::is_aggregated(call) {
        let version = discovery::aggregated_version(call);
        let content = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        if let Ok(content) = content.parse() {
            response.headers_mut().insert(header::CONTENT_TYPE, content);
        }
    }
    Ok(response)
}

/// Returns the error for a path that is not served.
fn unserved(group: &str) -> ApiError {
    if is_builtin_group(group) { ApiError::no_such_path() } else { ApiError::no_such_page() }
}

/// Checks the rights. As on a real server, this precedes the check that the type exists.
fn check_rights(shared: &Shared, call: &Call, resource: &Resource) -> Result<(), ApiError> {
    let verb = call.right(resource);
    let namespace = resource.namespace.as_deref().unwrap_or_default();
    if shared.faults.allows(Attempt { verb, group: &resource.group, plural: &resource.plural, namespace }) {
        return Ok(());
    }
    let whole = match &resource.subresource {
        Some(subresource) => format!("{}/{subresource}", resource.plural),
        None => resource.plural.clone(),
    };
    Err(ApiError::forbidden(&resource.group, &whole, resource.name.as_deref().unwrap_or_default(), verb, namespace))
}

/// Answers access reviews about the caller's own rights.
fn review(shared: &Shared, resource: &Resource, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let mut review = parse(body)?;
    let status = match resource.plural.as_str() {
        "selfsubjectaccessreviews" | "subjectaccessreviews" => {
            let asked = &review["spec"]["resourceAttributes"];
            let text = |field: &str| asked[field].as_str().unwrap_or_default();
            let attempt = Attempt {
                verb: text("verb"),
                group: text("group"),
                plural: text("resource"),
                namespace: text("namespace"),
            };
            json!({"allowed": asked.is_null() || shared.faults.allows(attempt)})
        }
        // rules can only grant, so they cannot express refusals
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": shared.faults.is_restricted(),
        }),
        _ => return Err(ApiError::no_such_path()),
    };
    review.as_object_mut().ok_or_else(|| ApiError::bad_request("not an object"))?.insert("status".to_owned(), status);
    Ok(json_response(StatusCode::CREATED, &review))
}

async fn get(ask: &Ask<'_>, name: &str) -> Result<Response<Body>, ApiError> {
    let Ask { shared, call, resource, .. } = ask;
    let version = call.param("resourceVersion");
    if !matches!(version, "" | "0") {
        list::wait_for_version(shared, list::parse_version(version)?).await?;
    }
    let key = ObjectKey::new(resource.namespace.as_deref().unwrap_or_default(), name);
    let found = shared.store.lock().get(ask.id, &key).map(Arc::clone);
    let object = found.ok_or_else(|| ApiError::not_found(&ask.info, name))?;
    Ok(object_response(StatusCode::OK, &object, call.shape()))
}

fn write(ask: &Ask<'_>, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let Ask { shared, call, resource, id, info, .. } = ask;
    let id = *id;
    let namespace = resource.namespace.clone().unwrap_or_default();
    if info.resource.namespaced && namespace.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    let time = now();
    let part = if resource.subresource.is_some() { Part::Status } else { Part::Main };
    let context = WriteContext { time: &time, manager: call.manager(), part };
    let key = resource.name.as_ref().map(|name| ObjectKey::new(&namespace, name));
    let mut store = shared.store.lock();
    let before = store.version();
    let answer = match (&call.method, key) {
        (&Method::POST, None) => {
            let namespaces = store.find_name("namespaces").map(|id| (id, Arc::clone(store.info(id))));
            if let Some((namespaces, namespace_info)) = namespaces
                && info.resource.namespaced
                && store.get(namespaces, &ObjectKey::new("", &namespace)).is_none()
            {
                return Err(ApiError::not_found(&namespace_info, &namespace));
            }
            let object = store.create(id, &namespace, parse(body)?, &context)?;
            object_response(StatusCode::CREATED, &object, call.shape())
        }
        (&Method::PUT, Some(key)) => {
            let object = store.update(id, &key, parse(body)?, &context)?;
            object_response(StatusCode::OK, &object, call.shape())
        }
        (&Method::PATCH, Some(key)) => {
            let kind = patch_kind(&call.content_type)?;
            let existed = store.get(id, &key).is_some();
            let object = store.patch(id, &key, parse(body)?, kind, &context)?;
            let code = if existed { StatusCode::OK } else { StatusCode::CREATED };
            object_response(code, &object, call.shape())
        }
        (&Method::DELETE, Some(key)) => deleted(info, &store.delete(id, &key, &preconditions(body)?, &context)?),
        (&Method::DELETE, None) => {
            let (namespace, selector) = (resource.namespace.clone(), ask.selector()?);
            let page = store.list(id, &ListQuery { namespace, selector, ..ListQuery::default() })?;
            for object in page.items {
                store.delete(id, object.key(), &Preconditions::default(), &context)?;
            }
            success(None)
        }
        _ => return Err(ApiError::method_not_allowed()),
    };
    if store.version() != before {
        shared.store.announce(store);
    }
    Ok(answer)
}

fn patch_kind(content_type: &str) -> Result<PatchKind, ApiError> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => Ok(PatchKind::Merge),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        other => Err(ApiError::new(415, format!("the body of the request was in an unknown format - {other:?}"))),
    }
}

fn preconditions(body: &Bytes) -> Result<Preconditions, ApiError> {
    if body.is_empty() {
        return Ok(Preconditions::default());
    }
    let options = parse(body)?;
    let text = |name: &str| options["preconditions"][name].as_str().map(str::to_owned);
    Ok(Preconditions { uid: text("uid"), resource_version: text("resourceVersion") })
}

fn deleted(info: &TypeInfo, deletion: &Deletion) -> Response<Body> {
    match deletion {
        Deletion::Done(object) if !info.is_lifecycle() => {
            let details = json!({
                "name": object.key().as_ref().name, "group": info.resource.group, "kind": info.resource.plural,
                "uid": object.value()["metadata"]["uid"],
            });
            success(Some(details))
        }
        // the content of a namespace or a definition is deleted first: the answer is the marked object
        Deletion::Done(object) | Deletion::Waiting(object) => object_response(StatusCode::OK, object, Shape::Whole),
    }
}

fn success(details: Option<Value>) -> Response<Body> {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let Some(details) = details {
        status["details"] = details;
    }
    json_response(StatusCode::OK, &status)
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(|error| ApiError::new(413, error.to_string()))
}

fn parse(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

fn wrong_list(fault: &ServerFault) -> Response<Body> {
    let metadata = json!({"resourceVersion": "1"});
    let document = if *fault == ServerFault::Table {
        watch::table(&metadata)
    } else {
        json!({"kind": "BananaList", "apiVersion": "fruit.example/v1", "metadata": metadata, "items": []})
    };
    json_response(StatusCode::OK, &document)
}

fn refusal(error: &ApiError) -> Response<Body> {
    if error.code == 404 && error.reason.is_empty() {
        return plain(StatusCode::NOT_FOUND, &format!("{}\n", error.message));
    }
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(code, &error.status());
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn object_response(code: StatusCode, object: &Stored, shape: Shape) -> Response<Body> {
    line(code, shaped(object, shape))
}

fn plain(code: StatusCode, text: &str) -> Response<Body> {
    let mut batch = Batch::default();
    batch.push(text.to_owned());
    let mut response = response(code, full(batch));
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

fn json_response(code: StatusCode, document: &Value) -> Response<Body> {
    line(code, document.to_string().into())
}

fn line(code: StatusCode, json: Bytes) -> Response<Body> {
    let mut batch = Batch::default();
    batch.push(json);
    batch.push(Bytes::from_static(b"\n"));
    response(code, full(batch))
}

fn response(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache, private"));
    response
}
