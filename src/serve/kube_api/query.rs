//! Paths and query parameters of the read API.

use std::cmp::Ordering;

use super::{super::api_error::ApiError, pages::Token};
use crate::{
    journal::UnitId,
    lister::selector::{FieldSelector, LabelSelector, Selector},
    object::{KeyRef, ResourceType, ResourceVersion},
};

/// Collection or object in the path of a request below `/api` or `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) subresource: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Parses the path of a collection or of an object, with or without a subresource (LW-5). Returns `None` for other paths.
    pub(crate) fn parse(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments[..] {
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => return None,
        };
        let (namespace, rest) = match *rest {
            // `/api/v1/namespaces/x` is the Namespace itself
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, ref inside @ ..] => (Some(namespace), inside),
            _ => (None, rest),
        };
        let (plural, name, subresource) = match *rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource] => (plural, Some(name), Some(subresource)),
            _ => return None,
        };
        Some(Self { group, version, plural, namespace, name, subresource })
    }

    /// Returns true if the path names this type.
    pub(super) fn is_of(&self, resource: &ResourceType) -> bool {
        (self.group, self.version, self.plural) == (&resource.group, &resource.version, &resource.plural)
    }

    /// Returns true if the path is valid for the type. Only the path of a namespaced type may contain a namespace. The path of a
    /// namespaced object must contain one. Returns false for subresources, because they are not cached.
    pub(super) fn fits(&self, resource: &ResourceType) -> bool {
        let fits_scope = match self.namespace {
            Some(_) => resource.namespaced,
            None => self.name.is_none() || !resource.namespaced,
        };
        fits_scope && self.subresource.is_none()
    }
}

/// Required version of the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum VersionQuery {
    /// Any version: the response has the version of the cache.
    #[default]
    Any,
    /// At least this version.
    NotOlderThan(ResourceVersion),
    /// Exactly this version.
    Exact(ResourceVersion),
}

/// Query parameters of a list; a get uses only `resourceVersion`.
#[derive(Debug, Default)]
pub(super) struct ListQuery {
    pub(super) selector: Selector,
    pub(super) limit: Option<usize>,
    pub(super) continue_token: Option<Token>,
    pub(super) index: Option<(String, String)>,
    /// Unit to whose objects the list is limited. The API server has no such parameter.
    pub(super) unit: Option<UnitId>,
    /// Text of `includeObject`: the part of the object that each row of a table contains.
    pub(super) include_object: String,
    pub(super) version: VersionQuery,
}

impl ListQuery {
    /// Parses a query. Parameters without meaning for a cache (`timeoutSeconds`, `pretty` …) are ignored.
    pub(super) fn parse(query: &str) -> Result<Self, ApiError> {
        let mut parsed = Self::default();
        let (mut index, mut value, mut version, mut matching) = (None, None, String::new(), String::new());
        for (key, text) in form_urlencoded::parse(query.as_bytes()) {
            let text = text.into_owned();
            let bad_selector = |error| ApiError::bad_request(format!("{error}"));
            match &*key {
                "labelSelector" => parsed.selector.labels = LabelSelector::parse(&text).map_err(bad_selector)?,
                "fieldSelector" => parsed.selector.fields = FieldSelector::parse(&text).map_err(bad_selector)?,
                "limit" => parsed.limit = parse_limit(&text)?,
                "continue" if !text.is_empty() => parsed.continue_token = Some(Token::parse(&text)?),
                "resourceVersion" => version = text,
                "resourceVersionMatch" => matching = text,
                "includeObject" => parsed.include_object = text,
                "unit" => parsed.unit = Some(parse_unit(&text)?),
                "index" => index = Some(text),
                "value" => value = Some(text),
                "watch" if matches!(&*text, "true" | "True" | "TRUE" | "t" | "T" | "1") => {
                    let why = "the cache does not serve watches: watch the API server, or read the changes from /v1/events \
                               (deltabus tail)";
                    return Err(ApiError::method_not_allowed(why));
                }
                _ => {}
            }
        }
        if !matches!(&*version, "" | "0") && parsed.continue_token.is_some() {
            let why = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(why));
        }
        parsed.version = parse_version(&version, &matching)?;
        parsed.index = match (index, value) {
            (Some(index), Some(value)) => Some((index, value)),
            (None, None) => None,
            _ => {
                let why = "`index` and `value` belong together: ?index=NAME&value=V";
                return Err(ApiError::bad_request(why));
            }
        };
        Ok(parsed)
    }
}

fn parse_limit(text: &str) -> Result<Option<usize>, ApiError> {
    let invalid = |_| ApiError::bad_request(format!("limit: Invalid value: {text:?}: expected a whole number"));
    let limit: usize = if text.is_empty() { 0 } else { text.parse().map_err(invalid)? };
    Ok(Some(limit).filter(|limit| *limit > 0))
}

fn parse_unit(text: &str) -> Result<UnitId, ApiError> {
    let invalid =
        |_| ApiError::bad_request(format!("unit: Invalid value: {text:?}: expected a `unit` of /v1/resources"));
    text.parse().map(UnitId).map_err(invalid)
}

fn parse_version(version: &str, matching: &str) -> Result<VersionQuery, ApiError> {
    match (version, matching) {
        ("", "") | ("0", "" | "NotOlderThan") => Ok(VersionQuery::Any),
        ("", _) => Err(ApiError::invalid_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        ("0", "Exact") => Err(ApiError::invalid_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (_, "" | "NotOlderThan") => Ok(VersionQuery::NotOlderThan(ResourceVersion::from(version))),
        (_, "Exact") => Ok(VersionQuery::Exact(ResourceVersion::from(version))),
        (_, other) => Err(ApiError::invalid_options(&format!(
            "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
        ))),
    }
}

/// Compares keys in the order of the API server's lists: by the text `namespace/name`, so that `a-b/x` precedes `a/x`.
pub(super) fn server_order(a: KeyRef<'_>, b: KeyRef<'_>) -> Ordering {
    if a.namespace == b.namespace {
        return a.name.cmp(b.name);
    }
    a.namespace.bytes().chain([b'/']).cmp(b.namespace.bytes().chain([b'/']))
}
