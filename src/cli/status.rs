//! `deltabus status`: shows what a running engine does, what is late, and why.

mod watch;

use std::{io::Write as _, time::Duration};

use crate::{printable::printable, text::parse_duration};
use anstyle::{AnsiColor, Style};
use anyhow::bail;
use clap::Args;
use jiff::{Timestamp, Zoned};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    engine_client::{EngineArgs, EngineClient},
    handlers::{has_rule_errors, last_error, remarks, seconds, text},
    report::{self, HEADER, TableOutput},
    terminal,
};

/// Lag at which a unit or handler counts as late.
const LATE: Duration = Duration::from_secs(30);
/// Shortest time between two repetitions.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum number of rows of a table; further rows are only counted.
const ROWS_MAX: usize = 12;

const WELL: Style = Style::new();
const LATE_ROW: Style = AnsiColor::Red.on_default();
const REMARKABLE: Style = AnsiColor::Yellow.on_default();

const EXAMPLES: &str = "\
These count as late or failing:

  a type      that is not synced, may not be watched or cannot be read, or whose changes are applied 30 s late
  a handler   that fails, is hung or has stopped, has given up every event, or whose oldest event has waited for 30 s
  the state   when it cannot be written
  the configuration   when the last change of its files was refused

A type that the server does not serve yet does not count. Events that the `when` of a handler could not decide are counted in its
row, but are no failure. Details: /v1/resources, /v1/handlers, `deltabus handlers`.

Examples:

  deltabus status                                 the engine on this machine
  deltabus status --engine deltabus.ops.svc:8080
  deltabus status -o json | jq .problems
  deltabus status -w                              again every 2 s, until ctrl-c

Exit codes: 0 all is well, or -w was stopped; 1 something is late or failing, or there is no engine; 2 bad usage or bad
configuration.";

/// Shows on one screen what a running engine does, what is late, and why.
///
/// The command asks only the engine, so it works while the API server is away.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Output format. A table shows problems first; JSON has the content of `/v1/resources` and `/v1/handlers`.
    #[arg(short, long, value_enum, default_value_t)]
    output: TableOutput,
    /// Repeats the status until ctrl-c: on a terminal in place, elsewhere separated by empty lines. An engine that does not answer
    /// is shown, and asked again.
    #[arg(short, long)]
    watch: bool,
    /// Time between two repetitions: 500ms, 2s, 1m.
    #[arg(short = 'n', long, value_name = "DURATION", default_value = "2s", value_parser = interval, requires = "watch")]
    interval: Duration,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Parses the time between two repetitions.
fn interval(text: &str) -> Result<Duration, &'static str> {
    let interval = parse_duration(text).filter(|interval| *interval >= INTERVAL_MIN);
    interval.ok_or("expected a duration of at least 100ms, such as 500ms, 2s or 1m")
}

/// Prints the status; fails if something is late or failing.
pub(crate) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let engine = args.engine.connect()?;
    if args.watch {
        return watch::watch(&engine, args).await;
    }
    let status = EngineStatus::ask(&engine).await?;
    match args.output {
        TableOutput::Table => write!(anstream::stdout(), "{}", status.text(None, terminal::stdout_columns()))?,
        TableOutput::Json => report::print_json(&status.document)?,
    }
    let problems = status.problems;
    if !problems.is_empty() {
        bail!("late or failing: {}", problems.iter().map(Problem::to_string).collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// Status of an engine at one time.
struct EngineStatus {
    /// Content of `-o json`.
    document: Value,
    problems: Vec<Problem>,
}

impl EngineStatus {
    /// Asks an engine for its status.
    async fn ask(engine: &EngineClient) -> anyhow::Result<Self> {
        let mut resources: Value = engine.get_json("/v1/resources").await?;
        let mut handlers: Value = engine.get_json("/v1/handlers").await?;
        let readiness = engine.ask("/readyz?verbose", "text/plain").await?;
        let metrics = engine.get("/metrics", "text/plain").await?;
        let (version, uptime, resident_bytes) = figures(&String::from_utf8_lossy(&metrics.body), Timestamp::now());
        let part = |answer: &mut Value, key: &str| answer.get_mut(key).map(Value::take).unwrap_or_default();
        let document = json!({
            "engine": engine.url,
            "version": version,
            "uptimeSeconds": uptime.map(|uptime| uptime.as_secs_f64()),
            "residentBytes": resident_bytes,
            "server": part(&mut resources, "server"),
            "refusedConfiguration": part(&mut resources, "refusedConfiguration"),
            "resources": part(&mut resources, "resources"),
            "handlers": part(&mut handlers, "handlers"),
            "journal": part(&mut handlers, "journal"),
        });
        let problems = problems(&document, &String::from_utf8_lossy(&readiness.body));
        Ok(Self::of(document, problems))
    }

    /// Returns the status of an engine that has not answered.
    fn unknown(engine: &str, error: &anyhow::Error) -> Self {
        let problem = Problem { kind: "engine", name: String::new(), why: format!("{error:#}") };
        Self::of(json!({ "engine": engine, "resources": [], "handlers": [] }), vec![problem])
    }

    fn of(mut document: Value, problems: Vec<Problem>) -> Self {
        (document["healthy"], document["problems"]) = (problems.is_empty().into(), json!(problems));
        Self { document, problems }
    }

    /// Returns the status as text with colours. `now` is in the title. Long reasons are wrapped to `columns`.
    fn text(&self, now: Option<&Zoned>, columns: Option<usize>) -> String {
        let Self { document, problems } = self;
        let now = now.map_or_else(String::new, |now| format!("  {}", now.strftime("%H:%M:%S")));
        let mut lines = vec![format!("{HEADER}{}{HEADER:#}{now}\n", printable(&title(document)))];
        if document["server"].is_string() {
            lines.push(format!("{}\n", printable(&summary(document))));
        }
        for problem in problems.iter().filter(|problem| problem.name.is_empty()) {
            let text = printable(&format!("{problem}: {}", problem.why));
            let wrapped = match columns {
                Some(columns) => report::wrapped(&text, columns),
                None => vec![text],
            };
            lines.extend(wrapped.iter().map(|line| format!("{LATE_ROW}{line}{LATE_ROW:#}\n")));
        }
        lines.push(table(&UNITS, rows(&document["resources"]), late_unit, columns));
        lines.push(table(&HANDLERS, rows(&document["handlers"]), late_handler, columns));
        lines.concat()
    }
}

/// Returns the version, the uptime and the resident bytes of the engine, from the text of the engine's metrics. A missing value is
/// `None`.
fn figures(metrics: &str, now: Timestamp) -> (Option<String>, Option<Duration>, Option<f64>) {
    let value = |name: &str| -> Option<f64> {
        let mut samples = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        samples.next()?.trim().parse().ok()
    };
    let build = metrics.lines().find_map(|line| line.strip_prefix("deltabus_build_info{"));
    let version = build.and_then(|labels| labels.split_once("version=\"")?.1.split_once('"'));
    let uptime = value("process_start_time_seconds").map(|started| now.as_duration().as_secs_f64() - started);
    (
        version.map(|(version, _)| version.to_owned()),
        uptime.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
        value("process_resident_memory_bytes"),
    )
}

/// Part of the engine that is late or fails.
#[derive(Serialize)]
struct Problem {
    kind: &'static str,
    name: String,
    why: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(format!("{} {}", self.kind, self.name).trim_end())
    }
}

fn rows(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the parts that are late or fail; `readiness` is the answer of `/readyz?verbose`.
fn problems(status: &Value, readiness: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |kind, name, why| problems.push(Problem { kind, name, why });
    let units = rows(&status["resources"]);
    if let Some(why) = readiness.lines().find_map(|line| line.strip_prefix("[-]discovery failed: ")) {
        let error = units.iter().find_map(|row| row["lastError"].as_str());
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        add("discovery", String::new(), format!("{why}{error}"));
    }
    let refused = &status["refusedConfiguration"];
    if let Some(why) = refused["error"].as_str() {
        let ago = duration(&refused["secondsAgo"]).map(rough).unwrap_or_default();
        add("configuration", String::new(), format!("refused {ago} ago, the previous one stays in effect: {why}"));
    }
    let journal = &status["journal"];
    if journal["writable"] == false {
        add("state", String::new(), format!("cannot be written: {}", text(&journal["lastError"])));
    }
    for (row, why) in units.iter().filter_map(|row| Some((row, late_unit(row)?))) {
        add("resource", format!("{} ({})", text(&row["name"]), place(row)), why);
    }
    for (row, why) in rows(&status["handlers"]).iter().filter_map(|row| Some((row, late_handler(row)?))) {
        add("handler", text(&row["name"]), why);
    }
    problems
}

fn title(status: &Value) -> String {
    let version = status["version"].as_str().map_or_else(String::new, |version| format!(" {version}"));
    let uptime =
        duration(&status["uptimeSeconds"]).map_or_else(String::new, |uptime| format!(", up {}", rough(uptime)));
    let memory = status["residentBytes"].as_f64();
    let memory = memory.map_or_else(String::new, |bytes| format!(", {:.0} MiB", bytes / f64::from(1 << 20)));
    format!("deltabus{version} at {}{uptime}{memory}", text(&status["engine"]))
}

fn summary(status: &Value) -> String {
    let units = rows(&status["resources"]);
    let count = |is: fn(&Value) -> bool| units.iter().filter(|row| is(row)).count();
    let (synced, waiting) = (count(|row| row["synced"] == true), count(|row| row["state"] == "waiting"));
    let objects: u64 = units.iter().filter_map(|row| row["objects"].as_u64()).sum();
    let waits = if waiting > 0 { format!(", {waiting} not served") } else { String::new() };
    format!("{synced} of {} synced{waits}, {objects} objects of {}", units.len(), text(&status["server"]))
}

/// Returns the type of a unit, with its namespace if it has one.
fn place(row: &Value) -> String {
    let namespace = row["namespace"].as_str().map_or_else(String::new, |namespace| format!(" in {namespace}"));
    let group = row["apiVersion"].as_str().and_then(|version| version.split_once('/'));
    let group = group.map_or_else(String::new, |(group, _)| format!(".{group}"));
    format!("{}{group}{namespace}", text(&row["plural"]))
}

/// Returns the reason why a unit is late or fails. Returns `None` for other units, and for a unit whose type the server does not
/// serve.
fn late_unit(row: &Value) -> Option<String> {
    let said = said(row);
    match row["state"].as_str()? {
        "waiting" => None,
        state @ ("forbidden" | "degraded" | "backing_off") => Some(said.unwrap_or_else(|| state.replace('_', " "))),
        _ if row["synced"] == false => Some(said.unwrap_or_else(|| "not synced yet".to_owned())),
        // A watch is often silent between two bookmarks. A list must keep sending data, so a silent list is late.
        "listing" => late(&row["lastActivitySeconds"]).map(|lag| format!("no answer from the API server for {lag}")),
        _ => late(&row["lagSeconds"]).map(|lag| format!("changes are applied {lag} late")),
    }
}

/// Returns what the engine says about a unit.
fn said(row: &Value) -> Option<String> {
    ["message", "lastError"].into_iter().find(|key| row[key].is_string()).map(|key| text(&row[key]))
}

/// Returns the reason why a unit waits for its type, which is no problem; `-` for other units.
fn why_waiting(row: &Value) -> String {
    said(row).filter(|_| row["state"] == "waiting").unwrap_or_else(|| "-".to_owned())
}

/// Returns the reason why a handler is late or fails; `None` for other handlers.
fn late_handler(row: &Value) -> Option<String> {
    match row["state"].as_str()? {
        "running" if row["delivered"] == 0 && row["dropped"].as_u64() > Some(0) => {
            Some(format!("none of {} events was delivered; the last, {}", row["dropped"], last_error(row)))
        }
        "retrying" | "hung" | "failed" | "stopped" => Some(last_error(row)),
        "starting" => Some("not started yet".to_owned()),
        state => late(&row["oldestUndeliveredAgeSeconds"]).map(|lag| match (state, row["rateLimited"] == true) {
            ("paused", _) => format!("paused, the oldest event has waited for {lag}"),
            (_, true) => format!("rate limited, the oldest event has waited for {lag}"),
            _ => format!("the oldest event has waited for {lag}"),
        }),
    }
}

/// Returns a lag as text, such as `1m 35s`; `None` if the lag is below [`LATE`].
fn late(lag: &Value) -> Option<String> {
    duration(lag).filter(|lag| *lag >= LATE).map(rough)
}

fn duration(seconds: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.as_f64()?).ok()
}

/// Formats a duration with its two largest units.
fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// Column: its title, and a function that returns the cell of a row. The second argument is set if the row is late, and says why.
type Column = (&'static str, fn(&Value, Option<&str>) -> String);

const UNITS: [Column; 7] = [
    ("RESOURCE", |row, _| text(&row["name"])),
    ("TYPE", |row, _| place(row)),
    ("STATE", |row, _| text(&row["state"])),
    ("OBJECTS", |row, _| text(&row["objects"])),
    ("EVENTS", |row, _| {
        let counts = row["events"].as_object().into_iter().flatten();
        let counts = counts.filter(|(kind, _)| !matches!(&***kind, "ignored" | "tombstones"));
        counts.filter_map(|(_, count)| count.as_u64()).sum::<u64>().to_string()
    }),
    ("LAG", |row, _| seconds(&row["lagSeconds"])),
    ("WHY", |row, why| why.map_or_else(|| why_waiting(row), str::to_owned)),
];

const HANDLERS: [Column; 7] = [
    ("HANDLER", |row, _| text(&row["name"])),
    ("TYPE", |row, _| text(&row["type"])),
    ("STATE", |row, _| text(&row["state"])),
    ("QUEUED", |row, _| text(&row["queued"])),
    ("DELIVERED", |row, _| text(&row["delivered"])),
    ("LAG", |row, _| seconds(&row["oldestUndeliveredAgeSeconds"])),
    ("REMARKS", remarks),
];

/// Returns a table after an empty line. Late rows are first, then rows with rule errors, then those with the most objects or
/// deliveries. Returns an empty text if there are no rows.
fn table(columns: &[Column], all: &[Value], late: fn(&Value) -> Option<String>, width: Option<usize>) -> String {
    if all.is_empty() {
        return String::new();
    }
    let size = |row: &Value| row["objects"].as_u64().or_else(|| row["delivered"].as_u64());
    let mut rows: Vec<_> = all.iter().map(|row| (late(row), has_rule_errors(row), row)).collect();
    rows.sort_by_key(|(why, failed, row)| (why.is_none(), !failed, std::cmp::Reverse(size(row))));
    let more = rows.len().saturating_sub(ROWS_MAX);
    rows.truncate(ROWS_MAX);
    let mut cells: Vec<Vec<String>> = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect()];
    cells.extend(rows.iter().map(|(why, _, row)| columns.iter().map(|(_, cell)| cell(row, why.as_deref())).collect()));
    let styles = rows.iter().map(|(why, failed, _)| match (why, failed) {
        (Some(_), _) => LATE_ROW,
        (None, true) => REMARKABLE,
        (None, false) => WELL,
    });
    let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
    format!("\n{}{more}", report::styled_table(&cells, styles, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_waiting_units_are_distinguished() {
        let unit = |state: &str, more: Value| {
            let mut row =
                json!({"state": state, "synced": true, "message": null, "lastError": null, "lagSeconds": 0.0});
            row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            late_unit(&row)
        };
        assert_eq!(unit("watching", json!({})), None);
        assert_eq!(unit("watching", json!({"lastError": "long ago"})), None);
        assert_eq!(unit("waiting", json!({"synced": false, "lastError": "not served"})), None);
        assert_eq!(unit("watching", json!({"lagSeconds": 95.0})).unwrap(), "changes are applied 1m 35s late");
        assert_eq!(unit("listing", json!({"synced": false})).unwrap(), "not synced yet");
        assert_eq!(unit("listing", json!({"lastError": "of a relist"})), None);
        assert_eq!(
            unit("listing", json!({"lastActivitySeconds": 40.0})).unwrap(),
            "no answer from the API server for 40s"
        );
        assert_eq!(unit("watching", json!({"lastActivitySeconds": 40.0})), None);
        assert_eq!(unit("backing_off", json!({"lastError": "connection refused"})).unwrap(), "connection refused");
        assert_eq!(unit("forbidden", json!({"message": "grant it", "lastError": "403"})).unwrap(), "grant it");
        assert_eq!(unit("degraded", json!({})).unwrap(), "degraded");
    }

    #[test]
    fn late_handlers_are_reported_with_reason() {
        let handler = |state: &str, oldest: f64, limited: bool| {
            late_handler(&json!({"state": state, "oldestUndeliveredAgeSeconds": oldest, "rateLimited": limited,
                "lastError": "503", "lastErrorAgeSeconds": 2.0}))
        };
        assert_eq!(handler("running", 29.0, false), None);
        assert_eq!(handler("running", 30.0, false).unwrap(), "the oldest event has waited for 30s");
        assert_eq!(handler("running", 30.0, true).unwrap(), "rate limited, the oldest event has waited for 30s");
        assert_eq!(handler("paused", 1.0, false), None);
        assert_eq!(handler("paused", 7_300.0, false).unwrap(), "paused, the oldest event has waited for 2h 1m");
        assert_eq!(handler("retrying", 0.1, false).unwrap(), "2s ago: 503");
        let lost = |delivered: u64| {
            late_handler(&json!({"state": "running", "delivered": delivered, "dropped": 24, "lastError": "no name"}))
        };
        assert_eq!(lost(0).unwrap(), "none of 24 events was delivered; the last, no name");
        assert_eq!(lost(1), None);
    }

    #[test]
    fn waiting_type_shows_its_reason() {
        let why = "the server serves no such type; did you mean services?";
        let row = json!({"name": "a", "plural": "servces", "state": "waiting", "lastError": why});
        let document = json!({"server": "http://x", "resources": [row], "handlers": []});
        let found = problems(&document, "");
        assert!(found.is_empty());
        assert!(EngineStatus::of(document, found).text(None, None).contains(why));
    }

    #[test]
    fn refused_configuration_is_a_problem() {
        let refused = json!({"error": "a.toml:3:1: unknown key", "secondsAgo": 61.2});
        let found = problems(&json!({ "refusedConfiguration": refused }), "");
        let expected = "refused 1m 1s ago, the previous one stays in effect: a.toml:3:1: unknown key";
        assert_eq!((found.len(), found[0].kind, &*found[0].why), (1, "configuration", expected));
    }

    #[test]
    fn rule_errors_are_shown_and_count_as_no_problem() {
        let handler = |name: &str, delivered: u64, errors: u64| {
            json!({"name": name, "type": "stdout", "state": "running", "delivered": delivered, "queued": 0,
                "ruleErrors": errors, "lastRuleError": "shop/web: `when`: No such key: y"})
        };
        let document = json!({"server": "http://x", "handlers": [handler("busy", 9, 0), handler("odd", 1, 3)]});
        let found = problems(&document, "");
        assert!(found.is_empty());
        let text = EngineStatus::of(document, found).text(None, Some(80));
        let text = console::strip_ansi_codes(&text);
        assert!(text.contains("3 events were not sent because `when` failed") && text.contains("has()"), "{text}");
        assert!(text.find("\nodd") < text.find("\nbusy"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn process_figures_come_from_metrics() {
        let metrics = "# TYPE deltabus_build info\ndeltabus_build_info{version=\"1.2.3\",commit=\"c\"} 1\n\
             process_start_time_seconds 1700000000.5\nprocess_resident_memory_bytes 1.5e+08\n";
        let figures_then = figures(metrics, "2023-11-14T22:14:30.5Z".parse().unwrap());
        assert_eq!(figures_then, (Some("1.2.3".to_owned()), Some(Duration::from_secs(70)), Some(150e6)));
        assert_eq!(figures("", Timestamp::now()), (None, None, None));
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, expected) in [(0, "0s"), (61, "1m 1s"), (7_380, "2h 3m"), (266_400, "3d 2h")] {
            assert_eq!(rough(Duration::from_secs(seconds)), expected);
        }
    }
}
