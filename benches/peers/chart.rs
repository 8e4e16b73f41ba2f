//! The figures as a picture: bars, in SVG.

use std::fmt::Write;

use crate::{
    rows::{PEERS, Peer},
    table::{COMPARISONS, Column, Figures, Results, medians, thousands},
};

const WIDTH: f64 = 760.0;
/// Where the bars begin.
const LEFT: f64 = 200.0;
/// Room for the figure behind the longest bar.
const RIGHT: f64 = 80.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
const HEAD: f64 = 44.0;

/// One figure of all peers.
struct Panel {
    title: &'static str,
    of: Column,
    text: fn(f64) -> String,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "µs of CPU an event: shorter is better",
        of: |figures| figures.an_event,
        text: |value| format!("{value:.1}"),
    },
    Panel {
        title: "Resident bytes an object after the events: shorter is better",
        of: |figures| figures.resident,
        text: thousands,
    },
];

/// Draws the first comparison, of each as it comes.
pub(crate) fn svg(results: &Results) -> String {
    let rows: Vec<(Peer, Figures)> = PEERS
        .iter()
        .filter_map(|peer| Some((*peer, medians(&results.get(&(COMPARISONS[0].row_of)(*peer))?.runs))))
        .collect();
    let mut body = String::new();
    let mut top = 0.0;
    for panel in &PANELS {
        top = draw(panel, &rows, top, &mut body);
    }
    let height = top + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<title>Peers side by side</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Draws below `top`; returns where it ends.
fn draw(panel: &Panel, rows: &[(Peer, Figures)], top: f64, into: &mut String) -> f64 {
    let longest = rows.iter().map(|(_, figures)| (panel.of)(figures)).fold(f64::MIN_POSITIVE, f64::max);
    let title = panel.title;
    let mut line = |text: String| writeln!(into, "{text}").expect("a string takes all");
    line(format!("<text x=\"10\" y=\"{}\" font-weight=\"bold\" fill=\"#1b1b1b\">{title}</text>", top + 26.0));
    let mut y = top + HEAD;
    for (peer, figures) in rows {
        let value = (panel.of)(figures);
        let length = (WIDTH - LEFT - RIGHT) * value / longest;
        let color = if *peer == Peer::Deltabus { "#c2410c" } else { "#64748b" };
        let (base, name, text) = (y + 14.0, peer.title(), (panel.text)(value));
        line(format!("<text x=\"{}\" y=\"{base}\" text-anchor=\"end\" fill=\"#1b1b1b\">{name}</text>", LEFT - 8.0));
        line(format!("<rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{color}\"/>"));
        line(format!("<text x=\"{:.1}\" y=\"{base}\" fill=\"#1b1b1b\">{text}</text>", LEFT + length + 6.0));
        y += STEP;
    }
    y
}
