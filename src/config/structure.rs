//! Checks a merged tree against the schema: unknown keys, missing keys, types, values.
//!
//! Collects all errors, and cuts wrong parts out of the tree, so that the rest can be checked further.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    error::{Finding, ValueOrigin},
    key_path::KeyPath,
    report::Report,
    schema::NAME_PATTERN,
    secret::MASK,
    text::{self, Format},
};
use crate::suggestion::{nearest, quoted, suggestion};

/// Checks the tree, and cuts out the wrong parts.
pub(crate) fn check(schema: &Value, tree: &mut Map<String, Value>, report: &mut Report) {
    let mut sections = HashMap::new();
    collect_sections(schema, schema, "", &mut sections);
    Checker { root: schema, report, sections }.table(schema, tree, &KeyPath::default());
}

/// Checker of the tree. Its methods return true if a part of the tree may stay.
struct Checker<'a> {
    root: &'a Value,
    report: &'a mut Report,
    /// Headers of the tables in which the schema allows a key, for each key.
    sections: HashMap<&'a str, Vec<String>>,
}

impl<'a> Checker<'a> {
    fn at_value(&mut self, path: &KeyPath, message: String) -> bool {
        let (key, origin) = self.report.positions.of_value(path);
        self.error(key, origin, message)
    }

    fn at_key(&mut self, path: &KeyPath, message: String) -> bool {
        let (key, origin) = self.report.positions.of_key(path);
        self.error(key, origin, message)
    }

    fn error(&mut self, key: KeyPath, origin: ValueOrigin, message: String) -> bool {
        self.report.errors.push(Finding::new(origin, key.to_string(), message));
        self.report.reported.insert(key);
        false
    }

    fn value(&mut self, schema: &'a Value, value: &mut Value, path: &KeyPath) -> bool {
        let schema = resolve(self.root, schema);
        let wants_text = choices(schema).is_some() || schema["type"] == "string";
        if !wants_text && self.report.positions.is_environment(path) {
            let text = is_plain_or_secret(schema).then(|| value.clone());
            read_environment(value);
            if let Some(text) = text.filter(|_| !value.is_object()) {
                *value = text;
            }
        }
        if let Some(choices) = choices(schema) {
            return self.choice(&choices, value, path);
        }
        let kind = if is_plain_or_secret(schema) && value.is_string() { "string" } else { kind(schema) };
        match (kind, &mut *value) {
            ("object", Value::Object(table)) => self.table(schema, table, path),
            ("array", Value::Array(elements)) => self.list(schema, elements, path),
            ("string", Value::String(text)) => self.text(schema, text, path),
            ("boolean", Value::Bool(_)) => true,
            ("integer", Value::Number(number)) if !number.is_f64() => self.number(schema, value, path),
            ("number", Value::Number(_)) => self.number(schema, value, path),
            // The value may be a secret that was written in place of a reference.
            _ if schema["writeOnly"] == true => self.at_value(path, format!("expected {}", expected(schema))),
            _ => self.at_value(path, format!("expected {}, found {}", expected(schema), found(value, path))),
        }
    }

    fn choice(&mut self, choices: &[&str], value: &Value, path: &KeyPath) -> bool {
        let text = value.as_str();
        if text.is_some_and(|text| choices.contains(&text)) {
            return true;
        }
        let near = text.and_then(|text| nearest(text, choices.iter().copied()));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let found = match text {
            Some(_) if path.has_secret_name() => MASK.to_owned(),
            Some(text) => format!("{text:?}"),
            None => found(value, path),
        };
        self.at_value(path, format!("expected one of {}, found {found}{hint}", quoted(choices.iter().copied())))
    }

    fn text(&mut self, schema: &Value, text: &str, path: &KeyPath) -> bool {
        match schema["format"].as_str().and_then(Format::named).map(|format| text::check(format, text)) {
            Some(Err(message)) => self.at_value(path, message),
            Some(Ok(())) | None => true,
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, path: &KeyPath) -> bool {
        let number = value.as_f64().unwrap_or(f64::NAN);
        let wanted = if schema["minimum"].as_f64().is_some_and(|min| number < min) {
            expected(schema)
        } else if schema["maximum"].as_f64().is_some_and(|max| number > max) {
            if is_range(schema) { expected(schema) } else { format!("at most {}", schema["maximum"]) }
        } else {
            return true;
        };
        self.at_value(path, format!("expected {wanted}, found {}", found(value, path)))
    }

    fn list(&mut self, schema: &'a Value, elements: &mut Vec<Value>, path: &KeyPath) -> bool {
        if schema["minItems"].as_u64().is_some_and(|min| (elements.len() as u64) < min) {
            return self.at_value(path, format!("expected {}, found an empty list", expected(schema)));
        }
        let (mut left, mut index) = (Vec::new(), 0);
        elements.retain_mut(|element| {
            index += 1;
            let is_kept = self.value(&schema["items"], element, &path.element(index - 1));
            left.extend(is_kept.then_some(index - 1));
            is_kept
        });
        if left.len() < index {
            self.report.positions.shorten(path.clone(), left);
        }
        true
    }

    fn table(&mut self, schema: &'a Value, table: &mut Map<String, Value>, path: &KeyPath) -> bool {
        if let Some(variants) = schema["oneOf"].as_array() {
            return self.variant(variants, table, path);
        }
        if let Some(entries) = schema["patternProperties"].get(NAME_PATTERN) {
            table.retain(|name, entry| self.entry(name, entries, entry, path));
            return true;
        }
        let Some(properties) = schema["properties"].as_object() else {
            if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
                table.retain(|key, value| self.value(values, value, &path.child(key)));
            }
            return true;
        };
        let is_choice = schema["maxProperties"] == 1;
        if is_choice && table.len() != 1 {
            let found: BTreeSet<&str> = table.keys().map(String::as_str).collect();
            let found = if found.is_empty() { "none".to_owned() } else { quoted(found) };
            return self.at_value(path, format!("expected {}, found {found}", expected(schema)));
        }
        table.retain(|key, value| match properties.get(key) {
            Some(schema) => self.value(schema, value, &path.child(key)),
            None => self.unknown_key(key, || keys_of(properties), None, path),
        });
        !(is_choice && table.is_empty()) && self.required(schema, table, path)
    }

    fn required(&mut self, schema: &'a Value, table: &Map<String, Value>, path: &KeyPath) -> bool {
        let mut is_right = true;
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if table.contains_key(key) {
                continue;
            }
            is_right = false;
            // A key that was cut has been reported already.
            if !self.report.reported.contains(&path.child(key)) {
                let wanted = resolve(self.root, &schema["properties"][key]);
                self.at_key(path, format!("missing `{key}`: expected {}", expected(wanted)));
            }
        }
        is_right
    }

    /// Checks one entry of a map of named entries.
    fn entry(&mut self, name: &str, schema: &'a Value, entry: &mut Value, path: &KeyPath) -> bool {
        let path = path.child(name);
        let mut is_right = true;
        if !is_name(name) {
            let better = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let hint = if is_name(&better) { format!("; did you mean `{better}`?") } else { String::new() };
            let expected = "expected a lower-case letter and then lower-case letters, digits and `_`";
            is_right = self.at_key(&path, format!("invalid name: {expected}{hint}"));
        }
        self.value(schema, entry, &path) && is_right
    }

    /// Checks a table whose `type` decides which keys are valid. Without a known `type`, a key is valid if it is valid for one of
    /// the types.
    fn variant(&mut self, variants: &'a [Value], table: &mut Map<String, Value>, path: &KeyPath) -> bool {
        let chosen = table.get("type").and_then(Value::as_str);
        let chosen = chosen.and_then(|name| variants.iter().find(|variant| type_of(variant) == Some(name)));
        let possible = chosen.map_or(variants, std::slice::from_ref);
        let schema_of = |key: &str| possible.iter().find_map(|variant| variant["properties"].get(key));
        let known = || {
            let mut seen = HashSet::new();
            let properties = possible.iter().filter_map(|variant| variant["properties"].as_object());
            properties.flat_map(keys_of).filter(|name| seen.insert(*name)).collect()
        };
        table.retain(|key, value| match schema_of(key) {
            _ if key == "type" => true,
            Some(schema) => self.value(schema, value, &path.child(key)),
            None => self.unknown_key(key, known, chosen.map(|_| variants), path),
        });
        if let Some(schema) = chosen {
            return self.required(schema, table, path);
        }
        let names: Vec<&str> = variants.iter().filter_map(type_of).collect();
        let path_of_type = path.child("type");
        match table.get("type") {
            Some(value) => self.choice(&names, value, &path_of_type),
            None if self.report.reported.contains(&path_of_type) => false,
            None => self.at_key(path, format!("missing `type`: expected one of {}", quoted(names))),
        };
        false
    }

    fn unknown_key(
        &mut self,
        key: &str,
        known: impl FnOnce() -> Vec<&'a str>,
        variants: Option<&[Value]>,
        path: &KeyPath,
    ) -> bool {
        let has_key = |variant: &&Value| variant["properties"].get(key).is_some();
        let owners: Vec<&str> = variants.unwrap_or(&[]).iter().filter(has_key).filter_map(type_of).collect();
        let message = if owners.is_empty() {
            let known = known();
            match nearest(key, known.iter().copied()) {
                Some(near) => {
                    self.report.reported.insert(path.child(near));
                    format!("unknown key; did you mean `{near}`?")
                }
                None => match self.sections.get(key) {
                    Some(sections) => format!("unknown key; it belongs in {}", sections.join(" or ")),
                    None => format!("unknown key; {}", suggestion(key, known)),
                },
            }
        } else {
            format!("unknown key; `{key}` belongs to handlers of type {}", owners.join(", "))
        };
        self.at_key(&path.child(key), message)
    }
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// Collects, for each key of a schema, the headers of the tables in which the schema allows the key.
fn collect_sections<'a>(
    root: &'a Value,
    schema: &'a Value,
    header: &str,
    sections: &mut HashMap<&'a str, Vec<String>>,
) {
    let below = |name: &str| if header.is_empty() { name.to_owned() } else { format!("{header}.{name}") };
    let schema = resolve(root, schema);
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        collect_sections(root, variant, header, sections);
    }
    for entries in schema["patternProperties"].as_object().into_iter().flat_map(Map::values) {
        collect_sections(root, entries, &below("*"), sections);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let section = if header.is_empty() { "the top level".to_owned() } else { format!("[{header}]") };
        let known = sections.entry(name).or_default();
        if !known.contains(&section) {
            known.push(section);
        }
        // A key of `[defaults]` is listed only with the tables in which it takes effect.
        if !(header.is_empty() && name == "defaults") {
            collect_sections(root, schema, &below(name), sections);
        }
    }
}

fn keys_of(properties: &Map<String, Value>) -> Vec<&str> {
    properties.keys().map(String::as_str).collect()
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn type_of(variant: &Value) -> Option<&str> {
    variant["properties"]["type"]["const"].as_str()
}

/// Returns the texts that a schema allows, if it lists them.
fn choices(schema: &Value) -> Option<Vec<&str>> {
    if let Some(listed) = schema["enum"].as_array() {
        return Some(listed.iter().filter_map(Value::as_str).collect());
    }
    schema["oneOf"].as_array()?.iter().map(|choice| choice["const"].as_str()).collect()
}

/// Parses an environment variable as a TOML value. A value that is not TOML stays text, and is checked like a text in a file.
fn read_environment(value: &mut Value) {
    let Value::String(text) = value else { return };
    if let Ok(mut table) = toml::from_str::<Map<String, Value>>(&format!("value = {text}"))
        && table.len() == 1
        && let Some(read) = table.remove("value")
    {
        *value = read;
    }
}

/// Returns true if a schema bounds a number on both sides, with an upper bound below the maximum of its Rust type.
fn is_range(schema: &Value) -> bool {
    schema["minimum"].is_number() && schema["maximum"].as_u64().is_some_and(|max| max < u64::from(u32::MAX))
}

/// Returns true if a schema takes a text, or a table that references a secret.
fn is_plain_or_secret(schema: &Value) -> bool {
    schema["type"].is_array()
}

fn kind(schema: &Value) -> &str {
    schema["type"].as_str().unwrap_or("object")
}

fn expected(schema: &Value) -> String {
    if let Some(format) = schema["format"].as_str().and_then(Format::named) {
        return format.expected().to_owned();
    }
    let least = match &schema["minimum"] {
        least if is_range(schema) => format!(" from {least} to {}", schema["maximum"]),
        least => least.as_f64().map(|least| format!(" of at least {least}")).unwrap_or_default(),
    };
    match kind(schema) {
        "string" => "a string".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" => format!("a whole number{least}"),
        "number" => format!("a number{least}"),
        "array" => {
            let example = schema["items"]["examples"][0].as_str().or(schema["default"][0].as_str());
            let example = example.map(|example| format!(", such as [{example:?}]")).unwrap_or_default();
            let some = if schema["minItems"].as_u64().is_some_and(|min| min > 0) { " of at least one" } else { "" };
            format!("a list{some}{example}")
        }
        _ => match schema["properties"].as_object() {
            Some(choices) if schema["maxProperties"] == 1 => {
                let text = if is_plain_or_secret(schema) { "a string, or " } else { "" };
                let example = if choices.contains_key("env") { ", such as { env = \"NAME\" }" } else { "" };
                format!("{text}a table with one of {}{example}", quoted(choices.keys().map(String::as_str)))
            }
            _ => "a table".to_owned(),
        },
    }
}

fn found(value: &Value, path: &KeyPath) -> String {
    match value {
        Value::Number(_) if path.has_secret_name() => format!("the number {MASK}"),
        Value::String(_) if path.has_secret_name() => format!("the string {MASK}"),
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
    }
}
