//! `deltabus resources`: types of the server, the entries that match them, and what RBAC allows.

use std::io;

use crate::{
    config::{Config, Loaded},
    discovery::{Catalog, Conflict, Resolution, Selection, ServedType, Unmatched, identity},
    object::ResourceType,
};
use anstyle::{AnsiColor, Style};
use clap::Args;
use serde_json::{Value, json};

use super::{
    ConfigArgs,
    report::{self, TableOutput},
    server::{Rights, ServerArgs},
};

const REFUSED: Style = AnsiColor::Red.on_default();
const UNKNOWN: Style = AnsiColor::Yellow.on_default();
const UNMATCHED: Style = Style::new().dimmed();

/// Shows which types a configuration watches, which entry and pattern match each type, and whether this user may list and
/// watch it.
///
/// If several patterns match a type, it belongs to the most specific one. Patterns without a type are reported on stderr.
#[derive(Debug, Args)]
pub(crate) struct ResourcesArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Also shows types that no entry matches, and types that cannot be watched.
    #[arg(long)]
    all: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: TableOutput,
}

/// Row of the table: a type, with the entry and the pattern that select it.
struct Row<'a> {
    served: &'a ServedType,
    owner: Option<(&'a str, usize)>,
    rights: Rights,
}

/// Prints the types.
pub(crate) async fn resources(args: &ResourcesArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    let server = ServerArgs::of(&config.kube, "").await?;
    let (catalog, selection) = server.select(&config).await?;
    let mut rows = rows(&catalog, &selection);
    let others = rows.iter().filter(|row| row.owner.is_none()).count();
    rows.retain(|row| args.all || row.owner.is_some());
    let watchable: Vec<_> = rows.iter_mut().filter(|row| row.served.is_watchable()).collect();
    let entry = |row: &Row<'_>| row.owner.and_then(|(entry, _)| config.resources.get(entry));
    let asked: Vec<_> = watchable.iter().map(|row| (&row.served.resource, entry(row))).collect();
    for (row, rights) in watchable.into_iter().zip(server.rights(&asked).await) {
        row.rights = rights;
    }
    match args.output {
        TableOutput::Table => {
            print_table(&config, &rows)?;
            tell(&config, &catalog, &selection);
            if !args.all && others > 0 {
                let others = report::counted(others, "type");
                report::note(&format!("no entry matches {others} of the server; --all shows them"));
            }
        }
        TableOutput::Json => report::print_json(&document(&config, &catalog, &selection, &rows))?,
    }
    Ok(())
}

/// Returns the rows in the order of the catalog. A type has one row for each entry that watches it. A type that no entry watches
/// has one row.
fn rows<'a>(catalog: &'a Catalog, selection: &'a Selection) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for served in catalog.types() {
        let row = |owner| Row { served, owner, rights: Rights::default() };
        let owners = selection.owned.iter().filter(|owned| owned.resource == served.resource);
        rows.extend(owners.map(|owned| row(Some((&*owned.entry, owned.pattern)))));
        // another version of an owned type is not listed again
        let is_owned = selection.owned.iter().any(|owned| identity(&owned.resource) == identity(&served.resource));
        if served.preferred && !is_owned {
            rows.push(row(None));
        }
    }
    rows
}

impl Row<'_> {
    fn access(&self) -> String {
        if self.served.is_watchable() { self.rights.cell() } else { format!("only {}", self.served.verbs.join(", ")) }
    }

    fn style(&self) -> Style {
        match self.owner {
            None => UNMATCHED,
            Some(_) if !self.rights.refused.is_empty() => REFUSED,
            Some(_) if self.rights.unknown.is_some() => UNKNOWN,
            Some(_) => Style::new(),
        }
    }

    fn json(&self, config: &Config) -> Value {
        let ResourceType { group, version, kind, plural, namespaced } = &self.served.resource;
        let rights = &self.rights;
        let access = match rights {
            _ if !self.served.is_watchable() => "unwatchable",
            Rights { refused, .. } if !refused.is_empty() => "refused",
            Rights { unknown: Some(_), .. } => "unknown",
            _ => "allowed",
        };
        json!({
            "name": plural,
            "group": group,
            "version": version,
            "kind": kind,
            "namespaced": namespaced,
            "entry": self.owner.map(|(entry, _)| entry),
            "pattern": self.owner.map(|(entry, position)| config.pattern(entry, position)),
            "access": access,
            "refused": rights.refused,
            "unknown": rights.unknown,
        })
    }
}

fn print_table(config: &Config, rows: &[Row<'_>]) -> io::Result<()> {
    let mut cells =
        vec![["NAME", "GROUP", "VERSION", "KIND", "SCOPE", "ENTRY", "PATTERN", "ACCESS"].map(str::to_owned)];
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    cells.extend(rows.iter().map(|row| {
        let ResourceType { group, version, kind, plural, namespaced } = &row.served.resource;
        let scope = if *namespaced { "Namespaced" } else { "Cluster" };
        let (entry, position) = row.owner.unwrap_or_default();
        let pattern = config.pattern(entry, position);
        [plural, group, version, kind, scope, entry, pattern, &row.access()].map(or_dash)
    }));
    report::print_table(&cells, rows.iter().map(Row::style))
}

/// Prints notes to stderr: patterns without a type, types that two entries match, and API groups whose types are unknown.
fn tell(config: &Config, catalog: &Catalog, selection: &Selection) {
    for Unmatched { entry, pattern: position, resolution } in &selection.unmatched {
        let state = match resolution {
            Resolution::Missing { .. } | Resolution::Empty { .. } => "matches nothing now",
            _ => "matches nothing",
        };
        let text = config.pattern(entry, *position);
        report::note(&format!("[resources.{entry}] \"{text}\" {state}: {}", resolution.why_not()));
    }
    for Conflict { resource, first, second } in &selection.conflicts {
        let text = config.pattern(&second.entry, second.pattern);
        report::note(&format!(
            "[resources.{}] \"{text}\" also matches {resource} of [resources.{}]: run `deltabus validate` for details",
            second.entry, first.entry
        ));
    }
    for unavailable in catalog.unavailable() {
        report::note(&format!("the types of {unavailable} are unknown: {}", unavailable.error));
    }
}

fn document(config: &Config, catalog: &Catalog, selection: &Selection, rows: &[Row<'_>]) -> Value {
    let unmatched = selection.unmatched.iter().map(|Unmatched { entry, pattern: position, resolution }| {
        json!({ "entry": entry, "pattern": config.pattern(entry, *position), "why": resolution.why_not() })
    });
    let conflicts = selection.conflicts.iter().map(|Conflict { resource, first, second }| {
        json!({ "name": resource.plural, "group": resource.group, "entry": first.entry, "other": second.entry })
    });
    let unavailable = catalog.unavailable().iter().map(
        |unavailable| json!({ "group": unavailable.group, "version": unavailable.version, "error": unavailable.error }),
    );
    json!({
        "resources": rows.iter().map(|row| row.json(config)).collect::<Vec<_>>(),
        "unmatched": unmatched.collect::<Vec<_>>(),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "unavailable": unavailable.collect::<Vec<_>>(),
    })
}
