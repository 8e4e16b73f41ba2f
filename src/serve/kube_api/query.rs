//! Paths and query parameters of the read API.

use std::cmp::Ordering;

use super::{super::status_object::StatusObject, pages::Token};
use crate::{
    journal::UnitId,
    lister::selector::{FieldSelector, LabelSelector, Selector},
    object::{KeyRef, ResourceType, ResourceVersion},
};

/// Collection or object that a path below `/api` or `/apis` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) plural: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Parses a path (LW-5, and the same with a name); returns `None` if it names neither a collection nor an object.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments[..] {
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => return None,
        };
        let target = |plural, namespace, name| Some(Self { group, version, plural, namespace, name });
        match *rest {
            [plural] => target(plural, None, None),
            // `/api/v1/namespaces/x` is the Namespace itself
            [plural, name] => target(plural, None, Some(name)),
            ["namespaces", namespace, plural] => target(plural, Some(namespace), None),
            ["namespaces", namespace, plural, name] => target(plural, Some(namespace), Some(name)),
            _ => None,
        }
    }

    /// Returns true if the path exists for the type: a namespace requires a namespaced type, and an object of such a type
    /// requires a namespace.
    pub(super) fn fits(&self, resource: &ResourceType) -> bool {
        match self.namespace {
            Some(_) => resource.namespaced,
            None => self.name.is_none() || !resource.namespaced,
        }
    }
}

/// Required version of the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum VersionQuery {
    /// Version of the cache.
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
    /// One unit of a type with several units; a parameter of deltabus.
    pub(super) unit: Option<UnitId>,
    /// Part of the object in table rows; used only for tables.
    pub(super) include_object: String,
    pub(super) version: VersionQuery,
}

impl ListQuery {
    /// Parses a query. Parameters without meaning for a cache (`timeoutSeconds`, `pretty` …) are ignored.
    pub(super) fn parse(query: &str) -> Result<Self, StatusObject> {
        let mut parsed = Self::default();
        let (mut index, mut value, mut version, mut matching) = (None, None, String::new(), String::new());
        for (key, text) in form_urlencoded::parse(query.as_bytes()) {
            let text = text.into_owned();
            let bad_selector = |error| StatusObject::bad_request(format!("{error}"));
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
                    let why = "the cache does not serve watches: watch the API server";
                    return Err(StatusObject::method_not_allowed(why));
                }
                _ => {}
            }
        }
        if !matches!(&*version, "" | "0") && parsed.continue_token.is_some() {
            let why = "specifying resource version is not allowed when using continue";
            return Err(StatusObject::bad_request(why.to_owned()));
        }
        parsed.version = parse_version(&version, &matching)?;
        parsed.index = match (index, value) {
            (Some(index), Some(value)) => Some((index, value)),
            (None, None) => None,
            _ => {
                let why = "`index` and `value` belong together: ?index=NAME&value=V";
                return Err(StatusObject::bad_request(why.to_owned()));
            }
        };
        Ok(parsed)
    }
}

fn parse_limit(text: &str) -> Result<Option<usize>, StatusObject> {
    let invalid = |_| StatusObject::bad_request(format!("limit: Invalid value: {text:?}: expected a whole number"));
    let limit: usize = if text.is_empty() { 0 } else { text.parse().map_err(invalid)? };
    Ok(Some(limit).filter(|limit| *limit > 0))
}

fn parse_unit(text: &str) -> Result<UnitId, StatusObject> {
    let invalid =
        |_| StatusObject::bad_request(format!("unit: Invalid value: {text:?}: expected a number of /v1/resources"));
    text.parse().map(UnitId).map_err(invalid)
}

fn parse_version(version: &str, matching: &str) -> Result<VersionQuery, StatusObject> {
    match (version, matching) {
        ("", "") | ("0", "" | "NotOlderThan") => Ok(VersionQuery::Any),
        ("", _) => Err(StatusObject::invalid_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        ("0", "Exact") => Err(StatusObject::invalid_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (_, "" | "NotOlderThan") => Ok(VersionQuery::NotOlderThan(ResourceVersion::from(version))),
        (_, "Exact") => Ok(VersionQuery::Exact(ResourceVersion::from(version))),
        (_, other) => Err(StatusObject::invalid_options(&format!(
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
