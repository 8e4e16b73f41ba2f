//! Delivery of batches. The messages of a batch are sent concurrently, because each belongs to another object.
//!
//! The next message of an object is in a later batch. That batch starts only after the earlier batch is acknowledged. So, even
//! after a lost connection, messages of an object are stored in order.

use std::{error::Error as _, fmt::Display, sync::Arc};

use async_nats::{
    HeaderValue, Subject,
    header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
    jetstream::{
        self, ErrorCode,
        context::{PublishAckFuture, PublishError, PublishErrorKind},
        stream::Stream,
    },
};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream as streams};
use tokio::sync::{Mutex, OnceCell};

use super::{
    ExpectLast, NatsOptions,
    link::{ANSWER_WAIT, Link, Watch},
    message::Message,
    stored::Memory,
    stream,
    subject::SubjectTemplate,
};
use crate::{
    cloud_event::Formatter,
    handler::{AsyncHandler, Form, HandlerError},
    notification::{Event, Notification},
};

/// Maximum number of messages of a batch that wait for an acknowledgement.
const UNDER_WAY_MAX: usize = 1024;
/// Maximum number of tries to store a message. A try fails if another writer stores to the subject first.
const CONFLICTS_MAX: u32 = 8;

/// The handler of type `nats`. It connects with the first batch. While no server can be reached, attempts fail and are retried.
pub struct NatsHandler {
    pub(super) options: NatsOptions,
    pub(super) subject: SubjectTemplate,
    pub(super) formatter: Formatter,
    memory: Memory,
    /// The connection. It is never replaced, because unsent messages of the old connection could overtake messages of the new one.
    link: OnceCell<Link>,
    /// The checked stream; `None` before the check.
    stream: Mutex<Option<Arc<Stream>>>,
}

impl NatsHandler {
    /// Makes the handler; it does not connect yet.
    ///
    /// # Errors
    /// Fails if the template of the subject is invalid.
    pub fn new(options: NatsOptions, formatter: impl Into<Formatter>) -> Result<Self, String> {
        let (subject, formatter) = (SubjectTemplate::parse(&options.subject)?, formatter.into());
        let (memory, link, stream) = (Memory::default(), OnceCell::new(), Mutex::default());
        Ok(Self { options, subject, formatter, memory, link, stream })
    }

    /// Returns the stream; `None` if messages are only sent. The first call checks the stream, and so does the first call after a
    /// failed attempt.
    async fn stream(&self, link: &Link) -> Result<Option<Arc<Stream>>, HandlerError> {
        let Some(options) = &self.options.jetstream else { return Ok(None) };
        let mut known = self.stream.lock().await;
        if known.is_none() {
            *known = Some(Arc::new(stream::open(&link.context, options, self.subject.wildcard()).await?));
        }
        Ok(known.clone())
    }

    async fn send(&self, batch: &Notification, form: Form) -> Result<(), HandlerError> {
        let link = self.link.get_or_try_init(|| Link::connect(&self.options)).await?;
        let watch = link.ready().await?;
        let sending = async {
            let stream = self.stream(link).await?;
            let max = stream.as_deref().map_or(usize::MAX, stream::message_max).min(link.client.max_payload());
            SendAttempt { handler: self, link, watch: &watch, batch, form, max }.send(stream.as_deref()).await
        };
        tokio::select! {
            biased;
            broken = watch.broken() => Err(broken),
            sent = sending => sent,
        }
    }
}

impl AsyncHandler for NatsHandler {
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let sent = self.send(batch, form).await;
            if let Err(HandlerError::Failed(_)) = &sent {
                *self.stream.lock().await = None; // it may have been deleted or replaced: check it again
            }
            sent
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async {
            let Some(link) = self.link.get() else { return Ok(()) };
            let closed = link.client.drain().await;
            closed.map_err(|error| HandlerError::Failed(format!("failed to close the connection to NATS: {error}")))
        })
    }
}

/// One attempt to deliver a batch.
pub(super) struct SendAttempt<'a> {
    pub(super) handler: &'a NatsHandler,
    link: &'a Link,
    watch: &'a Watch,
    pub(super) batch: &'a Notification,
    pub(super) form: Form,
    /// Maximum size of a message.
    pub(super) max: usize,
}

impl SendAttempt<'_> {
    /// Sends all messages. Continues after a failure, and returns the first failure. A refusal by the server has precedence over
    /// other failures. A message that is too large is found before any message is sent, so that a retry sends nothing twice.
    async fn send(&self, stream: Option<&Stream>) -> Result<(), HandlerError> {
        let events = self.batch.events();
        let messages = events.iter().map(|event| self.message(event)).collect::<Result<Vec<_>, _>>()?;
        let subjects: Vec<_> = messages.iter().map(|message| message.subject.clone()).collect();
        let sent = match stream {
            Some(stream) => self.store_all(stream, messages).await,
            None => self.send_only(messages).await,
        };
        // By now the server has accepted or refused each message.
        let refused = self.watch.all_refused();
        let is_refused = |subject: &&Subject| refused.contains(subject.as_str());
        // With a stream, `store` notes each acknowledgement.
        if stream.is_none() && sent.is_ok() && !subjects.iter().all(|subject| is_refused(&subject)) {
            self.link.note_taken();
        }
        match subjects.iter().find(is_refused) {
            Some(subject) => Err(self.link.refusal(subject)),
            None => sent,
        }
    }

    /// Sends without a stream. `Ok` means that the server has read the messages; they may have no subscriber.
    async fn send_only(&self, messages: Vec<Message>) -> Result<(), HandlerError> {
        for Message { subject, headers, payload, .. } in messages {
            let sent = self.link.client.publish_with_headers(subject, headers, payload).await;
            sent.map_err(|error| HandlerError::Failed(format!("failed to send: {error}")))?;
        }
        self.link.round_trip().await // refusals arrive before this answer
    }

    /// Stores all messages. First sends the messages whose subject need not be looked up. One task waits for all acknowledgements
    /// in turn, because a task for each message takes much more CPU time.
    async fn store_all(&self, stream: &Stream, messages: Vec<Message>) -> Result<(), HandlerError> {
        let options = self.handler.options.jetstream.as_ref();
        let is_conditional = options.is_some_and(|options| options.expect_last == ExpectLast::PerSubject);
        let known = |message: &Message| self.handler.memory.last(&message.subject).or(message.is_new.then_some(0));
        let (mut result, mut unknown) = (Ok(()), Vec::new());
        let mut waiting = self.batch.events().iter().zip(messages).peekable();
        while waiting.peek().is_some() {
            let mut sent = Vec::new();
            for (event, message) in waiting.by_ref().take(UNDER_WAY_MAX) {
                let expected = if is_conditional { known(&message) } else { None };
                if is_conditional && expected.is_none() {
                    unknown.push((event, message));
                } else {
                    sent.push((event, message.subject.clone(), expected, self.publish(message, expected).await));
                }
            }
            let mut is_silent = false;
            for (event, subject, expected, sent) in sent {
                let acknowledged = self.acknowledged(&subject, expected, sent);
                // After one wait without an answer, the answers to the other messages are there, or will not come.
                let acknowledged = if is_silent { acknowledged.now_or_never() } else { Some(acknowledged.await) };
                match acknowledged {
                    Some(Ok(Stored::Yes)) => {}
                    Some(Ok(Stored::Conflict)) => unknown.push((event, self.message(event)?)),
                    Some(Ok(Stored::Silence(error))) => (is_silent, result) = (true, result.and(Err(error))),
                    Some(Err(error)) => result = result.and(Err(error)),
                    None => self.handler.memory.forget(&subject),
                }
            }
        }
        let store = |(event, message)| self.store(stream, event, message);
        let storing: Vec<_> = unknown.into_iter().map(store).collect();
        let stored = streams::iter(storing).buffered(UNDER_WAY_MAX).collect::<Vec<_>>().await;
        stored.into_iter().fold(result, Result::and)
    }

    /// Stores one message. First looks for the message in the stream, because an earlier attempt may have stored it. Tries again if
    /// another writer has stored to the subject meanwhile.
    async fn store(&self, stream: &Stream, event: &Event, mut message: Message) -> Result<(), HandlerError> {
        let subject = message.subject.clone();
        for _ in 0..CONFLICTS_MAX {
            let Some(expected) = self.handler.memory.look(stream, &message).await? else { return Ok(()) };
            let sent = self.publish(message, Some(expected)).await;
            match self.acknowledged(&subject, Some(expected), sent).await? {
                Stored::Yes => return Ok(()),
                Stored::Conflict => message = self.message(event)?,
                Stored::Silence(error) => return Err(error),
            }
        }
        let problem =
            format!("{subject} got other messages during all {CONFLICTS_MAX} attempts: check for another writer");
        Err(HandlerError::Failed(problem))
    }

    /// Sends a message to the stream. If `expected` is given, the stream stores the message only if the last sequence of the
    /// subject equals `expected`.
    async fn publish(&self, message: Message, expected: Option<u64>) -> Result<PublishAckFuture, PublishError> {
        let Message { subject, mut headers, payload, .. } = message;
        if let Some(expected) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected));
        }
        self.link.context.publish_with_headers(subject, headers, payload).await
    }

    /// Waits for the acknowledgement of a message.
    async fn acknowledged(
        &self,
        subject: &Subject,
        expected: Option<u64>,
        sent: Result<PublishAckFuture, PublishError>,
    ) -> Result<Stored, HandlerError> {
        let memory = &self.handler.memory;
        let acknowledged = match sent {
            Ok(sent) => tokio::select! {
                biased;
                acknowledged = sent.into_future() => acknowledged,
                () = self.watch.refused(subject) => {
                    memory.forget(subject);
                    return Err(self.link.refusal(subject));
                }
            },
            Err(error) => Err(error),
        };
        match &acknowledged {
            // A duplicate has the sequence of the stored copy, which is not always the subject's last message.
            Ok(ack) if expected.is_some() && !ack.duplicate => memory.remember(subject, ack.sequence),
            Ok(_) if expected.is_none() => {}
            _ => memory.forget(subject),
        }
        match acknowledged {
            Ok(_) => {
                self.link.note_taken();
                Ok(Stored::Yes)
            }
            Err(error) if expected.is_some() && is_conflict(&error) => Ok(Stored::Conflict),
            Err(error) if error.kind() == PublishErrorKind::TimedOut => {
                Ok(Stored::Silence(not_stored(subject, &error)))
            }
            Err(error) => Err(not_stored(subject, &error)),
        }
    }
}

/// Answer of the stream to a message.
enum Stored {
    /// The stream has the message.
    Yes,
    /// The last sequence of the message's subject is not the expected one.
    Conflict,
    /// No answer in time.
    Silence(HandlerError),
}

/// Returns the server's reason for a failure, if the server gave one.
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
