//! A JSON Schema validator for the keywords of our schema. It is independent of deltabus. It panics at an unknown keyword,
//! so that nothing passes unchecked.

use serde_json::Value;

/// Returns the violations of the schema, with path and reason.
pub(crate) fn violations(root: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(root, root, value, "", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        if schema == &Value::Bool(false) {
            found.push(format!("{at}: not allowed"));
        }
        return;
    };
    for (keyword, argument) in keywords {
        let holds = match keyword.as_str() {
            "$ref" => {
                let target = root.pointer(argument.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
                check(root, target, value, at, found);
                true
            }
            "type" => match argument.as_array() {
                Some(names) => names.iter().any(|name| is_of_type(value, name.as_str().unwrap())),
                None => is_of_type(value, argument.as_str().unwrap()),
            },
            "const" => value == argument,
            "enum" => argument.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= argument.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= argument.as_f64().unwrap()),
            "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= argument.as_u64().unwrap()),
            "minProperties" => value.as_object().is_none_or(|table| table.len() as u64 >= argument.as_u64().unwrap()),
            "maxProperties" => value.as_object().is_none_or(|table| table.len() as u64 <= argument.as_u64().unwrap()),
            "pattern" => value.as_str().is_none_or(|text| matches(argument.as_str().unwrap(), text)),
            "required" => value.as_object().is_none_or(|table| {
                argument.as_array().unwrap().iter().all(|key| table.contains_key(key.as_str().unwrap()))
            }),
            "oneOf" => {
                let conforms = |choice: &&Value| {
                    let mut found = Vec::new();
                    check(root, choice, value, at, &mut found);
                    found.is_empty()
                };
                argument.as_array().unwrap().iter().filter(conforms).count() == 1
            }
            "items" => {
                for (i, element) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, argument, element, &format!("{at}[{i}]"), found);
                }
                true
            }
            // The first three are handled below; the others restrict nothing.
            "properties"
            | "patternProperties"
            | "additionalProperties"
            | "$schema"
            | "$defs"
            | "title"
            | "description"
            | "default"
            | "examples"
            | "writeOnly"
            | "format" => true,
            unknown => panic!("unknown keyword {unknown}"),
        };
        if !holds {
            found.push(format!("{at}: {value} violates {keyword}: {argument}"));
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        check(root, schema_of(schema, key), value, &format!("{at}.{key}"), found);
    }
}

/// Returns the schema of a key within a table's schema.
fn schema_of<'a>(schema: &'a Value, key: &str) -> &'a Value {
    let of_pattern = || {
        let patterns = schema["patternProperties"].as_object()?;
        patterns.iter().find(|(pattern, _)| matches(pattern, key)).map(|(_, schema)| schema)
    };
    let additional = || schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
    schema["properties"].get(key).or_else(of_pattern).unwrap_or_else(additional)
}

fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).unwrap().is_match(text)
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        unknown => panic!("unknown type {unknown}"),
    }
}
