//! Decoder of the documents of a watch stream.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::{
    Cow, FRAME_MAX, JsonCursor, Nesting, Progress, ScanError, Scanned, SkipReason, TypeMeta, check_len, clear, status,
    trim_start, type_name,
};
use crate::{
    list_watch::{Failure, PassedOver, WatchEvent},
    object::{
        NotedParts, Object, ResourceVersion,
        scan::{ScanPlan, annotations_of},
    },
};

/// A decoder of a watch stream (T-6): consecutive documents `{"type":…,"object":…}`, with or without separators.
///
/// - A document becomes [`WatchEvent::Skipped`] if its object does not have the served type.
/// - An object that is nested too deeply becomes a placeholder, which has its name and version.
/// - After [`WatchEvent::Undecodable`] or an error, the decoder reads no more bytes.
/// - A document that is incomplete at the end of the stream is ignored: this is how streams normally end.
/// - At a line break within a document, the decoder checks the part before it. A malformed part becomes
///   [`WatchEvent::Undecodable`].
#[derive(Debug)]
pub struct WatchDecoder {
    reader: Reader,
    frame_bytes_max: usize,
    /// Beginning of a document that has not ended yet.
    pending: Vec<u8>,
    /// Bracket nesting at the end of `pending`.
    nesting: Nesting,
    /// Total number of bytes that [`WatchDecoder::check_lines`] has read in the pending document. Repeated reads count again.
    checked: usize,
    ended: bool,
}

/// Path of the object in a document.
const OBJECT: &[&str] = &["object"];

/// Number of bytes that [`WatchDecoder::check_lines`] may read in one document, however short the document is.
const CHECKED_BYTES: usize = 16 << 20;

/// Reader of complete documents.
#[derive(Debug)]
struct Reader {
    served: TypeMeta,
    plan: Arc<ScanPlan>,
}

impl WatchDecoder {
    /// Creates a decoder of a stream that serves objects of type `served`; `plan` builds the objects.
    ///
    /// The plan's type may differ from `served`: a metadata-only watch serves `meta.k8s.io/v1` `PartialObjectMetadata`, while its
    /// objects carry the real type. A document longer than `frame_bytes_max` (at most 2 GiB) ends the stream.
    pub fn new(served: TypeMeta, plan: Arc<ScanPlan>, frame_bytes_max: usize) -> Self {
        Self {
            reader: Reader { served, plan },
            frame_bytes_max: frame_bytes_max.min(FRAME_MAX),
            pending: Vec::new(),
            nesting: Nesting::default(),
            checked: 0,
            ended: false,
        }
    }

    /// Reads the next bytes and appends the events that they complete.
    ///
    /// Fails with [`Failure::FrameTooLong`] if a document is longer than allowed; the events before it are appended.
    pub fn push(&mut self, chunk: &[u8], events: &mut Vec<WatchEvent>) -> Result<(), Failure> {
        let read = self.read(chunk, events);
        if read.is_err() {
            self.ended = true;
            self.pending = Vec::new();
        }
        read
    }

    fn read(&mut self, mut chunk: &[u8], events: &mut Vec<WatchEvent>) -> Result<(), Failure> {
        let mut scanned = Scanned::default();
        while !self.ended {
            if self.pending.is_empty() {
                chunk = trim_start(chunk);
                match chunk.first() {
                    None => return Ok(()),
                    Some(b'{') => {}
                    Some(_) => {
                        self.emit(WatchEvent::Undecodable("expected a document".into()), events);
                        return Ok(());
                    }
                }
                // Try to read a whole document in one pass. If that fails, find the end of the document, and then read the
                // document. The error is then the same wherever the chunks were cut.
                if let Ok((event, len)) = self.reader.read(JsonCursor::new(chunk), &mut scanned) {
                    check_len(&chunk[..len], self.frame_bytes_max, OBJECT)?;
                    self.emit(event, events);
                    chunk = &chunk[len..];
                    continue;
                }
                self.nesting = Nesting::default();
                self.checked = 0;
            }
            match self.nesting.advance(chunk, u32::MAX) {
                Progress::Done(len) => {
                    let event = self.complete(&chunk[..len])?;
                    self.emit(event, events);
                    chunk = &chunk[len..];
                }
                Progress::More | Progress::TooDeep(_) => {
                    self.pending.extend_from_slice(chunk);
                    check_len(&self.pending, self.frame_bytes_max, OBJECT)?;
                    if let Err(error) = self.check_lines(chunk) {
                        self.emit(WatchEvent::Undecodable(format!("malformed JSON: {error}")), events);
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads the document that consists of the pending bytes and `last`.
    fn complete(&mut self, last: &[u8]) -> Result<WatchEvent, Failure> {
        let frame = if self.pending.is_empty() {
            last
        } else {
            self.pending.extend_from_slice(last);
            &self.pending
        };
        check_len(frame, self.frame_bytes_max, OBJECT)?;
        let read = self.reader.read(JsonCursor::new(frame), &mut Scanned::default());
        let read = match read {
            Err(ScanError::TooDeep(_)) => {
                let read = self.reader.read(JsonCursor::of_any_depth(frame), &mut Scanned::default());
                read.map(|(event, len)| (unread(event), len))
            }
            read => read,
        };
        let event = read.map_or_else(|error| WatchEvent::Undecodable(error.to_string()), |(event, _)| event);
        clear(&mut self.pending);
        Ok(event)
    }

    fn emit(&mut self, event: WatchEvent, events: &mut Vec<WatchEvent>) {
        self.ended = matches!(event, WatchEvent::Undecodable(_));
        events.push(event);
    }

    /// Checks the pending document up to the last line break in `last`, the newest chunk. Does nothing if `last` has no line break.
    ///
    /// Without this check, a malformed document might never end: the decoder would read later events as parts of that document.
    /// Each check of a growing document begins at its start again. To limit the cost, a check is skipped if earlier checks have
    /// read more than [`CHECKED_BYTES`] and more than seven times the length of the document.
    fn check_lines(&mut self, last: &[u8]) -> Result<(), serde_json::Error> {
        let Some(at) = memchr::memrchr(b'\n', last) else { return Ok(()) };
        let lines = &self.pending[..=self.pending.len() - last.len() + at];
        if self.checked > CHECKED_BYTES.max(7 * lines.len()) {
            return Ok(());
        }
        self.checked += lines.len();
        match serde_json::from_slice::<IgnoredAny>(lines) {
            Err(error) if !error.is_eof() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Replaces the object of an event by its placeholder.
fn unread(event: WatchEvent) -> WatchEvent {
    let too_deep = |object: &Object| WatchEvent::PassedOver { object: object.unread(), why: PassedOver::TooDeep };
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) if !object.is_placeholder() => too_deep(&object),
        WatchEvent::Deleted(object) => WatchEvent::Deleted(object.unread()),
        other => other,
    }
}

/// Event types whose object is scanned.
const OBJECT_EVENTS: [&[u8]; 4] = [b"ADDED", b"MODIFIED", b"DELETED", b"BOOKMARK"];

impl Reader {
    /// Reads the document at the start of the cursor's text; returns its event and its length.
    ///
    /// An error means that the text does not start with a complete document.
    fn read<'a>(
        &self,
        mut cursor: JsonCursor<'a>,
        scanned: &mut Scanned<'a>,
    ) -> Result<(WatchEvent, usize), ScanError> {
        let (mut event_type, mut object, mut is_scanned) = (None, None, false);
        cursor.enter(b'{', "a document")?;
        let mut first = true;
        while let Some(member) = cursor.next_member(&mut first)? {
            match &*member.key.bytes()? {
                b"type" => event_type = Some(cursor.string("a string as type")?),
                b"object" => {
                    // the object of an ERROR need not have metadata
                    is_scanned = match event_type {
                        Some(text) => OBJECT_EVENTS.contains(&&*text.bytes()?),
                        None => false,
                    };
                    if is_scanned {
                        scanned.scan(&mut cursor, &self.plan)?;
                        object = Some(scanned.json());
                    } else {
                        object = Some(cursor.skip_value()?);
                    }
                }
                _ => {
                    cursor.skip_value()?;
                }
            }
        }
        let event_type = event_type.map(|text| text.decode()).transpose()?.unwrap_or_default();
        let is_error = event_type == "ERROR";
        if !is_error && !OBJECT_EVENTS.contains(&event_type.as_bytes()) {
            return Ok((WatchEvent::Undecodable(format!("unknown event type {event_type:?}")), cursor.at()));
        }
        let Some(object) = object else {
            return Ok((WatchEvent::Undecodable("event without object".into()), cursor.at()));
        };
        if is_error {
            let status = status::of_object(object).map(WatchEvent::Error);
            let event = status.unwrap_or_else(|| WatchEvent::Undecodable("ERROR without a Status".into()));
            return Ok((event, cursor.at()));
        }
        if !is_scanned {
            scanned.scan(&mut cursor.over(object), &self.plan)?;
        }
        Ok((self.event(&event_type, scanned)?, cursor.at()))
    }

    /// Builds the event of an object.
    fn event(&self, event_type: &str, scanned: &Scanned<'_>) -> Result<WatchEvent, ScanError> {
        if !scanned.is_of(&self.served)? {
            let (api_version, kind) = (scanned.api_version()?, scanned.kind()?);
            return Ok(match &*kind {
                "" => WatchEvent::Undecodable("object without kind".into()),
                _ => WatchEvent::Skipped(SkipReason::WrongType { found: type_name(&api_version, &kind) }),
            });
        }
        if event_type == "BOOKMARK" {
            return Self::bookmark(scanned);
        }
        // a deletion is decoded whole, even with the ignore annotation: consumers may know the object from before it had the
        // annotation
        let object = match event_type {
            "DELETED" => scanned.object(&self.plan, NotedParts::Nothing),
            "ADDED" => scanned.object_to_show(&self.plan, NotedParts::Writers),
            _ => scanned.object_to_show(&self.plan, NotedParts::WithFields),
        };
        let object: Object = match object {
            Ok(object) => object,
            Err(ScanError::Nameless) => return Ok(WatchEvent::Skipped(SkipReason::Nameless)),
            Err(error) => return Err(error),
        };
        Ok(match event_type {
            "ADDED" => WatchEvent::Added(object),
            "MODIFIED" => WatchEvent::Modified(object),
            _ => WatchEvent::Deleted(object),
        })
    }

    /// Builds a bookmark. A bookmark without a version is skipped, because the reflector would lose its own version.
    fn bookmark(scanned: &Scanned<'_>) -> Result<WatchEvent, ScanError> {
        let resource_version: Cow<'_, str> = scanned.resource_version()?;
        if resource_version.is_empty() {
            return Ok(WatchEvent::Skipped(SkipReason::Nameless));
        }
        Ok(WatchEvent::Bookmark {
            resource_version: ResourceVersion::from(&*resource_version),
            initial_events_end: annotations_of(scanned.json())
                .iter()
                .any(|(key, value)| key == "k8s.io/initial-events-end" && value == "true"),
        })
    }
}
