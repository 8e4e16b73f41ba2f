//! The handler: it receives batches, stores their messages and acknowledges them.

use std::{mem::take, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use rdkafka::types::RDKafkaErrorCode;
use tokio::{sync::Mutex, time::timeout};

use super::{
    KafkaOptions,
    client::Client,
    failure::{is_unknown_topic, meaning},
    message::Message,
    sent::{Sent, State},
    template::{KeyTemplate, TopicTemplate},
};
use crate::{
    cloud_event::Formatter,
    handler::{AsyncHandler, Form, HandlerError},
    notification::Notification,
};

/// The handler of type `kafka`. It connects with the first batch. While no broker can be reached, attempts fail and are retried.
pub struct KafkaHandler {
    pub(super) options: KafkaOptions,
    pub(super) topic: TopicTemplate,
    pub(super) key: KeyTemplate,
    pub(super) formatter: Formatter,
    /// Timeout of one attempt.
    timeout: Duration,
    /// Set if messages are sent one after the other, also for different objects.
    is_total: bool,
    client: Mutex<Option<Arc<Client>>>,
    sent: Sent,
}

impl KafkaHandler {
    /// Makes the handler; it does not connect yet. `timeout` limits one attempt. With `is_total`, messages are sent one after the
    /// other, also for different objects.
    ///
    /// # Errors
    /// Fails if a template is invalid.
    pub fn new(
        options: KafkaOptions,
        timeout: Duration,
        is_total: bool,
        formatter: impl Into<Formatter>,
    ) -> Result<Self, String> {
        let (topic, key) = (TopicTemplate::parse(&options.topic)?, KeyTemplate::parse(&options.key)?);
        let (formatter, client, sent) = (formatter.into(), Mutex::new(None), Sent::default());
        Ok(Self { options, topic, key, formatter, timeout, is_total, client, sent })
    }

    /// Returns the handler's client. Replaces the client only after it has failed or the brokers have refused it. If a working
    /// client were replaced, its unsent messages could overtake messages of the new client.
    async fn client(&self) -> Result<Arc<Client>, HandlerError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client
            && !client.trouble().is_over
        {
            return Ok(Arc::clone(client));
        }
        if let Some(before) = client.take() {
            before.give_up();
        }
        let new = Client::new(&self.options, self.timeout, self.is_total)?;
        Ok(Arc::clone(client.insert(Arc::new(new))))
    }

    async fn send(&self, batch: &Notification, form: Form) -> Result<(), HandlerError> {
        let client = self.client().await?;
        client.look_again().await;
        let stops = client.trouble().stops;
        let attempt = StoreAttempt { handler: self, client: &client, batch, form, states: Vec::new() };
        // This timeout is shorter than that of the whole attempt, because its error has more details.
        let patience = self.timeout.mul_f64(0.9);
        let stored = timeout(patience, async {
            tokio::select! {
                biased;
                stored = attempt.store_all() => stored,
                trouble = client.stopped(stops) => Err(HandlerError::Failed(trouble)),
            }
        });
        stored.await.unwrap_or_else(|_| {
            let brokers = self.options.brokers.join(", ");
            let why = client.trouble().last.as_ref().map(|last| format!(": {last}")).unwrap_or_default();
            let problem = format!("Kafka at {brokers} has not acknowledged everything within {patience:?}{why}");
            Err(HandlerError::Failed(problem))
        })
    }
}

impl AsyncHandler for KafkaHandler {
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.send(batch, form))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async {
            // Acknowledged messages are stored. The others are sent again after the next start, so there is nothing to
            // flush.
            if let Some(client) = self.client.lock().await.take() {
                client.give_up();
            }
            Ok(())
        })
    }
}

/// One attempt to store the messages of a batch. If it fails or is dropped early, the state of each message is kept for
/// the next attempt.
struct StoreAttempt<'a> {
    handler: &'a KafkaHandler,
    client: &'a Client,
    batch: &'a Notification,
    form: Form,
    /// States of the messages so far, in the order of the events; `None` for a message that has failed.
    states: Vec<Option<State>>,
}

impl StoreAttempt<'_> {
    /// Stores all messages concurrently. Continues after a failure, and returns the first failure.
    async fn store_all(mut self) -> Result<(), HandlerError> {
        let (mut failed, mut message) = (None, Message::default());
        for index in 0..self.batch.events().len() {
            let begun = self.begin(index, &mut message);
            self.states.push(begun.map_err(|error| failed = failed.take().or(Some(error))).ok());
        }
        for index in 0..self.states.len() {
            let Some(State::Sent(report)) = &mut self.states[index] else { continue };
            let answer = report.await.unwrap_or(Err(RDKafkaErrorCode::PurgeQueue)); // its client was closed
            self.states[index] = answer.is_ok().then_some(State::Stored);
            if let (Err(code), None) = (answer, &failed) {
                failed = Some(self.meaning(code, index));
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.states.clear(); // the batch is delivered
        Ok(())
    }

    /// Sends a message, unless an earlier attempt has sent it.
    fn begin(&self, index: usize, message: &mut Message) -> Result<State, HandlerError> {
        let event = &self.batch.events()[index];
        if let Some(state) = self.handler.sent.take(event, self.form) {
            return Ok(state);
        }
        self.handler.write(event, self.form, message)?;
        if let Some(trace) = self.batch.trace() {
            message.trace(trace);
        }
        Ok(State::Sent(self.client.send(message)))
    }

    fn meaning(&self, code: RDKafkaErrorCode, index: usize) -> HandlerError {
        let cluster = self.handler.formatter.encoder().cluster();
        let topic = self.handler.topic.topic(cluster, &self.batch.events()[index]);
        let meaning = meaning(code, &topic);
        if is_unknown_topic(code) {
            self.client.miss(topic);
        }
        meaning
    }
}

impl Drop for StoreAttempt<'_> {
    fn drop(&mut self) {
        for (event, state) in self.batch.events().iter().zip(take(&mut self.states)) {
            if let Some(state) = state {
                self.handler.sent.keep(event, self.form, state);
            }
        }
    }
}
