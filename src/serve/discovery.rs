//! What the read API serves, in the documents by which Kubernetes clients find it: `/api`, `/apis`, `/version`.
//!
//! The types that are watched, under the names that the API server gave them. Groups and versions stand in its order.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, header},
};
use serde_json::{Value, json};

use super::{lookup, status_object::StatusObject};
use crate::{discovery::ServedType, object::ResourceType, registry::Registry};

/// What may be done with every type.
const VERBS: [&str; 2] = ["get", "list"];

/// One API group as it is served.
struct Group {
    name: String,
    versions: Vec<(String, Vec<ServedType>)>,
}

/// Answers `/version`: the Kubernetes version whose answers the read API gives.
pub(super) fn version() -> Value {
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

/// Answers the documents at `/api`, `/apis` and below that name no type; `None` where the path is no such document.
pub(super) fn answer(
    registry: &Registry,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, StatusObject>> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let document = match segments[..] {
        ["api"] => Document::Core,
        ["apis"] => Document::Groups,
        ["apis", group] => Document::Group(group),
        ["api", version] => Document::Types("", version),
        ["apis", group, version] => Document::Types(group, version),
        _ => return None,
    };
    Some(document.render(&groups(registry), headers))
}

enum Document<'a> {
    Core,
    Groups,
    Group(&'a str),
    Types(&'a str, &'a str),
}

impl Document<'_> {
    fn render(&self, groups: &[Group], headers: &HeaderMap) -> Result<Response<Body>, StatusObject> {
        let form = DiscoveryForm::negotiate(headers).ok_or_else(StatusObject::no_representation)?;
        let is_root = matches!(self, Self::Core | Self::Groups);
        let (form, body) = match (self, form) {
            (Self::Core | Self::Groups, DiscoveryForm::Aggregated(version)) => {
                let shown = groups.iter().filter(|group| group.name.is_empty() == matches!(self, Self::Core));
                (form, aggregated(version, shown))
            }
            (Self::Core, DiscoveryForm::Plain) => (form, core_versions(headers)),
            (Self::Groups, DiscoveryForm::Plain) => {
                let named: Vec<_> = groups.iter().filter(|group| !group.name.is_empty()).map(group_document).collect();
                (form, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": named}))
            }
            (Self::Group(name), _) => {
                let group = groups.iter().find(|group| group.name == *name && !name.is_empty());
                let mut document = group_document(group.ok_or_else(StatusObject::no_such_path)?);
                document["kind"] = "APIGroup".into();
                document["apiVersion"] = "v1".into();
                (DiscoveryForm::Plain, document)
            }
            (Self::Types(group, version), _) => {
                let group = groups.iter().find(|served| served.name == *group);
                let versions = group.map(|group| &*group.versions).unwrap_or_default();
                let (_, types) =
                    versions.iter().find(|(name, _)| name == version).ok_or_else(StatusObject::no_such_path)?;
                (DiscoveryForm::Plain, types_document(group.map_or("", |group| &group.name), version, types))
            }
        };
        let mut response = Response::new(Body::from(body.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
        if is_root {
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        }
        Ok(response)
    }
}

/// The documents that tell groups alone, or all types at once (1.26 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscoveryForm {
    Plain,
    Aggregated(&'static str),
}

impl DiscoveryForm {
    /// Returns the first form of `Accept` that there is.
    fn negotiate(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::ACCEPT);
        let mut ranges =
            values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).peekable();
        if ranges.peek().is_none() {
            return Some(Self::Plain);
        }
        ranges.find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
                return None;
            }
            let parameter = |name: &str| {
                parts.clone().filter_map(|part| part.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
            };
            match (parameter("as"), parameter("g"), parameter("v")) {
                (None, ..) => Some(Self::Plain),
                (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                    Some(Self::Aggregated("v2"))
                }
                (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => {
                    Some(Self::Aggregated("v2beta1"))
                }
                _ => None,
            }
        })
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Aggregated("v2") => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Self::Aggregated(_) => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            Self::Plain => "application/json",
        }
    }
}

/// Returns what is served, the core group first: it is always there, as `/api` is.
fn groups(registry: &Registry) -> Vec<Group> {
    let mut groups = vec![Group { name: String::new(), versions: vec![("v1".to_owned(), Vec::new())] }];
    let catalog = registry.catalog();
    let mut types = lookup::types(registry);
    let place = |resource: &ResourceType| catalog.types().iter().position(|served| served.resource == *resource);
    types.sort_by_cached_key(|resource| place(resource).unwrap_or(usize::MAX));
    for resource in types {
        let at = groups.iter().position(|group| group.name == resource.group).unwrap_or_else(|| {
            groups.push(Group { name: resource.group.clone(), versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        let at = versions.iter().position(|(version, _)| *version == resource.version).unwrap_or_else(|| {
            versions.push((resource.version.clone(), Vec::new()));
            versions.len() - 1
        });
        versions[at].1.push(registry.names(&resource));
    }
    groups
}

fn core_versions(headers: &HeaderMap) -> Value {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    })
}

fn group_document(group: &Group) -> Value {
    let named = |version: &str| json!({"groupVersion": format!("{}/{version}", group.name), "version": version});
    let versions: Vec<_> = group.versions.iter().map(|(version, _)| named(version)).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

fn types_document(group: &str, version: &str, types: &[ServedType]) -> Value {
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let resources: Vec<_> = types
        .iter()
        .map(|served| {
            let mut resource = json!({
                "name": served.resource.plural,
                "singularName": served.singular,
                "namespaced": served.resource.namespaced,
                "kind": served.resource.kind,
                "verbs": VERBS,
            });
            add_short_names(&mut resource, served);
            resource
        })
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

fn aggregated<'a>(api_version: &str, groups: impl Iterator<Item = &'a Group>) -> Value {
    let items: Vec<_> = groups
        .map(|group| {
            let versions: Vec<_> = group
                .versions
                .iter()
                .map(|(version, types)| {
                    let resources: Vec<_> = types.iter().map(aggregated_type).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.name.is_empty() {
                metadata["name"] = group.name.as_str().into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let api_version = format!("apidiscovery.k8s.io/{api_version}");
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items})
}

fn aggregated_type(served: &ServedType) -> Value {
    let resource = &served.resource;
    let mut document = json!({
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": served.singular,
        "verbs": VERBS,
    });
    add_short_names(&mut document, served);
    document
}

fn add_short_names(document: &mut Value, served: &ServedType) {
    if !served.short_names.is_empty() {
        document["shortNames"] = json!(served.short_names);
    }
}
