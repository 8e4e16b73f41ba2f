//! Delivery of batches.

use std::sync::Arc;

use async_nats::{
    Subject,
    jetstream::{ErrorCode, context::GetStreamErrorKind, stream::Stream},
};
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::{
    JetStreamOptions, NatsOptions,
    link::{Link, Watch},
    message::{Message, Writer},
    publish::Publisher,
    stored::Memory,
    stream,
};
use crate::{
    cloud_event::Formatter,
    handler::{AsyncHandler, Form, HandlerError},
    notification::{Event, Notification},
    trace::TraceContext,
};

/// Maximum size of a message's headers, except for objects with very long names.
const HEADERS_LEN: usize = 8 << 10;

/// The handler of type `nats`. It connects with the first batch. An unreachable server is an ordinary failed attempt.
pub struct NatsHandler {
    options: NatsOptions,
    writer: Writer,
    memory: Memory,
    link: Mutex<Option<Arc<Link>>>,
    /// The stream after it was checked, and its maximum message size.
    stream: Mutex<Option<(Stream<()>, Option<usize>)>>,
}

impl NatsHandler {
    /// Makes the handler; it does not connect yet.
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

    /// Returns the handler's connection. It is never replaced: unsent messages of an old connection could overtake
    /// those of a new one.
    async fn link(&self) -> Result<Arc<Link>, HandlerError> {
        let mut link = self.link.lock().await;
        if let Some(link) = &*link {
            return Ok(Arc::clone(link));
        }
        let made = Arc::new(Link::connect(&self.options).await?);
        *link = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Returns the stream. It is checked once, and again after each failure.
    async fn stream(&self, link: &Link, options: &JetStreamOptions) -> Result<(Stream<()>, usize), HandlerError> {
        let mut known = self.stream.lock().await;
        if known.is_none() {
            let max = self.look_at_stream(link, options).await?;
            let stream = link.context.get_stream_no_info(&options.stream).await;
            let stream = stream.map_err(|error| HandlerError::Failed(format!("stream {}: {error}", options.stream)))?;
            *known = Some((stream, max));
        }
        let (stream, max) = known.as_ref().expect("it was just set");
        Ok((stream.clone(), max.unwrap_or(usize::MAX)))
    }

    /// Creates or checks the stream; returns its maximum message size, if it has its own limit.
    async fn look_at_stream(&self, link: &Link, options: &JetStreamOptions) -> Result<Option<usize>, HandlerError> {
        let name = &options.stream;
        let wildcard = self.options.subject.wildcard();
        let config = match link.context.get_stream(name).await {
            Ok(found) => found.cached_info().config.clone(),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    if !options.create {
                        let advice = "create it, or set create = true";
                        return Err(HandlerError::Failed(format!("stream {name} does not exist: {advice}")));
                    }
                    let made = link.context.create_stream(stream::wanted(options, &wildcard)).await;
                    let made = made.map_err(|error| {
                        HandlerError::Failed(format!("failed to create the stream {name}: {error}"))
                    })?;
                    tracing::info!(stream = %name, "created the stream");
                    made.cached_info().config.clone()
                }
                GetStreamErrorKind::JetStream(answer)
                    if matches!(
                        answer.error_code(),
                        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                    ) =>
                {
                    let advice = "enable it, or remove [handlers.*.jetstream]";
                    return Err(HandlerError::Failed(format!("JetStream is not enabled for this account: {advice}")));
                }
                _ => {
                    let advice = "check that JetStream is enabled, and that the user may read streams";
                    return Err(HandlerError::Failed(format!("failed to read stream {name}: {error}; {advice}")));
                }
            },
        };
        let harmless = stream::check(&config, options, &wildcard).map_err(HandlerError::Failed)?;
        for difference in harmless {
            tracing::warn!(stream = %name, difference, "the stream differs from the configuration, but can be used");
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

    /// Sends without a stream. `Ok` means that the server has read the message; it may have no subscriber.
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
        // Refusals arrive before this answer.
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
    /// `TooLarge`, and errors of the writer.
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
            let problem = format!("the message to {subject} has {len} bytes: the limit is {max}");
            return Err(HandlerError::TooLarge(problem));
        }
        Ok(message)
    }

    /// Checks for messages that are too large before any message is sent, so that a retry sends nothing twice.
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
                *self.stream.lock().await = None; // it may have been deleted or replaced: check it again
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
