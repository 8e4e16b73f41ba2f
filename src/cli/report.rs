//! Prints messages to stderr. On a terminal, the messages have colours unless `NO_COLOR` is set.

use std::io::{self, Write as _};

use crate::{
    config::{ConfigErrors, Finding},
    printable::{printable, printable_json, printable_lines},
};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde_json::Value;

use super::terminal;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Green.on_default().bold();
const PLACE: Style = Style::new().bold();
/// Style of headers.
pub(crate) const HEADER: Style = Style::new().bold();
const KEY: Style = AnsiColor::Cyan.on_default();
const EXCERPT: Style = Style::new().dimmed();
/// Indentation of a cell below its row.
const INDENT: usize = 4;

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

/// Prints a table to stdout, as wide as the terminal. See [`styled_table`].
pub(crate) fn print_table<R: AsRef<[String]>>(rows: &[R], styles: impl Iterator<Item = Style>) -> io::Result<()> {
    write!(anstream::stdout(), "{}", styled_table(rows, styles, terminal::stdout_columns()))
}

/// Aligns rows of cells. The first row is the header. `styles` has a style for each further row.
///
/// The last cell of a row is often a long text. If the row is wider than `columns`, this cell is written below the row.
pub(crate) fn styled_table<R: AsRef<[String]>>(
    rows: &[R],
    styles: impl Iterator<Item = Style>,
    columns: Option<usize>,
) -> String {
    let heads: Vec<&[String]> =
        rows.iter().map(|row| row.as_ref().split_last().map_or(&[][..], |(_, head)| head)).collect();
    let (whole, heads) = (table(rows), table(&heads));
    let mut output = Vec::new();
    let lines = whole.lines().zip(heads.lines()).zip(rows).zip([HEADER].into_iter().chain(styles));
    for (at, (((whole, head), row), style)) in lines.enumerate() {
        let mut add = |line: &str| output.push(format!("{style}{line}{style:#}\n"));
        match columns.filter(|columns| whole.chars().count() > *columns) {
            None => add(whole),
            Some(_) if at == 0 => add(head),
            Some(columns) => {
                add(head);
                let last = row.as_ref().last().map(|cell| printable(cell)).unwrap_or_default();
                for line in wrapped(&last, columns.saturating_sub(INDENT)) {
                    add(&format!("{:INDENT$}{line}", ""));
                }
            }
        }
    }
    output.concat()
}

/// Breaks a text into lines of at most `columns` characters, at blanks where possible.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    let mut room = columns;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let letters: Vec<char> = word.chars().collect();
        for (at, part) in letters.chunks(columns).enumerate() {
            let is_first = room == columns;
            if at > 0 || !is_first && part.len() + 1 > room {
                lines.push(String::new());
                room = columns;
            } else if !is_first {
                lines.last_mut().expect("there is always a line").push(' ');
                room -= 1;
            }
            lines.last_mut().expect("there is always a line").extend(part);
            room -= part.len();
        }
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(rows: &[[&str; 3]], columns: Option<usize>) -> String {
        let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned)).collect();
        let text = styled_table(&rows, std::iter::repeat(Style::new()), columns);
        console::strip_ansi_codes(&text).into_owned()
    }

    #[test]
    fn last_cell_that_does_not_fit_is_below_its_row() {
        let rows = [["NAME", "QUEUED", "WHY"], ["out", "0", "-"], ["hook", "12", "503 Service Unavailable\u{7}"]];
        let whole = "NAME  QUEUED  WHY\nout   0       -\nhook  12      503 Service Unavailable\\u{7}\n";
        assert_eq!(drawn(&rows, None), whole);
        assert_eq!(drawn(&rows, Some(80)), whole);
        let below = "NAME  QUEUED  WHY\nout   0       -\nhook  12\n    503 Service\n    Unavailable\\u{7}\n";
        assert_eq!(drawn(&rows, Some(20)), below);
        let narrow = "NAME  QUEUED\nout   0\n    -\nhook  12\n    503\n    Service\n";
        assert!(drawn(&rows, Some(14)).starts_with(narrow), "{}", drawn(&rows, Some(14)));
    }

    #[test]
    fn wrapped_text_keeps_its_words() {
        for (text, columns, expected) in [
            ("", 5, &[""][..]),
            ("a bc  def", 5, &["a bc", "def"]),
            ("a bc def", 8, &["a bc def"]),
            ("abcdefghijkl mn", 5, &["abcde", "fghij", "kl mn"]),
            ("ab abcdefg", 5, &["ab", "abcde", "fg"]),
            ("üüü üü", 3, &["üüü", "üü"]),
            ("ab", 0, &["a", "b"]),
        ] {
            assert_eq!(wrapped(text, columns), expected, "{text:?} in {columns}");
        }
    }
}
