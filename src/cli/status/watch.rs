//! Repeated status: `deltabus status -w`.

use std::io::{self, Write as _};

use anstream::{AutoStream, ColorChoice};
use jiff::Zoned;
use tokio::time::sleep;

use super::{EngineStatus, StatusArgs};
use crate::cli::{
    engine_client::EngineClient,
    report::{self, TableOutput},
    run::StopSignals,
    tail::end_in_any_case,
    terminal,
};

/// Shows the status until SIGTERM or ctrl-c, or until the reader of stdout closes it. An engine that stops answering is shown.
///
/// # Errors
/// Fails if the engine does not answer the first time, or if stdout cannot be written.
pub(super) async fn watch(engine: &EngineClient, args: &StatusArgs) -> anyhow::Result<()> {
    end_in_any_case()?;
    let mut told = StopSignals::new()?;
    let mut screen = Screen::default();
    let is_drawn = args.output == TableOutput::Table && terminal::stdout_size().is_some();
    let mut is_first = true;
    loop {
        let asked = tokio::select! {
            asked = EngineStatus::ask(engine) => asked,
            () = told.recv() => break,
        };
        let status = match asked {
            Err(error) if is_first => return Err(error),
            asked => asked.unwrap_or_else(|error| EngineStatus::unknown(&engine.url, &error)),
        };
        if is_drawn {
            screen.draw(&status)?;
        } else {
            if !is_first {
                writeln!(io::stdout())?;
            }
            print(&status, args.output)?;
        }
        is_first = false;
        tokio::select! {
            () = sleep(args.interval) => {}
            () = told.recv() => break,
        }
    }
    if is_drawn {
        writeln!(io::stdout())?; // the terminal's echo of ^C has no line end
    }
    Ok(())
}

fn print(status: &EngineStatus, output: TableOutput) -> io::Result<()> {
    match output {
        TableOutput::Table => write!(anstream::stdout(), "{}", status.text(Some(&Zoned::now()), None))?,
        TableOutput::Json => report::print_json(&status.document)?,
    }
    io::stdout().flush()
}

/// Part of a terminal on which each status replaces the one before it.
#[derive(Debug, Default)]
struct Screen {
    /// Number of lines of the last frame.
    lines: usize,
    /// Size of the terminal at the last frame.
    size: Option<(usize, usize)>,
}

impl Screen {
    fn draw(&mut self, status: &EngineStatus) -> io::Result<()> {
        let (columns, lines) = terminal::stdout_size().or(self.size).unwrap_or(terminal::SIZE);
        let mut text = status.text(Some(&Zoned::now()), Some(columns - 1));
        if AutoStream::choice(&io::stdout()) == ColorChoice::Never {
            text = console::strip_ansi_codes(&text).into_owned();
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(self.frame(&text, (columns, lines)).as_bytes())?;
        stdout.flush()
    }

    /// Returns the text with control sequences that move to the start of the last frame and erase the rest of it. Cuts the text to
    /// the size of the terminal, a number of columns and lines: otherwise the terminal scrolls, and the start is out of reach.
    fn frame(&mut self, text: &str, size: (usize, usize)) -> String {
        let is_resized = self.size.replace(size).is_some_and(|before| before != size);
        let start = match self.lines {
            _ if is_resized => "\u{1b}[H\u{1b}[2J".to_owned(), // the terminal may have wrapped the old lines
            0 => String::new(),
            lines => format!("\u{1b}[{lines}A\r"),
        };
        // In the last column, some terminals would erase the last character with the rest of the line.
        let (columns, room) = (size.0 - 1, size.1 - 1);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.len() > room {
            let hidden = lines.len() - room + 1;
            lines.truncate(room - 1);
            lines.push(format!("({hidden} more lines do not fit on this terminal)"));
        }
        self.lines = lines.len();
        let cut = lines.iter().map(|line| console::truncate_str(line, columns, "…"));
        let drawn: Vec<_> = cut.map(|line| format!("{line}\u{1b}[K\n")).collect();
        format!("{start}{}\u{1b}[J", drawn.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_replaces_the_one_before_it() {
        let mut screen = Screen::default();
        assert_eq!(screen.frame("a\nb\n", (80, 24)), "a\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
        assert_eq!(screen.frame("c\n", (80, 24)), "\u{1b}[2A\rc\u{1b}[K\n\u{1b}[J");
        assert_eq!(screen.frame("d\n", (40, 24)), "\u{1b}[H\u{1b}[2Jd\u{1b}[K\n\u{1b}[J", "after another size");
    }

    #[test]
    fn frame_fits_terminal() {
        let text = "long ".repeat(40) + &"\nline".repeat(40);
        for size in [(20, 8), (80, 24), (300, 100)] {
            let frame = Screen::default().frame(&text, size);
            let plain = console::strip_ansi_codes(&frame);
            assert!(
                plain.lines().count() < size.1 && plain.lines().all(|line| line.chars().count() <= size.0),
                "{plain}"
            );
            assert_eq!(plain.contains("more lines"), size.1 < 41, "{plain}");
        }
    }
}
