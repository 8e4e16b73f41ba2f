//! The Kubernetes API's read paths, answered from the cache: get and list with selectors, paging and our indexes.
//!
//! Objects go out as the bytes they came in. A list is answered from one published version of the cache, and its
//! pages from one snapshot (`continue` tokens live for five minutes, then 410 as the API server answers).
//!
//! ```text
//! query    path and parameters → what is asked for (pure)
//! form     Accept → whole objects, or metadata only (pure)
//! pages    lists that were cut into pages
//! render   objects → bodies, a piece at a time (pure)
//! ```
//!
//! A read without `resourceVersion` asks the API server for its most recent state; here it gets the cache's. One with
//! a version waits until the cache has come so far, or is told that it has not (A-2, A-6).

mod form;
mod pages;
mod query;
mod render;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Response, Uri, header},
};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, sleep};

use self::{
    form::Form,
    pages::{Page, Snapshot},
    query::{ListQuery, Target, VersionQuery},
};
use super::status_object::StatusObject;
use crate::{
    informer::Informer,
    lister::Lister,
    object::{KeyRef, ResourceVersion},
    registry::Registry,
};

pub(super) use pages::Snapshots;

/// How long a read waits for the version that it asks for, as the API server does (A-6).
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two looks at the cache's version while a read waits for it.
const FRESH_POLL: Duration = Duration::from_millis(20);

/// Answers one request below `/api` or `/apis`.
pub(super) async fn answer(
    registry: Arc<Registry>,
    snapshots: Arc<Snapshots>,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Response<Body> {
    let body = match *method {
        Method::GET | Method::HEAD => read(&registry, snapshots, uri, headers).await,
        _ => Err(StatusObject::read_only()),
    };
    body.unwrap_or_else(StatusObject::into_response)
}

async fn read(
    registry: &Registry,
    snapshots: Arc<Snapshots>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Response<Body>, StatusObject> {
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    let target = Target::parse(&path).ok_or_else(StatusObject::no_such_path)?;
    let unit = registry
        .find_type(target.group, target.version, target.plural)
        .filter(|unit| target.fits(&unit.resource))
        .ok_or_else(StatusObject::no_such_path)?;
    let form = Form::negotiate(headers)?;
    if unit.options.hides_values && form == Form::Whole {
        return Err(StatusObject::forbidden(&unit.resource, target.name));
    }
    if !unit.lister().has_synced() {
        return Err(StatusObject::not_synced(&unit.resource));
    }
    let query = ListQuery::parse(uri.query().unwrap_or_default())?;
    wait_for_version(&unit, &query.version).await?;
    let body = match target.name {
        Some(name) => get(&unit, target.namespace.unwrap_or_default(), name, form)?,
        None => list(Arc::clone(&unit), snapshots, target.namespace.map(str::to_owned), query, form).await?,
    };
    Ok(respond(&unit, body))
}

fn respond(unit: &Informer, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    for warning in &unit.options.warnings {
        if let Ok(value) = HeaderValue::from_str(&format!("299 deltabus \"{}\"", warning.replace('\\', "\\\\"))) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

/// Waits until the cache is as new as asked for; 504 if that takes too long (A-6), 410 where one exact version is asked
/// for that has passed.
async fn wait_for_version(unit: &Informer, asked: &VersionQuery) -> Result<(), StatusObject> {
    let (VersionQuery::NotOlderThan(version) | VersionQuery::Exact(version)) = asked else { return Ok(()) };
    let deadline = Instant::now() + FRESH_TIMEOUT;
    loop {
        // One look a time: a lister is not to be held over an await.
        let current = unit.lister().version().resource_version;
        match compare(&current, version)? {
            Ordering::Greater if matches!(asked, VersionQuery::Exact(_)) => return Err(StatusObject::version_expired()),
            Ordering::Greater | Ordering::Equal => return Ok(()),
            Ordering::Less if Instant::now() >= deadline => return Err(StatusObject::too_large(version, &current)),
            Ordering::Less => sleep(FRESH_POLL).await,
        }
    }
}

/// Compares by A-1; a version that is none is the caller's mistake.
fn compare(current: &ResourceVersion, asked: &ResourceVersion) -> Result<Ordering, StatusObject> {
    let invalid = || StatusObject::bad_request(format!("resourceVersion: Invalid value: {:?}", asked.to_string()));
    current.compare(asked).ok_or_else(invalid)
}

fn get(unit: &Informer, namespace: &str, name: &str, form: Form) -> Result<Body, StatusObject> {
    let found = unit.lister().get(KeyRef { namespace, name });
    let object = found.map_err(|_| StatusObject::not_found(&unit.resource, name))?;
    Ok(Body::from(render::object(&object, form)))
}

/// Lists on a thread of its own: sorting and filtering a large collection would hold up `/livez`.
async fn list(
    unit: Arc<Informer>,
    snapshots: Arc<Snapshots>,
    namespace: Option<String>,
    query: ListQuery,
    form: Form,
) -> Result<Body, StatusObject> {
    let kind = unit.resource.kind.clone();
    let api_version = unit.resource.api_version();
    let cutting = tokio::task::spawn_blocking(move || page(&unit, &snapshots, namespace, &query));
    let page = cutting.await.map_err(|_| StatusObject::internal_error("the list failed"))??;
    let pieces = render::list(page, &api_version, &kind, form);
    Ok(Body::from_stream(futures_util::stream::iter(pieces.map(Ok::<_, std::convert::Infallible>))))
}

fn page(
    unit: &Informer,
    snapshots: &Snapshots,
    namespace: Option<String>,
    query: &ListQuery,
) -> Result<Page, StatusObject> {
    let collection = (unit.resource.qualified_name(), namespace);
    let (snapshot, offset) = match &query.continue_token {
        Some(token) => snapshots.get(token, &collection)?,
        None => (select(&unit.lister(), collection, query)?, 0),
    };
    Ok(snapshots.cut(snapshot, offset, query.limit))
}

fn select(lister: &Lister, collection: (String, Option<String>), query: &ListQuery) -> Result<Snapshot, StatusObject> {
    let namespace = collection.1.as_deref();
    let (version, items) = lister.snapshot(|view| {
        let items = match (&query.index, namespace) {
            (Some((index, value)), _) => view.by_index(index, value),
            (None, Some(namespace)) => Ok(view.in_namespace(namespace)),
            (None, None) => Ok(view.list()),
        };
        (view.version(), items)
    });
    let mut items = items.map_err(|error| StatusObject::bad_request(error.to_string()))?;
    items.retain(|object| {
        namespace.is_none_or(|namespace| object.namespace() == namespace) && query.selector.matches(object)
    });
    items.sort_unstable_by(|a, b| query::server_order(a.key(), b.key()));
    Ok(Snapshot {
        taken: Instant::now(),
        collection,
        resource_version: version.resource_version.to_string(),
        // As the API server: with a selector it does not tell how many remain.
        tells_remaining: query.selector.is_all(),
        items: items.into(),
    })
}
