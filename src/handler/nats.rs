//! Events as messages of NATS, stored in a stream of `JetStream` or sent as they come.
//!
//! # Order
//!
//! Messages of one object are sent one after the other, each when the one before it is acknowledged; messages of
//! different objects all at once. A connection that breaks fails the attempt. What had been sent may be stored, and the
//! next attempt sends it again: the server drops it by its `Nats-Msg-Id`, the event's id, within the stream's
//! `duplicate_window`.
//!
//! # Stored once, outside of the window too
//!
//! With [`ExpectLast::PerSubject`] a message says which sequence it expects to be the last one of its subject, and the
//! server stores it on that condition only. What the handler does not know (after a start, or because its bounded
//! memory has forgotten it) it asks for, and for a new object it supposes an empty subject. If the supposition is wrong,
//! or the last sequence is unknown, it looks at what is stored:
//!
//! 1. The last message of the subject has the event's id: it is delivered.
//! 2. The last message was stored before the event happened (by more than a minute, for clocks that differ): the event
//!    is not stored. The handler adopts the sequence and sends.
//! 3. Else it goes through the messages of the subject since the event happened. If one has the event's id, the event is
//!    delivered; if none has, as 2.
//!
//! So a change is stored once as long as its message is kept, whatever the window, and however often the engine
//! restarts. It takes subjects that tell objects apart, a stream that keeps messages until they expire, and clocks that
//! differ by less than a minute. Two writers under one subject do not lose anything, and do not store a change twice;
//! the order between their messages is that of their arrival.

mod auth;
mod last;
mod link;
mod message;
mod options;
mod publish;
mod stored;
mod stream;
pub mod subject;
mod wildcard;

use std::sync::Arc;

use async_nats::{
    Subject,
    jetstream::{ErrorCode, context::GetStreamErrorKind, stream::Stream},
};
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::{AsyncHandler, Form, HandlerError};
use crate::{
    cloud_event::Formatter,
    notification::{Event, Notification},
    trace::TraceContext,
};
use link::{Link, Watch};
use message::{Message, Writer};
use publish::Publisher;
use stored::Memory;

pub(crate) use options::ask_for_tls;
pub use options::{ExpectLast, JetStreamOptions, NatsAuth, NatsOptions};

/// What the headers of a message take at most, but for objects of uncommonly long names.
const HEADERS_LEN: usize = 8 << 10;

/// The handler. It connects with the first batch: a server that is not there is a failed attempt like any other.
pub struct NatsHandler {
    options: NatsOptions,
    writer: Writer,
    memory: Memory,
    link: Mutex<Option<Arc<Link>>>,
    /// The stream, once it was looked at, and the largest message that it takes.
    stream: Mutex<Option<(Stream<()>, Option<usize>)>>,
}

impl NatsHandler {
    /// Makes the handler; does nothing else.
    pub fn new(options: NatsOptions, formatter: impl Into<Formatter>) -> Self {
        let writer = Writer {
            formatter: formatter.into(),
            cluster: options.cluster.clone(),
            template: options.subject.clone(),
            mode: options.mode,
            stream: options.jetstream.as_ref().map(|jetstream| jetstream.stream.clone()),
        };
        Self { options, writer, memory: Memory::new(), link: Mutex::new(None), stream: Mutex::new(None) }
    }

    /// One connection for the handler's life: what an abandoned one still had to send could overtake a new one.
    async fn link(&self) -> Result<Arc<Link>, HandlerError> {
        let mut link = self.link.lock().await;
        if let Some(link) = &*link {
            return Ok(Arc::clone(link));
        }
        let made = Arc::new(Link::connect(&self.options).await?);
        *link = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Returns the stream after looking at it, once until something fails.
    async fn stream(&self, link: &Link, options: &JetStreamOptions) -> Result<(Stream<()>, usize), HandlerError> {
        let mut known = self.stream.lock().await;
        if known.is_none() {
            let max = self.look_at_stream(link, options).await?;
            let stream = link.context.get_stream_no_info(&options.stream).await;
            let stream = stream.map_err(|error| HandlerError::Failed(format!("stream {}: {error}", options.stream)))?;
            *known = Some((stream, max));
        }
        let (stream, max) = known.as_ref().expect("looked at just now");
        Ok((stream.clone(), max.unwrap_or(usize::MAX)))
    }

    /// Makes the stream or checks it; returns the largest message that it takes, if it has a limit of its own.
    async fn look_at_stream(&self, link: &Link, options: &JetStreamOptions) -> Result<Option<usize>, HandlerError> {
        let name = &options.stream;
        let wildcard = self.options.subject.wildcard();
        let config = match link.context.get_stream(name).await {
            Ok(found) => found.cached_info().config.clone(),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    if !options.create {
                        let advice = "make it, or set create = true";
                        return Err(HandlerError::Failed(format!("there is no stream {name}: {advice}")));
                    }
                    let made = link.context.create_stream(stream::wanted(options, &wildcard)).await;
                    let made = made
                        .map_err(|error| HandlerError::Failed(format!("failed to make the stream {name}: {error}")))?;
                    tracing::info!(stream = %name, "made the stream");
                    made.cached_info().config.clone()
                }
                GetStreamErrorKind::JetStream(answer)
                    if matches!(
                        answer.error_code(),
                        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                    ) =>
                {
                    let advice = "enable it, or leave out [handlers.*.jetstream]";
                    return Err(HandlerError::Failed(format!("this account has no JetStream: {advice}")));
                }
                _ => {
                    let advice = "is JetStream enabled, and may the user ask for streams?";
                    return Err(HandlerError::Failed(format!("failed to look at stream {name}: {error}; {advice}")));
                }
            },
        };
        let harmless = stream::check(&config, options, &wildcard).map_err(HandlerError::Failed)?;
        for difference in harmless {
            tracing::warn!(stream = %name, difference, "the stream is not as configured, and will do");
        }
        Ok(usize::try_from(config.max_message_size).ok().filter(|max| *max > 0))
    }

    async fn send(&self, batch: &Notification, form: Form) -> Result<(), HandlerError> {
        let link = self.link().await?;
        let watch = link.ready().await?;
        let mut connection = watch.clone();
        let sending = async {
            match &self.options.jetstream {
                Some(options) => {
                    let (stream, max) = self.stream(&link, options).await?;
                    let max = max.min(link.client.max_payload());
                    self.check_large(batch, form, max)?;
                    let make = |index: usize| self.message(&batch.events()[index], batch.trace(), form, max);
                    let (expect_last, memory, link) = (options.expect_last, &self.memory, &*link);
                    let publisher = Publisher { expect_last, memory, link, stream: &stream, make: &make };
                    publisher.store_all(batch.events().len(), &watch).await
                }
                None => self.send_only(&link, batch, form, &watch).await,
            }
        };
        tokio::select! {
            biased;
            broken = connection.broken() => Err(broken),
            sent = sending => sent,
        }
    }

    /// Sends without a stream: `Ok` means that the server has read it, whoever listens.
    async fn send_only(
        &self,
        link: &Link,
        batch: &Notification,
        form: Form,
        watch: &Watch,
    ) -> Result<(), HandlerError> {
        let max = link.client.max_payload();
        let messages = batch.events().iter().map(|event| self.message(event, batch.trace(), form, max));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let subjects: Vec<_> = messages.iter().map(|message| message.subject.clone()).collect();
        for Message { subject, headers, payload, .. } in messages {
            let sent = link.client.publish_with_headers(subject, headers, payload).await;
            sent.map_err(|error| HandlerError::Failed(format!("failed to send: {error}")))?;
        }
        link.round_trip().await?;
        // Refusals came before the answer.
        let refused = watch.all_refused();
        let is_refused = |subject: &&Subject| refused.contains(subject.as_str());
        if !subjects.iter().all(|subject| is_refused(&subject)) {
            link.note_taken();
        }
        match subjects.iter().find(is_refused) {
            Some(subject) => Err(link.refusal(subject)),
            None => Ok(()),
        }
    }

    /// Returns the message of an event.
    ///
    /// # Errors
    /// `TooLarge`, and what the writer finds.
    fn message(
        &self,
        event: &Event,
        trace: Option<TraceContext>,
        form: Form,
        max: usize,
    ) -> Result<Message, HandlerError> {
        let message = self.writer.message(event, trace, form)?;
        if message.len > max {
            let (subject, len) = (message.subject, message.len);
            let problem = format!("the message to {subject} has {len} bytes: NATS takes {max}");
            return Err(HandlerError::TooLarge(problem));
        }
        Ok(message)
    }

    /// Looks at what may be too large before anything of the batch is sent, to send nothing twice for its sake.
    fn check_large(&self, batch: &Notification, form: Form, max: usize) -> Result<(), HandlerError> {
        for event in batch.events() {
            if self.writer.formatter.len_about(event, form).saturating_add(HEADERS_LEN) > max {
                self.message(event, batch.trace(), form, max)?;
            }
        }
        Ok(())
    }
}

impl AsyncHandler for NatsHandler {
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let sent = self.send(batch, form).await;
            if let Err(HandlerError::Failed(_)) = &sent {
                *self.stream.lock().await = None; // it may be gone, or another one: it is looked at again
            }
            sent
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async {
            let Some(link) = self.link.lock().await.take() else { return Ok(()) };
            let closed = link.client.drain().await;
            closed.map_err(|error| HandlerError::Failed(format!("failed to close the connection to NATS: {error}")))
        })
    }
}
