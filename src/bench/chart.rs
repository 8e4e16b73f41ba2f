//! Bar charts of figures: self-contained SVG with colours for light and dark mode.

use std::fmt::Write;

use strum::AsRefStr;

use super::{
    figures::named,
    measure::Machine,
    report::{Measured, number},
};

const WIDTH: f64 = 900.0;
/// Start of the bars; the names are to their left.
const LEFT: f64 = 210.0;
/// Width of the space to the right of the longest bar, for its label.
const RIGHT: f64 = 300.0;
const SPACE: f64 = WIDTH - LEFT - RIGHT;
const BAR: f64 = 16.0;
const STEP: f64 = 26.0;
const HEAD: f64 = 50.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2937}.t{font-weight:600}.s{fill:#6b7280;font-size:12px}\
    .a{fill:#c2410c}.b{fill:#94a3b8}.f{fill:#9ca3af;fill-opacity:.2}@media(prefers-color-scheme:dark){text{fill:#e5e7eb}\
    .s{fill:#9ca3af}.a{fill:#fb923c}.b{fill:#64748b}}";

/// Colour of a bar. Its text form is a class in [`STYLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
pub enum Colour {
    /// Most prominent colour.
    #[strum(serialize = "a")]
    Orange,
    /// Less prominent colour.
    #[strum(serialize = "b")]
    Grey,
    /// Background.
    #[strum(serialize = "f")]
    Faint,
}

type Lengths = Vec<(f64, Colour)>;

/// Bars of one row, drawn on top of each other, the longest first.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Name to the left of the bars.
    pub name: String,
    /// Lengths of the bars, in the unit of the panel.
    pub bars: Lengths,
    /// Text to the right of the bars.
    pub label: String,
}

/// Rows of bars with a common scale.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Name and unit of the figure.
    pub title: String,
    /// Explanation below the title.
    pub note: String,
    /// Rows from top to bottom.
    pub rows: Vec<Bars>,
}

/// Draws panels below each other; panels without rows are omitted.
pub fn bars(title: &str, panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| writeln!(body, "{line}").expect("a string takes all");
    put(format_args!("<text x=\"10\" y=\"24\" class=\"t\">{}</text>", escape(title)));
    let mut y = 34.0;
    for Panel { title, note, rows } in panels.iter().filter(|panel| !panel.rows.is_empty()) {
        put(format_args!("<text x=\"10\" y=\"{:.0}\" class=\"t\">{}</text>", y + 22.0, escape(title)));
        put(format_args!("<text x=\"10\" y=\"{:.0}\" class=\"s\">{}</text>", y + 39.0, escape(note)));
        y += HEAD;
        let longest =
            rows.iter().flat_map(|row| &row.bars).map(|(length, _)| *length).fold(f64::MIN_POSITIVE, f64::max);
        for row in rows {
            let base = y + BAR - 3.0;
            let x = LEFT - 8.0;
            put(format_args!("<text x=\"{x}\" y=\"{base:.0}\" text-anchor=\"end\">{}</text>", escape(&row.name)));
            let mut end = LEFT;
            for (length, colour) in &row.bars {
                let class = colour.as_ref();
                let width = (SPACE * length / longest).max(1.0);
                put(format_args!(
                    "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" class=\"{class}\"/>"
                ));
                end = f64::max(end, LEFT + width);
            }
            put(format_args!("<text x=\"{:.1}\" y=\"{base:.0}\">{}</text>", end + 6.0, escape(&row.label)));
            y += STEP;
        }
    }
    let height = y + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\">\n<title>{}</title>\n<style>{STYLE}</style>\n{body}</svg>\n",
        escape(title)
    )
}

/// Draws CPU per event, cached size relative to the received size, latency and reads, for each element of `measured`.
pub(crate) fn svg(measured: &[Measured], machine: &Machine) -> String {
    let model = if machine.model.is_empty() { &machine.arch } else { &machine.model };
    let panel = |title: &str, note: &str, row: fn(&Measured) -> Option<(Lengths, String)>| {
        let bars = |of: &Measured| row(of).map(|(bars, label)| Bars { name: of.name.clone(), bars, label });
        Panel { title: title.to_owned(), note: note.to_owned(), rows: measured.iter().filter_map(bars).collect() }
    };
    let panels = [
        panel(
            "CPU per event, µs",
            "all threads of the engine, kernel included → events and JSON per second of one busy core",
            cpu,
        ),
        panel(
            "Memory per object, compared with its JSON",
            "orange: compressed JSON; grey: the whole process, divided by the objects; faint: JSON as received",
            memory,
        ),
        panel("Latency of a single change, API server to handler, µs", "orange: p50; grey: p99", latency),
        panel(
            "Reads by key, millions per second of one thread",
            "orange: during changes at full speed; grey: without changes",
            reads,
        ),
    ];
    bars(&format!("deltabus on {} × {model}", machine.cpus), &panels)
}

/// Returns the median of a figure.
fn median(of: &Measured, key: &str) -> Option<f64> {
    named(key).and_then(|figure| of.summary(figure)).map(|summary| summary.median)
}

fn cpu(of: &Measured) -> Option<(Lengths, String)> {
    let micros = median(of, "cpuMicrosPerEvent")?;
    let a_second = 1e6 / micros.max(1e-3);
    let json = median(of, "objectBytes").map(|bytes| format!(", {} MB of JSON", number(a_second * bytes / 1e6, 0)));
    let label = format!("{} → {} events{}", number(micros, 1), number(a_second, 0), json.unwrap_or_default());
    Some((vec![(micros, Colour::Orange)], label))
}

fn memory(of: &Measured) -> Option<(Lengths, String)> {
    let resident = median(of, "residentBytesPerObject")?;
    let whole = median(of, "objectBytes").or_else(|| median(of, "keptBytes"))?;
    let bodies = median(of, "bodyBytesPerObject")?.min(resident);
    let [percent, kept, json] = [100.0 * resident / whole, resident, whole].map(|value| number(value, 0));
    let bars = vec![(1.0, Colour::Faint), (resident / whole, Colour::Grey), (bodies / whole, Colour::Orange)];
    Some((bars, format!("{percent} %: {kept} of {json} bytes")))
}

fn latency(of: &Measured) -> Option<(Lengths, String)> {
    let [p50, p90, p99, max] = ["P50", "P90", "P99", "Max"].map(|which| median(of, &format!("latency{which}Micros")));
    let (p50, p99) = (p50?, p99?);
    let [half, nine, most, longest] = [p50, p90?, p99, max?].map(|micros| number(micros, 0));
    let label = format!("p50 {half}, p90 {nine}, p99 {most}, maximum {longest}");
    Some((vec![(p99, Colour::Grey), (p50, Colour::Orange)], label))
}

fn reads(of: &Measured) -> Option<(Lengths, String)> {
    let quiet = median(of, "readsPerSecond")?;
    let (mut bars, mut label) = (vec![(quiet, Colour::Grey)], number(quiet / 1e6, 1));
    if let (Some(beside), Some(events)) =
        (median(of, "readsPerSecondBesideWriter"), median(of, "writerEventsPerSecond"))
    {
        bars.push((beside, Colour::Orange));
        label = format!("{label}; {} during {} events/s", number(beside / 1e6, 1), number(events, 0));
    }
    Some((bars, label))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{Latency, Run, testing::run};

    fn drawn(runs: &[(&str, Run)]) -> String {
        let of = |(name, run): &(&str, Run)| Measured {
            name: (*name).to_owned(),
            title: String::new(),
            runs: vec![run.clone()],
        };
        let machine = Machine { cpus: 2, model: "A<B> & \"C\"".to_owned(), ..Machine::default() };
        svg(&runs.iter().map(of).collect::<Vec<_>>(), &machine)
    }

    /// Returns the numeric values that an attribute has in a picture.
    fn values(picture: &str, attribute: &str) -> Vec<f64> {
        let begin = format!(" {attribute}=\"");
        let parts = picture.split(&begin).skip(1);
        parts.filter_map(|part| part.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn drawing_stays_within_picture_and_escapes_text() {
        let slow = Run { latency: Latency { max: 90_000_000, ..run().latency }, ..run() };
        let picture = drawn(&[("pods", run()), ("a<b", slow)]);
        assert!(picture.contains("A&lt;B&gt; &amp; &quot;C&quot;") && picture.contains(">a&lt;b<"));
        let height = values(&picture, "height")[0];
        for (attribute, most) in [("x", WIDTH), ("width", WIDTH), ("y", height)] {
            let found = values(&picture, attribute);
            assert!(
                !found.is_empty() && found.iter().all(|value| (0.0..=most).contains(value)),
                "{attribute}: {found:?}"
            );
        }
        assert_eq!(picture.matches("<rect").count(), 16, "eight bars each");
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    }

    #[test]
    fn bar_lengths_are_proportional_to_figures() {
        let mut twice = run();
        twice.events.cpu_nanos *= 2;
        let picture = drawn(&[("one", run()), ("two", twice)]);
        let widths = values(&picture, "width");
        assert_eq!(widths[1..3], [SPACE / 2.0, SPACE], "the first is that of the picture");
    }

    #[test]
    fn chart_omits_unmeasured_figures() {
        let run = Run { events: run().events, synced: run().synced, ..Run::default() };
        let picture = drawn(&[("pods", run)]);
        assert!(picture.contains("CPU per event") && !picture.contains("Latency") && !picture.contains("Reads"));
        assert!(!drawn(&[]).contains("<rect"));
    }
}
