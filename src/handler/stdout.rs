//! Events on stdout: JSON lines for programs, short coloured lines for terminals.

use std::{
    io::{self, IsTerminal as _, Write},
    sync::OnceLock,
};

use jiff::tz::TimeZone;

pub(crate) mod line;

use self::line::Line;
use super::{BUFFER_KEPT_MAX, Handler, HandlerError};
use crate::{cloud_event::Formatter, notification::Notification, printable::printable_lines};

/// Layout of events.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// One line per event: a `CloudEvents` JSON object, or the handler's `format`.
    Lines,
    /// One short line per event: `12:04:31 ~ prod/pod/web  Pending → Running`. Of the output of a template, characters that could
    /// control the terminal are escaped.
    Short {
        /// Set to use colours.
        colour: bool,
        /// Time zone of the shown time.
        zone: TimeZone,
    },
}

impl Look {
    /// Returns the layout for this process's stdout: short on a terminal, with colours unless `NO_COLOR` or `TERM=dumb`
    /// is set.
    pub(crate) fn of_stdout() -> Self {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Self::Lines;
        }
        let colour = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        Self::Short { colour, zone: TimeZone::system() }
    }
}

static REDIRECTED: OnceLock<fn() -> Box<dyn Write + Send>> = OnceLock::new();

/// Lets handlers that are created after this call write through `writer`. A program that draws on the same terminal needs this.
/// Only the first call has an effect.
pub(crate) fn redirect(writer: fn() -> Box<dyn Write + Send>) {
    REDIRECTED.get_or_init(|| writer);
}

/// Handler that writes to stdout, or to another writer: one write per batch.
///
/// On a broken pipe the handler ends, but the engine keeps running.
pub(crate) struct Stdout {
    out: Box<dyn Write + Send>,
    look: Look,
    formatter: Formatter,
    buffer: Vec<u8>,
    /// Set if a write failed within a line, so that the next output starts a new line.
    torn: bool,
}

impl Stdout {
    /// Makes a handler for this process's stdout, or for the writer set by [`redirect`].
    pub(crate) fn new(formatter: impl Into<Formatter>) -> Self {
        let out = REDIRECTED.get().map_or_else(|| Box::new(io::stdout()) as Box<dyn Write + Send>, |writer| writer());
        Self::to(out, Look::of_stdout(), formatter)
    }

    /// Makes a handler for any writer.
    pub(crate) fn to(out: Box<dyn Write + Send>, look: Look, formatter: impl Into<Formatter>) -> Self {
        Self { out, look, formatter: formatter.into(), buffer: Vec::new(), torn: false }
    }

    /// Writes the buffer, and sets `torn` if the write fails within a line, for example because the disk is full.
    fn write(&mut self) -> io::Result<()> {
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.torn = rest[written - 1] != b'\n';
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.flush()
    }
}

impl Handler for Stdout {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        self.buffer.clear();
        if self.torn {
            self.buffer.push(b'\n');
        }
        for event in notification.events() {
            match &self.look {
                Look::Short { colour, zone } if !self.formatter.is_template() => {
                    Line::of(event).write(&mut self.buffer, *colour, zone);
                }
                Look::Lines => self.formatter.line(&mut self.buffer, event)?,
                Look::Short { .. } => {
                    let mut text = Vec::new();
                    self.formatter.line(&mut text, event)?;
                    self.buffer.extend_from_slice(printable_lines(&String::from_utf8_lossy(&text)).as_bytes());
                }
            }
        }
        let written = self.write();
        self.buffer.shrink_to(BUFFER_KEPT_MAX);
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => HandlerError::Closed("the reader of stdout has closed it".to_owned()),
            _ => HandlerError::Failed(format!("failed to write to stdout: {error}")),
        })
    }

    fn close(&mut self) -> Result<(), HandlerError> {
        self.out.flush().map_err(|error| HandlerError::Failed(format!("failed to flush stdout: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{
        change::Change,
        cloud_event::Encoder,
        journal::{Record, Sequence, UnitId, testing::*},
        notification::{Event, UnitInfo},
        object::ResourceType,
    };

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A file on a disk with room for this number of bytes.
    #[derive(Clone)]
    struct Small(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (out, room) = &mut *self.0.lock().unwrap();
            let written = bytes.len().min(*room);
            out.extend(&bytes[..written]);
            *room -= written;
            if written == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(written) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn notification(changes: Vec<Change>) -> Notification {
        let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
        let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "pods".into(), resource, namespace: None });
        let record = |change| Record {
            sequence: Sequence(1),
            unit: UnitId(0),
            time_micros: 43_471_000_000,
            change,
            old_lost: false,
        };
        Notification::new(
            changes.into_iter().map(|change| Event { unit: unit.clone(), record: record(change) }).collect(),
        )
    }

    fn shown(look: Look, changes: Vec<Change>) -> String {
        let out = Shared::default();
        Stdout::to(Box::new(out.clone()), look, Encoder::new("c", "j")).deliver(&notification(changes)).unwrap();
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    fn changes() -> Vec<Change> {
        vec![
            initial("web", "u", 1),
            added("web", "u", 2),
            updated("web", "u", 2, 3),
            deleted("web", "u", 4),
            removed("web", "u", 4),
            synced(3),
            added("we\u{1b}[31mb", "u", 5),
        ]
    }

    #[test]
    fn terminal_gets_one_short_line_per_event() {
        let lines = shown(Look::Short { colour: false, zone: TimeZone::UTC }, changes());
        let expected = [
            "12:04:31 + ns/pod/web  initial",
            "12:04:31 + ns/pod/web  v2",
            "12:04:31 ~ ns/pod/web  metadata.resourceVersion 2 → 3",
            "12:04:31 - ns/pod/web  v4",
            "12:04:31 - ns/pod/web  no longer selected",
            "12:04:31 = pods  synced, 3 objects",
            "12:04:31 + ns/pod/we\\u{1b}[31mb  v5",
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn colours_are_green_yellow_red() {
        let lines = shown(Look::Short { colour: true, zone: TimeZone::UTC }, changes());
        let lines: Vec<_> = lines.lines().collect();
        for (line, colour) in [(1, "\u{1b}[32m+ "), (2, "\u{1b}[33m~ "), (3, "\u{1b}[31m- ")] {
            assert!(lines[line].contains(colour), "{}", lines[line]);
        }
    }

    #[test]
    fn non_terminal_gets_json_lines() {
        let lines = shown(Look::Lines, changes());
        assert_eq!(lines.lines().count(), 7);
        assert!(lines.ends_with('\n') && lines.lines().all(|line| line.starts_with(r#"{"specversion":"1.0","#)));
    }

    #[test]
    fn broken_pipe_ends_handler() {
        let mut handler = Stdout::to(Box::new(Broken), Look::Lines, Encoder::new("c", "j"));
        let error = handler.deliver(&notification(changes())).unwrap_err();
        assert_eq!(error, HandlerError::Closed("the reader of stdout has closed it".into()));
    }

    #[test]
    fn partial_line_spoils_no_later_event() {
        let whole = shown(Look::Lines, changes());
        let first = whole.find('\n').unwrap() + 1;
        for (room, spoiled) in [(0, 0), (100, 1), (first - 1, 0), (first, 0), (first + 7, 1)] {
            let disk = Small(Arc::new(Mutex::new((Vec::new(), room))));
            let mut handler = Stdout::to(Box::new(disk.clone()), Look::Lines, Encoder::new("c", "j"));
            for _ in 0..2 {
                assert!(matches!(handler.deliver(&notification(changes())), Err(HandlerError::Failed(_))));
            }
            disk.0.lock().unwrap().1 = usize::MAX;
            handler.deliver(&notification(changes())).unwrap();
            let text = String::from_utf8(disk.0.lock().unwrap().0.clone()).unwrap();
            assert!(text.ends_with(&whole), "room for {room}: {text}");
            let is_whole = |line: &&str| line.starts_with('{') && line.ends_with('}');
            assert_eq!(text.lines().filter(|line| !is_whole(line)).count(), spoiled, "room for {room}: {text}");
        }
    }
}
