//! Encoding of an event as a message.

use std::{fmt::Display, sync::LazyLock};

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, Subject,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
};
use bytes::Bytes;

use super::{
    NatsOptions,
    subject::{SUBJECT_LEN_MAX, SubjectTemplate},
};
use crate::{
    cloud_event::{self, Attribute, ContentMode, Formatter, MessageBody, header_value},
    handler::{Form, HandlerError},
    notification::Event,
    trace::TraceContext,
};

/// Header of the NATS binding of `CloudEvents`; header names are case-sensitive.
const CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
/// Length of the line before the headers and of the empty line after them.
const HEADER_FRAME_LEN: usize = "NATS/1.0\r\n\r\n".len();
/// Maximum length of the header `Nats-Expected-Last-Subject-Sequence`, which is added when the message is sent.
const EXPECTED_LEN: usize = "Nats-Expected-Last-Subject-Sequence: 18446744073709551615\r\n".len();

/// Header names of all attributes. They are created in advance, because the creation of a name searches all names that NATS knows.
static ATTRIBUTES: LazyLock<Vec<HeaderName>> =
    LazyLock::new(|| Attribute::ALL.iter().map(|attribute| HeaderName::from_static(attribute.header())).collect());

/// Message of one event.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
}

/// Returns the id of an event's message, in which the server finds duplicates.
pub(super) fn message_id(event: &Event) -> String {
    header_value(&cloud_event::id(event))
}

/// Returns true if a message with these headers has this id.
pub(super) fn has_id(headers: &HeaderMap, id: &str) -> bool {
    headers.get(NATS_MESSAGE_ID).is_some_and(|stored| stored.as_str() == id)
}

/// Returns the error for a message that the client or the server finds too large.
pub(super) fn too_large(subject: &Subject, error: &dyn Display) -> HandlerError {
    HandlerError::TooLarge(format!("the message to {subject} is too large: {error}"))
}

/// Encoder of the messages of one handler.
pub(super) struct MessageEncoder {
    pub(super) subject: SubjectTemplate,
    formatter: Formatter,
    mode: ContentMode,
    /// Stream that must store the messages; `None` if they are only sent.
    stream: Option<String>,
}

/// What the messages of one attempt have in common.
pub(super) struct MessageTerms {
    pub(super) form: Form,
    pub(super) trace: Option<TraceContext>,
    /// Maximum size of a message, in bytes.
    pub(super) max: usize,
}

impl MessageEncoder {
    /// Makes the encoder for the options of a handler.
    ///
    /// # Errors
    /// Fails if the template of the subject is invalid.
    pub(super) fn new(options: &NatsOptions, formatter: Formatter) -> Result<Self, String> {
        let stream = options.jetstream.as_ref().map(|jetstream| jetstream.stream.clone());
        Ok(Self { subject: SubjectTemplate::parse(&options.subject)?, formatter, mode: options.mode, stream })
    }

    /// Returns the subject of an event's message.
    ///
    /// # Errors
    /// `Rejected` if the subject would be longer than servers accept.
    pub(super) fn subject(&self, event: &Event) -> Result<Subject, HandlerError> {
        let subject = self.subject.subject(self.formatter.encoder().cluster(), event);
        if subject.len() > SUBJECT_LEN_MAX {
            let (id, len) = (message_id(event), subject.len());
            let problem = format!("the subject of {id} has {len} bytes: the limit is {SUBJECT_LEN_MAX}");
            return Err(HandlerError::Rejected(problem));
        }
        Ok(subject.into())
    }

    /// Makes the message of an event with this subject and [`message_id`].
    ///
    /// # Errors
    /// `TooLarge` if headers and payload together could exceed the maximum size of a message. Also fails if the event cannot be
    /// encoded.
    pub(super) fn message(
        &self,
        event: &Event,
        subject: &Subject,
        id: String,
        terms: &MessageTerms,
    ) -> Result<Message, HandlerError> {
        let Self { formatter, mode, stream, .. } = self;
        let (mut headers, mut len) = (HeaderMap::new(), HEADER_FRAME_LEN + EXPECTED_LEN);
        let mut add = |name: HeaderName, value: String| {
            let name_text: &str = name.as_ref();
            len += name_text.len() + value.len() + ": \r\n".len();
            headers.insert(name, HeaderValue::from(value));
        };
        if *mode == ContentMode::Binary {
            formatter.encoder().each_attribute(event, |attribute, value| {
                add(ATTRIBUTES[attribute as usize].clone(), header_value(value));
            });
        }
        let MessageBody { content_type, bytes: payload } = formatter.body(event, terms.form, *mode)?;
        add(CONTENT_TYPE, content_type.to_owned());
        add(NATS_MESSAGE_ID, id);
        if let Some(trace) = terms.trace {
            add(const { HeaderName::from_static(TraceContext::HEADER) }, trace.to_string());
        }
        if let Some(stream) = stream {
            add(NATS_EXPECTED_STREAM, stream.clone());
        }
        len += payload.len();
        if len > terms.max {
            let problem = format!("the message to {subject} has {len} bytes: the limit is {}", terms.max);
            return Err(HandlerError::TooLarge(problem));
        }
        Ok(Message { headers, payload: payload.into() })
    }
}
