//! Prints messages to stderr. On a terminal, the messages have colours unless `NO_COLOR` is set.

use std::io::{self, Write as _};

use crate::{
    config::{ConfigErrors, Finding},
    printable::{printable, printable_json, printable_lines},
};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde_json::Value;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Green.on_default().bold();
const PLACE: Style = Style::new().bold();
/// Style of headers.
pub(crate) const HEADER: Style = Style::new().bold();
const KEY: Style = AnsiColor::Cyan.on_default();
const EXCERPT: Style = Style::new().dimmed();

/// Format of an output that is a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableOutput {
    /// Aligned columns.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// Format of an output that is text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOutput {
    /// Text for people.
    #[default]
    Text,
    /// JSON.
    Json,
}

/// Prints every error and warning of a configuration, and how many there are.
pub(crate) fn errors(errors: &ConfigErrors) {
    for error in &errors.errors {
        finding(ERROR, "error", error);
    }
    if errors.more > 0 {
        failure(&format!("{} are not listed", counted(errors.more, "more error")));
    }
    warnings(&errors.warnings);
    let mut count = counted(errors.errors.len() + errors.more, "error");
    if !errors.warnings.is_empty() {
        count = format!("{count}, {}", counted(errors.warnings.len(), "warning"));
    }
    failure(&format!("the configuration cannot be used: {count}"));
}

/// Prints warnings.
pub(crate) fn warnings(warnings: &[Finding]) {
    for warning in warnings {
        finding(WARNING, "warning", warning);
    }
}

/// Prints notes on a configuration.
pub(crate) fn notes(notes: &[Finding]) {
    for note in notes {
        finding(NOTE, "note", note);
    }
}

/// Aligns rows of cells; the last cell of a row is not padded.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    aligned(rows, "  ")
}

/// Aligns rows of cells with this gap between columns. Escapes characters that could control a terminal.
pub(crate) fn aligned<R: AsRef<[String]>>(rows: &[R], gap: &str) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| printable(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join(gap).trim_end())
    };
    rows.iter().map(line).collect()
}

/// Prints a table to stdout. The first row is the header. `styles` has a style for each further row.
pub(crate) fn print_table<R: AsRef<[String]>>(rows: &[R], styles: impl Iterator<Item = Style>) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    for (line, style) in table(rows).lines().zip([HEADER].into_iter().chain(styles)) {
        writeln!(stdout, "{style}{line}{style:#}")?;
    }
    Ok(())
}

/// Prints a JSON document to stdout, over several lines.
pub(crate) fn print_json(document: &Value) -> io::Result<()> {
    writeln!(io::stdout(), "{}", printable_json(&format!("{document:#}")))
}

/// Prints an error.
pub(crate) fn failure(message: &str) {
    drop(writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {}", printable_lines(message)));
}

/// Prints a note.
pub(crate) fn note(message: &str) {
    drop(writeln!(anstream::stderr(), "{NOTE}note{NOTE:#}: {}", printable_lines(message)));
}

/// Returns `1 error`, `2 errors`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn finding(style: Style, label: &str, finding: &Finding) {
    let Finding { origin, key, message, excerpt } = finding;
    let key = if key.is_empty() { String::new() } else { format!("{KEY}{key}{KEY:#}: ") };
    drop(writeln!(
        anstream::stderr(),
        "{style}{label}{style:#}: {PLACE}{origin}{PLACE:#}: {key}{}",
        printable_lines(message)
    ));
    if let Some(excerpt) = excerpt {
        drop(writeln!(anstream::stderr(), "{EXCERPT}{}{EXCERPT:#}", printable_lines(excerpt)));
    }
}
