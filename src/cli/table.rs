//! Screen of `deltabus demo`: news, a line for each type, the newest events, and addresses.
//!
//! A frame is drawn four times a second, in one write, within the width and height of the terminal.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    mutex::lock,
    notification::Notification,
    registry::Registry,
    simulator::News,
    status::{UnitState, UnitView},
};
use anstyle::{AnsiColor, Style};
use console::Term;
use tokio::time::{Instant, sleep};

use super::terminal::{self, SCREEN, colours};

/// Interval between frames.
const REDRAW: Duration = Duration::from_millis(250);
/// Interval between two checks whether all types are synced.
const LOOK: Duration = Duration::from_millis(20);
/// Number of frames over which a rate is measured. They take five seconds.
const WINDOW: usize = 20;
/// Maximum number of lines with news.
const NEWS_MAX: usize = 3;
/// Maximum number of lines with events.
const EVENTS_MAX: usize = 5;
/// Number of rows with types that a low screen shows before it shows any events.
const ROWS_WANTED: usize = 12;

/// Newest events as lines, shared by the handler that writes them and the frame that shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent(Arc<Mutex<Vec<String>>>);

impl Recent {
    fn newest(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

impl Write for Recent {
    /// Appends the lines of `text`. Drops the oldest lines above `EVENTS_MAX`.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut lines = lock(&self.0);
        lines.extend(String::from_utf8_lossy(text).lines().map(str::to_owned));
        let surplus = lines.len().saturating_sub(EVENTS_MAX);
        lines.drain(..surplus);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the newest events of a notification. The screen has no room for more.
pub(crate) fn newest(notification: &Notification) -> Notification {
    let events = notification.events().len();
    notification.slice(events.saturating_sub(EVENTS_MAX)..events)
}

/// Draws frames with the types, the newest events, the news of the cluster and the footer. Never returns.
pub(crate) async fn draw(registry: Arc<Registry>, recent: Recent, news: News, footer: Vec<String>) {
    let drawing = terminal::drawing();
    let (mut history, mut size) = (History::default(), terminal::size());
    let started = Instant::now();
    let mut frame = Frame { footer, colours: colours(), ..Frame::default() };
    let mut next = started;
    loop {
        if frame.synced.is_none() && registry.unready().is_empty() {
            frame.synced = Some(started.elapsed());
            next = Instant::now();
        }
        if Instant::now() >= next {
            next += REDRAW;
            history.push(registry.views());
            let now = terminal::size();
            if now != size {
                wipe();
                size = now;
            }
            (frame.news, frame.events) = (news.latest(), recent.newest());
            drawing.set_message(frame.text(&history.rows(), size.0, size.1));
        }
        let pause = if frame.synced.is_none() { LOOK } else { next.saturating_duration_since(Instant::now()) };
        sleep(pause).await;
    }
}

/// Clears the whole screen. After a change of width, the terminal wraps the old lines, so they cannot be erased one by one.
fn wipe() {
    drop(SCREEN.clear()); // the terminal may be gone
    drop(Term::stderr().clear_screen());
}

/// Returns the number of applied changes of a type.
pub(crate) fn events(view: &UnitView) -> u64 {
    view.events.added + view.events.updated + view.events.deleted + view.events.removed
}

/// List of the types in each of the last frames. The newest frame is first.
#[derive(Default)]
struct History(VecDeque<Vec<UnitView>>);

/// Type with its recent number of events per second.
struct Row<'a> {
    view: &'a UnitView,
    rate: f64,
}

impl History {
    fn push(&mut self, views: Vec<UnitView>) {
        self.0.push_front(views);
        self.0.truncate(WINDOW + 1);
    }

    /// Returns the types, those with the most events first. Types that are not served come last.
    fn rows(&self) -> Vec<Row<'_>> {
        let frames = u32::try_from(self.0.len().saturating_sub(1)).unwrap_or(1).max(1);
        let row = |view| Row { view, rate: f64::from(self.recent(view)) / (REDRAW * frames).as_secs_f64() };
        let mut rows: Vec<_> = self.0.front().into_iter().flatten().map(row).collect();
        rows.sort_by_key(|row| (row.is_waiting(), Reverse(events(row.view))));
        rows
    }

    /// Returns the number of events of a type since the oldest frame in which the type was synced. Earlier events do not count:
    /// they come from the first list, so they show no activity.
    fn recent(&self, view: &UnitView) -> u32 {
        let is_it = |old: &&UnitView| (&old.api_version, &old.plural) == (&view.api_version, &view.plural);
        let before = self.0.iter().rev().filter_map(|views| views.iter().find(is_it)).find(|old| old.synced);
        let recent = before.map_or(0, |before| events(view).saturating_sub(events(before)));
        u32::try_from(recent).unwrap_or(u32::MAX)
    }
}

impl Row<'_> {
    fn is_waiting(&self) -> bool {
        self.view.state == UnitState::Waiting
    }

    /// Returns the name of the type. The name includes the group, unless the group belongs to Kubernetes itself.
    fn name(&self) -> String {
        let group = self.view.api_version.split_once('/').map_or("", |(group, _)| group);
        if group.contains('.') && !group.ends_with(".k8s.io") {
            format!("{}.{group}", self.view.plural)
        } else {
            self.view.plural.clone()
        }
    }
}

/// Content of a frame, except the lines of the types.
#[derive(Default)]
struct Frame {
    /// Duration until all types were synced.
    synced: Option<Duration>,
    /// Lines with news; the newest line is last, as in `events`.
    news: Vec<String>,
    events: Vec<String>,
    /// Lines below the table. The most important line is last, because a low screen shows only the last lines.
    footer: Vec<String>,
    colours: bool,
}

impl Frame {
    /// Renders the frame within this number of columns and lines.
    fn text(&self, rows: &[Row<'_>], columns: usize, lines: usize) -> String {
        let style = |style: Style| if self.colours { style } else { Style::new() };
        let (bold, dim) = (style(Style::new().bold()), style(Style::new().dimmed()));
        let paint = |style: Style, text: &str| format!("{style}{text}{style:#}");
        // The terminal's echo of ^C moves the drawing up by one line. The first line of the drawing is then not erased, so it is
        // left empty.
        let mut frame = vec![String::new(), paint(bold, &self.title(rows))];
        let footer = &self.footer[self.footer.len().saturating_sub(lines / 3)..];
        let room = lines.saturating_sub(1 + frame.len() + 2 + footer.len() + 1);
        let news = self.news.len().min(NEWS_MAX).min(room.saturating_sub(4));
        let room = room.saturating_sub(news);
        let wanted = rows.len().min(ROWS_WANTED + 1);
        let events = self.events.len().min(EVENTS_MAX).min(room.saturating_sub(wanted + 1));
        let room = room.saturating_sub(if events > 0 { events + 1 } else { 0 });
        for (at, news) in self.news.iter().rev().take(news).enumerate() {
            let (style, sign) = if at == 0 { (style(AnsiColor::Cyan.on_default()), '>') } else { (dim, ' ') };
            frame.push(paint(style, &format!("{sign} {news}")));
        }
        frame.push(String::new());
        frame.push(paint(bold, &cells(columns, ["RESOURCE", "STATE", "OBJECTS", "KIB", "EVENTS", "PER S"])));
        let shown = if rows.len() <= room { rows.len() } else { room.saturating_sub(1) };
        for row in &rows[..shown] {
            frame.push(paint(style(colour_of(row.view.state)), &row_text(columns, row)));
        }
        if shown < rows.len() {
            frame.push(paint(dim, &format!("and {} more types", rows.len() - shown)));
        }
        if events > 0 {
            frame.push(String::new());
            frame.extend(self.events[self.events.len() - events..].iter().cloned());
        }
        frame.push(String::new());
        frame.extend(footer.iter().map(|line| paint(dim, line)));
        terminal::cut(&frame, columns)
    }

    fn title(&self, rows: &[Row<'_>]) -> String {
        let there = rows.iter().filter(|row| !row.is_waiting());
        let (types, objects) = (there.clone().count(), there.clone().map(|row| row.view.objects).sum::<u64>());
        let rate: f64 = there.map(|row| row.rate).sum();
        let synced = if let Some(after) = self.synced {
            format!("all synced after {:.2} s", after.as_secs_f64())
        } else {
            let synced = rows.iter().filter(|row| row.view.synced).count();
            format!("{synced} of {types} synced")
        };
        format!("deltabus demo: {types} types, {objects} objects, {rate:.0} events/s; {synced}")
    }
}

fn row_text(columns: usize, row: &Row<'_>) -> String {
    let [objects, kib, events] =
        [row.view.objects, row.view.bytes / 1024, events(row.view)].map(|number| number.to_string());
    cells(columns, [&row.name(), row.view.state.as_ref(), &objects, &kib, &events, &format!("{:.1}", row.rate)])
}

/// Aligns a row; the first column gets the spare width of a wide terminal.
fn cells(columns: usize, [resource, state, objects, kib, events, rate]: [&str; 6]) -> String {
    let first = columns.saturating_sub(50).clamp(18, 40);
    format!("{resource:<first$.first$} {state:<12} {objects:>8} {kib:>7} {events:>8} {rate:>7}")
}

fn colour_of(state: UnitState) -> Style {
    match state {
        UnitState::Watching => Style::new(),
        UnitState::Listing | UnitState::Waiting | UnitState::Stopped => AnsiColor::Cyan.on_default(),
        UnitState::BackingOff => AnsiColor::Yellow.on_default(),
        UnitState::Forbidden | UnitState::Degraded => AnsiColor::Red.on_default(),
    }
}

#[cfg(test)]
mod tests {
    use crate::status::UnitStatus;

    use super::*;

    fn view(plural: &str, updated: u64, state: UnitState) -> UnitView {
        let mut view = UnitStatus::waiting("e", plural).view();
        view.api_version = "v1".to_owned();
        (view.events.updated, view.objects, view.bytes, view.state) = (updated, 123_456, 1 << 30, state);
        view.synced = true;
        view
    }

    fn frame(footer: &[String], colours: bool) -> Frame {
        let news = ["first", "second", "third", "fourth"].map(str::to_owned).to_vec();
        let events = vec!["12:00:00 ~ shop-1/pod/web-0-abc  v4711".to_owned(); 9];
        Frame { synced: Some(Duration::from_millis(210)), news, events, footer: footer.to_vec(), colours }
    }

    fn history(types: usize) -> History {
        let mut history = History::default();
        history.push((0..types).map(|number| view(&format!("kind{number:02}s"), 0, UnitState::Watching)).collect());
        history
    }

    #[test]
    fn frame_fits_every_terminal_and_uses_its_height() {
        let footer = [
            "reads: http://127.0.0.1:8080/v1/resources",
            "cluster",
            "try: tail",
            "try: get",
            "try: verify",
            "ctrl-c stops",
        ];
        let footer = footer.map(str::to_owned);
        for columns in [20, 40, 80, 200] {
            for lines in [8, 12, 16, 24, 40, 100] {
                for types in [1, 5, 31, 300] {
                    let text = frame(&footer, true).text(&history(types).rows(), columns, lines);
                    let drawn: Vec<_> = text.lines().collect();
                    let plain = console::strip_ansi_codes(&text).into_owned();
                    let widest = plain.lines().map(|line| line.chars().count()).max().unwrap();
                    assert!(widest < columns, "{widest} of {columns} columns\n{text}");
                    assert!(drawn.len() < lines || lines < 12, "{} of {lines} lines\n{text}", drawn.len());
                    let shown = plain.matches(" watching").count();
                    assert!(columns < 80 || shown == types || drawn.len() + 1 == lines || lines < 12, "{text}");
                }
            }
        }
    }

    #[test]
    fn most_active_types_come_first_with_rest_summed() {
        let mut history = history(30);
        for frame in 1..10 {
            let updated = |number: u64| if number == 25 { frame * 10 } else { u64::from(number == 3) * frame };
            let views = (0..30).map(|number| view(&format!("kind{number:02}s"), updated(number), UnitState::Watching));
            history.push(views.collect());
        }
        let text = frame(&[], false).text(&history.rows(), 80, 24);
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("kind")).collect();
        assert!(rows[0].starts_with("kind25s") && rows[0].ends_with(" 40.0"), "{text}");
        assert!(rows[1].starts_with("kind03s"), "{text}");
        let rest = format!("and {} more types", 30 - rows.len());
        assert!(text.contains(&rest) && rows.len() >= 12, "{text}");
        assert!(text.contains("> fourth") && text.contains("synced after 0.21 s") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn removed_type_keeps_order_of_others() {
        let mut history = history(4);
        let mut coming = view("later", 0, UnitState::Waiting);
        coming.api_version.clear();
        let kept = [0, 2, 3].map(|number| view(&format!("kind{number:02}s"), 0, UnitState::Watching));
        history.push([coming].into_iter().chain(kept).collect());
        let names: Vec<_> = history.rows().iter().map(Row::name).collect();
        assert_eq!(names, ["kind00s", "kind02s", "kind03s", "later"]);
    }

    #[test]
    fn newest_events_are_kept() {
        let mut recent = Recent::default();
        for batch in 0..100 {
            let lines: Vec<_> = (0..batch).map(|line| format!("{batch}.{line}\n")).collect();
            recent.write_all(lines.concat().as_bytes()).unwrap();
        }
        assert_eq!(recent.newest(), ["99.94", "99.95", "99.96", "99.97", "99.98"]);
    }
}
