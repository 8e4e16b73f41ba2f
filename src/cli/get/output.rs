//! How objects are printed: as tables, as documents, as names.

use std::io::{self, Write as _};

use anstyle::Style;
use deltabus::object::ResourceType;
use serde_json::Value;

use super::Output;
use crate::cli::{report, yaml};

const HEADER: Style = Style::new().bold();

/// Between two columns, as kubectl has it.
const GAP: &str = "   ";

/// Prints the pages of a list as they come; a table is printed at the end, when its widths are known.
pub(super) enum ListPrinter<'a> {
    Table(TablePrinter),
    Document { output: Output, count: usize },
    Names { resource: &'a ResourceType, count: usize },
}

impl<'a> ListPrinter<'a> {
    pub(super) fn new(output: Output, resource: &'a ResourceType, with_namespace: bool) -> Self {
        match output {
            Output::Table | Output::Wide => Self::Table(TablePrinter::new(output == Output::Wide, with_namespace)),
            Output::Json | Output::Yaml => Self::Document { output, count: 0 },
            Output::Name => Self::Names { resource, count: 0 },
        }
    }

    /// Takes a page.
    pub(super) fn page(&mut self, mut page: Value) -> io::Result<()> {
        let items = match page["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        let mut out = io::stdout().lock();
        match self {
            Self::Table(table) => table.add(&page),
            Self::Names { resource, count } => {
                *count += items.len();
                for item in &items {
                    writeln!(out, "{}", name(resource, item))?;
                }
            }
            Self::Document { output, count } => {
                for item in items {
                    let begin = begin(*output, *count == 0);
                    write!(out, "{begin}{}", element(*output, item))?;
                    *count += 1;
                }
            }
        }
        Ok(())
    }

    /// Prints what is left; returns how many objects there were. Of none, only documents say anything.
    pub(super) fn finish(self) -> io::Result<usize> {
        match self {
            Self::Table(table) => {
                let count = table.rows.len();
                if count > 0 {
                    anstream::stdout().write_all(table.finish().as_bytes())?;
                }
                Ok(count)
            }
            Self::Names { count, .. } => Ok(count),
            Self::Document { output, count } => {
                let end = match (output, count) {
                    (Output::Yaml, 0) => "apiVersion: v1\nitems: []\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
                    (Output::Yaml, _) => "kind: List\nmetadata:\n  resourceVersion: \"\"\n",
                    (_, 0) => {
                        "{\n  \"apiVersion\": \"v1\",\n  \"items\": [],\n  \"kind\": \"List\",\n  \"metadata\": {\n    \
                         \"resourceVersion\": \"\"\n  }\n}\n"
                    }
                    _ => "\n  ],\n  \"kind\": \"List\",\n  \"metadata\": {\n    \"resourceVersion\": \"\"\n  }\n}\n",
                };
                io::stdout().lock().write_all(end.as_bytes())?;
                Ok(count.max(1)) // an empty List is an answer
            }
        }
    }
}

/// Returns what stands before an item of a document.
fn begin(output: Output, is_first: bool) -> &'static str {
    match (output, is_first) {
        (Output::Yaml, true) => "apiVersion: v1\nitems:\n",
        (Output::Yaml, false) => "",
        (_, true) => "{\n  \"apiVersion\": \"v1\",\n  \"items\": [\n",
        (_, false) => ",\n",
    }
}

/// Returns an item as it stands in a List.
fn element(output: Output, mut item: Value) -> String {
    item.sort_all_objects();
    if output == Output::Yaml {
        return yaml(&Value::Array(vec![item]));
    }
    let text = format!("{item:#}");
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns a document as YAML, its members sorted, as kubectl prints it.
pub(super) fn yaml(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    yaml::yaml(&value)
}

/// Returns `pod/web-1`, `deployment.apps/web`.
pub(super) fn name(resource: &ResourceType, object: &Value) -> String {
    let kind = resource.kind.to_ascii_lowercase();
    let group = if resource.group.is_empty() { String::new() } else { format!(".{}", resource.group) };
    format!("{kind}{group}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
}

/// Lays out the rows of Tables.
pub(super) struct TablePrinter {
    is_wide: bool,
    with_namespace: bool,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TablePrinter {
    pub(super) fn new(is_wide: bool, with_namespace: bool) -> Self {
        Self { is_wide, with_namespace, header: Vec::new(), rows: Vec::new() }
    }

    /// Takes a Table.
    pub(super) fn add(&mut self, table: &Value) {
        let columns = table["columnDefinitions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_shown = |column: &Value| self.is_wide || column["priority"].as_i64().unwrap_or_default() == 0;
        let shown: Vec<bool> = columns.iter().map(is_shown).collect();
        let names = columns.iter().filter(|column| is_shown(column)).map(|column| cell(&column["name"]).to_uppercase());
        let namespace = self.with_namespace.then(|| "NAMESPACE".to_owned());
        self.header = namespace.into_iter().chain(names).collect();
        for row in table["rows"].as_array().into_iter().flatten() {
            let namespace = self.with_namespace.then(|| cell(&row["object"]["metadata"]["namespace"]));
            let cells = row["cells"].as_array().into_iter().flatten().zip(&shown);
            let cells = cells.filter(|(_, shown)| **shown).map(|(value, _)| cell(value));
            self.rows.push(namespace.into_iter().chain(cells).collect());
        }
    }

    /// Returns the text, its header with colours for terminals.
    pub(super) fn finish(&self) -> String {
        let rows: Vec<_> = std::iter::once(&self.header).chain(&self.rows).collect();
        let text = report::aligned(&rows, GAP);
        let (header, rows) = text.split_once('\n').unwrap_or_default();
        format!("{HEADER}{header}{HEADER:#}\n{rows}")
    }
}

/// Returns the text of a cell, on one line and without what a terminal would obey.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.split_once('\n') {
        Some((first, _)) => format!("{}...", clean(first)),
        None => clean(&text),
    }
}

fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_show_what_is_not_wide_unless_asked() {
        let page = |name: &str| {
            json!({
                "columnDefinitions": [
                    {"name": "Name", "priority": 0}, {"name": "Ready", "priority": 0}, {"name": "Node", "priority": 1},
                ],
                "rows": [
                    {"cells": [name, 3, "n1"], "object": {"metadata": {"namespace": "a"}}},
                    {"cells": ["x", null, "two\nlines"], "object": {"metadata": {"namespace": "long-one"}}},
                ],
            })
        };
        let print = |is_wide, with_namespace| {
            let mut table = TablePrinter::new(is_wide, with_namespace);
            table.add(&page("web\x1b[31m"));
            anstream::adapter::strip_str(&table.finish()).to_string()
        };
        assert_eq!(print(false, false), "NAME      READY\nweb[31m   3\nx\n");
        assert_eq!(
            print(true, true),
            "NAMESPACE   NAME      READY   NODE\na           web[31m   3       n1\nlong-one    x                 two...\n"
        );
    }

    #[test]
    fn yaml_keeps_text_text() {
        let object = json!({"data": {"a": "yes", "b": "1", "c": "", "d": "x: y\n", "e": "null", "f": "1e3", "g": "~"}});
        let text = yaml(&object);
        for (key, plain) in [("a", "yes"), ("b", "1"), ("e", "null"), ("f", "1e3"), ("g", "~")] {
            assert!(!text.lines().any(|line| line.trim() == format!("{key}: {plain}")), "{text}");
        }
    }
}
