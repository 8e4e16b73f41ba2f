//! `deltabus handlers`: shows the handlers of a running engine, and pauses, resumes and replays them.

use std::io::{self, Write as _};

use clap::{Args, Subcommand};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use strum::IntoStaticStr;

use super::{
    engine_client::EngineArgs,
    report::{self, TableOutput},
};

const EXAMPLES: &str = "\
Examples:

  deltabus handlers                     state, position, lag and errors of each handler
  deltabus handlers pause hook          stop deliveries; new events are queued
  deltabus handlers resume hook
  deltabus handlers replay hook         deliver the events that it gave up
  deltabus handlers -o json | jq        all fields, as in /v1/handlers";

/// Shows the handlers of a running engine; pauses, resumes and replays them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct HandlersArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Output format. JSON is the engine's response.
    #[arg(short, long, value_enum, default_value_t)]
    output: TableOutput,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Action on a handler.
#[derive(Debug, Subcommand, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
enum Action {
    /// Stops deliveries to a handler until it is resumed or the engine restarts. New events are queued.
    Pause(ActionArgs),
    /// Resumes a paused handler.
    Resume(ActionArgs),
    /// Delivers the events that a handler gave up.
    Replay(ActionArgs),
}

/// Handler of an action.
#[derive(Debug, Args)]
struct ActionArgs {
    /// Name of the [handlers.*] entry.
    name: String,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Prints the handlers, or performs the action.
pub(crate) async fn handlers(args: &HandlersArgs) -> anyhow::Result<()> {
    let Some(action) = &args.action else {
        let answer: Value = args.engine.connect()?.get_json("/v1/handlers").await?;
        match args.output {
            TableOutput::Json => report::print_json(&answer)?,
            TableOutput::Table => io::stdout().write_all(table(&answer).as_bytes())?,
        }
        return Ok(());
    };
    let (Action::Pause(target) | Action::Resume(target) | Action::Replay(target)) = action;
    let verb: &str = action.into();
    let path = format!("/v1/handlers/{}/{verb}", utf8_percent_encode(&target.name, NON_ALPHANUMERIC));
    let answer = target.engine.connect()?.post(&path).await?;
    let answer: Value = serde_json::from_slice(&answer.body)?;
    report::note(&said(verb, &answer));
    Ok(())
}

/// Describes the state of the handler after an action, in one line.
fn said(verb: &str, answer: &Value) -> String {
    let handler = &answer["handler"];
    let (name, state) = (text(&handler["name"]), text(&handler["state"]));
    match (verb, answer["replayed"].as_u64().unwrap_or_default()) {
        ("replay", 0) => format!("{name}: nothing to replay; handler is {state}"),
        ("replay", replayed) => format!("{name}: replaying {replayed} events; handler is {state}"),
        _ => format!("{name}: {state}, {} events queued", handler["queued"]),
    }
}

/// Returns a header line and one line for each handler.
fn table(answer: &Value) -> String {
    let mut rows = vec![COLUMNS.map(|(title, _)| title.to_owned())];
    rows.extend(answer["handlers"].as_array().into_iter().flatten().map(|row| COLUMNS.map(|(_, cell)| cell(row))));
    report::table(&rows)
}

/// Column of the table: its title and the function that returns a cell.
type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 11] = [
    ("NAME", |row| text(&row["name"])),
    ("TYPE", |row| text(&row["type"])),
    ("STATE", state),
    ("QUEUED", |row| text(&row["queued"])),
    ("IN-FLIGHT", |row| text(&row["inFlight"])),
    ("DELIVERED", |row| text(&row["delivered"])),
    ("RETRIED", |row| text(&row["retried"])),
    ("DROPPED", |row| text(&row["dropped"])),
    ("POSITION", |row| text(&row["position"])),
    ("LAG", |row| seconds(&row["oldestUndeliveredAgeSeconds"])),
    ("LAST ERROR", last_error),
];

pub(super) fn last_error(row: &Value) -> String {
    let ago = row["lastErrorAgeSeconds"].as_f64().map(|age| format!("{age:.0}s ago: ")).unwrap_or_default();
    format!("{ago}{}", text(&row["lastError"]))
}

pub(super) fn state(row: &Value) -> String {
    let limited = if row["rateLimited"] == true { " (rate limited)" } else { "" };
    format!("{}{limited}", text(&row["state"]))
}

pub(super) fn seconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}s"))
}

/// Returns a value as the text of a cell: the first line of a string, and `-` for null.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.lines().next().unwrap_or_default().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn handler_table_has_one_row_per_handler() {
        let row = json!({"name": "hook", "type": "webhook", "state": "retrying", "rateLimited": true, "queued": 12,
            "inFlight": 8, "delivered": 3, "retried": 4, "dropped": 0, "position": 77,
            "oldestUndeliveredAgeSeconds": 1.26, "lastError": "503\nmore",
            "lastErrorAgeSeconds": 7.9});
        let text = table(&json!({ "handlers": [row] }));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        assert_eq!(lines.len(), 2);
        let words: Vec<_> = lines[1].iter().filter(|cell| !cell.is_empty()).copied().collect();
        let expected =
            ["hook", "webhook", "retrying (rate limited)", "12", "8", "3", "4", "0", "77", "1.3s", "8s ago: 503"];
        assert_eq!(words, expected);
    }

    #[test]
    fn handler_command_reports_its_outcome() {
        let answer =
            |replayed: u64| json!({"handler": {"name": "hook", "state": "paused", "queued": 3}, "replayed": replayed});
        assert_eq!(said("pause", &answer(0)), "hook: paused, 3 events queued");
        assert_eq!(said("replay", &answer(2)), "hook: replaying 2 events; handler is paused");
        assert!(said("replay", &answer(0)).contains("nothing"));
    }
}
