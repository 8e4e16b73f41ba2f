//! The Kubernetes API's read paths, answered from the cache: get and list with selectors, paging and our indexes.
//!
//! Objects go out as the bytes they came in. A list is answered from one published version of the cache, and its
//! pages from one snapshot (`continue` tokens live for five minutes, then 410 as the API server answers).
//!
//! ```text
//! query    path and parameters → what is asked for (pure)
//! form     Accept → whole objects, metadata only, or a table (pure)
//! pages    lists that were cut into pages
//! table    objects → the cells that kubectl prints (pure)
//! render   objects → bodies, a piece at a time
//! ```
//!
//! A read without `resourceVersion` asks the API server for its most recent state; here it gets the cache's. One with
//! a version waits until the cache has come so far, or is told that it has not (A-2, A-6).

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
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Response, Uri, header},
};
use futures_util::stream::unfold;
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, sleep};

use self::{
    form::Form,
    pages::{Collection, Page, Snapshot},
    query::{ListQuery, Target, VersionQuery},
    render::Style,
    table::Table,
};
use super::{
    ServeState, discovery,
    lookup::{self, Served},
    status_object::StatusObject,
};
use crate::{
    lister::Lister,
    object::{KeyRef, ResourceType, ResourceVersion},
    registry::Registry,
};

pub(super) use pages::Snapshots;

/// How long a read waits for the version that it asks for, as the API server does (A-6).
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two looks at the cache's version while a read waits for it.
const FRESH_POLL: Duration = Duration::from_millis(20);

/// Answers one request below `/api` or `/apis`.
pub(super) async fn answer(state: ServeState, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
    let body = match *method {
        Method::GET | Method::HEAD => read(&state, uri, headers).await,
        _ => Err(StatusObject::method_not_allowed("deltabus is a cache, write to the API server")),
    };
    body.unwrap_or_else(StatusObject::into_response)
}

async fn read(state: &ServeState, uri: &Uri, headers: &HeaderMap) -> Result<Response<Body>, StatusObject> {
    let registry = &*state.registry;
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    if let Some(document) = discovery::answer(registry, &path, headers) {
        return document;
    }
    let target = Target::parse(&path).ok_or_else(StatusObject::no_such_path)?;
    let query = ListQuery::parse(uri.query().unwrap_or_default())?;
    let served = lookup::find(registry, target.group, target.version, target.plural, query.unit)
        .filter(|served| target.fits(&served.resource))
        .ok_or_else(StatusObject::no_such_path)?;
    let form = Form::negotiate(headers, target.name.is_none(), &query.include_object)?;
    if served.hides_values() && form.shows_values() {
        return Err(StatusObject::forbidden(&served.resource, target.name));
    }
    // What a verifier asks of one unit is kept in any case.
    let is_kept = served.keeps_bodies() || served.is_unit() && matches!(form, Form::Metadata(_));
    if !is_kept {
        return Err(StatusObject::not_kept(&served.resource));
    }
    if !served.is_readable() {
        return Err(StatusObject::not_synced(&served.resource));
    }
    wait_for_version(&served, &query.version).await?;
    let resource = Arc::clone(&served.resource);
    let table = || Table::of(&resource, served.is_metadata_only(), definition_of(registry, &resource).as_ref());
    let style = Style::new(form, &resource.api_version(), &resource.kind, table);
    let body = match target.name {
        Some(name) => get(&served, target.namespace.unwrap_or_default(), name, &style)?,
        None => list(served.clone(), state, target.namespace.map(str::to_owned), query, style).await?,
    };
    Ok(respond(&served, body))
}

/// Returns the custom resource definition of a type, where definitions are watched too.
fn definition_of(registry: &Registry, resource: &ResourceType) -> Option<serde_json::Value> {
    let definitions = lookup::find(registry, "apiextensions.k8s.io", "v1", "customresourcedefinitions", None)?;
    let name = resource.qualified_name();
    definitions.lister().get(KeyRef { namespace: "", name: &name }).ok()?.value().ok()
}

fn respond(served: &Served, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    for warning in served.warnings() {
        if let Ok(value) = HeaderValue::from_str(&format!("299 deltabus \"{}\"", warning.replace('\\', "\\\\"))) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

/// Waits until the cache is as new as asked for; 504 if that takes too long (A-6), 410 where one exact version is asked
/// for that has passed.
async fn wait_for_version(served: &Served, asked: &VersionQuery) -> Result<(), StatusObject> {
    let (VersionQuery::NotOlderThan(version) | VersionQuery::Exact(version)) = asked else { return Ok(()) };
    let deadline = Instant::now() + FRESH_TIMEOUT;
    loop {
        // One look a time: a lister is not to be held over an await.
        let current = served.lister().version().resource_version;
        match compare(&current, version)? {
            Ordering::Greater if matches!(asked, VersionQuery::Exact(_)) => {
                return Err(StatusObject::expired("The resourceVersion for the provided list is too old."));
            }
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

fn get(served: &Served, namespace: &str, name: &str, style: &Style) -> Result<Body, StatusObject> {
    let found = served.lister().get(KeyRef { namespace, name });
    let object = found.map_err(|_| StatusObject::not_found(&served.resource, name))?;
    Ok(Body::from(render::object(&object, style)))
}

/// Lists on a thread of its own: sorting and filtering a large collection would delay `/livez`.
async fn list(
    served: Served,
    state: &ServeState,
    namespace: Option<String>,
    query: ListQuery,
    style: Style,
) -> Result<Body, StatusObject> {
    let permit = Arc::clone(&state.lists).try_acquire_owned();
    let permit = permit.map_err(|_| StatusObject::too_many_requests("too many lists at once, try again later"))?;
    let (snapshots, budget) = (Arc::clone(&state.snapshots), Arc::clone(&state.budget));
    let cutting = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        // Many lists may wait here: one that cannot be written is not put together.
        if budget.is_exhausted() {
            return Err(StatusObject::responses_full());
        }
        let page = page(&served, &snapshots, namespace, &query)?;
        let bytes = page.objects().iter().map(|object| style.estimate(object)).sum();
        let charge = budget.charge(bytes).ok_or_else(StatusObject::responses_full)?;
        Ok((render::list(page, style), charge))
    });
    let (pieces, charge) = cutting.await.map_err(|_| StatusObject::internal_error("the list failed"))??;
    let pieces = unfold((pieces, charge), |(mut pieces, mut charge)| async {
        // A piece takes a while: other connections have their turn.
        tokio::task::yield_now().await;
        let piece = pieces.next()?;
        charge.release(piece.len() as u64);
        Some((Ok::<_, std::convert::Infallible>(piece), (pieces, charge)))
    });
    Ok(Body::from_stream(pieces))
}

fn page(
    served: &Served,
    snapshots: &Snapshots,
    namespace: Option<String>,
    query: &ListQuery,
) -> Result<Page, StatusObject> {
    let collection = (served.resource.qualified_name(), namespace, query.unit);
    let (snapshot, offset) = match &query.continue_token {
        Some(token) => snapshots.get(token, &collection)?,
        None => (select(&served.lister(), collection, query)?, 0),
    };
    Ok(snapshots.cut(snapshot, offset, query.limit))
}

fn select(lister: &Lister, collection: Collection, query: &ListQuery) -> Result<Snapshot, StatusObject> {
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
