//! References to secrets in a configuration: `{ env = "NAME" }` or `{ file = "/path" }`, never the secret itself.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::key_path::KeyPath;
use crate::secret::{PlainOrSecret, SecretRef, printable_url};

/// Text that is printed in place of a secret.
pub(crate) const MASK: &str = "***";

/// Words that mark secrets: if the name of a key contains one of them, the key's value may be secret.
const SECRET_NAMES: [&str; 12] = [
    "auth",
    "bearer",
    "cookie",
    "credential",
    "header",
    "key",
    "pass",
    "private",
    "secret",
    "signature",
    "token",
    "url",
];

/// Returns true if the value of a key with this name may be secret. False for `secrets`: in `[redact]`, this key names a treatment.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    name != "secrets" && SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Returns the lines of a text with `***` in place of values that may be secret. The text may be invalid TOML; a doubtful
/// line is hidden.
pub(crate) fn printable_lines<'a>(text: &'a str) -> Vec<Cow<'a, str>> {
    let (mut in_section, mut in_statement, mut continues) = (false, false, false);
    let mut delimiter: Option<&str> = None;
    let printable = |line: &'a str| -> Cow<'a, str> {
        let trimmed = line.trim();
        let (is_header, key) = (is_header(trimmed), trimmed.split_once('=').map(|(key, _)| key.trim()));
        let has_key = key.is_some_and(is_key);
        let begins = delimiter.is_none() && !continues && (is_header || has_key);
        if begins && is_header {
            (in_section, in_statement) = (section(trimmed).has_secret_name(), false);
        } else if begins {
            in_statement = names_secret(trimmed);
        } else {
            in_statement |= names_secret(trimmed) || (key.is_none() && is_secret_name(trimmed));
        }
        let mut rest = trimmed;
        while let Some((at, quotes)) = next_delimiter(rest, delimiter) {
            delimiter = if delimiter.is_none() { Some(quotes) } else { None };
            rest = &rest[at + quotes.len()..];
        }
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            // A `#` may begin a comment or be part of a string.
            let mut ends = trimmed.match_indices('#').map(|(at, _)| &trimmed[..at]).chain([trimmed]);
            continues = ends.any(|code| code.trim_end().ends_with(['{', '[', ',']));
        }
        match (in_section || in_statement, begins, line.split_once('=')) {
            (true, true, _) if is_header => line.into(),
            (true, true, Some((key, _))) | (false, false, Some((key, _))) => format!("{key}= {MASK}").into(),
            (true, ..) => MASK.into(),
            (false, ..) => line.into(),
        }
    };
    text.lines().map(printable).collect()
}

/// Finds the next delimiter of a multi-line string. Within a string, only the delimiter `open` counts, because only it ends the
/// string.
fn next_delimiter(text: &str, open: Option<&'static str>) -> Option<(usize, &'static str)> {
    let delimiters = ["\"\"\"", "'''"].into_iter().filter(|quotes| open.is_none_or(|open| open == *quotes));
    delimiters.filter_map(|quotes| Some((text.find(quotes)?, quotes))).min()
}

fn is_header(line: &str) -> bool {
    let code = line.split('#').next().unwrap_or_default().trim_end();
    code.starts_with('[') && code.ends_with(']') && !code.contains([',', '='])
}

impl KeyPath {
    /// Returns true if the value of this key may be secret. The names of resources and handlers do not count.
    pub(crate) fn has_secret_name(&self) -> bool {
        let names_entries = |section: &String| section == "resources" || section == "handlers";
        let skipped = if self.0.first().is_some_and(names_entries) { 2 } else { 0 };
        self.0.iter().skip(skipped).any(|name| is_secret_name(name))
    }
}

fn section(header: &str) -> KeyPath {
    let names: Vec<&str> = header.trim_matches(['[', ']', ' ']).split('.').collect();
    KeyPath::new(&names)
}

fn is_key(text: &str) -> bool {
    let is_quoted =
        text.len() > 1 && ['"', '\''].iter().any(|quote| text.starts_with(*quote) && text.ends_with(*quote));
    is_quoted || (!text.is_empty() && !text.contains(|c: char| !c.is_alphanumeric() && !"_-.\"'".contains(c)))
}

/// Returns true if a line may contain a secret: it has a key with a secret name, also in an inline table, or a URL with a user or a
/// query.
fn names_secret(line: &str) -> bool {
    let ends_key = |c: char| c.is_whitespace() || ",{}[]=".contains(c);
    let mut keys = line.rsplit_once('=').map_or("", |(keys, _)| keys).split('=');
    let has_url = line.split("://").skip(1).any(|rest| rest.contains(['@', '?']));
    has_url || keys.any(|key| key.trim_end().rsplit(ends_key).next().is_some_and(is_secret_name))
}

impl JsonSchema for PlainOrSecret {
    fn schema_name() -> Cow<'static, str> {
        "PlainOrSecret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = SecretRef::json_schema(generator);
        schema.insert("type".to_owned(), ["string", "object"].as_slice().into());
        schema.insert("description".to_owned(), "Text, or the location of a secret.".into());
        schema
    }
}

/// Replaces the locations of secrets in a serialized configuration by `***`. A location is a table with only `env` or `file`.
/// Also removes the secret parts of plain URLs.
pub(crate) fn mask(tree: &mut toml::Table) {
    let is_alone = tree.len() == 1;
    for (key, value) in tree.iter_mut() {
        match value {
            toml::Value::String(place) if is_alone && (key == "env" || key == "file") => "***".clone_into(place),
            toml::Value::String(url) if key == "url" => *url = printable_url(url),
            toml::Value::Table(table) => mask(table),
            toml::Value::Array(elements) => elements.iter_mut().filter_map(toml::Value::as_table_mut).for_each(mask),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_references_in_table_lists_are_masked() {
        let mut tree = toml::from_str("tokens = [{ name = \"a\", token = { file = \"/place\" } }]").unwrap();
        mask(&mut tree);
        assert!(!tree.to_string().contains("/place"), "{tree}");
    }
}
