//! Publishing to a stream. The messages of a batch are sent concurrently, because each belongs to another object.
//!
//! The next message of an object is in a later batch, which starts when this one is acknowledged. So, even after a lost
//! connection, messages of an object are stored in order.

use std::{error::Error as _, fmt::Display};

use async_nats::{
    HeaderValue, Subject,
    header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind},
        publish::PublishAck,
        stream::Stream,
    },
};
use futures_util::{StreamExt as _, stream};

use super::{
    ExpectLast,
    link::{ANSWER_WAIT, Link, Watch},
    message::Message,
    stored::{Memory, Sought, Stored},
};
use crate::handler::HandlerError;

/// Maximum number of repetitions because another writer was faster.
const CONFLICTS_MAX: u32 = 8;
/// Maximum number of unacknowledged messages of a batch in memory.
const UNDER_WAY_MAX: usize = 1024;

/// Stores the messages of one batch.
pub(super) struct Publisher<'a> {
    pub(super) expect_last: ExpectLast,
    pub(super) memory: &'a Memory,
    pub(super) link: &'a Link,
    pub(super) stream: &'a Stream<()>,
    /// Makes the message of an event just before it is sent, so that a large batch is never in memory as a whole.
    pub(super) make: &'a (dyn Fn(usize) -> Result<Message, HandlerError> + Sync),
}

/// Reason why a message is not stored.
enum Unstored {
    /// The user has no right to publish to its subject.
    Refused(Subject),
    Failed(HandlerError),
}

impl From<HandlerError> for Unstored {
    fn from(error: HandlerError) -> Self {
        Self::Failed(error)
    }
}

impl Publisher<'_> {
    /// Stores this number of messages concurrently. Continues after a failure, and returns the first one. A message
    /// that the server refuses has precedence over other failures.
    pub(super) async fn store_all(&self, messages: usize, watch: &Watch) -> Result<(), HandlerError> {
        let (mut failed, mut refused) = (None, None);
        let storing = stream::iter(0..messages).map(|index| self.store(index, watch.clone()));
        let mut storing = std::pin::pin!(storing.buffer_unordered(UNDER_WAY_MAX));
        while let Some(stored) = storing.next().await {
            match stored {
                Ok(()) => {}
                Err(Unstored::Refused(subject)) => refused = Some(subject),
                Err(Unstored::Failed(error)) => drop(failed.get_or_insert(error)),
            }
        }
        match refused {
            Some(subject) => Err(self.link.refusal(&subject)), // by now the server has accepted or refused the others
            None => failed.map_or(Ok(()), Err),
        }
    }

    /// Stores one message, if the last sequence of its subject is the expected one.
    async fn store(&self, index: usize, mut watch: Watch) -> Result<(), Unstored> {
        let mut message = (self.make)(index)?;
        let subject = message.subject.clone();
        let is_conditional = self.expect_last == ExpectLast::PerSubject;
        let supposed = || self.memory.last(&subject).or(message.is_new.then_some(0));
        let mut expected = if is_conditional { supposed() } else { None };
        for _ in 0..CONFLICTS_MAX {
            if is_conditional && expected.is_none() {
                match self.memory.look(self.stream, Sought::of(&message)).await? {
                    Stored::This => return Ok(()),
                    Stored::Other(last) => expected = Some(last),
                }
            }
            match self.publish(message, expected, &mut watch).await {
                Ok(Some(ack)) => {
                    self.note(&subject, &ack);
                    return Ok(());
                }
                Ok(None) => self.memory.forget(&subject),
                Err(error) => {
                    self.memory.forget(&subject);
                    return Err(error);
                }
            }
            expected = None;
            message = (self.make)(index)?;
        }
        let problem =
            format!("{subject} received other messages {CONFLICTS_MAX} times meanwhile: check for another writer");
        Err(HandlerError::Failed(problem).into())
    }

    /// Sends a message and waits for its acknowledgement; `None` if the last sequence of its subject differs.
    async fn publish(
        &self,
        message: Message,
        expected: Option<u64>,
        watch: &mut Watch,
    ) -> Result<Option<PublishAck>, Unstored> {
        let Message { subject, mut headers, payload, .. } = message;
        if let Some(expected) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected));
        }
        let sent = self.link.context.publish_with_headers(subject.clone(), headers, payload).await;
        let sent = sent.map_err(|error| not_stored(&subject, &error))?;
        let acknowledged = tokio::select! {
            biased;
            acknowledged = sent.into_future() => acknowledged,
            () = watch.refused(&subject) => return Err(Unstored::Refused(subject)),
        };
        match acknowledged {
            Ok(ack) => Ok(Some(ack)),
            Err(error) if expected.is_some() && is_conflict(&error) => Ok(None),
            Err(error) => Err(not_stored(&subject, &error).into()),
        }
    }

    fn note(&self, subject: &Subject, ack: &PublishAck) {
        self.link.note_taken();
        match self.expect_last {
            ExpectLast::Off => {}
            // The sequence of a duplicate is its stored position, which may not be the last one.
            ExpectLast::PerSubject if ack.duplicate => self.memory.forget(subject),
            ExpectLast::PerSubject => self.memory.remember(subject, ack.sequence),
        }
    }
}

/// Returns the server's reason, if it gave one.
fn reason(error: &PublishError) -> Option<&jetstream::Error> {
    error.source().and_then(|source| source.downcast_ref())
}

fn is_conflict(error: &PublishError) -> bool {
    let code = reason(error).map(jetstream::Error::error_code);
    matches!(code, Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT))
}

fn not_stored(subject: &Subject, error: &PublishError) -> HandlerError {
    let text = match (error.kind(), reason(error)) {
        (PublishErrorKind::MaxPayloadExceeded, _) => return too_large(subject, error),
        (_, Some(reason)) => match reason.error_code() {
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                return too_large(subject, reason);
            }
            ErrorCode::STREAM_NOT_MATCH => {
                format!("another stream than the configured one takes {subject}: change `stream` or `subject`")
            }
            _ => format!("NATS did not store the message to {subject}: {reason}"),
        },
        (PublishErrorKind::StreamNotFound, _) => {
            format!("no stream takes {subject}: check that the stream exists and has this subject")
        }
        (PublishErrorKind::TimedOut, _) => format!("no acknowledgement for {subject} within {ANSWER_WAIT:?}"),
        _ => format!("failed to send the message to {subject}: {error}"),
    };
    HandlerError::Failed(text)
}

fn too_large(subject: &Subject, error: &dyn Display) -> HandlerError {
    HandlerError::TooLarge(format!("the message to {subject} is too large: {error}"))
}
