//! The figures as tables.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    EVENTS, PODS,
    rows::{PEERS, Peer, Row, Variant},
    support::observer::{Phase, Run},
};

/// What was measured, by row.
pub(crate) type Results = BTreeMap<Row, Measured>;

/// All runs of one row.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) runs: Vec<Run>,
    /// How the server was asked: protocol, media type, streaming list or not.
    pub(crate) reads: String,
}

/// Medians of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Microseconds of CPU.
    pub(crate) an_event: f64,
    /// Microseconds of CPU.
    pub(crate) an_object: f64,
    /// Bytes an object.
    pub(crate) resident_at_sync: f64,
    /// Bytes an object.
    pub(crate) resident: f64,
    /// Bytes an object: bodies of deltabus, live heap of Go.
    pub(crate) used: f64,
    /// Events a second.
    pub(crate) rate: f64,
}

/// Takes one figure.
pub(crate) type Column = fn(&Figures) -> f64;

/// What stands side by side.
pub(crate) struct Comparison {
    pub(crate) title: &'static str,
    pub(crate) row_of: fn(Peer) -> Row,
}

pub(crate) const COMPARISONS: [Comparison; 4] = [
    Comparison { title: "As each comes", row_of: by_default },
    Comparison { title: "`managedFields` stripped on either side", row_of: |peer| Row(peer, Variant::Stripped) },
    Comparison { title: "`managedFields` kept on either side", row_of: |peer| Row(peer, Variant::Kept) },
    Comparison { title: "As each comes, over TLS", row_of: |peer| Row(peer, Variant::Tls) },
];

/// deltabus strips by default, the others keep.
fn by_default(peer: Peer) -> Row {
    Row(peer, if peer == Peer::Deltabus { Variant::Stripped } else { Variant::Kept })
}

/// Columns in which less is better, by the name under which a peer that has less is told of.
const LESS_IS_BETTER: [(&str, Column); 4] = [
    ("CPU an event", |figures| figures.an_event),
    ("CPU an object at sync", |figures| figures.an_object),
    ("bytes an object after the sync", |figures| figures.resident_at_sync),
    ("bytes an object after the events", |figures| figures.resident),
];

/// Returns all tables that have a row.
pub(crate) fn tables(results: &Results) -> String {
    COMPARISONS.iter().map(|comparison| table(comparison, results)).collect()
}

fn table(comparison: &Comparison, results: &Results) -> String {
    let rows: Vec<(Peer, Figures, &str)> = PEERS
        .iter()
        .filter_map(|peer| {
            let measured = results.get(&(comparison.row_of)(*peer))?;
            Some((*peer, medians(&measured.runs), &*measured.reads))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let base = rows.iter().find(|(peer, ..)| *peer == Peer::Deltabus).map(|(_, figures, _)| *figures);
    let mut text = format!("### {}\n\n", comparison.title);
    text.push_str(
        "| | µs CPU an event | µs CPU an object at sync | resident bytes an object, after the sync | after the events \
         | of these known in use | events/s | reads |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (peer, figures, reads) in &rows {
        let cells = LESS_IS_BETTER.iter().enumerate().map(|(at, (_, of))| {
            let text = if at < 2 { format!("{:.1}", of(figures)) } else { thousands(of(figures)) };
            match base {
                Some(base) if *peer != Peer::Deltabus => format!("{text} ({})", ratio(of(figures) / of(&base))),
                _ => text,
            }
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let used = if figures.used > 0.0 { thousands(figures.used) } else { "–".to_owned() };
        let title = if *peer == Peer::Deltabus { "**deltabus**" } else { peer.title() };
        let rate = thousands(figures.rate);
        writeln!(text, "| {title} | {cells} | {used} | {rate} | {reads} |").expect("a string takes all");
    }
    if let Some(base) = base {
        writeln!(text, "\n{}\n", winners(&rows, &base)).expect("a string takes all");
    }
    text
}

/// Says in which column a peer beats deltabus.
fn winners(rows: &[(Peer, Figures, &str)], base: &Figures) -> String {
    let mut wins = Vec::new();
    for (peer, figures, _) in rows {
        for (what, of) in LESS_IS_BETTER {
            if of(figures) < of(base) {
                wins.push(format!("{} in {what} ({})", peer.title(), ratio(of(figures) / of(base))));
            }
        }
        if figures.rate > base.rate {
            wins.push(format!("{} in events/s ({})", peer.title(), ratio(figures.rate / base.rate)));
        }
    }
    if wins.is_empty() {
        "No peer is ahead of deltabus in a column.".to_owned()
    } else {
        format!("Ahead of deltabus: {}.", wins.join("; "))
    }
}

/// Returns the medians of a row.
#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
pub(crate) fn medians(runs: &[Run]) -> Figures {
    let median = |of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let micros = |phase: &Phase, count: usize| phase.cpu.as_secs_f64() * 1e6 / count as f64;
    Figures {
        an_event: median(&|run| micros(&run.events, EVENTS)),
        an_object: median(&|run| micros(&run.sync, PODS)),
        resident_at_sync: median(&|run| run.sync.resident as f64 / PODS as f64),
        resident: median(&|run| run.events.resident as f64 / PODS as f64),
        used: median(&|run| run.events.used as f64 / PODS as f64),
        rate: median(&|run| EVENTS as f64 / run.events.wall.as_secs_f64()),
    }
}

/// Returns a line on one run.
pub(crate) fn progress(row: Row, run: &Run) -> String {
    let figures = medians(&[*run]);
    format!(
        "{}: {:.1} µs an event, {:.1} µs an object, {} → {} bytes an object",
        row.name(),
        figures.an_event,
        figures.an_object,
        thousands(figures.resident_at_sync),
        thousands(figures.resident)
    )
}

fn ratio(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.1}×") } else { format!("{ratio:.0}×") }
}

/// Rounds, and sets commas.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
