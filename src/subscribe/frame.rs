//! Encoding of a stream: server-sent events, or JSON lines.
//!
//! | | SSE | NDJSON |
//! |---|---|---|
//! | an event | `id:` position, `event:` last word of its type, `data:` the `CloudEvent` | one line with the `CloudEvent` |
//! | a gap | `event: gap`, `data:` of type `dev.deltabus.stream.gap` | that event, on one line |
//! | end: `when` exceeded a limit | `event: error`, `data:` of type `dev.deltabus.stream.error` | that event, on one line |
//! | heartbeat | a comment, and the current position as `id:` | an empty line |

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::gap::StreamGap;
use crate::{
    cloud_event::{self, Encoder},
    journal::{ChangeKind, Sequence},
    notification::Event,
};

/// Media type of each format.
const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";

/// Format of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFormat {
    /// Server-sent events.
    #[default]
    Sse,
    /// One JSON object per line.
    Ndjson,
}

impl StreamFormat {
    /// Returns the first known format in the header `Accept`; `None` if it names no known format. Without the header, returns SSE.
    pub fn accepted(accept: Option<&str>) -> Option<Self> {
        let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else { return Some(Self::Sse) };
        accept.split(',').find_map(|range| match range.split(';').next().unwrap_or_default().trim() {
            SSE | "text/*" | "*/*" => Some(Self::Sse),
            NDJSON => Some(Self::Ndjson),
            _ => None,
        })
    }

    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Sse => SSE,
            Self::Ndjson => NDJSON,
        }
    }

    /// Returns a heartbeat. `position` is a position to resume at. A client with a narrow filter rarely receives events. If the client
    /// reconnects with this position, the server does not read earlier events again.
    pub fn heartbeat(self, journal: &str, position: Option<Sequence>) -> Bytes {
        match (self, position) {
            (Self::Ndjson, _) => Bytes::from_static(b"\n"),
            (Self::Sse, None) => Bytes::from_static(b":\n\n"),
            (Self::Sse, Some(position)) => format!(":\nid: {}\n\n", sse_id(journal, position)).into(),
        }
    }
}

/// Formats a position of a journal for `id:`, as `<journal>.<sequence>`.
pub(crate) fn sse_id(journal: &str, position: Sequence) -> String {
    format!("{journal}.{:020}", position.0)
}

/// Makes the envelope of an event about the stream itself.
fn notice(kind: &str, id: &str, cluster: &str, journal: &str, now: Timestamp) -> Value {
    json!({
        "specversion": "1.0",
        "id": format!("{journal}.{id}.{kind}"),
        "source": cloud_event::source(cluster),
        "type": format!("dev.deltabus.stream.{kind}"),
        "time": now.to_string(),
        "datacontenttype": "application/json",
        "journal": journal,
    })
}

/// Encoded event. The bytes of each format are a slice of it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// `id: …\nevent: …\ndata: {…}\n\n`
    sse: Bytes,
    /// Offset of the JSON object.
    json: usize,
    /// Offset of the SSE form without `id:`.
    unplaced: usize,
}

impl Frame {
    /// Encodes an event.
    pub(crate) fn of_event(encoder: &Encoder, journal: &str, event: &Event) -> Self {
        let word = ChangeKind::of(&event.record.change).as_str();
        Self::write(&sse_id(journal, event.record.sequence), word, |out| encoder.encode(out, event))
    }

    /// Encodes a gap; the stream continues after it at position `gap.to`. `has_store` means that the engine has a state directory.
    pub(crate) fn of_gap(gap: &StreamGap, has_store: bool, cluster: &str, journal: &str, now: Timestamp) -> Self {
        let position = format!("{:020}", gap.to.0);
        let mut event = notice("gap", &position, cluster, journal, now);
        event["sequence"] = position.into();
        event["data"] = gap.data(has_store);
        Self::write(&sse_id(journal, gap.to), "gap", |out| out.extend_from_slice(event.to_string().as_bytes()))
    }

    /// Encodes the last event of a stream whose expression has exceeded a limit.
    pub(crate) fn of_error(message: &str, cluster: &str, journal: &str, now: Timestamp) -> Self {
        let mut event = notice("error", &now.as_microsecond().to_string(), cluster, journal, now);
        event["data"] = json!({"reason": "when", "message": format!("the stream has ended: {message}")});
        Self::write("", "error", |out| out.extend_from_slice(event.to_string().as_bytes()))
    }

    fn write(id: &str, word: &str, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = format!("id: {id}\n").into_bytes();
        let unplaced = out.len();
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        let json = out.len();
        write(&mut out);
        out.extend_from_slice(b"\n\n");
        Self { sse: out.into(), json, unplaced }
    }

    /// Returns the bytes in a format, without a copy. `is_position` means that a stream can resume after this event. If it is false,
    /// the SSE form has no `id:`.
    pub(crate) fn bytes(&self, format: StreamFormat, is_position: bool) -> Bytes {
        match format {
            StreamFormat::Sse => self.sse.slice(if is_position { 0 } else { self.unplaced }..),
            StreamFormat::Ndjson => self.sse.slice(self.json..self.sse.len() - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{gap::GapReason, ring::testing::event},
        *,
    };
    use crate::journal::testing::updated;

    #[test]
    fn event_frame_has_position_word_and_cloud_event() {
        let encoder = Encoder::new("prod", "9f2c41d07b6e");
        let event = event(48, updated("web", "u", 1, 2));
        let frame = Frame::of_event(&encoder, "9f2c41d07b6e", &event);
        let mut json = Vec::new();
        encoder.encode(&mut json, &event);
        let json = String::from_utf8(json).unwrap();
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let unplaced = format!("event: updated\ndata: {json}\n\n");
        assert_eq!(
            text(frame.bytes(StreamFormat::Sse, true)),
            format!("id: 9f2c41d07b6e.00000000000000000048\n{unplaced}")
        );
        assert_eq!(text(frame.bytes(StreamFormat::Sse, false)), unplaced);
        for is_position in [true, false] {
            assert_eq!(text(frame.bytes(StreamFormat::Ndjson, is_position)), format!("{json}\n"));
        }
    }

    #[test]
    fn gap_is_stream_event() {
        let gap = StreamGap {
            reason: GapReason::Behind,
            asked: None,
            from: Some(Sequence(7)),
            to: Sequence(12),
            events: None,
        };
        let frame = Frame::of_gap(&gap, true, "prod", "9f2c", Timestamp::UNIX_EPOCH);
        let sse = frame.bytes(StreamFormat::Sse, true);
        assert!(sse.starts_with(b"id: 9f2c.00000000000000000012\nevent: gap\ndata: {"));
        let line: serde_json::Value = serde_json::from_slice(&frame.bytes(StreamFormat::Ndjson, true)).unwrap();
        assert_eq!(line["type"], "dev.deltabus.stream.gap");
        assert_eq!(line["data"]["reason"], "behind");
        assert_eq!([&line["data"]["from"], &line["data"]["to"]], ["00000000000000000007", "00000000000000000012"]);
    }

    #[test]
    fn accept_header_selects_first_known_format() {
        for (accept, expected) in [
            (None, Some(StreamFormat::Sse)),
            (Some(""), Some(StreamFormat::Sse)),
            (Some("*/*"), Some(StreamFormat::Sse)),
            (Some("text/event-stream"), Some(StreamFormat::Sse)),
            (Some("application/x-ndjson"), Some(StreamFormat::Ndjson)),
            (Some("text/html, application/x-ndjson;q=0.9, */*"), Some(StreamFormat::Ndjson)),
            (Some("application/json"), None),
        ] {
            assert_eq!(StreamFormat::accepted(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn heartbeat_carries_stream_position() {
        assert_eq!(StreamFormat::Sse.heartbeat("j", Some(Sequence(3))), ":\nid: j.00000000000000000003\n\n");
        assert_eq!(StreamFormat::Sse.heartbeat("j", None), ":\n\n");
        assert_eq!(StreamFormat::Ndjson.heartbeat("j", Some(Sequence(3))), "\n");
    }
}
