//! A subscriber of `/v1/events` with its own socket.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

/// One received event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heard {
    /// Field `id:`; empty if absent.
    pub(crate) id: String,
    /// Field `event:`.
    pub(crate) word: String,
    /// Field `data:`.
    pub(crate) event: Value,
}

impl Heard {
    /// Returns `added replay x`, `synced configmaps` or `gap journal`.
    pub(crate) fn say(&self) -> String {
        let text = |key: &str| self.event[key].as_str().unwrap_or_default();
        match self.word.as_str() {
            "gap" => format!("gap {}", self.event["data"]["reason"].as_str().unwrap_or_default()),
            "synced" => format!("synced {}", text("resource")),
            word => format!("{word} {} {}", text("cause"), text("name")),
        }
    }
}

/// An element of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    Event(Heard),
    Comment,
    End,
}

/// A stream of server-sent events, read on demand.
pub(crate) struct Listener {
    reader: BufReader<TcpStream>,
    /// Last received `id:`, as kept by a browser.
    pub(crate) last_id: String,
    /// The status line and the headers.
    pub(crate) head: String,
}

impl Listener {
    /// Connects and reads the headers; the stream's start position is known then.
    pub(crate) fn open(address: &str, query: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(address).expect("the engine listens");
        stream.set_read_timeout(Some(Duration::from_mins(1))).expect("a time that is not zero");
        let headers: String = headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
        // HTTP/1.0: the body is not chunked
        write!(stream, "GET /v1/events{query} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n").expect("it is read");
        let mut listener = Self { reader: BufReader::new(stream), last_id: String::new(), head: String::new() };
        loop {
            let line = listener.line().expect("an answer has a head");
            if line.is_empty() {
                return listener;
            }
            listener.head.push_str(&line);
            listener.head.push('\n');
        }
    }

    /// Returns the next line without its end; `None` at the end of the stream.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).expect("something comes, a heartbeat at least");
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns the next event, without heartbeats; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Heard> {
        loop {
            match self.block() {
                Block::Event(heard) => return Some(heard),
                Block::Comment => {}
                Block::End => return None,
            }
        }
    }

    /// Returns the next element.
    pub(crate) fn block(&mut self) -> Block {
        let (mut id, mut word, mut data) = (None, String::new(), None);
        loop {
            let Some(line) = self.line() else { return Block::End };
            match line.split_once(':') {
                _ if line.is_empty() => break,
                Some(("id", value)) => id = Some(value.trim().to_owned()),
                Some(("event", value)) => value.trim().clone_into(&mut word),
                Some(("data", value)) => data = Some(value.trim().to_owned()),
                Some(("", _)) => {}
                _ => panic!("no line of a stream: {line:?}"),
            }
        }
        if let Some(id) = &id {
            self.last_id.clone_from(id);
        }
        let Some(data) = data else { return Block::Comment };
        let event = serde_json::from_str(&data).expect("an event is JSON");
        Block::Event(Heard { id: id.unwrap_or_default(), word, event })
    }

    /// Returns the descriptions of the next `count` events.
    pub(crate) fn hear(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.next().expect("the stream goes on").say()).collect()
    }

    /// Reads until a position for a resume is known.
    pub(crate) fn placed(mut self) -> Self {
        while self.last_id.is_empty() {
            assert_eq!(self.block(), Block::Comment, "nothing happened yet");
        }
        self
    }
}
