//! The handler: it receives batches and acknowledges them.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::Mutex, time::timeout};

use super::{
    KafkaOptions,
    client::{Client, Watch},
    message::KafkaMessageWriter,
    publish::Publisher,
    sent::Sent,
};
use crate::{
    cloud_event::Formatter,
    handler::{AsyncHandler, Form, HandlerError},
    notification::Notification,
};

/// The handler of type `kafka`. It connects with the first batch. Unreachable brokers are an ordinary failed attempt.
pub struct KafkaHandler {
    options: KafkaOptions,
    writer: KafkaMessageWriter,
    client: Mutex<Option<Arc<Client>>>,
    sent: Sent,
}

impl KafkaHandler {
    /// Makes the handler; it does not connect yet.
    pub fn new(options: KafkaOptions, formatter: impl Into<Formatter>) -> Self {
        let KafkaOptions { cluster, topic, key, mode, .. } = options.clone();
        let writer = KafkaMessageWriter { formatter: formatter.into(), cluster, topic, key, mode };
        Self { options, writer, client: Mutex::new(None), sent: Sent::default() }
    }

    /// Returns the handler's client. It is replaced only after the brokers refused it, or it failed. Otherwise unsent
    /// messages of the old client could overtake those of the new one.
    async fn client(&self) -> Result<Arc<Client>, HandlerError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client
            && !client.is_over()
        {
            return Ok(Arc::clone(client));
        }
        if let Some(before) = client.take() {
            before.give_up();
        }
        let made = Arc::new(Client::new(&self.options)?);
        *client = Some(Arc::clone(&made));
        Ok(made)
    }

    async fn send(&self, batch: &Notification, form: Form) -> Result<(), HandlerError> {
        let client = self.client().await?;
        client.look_again().await;
        let mut watch = client.watch();
        let publisher = Publisher::new(&client, &self.writer, &self.sent, batch, form);
        // Ends before the timeout of the whole attempt, because this error has more details.
        let patience = self.options.timeout.mul_f64(0.9);
        let stored = timeout(patience, async {
            tokio::select! {
                biased;
                stored = publisher.store_all() => stored,
                trouble = watch.stopped() => Err(HandlerError::Failed(trouble)),
            }
        });
        stored.await.unwrap_or_else(|_| Err(self.silence(patience, &watch)))
    }

    fn silence(&self, patience: Duration, watch: &Watch) -> HandlerError {
        let brokers = self.options.brokers.join(", ");
        let why = watch.last().map(|last| format!(": {last}")).unwrap_or_default();
        HandlerError::Failed(format!("Kafka at {brokers} has not acknowledged everything within {patience:?}{why}"))
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
