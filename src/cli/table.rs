//! The live table of `deltabus demo`: a line for each type, below the newest events.

use std::{collections::VecDeque, fmt::Write as _, sync::Arc, time::Duration};

use anstyle::{AnsiColor, Style};
use deltabus::{
    registry::Registry,
    status::{UnitState, UnitView},
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::interval;

use super::terminal::{SCREEN, colours};

/// How often the table is drawn.
const REDRAW: Duration = Duration::from_millis(500);
/// Draws that a rate is taken over: five seconds.
const WINDOW: usize = 10;

/// Draws until the screen is cleared.
pub(crate) async fn draw(registry: Arc<Registry>, footer: Vec<String>) {
    let style = ProgressStyle::with_template("{msg}").expect("the template is right");
    let bar = SCREEN.add(ProgressBar::new_spinner().with_style(style));
    let mut history = VecDeque::new();
    let mut tick = interval(REDRAW);
    loop {
        tick.tick().await;
        let views = registry.views();
        history.push_front(views.iter().map(events).collect::<Vec<u64>>());
        history.truncate(WINDOW + 1);
        bar.set_message(table(&views, &history, &footer, colours()));
    }
}

/// Returns how many changes of a type were applied.
pub(crate) fn events(view: &UnitView) -> u64 {
    view.events.added + view.events.updated + view.events.deleted + view.events.removed
}

/// Words the table; `history` are the counts of events at this and earlier draws, newest first.
fn table(views: &[UnitView], history: &VecDeque<Vec<u64>>, footer: &[String], colours: bool) -> String {
    let style = |style: Style| if colours { style } else { Style::new() };
    let (bold, dim) = (style(Style::new().bold()), style(Style::new().dimmed()));
    let mut text = format!("\n{bold}{}{bold:#}\n", row(["RESOURCE", "STATE", "OBJECTS", "KIB", "EVENTS", "PER S"]));
    let mut totals = [0; 3];
    let mut rate_of_all = 0.0;
    for (i, view) in views.iter().enumerate() {
        let numbers = [view.objects, view.bytes / 1024, events(view)];
        let rate = rate(history, i);
        rate_of_all += rate;
        totals = [0, 1, 2].map(|column| totals[column] + numbers[column]);
        let [objects, kib, events] = numbers.map(|number| number.to_string());
        let line = row([&view.plural, view.state.as_str(), &objects, &kib, &events, &format!("{rate:.1}")]);
        let colour = style(colour_of(view.state));
        writeln!(text, "{colour}{line}{colour:#}").expect("writing to a string succeeds");
    }
    let [objects, kib, events] = totals.map(|number| number.to_string());
    let sum = row(["all", "", &objects, &kib, &events, &format!("{rate_of_all:.1}")]);
    writeln!(text, "{bold}{sum}{bold:#}").expect("writing to a string succeeds");
    for line in footer {
        write!(text, "\n{dim}{line}{dim:#}").expect("writing to a string succeeds");
    }
    text
}

/// Aligns a row within 80 columns.
fn row([resource, state, objects, kib, events, rate]: [&str; 6]) -> String {
    format!("{resource:<27.27} {state:<12} {objects:>8} {kib:>8} {events:>9} {rate:>8}")
}

fn colour_of(state: UnitState) -> Style {
    match state {
        UnitState::Watching => Style::new(),
        UnitState::Listing | UnitState::Waiting | UnitState::Stopped => AnsiColor::Cyan.on_default(),
        UnitState::BackingOff => AnsiColor::Yellow.on_default(),
        UnitState::Forbidden | UnitState::Degraded => AnsiColor::Red.on_default(),
    }
}

/// Returns the events a second of the type in row `i`.
fn rate(history: &VecDeque<Vec<u64>>, i: usize) -> f64 {
    let count = |counts: &Vec<u64>| counts.get(i).copied();
    let Some(newest) = history.front().and_then(count) else { return 0.0 };
    let known = history.iter().enumerate().rev().find_map(|(draws, counts)| Some((draws, count(counts)?)));
    let (draws, oldest) = known.unwrap_or((0, newest));
    let events = u32::try_from(newest.saturating_sub(oldest)).unwrap_or(u32::MAX);
    let seconds = REDRAW * u32::try_from(draws.max(1)).unwrap_or(1);
    f64::from(events) / seconds.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use deltabus::status::UnitStatus;

    use super::*;

    #[test]
    fn the_table_is_aligned_within_80_columns() {
        let view = |plural: &str| {
            let mut view = UnitStatus::waiting("e", plural).view();
            view.events.updated = 40;
            (view.objects, view.bytes, view.state) = (123_456, 1 << 30, UnitState::BackingOff);
            view
        };
        let views = [view("pods"), view("customresourcedefinitions.apiextensions.k8s.io")];
        let history = VecDeque::from([vec![40, 40], vec![30, 40], vec![20, 40]]);
        let text = table(&views, &history, &["footer".to_owned()], false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        let widths: Vec<usize> = lines[1..5].iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0] && *width <= 80), "{widths:?}\n{text}");
        assert!(lines[2].ends_with(" 20.0") && lines[3].ends_with(" 0.0") && lines[4].contains("246912"), "{text}");
        assert!(!text.contains('\x1b') && table(&views, &history, &[], true).contains('\x1b'));
    }
}
