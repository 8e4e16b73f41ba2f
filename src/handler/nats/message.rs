//! An event as a message.

use async_nats::{
    HeaderMap, HeaderName, Subject,
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
        let mut add = |name: HeaderName, value: &str| {
            let name_len: &str = name.as_ref();
            len += name_len.len() + value.len() + ": \r\n".len();
            headers.insert(name, value);
        };
        let payload = match self.mode {
            ContentMode::Binary => {
                let binary = self.encoder.binary(event, form);
                for (name, value) in &binary.attributes {
                    add(attribute(name), &header_value(value));
                }
                add(CONTENT_TYPE, DATA_CONTENT_TYPE);
                binary.data
            }
            ContentMode::Structured => {
                let mut out = Vec::new();
                self.encoder.encode_form(&mut out, event, form);
                add(CONTENT_TYPE, "application/cloudevents+json");
                out
            }
        };
        add(NATS_MESSAGE_ID, &id);
        if let Some(stream) = &self.stream {
            add(NATS_EXPECTED_STREAM, stream);
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
    let known = match name {
        "specversion" => "ce-specversion",
        "id" => "ce-id",
        "source" => "ce-source",
        "type" => "ce-type",
        "subject" => "ce-subject",
        "time" => "ce-time",
        "cause" => "ce-cause",
        "journal" => "ce-journal",
        "sequence" => "ce-sequence",
        "apiversion" => "ce-apiversion",
        "kind" => "ce-kind",
        "resource" => "ce-resource",
        "namespace" => "ce-namespace",
        "name" => "ce-name",
        "uid" => "ce-uid",
        "resourceversion" => "ce-resourceversion",
        // An attribute's name is lower-case letters and digits.
        other => return format!("ce-{other}").parse().unwrap_or(HeaderName::from_static("ce-unknown")),
    };
    HeaderName::from_static(known)
}
