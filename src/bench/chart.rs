//! Figures as a picture: an SVG that needs nothing else, in colours for light and dark.

use std::fmt::{self, Write};

use super::{
    figures::named,
    measure::Machine,
    report::{Measured, number},
};

const WIDTH: f64 = 900.0;
/// Where bars begin: before them stands what they are of.
const LEFT: f64 = 120.0;
/// Room behind the longest bar for its figure.
const RIGHT: f64 = 270.0;
const SPACE: f64 = WIDTH - LEFT - RIGHT;
const BAR: f64 = 16.0;
const STEP: f64 = 26.0;
const PANEL_HEAD: f64 = 50.0;
const PANEL_GAP: f64 = 22.0;
/// Between percentiles that lie so close no second figure is written.
const LABEL_WIDTH: f64 = 46.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2937}.t{font-weight:600}.s{fill:#6b7280;font-size:12px}\
    .a{fill:#c2410c}.b{fill:#94a3b8}.f{fill:#9ca3af;fill-opacity:.2}.g{stroke:#9ca3af;stroke-opacity:.35}.l{stroke:#c2410c;stroke-width:3}\
    .d{fill:#c2410c}@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.s{fill:#9ca3af}.a,.d{fill:#fb923c}.b{fill:#64748b}\
    .l{stroke:#fb923c}}";

/// Draws CPU an event, what is kept of the bytes that came, latency and reads, of each kind; panels for which nothing was
/// measured are left out.
pub fn svg(measured: &[Measured], machine: &Machine) -> String {
    let mut picture = Picture { body: String::new(), y: 34.0 };
    let model = if machine.model.is_empty() { &machine.arch } else { &machine.model };
    picture.text(10.0, 24.0, "t", "start", format_args!("deltabus on {} × {}", machine.cpus, escape(model)));
    cpu(measured, &mut picture);
    memory(measured, &mut picture);
    latency(measured, &mut picture);
    reads(measured, &mut picture);
    let height = picture.y + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\">\n<title>deltabus bench</title>\n<style>{STYLE}</style>\n{}</svg>\n",
        picture.body
    )
}

/// Returns the median of a figure.
fn median(of: &Measured, key: &str) -> Option<f64> {
    named(key).and_then(|figure| of.summary(figure)).map(|summary| summary.median)
}

/// Returns what is drawn of each kind that has it.
fn rows<T>(measured: &[Measured], of: impl Fn(&Measured) -> Option<T>) -> Vec<(&str, T)> {
    measured.iter().filter_map(|one| Some((one.name.as_str(), of(one)?))).collect()
}

struct Picture {
    body: String,
    /// Where the next panel begins.
    y: f64,
}

impl Picture {
    fn put(&mut self, element: fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("a string takes all");
        self.body.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: fmt::Arguments<'_>) {
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn panel(&mut self, title: &str, says: &str) {
        let y = self.y + PANEL_GAP;
        self.text(10.0, y, "t", "start", format_args!("{title}"));
        self.text(10.0, y + 17.0, "s", "start", format_args!("{says}"));
        self.y += PANEL_HEAD;
    }

    /// Writes what a row is of; returns where its bar begins.
    fn row(&mut self, name: &str) -> f64 {
        let y = self.y;
        self.text(LEFT - 8.0, y + BAR - 3.0, "", "end", format_args!("{}", escape(name)));
        self.y += STEP;
        y
    }

    fn bar(&mut self, from: f64, length: f64, y: f64, height: f64, class: &str) {
        let length = length.max(1.0);
        self.put(format_args!(
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{height}\" rx=\"2\" class=\"{class}\"/>"
        ));
    }

    fn label(&mut self, x: f64, y: f64, text: fmt::Arguments<'_>) {
        self.text(x + 6.0, y + BAR - 3.0, "", "start", text);
    }
}

fn cpu(measured: &[Measured], picture: &mut Picture) {
    let rows = rows(measured, |of| Some((median(of, "cpuMicrosPerEvent")?, median(of, "objectBytes"))));
    let Some(longest) = longest(rows.iter().map(|(_, (micros, _))| *micros)) else { return };
    picture
        .panel("CPU an event, µs", "all threads of the engine, kernel included; and what one core so takes a second");
    for (name, (micros, bytes)) in rows {
        let y = picture.row(name);
        let length = SPACE * micros / longest;
        picture.bar(LEFT, length, y, BAR, "a");
        let a_second = 1e6 / micros.max(1e-3);
        let mut text = format!("{} → {} events", number(micros, 1), number(a_second, 0));
        if let Some(bytes) = bytes {
            write_to(&mut text, format_args!(", {} MB of JSON", number(a_second * bytes / 1e6, 0)));
        }
        picture.label(LEFT + length, y, format_args!("{text}"));
    }
}

fn memory(measured: &[Measured], picture: &mut Picture) {
    let rows = rows(measured, |of| {
        let resident = median(of, "residentBytesPerObject")?;
        let whole = median(of, "objectBytes").or_else(|| median(of, "keptBytes"))?;
        Some((median(of, "bodyBytesPerObject")?.min(resident), resident, whole))
    });
    let Some(longest) = longest(rows.iter().map(|(_, (_, resident, whole))| resident / whole)) else { return };
    picture.panel(
        "Memory an object, of its JSON",
        "orange: bodies; grey: keys, indexes, all else above the start; faint: the JSON itself",
    );
    for (name, (bodies, resident, whole)) in rows {
        let y = picture.row(name);
        let scale = SPACE / longest.max(1.0) / whole;
        picture.bar(LEFT, whole * scale, y, BAR, "f");
        picture.bar(LEFT, resident * scale, y, BAR, "b");
        picture.bar(LEFT, bodies * scale, y, BAR, "a");
        let [kept, json] = [resident, whole].map(|bytes| number(bytes, 0));
        let percent = number(100.0 * resident / whole, 0);
        picture.label(LEFT + resident.max(whole) * scale, y, format_args!("{percent} %: {kept} of {json} bytes"));
    }
}

/// Draws percentiles on a scale on which each step is ten times the last.
fn latency(measured: &[Measured], picture: &mut Picture) {
    let keys = ["latencyP50Micros", "latencyP90Micros", "latencyP99Micros", "latencyMaxMicros"];
    let rows = rows(measured, |of| {
        let [p50, p90, p99, max] = keys.map(|key| median(of, key));
        Some([p50?, p90?, p99?, max?].map(|micros| micros.max(1.0)))
    });
    let all = || rows.iter().flat_map(|(_, values)| *values);
    let Some(most) = longest(all()) else { return };
    let (low, high) = (all().fold(most, f64::min).log10().floor(), (most.log10().ceil()));
    let place = |micros: f64| LEFT + (SPACE + 100.0) * (micros.log10() - low) / (high - low).max(1.0);
    picture.panel(
        "A change at rest, from socket to handler, µs",
        "p50, p90, p99 and the longest; each line is ten times the last",
    );
    picture.y += 8.0; // figures stand above the first row
    let (top, bottom) = (picture.y - 10.0, picture.y + STEP * count(rows.len()));
    let mut power = low;
    while power <= high {
        let x = place(10_f64.powf(power));
        picture.put(format_args!("<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" class=\"g\"/>"));
        picture.text(x, bottom + 13.0, "s", "middle", format_args!("{}", number(10_f64.powf(power), 0)));
        power += 1.0;
    }
    for (name, values) in rows {
        let y = picture.row(name) + BAR / 2.0;
        let [first, .., last] = values.map(place);
        picture.put(format_args!("<line x1=\"{first:.1}\" y1=\"{y:.1}\" x2=\"{last:.1}\" y2=\"{y:.1}\" class=\"l\"/>"));
        let mut free_from = 0.0;
        for micros in values {
            let x = place(micros);
            picture.put(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" class=\"d\"/>"));
            if x >= free_from {
                picture.text(x, y - 7.0, "s", "middle", format_args!("{}", number(micros, 0)));
                free_from = x + LABEL_WIDTH;
            }
        }
    }
    picture.y += 16.0;
}

fn reads(measured: &[Measured], picture: &mut Picture) {
    let rows = rows(measured, |of| {
        Some((
            median(of, "readsPerSecond")?,
            median(of, "readsPerSecondBesideWriter"),
            median(of, "writerEventsPerSecond"),
        ))
    });
    let Some(longest) = longest(rows.iter().map(|(_, (reads, beside, _))| reads.max(beside.unwrap_or(0.0)))) else {
        return;
    };
    picture.panel(
        "Reads by key, millions a second of one thread",
        "orange: nothing changes; grey: beside a writer at full speed",
    );
    for (name, (reads, beside, events)) in rows {
        let y = picture.row(name);
        let scale = SPACE / longest;
        let half = if beside.is_some() { BAR / 2.0 } else { BAR };
        picture.bar(LEFT, reads * scale, y, half, "a");
        let mut text = number(reads / 1e6, 1);
        if let Some(beside) = beside {
            picture.bar(LEFT, beside * scale, y + half, half, "b");
            write_to(&mut text, format_args!(", {}", number(beside / 1e6, 1)));
        }
        if let Some(events) = events {
            write_to(&mut text, format_args!(" beside {} events/s", number(events, 0)));
        }
        picture.label(LEFT + reads.max(beside.unwrap_or(0.0)) * scale, y, format_args!("{text}"));
    }
}

fn write_to(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all");
}

/// Returns the largest of some, where there is one above zero.
fn longest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max).filter(|longest| *longest > 0.0)
}

#[expect(clippy::cast_precision_loss, reason = "a few rows")]
fn count(rows: usize) -> f64 {
    rows as f64
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{Run, testing::run};

    fn drawn(runs: &[(&str, Run)]) -> String {
        let of = |(name, run): &(&str, Run)| Measured {
            name: (*name).to_owned(),
            title: String::new(),
            runs: vec![run.clone()],
        };
        let machine = Machine { cpus: 2, model: "A<B> & \"C\"".to_owned(), ..Machine::default() };
        svg(&runs.iter().map(of).collect::<Vec<_>>(), &machine)
    }

    /// The numbers of an attribute.
    fn values(picture: &str, attribute: &str) -> Vec<f64> {
        let begin = format!(" {attribute}=\"");
        let parts = picture.split(&begin).skip(1);
        parts.filter_map(|part| part.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn everything_lies_within_the_picture_and_text_is_escaped() {
        let slow =
            Run { latency: run().latency.map(|of| super::super::figures::Latency { max: 90_000_000, ..of }), ..run() };
        let picture = drawn(&[("pods", run()), ("a<b", slow)]);
        assert!(picture.contains("A&lt;B&gt; &amp; &quot;C&quot;") && picture.contains(">a&lt;b<"));
        let height = values(&picture, "height")[0];
        for (attribute, most) in [("x", WIDTH), ("x2", WIDTH), ("cx", WIDTH), ("y", height), ("cy", height)] {
            let found = values(&picture, attribute);
            assert!(
                !found.is_empty() && found.iter().all(|value| (0.0..=most).contains(value)),
                "{attribute}: {found:?}"
            );
        }
        assert_eq!(picture.matches("<circle").count(), 8, "four percentiles each");
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    }

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let mut twice = run();
        twice.events.as_mut().unwrap().cpu_nanos *= 2;
        let picture = drawn(&[("one", run()), ("two", twice)]);
        let widths = values(&picture, "width");
        assert_eq!(widths[1..3], [SPACE / 2.0, SPACE], "the first is that of the picture");
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let picture = drawn(&[("pods", Run { latency: None, reads: None, reads_beside_writer: None, ..run() })]);
        assert!(
            picture.contains("CPU an event") && !picture.contains("socket to handler") && !picture.contains("Reads")
        );
        assert!(!drawn(&[]).contains("<rect"));
    }
}
