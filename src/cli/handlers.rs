//! `deltabus handlers`: shows the handlers of a running engine, and pauses, resumes and replays them.

use std::iter;

use anstyle::Style;
use clap::{Args, Subcommand, ValueEnum};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use strum::IntoStaticStr;

use super::{engine_client::EngineArgs, report};

const EXAMPLES: &str = "\
Examples:

  deltabus handlers                     state, lag and errors of each handler
  deltabus handlers -o wide             also position, retries, filtered events, deliveries in flight
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
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: HandlersOutput,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Format of the list of handlers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum HandlersOutput {
    /// Aligned columns.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// The engine's response.
    Json,
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
        if args.output == HandlersOutput::Json {
            report::print_json(&answer)?;
        } else {
            report::print_table(&rows(&answer, args.output), iter::repeat(Style::new()))?;
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

/// Returns the header and a row for each handler.
fn rows(answer: &Value, output: HandlersOutput) -> Vec<Vec<String>> {
    let columns = || COLUMNS.iter().filter(move |(_, shown, _)| *shown == HandlersOutput::Table || *shown == output);
    let mut rows = vec![columns().map(|(title, ..)| (*title).to_owned()).collect()];
    let handlers = answer["handlers"].as_array().into_iter().flatten();
    rows.extend(handlers.map(|row| columns().map(|(.., cell)| cell(row)).collect::<Vec<_>>()));
    rows
}

/// Column of the table: its title, the format that shows it, and the function that returns a cell. The usual columns of
/// [`HandlersOutput::Table`] fit on a terminal with 80 columns.
type Column = (&'static str, HandlersOutput, fn(&Value) -> String);

const COLUMNS: [Column; 12] = [
    ("NAME", HandlersOutput::Table, |row| text(&row["name"])),
    ("TYPE", HandlersOutput::Table, |row| text(&row["type"])),
    ("STATE", HandlersOutput::Table, |row| text(&row["state"])),
    ("QUEUED", HandlersOutput::Table, |row| text(&row["queued"])),
    ("IN-FLIGHT", HandlersOutput::Wide, |row| text(&row["inFlight"])),
    ("DELIVERED", HandlersOutput::Table, |row| text(&row["delivered"])),
    ("RETRIED", HandlersOutput::Wide, |row| text(&row["retried"])),
    ("DROPPED", HandlersOutput::Table, |row| text(&row["dropped"])),
    ("FILTERED", HandlersOutput::Wide, |row| text(&row["filtered"])),
    ("POSITION", HandlersOutput::Wide, |row| text(&row["position"])),
    ("LAG", HandlersOutput::Table, |row| seconds(&row["oldestUndeliveredAgeSeconds"])),
    ("REMARKS", HandlersOutput::Table, |row| remarks(row, None)),
];

/// Returns all that is remarkable about a handler: why it is late, else its last error; a rate limit in effect; and events for
/// which a rule failed. `-` if there is nothing.
pub(super) fn remarks(row: &Value, why: Option<&str>) -> String {
    let why = why.map(str::to_owned).or_else(|| row["lastError"].is_string().then(|| last_error(row)));
    let is_limited = row["rateLimited"] == true && !why.as_ref().is_some_and(|why| why.contains("rate limited"));
    let limited = is_limited.then(|| "rate limited".to_owned());
    let lost = row["dropped"].as_u64().filter(|lost| *lost > 0 && row["delivered"] != 0);
    let lost = lost.map(|lost| format!("{lost} events were given up or dropped"));
    let remarks: Vec<_> = [why, lost, limited, rule_errors(row), key_errors(row)].into_iter().flatten().collect();
    if remarks.is_empty() { "-".to_owned() } else { remarks.join("; ") }
}

/// Returns how many events the `when` of a handler could not decide, and what to do. `None` if there were no such events.
fn rule_errors(row: &Value) -> Option<String> {
    let count = row["ruleErrors"].as_u64().filter(|count| *count > 0)?;
    let last = text(&row["lastRuleError"]);
    let advice = if last.contains("No such key") {
        "test members that may be missing with has()"
    } else {
        "`deltabus tail --explain` shows such events"
    };
    let events = if count == 1 { "event was" } else { "events were" };
    Some(format!("{count} {events} not sent because `when` failed, the last for {last}; {advice}"))
}

/// Returns for how many events the `once_key` of a handler failed. `None` if there were no such events.
fn key_errors(row: &Value) -> Option<String> {
    let count = row["keyErrors"].as_u64().filter(|count| *count > 0)?;
    let events = if count == 1 { "event" } else { "events" };
    let last = text(&row["lastKeyError"]);
    Some(format!("{count} {events} had the object as key because `once_key` failed, the last for {last}"))
}

/// Returns true if the `when` or `once_key` of a handler failed for some events.
pub(super) fn has_rule_errors(row: &Value) -> bool {
    ["ruleErrors", "keyErrors"].iter().any(|field| row[*field].as_u64() > Some(0))
}

pub(super) fn last_error(row: &Value) -> String {
    let ago = row["lastErrorAgeSeconds"].as_f64().map(|age| format!("{age:.0}s ago: ")).unwrap_or_default();
    let next =
        row["nextAttemptSeconds"].as_f64().map(|left| format!("; next attempt in {left:.0}s")).unwrap_or_default();
    format!("{ago}{}{next}", text(&row["lastError"]))
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

    fn hook() -> Value {
        json!({"name": "deploy_hook", "type": "webhook", "state": "retrying", "rateLimited": true, "queued": 12_345,
            "inFlight": 8, "delivered": 3_456_789, "retried": 4, "dropped": 0, "filtered": 5, "position": 77,
            "oldestUndeliveredAgeSeconds": 1.26, "lastError": "503\nmore", "lastErrorAgeSeconds": 7.9,
            "nextAttemptSeconds": 12.2,
            "ruleErrors": 0, "lastRuleError": null})
    }

    #[test]
    fn handler_table_has_one_row_per_handler() {
        let shown = |output| {
            let mut rows = rows(&json!({ "handlers": [hook()] }), output);
            assert_eq!(rows.len(), 2);
            rows.remove(1).join(" | ")
        };
        let expected = "deploy_hook | webhook | retrying | 12345 | 3456789 | 0 | 1.3s | 8s ago: 503; next attempt in 12s; rate limited";
        assert_eq!(shown(HandlersOutput::Table), expected);
        let expected = "deploy_hook | webhook | retrying | 12345 | 8 | 3456789 | 4 | 0 | 5 | 77 | 1.3s | 8s ago: 503; next attempt in 12s; rate limited";
        assert_eq!(shown(HandlersOutput::Wide), expected);
    }

    #[test]
    fn handler_table_fits_in_80_columns() {
        let mut failing = hook();
        failing["lastError"] = format!("the server at http://{}.example answered 503", "long.".repeat(20)).into();
        (failing["ruleErrors"], failing["lastRuleError"]) = (7.into(), "shop/web: `when`: No such key: y".into());
        let rows = rows(&json!({ "handlers": [hook(), failing] }), HandlersOutput::Table);
        let table = report::styled_table(&rows, iter::repeat(Style::new()), Some(80));
        let table = console::strip_ansi_codes(&table);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("No such key: y; test members that may be missing with has()"), "{table}");
    }

    #[test]
    fn rule_errors_are_counted_with_advice() {
        let mut row = hook();
        assert!(!has_rule_errors(&row));
        (row["ruleErrors"], row["lastRuleError"]) = (1.into(), "shop/web: `when`: No such key: y".into());
        let last = "1 event was not sent because `when` failed, the last for shop/web: `when`: No such key: y";
        let expected = format!("late; rate limited; {last}; test members that may be missing with has()");
        assert_eq!(remarks(&row, Some("late")), expected);
        (row["ruleErrors"], row["rateLimited"], row["lastError"]) = (2.into(), false.into(), Value::Null);
        row["lastRuleError"] = "shop/web: `when`: no such overload".into();
        let expected = "2 events were not sent because `when` failed, the last for shop/web: `when`: no such overload; \
                        `deltabus tail --explain` shows such events";
        assert_eq!(remarks(&row, None), expected);
        row["ruleErrors"] = 0.into();
        assert_eq!(remarks(&row, None), "-");
        (row["keyErrors"], row["lastKeyError"]) = (1.into(), "shop/web: `once_key`: undefined value".into());
        assert!(has_rule_errors(&row));
        let expected = "1 event had the object as key because `once_key` failed, the last for shop/web: `once_key`: undefined value";
        assert_eq!(remarks(&row, None), expected);
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
