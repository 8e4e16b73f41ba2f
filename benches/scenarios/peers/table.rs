//! Tables of the figures.

use std::{collections::BTreeMap, fmt::Write};

use deltabus::internals::bench::chart::{Bars, Colour, Panel};

use super::{
    EVENTS, PODS,
    rows::{PEERS, Peer, Row, Variant},
};
use crate::harness::{Figures, Run, thousands};

/// Measurements by row.
pub(super) type Results = BTreeMap<Row, Measured>;

/// All runs of one row.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) runs: Vec<Run>,
    /// Kind of requests that the server received: protocol, media type, with or without streaming list.
    pub(super) reads: String,
}

/// A figure of a table column.
pub(super) type Column = fn(&Figures) -> f64;

/// A table with one row per peer.
pub(super) struct Comparison {
    pub(super) title: &'static str,
    pub(super) row_of: fn(Peer) -> Row,
}

pub(super) const COMPARISONS: [Comparison; 4] = [
    Comparison { title: "As each comes", row_of: by_default },
    Comparison { title: "`managedFields` stripped on either side", row_of: |peer| Row(peer, Variant::Stripped) },
    Comparison { title: "`managedFields` kept on either side", row_of: |peer| Row(peer, Variant::Kept) },
    Comparison { title: "As each comes, over TLS", row_of: |peer| Row(peer, Variant::Tls) },
];

/// deltabus removes `managedFields` by default, the others keep them.
fn by_default(peer: Peer) -> Row {
    Row(peer, if peer == Peer::Deltabus { Variant::Stripped } else { Variant::Kept })
}

/// Columns in which less is better, with the name for listing the peers that have less.
const LESS_IS_BETTER: [(&str, Column); 4] = [
    ("CPU per event", |figures| figures.an_event),
    ("CPU per object at sync", |figures| figures.an_object),
    ("bytes per object after the sync", |figures| figures.resident_at_sync),
    ("bytes per object after the events", |figures| figures.resident),
];

/// Returns all tables that have a row.
pub(super) fn tables(results: &Results) -> String {
    COMPARISONS.iter().map(|comparison| table(comparison, results)).collect()
}

fn rows_of<'a>(comparison: &Comparison, results: &'a Results) -> Vec<(Peer, Figures, &'a str)> {
    let row = |peer: &Peer| {
        let measured = results.get(&(comparison.row_of)(*peer))?;
        Some((*peer, Figures::of(&measured.runs, PODS, EVENTS), &*measured.reads))
    };
    PEERS.iter().filter_map(row).collect()
}

/// Returns the first comparison as panels of a chart.
pub(super) fn panels(results: &Results) -> Vec<Panel> {
    let rows = rows_of(&COMPARISONS[0], results);
    let panel = |title: &str, of: Column, text: fn(f64) -> String| Panel {
        title: title.to_owned(),
        note: "shorter is better".to_owned(),
        rows: rows
            .iter()
            .map(|(peer, figures, _)| {
                let colour = if *peer == Peer::Deltabus { Colour::Orange } else { Colour::Grey };
                Bars { name: peer.title().to_owned(), bars: vec![(of(figures), colour)], label: text(of(figures)) }
            })
            .collect(),
    };
    vec![
        panel("µs of CPU per event", |figures| figures.an_event, |value| format!("{value:.1}")),
        panel("Resident bytes per object after the events", |figures| figures.resident, thousands),
    ]
}

fn table(comparison: &Comparison, results: &Results) -> String {
    let rows = rows_of(comparison, results);
    if rows.is_empty() {
        return String::new();
    }
    let base = rows.iter().find(|(peer, ..)| *peer == Peer::Deltabus).map(|(_, figures, _)| *figures);
    let mut text = format!("### {}\n\n", comparison.title);
    text.push_str(
        "| | µs CPU per event | µs CPU per object at sync | resident bytes per object, after the sync | after the events \
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
    text.push('\n');
    if let Some(base) = base {
        writeln!(text, "{}\n", winners(&rows, &base)).expect("a string takes all");
    }
    text
}

/// Returns the columns in which a peer is better than deltabus.
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

fn ratio(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.1}×") } else { format!("{ratio:.0}×") }
}
