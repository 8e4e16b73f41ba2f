//! Terminal output while the engine runs: logs, progress of the initial syncs, and other drawings.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, IsTerminal as _, Write},
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use crate::{
    config::{Log, LogFormat, LogLevel},
    handler::stdout,
    printable::{printable, printable_json},
    registry,
    status::{UnitState, UnitView},
};
use anstyle::Style;
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    EnvFilter, Registry,
    field::RecordFields,
    fmt::{FormatFields, format::Writer, time::FormatTime},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

/// Columns and lines to assume if the terminal does not report its size.
pub(crate) const SIZE: (usize, usize) = (80, 24);
/// Interval between drawings of the progress.
const REDRAW: Duration = Duration::from_millis(120);
/// Maximum number of drawings per second.
const DRAWINGS_PER_SECOND: u8 = 20;

/// Drawings on stderr, hidden if stderr is not a terminal. Log lines appear above them.
pub(crate) static SCREEN: LazyLock<MultiProgress> = LazyLock::new(|| {
    let terminal = Term::buffered_stderr();
    let is_shown = terminal.is_term();
    let target = || ProgressDrawTarget::term_like_with_hz(Box::new(LastingTerm(terminal)), DRAWINGS_PER_SECOND);
    MultiProgress::with_draw_target(if is_shown { target() } else { ProgressDrawTarget::hidden() })
});

/// Filter of the log.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Terminal that may close at any time. Drawing on a closed terminal does nothing: `MultiProgress` would panic, and the log line about
/// that would draw again.
#[derive(Debug)]
struct LastingTerm(Term);

impl TermLike for LastingTerm {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_up(lines).or(Ok(()))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_down(lines).or(Ok(()))
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_right(columns).or(Ok(()))
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_left(columns).or(Ok(()))
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.0.write_line(line).or(Ok(()))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text).or(Ok(()))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line().or(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush().or(Ok(()))
    }
}

/// Writer of whole lines to stdout or stderr, above the drawings on stderr.
pub(crate) struct AboveTheBars<W>(pub(crate) fn() -> W);

impl<W: Write> Write for AboveTheBars<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        SCREEN.suspend(|| {
            let mut out = (self.0)();
            out.write_all(lines)?;
            out.flush()?;
            Ok(lines.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // each write flushes
    }
}

/// Writer of lines of JSON whose texts cannot control a terminal.
struct PrintableJson<W>(W);

impl<W: Write> Write for PrintableJson<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.write_all(printable_json(&String::from_utf8_lossy(lines)).as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Format of the fields of a log line: the message, then `name=value`. Names and messages of others are in the values, so they are
/// escaped: a log line cannot be forged.
struct PrintableFields;

impl<'a> FormatFields<'a> for PrintableFields {
    fn format_fields<R: RecordFields>(&self, out: Writer<'a>, fields: R) -> fmt::Result {
        let mut visitor = FieldVisitor { out, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct FieldVisitor<'a> {
    out: Writer<'a>,
    is_first: bool,
    result: fmt::Result,
}

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_err() || field.name().starts_with("log.") {
            return; // fields of the crate `log`: target and place
        }
        let gap = if self.is_first { "" } else { " " };
        self.is_first = false;
        let value = printable(&format!("{value:?}"));
        let (name, equals) = if self.out.has_ansi_escapes() {
            (Style::new().italic(), Style::new().dimmed())
        } else {
            (Style::new(), Style::new())
        };
        self.result = match field.name() {
            "message" => write!(self.out, "{gap}{value}"),
            text => write!(self.out, "{gap}{name}{text}{name:#}{equals}={equals:#}{value}"),
        };
    }
}

/// Starts logging to stderr. On a terminal, also makes `stdout` handlers write above the drawings. `RUST_LOG` overrides `[log]
/// level`.
pub(crate) fn start(log: &Log) {
    if io::stdout().is_terminal() && io::stderr().is_terminal() {
        stdout::redirect(|| Box::new(AboveTheBars(io::stdout)));
    }
    let (filter, handle) = reload::Layer::new(filter(log));
    FILTER.get_or_init(|| handle);
    let terminal = io::stderr().is_terminal();
    let json = log.format == LogFormat::Json || log.format == LogFormat::Auto && !terminal;
    // A line that cannot be written is lost. A message about that would be written to stderr too, with a panic.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    if json {
        let layer = layer.json().flatten_event(true);
        registry.with(layer.with_writer(|| PrintableJson(AboveTheBars(io::stderr)))).init();
    } else {
        let layer = layer.with_timer(LocalTime).with_ansi(colours()).fmt_fields(PrintableFields);
        registry.with(layer.with_writer(|| AboveTheBars(io::stderr))).init();
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, panic = panic.payload_as_str(), "panicked");
    }));
}

/// Changes the level of the log to `[log] level`. If `RUST_LOG` is set, the level stays that of `RUST_LOG`.
pub(crate) fn change_level(log: &Log) {
    if let Some(handle) = FILTER.get() {
        drop(handle.reload(filter(log))); // the subscriber lives as long as the process
    }
}

fn filter(log: &Log) -> EnvFilter {
    let level = match log.level {
        // The NATS client logs an error at each attempt. The handler logs the same error once, with the name of the handler.
        LogLevel::Error => "error,async_nats=off",
        LogLevel::Warn => "warn,async_nats=off",
        LogLevel::Info => "info,async_nats=off,fjall=off,lsm_tree=off",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level))
}

/// Time of day for log lines, in the same format as the time of events on a terminal.
struct LocalTime;

impl FormatTime for LocalTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        write!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"))
    }
}

/// Returns true if output on stderr may have colours.
pub(crate) fn colours() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Erases the drawings and stops drawing.
pub(crate) fn clear() {
    drop(SCREEN.clear()); // the terminal may be gone
    SCREEN.set_draw_target(ProgressDrawTarget::hidden());
}

/// Returns the number of columns and lines of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let size = Term::stderr().size_checked();
    size.map_or(SIZE, |(lines, columns)| (usize::from(columns).max(20), usize::from(lines).max(8)))
}

/// Returns the number of columns and lines of stdout; `None` if it is no terminal.
pub(crate) fn stdout_size() -> Option<(usize, usize)> {
    let stdout = Term::stdout();
    let size = stdout.is_term().then(|| stdout.size_checked()).flatten();
    size.map(|(lines, columns)| (usize::from(columns).max(20), usize::from(lines).max(8)))
}

/// Returns the number of columns of stdout; `None` if it is no terminal.
pub(crate) fn stdout_columns() -> Option<usize> {
    stdout_size().map(|(columns, _)| columns)
}

/// Adds an empty drawing to the terminal. The caller sets its message, which may have several lines; see [`cut`].
pub(crate) fn drawing() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").expect("the template is right");
    SCREEN.add(ProgressBar::new_spinner().with_style(style))
}

/// Joins lines, each cut to this number of columns.
pub(crate) fn cut(lines: &[String], columns: usize) -> String {
    let cut = |line: &String| console::truncate_str(line, columns.saturating_sub(1), "…").into_owned();
    lines.iter().map(cut).collect::<Vec<_>>().join("\n")
}

/// Draws a line for each resource until all are synced, then erases the lines and logs the result.
pub(crate) async fn show_initial_syncs(registry: Arc<registry::Registry>) {
    let (started, drawing) = (Instant::now(), drawing());
    while !registry.unready().is_empty() {
        let views = registry.views();
        // The terminal's echo of ^C moves the drawing up by one line. The first line of the drawing is then not erased, so it is
        // left empty.
        let mut lines = vec![String::new()];
        lines.extend(views.iter().map(|view| format!("{:<32} {}", view.plural, progress(view))));
        let synced = views.iter().filter(|view| view.synced).count();
        lines.push(format!("{synced} of {} synced, ctrl-c stops", views.len()));
        drawing.set_message(cut(&lines, size().0));
        tokio::time::sleep(REDRAW).await;
    }
    drawing.finish_and_clear();
    SCREEN.remove(&drawing);
    let views = registry.views();
    let (synced, waiting): (Vec<_>, Vec<_>) = views.iter().partition(|view| view.synced);
    let objects: u64 = synced.iter().map(|view| view.objects).sum();
    // A type in several namespaces counts once.
    let types = synced.iter().map(|view| (&view.api_version, &view.plural)).collect::<BTreeSet<_>>().len();
    let (waiting, after) = (waiting.len(), started.elapsed());
    let late: Vec<_> =
        views.iter().filter(|view| registry::why_unsynced(view).is_some()).map(|view| &view.plural).collect();
    if late.is_empty() {
        tracing::info!(types, objects, waiting, ?after, "ready: every type that exists and is allowed is synced");
    } else {
        tracing::warn!(types, objects, waiting, ?after, ?late, "ready: every required type is synced, others are late");
    }
}

/// Describes the progress of a type.
fn progress(view: &UnitView) -> String {
    let error = view.last_error.as_deref().map_or_else(String::new, |error| format!(": {}", printable(error)));
    match (view.synced, view.state) {
        (true, _) => format!("synced, {} objects", view.objects),
        (false, UnitState::Listing) => format!("listing, {} queued", view.queue_length),
        (false, state) => format!("{}{error}", state.as_ref().replace('_', " ")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing_subscriber::layer::Layer;

    use super::*;
    use crate::printable::is_deceptive;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what a layer writes about an event whose name and message another party has chosen.
    fn logged<L: Layer<Registry> + Send + Sync>(layer: impl FnOnce(Lines) -> L) -> String {
        let lines = Lines::default();
        let forged = "default/x\r\n12:00:00  INFO stopped\u{1b}[2J\u{7}\u{9b}2J\u{202e}\u{2028}";
        tracing::subscriber::with_default(Registry::default().with(layer(lines.clone())), || {
            tracing::warn!(event = %forged, error = ?forged, handler = "out", count = 2, "gave up {forged}");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn names_forge_no_log_line() {
        let text = logged(|lines| {
            let layer = tracing_subscriber::fmt::layer().without_time().with_target(false).with_ansi(false);
            layer.fmt_fields(PrintableFields).with_writer(move || lines.clone())
        });
        let shown = "default/x\\r\\n12:00:00  INFO stopped\\u{1b}[2J\\u{7}\\u{9b}2J\\u{202e}\\u{2028}";
        let expected = format!(" WARN gave up {shown} event={shown} error=\"{shown}\" handler=\"out\" count=2\n");
        assert_eq!(text, expected);

        let json = logged(|lines| {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true);
            layer.with_writer(move || PrintableJson(lines.clone()))
        });
        assert_eq!(json.lines().count(), 1, "{json}");
        assert!(!json.trim_end().contains(is_deceptive), "{json}");
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(line["event"].as_str().unwrap().ends_with("\u{9b}2J\u{202e}\u{2028}"), "{json}");
    }
}
