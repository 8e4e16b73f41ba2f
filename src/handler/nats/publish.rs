//! Publishing to a stream: each object's messages one after the other, all objects at once.
//!
//! A message is sent when its predecessor of the same object is acknowledged. So whatever a lost connection swallows,
//! nothing of an object is stored before what came before it.

use std::{error::Error as _, sync::Mutex};

use async_nats::{
    HeaderMap, Subject,
    datetime::from_nanos,
    header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID},
    jetstream::{
        self, ErrorCode,
        consumer::{AckPolicy, DeliverPolicy, pull},
        context::{PublishError, PublishErrorKind},
        message::PublishMessage,
        publish::PublishAck,
        stream::{LastRawMessageErrorKind, Stream},
    },
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::sync::Semaphore;

use super::{
    ExpectLast,
    last::Lasts,
    link::{ANSWER_WAIT, Link, Watch},
    message::Message,
};
use crate::{handler::HandlerError, mutex::lock};

/// How far the clocks of engine and servers may differ.
const CLOCK_SKEW_NANOS: i128 = 60_000_000_000;
/// Subjects whose last sequence is remembered.
const LASTS_MAX: usize = 262_144;
/// Times that a message is sent again because somebody else was faster.
const CONFLICTS_MAX: u32 = 8;
/// Consumers that search at a time: the server has one of each to make.
const SEARCHES_MAX: usize = 16;
/// Messages that a search asks for at a time.
const SEARCH_BATCH: usize = 500;

/// What is known of a stream between batches.
pub(super) struct Publisher {
    expect_last: ExpectLast,
    lasts: Mutex<Lasts>,
    searches: Semaphore,
}

/// Why a message is not stored.
enum NotStored {
    /// The subject's last message is another one than expected.
    Conflict(Subject),
    /// The user must not publish to the subject.
    Refused(Subject),
    Error(HandlerError),
}

/// What is stored under a subject.
enum Stored {
    /// This very event.
    This,
    /// Something else, this is its last sequence; 0 is nothing.
    Other(u64),
}

impl Publisher {
    pub(super) fn new(expect_last: ExpectLast) -> Self {
        Self { expect_last, lasts: Mutex::new(Lasts::new(LASTS_MAX)), searches: Semaphore::new(SEARCHES_MAX) }
    }

    /// Stores chains of messages: those of one chain in order, the chains side by side. Goes on after a failure with the
    /// other chains, and returns the first one; but a message that the server refuses first of all.
    pub(super) async fn store_all(
        &self,
        link: &Link,
        stream: &Stream<()>,
        chains: Vec<Vec<Message>>,
        watch: &Watch,
    ) -> Result<(), HandlerError> {
        let mut running: FuturesUnordered<_> =
            chains.into_iter().map(|chain| self.store_chain(link, stream, chain, watch.clone())).collect();
        let (mut result, mut refused) = (Ok(()), None);
        while let Some(ended) = running.next().await {
            match ended {
                Err(NotStored::Refused(subject)) => refused = Some(subject),
                Err(NotStored::Error(error)) if result.is_ok() => result = Err(error),
                Err(NotStored::Conflict(subject)) if result.is_ok() => result = Err(unsettled(&subject)),
                _ => {}
            }
        }
        match refused {
            Some(subject) => Err(link.refusal(&subject)), // now it is known whether the server has taken others
            None => result,
        }
    }

    async fn store_chain(
        &self,
        link: &Link,
        stream: &Stream<()>,
        chain: Vec<Message>,
        mut watch: Watch,
    ) -> Result<(), NotStored> {
        for message in chain {
            match self.expect_last {
                ExpectLast::Off => {
                    send(link, &mut watch, message.subject, message.headers, message.payload).await?;
                }
                ExpectLast::PerSubject => self.store_once(link, stream, &message, &mut watch).await?,
            }
        }
        Ok(())
    }

    /// Stores a message unless it is stored: it is sent on condition that nothing follows what is known of its subject.
    async fn store_once(
        &self,
        link: &Link,
        stream: &Stream<()>,
        message: &Message,
        watch: &mut Watch,
    ) -> Result<(), NotStored> {
        let subject = message.subject.as_str();
        let mut known = lock(&self.lasts).get(subject).or(message.is_new.then_some(0));
        for _ in 0..CONFLICTS_MAX {
            let expected = match known {
                Some(expected) => expected,
                None => match self.look(stream, message).await.map_err(NotStored::Error)? {
                    Stored::This => return Ok(()),
                    Stored::Other(last) => last,
                },
            };
            let mut headers = message.headers.clone();
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
            match send(link, watch, message.subject.clone(), headers, message.payload.clone()).await {
                // A duplicate's sequence is where it is stored, which need not be the last.
                Ok(ack) if ack.duplicate => lock(&self.lasts).forget(subject),
                Ok(ack) => lock(&self.lasts).insert(subject, ack.sequence),
                Err(NotStored::Conflict(_)) => {
                    known = None;
                    lock(&self.lasts).forget(subject);
                    continue;
                }
                Err(other) => {
                    lock(&self.lasts).forget(subject);
                    return Err(other);
                }
            }
            return Ok(());
        }
        Err(NotStored::Conflict(message.subject.clone()))
    }

    /// Looks whether an event is stored: as the last one of its subject, or before that, since it happened.
    async fn look(&self, stream: &Stream<()>, message: &Message) -> Result<Stored, HandlerError> {
        let subject = message.subject.as_str();
        let last = match stream.get_last_raw_message_by_subject(subject).await {
            Ok(last) => last,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(Stored::Other(0)),
            Err(error) => return Err(failed(&format!("look at the last message of {subject}"), &error)),
        };
        let is_this = is_message(&last.headers, &message.id);
        let is_older = last.time.unix_timestamp_nanos() + CLOCK_SKEW_NANOS < message.time_nanos;
        if is_this || (!is_older && self.search(stream, message).await?) {
            return Ok(Stored::This);
        }
        lock(&self.lasts).insert(subject, last.sequence);
        Ok(Stored::Other(last.sequence))
    }

    /// Looks for an event among the messages of its subject that were stored since it happened.
    async fn search(&self, stream: &Stream<()>, message: &Message) -> Result<bool, HandlerError> {
        let _permit = self.searches.acquire().await;
        let what = format!("search {} for an earlier delivery", message.subject);
        let start_time = from_nanos(message.time_nanos - CLOCK_SKEW_NANOS).map_err(|error| failed(&what, &*error))?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartTime { start_time },
            ack_policy: AckPolicy::None,
            filter_subject: message.subject.to_string(),
            headers_only: true,
            memory_storage: true,
            inactive_threshold: ANSWER_WAIT,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| failed(&what, &error))?;
        let mut left = consumer.cached_info().num_pending;
        let mut is_found = false;
        while left > 0 && !is_found {
            let batch = consumer.fetch().max_messages(SEARCH_BATCH).messages().await;
            let mut batch = batch.map_err(|error| failed(&what, &error))?;
            let before = left;
            while let Some(found) = batch.next().await {
                let found = found.map_err(|error| failed(&what, &*error))?;
                is_found |= found.headers.as_ref().is_some_and(|headers| is_message(headers, &message.id));
                left = left.saturating_sub(1);
            }
            if left == before {
                break; // what was left has expired
            }
        }
        if let Err(error) = stream.delete_consumer(&consumer.cached_info().name).await {
            tracing::debug!(%error, "the server removes the consumer by itself");
        }
        Ok(is_found)
    }
}

/// Sends a message and waits for its acknowledgement, or for the refusal of its subject.
async fn send(
    link: &Link,
    watch: &mut Watch,
    subject: Subject,
    headers: HeaderMap,
    payload: Bytes,
) -> Result<PublishAck, NotStored> {
    let publish = PublishMessage::build().payload(payload).headers(headers);
    let storing = async { link.context.send_publish(subject.clone(), publish).await?.await };
    let stored = tokio::select! {
        biased;
        stored = storing => stored,
        () = watch.refused(&subject) => return Err(NotStored::Refused(subject)),
    };
    if stored.is_ok() {
        link.note_taken();
    }
    stored.map_err(|error| not_stored(subject, &error))
}

fn not_stored(subject: Subject, error: &PublishError) -> NotStored {
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let code = answer.map(jetstream::Error::error_code);
    let text = match (error.kind(), code) {
        (PublishErrorKind::WrongLastSequence, _) | (_, Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)) => {
            return NotStored::Conflict(subject);
        }
        (PublishErrorKind::MaxPayloadExceeded, _)
        | (_, Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM)) => {
            return NotStored::Error(HandlerError::TooLarge(format!("the message to {subject} is too large: {error}")));
        }
        (PublishErrorKind::StreamNotFound, _) => {
            format!("no stream takes {subject}: nobody answered; is the stream there, and has it this subject?")
        }
        (_, Some(ErrorCode::STREAM_NOT_MATCH)) => {
            format!("another stream than the configured one takes {subject}: change `stream` or `subject`")
        }
        (PublishErrorKind::TimedOut, _) => {
            format!("no acknowledgement for {subject} within {ANSWER_WAIT:?}")
        }
        _ => format!("NATS did not store the message to {subject}: {error}"),
    };
    NotStored::Error(HandlerError::Failed(text))
}

fn is_message(headers: &HeaderMap, id: &str) -> bool {
    headers.get(NATS_MESSAGE_ID).is_some_and(|stored| stored.as_str() == id)
}

fn unsettled(subject: &str) -> HandlerError {
    HandlerError::Failed(format!(
        "{subject} got other messages {CONFLICTS_MAX} times in between: does somebody else write to it?"
    ))
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> HandlerError {
    HandlerError::Failed(format!("failed to {what}: {error}"))
}
