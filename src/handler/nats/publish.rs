//! Storage of messages in a stream, with acknowledgements.

use std::{collections::BTreeMap, mem};

use async_nats::{
    HeaderValue, PublishErrorKind, Subject, header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, jetstream::stream::Stream,
};
use futures_util::{StreamExt as _, stream as streams};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    acks::{AckInbox, NotStored, Receipt},
    attempt::SendAttempt,
    link::ANSWER_WAIT,
    message::{Message, message_id, too_large},
};
use crate::{change::Change, handler::HandlerError, notification::Event};

/// Maximum number of messages of a batch that wait for an acknowledgement.
const UNDER_WAY_MAX: usize = 1024;
/// Maximum number of tries to store a message after a look-up. A try fails if another writer stores to the subject first.
const CONFLICTS_MAX: u32 = 8;

/// Storage of the messages of one batch.
pub(super) struct Publisher<'a> {
    attempt: &'a SendAttempt<'a>,
    stream: &'a Stream,
    inbox: AckInbox,
    /// Set if each message names the expected last sequence of its subject.
    is_conditional: bool,
    /// The first failure.
    result: Result<(), HandlerError>,
    /// Subject of the first message that the server refused.
    refused: Option<Subject>,
    /// Set if an acknowledgement did not arrive in time.
    is_silent: bool,
}

/// Result of [`Publisher::begin`].
enum Begun<'a> {
    /// The message was sent with this number.
    Sent(u64, Unacknowledged<'a>),
    /// The subject must be looked up first.
    Unknown(Subject),
}

/// A message that was sent.
struct Unacknowledged<'a> {
    event: &'a Event,
    subject: Subject,
}

impl<'a> Publisher<'a> {
    pub(super) async fn new(
        attempt: &'a SendAttempt<'a>,
        stream: &'a Stream,
        is_conditional: bool,
    ) -> Result<Self, HandlerError> {
        let inbox = attempt.link.inbox().await?;
        let (result, refused, is_silent) = (Ok(()), None, false);
        Ok(Self { attempt, stream, inbox, is_conditional, result, refused, is_silent })
    }

    /// Stores all messages, first those whose subject need not be looked up. Returns the first failure. A refusal by the server has
    /// precedence over other failures.
    pub(super) async fn store_all(mut self) -> Result<(), HandlerError> {
        let SendAttempt { link, batch, .. } = self.attempt;
        let mut events: Vec<_> = batch.events().iter().map(|event| (event, None)).collect();
        for _ in 0..=CONFLICTS_MAX {
            let unknown = self.store(events).await;
            events = self.look_up(unknown).await;
            if events.is_empty() {
                break;
            }
        }
        if let Some((event, _)) = events.first() {
            let id = message_id(event);
            self.fail(HandlerError::Failed(format!(
                "the subject of {id} got other messages during all {CONFLICTS_MAX} attempts: check for another writer"
            )));
        }
        if !self.is_silent {
            link.keep(self.inbox);
        }
        match self.refused {
            Some(subject) => Err(link.refusal(&subject)), // now it is known whether the server has accepted others
            None => self.result,
        }
    }

    fn fail(&mut self, error: HandlerError) {
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    /// Stores the messages of events. The number beside an event is the last sequence of its subject, if it was looked up. Returns
    /// the events whose subject must be looked up: its last sequence is unknown, or another writer has stored to it.
    ///
    /// Each message is encoded just before it is sent, because the messages of a whole batch do not fit into the processor's cache.
    /// After a failure to encode or send a message, the remaining messages are not sent. The next attempt sends them.
    async fn store(&mut self, events: Vec<(&'a Event, Option<u64>)>) -> Vec<(&'a Event, Subject)> {
        let mut unknown = Vec::new();
        for events in events.chunks(UNDER_WAY_MAX) {
            let mut waiting = BTreeMap::new();
            for &(event, last) in events {
                match self.begin(event, last).await {
                    Ok(Begun::Sent(number, message)) => drop(waiting.insert(number, message)),
                    Ok(Begun::Unknown(subject)) => unknown.push((event, subject)),
                    Err(error) => {
                        self.fail(error);
                        self.wait(waiting).await;
                        return Vec::new();
                    }
                }
            }
            unknown.extend(self.wait(waiting).await);
            if self.is_silent {
                return Vec::new();
            }
        }
        unknown
    }

    /// Sends the message of an event, if its condition is known. `last` is the last sequence of the subject if it was looked up.
    async fn begin(&mut self, event: &'a Event, last: Option<u64>) -> Result<Begun<'a>, HandlerError> {
        let SendAttempt { encoder, memory, link, terms, .. } = self.attempt;
        let (subject, id) = (encoder.subject(event)?, message_id(event));
        let mut expected = None;
        if self.is_conditional {
            let is_new = matches!(event.record.change, Change::Added { .. }); // so its subject is probably empty
            let known = || memory.last(&subject, event, &id).or(is_new.then_some(0));
            expected = last.or_else(known);
            if expected.is_none() {
                return Ok(Begun::Unknown(subject));
            }
        }
        let Message { mut headers, payload } = encoder.message(event, &subject, id, terms)?;
        if let Some(expected) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected));
        }
        let (number, reply) = self.inbox.next_reply();
        let sending = link.client.publish_with_reply_and_headers(subject.clone(), reply, headers, payload);
        match timeout(ANSWER_WAIT, sending).await {
            Ok(Ok(())) => Ok(Begun::Sent(number, Unacknowledged { event, subject })),
            Ok(Err(error)) if error.kind() == PublishErrorKind::MaxPayloadExceeded => Err(too_large(&subject, &error)),
            Ok(Err(error)) => Err(HandlerError::Failed(format!("failed to send the message to {subject}: {error}"))),
            Err(_) => {
                let problem = "the server reads too slowly";
                Err(HandlerError::Failed(format!(
                    "failed to send the message to {subject} within {ANSWER_WAIT:?}: {problem}"
                )))
            }
        }
    }

    /// Looks for messages in the stream, because an earlier attempt may have stored them. Returns the events that are not stored,
    /// with the last sequences of their subjects.
    async fn look_up(&mut self, events: Vec<(&'a Event, Subject)>) -> Vec<(&'a Event, Option<u64>)> {
        let (memory, stream, received) = (self.attempt.memory, self.stream, &self.attempt.link.received);
        let look = |(event, subject): (&'a Event, Subject)| async move {
            let found = memory.look(stream, &subject, event, received).await;
            (event, found)
        };
        let looks: Vec<_> = events.into_iter().map(look).collect();
        let found: Vec<_> = streams::iter(looks).buffered(UNDER_WAY_MAX).collect().await;
        let mut missing = Vec::new();
        for (event, found) in found {
            match found {
                Ok(last @ Some(_)) => missing.push((event, last)),
                Ok(None) => {}
                Err(error) => self.fail(error),
            }
        }
        missing
    }

    /// Waits until each message is acknowledged or refused, or until nothing arrives in time. Returns the events whose message had
    /// a wrong expected sequence.
    async fn wait(&mut self, mut waiting: BTreeMap<u64, Unacknowledged<'a>>) -> Vec<(&'a Event, Subject)> {
        let SendAttempt { memory, watch, .. } = self.attempt;
        let (mut conflicts, mut refusals) = (Vec::new(), 0);
        let mut deadline = Instant::now() + ANSWER_WAIT;
        while !waiting.is_empty() {
            tokio::select! {
                biased;
                acks = self.inbox.read() => for (number, ack) in acks {
                    let Some(message) = waiting.remove(&number) else { continue };
                    deadline = Instant::now() + ANSWER_WAIT;
                    conflicts.extend(self.acknowledged(message, ack));
                },
                count = watch.refused(refusals) => {
                    refusals = count;
                    let refused = watch.all_refused();
                    let is_refused = |_: &u64, message: &mut Unacknowledged<'_>| refused.contains(message.subject.as_str());
                    for (_, message) in waiting.extract_if(.., is_refused) {
                        memory.forget(&message.subject);
                        self.refused.get_or_insert(message.subject);
                    }
                }
                () = sleep_until(deadline) => for Unacknowledged { subject, .. } in mem::take(&mut waiting).into_values() {
                    self.is_silent = true;
                    memory.forget(&subject);
                    self.fail(HandlerError::Failed(format!("no acknowledgement for {subject} within {ANSWER_WAIT:?}")));
                },
            }
        }
        conflicts
    }

    /// Notes the acknowledgement of a message. Returns the event if the message had a wrong expected sequence.
    fn acknowledged(
        &mut self,
        message: Unacknowledged<'a>,
        ack: Result<Receipt, NotStored>,
    ) -> Option<(&'a Event, Subject)> {
        let Unacknowledged { event, subject } = message;
        let SendAttempt { memory, link, .. } = self.attempt;
        match &ack {
            Ok(_) if !self.is_conditional => {}
            // A duplicate has the sequence of the stored copy, which is not always the subject's last message.
            Ok(Receipt { sequence, is_duplicate: false }) => memory.remember(&subject, event, *sequence),
            _ => memory.forget(&subject),
        }
        match ack {
            Ok(_) => link.note_taken(),
            Err(refusal) if self.is_conditional && refusal.is_conflict() => return Some((event, subject)),
            Err(refusal) => self.fail(refusal.into_error(&subject)),
        }
        None
    }
}
