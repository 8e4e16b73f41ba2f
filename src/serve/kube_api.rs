//! Read paths of the Kubernetes API, answered from the cache: get and list with selectors, paging and indexes.
//!
//! Objects are sent as the bytes in which they arrived. A list comes from one published version of the cache, and its
//! pages from one snapshot. `continue` tokens are valid for five minutes, unless this client or this address asks for too many
//! other lists meanwhile. After that, the answer is 410, as from the API server.
//!
//! ```text
//! query    path and parameters → request (pure)
//! form     Accept → whole objects, metadata only, or a table (pure)
//! pages    lists that were cut into pages
//! table    objects → the cells that kubectl prints (pure)
//! render   objects → bodies, piece by piece
//! ```
//!
//! From the API server, a read without `resourceVersion` gets the latest state. Here it gets the state of the cache. A read
//! with a version waits until the cache reaches it, or gets an error (A-2, A-6).

mod form;
mod pages;
mod query;
mod render;
mod table;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream::unfold;
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, sleep};

use self::{
    form::Form,
    pages::{Collection, Page, Snapshot},
    query::{ListQuery, VersionQuery},
    render::Style,
    table::Table,
};
use super::{ServeState, api_error::ApiError, auth::Caller, discovery};
use crate::{
    journal::UnitId,
    lister::Lister,
    object::{KeyRef, ResourceType},
    registry::{Registry, WatchedType},
    subscribe::judge::StreamClient,
};

pub(super) use pages::Snapshots;
pub(crate) use query::Target;
pub(crate) use render::metadata_of;
pub(crate) use table::label_selector;
#[cfg(feature = "cli")]
pub(crate) use table::{FindError, JsonPath, action_end};

/// Time for which a read waits for its version, the same as in the API server (A-6).
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between two checks of the cache's version, while a read waits for a version.
const FRESH_POLL: Duration = Duration::from_millis(20);

/// Headers of objects and lists.
pub(crate) const HEADERS: [(HeaderName, &str); 2] =
    [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache, private")];

/// Answers one request below `/api` or `/apis`.
pub(super) async fn answer(
    State(state): State<ServeState>,
    Extension(caller): Extension<Caller>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    match method {
        Method::GET | Method::HEAD => read(&state, caller.stream_client(), &uri, &headers).await,
        _ => {
            let path = percent_decode_str(uri.path()).decode_utf8_lossy();
            let why = Target::parse(&path).and_then(|target| subresource_note(&target));
            let why = why.unwrap_or_else(|| {
                format!("deltabus is a read-only cache: send writes to the API server, {ELSEWHERE}")
            });
            Err(ApiError::method_not_allowed(&why))
        }
    }
}

/// Advice at the end of a refusal.
const ELSEWHERE: &str = "for example with kubectl without --server or with another --context";

/// Returns the reason why a subresource of the API server is not served. Returns `None` for a path without such a subresource.
fn subresource_note(target: &Target<'_>) -> Option<String> {
    const KNOWN: [&str; 14] = [
        "approval",
        "attach",
        "binding",
        "ephemeralcontainers",
        "eviction",
        "exec",
        "finalize",
        "log",
        "portforward",
        "proxy",
        "resize",
        "scale",
        "status",
        "token",
    ];
    let subresource = target.subresource.filter(|subresource| KNOWN.contains(subresource))?;
    let plural = target.plural;
    Some(format!("deltabus caches whole objects, it has no {plural}/{subresource}: ask the API server, {ELSEWHERE}"))
}

/// Returns the error for a path without a watched type or without an object. It explains a type that deltabus does not watch, and a
/// subresource of a type that it watches. For any other path, it equals the error of the API server.
fn not_served(registry: &Registry, target: &Target<'_>, is_watched: bool) -> ApiError {
    let why = if is_watched {
        subresource_note(target)
    } else {
        let catalog = registry.catalog();
        let known = catalog.types().iter().find(|served| target.is_of(&served.resource));
        known.map(|known| {
            let name = known.resource.qualified_name();
            format!("deltabus does not watch {name}: add it to `match` of a [resources] entry, or ask the API server, {ELSEWHERE}")
        })
    };
    why.map_or_else(ApiError::no_such_path, |why| ApiError::no_such_path().because(&why))
}

async fn read(state: &ServeState, client: StreamClient, uri: &Uri, headers: &HeaderMap) -> Result<Response, ApiError> {
    let registry = &*state.hub.registry;
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    if let Some(document) = discovery::answer(&path, headers, || discovery::served(registry)) {
        return document;
    }
    let target = Target::parse(&path).ok_or_else(ApiError::no_such_path)?;
    let query = ListQuery::parse(uri.query().unwrap_or_default())?;
    let found = registry.find_type(target.group, target.version, target.plural);
    let is_watched = found.is_some();
    let found = found.and_then(|found| match query.unit {
        Some(unit) => found.only(unit),
        None => Some(found),
    });
    let served = found.filter(|served| target.fits(&served.resource));
    let served = served.ok_or_else(|| not_served(registry, &target, is_watched))?;
    let form = Form::negotiate(headers, target.name.is_none(), &query.include_object)?;
    check_readable(&served, form, query.unit, target.name)?;
    wait_for_version(&served, &query.version).await?;
    let resource = Arc::clone(&served.resource);
    let table = || Table::of(&resource, served.is_metadata_only(), definition_of(registry, &resource).as_ref());
    let style = Style::new(form, &resource.api_version(), &resource.kind, table);
    let body = if let Some(name) = target.name {
        get(&served, target.namespace.unwrap_or_default(), name, &style)?
    } else {
        let namespace = target.namespace.map(str::to_owned);
        list(Arc::clone(&served), state, client, namespace, query, style).await?
    };
    Ok(respond(&served, body))
}

/// Checks that the cache has the requested part of the objects, and that clients may read this part.
fn check_readable(served: &WatchedType, form: Form, unit: Option<UnitId>, name: Option<&str>) -> Result<(), ApiError> {
    let resource = &*served.resource;
    if served.hides_values() && form.shows_values() {
        let what = name.map_or_else(String::new, |name| format!(" {name:?}"));
        let message = format!(
            "{resource}{what} is forbidden: values are redacted, only metadata can be read; use Accept: \
             application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        );
        return Err(ApiError::about(403, resource, None, message));
    }
    // Metadata for `deltabus verify`, which reads single units, is always kept.
    let is_kept = served.keeps_bodies() || unit.is_some() && matches!(form, Form::Metadata(_));
    if !is_kept {
        let message = format!(
            "{resource} is watched with cache = \"none\": handlers get its changes; its objects are not kept and \
             cannot be read here"
        );
        return Err(ApiError::about(404, resource, None, message));
    }
    if !served.is_readable() {
        let message = format!("{resource} is not synced yet: see /v1/resources");
        return Err(ApiError::about(503, resource, None, message).later());
    }
    Ok(())
}

/// Returns the custom resource definition of a type. Returns `None` if custom resource definitions are not watched.
fn definition_of(registry: &Registry, resource: &ResourceType) -> Option<serde_json::Value> {
    let definitions = registry.find_type("apiextensions.k8s.io", "v1", "customresourcedefinitions")?;
    let name = resource.qualified_name();
    definitions.lister().get(KeyRef { namespace: "", name: &name }).ok()?.value().ok()
}

fn respond(served: &WatchedType, body: Body) -> Response {
    let mut response = (HEADERS, body).into_response();
    for warning in served.warnings() {
        if let Ok(value) = HeaderValue::from_str(&format!("299 deltabus \"{}\"", warning.replace('\\', "\\\\"))) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// Waits until the cache has reached the requested version. Returns 504 if that takes too long (A-6). Returns 410 if the request is
/// for exactly this version, and the cache is already newer.
async fn wait_for_version(served: &WatchedType, asked: &VersionQuery) -> Result<(), ApiError> {
    let (VersionQuery::NotOlderThan(version) | VersionQuery::Exact(version)) = asked else { return Ok(()) };
    let deadline = Instant::now() + FRESH_TIMEOUT;
    loop {
        // One lister for each check: it must not be held over an await.
        let current = served.lister().version().resource_version;
        let invalid = || ApiError::bad_request(format!("resourceVersion: Invalid value: {:?}", version.to_string()));
        match current.compare(version).ok_or_else(invalid)? {
            Ordering::Greater if matches!(asked, VersionQuery::Exact(_)) => {
                return Err(ApiError::expired("The resourceVersion for the provided list is too old."));
            }
            Ordering::Greater | Ordering::Equal => return Ok(()),
            Ordering::Less if Instant::now() >= deadline => return Err(ApiError::too_large(version, &current)),
            Ordering::Less => sleep(FRESH_POLL).await,
        }
    }
}

fn get(served: &WatchedType, namespace: &str, name: &str, style: &Style) -> Result<Body, ApiError> {
    let found = served.lister().get(KeyRef { namespace, name });
    let object = found.map_err(|_| ApiError::not_found(&served.resource, name))?;
    Ok(Body::from(render::object(&object, style)))
}

/// Builds a list on a separate thread: sorting and filtering a large collection would delay `/livez`.
async fn list(
    served: Arc<WatchedType>,
    state: &ServeState,
    client: StreamClient,
    namespace: Option<String>,
    query: ListQuery,
    style: Style,
) -> Result<Body, ApiError> {
    let permit = Arc::clone(&state.lists).try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::too_many_requests("too many lists at once: try again later"))?;
    let (snapshots, budget) = (Arc::clone(&state.snapshots), Arc::clone(&state.budget));
    let cutting = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        // Many lists may wait here. A list that cannot be written is not built.
        if budget.is_exhausted() {
            return Err(ApiError::responses_full());
        }
        let page = page(&served, &snapshots, client, namespace, &query)?;
        let bytes = page.objects().iter().map(|object| style.estimate(object)).sum();
        let charge = budget.charge(bytes).ok_or_else(ApiError::responses_full)?;
        Ok((render::list(page, style), charge))
    });
    let (pieces, charge) = cutting.await.map_err(|_| ApiError::internal_error("the list failed"))??;
    let pieces = unfold((pieces, charge), |(mut pieces, mut charge)| async {
        // Rendering a piece takes time, so other connections may run before each piece.
        tokio::task::yield_now().await;
        let piece = pieces.next()?;
        charge.release(piece.len() as u64);
        Some((Ok::<_, std::convert::Infallible>(piece), (pieces, charge)))
    });
    Ok(Body::from_stream(pieces))
}

fn page(
    served: &WatchedType,
    snapshots: &Snapshots,
    client: StreamClient,
    namespace: Option<String>,
    query: &ListQuery,
) -> Result<Page, ApiError> {
    let collection = (served.resource.qualified_name(), namespace, query.unit);
    let (snapshot, offset) = match &query.continue_token {
        Some(token) => snapshots.get(token, &collection)?,
        None => (Arc::new(select(&served.lister(), collection, query)?), 0),
    };
    Ok(snapshots.cut(client, snapshot, offset, query.limit))
}

fn select(lister: &Lister, collection: Collection, query: &ListQuery) -> Result<Snapshot, ApiError> {
    let namespace = collection.1.as_deref();
    let (version, items) = lister.snapshot(|view| {
        let items = match (&query.index, namespace) {
            (Some((index, value)), _) => view.by_index(index, value),
            (None, Some(namespace)) => Ok(view.in_namespace(namespace)),
            (None, None) => Ok(view.list()),
        };
        (view.version(), items)
    });
    let mut items = items.map_err(|error| ApiError::bad_request(error.to_string()))?;
    items.retain(|object| {
        namespace.is_none_or(|namespace| object.namespace() == namespace) && query.selector.matches(object)
    });
    items.sort_unstable_by(|a, b| query::server_order(a.key(), b.key()));
    Ok(Snapshot {
        collection,
        resource_version: version.resource_version.to_string(),
        // Like the API server: with a selector, the number of remaining objects is not reported.
        tells_remaining: query.selector.is_all(),
        items: items.into(),
    })
}
