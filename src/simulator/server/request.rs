//! Parsed requests.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::Query;
use http::{HeaderMap, Method, header, request::Parts};

use super::{
    super::{
        ApiError,
        selector::RequestSelector,
        store::{Part, TypeId},
        types::TypeInfo,
    },
    Shared,
};
use crate::serve::kube_api::Target;

/// Kind of request, for the selection of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Lists of a collection.
    List,
    /// Watches.
    Watch,
    /// Every request.
    Any,
}

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
    /// Kind of request.
    pub verb: RequestKind,
}

/// Requested form: whole objects, or only their metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Whole,
    Metadata,
}

impl Shape {
    /// Returns the kind and the `apiVersion` of objects in this form.
    pub(super) fn type_of(self, info: &TypeInfo) -> (&str, String) {
        match self {
            Self::Whole => (&*info.resource.kind, info.resource.api_version()),
            Self::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        }
    }
}

/// A parsed request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) seen: SeenRequest,
    pub(crate) method: Method,
    pub(super) headers: HeaderMap,
    /// Version of an older state, set by a fault. A list returns this state, and a watch begins with it. `None` means the current
    /// state.
    pub(super) past: Option<u64>,
}

impl Call {
    pub(super) fn of(Parts { method, uri, headers, .. }: Parts) -> Result<Self, ApiError> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&uri);
        let Query(query) = query.map_err(|_| ApiError::bad_request("the query cannot be decoded"))?;
        let seen = SeenRequest {
            method: method.to_string(),
            path: uri.path().to_owned(),
            query: query.into_iter().collect(),
            accept: text(&headers, header::ACCEPT).to_owned(),
            verb: RequestKind::Any,
        };
        let mut call = Self { seen, method, headers, past: None };
        call.seen.verb = match Target::parse(&call.seen.path) {
            Some(_) if call.method == Method::GET && call.flag("watch") => RequestKind::Watch,
            Some(target) if call.method == Method::GET && target.name.is_none() => RequestKind::List,
            _ => RequestKind::Any,
        };
        Ok(call)
    }

    /// Returns a query parameter, empty if absent.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.seen.query.get(name).map_or("", String::as_str)
    }

    /// Returns true if a query parameter is `true`, `1`, or another spelling of true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1" | "True" | "TRUE" | "t" | "T")
    }

    /// Returns a query parameter as a number; `None` if absent.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let text = self.param(name);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| ApiError::bad_request(format!("{name}: Invalid value: {text:?}")))
    }

    pub(super) fn content_type(&self) -> &str {
        text(&self.headers, header::CONTENT_TYPE)
    }

    /// Returns the form that `Accept` requests.
    pub(super) fn shape(&self) -> Shape {
        if self.seen.accept.contains("as=PartialObjectMetadata") { Shape::Metadata } else { Shape::Whole }
    }

    /// Returns the writer's name for `managedFields`.
    pub(super) fn manager(&self) -> &str {
        let agent = text(&self.headers, header::USER_AGENT).split(['/', ' ']).next().unwrap_or_default();
        [self.param("fieldManager"), agent].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown")
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A request for a served type, with its context.
pub(super) struct Ask<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) call: &'a Call,
    pub(super) target: Target<'a>,
    pub(super) id: TypeId,
    pub(super) info: Arc<TypeInfo>,
    /// Object or subresource that the path names.
    pub(super) part: Part,
}

impl Ask<'_> {
    pub(super) fn selector(&self) -> Result<RequestSelector, ApiError> {
        RequestSelector::parse(&self.info, self.call.param("labelSelector"), self.call.param("fieldSelector"))
    }
}
