//! Discovery requests. `documents` and `catalog` interpret the answers.

use std::{fmt::Display, time::Duration};

use futures_util::{StreamExt, stream};
use http::{Request, header};
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    catalog::{Catalog, ServedType},
    documents::{self, GroupVersion, Metadata, Root},
    pattern::Pattern,
    selection::WantedEntry,
};
use crate::{client_error::describe, object::ResourceType};

/// Timeout of one answer. If an aggregated API is down, the API server itself waits up to 30 s.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Maximum number of concurrent requests.
const REQUESTS_MAX: usize = 8;

/// `Accept` of lists from which only names and counts are read.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Reason why discovery failed: no answer, an error answer, or an unexpected document.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(crate) struct DiscoveryError {
    /// HTTP code of the answer, if there was one.
    pub code: Option<u16>,
    /// Requested path and description of the failure.
    pub said: String,
}

impl DiscoveryError {
    pub(super) fn of_client(path: &str, error: &kube::Error) -> Self {
        let (code, said) = match error {
            kube::Error::Api(status) => {
                (Some(status.code), format!("HTTP {} {}: {}", status.code, status.reason, status.message.trim()))
            }
            other => (None, describe(other)),
        };
        Self { code, said: format!("failed to get {path}: {said}") }
    }
}

#[derive(Deserialize)]
struct List {
    metadata: Metadata,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

/// Objects of one type in the scope of a list or watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScopedType {
    /// Type of the objects.
    pub resource: ResourceType,
    /// The only namespace; `None` for all.
    pub namespace: Option<String>,
    /// Name of the only object, if the field selector has `metadata.name=NAME`; `None` for all. A right may be limited to this name.
    pub name: Option<String>,
}

impl ScopedType {
    /// Returns all objects of a type, in one namespace or in all.
    pub(crate) fn of(resource: &ResourceType, namespace: Option<&str>) -> Self {
        Self { resource: resource.clone(), namespace: namespace.map(str::to_owned), name: None }
    }
}

/// Rights of the caller on a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeAccess {
    /// Set when list is allowed.
    pub list: bool,
    /// Set when watch is allowed.
    pub watch: bool,
    /// Reason given by the server; may be empty.
    pub reason: String,
}

/// Requests the served types in two requests. If the server is older than 1.26 or refuses the aggregated form, more requests
/// follow: at least one for each version of each group.
///
/// Fails if the request for `/api` or `/apis` fails. The answer 404 is no failure: the path then has no types. If the request for a
/// single version fails, [`Catalog::unavailable`] lists this version.
pub(crate) async fn discover(client: &Client) -> Result<Catalog, DiscoveryError> {
    let mut versions = root(client, "/api").await?;
    versions.extend(root(client, "/apis").await?);
    Ok(Catalog::new(versions))
}

/// Requests the served types, as [`discover`]. If a pattern of `wanted` is `crd:*`, also requests the names of the CRDs. If the caller
/// has no right to list CRDs, the catalog lacks their names.
pub(crate) async fn discover_for(client: &Client, wanted: &[WantedEntry]) -> Result<Catalog, DiscoveryError> {
    let catalog = discover(client).await?;
    let patterns = wanted.iter().flat_map(|entry| entry.patterns.iter().chain(&entry.exclude));
    if !patterns.into_iter().any(|pattern| *pattern == Pattern::Custom) {
        return Ok(catalog);
    }
    // The server serves a type after its CRD is stored, so this later list has the CRDs of all types in the catalog.
    let definitions = names(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await?;
    Ok(definitions.into_iter().fold(catalog, Catalog::with_definitions))
}

/// Returns the cluster's identity: the uid of the namespace `kube-system`. `None` if that namespace is not readable or does
/// not exist.
pub(crate) async fn cluster_uid(client: &Client) -> Result<Option<String>, DiscoveryError> {
    match get_json::<Item>(client, "/api/v1/namespaces/kube-system", "application/json").await {
        Ok(namespace) => Ok(Some(namespace.metadata.uid).filter(|uid| !uid.is_empty())),
        Err(error) if matches!(error.code, Some(403 | 404)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the names of the cluster's namespaces. `None` if the list is forbidden or not supported.
pub(crate) async fn namespaces(client: &Client) -> Result<Option<Vec<String>>, DiscoveryError> {
    names(client, "/api/v1/namespaces").await
}

/// Returns the names of all objects at a path, from a metadata-only list. `None` if the list is forbidden or not supported (403 to
/// 405).
async fn names(client: &Client, path: &str) -> Result<Option<Vec<String>>, DiscoveryError> {
    match get_json::<List>(client, path, METADATA_LIST).await {
        Ok(list) => Ok(Some(list.items.into_iter().map(|item| item.metadata.name).collect())),
        Err(error) if matches!(error.code, Some(403..=405)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the caller's rights to list and watch a collection. Sends two requests.
pub(crate) async fn allowed(client: &Client, asked: &ScopedType) -> Result<TypeAccess, DiscoveryError> {
    let (list, watch) = futures_util::join!(review(client, asked, "list"), review(client, asked, "watch"));
    let (list, watch) = (list?, watch?);
    let reason = if list.0 { watch.1 } else { list.1 };
    Ok(TypeAccess { list: list.0, watch: watch.0, reason })
}

/// Returns the caller's rights on each of `asked`, in their order. The number of concurrent requests is limited.
pub(crate) async fn allowed_each(client: &Client, asked: &[ScopedType]) -> Vec<Result<TypeAccess, DiscoveryError>> {
    let reviews = asked.iter().map(|asked| allowed(client, asked));
    stream::iter(reviews).buffered(REQUESTS_MAX / 2).collect().await
}

/// Counts the objects of each of `asked`, in their order. A count is `None` if its request fails. The number of concurrent requests
/// is limited.
pub(crate) async fn count_each(client: &Client, asked: &[ScopedType]) -> Vec<Option<u64>> {
    let counts = asked.iter().map(|asked| count(client, asked));
    stream::iter(counts).buffered(REQUESTS_MAX).collect().await
}

/// Counts objects with a page of one object. The page's metadata has the number of remaining objects.
async fn count(client: &Client, asked: &ScopedType) -> Option<u64> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", "1");
    if let Some(name) = &asked.name {
        query.append_pair("fieldSelector", &format!("metadata.name={name}"));
    }
    let path = format!("{}?{}", asked.resource.path(asked.namespace.as_deref()), query.finish());
    let page: List = get_json(client, &path, METADATA_LIST).await.ok()?;
    Some(page.items.len() as u64 + page.metadata.remaining_item_count)
}

/// Returns the server's message if the server does not support these field selectors for a type. Returns `None` if the list
/// succeeds, or fails in another way. Sends one request, for the metadata of one object.
pub(crate) async fn refused_fields(
    client: &Client,
    resource: &ResourceType,
    namespace: Option<&str>,
    fields: &str,
) -> Option<String> {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("limit", "1")
        .append_pair("fieldSelector", fields)
        .finish();
    let request = Request::get(format!("{}?{query}", resource.path(namespace))).header(header::ACCEPT, METADATA_LIST);
    let request = request.body(Vec::new()).ok()?;
    match tokio::time::timeout(ANSWER_TIMEOUT, client.request_text(request)).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 400 => Some(status.message.clone()),
        _ => None,
    }
}

/// Requests an access review for one verb. Returns true if the verb is allowed, and the server's reason.
async fn review(client: &Client, asked: &ScopedType, verb: &str) -> Result<(bool, String), DiscoveryError> {
    #[derive(Deserialize)]
    struct Review {
        status: Answer,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Answer {
        allowed: bool,
        reason: String,
        evaluation_error: String,
    }
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let ScopedType { resource, namespace, name } = asked;
    let attributes = json!({
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
        "namespace": namespace.as_deref().filter(|_| resource.namespaced).unwrap_or_default(),
        "name": name.as_deref().unwrap_or_default(),
        "verb": verb,
    });
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    let request = Request::post(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes());
    let text = send(client, path, request).await?;
    let Review { status } = decode(path, &text)?;
    let reason = if status.reason.is_empty() { status.evaluation_error } else { status.reason };
    Ok((status.allowed, reason))
}

/// Requests `/api` or `/apis`. If the answer only names the versions, also requests the types of each version.
async fn root(client: &Client, path: &str) -> Result<Vec<GroupVersion>, DiscoveryError> {
    let mut root = root_as(client, path, documents::ACCEPT).await;
    // an old server should answer in the legacy form, but some refuse the request, and others answer with an empty document
    let is_unaggregated = match &root {
        Ok(root) => *root == Root::Types(Vec::new()),
        Err(error) => matches!(error.code, Some(404 | 406 | 415 | 500..)),
    };
    if is_unaggregated {
        root = root_as(client, path, "application/json").await;
    }
    match root {
        Ok(Root::Types(versions)) => Ok(versions),
        Ok(Root::Names(versions)) => {
            // If an aggregated API is down, the answer about its version may take half a minute. Requests for other versions must
            // not wait.
            let filled =
                versions.into_iter().enumerate().map(async |(at, version)| (at, filled(client, version).await));
            let mut versions: Vec<_> = stream::iter(filled).buffer_unordered(REQUESTS_MAX).collect().await;
            versions.sort_unstable_by_key(|(at, _)| *at);
            Ok(versions.into_iter().map(|(_, version)| version).collect())
        }
        // 404: the server has only custom groups, or only the core group
        Err(error) if error.code == Some(404) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn root_as(client: &Client, path: &str, accept: &str) -> Result<Root, DiscoveryError> {
    let text = get(client, path, accept).await?;
    documents::read_root(&text).map_err(|what| undecodable(path, what))
}

/// Requests the types of one version.
async fn filled(client: &Client, mut version: GroupVersion) -> GroupVersion {
    match types(client, &version).await {
        Ok(types) => version.types = types,
        Err(error) => version.error = Some(error.to_string()),
    }
    version
}

async fn types(client: &Client, of: &GroupVersion) -> Result<Vec<ServedType>, DiscoveryError> {
    let GroupVersion { group, version, .. } = of;
    let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let text = get(client, &path, "application/json").await?;
    documents::read_types(&text, group, version).map_err(|what| undecodable(&path, what))
}

async fn get(client: &Client, path: &str, accept: &str) -> Result<String, DiscoveryError> {
    send(client, path, Request::get(path).header(header::ACCEPT, accept).body(Vec::new())).await
}

async fn send(client: &Client, path: &str, request: http::Result<Request<Vec<u8>>>) -> Result<String, DiscoveryError> {
    let failed = |error: kube::Error| DiscoveryError::of_client(path, &error);
    let request = request.map_err(kube::Error::HttpError).map_err(failed)?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.request_text(request)).await;
    let late =
        |_| DiscoveryError { code: None, said: format!("no answer to {path} within {}s", ANSWER_TIMEOUT.as_secs()) };
    answer.map_err(late)?.map_err(failed)
}

async fn get_json<T: DeserializeOwned>(client: &Client, path: &str, accept: &str) -> Result<T, DiscoveryError> {
    decode(path, &get(client, path, accept).await?)
}

fn decode<T: DeserializeOwned>(path: &str, text: &str) -> Result<T, DiscoveryError> {
    serde_json::from_str(text).map_err(|error| undecodable(path, error))
}

fn undecodable(path: &str, what: impl Display) -> DiscoveryError {
    DiscoveryError { code: None, said: format!("unexpected answer to {path}: {what}") }
}
