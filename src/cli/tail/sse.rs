//! Parser for the server-sent events of an engine: takes pieces, returns events.

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Value of `event:`.
    pub(super) word: String,
    /// Value of `data:`, with its lines joined.
    pub(super) data: String,
}

/// Reader that takes a stream piece by piece.
#[derive(Debug, Default)]
pub(super) struct Reader {
    rest: Vec<u8>,
    id: Option<String>,
    word: String,
    data: Option<String>,
    /// The last `id:` of a complete event or comment. A broken stream resumes at this position.
    pub(super) last_id: Option<String>,
}

impl Reader {
    /// Takes a piece and returns the events that it completes.
    pub(super) fn push(&mut self, piece: &[u8]) -> Vec<Message> {
        self.rest.extend_from_slice(piece);
        let rest = std::mem::take(&mut self.rest);
        let mut lines = rest.split_inclusive(|byte| *byte == b'\n').peekable();
        let mut messages = Vec::new();
        while let Some(line) = lines.next_if(|line| line.ends_with(b"\n")) {
            let line = String::from_utf8_lossy(line);
            messages.extend(self.line(line.trim_end_matches(['\r', '\n'])));
        }
        self.rest = lines.next().unwrap_or_default().to_vec();
        messages
    }

    fn line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            self.last_id = self.id.take().or_else(|| self.last_id.take());
            let word = std::mem::take(&mut self.word);
            return self.data.take().map(|data| Message { word, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.word),
            "data" => match &mut self.data {
                Some(data) => data.extend(["\n", value]),
                None => self.data = Some(value.to_owned()),
            },
            _ => {} // a comment, or a field of a newer engine
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ":\nid: j.1\n\nid: j.2\nevent: added\ndata: {\"a\":1}\n\nevent: added\ndata: {}\n\n:\n\n: later\r\n\r\n";

    #[test]
    fn sse_events_survive_any_chunk_boundaries() {
        let whole = Reader::default().push(STREAM.as_bytes());
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].word.as_str(), whole[0].data.as_str()), ("added", "{\"a\":1}"));
        for size in 1..STREAM.len() {
            let mut reader = Reader::default();
            let pieces: Vec<_> = STREAM.as_bytes().chunks(size).flat_map(|piece| reader.push(piece)).collect();
            assert_eq!((pieces, reader.last_id.as_deref()), (whole.clone(), Some("j.2")), "in pieces of {size}");
        }
    }

    #[test]
    fn position_advances_when_its_event_is_complete() {
        let mut reader = Reader::default();
        assert_eq!(reader.push(b"id: j.7\nevent: added\ndata: {}\n"), []);
        assert_eq!(reader.last_id, None);
        assert_eq!(reader.push(b"\n").len(), 1);
        assert_eq!(reader.last_id.as_deref(), Some("j.7"));
    }
}
