//! Delivery of batches. The messages of a batch are sent concurrently, because each belongs to another object.
//!
//! The next message of an object is in a later batch. That batch starts only after the earlier batch is acknowledged. So, even
//! after a lost connection, messages of an object are stored in order.

use std::sync::Arc;

use async_nats::jetstream::stream::Stream;
use futures_util::future::BoxFuture;
use tokio::sync::{RwLock, RwLockReadGuard, Semaphore};

use super::{
    ExpectLast, NatsOptions,
    attempt::SendAttempt,
    link::Link,
    message::{MessageEncoder, MessageTerms},
    publish::Publisher,
    stored::Memory,
    stream,
};
use crate::{
    cloud_event::Formatter,
    handler::{AsyncHandler, Form, HandlerError},
    notification::Notification,
};

/// The handler of type `nats`. It connects with the first batch. While no server can be reached, attempts fail and are retried.
pub struct NatsHandler {
    options: NatsOptions,
    encoder: MessageEncoder,
    memory: Memory,
    /// The connection. An attempt locks it for reading. It is replaced only after all its attempts and its thread have ended:
    /// unsent messages of the old connection could overtake messages of the new one.
    link: RwLock<Option<Link>>,
    /// Its permit belongs to the thread of the connection.
    slot: Arc<Semaphore>,
}

impl NatsHandler {
    /// Makes the handler; it does not connect yet.
    ///
    /// # Errors
    /// Fails if the template of the subject is invalid.
    pub fn new(options: NatsOptions, formatter: impl Into<Formatter>) -> Result<Self, String> {
        let encoder = MessageEncoder::new(&options, formatter.into())?;
        let (memory, link, slot) = (Memory::default(), RwLock::default(), Arc::new(Semaphore::new(1)));
        Ok(Self { options, encoder, memory, link, slot })
    }

    /// Returns the connection for an attempt. Connects if there is no connection, if it has ended, or if it must be replaced.
    async fn link(&self) -> Result<RwLockReadGuard<'_, Link>, HandlerError> {
        let is_usable = |link: &&Link| link.end().is_none() && !link.received.is_stale();
        if let Ok(link) = RwLockReadGuard::try_map(self.link.read().await, |link| link.as_ref().filter(is_usable)) {
            return Ok(link);
        }
        let mut place = self.link.write().await; // waits for the attempts on the old connection
        if !place.as_ref().is_some_and(|link| is_usable(&link)) {
            if let Some(end) = place.take().and_then(|link| link.end()) {
                tracing::warn!(reason = %end, "connecting to NATS again");
                self.memory.look_slower();
            }
            *place = Some(Link::connect(&self.options, &self.slot).await?);
        }
        let link = RwLockReadGuard::try_map(place.downgrade(), Option::as_ref);
        link.map_err(|_| HandlerError::Failed("the connection to NATS was replaced".to_owned()))
    }

    /// Returns the stream; `None` if messages are only sent. The first call checks the stream, and so does the first call after a
    /// failed attempt.
    async fn stream(&self, link: &Link) -> Result<Option<Arc<Stream>>, HandlerError> {
        let Some(options) = &self.options.jetstream else { return Ok(None) };
        let mut known = link.stream.lock().await;
        if known.is_none() {
            *known = Some(Arc::new(stream::open(&link.context, options, self.encoder.subject.wildcard()).await?));
        }
        Ok(known.clone())
    }

    async fn send(&self, link: &Link, batch: &Notification, form: Form) -> Result<(), HandlerError> {
        let watch = link.ready().await?;
        let sending = async {
            let stream = self.stream(link).await?;
            let max = stream.as_deref().map_or(usize::MAX, stream::message_max).min(link.client.max_payload());
            let terms = MessageTerms { form, trace: batch.trace(), max };
            let attempt =
                SendAttempt { encoder: &self.encoder, memory: &self.memory, link, watch: &watch, batch, terms };
            let options = self.options.jetstream.as_ref();
            let is_conditional = options.is_some_and(|options| options.expect_last == ExpectLast::PerSubject);
            match stream.as_deref() {
                Some(stream) => Publisher::new(&attempt, stream, is_conditional).await?.store_all().await,
                None => attempt.send_only().await,
            }
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
            let link = self.link().await?;
            let sent = self.send(&link, batch, form).await;
            if let Err(HandlerError::Failed(_)) = &sent {
                *link.stream.lock().await = None; // it may have been deleted or replaced: check it again
                if let Some(end) = link.end() {
                    return Err(end); // the cause of all errors of the client
                }
            }
            sent
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async {
            let link = self.link.read().await;
            let Some(link) = link.as_ref().filter(|link| link.end().is_none()) else { return Ok(()) };
            let closed = link.client.drain().await;
            closed.map_err(|error| HandlerError::Failed(format!("failed to close the connection to NATS: {error}")))
        })
    }
}
