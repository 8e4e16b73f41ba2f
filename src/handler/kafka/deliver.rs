//! The handler: batches in, acknowledgements out.

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

/// The handler. It connects with the first batch: brokers that are not there are a failed attempt like any other.
pub struct KafkaHandler {
    options: KafkaOptions,
    writer: KafkaMessageWriter,
    client: Mutex<Option<Arc<Client>>>,
    sent: Sent,
}

impl KafkaHandler {
    /// Makes the handler; does nothing else.
    pub fn new(options: KafkaOptions, formatter: impl Into<Formatter>) -> Self {
        let KafkaOptions { cluster, topic, key, mode, .. } = options.clone();
        let writer = KafkaMessageWriter { formatter: formatter.into(), cluster, topic, key, mode };
        Self { options, writer, client: Mutex::new(None), sent: Sent::default() }
    }

    /// One client for the handler's life: what an abandoned one still had to send could overtake a new one. Another one
    /// only after the brokers refused this one, or it gave up itself.
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
        // Said before whoever waits for the whole attempt says less.
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
            // What is acknowledged is stored. What is not comes again with the next start: there is nothing to flush.
            if let Some(client) = self.client.lock().await.take() {
                client.give_up();
            }
            Ok(())
        })
    }
}
