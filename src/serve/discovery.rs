//! Discovery documents for Kubernetes clients: `/api`, `/apis`, `/version`. The read API and the simulator answer with them.
//!
//! The documents of the read API list the watched types under the API server's names. Groups and versions have the order of
//! the API server.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{accept::negotiate, api_error::ApiError};
use crate::{discovery::ServedType, object::ResourceType, registry::Registry};

/// List of pairs: the name of an item, and the item.
type Named<T> = Vec<(String, T)>;

/// Types of one API group, by version.
type Versions = Named<Vec<DiscoveredType>>;

/// A type in discovery documents.
pub(crate) struct DiscoveredType {
    pub(crate) served: ServedType,
    /// Set if the type has the subresource `status`.
    pub(crate) has_status: bool,
    /// Set if the type has the subresource `scale`.
    pub(crate) has_scale: bool,
}

impl DiscoveredType {
    /// Returns the subresources in the order of the API server, each with the group, version and kind of its objects.
    fn subresources(&self) -> impl Iterator<Item = (&'static str, [&str; 3])> {
        let ResourceType { group, version, kind, .. } = &self.served.resource;
        let scale = self.has_scale.then_some(("scale", ["autoscaling", "v1", "Scale"]));
        let status = self.has_status.then_some(("status", [&**group, &**version, &**kind]));
        scale.into_iter().chain(status)
    }
}

/// Returns the document `/version`: the Kubernetes version that the read API follows.
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": concat!("v1.36.0+deltabus-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": concat!("linux/", "amd64"),
    })
}

/// Returns the watched types in the order of the API server. The verbs of each type are `get` and `list`.
pub(super) fn served(registry: &Registry) -> Vec<DiscoveredType> {
    let catalog = registry.catalog();
    let mut types: Vec<_> = registry.types().iter().map(|watched| registry.names(&watched.resource)).collect();
    types.sort_by_cached_key(|named| {
        catalog.types().iter().position(|served| served.resource == named.resource).unwrap_or(usize::MAX)
    });
    let verbs = ["get", "list"].map(str::to_owned);
    let readable = |named: ServedType| ServedType { verbs: verbs.to_vec(), ..named };
    types
        .into_iter()
        .map(|named| DiscoveredType { served: readable(named), has_status: false, has_scale: false })
        .collect()
}

/// Returns the document at `/api`, `/apis`, or the path of a group or a version. Returns `None` for other paths, without
/// calling `types`.
pub(crate) fn answer(
    path: &str,
    headers: &HeaderMap,
    types: impl FnOnce() -> Vec<DiscoveredType>,
) -> Option<Result<Response, ApiError>> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version) = match segments[..] {
        ["api" | "apis"] => (None, None),
        ["apis", group] => (Some(group), None),
        ["api", version] => (Some(""), Some(version)),
        ["apis", group, version] => (Some(group), Some(version)),
        _ => return None,
    };
    let Some(form) = negotiate(headers, "", of_range) else {
        let message = "406: Not Acceptable\n\nAvailable representations: application/json";
        return Some(Err(ApiError::new(406, message).with(json!({}))));
    };
    let groups = groups(types());
    let Some(group) = group else { return Some(Ok(root(&groups, segments == ["api"], form, headers))) };
    let document = groups.iter().find(|(name, _)| name == group).and_then(|(name, versions)| match version {
        None if name.is_empty() => None,
        None => {
            let mut document = group_document(name, versions);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Some(document)
        }
        Some(version) => {
            let (version, types) = versions.iter().find(|(name, _)| name == version)?;
            Some(types_document(name, version, types))
        }
    });
    Some(document.map(|document| respond(&document, PLAIN)).ok_or_else(ApiError::no_such_path))
}

const PLAIN: &str = "application/json";

/// Returns the document `/api` or `/apis`; `form` is the result of [`of_range`].
fn root(groups: &[(String, Versions)], is_core: bool, form: &str, headers: &HeaderMap) -> Response {
    let shown = groups.iter().filter(|(name, _)| name.is_empty() == is_core);
    let mut response = match form {
        version if !version.is_empty() => {
            let content_type = format!("{PLAIN};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
            respond(&aggregated(version, shown), &content_type)
        }
        _ if is_core => respond(&core_versions(headers), PLAIN),
        _ => {
            let named: Vec<_> = shown.map(|(name, versions)| group_document(name, versions)).collect();
            respond(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": named}), PLAIN)
        }
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn respond(document: &Value, content_type: &str) -> Response {
    ([(header::CONTENT_TYPE, content_type)], document.to_string()).into_response()
}

/// Parses the parameters of an `Accept` range. Returns the version of the aggregated document (Kubernetes 1.26 and later), or
/// an empty text if the plain documents are requested.
fn of_range(parameters: [Option<&str>; 3]) -> Option<&str> {
    match parameters {
        [None, ..] => Some(""),
        [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), version @ Some("v2" | "v2beta1")] => version,
        _ => None,
    }
}

/// Returns the groups of the types. The core group comes first, and is present even without types.
fn groups(types: Vec<DiscoveredType>) -> Named<Versions> {
    let mut groups = Named::<Versions>::new();
    named(named(&mut groups, ""), "v1");
    for listed in types {
        let resource = &listed.served.resource;
        named(named(&mut groups, &resource.group), &resource.version).push(listed);
    }
    groups
}

/// Returns the item with this name; adds it if there is none.
fn named<'a, T: Default>(items: &'a mut Named<T>, name: &str) -> &'a mut T {
    let at = items.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        items.push((name.to_owned(), T::default()));
        items.len() - 1
    });
    &mut items[at].1
}

fn core_versions(headers: &HeaderMap) -> Value {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    })
}

fn group_document(name: &str, versions: &Versions) -> Value {
    let named = |version: &str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<_> = versions.iter().map(|(version, _)| named(version)).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// Verbs of the subresources `scale` and `status`.
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

fn types_document(group: &str, version: &str, types: &[DiscoveredType]) -> Value {
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut resources = Vec::new();
    for discovered in types {
        let served = &discovered.served;
        let ServedType { resource, singular, verbs, .. } = served;
        let (plural, kind, namespaced) = (&resource.plural, &resource.kind, resource.namespaced);
        let document =
            json!({"name": plural, "singularName": singular, "namespaced": namespaced, "kind": kind, "verbs": verbs});
        resources.push(with_other_names(document, served));
        for (subresource, [of_group, of_version, kind]) in discovered.subresources() {
            let name = format!("{plural}/{subresource}");
            let mut document = json!({"name": name, "singularName": "", "namespaced": namespaced});
            if of_group != resource.group {
                document["group"] = of_group.into();
                document["version"] = of_version.into();
            }
            document["kind"] = kind.into();
            document["verbs"] = json!(SUBRESOURCE_VERBS);
            resources.push(document);
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

fn aggregated<'a>(api_version: &str, groups: impl Iterator<Item = &'a (String, Versions)>) -> Value {
    let of_version = |(version, types): &(String, Vec<DiscoveredType>)| {
        let resources: Vec<_> = types.iter().map(aggregated_type).collect();
        json!({"version": version, "resources": resources, "freshness": "Current"})
    };
    let of_group = |(name, versions): &(String, Versions)| {
        let mut metadata = json!({"creationTimestamp": null});
        if !name.is_empty() {
            metadata["name"] = name.as_str().into();
        }
        json!({"metadata": metadata, "versions": versions.iter().map(of_version).collect::<Vec<_>>()})
    };
    let items: Vec<_> = groups.map(of_group).collect();
    let api_version = format!("apidiscovery.k8s.io/{api_version}");
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

fn aggregated_type(discovered: &DiscoveredType) -> Value {
    let served = &discovered.served;
    let ServedType { resource, singular, verbs, .. } = served;
    let kind = |[group, version, kind]: [&str; 3]| json!({"group": group, "version": version, "kind": kind});
    let mut document = json!({
        "resource": resource.plural,
        "responseKind": kind([&resource.group, &resource.version, &resource.kind]),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": singular,
        "verbs": verbs,
    });
    let subresource = |(name, of)| json!({"subresource": name, "responseKind": kind(of), "verbs": SUBRESOURCE_VERBS});
    let subresources: Vec<_> = discovered.subresources().map(subresource).collect();
    if !subresources.is_empty() {
        document["subresources"] = subresources.into();
    }
    with_other_names(document, served)
}

fn with_other_names(mut document: Value, served: &ServedType) -> Value {
    if !served.short_names.is_empty() {
        document["shortNames"] = json!(served.short_names);
    }
    if !served.categories.is_empty() {
        document["categories"] = json!(served.categories);
    }
    document
}
