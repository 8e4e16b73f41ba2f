//! `deltabus get`: reads the cache of a running engine, like `kubectl get` reads a cluster.

mod json_path;
mod output;
mod sort;

use std::{collections::BTreeMap, io::Write as _, str::FromStr};

use crate::{
    discovery::{self, Assumed, Catalog, Pattern},
    object::ResourceType,
};
use anyhow::{Context as _, bail};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use self::{
    json_path::{JsonPath, Template},
    output::{Columns, ListPrinter},
};
use super::{
    BadUsage,
    engine_client::{EngineArgs, EngineClient},
    report,
};

/// Number of objects in one page of a list.
const PAGE: usize = 500;

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const OBJECT_NAMES: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST_NAMES: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const EXAMPLES: &str = "\
Examples:

  deltabus get pods -A                                    all pods, as kubectl prints them
  deltabus get po web-1 -n shop -o yaml                   one object
  deltabus get deploy,po -n shop -l 'app in (web,api)'    two types, by label
  deltabus get pods -A --index spec.nodeName=node-7       by an index of the configuration: no scan
  deltabus get pods -A --field-selector status.phase=Failed
                                                          by a field
  deltabus get pods --sort-by=.metadata.creationTimestamp
                                                          oldest first
  deltabus get pods -o jsonpath='{.items[*].status.podIP}'
                                                          values of a path
  deltabus get nodes -L topology.kubernetes.io/zone       a label as a column
  deltabus get nodes -o name | wc -l                      number of nodes
  deltabus get all -n shop                                pods, services, workloads
  deltabus get certificates.cert-manager.io -A            a custom resource
  deltabus get pods --engine http://127.0.0.1:9090        another engine";

/// Reads objects from the cache of a running engine.
///
/// Types are spelled as for kubectl: plural, singular, short name or kind, with or without their group. kubectl itself works
/// too: `kubectl --server http://127.0.0.1:8080 get pods`.
///
/// `get` does not watch: `deltabus tail` prints changes as they happen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of kubectl")]
pub(crate) struct GetArgs {
    /// Types separated by commas (pods, po, deployments.apps, Deployment), or TYPE/NAME.
    #[arg(value_name = "TYPE")]
    resource: String,
    /// Names of objects, or further TYPE/NAME arguments. Without a name, all objects are read.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace of the objects.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Reads objects of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "names"])]
    all_namespaces: bool,
    /// Label selector, for instance 'app in (web,api),!legacy'.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
    /// Field selector, for instance 'status.phase!=Running,spec.nodeName=node-7'.
    #[arg(long, value_name = "SELECTOR", conflicts_with = "names")]
    field_selector: Option<String>,
    /// Selects the objects that have VALUE in an index of the configuration.
    #[arg(long, value_name = "INDEX=VALUE", value_parser = parse_index, conflicts_with = "names")]
    index: Option<(String, String)>,
    /// Path of the field to sort by, for instance .metadata.creationTimestamp.
    #[arg(long, value_name = "PATH", value_parser = JsonPath::parse)]
    sort_by: Option<JsonPath>,
    /// Format: table, wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=HEADER:PATH,...
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    /// Prints tables without the header.
    #[arg(long)]
    no_headers: bool,
    /// Prints a column of a table for each of these labels, separated by commas.
    #[arg(short = 'L', long, value_name = "LABEL,...", value_delimiter = ',')]
    label_columns: Vec<String>,
    /// Prints the labels as the last column of a table.
    #[arg(long)]
    show_labels: bool,
    /// Not supported: prints a hint to use `deltabus tail`.
    #[arg(short, long, hide = true)]
    watch: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Format of the output.
#[derive(Clone, Debug)]
enum Output {
    Table,
    Wide,
    Name,
    Json,
    Yaml,
    JsonPath(Template),
    CustomColumns(Columns),
}

impl FromStr for Output {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text.split_once('=').unwrap_or((text, "")) {
            ("table", "") => Self::Table,
            ("wide", "") => Self::Wide,
            ("name", "") => Self::Name,
            ("json", "") => Self::Json,
            ("yaml", "") => Self::Yaml,
            ("jsonpath", template) => Self::JsonPath(Template::parse(template)?),
            ("custom-columns", columns) => Self::CustomColumns(Columns::parse(columns)?),
            _ => bail!("expected table, wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=HEADER:PATH,..."),
        })
    }
}

impl Output {
    fn is_table(&self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Splits `INDEX=VALUE` at the last `=` that directly follows a `]`. If there is none, splits at the first `=`. The index in
/// `labels['a=b']=c` is thus `labels['a=b']`.
fn parse_index(text: &str) -> Result<(String, String), String> {
    let start = text.rfind("]=").map_or(0, |bracket| bracket + 1);
    match text[start..].split_once('=') {
        Some((rest, value)) if start + rest.len() > 0 => Ok((text[..start + rest.len()].to_owned(), value.to_owned())),
        _ => Err("expected INDEX=VALUE, like spec.nodeName=node-7".to_owned()),
    }
}

/// Resource type, and the names of the objects to print. An empty list of names means all objects of the type.
type Target = (ResourceType, Vec<String>);

/// Prints the objects that the arguments name.
pub(crate) async fn get(args: &GetArgs) -> anyhow::Result<()> {
    if args.watch {
        let place = if args.all_namespaces { String::new() } else { format!(" -n {}", args.namespace) };
        let types = args.resource.replace(',', " ");
        return Err(BadUsage::of(format!("get cannot watch; use `deltabus tail {types}{place}`")).into());
    }
    let engine = args.engine.connect()?;
    let named = args.types_and_names()?;
    // If no engine listens, this request fails with a clearer message than discovery.
    engine.get("/livez", "*/*").await?;
    let catalog = discovery::discover(&engine.access.client()).await?;
    let mut targets = Vec::<Target>::new();
    for (text, names) in named {
        match resolve(&engine.url, &catalog, &text) {
            Ok(resource) => targets.push((resource, names)),
            Err(error) => {
                let members: Vec<_> =
                    catalog.find_category(&text).map(|served| (served.resource.clone(), names.clone())).collect();
                if members.is_empty() {
                    return Err(error);
                }
                targets.extend(members);
            }
        }
    }
    print(args, &engine, &targets).await
}

impl GetArgs {
    /// Returns each type with the names of its objects; an empty list of names means all objects.
    fn types_and_names(&self) -> anyhow::Result<Vec<(String, Vec<String>)>> {
        if !self.resource.contains('/') {
            let types = self.resource.split(',').filter(|name| !name.is_empty());
            return Ok(types.map(|name| (name.to_owned(), self.names.clone())).collect());
        }
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for text in std::iter::once(&self.resource).chain(&self.names) {
            match text.split_once('/') {
                Some((resource, name)) if !resource.is_empty() && !name.is_empty() && !self.all_namespaces => {
                    match found.iter_mut().find(|(known, _)| known == resource) {
                        Some((_, names)) => names.push(name.to_owned()),
                        None => found.push((resource.to_owned(), vec![name.to_owned()])),
                    }
                }
                _ => bail!("unexpected {text:?}, expected TYPE/NAME, without -A"),
            }
        }
        Ok(found)
    }

    fn query(&self, token: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        query.extend_pairs(self.selector.iter().map(|selector| ("labelSelector", selector)));
        query.extend_pairs(self.field_selector.iter().map(|selector| ("fieldSelector", selector)));
        if let Some((index, value)) = &self.index {
            query.append_pair("index", index).append_pair("value", value);
        }
        if self.output.is_table() && self.sort_by.is_some() {
            query.append_pair("includeObject", "Object");
        }
        query.extend_pairs(token.map(|token| ("continue", token)));
        query.finish()
    }
}

/// Finds the type that `text` names, among the types that the engine serves.
fn resolve(url: &str, catalog: &Catalog, text: &str) -> anyhow::Result<ResourceType> {
    let pattern = Pattern::parse(text)?;
    if pattern.is_wildcard() {
        bail!("unexpected resource type {text:?}, expected one type, such as pods");
    }
    let suggestions = match catalog.find_readable(&pattern) {
        Ok(served) => return Ok(served.resource.clone()),
        Err(suggestions) => suggestions,
    };
    let fact = format!("the engine at {url} does not watch {text:?}");
    // The name of a built-in type is not a misspelling, so no similar type is suggested for it.
    let built_in = Assumed::of(&BTreeMap::new(), &[]).catalog.find_readable(&pattern).is_ok();
    if !built_in && !suggestions.is_empty() {
        bail!("{fact}; did you mean {}?", suggestions.join(" or "));
    }
    let mut known: Vec<_> = catalog.types().iter().map(|served| served.resource.qualified_name()).collect();
    known.sort();
    let watched = match known.len() {
        0 => format!("nothing yet, see {url}/v1/resources"),
        1..=12 => known.join(", "),
        count => format!("{count} other types, see {url}/v1/resources"),
    };
    bail!(
        "{fact}; it watches {watched}. To watch more, add the type to `match` of a [resources] entry in its configuration"
    )
}

/// Prints the objects of the targets. Then reports the objects that were not found.
async fn print(args: &GetArgs, engine: &EngineClient, targets: &[Target]) -> anyhow::Result<()> {
    let mut printer = ListPrinter::new(args, targets);
    let mut missing = Vec::new();
    for (resource, names) in targets {
        printer.begin(resource);
        if names.is_empty() {
            list(args, engine, resource, &mut printer).await?;
        }
        for name in names {
            let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
            let include = if args.sort_by.is_some() { "?includeObject=Object" } else { "" };
            let path = format!("{}/{encoded}{include}", resource.path(Some(&args.namespace)));
            match read(args, engine, &path, OBJECT_NAMES).await {
                Ok(page) if args.output.is_table() => printer.page(resource, page),
                Ok(object) => printer.page(resource, json!({"items": [object]})),
                Err(error) => missing.push(error),
            }
        }
    }
    let count = printer.finish()?;
    if count == 0 && targets.iter().all(|(_, names)| names.is_empty()) {
        let namespaced = targets.iter().any(|(resource, _)| resource.namespaced);
        let place = (namespaced && !args.all_namespaces).then(|| format!(" in {} namespace", args.namespace));
        drop(writeln!(anstream::stderr(), "No resources found{}.", place.unwrap_or_default()));
    }
    let Some(last) = missing.pop() else { return Ok(()) };
    for error in &missing {
        report::failure(&format!("{error:#}"));
    }
    Err(last)
}

async fn list<'a>(
    args: &GetArgs,
    engine: &EngineClient,
    resource: &'a ResourceType,
    printer: &mut ListPrinter<'a>,
) -> anyhow::Result<()> {
    let namespace = (!args.all_namespaces).then_some(&*args.namespace).filter(|namespace| !namespace.is_empty());
    let mut token: Option<String> = None;
    loop {
        let path = format!("{}?{}", resource.path(namespace), args.query(token.as_deref()));
        let page = read(args, engine, &path, LIST_NAMES).await?;
        token = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
        printer.page(resource, page);
        if token.is_none() {
            return Ok(());
        }
    }
}

/// Sends a request and reads the response. For `-o name`, requests the media type `names`. Prints the warnings of the engine to
/// stderr. For a list, prints only the warnings of the first page.
async fn read(args: &GetArgs, engine: &EngineClient, path: &str, names: &str) -> anyhow::Result<Value> {
    let accept = match args.output {
        Output::Table | Output::Wide => TABLE,
        Output::Name if args.sort_by.is_none() => names,
        _ => "application/json",
    };
    let answer = engine.get(path, accept).await?;
    let is_document = matches!(args.output, Output::Json | Output::Yaml);
    let is_first = !path.contains("continue=");
    for warning in answer.warnings.iter().filter(|_| is_first) {
        // Warnings about omitted objects are shown in every format. Warnings about removed fields are shown only with JSON and
        // YAML.
        if is_document || warning.starts_with("only ") {
            report::note(warning);
        }
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("unexpected answer to {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_split_behind_brackets() {
        let split = |text| parse_index(text).ok();
        let pair = |index: &str, value: &str| Some((index.to_owned(), value.to_owned()));
        assert_eq!(split("spec.nodeName=node-7"), pair("spec.nodeName", "node-7"));
        assert_eq!(split("labels['a=b']=c"), pair("labels['a=b']", "c"));
        assert_eq!(split("owner="), pair("owner", ""));
        assert_eq!(split("a=b=c"), pair("a", "b=c"));
        assert_eq!((split("x"), split("=x")), (None, None));
    }
}
