//! Schemas of types, from the `OpenAPI` v3 documents of the API server: the fields that an object can have, and their values.
//!
//! A document describes one group and version. Where it does not describe a value, or permits unknown fields, every path exists.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::object::{PathStep, ResourceType};

/// Key of the types that a schema describes.
const KINDS: &str = "x-kubernetes-group-version-kind";
/// Key of a schema whose values may have fields that it does not list.
const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";
/// Maximum number of references from one schema to the next. It ends cycles.
const REFERENCES_MAX: usize = 16;

/// Index of the documents: their addresses on the server.
#[derive(Debug, Default, Deserialize)]
pub(super) struct DocumentIndex {
    paths: BTreeMap<String, Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

impl DocumentIndex {
    /// Returns the address of the document that describes a type; `None` if there is no document.
    pub(super) fn address(&self, resource: &ResourceType) -> Option<&str> {
        let ResourceType { group, version, .. } = resource;
        let name = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        self.paths.get(&name).map(|address| address.url.as_str()).filter(|url| url.starts_with("/openapi/v3/"))
    }
}

/// Schemas of the types of one group and version.
#[derive(Debug, Deserialize)]
pub(crate) struct Schemas {
    #[serde(default)]
    components: Components,
}

#[derive(Debug, Default, Deserialize)]
struct Components {
    #[serde(default)]
    schemas: BTreeMap<String, Value>,
}

/// Result of following a path through the schema of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldPresence<'a> {
    /// The path exists, or the schema does not tell. `choices` are the only values of the field; empty for any value.
    Possible {
        /// Values that the schema lists.
        choices: Vec<&'a str>,
    },
    /// No object has the path.
    Missing {
        /// Number of steps that exist.
        found: usize,
        /// Value that the found steps lead to.
        value: KnownValue<'a>,
    },
}

/// Value that lacks a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KnownValue<'a> {
    /// Object with only these fields.
    Object(Vec<&'a str>),
    /// List. A path needs `[*]` after it.
    List,
    /// Text, number or boolean: the type of the schema.
    Scalar(&'a str),
}

impl Schemas {
    /// Returns true if there is a schema of a type.
    pub(crate) fn describe(&self, resource: &ResourceType) -> bool {
        self.of(resource).is_some()
    }

    fn of(&self, resource: &ResourceType) -> Option<&Value> {
        let is_it = |schema: &&Value| {
            let mut kinds = schema[KINDS].as_array().into_iter().flatten();
            kinds.any(|it| it["kind"] == *resource.kind && it["group"] == *resource.group)
        };
        self.components.schemas.values().find(is_it)
    }

    /// Follows a path through the schema of a type. Without a schema, the path may exist.
    pub(crate) fn find(&self, resource: &ResourceType, path: &[PathStep]) -> FieldPresence<'_> {
        self.of(resource).map_or(ANYTHING, |schema| self.follow(schema, path))
    }

    fn follow<'a>(&'a self, schema: &'a Value, path: &[PathStep]) -> FieldPresence<'a> {
        let mut schema = schema;
        for (found, step) in path.iter().enumerate() {
            let missing = |value| FieldPresence::Missing { found, value };
            let Some(known) = self.resolve(schema) else { return ANYTHING };
            schema = match (step, Shape::of(known)) {
                (_, Shape::Anything) | (PathStep::Each, Shape::Object(_)) => return ANYTHING,
                (PathStep::Member(name), Shape::Object(fields)) => match fields.get(&**name) {
                    Some(field) => field,
                    None => return missing(KnownValue::Object(fields.keys().map(String::as_str).collect())),
                },
                (_, Shape::Map(values)) => values,
                (PathStep::Each, Shape::List(elements)) => elements,
                (PathStep::Member(_), Shape::List(_)) => return missing(KnownValue::List),
                (_, Shape::Scalar(kind)) => return missing(KnownValue::Scalar(kind)),
            };
        }
        let choices = self.resolve(schema).and_then(|schema| schema["enum"].as_array());
        FieldPresence::Possible { choices: choices.into_iter().flatten().filter_map(Value::as_str).collect() }
    }

    /// Follows the references of a schema. Returns `None` for a schema that describes values in another way.
    fn resolve<'a>(&'a self, mut schema: &'a Value) -> Option<&'a Value> {
        for _ in 0..REFERENCES_MAX {
            let reference = match (schema.get("$ref"), schema.get("allOf").and_then(Value::as_array)) {
                (Some(reference), _) => reference,
                // The server wraps a reference that has its own description.
                (None, Some(all)) if all.len() == 1 && schema.get("properties").is_none() => {
                    schema = &all[0];
                    continue;
                }
                (None, _) => return Some(schema),
            };
            schema = self.components.schemas.get(reference.as_str()?.strip_prefix("#/components/schemas/")?)?;
        }
        None
    }
}

/// Result for everything that a schema does not describe.
const ANYTHING: FieldPresence<'static> = FieldPresence::Possible { choices: Vec::new() };

/// Values that a schema describes.
enum Shape<'a> {
    Anything,
    /// Objects with these fields only.
    Object(&'a serde_json::Map<String, Value>),
    /// Objects with any keys, and values of this schema.
    Map(&'a Value),
    List(&'a Value),
    Scalar(&'a str),
}

impl<'a> Shape<'a> {
    fn of(schema: &'a Value) -> Self {
        let is_open = schema[PRESERVES] == true
            || schema["x-kubernetes-embedded-resource"] == true
            || schema["x-kubernetes-int-or-string"] == true
            || ["oneOf", "anyOf", "allOf", "not"].iter().any(|key| schema.get(key).is_some());
        if is_open {
            return Self::Anything;
        }
        match (schema["type"].as_str(), schema.get("properties"), schema.get("additionalProperties")) {
            (Some("object") | None, Some(Value::Object(fields)), None | Some(Value::Bool(false))) => {
                Self::Object(fields)
            }
            (Some("object"), None, Some(values @ Value::Object(_))) => Self::Map(values),
            (Some("array"), ..) => schema.get("items").map_or(Self::Anything, Self::List),
            (Some(kind @ ("string" | "integer" | "number" | "boolean")), ..) => Self::Scalar(kind),
            _ => Self::Anything,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::FieldPath;

    fn resource(group: &str, kind: &str) -> ResourceType {
        let [group, version, kind, plural] = [group, "v1", kind, "things"].map(str::to_owned);
        ResourceType { group, version, kind, plural, namespaced: true }
    }

    fn schemas() -> Schemas {
        let document = json!({ "components": { "schemas": {
            "apps.Deployment": {
                "type": "object",
                "x-kubernetes-group-version-kind": [{ "group": "apps", "kind": "Deployment", "version": "v1" }],
                "properties": {
                    "gone": { "$ref": "#/components/schemas/none" },
                    "kind": { "type": "string" },
                    "loop": { "$ref": "#/components/schemas/loop" },
                    "metadata": { "allOf": [{ "$ref": "#/components/schemas/meta" }], "default": {} },
                    "spec": { "$ref": "#/components/schemas/spec" },
                },
            },
            "meta": { "type": "object", "properties": {
                "fields": { "type": "object" },
                "labels": { "type": "object", "additionalProperties": { "type": "string", "default": "" } },
                "name": { "type": "string" },
            } },
            "spec": { "type": "object", "properties": {
                "replicas": { "type": "integer" },
                "type": { "type": "string", "enum": ["Recreate", "RollingUpdate"] },
                "containers": { "type": "array", "items": { "type": "object", "properties": { "image": { "type": "string" } } } },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": { "a": {} } },
                "port": { "x-kubernetes-int-or-string": true },
                "either": { "type": "object", "properties": { "a": {} }, "oneOf": [{ "required": ["a"] }] },
            } },
            "loop": { "$ref": "#/components/schemas/loop" },
        } } });
        serde_json::from_value(document).unwrap()
    }

    #[track_caller]
    fn check(path: &str, expected: &FieldPresence<'_>) {
        let resource = resource("apps", "Deployment");
        assert_eq!(schemas().find(&resource, FieldPath::parse(path).unwrap().steps()), *expected, "{path}");
    }

    #[test]
    fn paths_of_a_schema_exist() {
        for path in
            ["kind", "metadata.name", "labels['a/b']", "labels[*]", "spec.containers", "spec.containers[*].image"]
        {
            check(path, &ANYTHING);
        }
        check("spec.type", &FieldPresence::Possible { choices: vec!["Recreate", "RollingUpdate"] });
    }

    #[test]
    fn undescribed_parts_have_every_path() {
        for path in
            ["spec.free.x.y", "spec.port.x", "spec.either.b", "metadata.fields.x", "loop.x", "gone.x", "spec.*.x"]
        {
            check(path, &ANYTHING);
        }
        let other = resource("apps", "DaemonSet");
        assert_eq!(schemas().find(&other, FieldPath::parse("spec.x").unwrap().steps()), ANYTHING);
    }

    #[test]
    fn missing_path_names_what_is_there() {
        let missing = |found, value| FieldPresence::Missing { found, value };
        check("status", &missing(0, KnownValue::Object(vec!["gone", "kind", "loop", "metadata", "spec"])));
        check("metadata.nme", &missing(1, KnownValue::Object(vec!["fields", "labels", "name"])));
        check("spec.containers[*].imag", &missing(3, KnownValue::Object(vec!["image"])));
        check("spec.containers.image", &missing(2, KnownValue::List));
        check("spec.replicas.x", &missing(2, KnownValue::Scalar("integer")));
        check("labels.a.b", &missing(3, KnownValue::Scalar("string")));
    }

    #[test]
    fn documents_are_found_by_group_and_version() {
        let url = |path: &str| json!({ "serverRelativeURL": path });
        let index: DocumentIndex = serde_json::from_value(json!({ "paths": {
            "api/v1": url("/openapi/v3/api/v1?hash=A"),
            "apis/apps/v1": url("/openapi/v3/apis/apps/v1?hash=B"),
            "apis/evil/v1": url("http://elsewhere/"),
        } }))
        .unwrap();
        let address = |group, kind| index.address(&resource(group, kind));
        assert_eq!(address("", "Pod"), Some("/openapi/v3/api/v1?hash=A"));
        assert_eq!(address("apps", "Deployment"), Some("/openapi/v3/apis/apps/v1?hash=B"));
        assert_eq!((address("evil", "X"), address("none", "X")), (None, None));
    }
}
