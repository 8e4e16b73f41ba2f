//! Parsed requests.

use std::collections::BTreeMap;

use axum::extract::Query;
use http::{HeaderMap, Method, Uri, header};

use super::super::{error::ApiError, faults::RequestKind};

/// One received request, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// `GET`, `POST` …
    pub method: String,
    /// Path without query.
    pub path: String,
    /// Query, decoded.
    pub query: BTreeMap<String, String>,
    /// The `Accept` header.
    pub accept: String,
    /// Kind of request for the selection of faults.
    pub verb: RequestKind,
}

/// A parsed request.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) accept: String,
    pub(super) content_type: String,
    pub(super) user_agent: String,
    /// Collection or object in the path; `None` for discovery, health and version.
    pub(super) resource: Option<Resource>,
}

/// Parts of a resource path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: Option<String>,
    pub(super) plural: String,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

/// Requested form: whole objects, or only their metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Whole,
    Metadata,
}

impl Call {
    pub(super) fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(query) = query.map_err(|_| ApiError::bad_request("the query cannot be decoded"))?;
        Ok(Self {
            method: method.clone(),
            path: uri.path().to_owned(),
            query: query.into_iter().collect(),
            accept: text(header::ACCEPT),
            content_type: text(header::CONTENT_TYPE),
            user_agent: text(header::USER_AGENT),
            resource: resource(uri.path()),
        })
    }

    /// Returns a query parameter, empty if absent.
    pub(super) fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns true if a parameter is set to true.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1" | "True" | "TRUE" | "t" | "T")
    }

    /// Returns a number; `None` if absent.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let text = self.param(name);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| ApiError::bad_request(format!("{name}: Invalid value: {text:?}")))
    }

    /// Returns the kind of request for the selection of faults.
    pub(super) fn verb(&self) -> RequestKind {
        match &self.resource {
            Some(_) if self.method == Method::GET && self.flag("watch") => RequestKind::Watch,
            Some(resource) if self.method == Method::GET && resource.name.is_none() => RequestKind::List,
            _ => RequestKind::Any,
        }
    }

    /// Returns the RBAC verb of this request.
    pub(super) fn right(&self, resource: &Resource) -> &'static str {
        match (&self.method, resource.name.is_some()) {
            (&Method::GET, _) if self.flag("watch") => "watch",
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, false) => "deletecollection",
            _ => "delete",
        }
    }

    /// Returns the form that `Accept` requests.
    pub(super) fn shape(&self) -> Shape {
        if self.accept.contains("as=PartialObjectMetadata") { Shape::Metadata } else { Shape::Whole }
    }

    /// Returns the writer's name for `managedFields`.
    pub(super) fn manager(&self) -> &str {
        let named = self.param("fieldManager");
        let agent = self.user_agent.split(['/', ' ']).next().unwrap_or_default();
        [named, agent].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown")
    }

    pub(super) fn seen(&self) -> SeenRequest {
        SeenRequest {
            method: self.method.to_string(),
            path: self.path.clone(),
            query: self.query.clone(),
            accept: self.accept.clone(),
            verb: self.verb(),
        }
    }
}

fn resource(path: &str) -> Option<Resource> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let (group, version, rest) = match segments[..] {
        ["api", version, ref rest @ ..] => ("", version, rest),
        ["apis", group, version, ref rest @ ..] => (group, version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (Some((*namespace).to_owned()), inside),
        _ => (None, rest),
    };
    let (plural, name, subresource) = match *rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(name), None),
        [plural, name, subresource] => (plural, Some(name), Some(subresource)),
        _ => return None,
    };
    Some(Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: plural.to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: [&str; 6]) {
        let Some(found) = resource(path) else { panic!("{path} is not a resource") };
        let parts = [
            &found.group,
            &found.version,
            found.namespace.as_deref().unwrap_or_default(),
            &found.plural,
            found.name.as_deref().unwrap_or_default(),
            found.subresource.as_deref().unwrap_or_default(),
        ];
        assert_eq!(parts, expected, "{path}");
    }

    /// Rule: LW-5.
    #[test]
    fn request_paths_are_parsed() {
        check("/api/v1/pods", ["", "v1", "", "pods", "", ""]);
        check("/api/v1/namespaces", ["", "v1", "", "namespaces", "", ""]);
        check("/api/v1/namespaces/a", ["", "v1", "", "namespaces", "a", ""]);
        check("/api/v1/namespaces/a/status", ["", "v1", "", "namespaces", "a", "status"]);
        check("/api/v1/namespaces/a/pods", ["", "v1", "a", "pods", "", ""]);
        check("/apis/apps/v1/namespaces/a/deployments/b/status", ["apps", "v1", "a", "deployments", "b", "status"]);
        assert_eq!(resource("/api/v1"), None);
        assert_eq!(resource("/apis/apps/v1"), None);
        assert_eq!(resource("/healthz"), None);
    }
}
