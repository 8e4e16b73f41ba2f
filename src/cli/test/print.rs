//! Output of `deltabus test`.

use std::io::{self, Write};

use crate::{
    config::TestCase,
    engine::dry_run::{DryOutcome, DryReport},
    printable::printable,
};
use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::cli::report::counted;

const OK: Style = AnsiColor::Green.on_default();
const FAILED: Style = AnsiColor::Red.on_default().bold();
const NAME: Style = Style::new().bold();
const EVENT: Style = Style::new().dimmed();

/// Returns the number of events that a handler gets for all objects together.
fn sent(report: &DryReport, handler: &str) -> usize {
    report.objects.iter().filter_map(|object| object.handlers.get(handler)).map(|outcome| outcome.sent.len()).sum()
}

/// Returns the handlers whose number of events differs from the expected one: name, expected number, actual number.
pub(super) fn unmet<'a>(test: &'a TestCase, report: &DryReport) -> Vec<(&'a str, usize, usize)> {
    let expected = test.expect.iter().map(|(name, expected)| (name.as_str(), *expected as usize, sent(report, name)));
    expected.filter(|(_, expected, got)| expected != got).collect()
}

/// Prints a line for each test. Below the line of a failed test, prints the reasons.
pub(super) fn tests(out: &mut impl Write, tried: &[(&TestCase, DryReport)], failed: usize) -> io::Result<()> {
    for (test, report) in tried {
        let unmet = unmet(test, report);
        let outcome = if unmet.is_empty() { format!("{OK}ok{OK:#}    ") } else { format!("{FAILED}FAILED{FAILED:#}") };
        writeln!(out, "{outcome}  {}", printable(&test.name))?;
        for (handler, expected, got) in unmet {
            writeln!(out, "        {NAME}{handler}{NAME:#}: expected {}, got {got}", counted(expected, "event"))?;
            for object in &report.objects {
                for why in object.handlers.get(handler).into_iter().flat_map(reasons) {
                    writeln!(out, "          {}: {why}", printable(&object.object))?;
                }
            }
        }
    }
    writeln!(out, "{}: {} ok, {failed} failed", counted(tried.len(), "test"), tried.len() - failed)
}

/// Prints a JSON object for each test, one per line.
pub(super) fn tests_json(out: &mut impl Write, tried: &[(&TestCase, DryReport)]) -> io::Result<()> {
    tried.iter().try_for_each(|(test, report)| {
        let handler = |(name, expected): (&String, &u32)| {
            let outcomes = report.objects.iter().filter_map(|object| object.handlers.get(name));
            let why: Vec<_> = outcomes.flat_map(|outcome| &outcome.not_sent).collect();
            (name.clone(), json!({ "expected": expected, "sent": sent(report, name), "notSent": why }))
        };
        let handlers: serde_json::Map<String, Value> = test.expect.iter().map(handler).collect();
        writeln!(out, "{}", json!({ "test": test.name, "ok": unmet(test, report).is_empty(), "handlers": handlers }))
    })
}

/// Prints the outcome for each object. If `for_terminal` is set, escapes the control characters in events, except tabs, because a
/// terminal would execute them.
pub(super) fn objects(out: &mut impl Write, report: &DryReport, for_terminal: bool) -> io::Result<()> {
    for object in &report.objects {
        let changes: Vec<_> = object.changes.iter().map(|kind| kind.as_str()).collect();
        let changes = if changes.is_empty() { String::new() } else { format!("  {}", changes.join(", ")) };
        writeln!(out, "{NAME}{}{NAME:#}{changes}", printable(&object.object))?;
        let width = object.handlers.keys().map(String::len).max().unwrap_or(0);
        for (handler, outcome) in &object.handlers {
            for (position, said) in reasons(outcome).into_iter().enumerate() {
                let name = if position == 0 { handler } else { "" };
                writeln!(out, "  {name:<width$}  {said}")?;
            }
            for line in outcome.sent.iter().flat_map(|event| event.lines()) {
                let visible = || line.split('\t').map(printable).collect::<Vec<_>>().join("\t");
                let line = if for_terminal { visible() } else { line.to_owned() };
                writeln!(out, "    {EVENT}{line}{EVENT:#}")?;
            }
        }
    }
    Ok(())
}

/// Prints a JSON object for each object and handler, one per line.
pub(super) fn objects_json(out: &mut impl Write, report: &DryReport) -> io::Result<()> {
    for object in &report.objects {
        for (handler, outcome) in &object.handlers {
            let event = |line: &String| serde_json::from_str::<Value>(line).unwrap_or_else(|_| line.as_str().into());
            let sent: Vec<_> = outcome.sent.iter().map(event).collect();
            let line =
                json!({ "object": object.object, "handler": handler, "sent": sent, "notSent": outcome.not_sent });
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// Returns the lines about a handler: one line for all events that it gets, and one line for each reason why it does not get
/// others.
fn reasons(outcome: &DryOutcome) -> Vec<String> {
    let sent = match outcome.sent.len() {
        0 => None,
        1 => Some(format!("{OK}sent{OK:#}")),
        several => Some(format!("{OK}sent{OK:#}, {several} events")),
    };
    sent.into_iter().chain(outcome.not_sent.iter().map(|why| format!("not sent: {}", printable(why)))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::engine::dry_run::ObjectReport;

    use super::*;

    #[test]
    fn test_report_escapes_control_characters() {
        let outcome = DryOutcome {
            sent: vec!["a\tb \u{1b}[2J".to_owned()],
            not_sent: vec!["`resources` does not include \"pods\"".into(), "no \u{9b}2J".into()],
        };
        let handlers = BTreeMap::from([("out".to_owned(), outcome)]);
        let object = ObjectReport { object: "Pod n/\u{1b}]0;x\u{7}".to_owned(), changes: Vec::new(), handlers };
        let report = DryReport { objects: vec![object], guessed: Vec::new() };
        let printed = |for_terminal: bool| {
            let mut out = Vec::new();
            objects(&mut out, &report, for_terminal).unwrap();
            String::from_utf8(out).unwrap()
        };
        let said = anstream::adapter::strip_str(&printed(true)).to_string();
        let expected = "Pod n/\\u{1b}]0;x\\u{7}\n  out  sent\n       not sent: `resources` does not include \"pods\"\n       \
                        not sent: no \\u{9b}2J\n    a\tb \\u{1b}[2J\n";
        assert_eq!(said, expected);
        assert!(printed(false).contains("    \u{1b}[2ma\tb \u{1b}[2J"), "a file gets the event as it is");
    }
}
