//! An event as a message.

use std::sync::LazyLock;

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, Subject,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
};
use bytes::Bytes;

use super::subject::{SUBJECT_LEN_MAX, SubjectTemplate};
use crate::{
    change::Change,
    cloud_event::{self, Attribute, ContentMode, Form, Formatter, MessageBody, header_value},
    handler::HandlerError,
    notification::Event,
    trace::TraceContext,
};

/// As the NATS binding of `CloudEvents` has it: header names are case-sensitive.
const CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
/// The line before the headers, and the empty one behind them.
const HEADER_FRAME_LEN: usize = "NATS/1.0\r\n\r\n".len();
/// `Nats-Expected-Last-Subject-Sequence: ` and the largest number, which is added when it is sent.
const EXPECTED_LEN: usize = "Nats-Expected-Last-Subject-Sequence: 18446744073709551615\r\n".len();

/// Headers of attributes. Making one looks through all names that NATS knows.
static ATTRIBUTES: LazyLock<Vec<HeaderName>> =
    LazyLock::new(|| Attribute::ALL.iter().map(|attribute| HeaderName::from_static(attribute.header())).collect());

/// What makes messages of events.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) formatter: Formatter,
    pub(super) cluster: String,
    pub(super) template: SubjectTemplate,
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
    /// `Rejected` where the subject would be longer than servers read, and what writing the event fails with.
    pub(super) fn message(
        &self,
        event: &Event,
        trace: Option<TraceContext>,
        form: Form,
    ) -> Result<Message, HandlerError> {
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
        if self.mode == ContentMode::Binary {
            let encoder = self.formatter.encoder();
            encoder.each_attribute(event, |attribute, value| {
                add(ATTRIBUTES[attribute as usize].clone(), header_value(value));
            });
        }
        let MessageBody { content_type, bytes: payload } = self.formatter.body(event, form, self.mode)?;
        add(CONTENT_TYPE, content_type.to_owned());
        add(NATS_MESSAGE_ID, id.clone());
        if let Some(trace) = trace {
            add(const { HeaderName::from_static(TraceContext::HEADER) }, trace.to_string());
        }
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
