//! An event as a message.

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, Subject,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
};
use bytes::Bytes;

use super::subject::{SUBJECT_LEN_MAX, Template};
use crate::{
    cloud_event::{self, ContentMode, DATA_CONTENT_TYPE, Encoder, Form, header_value},
    dispatcher::Event,
    handler::HandlerError,
    indexer::Change,
};

/// As the NATS binding of `CloudEvents` has it: header names are case-sensitive.
const CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
/// The line before the headers, and the empty one behind them.
const HEADER_FRAME_LEN: usize = "NATS/1.0\r\n\r\n".len();
/// `Nats-Expected-Last-Subject-Sequence: ` and the largest number, which is added when it is sent.
const EXPECTED_LEN: usize = "Nats-Expected-Last-Subject-Sequence: 18446744073709551615\r\n".len();

/// What makes messages of events.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) encoder: Encoder,
    pub(super) cluster: String,
    pub(super) template: Template,
    pub(super) mode: ContentMode,
    /// The stream that has to take it.
    pub(super) stream: Option<String>,
}

/// One event on its way.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) subject: Subject,
    /// The event's id, as the header has it.
    pub(super) id: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    /// Bytes of headers and payload on the wire, at most.
    pub(super) len: usize,
    /// When the engine saw the change, in nanoseconds of the Unix epoch: nobody can have stored it much earlier.
    pub(super) time_nanos: i128,
    /// The object was not there before, so that its subject is probably empty.
    pub(super) is_new: bool,
}

impl Writer {
    /// Makes the message of an event.
    ///
    /// # Errors
    /// `Rejected` where the subject would be longer than servers read.
    pub(super) fn message(&self, event: &Event, form: Form) -> Result<Message, HandlerError> {
        let subject = self.template.subject(&self.cluster, event);
        let id = header_value(&cloud_event::id(event));
        if subject.len() > SUBJECT_LEN_MAX {
            let len = subject.len();
            let problem = format!("the subject of {id} has {len} bytes: at most {SUBJECT_LEN_MAX} are sent");
            return Err(HandlerError::Rejected(problem));
        }
        let (mut headers, mut len) = (HeaderMap::new(), HEADER_FRAME_LEN + EXPECTED_LEN);
        let mut add = |name: HeaderName, value: String| {
            let name_text: &str = name.as_ref();
            len += name_text.len() + value.len() + ": \r\n".len();
            headers.insert(name, HeaderValue::from(value));
        };
        let payload = match self.mode {
            ContentMode::Binary => {
                self.encoder.each_attribute(event, |name, value| add(attribute(name), header_value(value)));
                add(CONTENT_TYPE, DATA_CONTENT_TYPE.to_owned());
                self.encoder.data(event, form)
            }
            ContentMode::Structured => {
                let mut out = Vec::new();
                self.encoder.encode_form(&mut out, event, form);
                add(CONTENT_TYPE, "application/cloudevents+json".to_owned());
                out
            }
        };
        add(NATS_MESSAGE_ID, id.clone());
        if let Some(stream) = &self.stream {
            add(NATS_EXPECTED_STREAM, stream.clone());
        }
        Ok(Message {
            subject: subject.into(),
            id,
            headers,
            len: len + payload.len(),
            payload: payload.into(),
            time_nanos: i128::from(event.record.time_micros) * 1000,
            is_new: matches!(event.record.change, Change::Added { .. }),
        })
    }
}

/// Returns the header of an attribute.
fn attribute(name: &str) -> HeaderName {
    /// Made when this is compiled: to make one looks through all names that NATS knows.
    const KNOWN: [(&str, HeaderName); 16] = [
        ("specversion", HeaderName::from_static("ce-specversion")),
        ("id", HeaderName::from_static("ce-id")),
        ("source", HeaderName::from_static("ce-source")),
        ("type", HeaderName::from_static("ce-type")),
        ("subject", HeaderName::from_static("ce-subject")),
        ("time", HeaderName::from_static("ce-time")),
        ("cause", HeaderName::from_static("ce-cause")),
        ("journal", HeaderName::from_static("ce-journal")),
        ("sequence", HeaderName::from_static("ce-sequence")),
        ("apiversion", HeaderName::from_static("ce-apiversion")),
        ("kind", HeaderName::from_static("ce-kind")),
        ("resource", HeaderName::from_static("ce-resource")),
        ("namespace", HeaderName::from_static("ce-namespace")),
        ("name", HeaderName::from_static("ce-name")),
        ("uid", HeaderName::from_static("ce-uid")),
        ("resourceversion", HeaderName::from_static("ce-resourceversion")),
    ];
    let found = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, header)| header.clone());
    // An attribute's name is lower-case letters and digits.
    found.unwrap_or_else(|| format!("ce-{name}").parse().unwrap_or(HeaderName::from_static("ce-unknown")))
}
