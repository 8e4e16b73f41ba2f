//! Discovery documents of the served types, and an `OpenAPI` without schemas.

use serde_json::{Map, Value, json};

use super::super::{store::SimulatorStore, types::TypeInfo};
use crate::{discovery::ServedType, object::ResourceType, serve::discovery::DiscoveredType};

/// Verbs of a type whose definition is being deleted.
const VERBS_OF_TERMINATING: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// Served types that cannot be listed: group, kind, plural.
const CREATE_ONLY: [(&str, &str, &str); 4] = [
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"),
    ("authentication.k8s.io", "TokenReview", "tokenreviews"),
];

/// Returns the types for the discovery documents.
pub(super) fn served(store: &SimulatorStore) -> Vec<DiscoveredType> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let of_store = store.types().map(|(id, info)| {
        let verbs = if store.is_terminating(id) { &VERBS_OF_TERMINATING[..] } else { info.verbs() };
        let TypeInfo { singular, short_names, categories, .. } = TypeInfo::clone(info);
        let named = ServedType::unnamed(info.resource.clone());
        let served = ServedType { singular, short_names, categories, verbs: texts(verbs), ..named };
        DiscoveredType { served, has_status: info.status, has_scale: info.scale }
    });
    let reviews = CREATE_ONLY.map(|(group, kind, plural)| {
        let [group, version, kind, plural] = [group, "v1", kind, plural].map(str::to_owned);
        let named = ServedType::unnamed(ResourceType { group, version, kind, plural, namespaced: false });
        let served = ServedType { verbs: texts(&["create"]), ..named };
        DiscoveredType { served, has_status: false, has_scale: false }
    });
    of_store.chain(reviews).collect()
}

/// Returns the `OpenAPI` document at a path, or the index of all documents; `None` for any other path.
pub(super) fn openapi(store: &SimulatorStore, path: &str) -> Option<Value> {
    let resources = store.types().map(|(_, info)| &info.resource);
    let root = |resource: &ResourceType| match resource.group.as_str() {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    };
    let rest = path.strip_prefix("/openapi/v3")?;
    let Some(wanted) = rest.strip_prefix('/') else {
        let url = |root: String| (root.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{root}")}));
        return Some(json!({"paths": resources.map(root).map(url).collect::<Map<_, _>>()}));
    };
    // The document declares server-side field validation, so that kubectl does not validate.
    let operation = |resource: &ResourceType| {
        let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
        let operation = json!({
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "OK"}}, "x-kubernetes-group-version-kind": kind,
        });
        (format!("{}/{{name}}", resource.path(Some("{namespace}"))), json!({"patch": operation}))
    };
    let paths: Map<_, _> = resources.filter(|resource| root(resource) == wanted).map(operation).collect();
    let info = json!({"title": "simulator", "version": "v1"});
    (!paths.is_empty()).then(|| json!({"openapi": "3.0.0", "info": info, "paths": paths}))
}
