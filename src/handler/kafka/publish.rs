//! Stores the messages of one batch concurrently.

use futures_util::{StreamExt as _, stream::FuturesUnordered};

use super::{
    client::Client,
    failure::Failure,
    message::{KafkaMessageWriter, Message},
    sent::{MessageOf, Report, Sent, State},
};
use crate::{
    handler::{Form, HandlerError},
    notification::Notification,
};

/// One attempt to store the messages of a batch. If it is dropped early, the state of each message is kept for the next
/// attempt.
pub(super) struct Publisher<'a> {
    client: &'a Client,
    writer: &'a KafkaMessageWriter,
    sent: &'a Sent,
    batch: &'a Notification,
    form: Form,
    /// Indexes of messages that the broker has stored.
    stored: Vec<usize>,
}

impl<'a> Publisher<'a> {
    /// Begins an attempt.
    pub(super) fn new(
        client: &'a Client,
        writer: &'a KafkaMessageWriter,
        sent: &'a Sent,
        batch: &'a Notification,
        form: Form,
    ) -> Self {
        Self { client, writer, sent, batch, form, stored: Vec::new() }
    }

    /// Stores all messages concurrently. Continues after a failure, and returns the first one.
    pub(super) async fn store_all(mut self) -> Result<(), HandlerError> {
        let (mut failed, mut message) = (None, Message::default());
        let mut waiting = FuturesUnordered::new();
        for index in 0..self.batch.events().len() {
            match self.begin(index, &mut message) {
                Ok(None) => self.stored.push(index),
                Ok(Some(report)) => {
                    let waits = self.sent.wait(self.message(index), report);
                    waiting.push(async move { (index, waits.answer().await) });
                }
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        while let Some((index, answer)) = waiting.next().await {
            match answer {
                Ok(()) => self.stored.push(index),
                Err(failure) => drop(failed.get_or_insert_with(|| self.meaning(&failure, index))),
            }
        }
        if failed.is_none() {
            self.stored.clear(); // the batch is delivered
        }
        failed.map_or(Ok(()), Err)
    }

    fn message(&self, index: usize) -> MessageOf<'a> {
        MessageOf(&self.batch.events()[index], self.form)
    }

    /// Sends a message, unless an earlier attempt has sent it; `None`: the broker has stored it.
    fn begin(&self, index: usize, message: &mut Message) -> Result<Option<Report>, HandlerError> {
        match self.sent.take(self.message(index)) {
            Some(State::Stored) => Ok(None),
            Some(State::Sent(report)) => Ok(Some(report)),
            None => {
                self.writer.write(&self.batch.events()[index], self.form, message)?;
                if let Some(trace) = self.batch.trace() {
                    message.trace(trace);
                }
                Ok(Some(self.client.send(message)))
            }
        }
    }

    fn meaning(&self, failure: &Failure, index: usize) -> HandlerError {
        let topic = self.writer.topic.topic(&self.writer.cluster, &self.batch.events()[index]);
        let meaning = failure.meaning(&topic);
        if failure.is_unknown_topic() {
            self.client.miss(topic);
        }
        meaning
    }
}

impl Drop for Publisher<'_> {
    fn drop(&mut self) {
        for index in std::mem::take(&mut self.stored) {
            self.sent.keep(self.message(index), State::Stored);
        }
    }
}
