//! `deltabus get`: reads the cache of a running engine, as `kubectl get` reads a cluster.

mod output;

use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use deltabus::{
    discovery::{self, Catalog, Pattern},
    object::ResourceType,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{
    engine_client::{EngineArgs, EngineClient},
    report,
};

/// Objects in one page of a list.
const PAGE: usize = 500;

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const OBJECT_NAMES: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST_NAMES: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const EXAMPLES: &str = "\
Examples:

  deltabus get pods -A                                    all of them, as kubectl prints them
  deltabus get po web-1 -n shop -o yaml                   one object
  deltabus get deploy -n shop -l 'app in (web,api)'       by label
  deltabus get pods -A --index spec.nodeName=node-7       by an index of the configuration: no scan
  deltabus get nodes -o name | wc -l                      how many
  deltabus get certificates.cert-manager.io -A            a custom resource
  deltabus get pods --engine http://127.0.0.1:9090        another engine";

/// Reads what a running engine has cached.
///
/// Types are spelled as kubectl takes them: plural, singular, short name or kind, alone or with their group. kubectl
/// itself works, too: `kubectl --server http://127.0.0.1:8080 get pods`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// The type: pods, po, deployments.apps, Deployment; or TYPE/NAME.
    #[arg(value_name = "TYPE")]
    resource: String,
    /// One object; all of them without it.
    name: Option<String>,
    /// The namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    all_namespaces: bool,
    /// Label selector, for instance 'app in (web,api),!legacy'.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "name")]
    selector: Option<String>,
    /// The objects that have VALUE in an index of the configuration.
    #[arg(long, value_name = "INDEX=VALUE", value_parser = parse_index, conflicts_with = "name")]
    index: Option<(String, String)>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    engine: EngineArgs,
}

/// How objects are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Columns as kubectl's.
    #[default]
    Table,
    /// One JSON document: the object, or a List.
    Json,
    /// The same as YAML.
    Yaml,
    /// `pod/web-1`, a line each.
    Name,
    /// A table with more columns.
    Wide,
}

/// Splits `INDEX=VALUE` at the first `=` outside of brackets: `labels['a=b']=c` has its name up to the bracket's end.
fn parse_index(text: &str) -> Result<(String, String), String> {
    let start = text.rfind("]=").map_or(0, |bracket| bracket + 1);
    match text[start..].split_once('=') {
        Some((rest, value)) if start + rest.len() > 0 => Ok((text[..start + rest.len()].to_owned(), value.to_owned())),
        _ => Err("expected INDEX=VALUE, like spec.nodeName=node-7".to_owned()),
    }
}

/// Prints what was asked for.
pub(crate) fn get(args: &GetArgs) -> anyhow::Result<()> {
    args.engine.ask(async |engine| {
        let (resource, name) = args.resource_and_name()?;
        let resource = resolve(&engine, resource).await?;
        match name {
            Some(name) => print_object(args, &engine, &resource, name).await,
            None => print_list(args, &engine, &resource).await,
        }
    })
}

impl GetArgs {
    /// Returns the type and the name, which may be one word, `pod/web-1`.
    fn resource_and_name(&self) -> anyhow::Result<(&str, Option<&str>)> {
        if self.resource.contains(',') {
            bail!("unexpected resource type {:?}, expected one type: ask for each by itself", self.resource);
        }
        match (self.resource.split_once('/'), &self.name) {
            (Some((resource, name)), None) if !self.all_namespaces && !name.is_empty() => Ok((resource, Some(name))),
            (Some(_), _) => bail!("unexpected {:?}, expected TYPE/NAME alone, without -A", self.resource),
            (None, name) => Ok((&self.resource, name.as_deref())),
        }
    }
}

/// Finds the type among those that the engine serves.
async fn resolve(engine: &EngineClient, text: &str) -> anyhow::Result<ResourceType> {
    // One request tells an engine that is not there, in better words than discovery has.
    engine.get("/livez", "*/*").await?;
    let catalog = discovery::discover(&engine.access().client()?).await?;
    let pattern = Pattern::parse(text)?;
    if pattern.is_wildcard() {
        bail!("unexpected resource type {text:?}, expected one type");
    }
    match catalog.find_readable(&pattern) {
        Ok(served) => Ok(served.resource.clone()),
        Err(suggestions) => bail!("{}", unknown(engine.url(), text, &suggestions, &catalog)),
    }
}

fn unknown(url: &str, text: &str, suggestions: &[String], catalog: &Catalog) -> String {
    let said = format!("the engine at {url} does not watch {text:?}");
    if !suggestions.is_empty() {
        return format!("{said}; did you mean {}?", suggestions.join(" or "));
    }
    let mut known: Vec<_> = catalog.types().iter().map(|served| served.resource.qualified_name()).collect();
    known.sort();
    match known.len() {
        0 => format!("{said}; it watches nothing yet, see {url}/v1/resources"),
        1..=12 => format!("{said}; it watches {}", known.join(", ")),
        count => format!("{said}; it watches {count} other types, see {url}/v1/resources"),
    }
}

async fn print_object(
    args: &GetArgs,
    engine: &EngineClient,
    resource: &ResourceType,
    name: &str,
) -> anyhow::Result<()> {
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let path = format!("{}/{name}", resource.path(Some(&args.namespace)));
    let mut object: Value = read(args, engine, &path, OBJECT_NAMES).await?;
    match args.output {
        Output::Table | Output::Wide => {
            let mut printer = output::ListPrinter::new(args.output, resource, false);
            printer.page(object)?;
            printer.finish()?;
        }
        Output::Name => writeln!(io::stdout(), "{}", output::name(resource, &object))?,
        Output::Json => {
            object.sort_all_objects();
            writeln!(io::stdout(), "{object:#}")?;
        }
        Output::Yaml => write!(io::stdout(), "{}", output::yaml(&object))?,
    }
    Ok(())
}

async fn print_list(args: &GetArgs, engine: &EngineClient, resource: &ResourceType) -> anyhow::Result<()> {
    let namespace = (!args.all_namespaces).then_some(&*args.namespace).filter(|namespace| !namespace.is_empty());
    let mut printer = output::ListPrinter::new(args.output, resource, args.all_namespaces && resource.namespaced);
    let mut token: Option<String> = None;
    loop {
        let path = format!("{}?{}", resource.path(namespace), query(args, token.as_deref()));
        let page = read(args, engine, &path, LIST_NAMES).await?;
        token = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
        printer.page(page)?;
        if token.is_none() {
            break;
        }
    }
    if printer.finish()? == 0 {
        let place = namespace.filter(|_| resource.namespaced).map(|name| format!(" in {name} namespace"));
        anstream::eprintln!("No resources found{}.", place.unwrap_or_default());
    }
    Ok(())
}

/// Reads one answer; `names` is the form of it that names need. What the engine warns of goes to stderr, with the first page
/// only.
async fn read(args: &GetArgs, engine: &EngineClient, path: &str, names: &str) -> anyhow::Result<Value> {
    let is_document = matches!(args.output, Output::Json | Output::Yaml);
    let accept = match args.output {
        Output::Table | Output::Wide => TABLE,
        Output::Name => names,
        Output::Json | Output::Yaml => "application/json",
    };
    let answer = engine.get(path, accept).await?;
    let is_first = !path.contains("continue=");
    for warning in answer.warnings.iter().filter(|_| is_first) {
        // What was cut from objects shows in documents alone; which objects there are, everywhere.
        if is_document || warning.starts_with("only ") {
            report::note(warning);
        }
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("unexpected answer to {path}"))
}

fn query(args: &GetArgs, token: Option<&str>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &PAGE.to_string());
    if let Some(selector) = &args.selector {
        query.append_pair("labelSelector", selector);
    }
    if let Some((index, value)) = &args.index {
        query.append_pair("index", index).append_pair("value", value);
    }
    if let Some(token) = token {
        query.append_pair("continue", token);
    }
    query.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_and_its_value_are_split_at_the_first_equals_sign_behind_brackets() {
        let split = |text| parse_index(text).ok();
        let pair = |index: &str, value: &str| Some((index.to_owned(), value.to_owned()));
        assert_eq!(split("spec.nodeName=node-7"), pair("spec.nodeName", "node-7"));
        assert_eq!(split("labels['a=b']=c"), pair("labels['a=b']", "c"));
        assert_eq!(split("owner="), pair("owner", ""));
        assert_eq!(split("a=b=c"), pair("a", "b=c"));
        assert_eq!((split("x"), split("=x")), (None, None));
    }
}
