//! Label and field selectors, as the API server reads them from a query.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ApiError, types::TypeInfo};
use crate::object::KeyRef;

/// Filter of a request; the default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSelector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// Expected values; `None` for any value.
    values: Option<Vec<String>>,
    /// Set to invert the match.
    negated: bool,
}

/// Fields of one object state that selectors use, decoded once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelectorFacts {
    labels: BTreeMap<String, String>,
    fields: BTreeMap<&'static str, String>,
}

impl RequestSelector {
    /// Parses `labelSelector` and `fieldSelector`; 400 for bad syntax or a field that the type does not support.
    pub(crate) fn parse(info: &TypeInfo, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = split(labels).into_iter().map(label_requirement).collect::<Result<_, _>>()?;
        let fields = split(fields).into_iter().map(field_requirement).collect::<Result<Vec<_>, _>>()?;
        for field in &fields {
            let key = field.key.as_str();
            if !matches!(key, "metadata.name" | "metadata.namespace")
                && info.selectable_fields().all(|field| field != key)
            {
                return Err(ApiError::bad_request(format!("field label not supported: {key}")));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Adds the requirement that the name is `name`.
    #[must_use]
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        let (key, values) = ("metadata.name".to_owned(), Some(vec![name.to_owned()]));
        self.fields.push(Requirement { key, values, negated: false });
        self
    }

    /// Returns true if the selector matches everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns true if the object matches; `facts` is called only if the key does not suffice.
    pub(crate) fn matches<'a>(&self, key: KeyRef<'_>, facts: impl Fn() -> &'a SelectorFacts) -> bool {
        self.fields.iter().all(|field| match field.key.as_str() {
            "metadata.name" => field.holds(Some(key.name)),
            "metadata.namespace" => field.holds(Some(key.namespace)),
            other => field.holds(Some(facts().fields.get(other).map_or("", String::as_str))),
        }) && self.labels.iter().all(|label| label.holds(facts().labels.get(&label.key).map(String::as_str)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_expected = |value: &str| self.values.as_ref().is_none_or(|values| values.iter().any(|one| one == value));
        value.is_some_and(is_expected) != self.negated
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
        let field = |path: &'static str| {
            let value = path.split('.').try_fold(object, |value, name| value.get(name));
            let absent = if path == "spec.unschedulable" || path == "spec.hostNetwork" { "false" } else { "" };
            (path, value.map_or_else(|| absent.to_owned(), text))
        };
        Self {
            labels: labels.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect(),
            fields: info.selectable_fields().map(field).collect(),
        }
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn label_requirement(text: &str) -> Result<Requirement, ApiError> {
    if let Some(equality) = equality(text) {
        return Ok(equality);
    }
    if let Some((head, set)) = text.split_once('(') {
        let set = set.strip_suffix(')').ok_or_else(|| unparsable(text))?;
        let values = Some(set.split(',').map(|value| value.trim().to_owned()).collect());
        let (key, negated) = match head.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => (key.to_owned(), false),
            [key, "notin"] => (key.to_owned(), true),
            _ => return Err(unparsable(text)),
        };
        return Ok(Requirement { key, values, negated });
    }
    let (key, negated) = text.strip_prefix('!').map_or((text, false), |key| (key.trim(), true));
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(unparsable(text));
    }
    Ok(Requirement { key: key.to_owned(), values: None, negated })
}

fn field_requirement(text: &str) -> Result<Requirement, ApiError> {
    equality(text).ok_or_else(|| ApiError::bad_request(format!("invalid field selector: {text:?}")))
}

fn equality(text: &str) -> Option<Requirement> {
    if text.contains('(') {
        return None;
    }
    let (equal, unequal) = (text.split_once("==").or_else(|| text.split_once('=')), text.split_once("!="));
    let (key, value) = unequal.or(equal)?;
    let (key, values) = (key.trim().to_owned(), Some(vec![value.trim().to_owned()]));
    (!key.is_empty()).then_some(Requirement { key, values, negated: unequal.is_some() })
}

fn unparsable(text: &str) -> ApiError {
    ApiError::bad_request(format!("unable to parse requirement: {text:?}"))
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
