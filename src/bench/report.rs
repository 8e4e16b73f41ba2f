//! Figures as a table for users and as a document for programs.

use serde_json::{Map, Value, json};

use super::{
    figures::{FIGURES, Figure, Run, Summary, float},
    measure::Machine,
};

/// Version of the `--json` document. It increases when a field is removed or changes its meaning.
pub(crate) const DOCUMENT_VERSION: u32 = 2;

/// All runs that measured the same shape of objects, or the same type of a live cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Name in documents: a shape, or a resource of a server.
    pub name: String,
    /// Displayed name.
    pub title: String,
    /// Results, at least one.
    pub runs: Vec<Run>,
}

impl Measured {
    /// Summarizes one figure over the runs; `None` if no run measured it.
    pub(crate) fn summary(&self, figure: &Figure) -> Option<Summary> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| figure.value(run)).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Summary { median, min, max })
    }
}

/// Returns a table with a line per figure and a column per [`Measured`]. If there are several runs, a cell has the median and the
/// range.
pub(crate) fn table(measured: &[Measured]) -> String {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(measured.iter().map(|of| of.name.clone()));
    for figure in &FIGURES {
        let summaries: Vec<_> = measured.iter().map(|of| of.summary(figure)).collect();
        if summaries.iter().all(Option::is_none) {
            continue;
        }
        let mut row = vec![format!("{}, {}", figure.title, figure.unit)];
        row.extend(summaries.into_iter().map(|summary| summary.map_or_else(|| "–".to_owned(), |of| cell(figure, &of))));
        rows.push(row);
    }
    align(&rows)
}

fn cell(figure: &Figure, summary: &Summary) -> String {
    let text = |value| number(value, figure.decimals);
    let Summary { median, min, max } = *summary;
    let [median, min, max] = [median, min, max].map(text);
    if min == max { median } else { format!("{median} ({min} … {max})") }
}

/// Aligns the first column to the left and the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.chain(["\n".to_owned()]).collect::<String>()
    };
    rows.iter().map(line).collect()
}

/// Writes a count with thousands separators.
pub(crate) fn grouped(count: u64) -> String {
    number(float(count), 0)
}

/// Writes a number with thousands separators and `decimals` decimal places.
pub fn number(value: f64, decimals: usize) -> String {
    let digits = format!("{value:.decimals$}");
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut text = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text.push_str(rest);
    text
}

/// Returns the JSON document: machine, options, and each figure with its median and range.
pub(crate) fn document(measured: &[Measured], machine: &Machine, options: &Value) -> Value {
    let results: Vec<Value> = measured
        .iter()
        .map(|of| {
            let first = of.runs.first();
            let figures: Map<String, Value> =
                FIGURES.iter().filter_map(|figure| Some((figure.key.to_owned(), json!(of.summary(figure)?)))).collect();
            json!({
                "name": of.name, "runs": of.runs.len(), "objects": first.map(|run| run.synced.objects),
                "changes": first.map(|run| run.changes), "figures": figures,
            })
        })
        .collect();
    json!({
        "version": DOCUMENT_VERSION, "deltabus": env!("CARGO_PKG_VERSION"), "machine": machine, "options": options,
        "results": results,
    })
}

/// Returns the heading: the machine, and a line per kind.
pub(crate) fn heading(measured: &[Measured], machine: &Machine) -> String {
    let model = if machine.model.is_empty() { &machine.arch } else { &machine.model };
    let if_any = |is_any: bool, text: String| if is_any { text } else { String::new() };
    let memory = format!(", {} GB of memory", machine.memory_bytes.div_ceil(1 << 30));
    let memory = if_any(machine.memory_bytes > 0, memory);
    let line = |of: &Measured| {
        let run = of.runs.first()?;
        let [objects, changes] = [run.synced.objects, run.changes].map(grouped);
        let changes = if_any(run.changes > 0, format!(", then {changes} changes"));
        let runs = if_any(of.runs.len() > 1, format!("; {} runs: median (lowest … highest)", of.runs.len()));
        Some(format!("\n{}: {objects} {}{changes}{runs}", of.name, of.title))
    };
    format!("{} × {model}{memory}{}", machine.cpus, measured.iter().filter_map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        figures::{named, testing::run},
        orders::EventsCost,
    };

    fn measured() -> Vec<Measured> {
        let slower = Run { flow: 0.0, events: EventsCost::default(), ..run() };
        vec![
            Measured { name: "pods".to_owned(), title: "pods, 9 KB".to_owned(), runs: vec![run(), run()] },
            Measured { name: "events".to_owned(), title: "events, 1 KB".to_owned(), runs: vec![slower] },
        ]
    }

    #[test]
    fn numbers_have_commas_and_requested_decimals() {
        for (value, decimals, expected) in [
            (0.0, 0, "0"),
            (999.4, 0, "999"),
            (1_234.56, 1, "1,234.6"),
            (1_000_000.0, 0, "1,000,000"),
            (12.0, 2, "12.00"),
        ] {
            assert_eq!(number(value, decimals), expected);
        }
    }

    #[test]
    fn several_runs_give_median_and_range() {
        let summary = |bytes: &[u64]| {
            let runs = bytes.iter().map(|bytes| Run { object_bytes: *bytes, ..Run::default() }).collect();
            Measured { runs, ..Measured::default() }.summary(named("objectBytes").unwrap())
        };
        assert_eq!(summary(&[30, 10, 20]), Some(Summary { median: 20.0, min: 10.0, max: 30.0 }));
        assert_eq!(summary(&[10, 30]), Some(Summary { median: 20.0, min: 10.0, max: 30.0 }));
        assert_eq!(summary(&[0, 0]), None);
    }

    #[test]
    fn table_has_one_line_per_figure() {
        let table = table(&measured());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), FIGURES.len() + 1);
        let widths: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
        let line = |start: &str| *lines.iter().find(|line| line.starts_with(start)).unwrap();
        assert!(line("CPU per event").ends_with('–') && line("CPU per event").contains("9.0"), "{table}");
        assert!(line("first sync, s").contains("0.40  "), "equal runs have no range: {table}");
    }

    #[test]
    fn table_shows_range_of_several_runs() {
        let mut measured = measured();
        measured[0].runs[1].object_bytes = 9_300;
        assert!(table(&measured).contains("9,200 (9,100 … 9,300)"));
        let heading = heading(&measured, &Machine { cpus: 2, arch: "x86_64".to_owned(), ..Machine::default() });
        assert_eq!(
            heading,
            "2 × x86_64\npods: 20,000 pods, 9 KB, then 50,000 changes; 2 runs: median (lowest … highest)\n\
             events: 20,000 events, 1 KB, then 50,000 changes"
        );
    }

    #[test]
    fn json_document_is_versioned_and_names_every_figure() {
        let document = document(&measured(), &Machine::default(), &json!({"seed": 1}));
        assert_eq!(document["version"], DOCUMENT_VERSION);
        assert_eq!(document["options"]["seed"], 1);
        let figures = document["results"][0]["figures"].as_object().unwrap();
        assert_eq!(figures.len(), FIGURES.len());
        assert_eq!(figures["cpuMicrosPerEvent"], json!({"median": 9.0, "min": 9.0, "max": 9.0}));
        assert_eq!(document["results"][1]["figures"].get("cpuMicrosPerEvent"), None);
    }
}
