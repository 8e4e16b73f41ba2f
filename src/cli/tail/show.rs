//! Output of an event by `deltabus tail`.

use crate::{
    handler::stdout::{
        Look,
        line::{self, Line},
    },
    journal::ChangeKind,
    object::{
        ChangedBy, Object,
        scan::{ScanPlan, scan_object},
        summary::summary,
    },
    printable::{printable, printable_json},
    subscribe::query::kind,
};
use anstyle::{AnsiColor, Style};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use super::diff;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TailOutput {
    /// One line for each event: `12:04:31 ~ shop/pod/web  Pending → Running`.
    #[default]
    Pretty,
    /// One `CloudEvent` per line.
    Json,
    /// Like pretty, but an update has a line for each path that it changed: `spec.replicas  2 → 3`.
    Diff,
}

/// Printer of events.
pub(super) struct Printer {
    output: TailOutput,
    /// Set to escape what could control a terminal, also in JSON.
    on_terminal: bool,
    colour: bool,
    zone: TimeZone,
}

impl Printer {
    /// Creates a printer for stdout, with colours on terminals unless `NO_COLOR` or `TERM=dumb` is set.
    pub(super) fn new(output: TailOutput) -> Self {
        let look = Look::of_stdout();
        let colour = matches!(look, Look::Short { colour: true, .. });
        Self { output, on_terminal: matches!(look, Look::Short { .. }), colour, zone: TimeZone::system() }
    }

    /// Appends the output for an event; ignores messages that are not events.
    pub(super) fn print(&self, out: &mut Vec<u8>, word: &str, data: &str) {
        if self.output == TailOutput::Json {
            let data = if self.on_terminal { printable_json(data) } else { data.into() };
            out.extend_from_slice(data.as_bytes());
            out.push(b'\n');
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else { return };
        if let Some(kind) = kind(word) {
            let changes = if kind == ChangeKind::Updated { self.changes(&event["data"]) } else { Vec::new() };
            for line in lines(&event, kind, changes) {
                line.write(out, self.colour, &self.zone);
            }
        } else {
            let style = Style::new().fg_color(self.colour.then(|| AnsiColor::Magenta.into()));
            let message = printable(event["data"]["message"].as_str().unwrap_or("some events are missing"));
            out.extend_from_slice(format!("{style}! {message}{style:#}\n").as_bytes());
        }
    }

    /// Returns what an update has changed, one line each; empty if the previous object is not known.
    fn changes(&self, data: &Value) -> Vec<String> {
        let (old, new) = (&data["old"], &data["object"]);
        match self.output {
            _ if !old.is_object() => Vec::new(),
            TailOutput::Diff => diff::lines(old, new, self.colour),
            _ => summary(old, new).into_iter().collect(),
        }
    }
}

/// Returns a line for each change of an update. Without changes, returns the line that the handler `stdout` prints for a `CloudEvent`.
fn lines(event: &Value, kind: ChangeKind, changes: Vec<String>) -> Vec<Line> {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let micros = text("time").parse::<Timestamp>().map(Timestamp::as_microsecond).unwrap_or_default();
    let what = if kind == ChangeKind::Synced {
        match text("apiversion").split_once('/') {
            Some((group, _)) => format!("{}.{group}", text("resource")),
            None => text("resource").to_owned(),
        }
    } else {
        line::whom(text("kind"), text("namespace"), text("name"))
    };
    let data = &event["data"];
    let note = match (kind, text("cause")) {
        _ if !changes.is_empty() => by(data),
        (ChangeKind::Synced, _) => line::synced(data["objects"].as_u64().unwrap_or_default()),
        (ChangeKind::Removed, _) => line::REMOVED.to_owned(),
        (ChangeKind::Deleted, _) if data["finalstateunknown"] == true => line::TOMBSTONE.to_owned(),
        (ChangeKind::Added, cause @ ("initial" | "replay")) => cause.to_owned(),
        (ChangeKind::Added | ChangeKind::Updated, _) => {
            [format!("v{}", text("resourceversion")), by(data)].join("  ").trim_end().to_owned()
        }
        _ => format!("v{}", text("resourceversion")),
    };
    let line = Line { micros, kind, what, change: String::new(), note };
    if changes.is_empty() {
        return vec![line];
    }
    changes.into_iter().map(|change| Line { change, ..line.clone() }).collect()
}

/// Returns the author of a change, such as `by kubectl-edit`; an empty text if it is not known.
fn by(data: &Value) -> String {
    let by = |manager: &str| if manager.is_empty() { String::new() } else { format!("by {}", printable(manager)) };
    if let Some(manager) = data["changed_by"]["manager"].as_str() {
        return by(manager);
    }
    object_of(data).and_then(|object| object.changed_by().map(|who| by(&who.manager))).unwrap_or_default()
}

/// Returns the object of an event, with its writer if that is known. The writer is in `changed_by` of the event. If it is not
/// there, it is found in `managedFields` of the object and its previous state.
pub(super) fn object_of(data: &Value) -> Option<Object> {
    let mut plan = ScanPlan::default();
    plan.notes_who_changed = true;
    let state = |name: &str| {
        let state = data.get(name).filter(|state| state.is_object())?;
        scan_object(state.to_string().as_bytes(), &plan).ok()
    };
    let object = state("object")?;
    let noted = &data["changed_by"];
    if noted.is_object() {
        let part = |name: &str| noted[name].as_str().unwrap_or_default().into();
        let (manager, operation, time) = (part("manager"), part("operation"), part("time"));
        let who = ChangedBy { manager, operation, time, subresource: part("subresource") };
        return Some(Object::from_json(&object.json()).ok()?.with_changed_by(&who));
    }
    let old = state("old").map(|old| old.with_writer_since(None, true));
    Some(object.with_writer_since(old.as_ref(), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(output: TailOutput, word: &str, data: &str) -> String {
        let mut out = Vec::new();
        Printer { output, on_terminal: true, colour: false, zone: TimeZone::UTC }.print(&mut out, word, data);
        String::from_utf8(out).unwrap()
    }

    fn event(more: &str) -> String {
        format!(
            r#"{{"time":"2026-11-21T06:40:03.123456Z","cause":"watch","apiversion":"apps/v1","kind":"Deployment","resource":"deployments","namespace":"shop","name":"web","resourceversion":"7"{more}}}"#
        )
    }

    #[test]
    fn tail_line_matches_stdout_handler() {
        for (word, more, expected) in [
            ("added", "", "06:40:03 + shop/deployment/web  v7\n"),
            ("added", r#","cause":"replay""#, "06:40:03 + shop/deployment/web  replay\n"),
            ("updated", "", "06:40:03 ~ shop/deployment/web  v7\n"),
            ("deleted", "", "06:40:03 - shop/deployment/web  v7\n"),
            (
                "deleted",
                r#","data":{"finalstateunknown":true}"#,
                "06:40:03 - shop/deployment/web  final state unknown\n",
            ),
            ("removed", "", "06:40:03 - shop/deployment/web  no longer selected\n"),
            ("synced", r#","data":{"objects":3}"#, "06:40:03 = deployments.apps  synced, 3 objects\n"),
            ("gap", r#","data":{"message":"gone"}"#, "! gone\n"),
            ("added", r#","name":"we\u001b[31mb""#, "06:40:03 + shop/deployment/we\\u{1b}[31mb  v7\n"),
        ] {
            assert_eq!(printed(TailOutput::Pretty, word, &event(more)), expected, "{word}{more}");
        }
        assert_eq!(printed(TailOutput::Json, "added", "{}"), "{}\n");
        assert_eq!(printed(TailOutput::Json, "added", "{\"a\":\"\u{9b}2J\"}"), "{\"a\":\"\\u009b2J\"}\n");
        let reordered = event(r#","data":{"old":{"a":1},"object":{"a":"\u202ex\u2028"}}"#);
        let expected = "06:40:03 ~ shop/deployment/web  a  1 → \\u{202e}x\\u{2028}\n";
        assert_eq!(printed(TailOutput::Diff, "updated", &reordered), expected);
        let changed = event(r#","data":{"old":{"a":1,"b":2},"object":{"a":2,"b":3}}"#);
        let expected = "06:40:03 ~ shop/deployment/web  a 1 → 2, b 2 → 3\n";
        assert_eq!(printed(TailOutput::Pretty, "updated", &changed), expected);
        let scaled = r#","data":{"old":{"spec":{"replicas":3}},"object":{"spec":{"replicas":5}},"changed_by":{"manager":"helm"}}"#;
        let expected = "06:40:03 ~ shop/deployment/web  replicas 3 → 5  by helm\n";
        assert_eq!(printed(TailOutput::Pretty, "updated", &event(scaled)), expected);
        let expected = "06:40:03 ~ shop/deployment/web  a  1 → 2\n06:40:03 ~ shop/deployment/web  b  2 → 3\n";
        assert_eq!(printed(TailOutput::Diff, "updated", &changed), expected);
        assert_eq!(printed(TailOutput::Diff, "added", &event("")), "06:40:03 + shop/deployment/web  v7\n");
    }

    #[test]
    fn tail_line_ends_with_changed_by() {
        let noted = r#","data":{"changed_by":{"manager":"kubectl-\u001b[edit"}}"#;
        let state = |version: &str, time: &str| {
            let entry = |manager: &str, time: &str| {
                format!(r#"{{"manager":"{manager}","operation":"Update","time":"{time}","fieldsV1":{{"f:x":{{}}}}}}"#)
            };
            let entries = [entry("a", time), entry("b", "2026-11-21T06:40:09Z")].join(",");
            format!(
                r#"{{"apiVersion":"v1","kind":"A","metadata":{{"name":"a","resourceVersion":"{version}","managedFields":[{entries}]}},"x":{version}}}"#
            )
        };
        let (old, new) = (state("1", "2026-11-21T06:40:03Z"), state("2", "2026-11-21T06:40:04Z"));
        let kept = &format!(r#","data":{{"object":{new},"old":{old}}}"#);
        let alone = &format!(r#","data":{{"object":{new}}}"#);
        for (word, more, expected) in [
            ("added", noted, "06:40:03 + shop/deployment/web  v7  by kubectl-\\u{1b}[edit\n"),
            ("updated", noted, "06:40:03 ~ shop/deployment/web  v7  by kubectl-\\u{1b}[edit\n"),
            ("updated", kept, "06:40:03 ~ shop/deployment/web  x 1 → 2  by a\n"),
            ("updated", alone, "06:40:03 ~ shop/deployment/web  v7\n"),
            ("updated", r#","data":{"object":{"metadata":{}}}"#, "06:40:03 ~ shop/deployment/web  v7\n"),
            // the author of a deletion is unknown
            ("deleted", noted, "06:40:03 - shop/deployment/web  v7\n"),
        ] {
            assert_eq!(printed(TailOutput::Pretty, word, &event(more)), expected, "{word}{more}");
        }
        let changed = event(r#","data":{"old":{"a":1},"object":{"a":2},"changed_by":{"manager":"helm"}}"#);
        let expected = "06:40:03 ~ shop/deployment/web  a  1 → 2  by helm\n";
        assert_eq!(printed(TailOutput::Diff, "updated", &changed), expected);
    }
}
