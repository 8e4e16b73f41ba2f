//! How a configuration names secrets: `{ env = "NAME" }` or `{ file = "/path" }`, never the secret itself.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::secret::SecretRef;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Env(String),
    File(std::path::PathBuf),
}

/// Writes the reference, so that what is written means the same when it is read: for people, `mask` it.
impl Serialize for SecretRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (key, place) = match self {
            Self::Env(name) => ("env", Cow::Borrowed(&**name)),
            Self::File(path) => ("file", path.to_string_lossy()),
        };
        serializer.collect_map([(key, place)])
    }
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Env(name) => Self::Env(name),
            Written::File(path) => Self::File(path),
        })
    }
}

impl JsonSchema for SecretRef {
    fn schema_name() -> Cow<'static, str> {
        "SecretRef".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Where a secret is; one of the two.",
            "properties": {
                "env": { "type": "string", "description": "In this environment variable." },
                "file": { "type": "string", "description": "In this file; it is read again when it changes." },
            },
            "minProperties": 1,
            "maxProperties": 1,
            "writeOnly": true,
        })
    }
}

/// Writes `***` where a serialized configuration says where a secret is: a table of `env` or `file` alone.
pub(crate) fn mask(tree: &mut toml::Table) {
    let is_alone = tree.len() == 1;
    for (key, value) in tree.iter_mut() {
        match value {
            toml::Value::String(place) if is_alone && (key == "env" || key == "file") => "***".clone_into(place),
            toml::Value::Table(table) => mask(table),
            _ => {}
        }
    }
}
