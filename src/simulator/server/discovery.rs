//! Discovery, version and health.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    super::{store::SimulatorStore, types::TypeInfo},
    request::Call,
};
use crate::object::ResourceType;

/// Verbs of a type whose definition was deleted.
const VERBS_OF_TERMINATING: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// Served types that cannot be listed: group, kind, plural.
const CREATE_ONLY: [(&str, &str, &str); 4] = [
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"),
    ("authentication.k8s.io", "TokenReview", "tokenreviews"),
];

/// One type in discovery.
struct Served {
    info: Arc<TypeInfo>,
    verbs: &'static [&'static str],
}

/// Returns the types in discovery.
fn served(store: &SimulatorStore) -> Vec<Served> {
    let of_store = store.types().map(|(id, info)| {
        let verbs = if store.is_terminating(id) { &VERBS_OF_TERMINATING[..] } else { info.verbs() };
        Served { info: Arc::clone(info), verbs }
    });
    let reviews = CREATE_ONLY.iter().map(|(group, kind, plural)| {
        let text = |text: &str| text.to_owned();
        let (group, version, kind, plural) = (text(group), text("v1"), text(kind), text(plural));
        let resource = ResourceType { group, version, kind, plural, namespaced: false };
        let (list_kind, singular) = (String::new(), resource.kind.to_lowercase());
        let short_names = Vec::new();
        let info = Arc::new(TypeInfo { resource, list_kind, singular, short_names, typed: true, status: false });
        Served { info, verbs: &["create"] }
    });
    of_store.chain(reviews).collect()
}

/// Answers a discovery path; `None` for any other path.
pub(super) fn answer(store: &SimulatorStore, call: &Call) -> Option<Value> {
    let served = &served(store)[..];
    let segments: Vec<&str> = call.path.split('/').filter(|segment| !segment.is_empty()).collect();
    let aggregated = is_aggregated(call);
    match segments[..] {
        ["api"] if aggregated => Some(aggregate(served, call, true)),
        ["apis"] if aggregated => Some(aggregate(served, call, false)),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
        })),
        ["apis"] => {
            let groups = groups(served).into_iter().filter(|(group, _)| !group.is_empty());
            let groups: Vec<_> = groups.map(|(group, versions)| group_document(group, &versions)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(served, "", version),
        ["apis", group, version] => resources(served, group, version),
        ["apis", group] => {
            let (group, versions) = groups(served).into_iter().find(|(found, _)| *found == group)?;
            let mut document = group_document(group, &versions);
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            Some(document)
        }
        ["openapi", "v3"] => Some(openapi_index(served)),
        ["openapi", "v3", "api", version] => openapi(served, "", version),
        ["openapi", "v3", "apis", group, version] => openapi(served, group, version),
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0-simulator", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "simulator",
        })),
        _ => None,
    }
}

/// Returns true if the request accepts the aggregated form on a path that supports it.
pub(super) fn is_aggregated(call: &Call) -> bool {
    call.accept.contains("as=APIGroupDiscoveryList") && matches!(call.path.trim_matches('/'), "api" | "apis")
}

/// Returns the version of aggregated discovery for the answer.
pub(super) fn aggregated_version(call: &Call) -> &'static str {
    if call.accept.contains("v=v2;") || call.accept.ends_with("v=v2") || call.accept.contains("v=v2,") {
        "v2"
    } else {
        "v2beta1"
    }
}

/// Returns the groups with their versions, ordered by the groups' first types.
fn groups(served: &[Served]) -> Vec<(&str, Vec<&str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for Served { info, .. } in served {
        let (group, version) = (&*info.resource.group, &*info.resource.version);
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    groups
}

fn group_document(group: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let versions: Vec<_> = versions.iter().map(version).collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

fn of_version<'a>(served: &'a [Served], group: &str, version: &str) -> Vec<&'a Served> {
    let of_version = |of: &&Served| of.info.resource.group == group && of.info.resource.version == version;
    served.iter().filter(of_version).collect()
}

fn resources(served: &[Served], group: &str, version: &str) -> Option<Value> {
    let infos = of_version(served, group, version);
    let group_version = infos.first()?.info.resource.api_version();
    let mut resources = Vec::new();
    for Served { info, verbs } in infos {
        let resource = &info.resource;
        resources.push(json!({
            "name": resource.plural, "singularName": info.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs, "shortNames": info.short_names,
        }));
        if info.status {
            resources.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    }))
}

fn aggregate(served: &[Served], call: &Call, core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in groups(served).into_iter().filter(|(group, _)| group.is_empty() == core) {
        let of_version = |version: &str| {
            let resources: Vec<_> = of_version(served, group, version).into_iter().map(aggregated).collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        };
        let versions: Vec<_> = versions.into_iter().map(of_version).collect();
        let metadata = if core { json!({"creationTimestamp": null}) } else { json!({"name": group}) };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    let version = format!("apidiscovery.k8s.io/{}", aggregated_version(call));
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": version, "metadata": {}, "items": items})
}

fn aggregated(Served { info, verbs }: &Served) -> Value {
    let resource = &info.resource;
    let kind = kind(resource);
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    let mut document = json!({
        "resource": resource.plural, "responseKind": kind, "scope": scope, "singularResource": info.singular,
        "verbs": verbs, "shortNames": info.short_names,
    });
    if info.status {
        document["subresources"] =
            json!([{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]}]);
    }
    document
}

fn kind(resource: &ResourceType) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

/// Lists the `OpenAPI` documents, one per group and version.
fn openapi_index(served: &[Served]) -> Value {
    let mut paths = Map::new();
    for Served { info, .. } in served {
        let version = &info.resource.version;
        let path = match info.resource.group.as_str() {
            "" => format!("api/{version}"),
            group => format!("apis/{group}/{version}"),
        };
        let url = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
        paths.insert(path, url);
    }
    json!({"paths": paths})
}

/// Returns an `OpenAPI` document without schemas. It declares server-side field validation, so that kubectl does not validate.
fn openapi(served: &[Served], group: &str, version: &str) -> Option<Value> {
    let mut paths = Map::new();
    for Served { info, .. } in of_version(served, group, version) {
        let resource = &info.resource;
        let operation = json!({
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "OK"}}, "x-kubernetes-group-version-kind": kind(resource),
        });
        let path = format!("{}/{{name}}", resource.path(Some("{namespace}")));
        paths.insert(path, json!({"patch": operation}));
    }
    (!paths.is_empty())
        .then(|| json!({"openapi": "3.0.0", "info": {"title": "simulator", "version": "v1"}, "paths": paths}))
}
