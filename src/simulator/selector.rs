//! Label and field selectors, as the API server reads them from a query.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ApiError, types::TypeInfo};
use crate::{
    lister::selector::{LabelSelector, computed},
    object::KeyRef,
};

/// Filter of a request; the default matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestSelector {
    labels: LabelSelector,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct FieldRequirement {
    path: String,
    value: String,
    /// Set to invert the match.
    negated: bool,
}

/// Labels of one state of an object, and the fields that field selectors support. Both are decoded once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelectorFacts {
    labels: BTreeMap<String, String>,
    fields: BTreeMap<&'static str, String>,
}

impl RequestSelector {
    /// Parses `labelSelector` and `fieldSelector`; 400 for bad syntax or a field that the type does not support.
    pub(crate) fn parse(info: &TypeInfo, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(labels).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = fields.split(',').filter(|field| !field.trim().is_empty());
        let fields = fields.map(field_requirement).collect::<Result<Vec<_>, _>>()?;
        for FieldRequirement { path, .. } in &fields {
            if !matches!(path.as_str(), "metadata.name" | "metadata.namespace")
                && info.selectable_fields().all(|field| field != path)
            {
                return Err(ApiError::bad_request(format!("field label not supported: {path}")));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Adds the requirement that the name is `name`.
    #[must_use]
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        let (path, value) = ("metadata.name".to_owned(), name.to_owned());
        self.fields.push(FieldRequirement { path, value, negated: false });
        self
    }

    /// Returns true if the selector matches everything.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the object matches. Calls `facts` only if the selector requires more than a namespace or a name.
    pub(crate) fn matches<'a>(&self, key: KeyRef<'_>, facts: impl Fn() -> &'a SelectorFacts) -> bool {
        let value = |path: &str| match path {
            "metadata.name" => key.name,
            "metadata.namespace" => key.namespace,
            other => facts().fields.get(other).map_or("", String::as_str),
        };
        self.fields.iter().all(|field| (value(&field.path) == field.value) != field.negated)
            && self.labels.matches_labels(|label| facts().labels.get(label).map(String::as_str))
    }
}

impl SelectorFacts {
    /// Extracts the fields that selectors of the type can use.
    pub(crate) fn of(info: &TypeInfo, object: &Value) -> Self {
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
            other => other.to_string(),
        };
        let at = |path: &str| path.split('.').try_fold(object, |value, name| value.get(name)).map(text);
        let api_version = info.resource.api_version();
        let field = |path: &'static str| {
            let mut named = computed::named(path);
            let computed = named.find(|field| field.kind == info.resource.kind && field.api_version == api_version);
            let value = match computed {
                Some(field) => {
                    let value = field.paths.iter().filter_map(|path| at(path)).find(|value| !value.is_empty());
                    value.unwrap_or_else(|| field.absent.to_owned())
                }
                None => at(path).unwrap_or_default(),
            };
            (path, value)
        };
        Self {
            labels: labels.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect(),
            fields: info.selectable_fields().map(field).collect(),
        }
    }
}

fn field_requirement(text: &str) -> Result<FieldRequirement, ApiError> {
    let unequal = text.split_once("!=");
    let term = unequal.or_else(|| text.split_once("==")).or_else(|| text.split_once('='));
    let invalid = || ApiError::bad_request(format!("invalid field selector: {text:?}"));
    let (path, value) = term.filter(|(path, _)| !path.trim().is_empty()).ok_or_else(invalid)?;
    Ok(FieldRequirement { path: path.trim().to_owned(), value: value.trim().to_owned(), negated: unequal.is_some() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::simulator::types::builtin;

    #[track_caller]
    fn check(labels: &str, fields: &str, expected: bool) {
        let info = builtin().into_iter().find(|info| info.resource.plural == "pods").unwrap();
        let pod = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}, "spec": {"nodeName": "n1"}});
        let facts = SelectorFacts::of(&info, &pod);
        let selector = RequestSelector::parse(&info, labels, fields).unwrap();
        let key = KeyRef { namespace: "default", name: "web-1" };
        assert_eq!(selector.matches(key, || &facts), expected, "{labels} {fields}");
    }

    #[test]
    fn selectors_follow_api_semantics() {
        check("", "", true);
        check("app=web", "", true);
        check("app==web,tier!=back", "", true);
        check("app in (api, web),!gone", "", true);
        check("app notin (web)", "", false);
        check("missing!=x", "", true);
        check("tier", "", true);
        check("!tier", "", false);
        check("", "metadata.name=web-1,spec.nodeName=n1", true);
        check("", "spec.nodeName!=n1", false);
        check("", "status.phase=", true);
        check("", "metadata.namespace=other", false);
    }

    #[test]
    fn unsupported_fields_and_bad_syntax_are_bad_requests() {
        let info = builtin().remove(2);
        for (labels, fields) in [("", "spec.image=x"), ("a b", ""), ("a in (x", ""), ("", "metadata.name")] {
            assert_eq!(RequestSelector::parse(&info, labels, fields).unwrap_err().code, 400, "{labels} {fields}");
        }
    }
}
