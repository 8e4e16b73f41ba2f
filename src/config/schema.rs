//! JSON Schema of the file format (draft 2020-12), generated from the structs of [`config`](super).

use schemars::{
    JsonSchema as _, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Map, Value, json};

use super::{Config, HandlerOptions, ResourceDefaults};
use crate::cloud_event::ContentMode;

/// Pattern for names of resources and handlers.
pub(crate) const NAME_PATTERN: &str = "^[a-z][a-z0-9_]*$";

/// Returns the schema of a configuration file.
pub fn schema() -> Schema {
    let settings = SchemaSettings::draft2020_12().with_transform(Close);
    let mut generator = settings.into_generator();
    let defaults = defaults_schema(&mut generator);
    let mut schema = generator.into_root_schema_for::<Config>();
    let root = schema.ensure_object();
    root.insert("title".to_owned(), "deltabus configuration".into());
    root.insert(
        "description".to_owned(),
        "Resources that deltabus watches, and handlers of their changes. Later files and directories are merged into \
         earlier ones: tables key by key, lists and scalars are replaced, [[tests]] are concatenated."
            .into(),
    );
    if let Some(Value::Object(properties)) = root.get_mut("properties") {
        properties.insert("defaults".to_owned(), defaults);
    }
    schema
}

/// Returns the schema of `[defaults]`. It is not part of `Config`, whose entries already contain the inherited values.
fn defaults_schema(generator: &mut SchemaGenerator) -> Value {
    let describe = |schema: Schema, description: &str| {
        let mut schema = schema.to_value();
        schema["description"] = description.into();
        schema
    };
    let resources = generator.subschema_for::<ResourceDefaults>();
    let mode = describe(
        generator.subschema_for::<ContentMode>(),
        "Form of an event, for sinks with headers. Default: depends on the sink.",
    );
    let mut handlers = HandlerOptions::json_schema(generator);
    let closed = handlers.ensure_object();
    closed["properties"]["mode"] = mode;
    closed.insert("additionalProperties".to_owned(), false.into());
    json!({
        "type": "object",
        "description": "Values that entries inherit unless they set them.",
        "properties": {
            "resources": describe(resources, "Values that every [resources.*] inherits."),
            "handlers": describe(handlers, "Values that every [handlers.*] inherits."),
        },
        "additionalProperties": false,
    })
}

/// Transformation that forbids unknown keys in every table, writes the bounds of Rust's integers as JSON Schema, and tidies
/// descriptions and defaults.
#[derive(Clone)]
struct Close;

impl Transform for Close {
    fn transform(&mut self, schema: &mut Schema) {
        if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        if schema.get("type").is_some_and(|kind| kind == "integer" || kind == "number")
            && schema.remove("format").is_some_and(|format| format == "uint32")
            && schema.get("maximum").is_none()
        {
            schema.insert("maximum".to_owned(), u32::MAX.into());
        }
        // A line break in a doc comment is not a line break in the description.
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
        }
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
        transform_subschemas(self, schema);
    }
}

/// Restricts the keys of a map to names.
pub(crate) fn names(schema: &mut Schema) {
    if let Some(entries) = schema.remove("additionalProperties") {
        schema.insert("patternProperties".to_owned(), json!({ NAME_PATTERN: entries }));
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Moves the properties that all variants share into each variant. A variant then has all its keys, and can forbid unknown ones.
pub(crate) fn fold_into_variants(schema: &mut Schema) {
    let Some(Value::Object(shared)) = schema.remove("properties") else { return };
    schema.remove("type");
    schema.remove("required");
    let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { return };
    for variant in variants.iter_mut().filter_map(Value::as_object_mut) {
        let properties = variant.entry("properties").or_insert_with(|| Map::new().into());
        if let Value::Object(properties) = properties {
            properties.extend(shared.clone());
        }
    }
}
