//! One attempt to deliver a batch: what it needs, and how it sends without a stream.

use async_nats::Subject;

use super::{
    link::{Link, Watch},
    message::{Message, MessageEncoder, MessageTerms, message_id},
    stored::Memory,
};
use crate::{handler::HandlerError, notification::Notification};

/// One attempt to deliver a batch.
pub(super) struct SendAttempt<'a> {
    pub(super) encoder: &'a MessageEncoder,
    pub(super) memory: &'a Memory,
    pub(super) link: &'a Link,
    pub(super) watch: &'a Watch,
    pub(super) batch: &'a Notification,
    pub(super) terms: MessageTerms,
}

impl SendAttempt<'_> {
    /// Sends without a stream. `Ok` means that the server has read the messages; they may have no subscriber. A message that is too
    /// large is found before any message is sent, so that a retry sends nothing twice.
    pub(super) async fn send_only(&self) -> Result<(), HandlerError> {
        let encode = |event| {
            let subject = self.encoder.subject(event)?;
            Ok((self.encoder.message(event, &subject, message_id(event), &self.terms)?, subject))
        };
        let messages = self.batch.events().iter().map(encode).collect::<Result<Vec<_>, HandlerError>>()?;
        let subjects: Vec<_> = messages.iter().map(|(_, subject)| subject.clone()).collect();
        for (Message { headers, payload }, subject) in messages {
            let sent = self.link.client.publish_with_headers(subject, headers, payload).await;
            sent.map_err(|error| HandlerError::Failed(format!("failed to send: {error}")))?;
        }
        let read = self.link.round_trip().await;
        let refused = self.watch.all_refused(); // refusals arrive before the answer
        let is_refused = |subject: &&Subject| refused.contains(subject.as_str());
        if read.is_ok() && !subjects.iter().all(|subject| is_refused(&subject)) {
            self.link.note_taken();
        }
        subjects.iter().find(is_refused).map_or(read, |subject| Err(self.link.refusal(subject)))
    }
}
