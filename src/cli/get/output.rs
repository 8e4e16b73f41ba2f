//! Output of objects: tables, documents, names, and values of paths.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _, Write as _},
};

use crate::{
    object::ResourceType,
    printable::{is_deceptive, printable, printable_json, printable_lines},
};
use anyhow::bail;
use serde_json::{Value, json};

use super::{
    GetArgs, Output, Target,
    json_path::{FindError, JsonPath, find},
    sort::sort_by,
};
use crate::cli::{
    report::{self, HEADER},
    yaml,
};

/// Gap between two columns, the same as in kubectl.
const GAP: &str = "   ";

/// Collects pages with the objects of one or several types. Then prints all objects together.
pub(super) struct ListPrinter<'a> {
    args: &'a GetArgs,
    targets: &'a [Target],
    tables: Vec<TablePrinter<'a>>,
    /// Objects to print; empty if the output is a table.
    items: Vec<(&'a ResourceType, Value)>,
}

impl<'a> ListPrinter<'a> {
    pub(super) fn new(args: &'a GetArgs, targets: &'a [Target]) -> Self {
        Self { args, targets, tables: Vec::new(), items: Vec::new() }
    }

    /// Begins a type. The next calls of [`Self::page`] add the pages of this type.
    pub(super) fn begin(&mut self, resource: &'a ResourceType) {
        if self.args.output.is_table() {
            let prefix = if self.targets.len() > 1 { kind(resource) + "/" } else { String::new() };
            let (header, rows) = (Vec::new(), Vec::new());
            self.tables.push(TablePrinter { args: self.args, resource, prefix, header, rows });
        }
    }

    /// Adds a page: a Table, or a List of objects.
    pub(super) fn page(&mut self, resource: &'a ResourceType, mut page: Value) {
        if let Some(table) = self.tables.last_mut() {
            table.add(page);
        } else if let Value::Array(items) = page["items"].take() {
            self.items.extend(items.into_iter().map(|item| (resource, item)));
        }
    }

    /// Prints the collected objects. Returns the number of printed rows or names. For JSON, YAML and `-o jsonpath`, returns 1.
    pub(super) fn finish(mut self) -> anyhow::Result<usize> {
        let args = self.args;
        self.sort()?;
        let with_header = !args.no_headers;
        let mut out = io::stdout().lock();
        let shown = Shown { on_terminal: out.is_terminal() };
        match &args.output {
            Output::Table | Output::Wide => {
                let tables: Vec<_> = self.tables.iter().filter(|table| !table.rows.is_empty()).collect();
                let texts: Vec<_> = tables.iter().map(|table| table.text(with_header)).collect();
                // Only tables have colours; everything else is printed as it is.
                anstream::AutoStream::auto(out).write_all(texts.join("\n").as_bytes())?;
                return Ok(tables.iter().map(|table| table.rows.len()).sum());
            }
            Output::Name => {
                let names = self.items.iter().map(|(resource, object)| name(resource, object));
                names.map(|name| shown.line(name)).try_for_each(|name| writeln!(out, "{name}"))?;
                return Ok(self.items.len());
            }
            Output::CustomColumns(columns) => {
                let objects = self.items.iter().map(|(_, object)| object);
                out.write_all(columns.text(objects, with_header)?.as_bytes())?;
                return Ok(self.items.len());
            }
            Output::JsonPath(template) => {
                let text = self.document().map(|document| template.fill(&document)).transpose()?;
                out.write_all(shown.lines(&text.unwrap_or_default()).as_bytes())?;
            }
            format @ (Output::Json | Output::Yaml) => {
                if let Some(mut document) = self.document() {
                    document.sort_all_objects();
                    let is_json = matches!(format, Output::Json);
                    let text = if is_json { format!("{document:#}\n") } else { yaml::yaml(&document) };
                    let text = if is_json { shown.json(&text) } else { shown.lines(&text) };
                    out.write_all(text.as_bytes())?;
                }
            }
        }
        Ok(1)
    }

    /// Sorts the rows or objects by `--sort-by`. A path that no object has is an error, as in kubectl.
    fn sort(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.args.sort_by else { return Ok(()) };
        let mut is_found = sort_by(&mut self.items, path, |(_, object)| object)?;
        let mut count = self.items.len();
        for table in &mut self.tables {
            is_found |= sort_by(&mut table.rows, path, |(_, object)| object)?;
            count += table.rows.len();
        }
        if count > 1 && !is_found {
            bail!("--sort-by {path}: no object has a value at this path");
        }
        Ok(())
    }

    /// Returns the document to print. If the user requests a single object, this is the object, or `None` if the object is missing.
    /// Otherwise it is a List of all objects.
    fn document(&mut self) -> Option<Value> {
        let mut objects = self.items.drain(..).map(|(_, object)| object);
        if matches!(self.targets, [(_, names)] if names.len() == 1) {
            return objects.next();
        }
        let items: Vec<_> = objects.collect();
        Some(json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}))
    }
}

/// Form in which texts of the cluster are printed. On a terminal, characters that could control it are escaped. Elsewhere the texts
/// are unchanged.
#[derive(Clone, Copy)]
struct Shown {
    on_terminal: bool,
}

impl Shown {
    fn line(self, text: String) -> String {
        if self.on_terminal { printable(&text) } else { text }
    }

    fn lines(self, text: &str) -> Cow<'_, str> {
        if self.on_terminal { printable_lines(text) } else { text.into() }
    }

    fn json(self, text: &str) -> Cow<'_, str> {
        if self.on_terminal { printable_json(text) } else { text.into() }
    }
}

/// Returns `pod/web-1`, `deployment.apps/web`.
fn name(resource: &ResourceType, object: &Value) -> String {
    format!("{}/{}", kind(resource), object["metadata"]["name"].as_str().unwrap_or_default())
}

/// Returns `pod`, `deployment.apps`.
fn kind(resource: &ResourceType) -> String {
    let kind = resource.kind.to_ascii_lowercase();
    if resource.group.is_empty() { kind } else { format!("{kind}.{}", resource.group) }
}

/// Columns of `-o custom-columns=`, each with a header and a path.
#[derive(Clone, Debug)]
pub(super) struct Columns(Vec<(String, JsonPath)>);

impl Columns {
    /// Parses `NAME:.metadata.name,NODE:.spec.nodeName`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let column = |column: &str| match column.split_once(':') {
            Some((header, path)) if !header.is_empty() && !path.is_empty() => {
                Ok((header.to_owned(), JsonPath::parse(path)?))
            }
            _ => bail!("unexpected column {column:?}, expected HEADER:PATH, as in NAME:.metadata.name"),
        };
        text.split(',').map(column).collect::<anyhow::Result<_>>().map(Self)
    }

    fn text<'a>(&self, objects: impl Iterator<Item = &'a Value>, with_header: bool) -> Result<String, FindError> {
        let header = with_header.then(|| Ok(self.0.iter().map(|(header, _)| header.clone()).collect()));
        let cells = objects.map(|object| {
            let cell = |(_, path): &(String, JsonPath)| {
                let values = find(path, object)?;
                let texts: Vec<_> = values.into_iter().map(|value| cell(&go_text(value).into())).collect();
                Ok(if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") })
            };
            self.0.iter().map(cell).collect()
        });
        let rows = header.into_iter().chain(cells).collect::<Result<Vec<Vec<String>>, FindError>>()?;
        Ok(report::aligned(&rows, GAP))
    }
}

/// Returns a value in Go's form, in which kubectl prints the cells of custom columns: `map[app:web]`, `[a b]`.
fn go_text(value: &Value) -> String {
    let joined = |texts: Vec<String>| texts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(go_text).collect())),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            format!(
                "map[{}]",
                joined(members.iter().map(|(name, value)| format!("{name}:{}", go_text(value))).collect())
            )
        }
        other => other.to_string(),
    }
}

/// Prints the rows of all `Table`s of one resource type.
struct TablePrinter<'a> {
    args: &'a GetArgs,
    resource: &'a ResourceType,
    /// Text before each name: `pod/` if several types are printed, else empty.
    prefix: String,
    header: Vec<String>,
    /// Cells and object of each row. The object is `null` unless the rows will be sorted.
    rows: Vec<(Vec<String>, Value)>,
}

impl TablePrinter<'_> {
    /// Adds the rows of a Table.
    fn add(&mut self, mut table: Value) {
        let columns = table["columnDefinitions"].take();
        let columns = columns.as_array().map(Vec::as_slice).unwrap_or_default();
        let GetArgs { output, all_namespaces, show_labels, label_columns, sort_by, .. } = self.args;
        let is_wide = matches!(output, Output::Wide);
        let with_namespace = *all_namespaces && self.resource.namespaced;
        let is_shown = |column: &Value| is_wide || column["priority"].as_i64().unwrap_or_default() == 0;
        let names = columns.iter().filter(|column| is_shown(column)).map(|column| cell(&column["name"]).to_uppercase());
        let namespace = with_namespace.then(|| "NAMESPACE".to_owned());
        let label_headers =
            label_columns.iter().map(|label| clean(label.rsplit('/').next().unwrap_or(label)).to_uppercase());
        let all_labels = show_labels.then(|| "LABELS".to_owned());
        self.header = namespace.into_iter().chain(names).chain(label_headers).chain(all_labels).collect();
        for row in table["rows"].as_array_mut().into_iter().flatten() {
            let object = row["object"].take();
            let metadata = &object["metadata"];
            let namespace = with_namespace.then(|| cell(&metadata["namespace"]));
            let label_cells = label_columns.iter().map(|label| cell(&metadata["labels"][label]));
            let all_labels = show_labels.then(|| labels(&metadata["labels"]));
            let cells = row["cells"].as_array().into_iter().flatten().zip(columns);
            let cells = cells.filter(|(_, column)| is_shown(column)).map(|(value, column)| {
                let prefix = if column["format"] == "name" { &*self.prefix } else { "" };
                format!("{prefix}{}", cell(value))
            });
            let cells = namespace.into_iter().chain(cells).chain(label_cells).chain(all_labels).collect();
            self.rows.push((cells, if sort_by.is_some() { object } else { Value::Null }));
        }
    }

    /// Returns the table as text, with its header in bold.
    fn text(&self, with_header: bool) -> String {
        let header = with_header.then_some(&self.header);
        let rows: Vec<_> = header.into_iter().chain(self.rows.iter().map(|(cells, _)| cells)).collect();
        let text = report::aligned(&rows, GAP);
        match text.split_once('\n') {
            Some((header, rows)) if with_header => format!("{HEADER}{header}{HEADER:#}\n{rows}"),
            _ => text,
        }
    }
}

/// Returns `app=web,tier=front`.
fn labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let mut pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={}", cell(value))).collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// Returns the text of a cell on one line, without characters that could control a terminal.
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
    text.chars().filter(|letter| !is_deceptive(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn tables_hide_wide_columns_by_default() {
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
        let [group, version, kind, plural] = ["", "v1", "Pod", "pods"].map(str::to_owned);
        let resource = ResourceType { group, version, kind, plural, namespaced: true };
        let print = |options: &str| {
            let line = ["deltabus", "get", "pods"].into_iter().chain(options.split_whitespace());
            let Command::Get(args) = Cli::try_parse_from(line).unwrap().command else { panic!("another command") };
            let (prefix, header, rows) = (String::new(), Vec::new(), Vec::new());
            let mut table = TablePrinter { args: &args, resource: &resource, prefix, header, rows };
            table.add(page("web\x1b[31m\u{202e}\u{9b}\u{2028}"));
            anstream::adapter::strip_str(&table.text(true)).to_string()
        };
        assert_eq!(print(""), "NAME      READY\nweb[31m   3\nx\n");
        assert_eq!(
            print("-o wide -A"),
            "NAMESPACE   NAME      READY   NODE\na           web[31m   3       n1\nlong-one    x                 two...\n"
        );
    }

    #[test]
    fn custom_columns_print_values_as_kubectl() {
        let object = json!({"metadata": {"name": "a", "labels": {"b": "x", "a": "y"}},
            "spec": {"hosts": ["one", "two"], "none": null, "ratio": 2.5, "on": true}});
        let columns = Columns::parse(
            "N:metadata.name,L:.metadata.labels,H:{.spec.hosts},A:.spec.hosts[*],Z:.spec.none,R:.spec.ratio,O:.spec.on,X:.x",
        );
        let text = columns.unwrap().text(std::iter::once(&object), false).unwrap();
        assert_eq!(text, "a   map[a:y b:x]   [one two]   one,two   <nil>   2.5   true   <none>\n");
        let error = Columns::parse("H:.spec.hosts[2]").unwrap().text(std::iter::once(&object), true).unwrap_err();
        assert!(error.to_string().contains("index 2 is out of bounds"), "{error}");
    }

    #[test]
    fn names_control_no_terminal_and_are_unchanged_elsewhere() {
        let forged = "x\r\nrole/admin\u{1b}[2J\u{9b}";
        let (terminal, pipe) = (Shown { on_terminal: true }, Shown { on_terminal: false });
        assert_eq!(terminal.line(forged.to_owned()), "x\\r\\nrole/admin\\u{1b}[2J\\u{9b}");
        assert_eq!(terminal.lines("a\nb\u{9b}"), "a\nb\\u{9b}");
        assert_eq!(terminal.json("\"\u{9b}\""), "\"\\u009b\"");
        assert_eq!((pipe.line(forged.to_owned()).as_str(), &*pipe.lines(forged)), (forged, forged));
    }

    #[test]
    fn yaml_keeps_strings_as_strings() {
        let object = json!({"data": {"a": "yes", "b": "1", "c": "", "d": "x: y\n", "e": "null", "f": "1e3", "g": "~"}});
        let text = yaml::yaml(&object);
        for (key, plain) in [("a", "yes"), ("b", "1"), ("e", "null"), ("f", "1e3"), ("g", "~")] {
            assert!(!text.lines().any(|line| line.trim() == format!("{key}: {plain}")), "{text}");
        }
    }
}
