//! Stored messages: the last sequence of a subject, and a search for an event.

use std::sync::Mutex;

use async_nats::{
    HeaderMap, Subject,
    datetime::from_nanos,
    header::NATS_MESSAGE_ID,
    jetstream::{
        consumer::{AckPolicy, DeliverPolicy, pull},
        stream::{LastRawMessageErrorKind, Stream},
    },
};
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;

use super::{last::Lasts, link::ANSWER_WAIT, message::Message};
use crate::{handler::HandlerError, mutex::lock};

/// Maximum difference between the clocks of engine and servers.
const CLOCK_SKEW_NANOS: i128 = 60_000_000_000;
/// Maximum number of remembered subjects.
const LASTS_MAX: usize = 262_144;
/// Maximum number of concurrent searches; each needs a consumer on the server.
const SEARCHES_MAX: usize = 16;
/// Number of messages per request of a search.
const SEARCH_BATCH: usize = 500;

/// State of a stream that is kept between batches.
pub(super) struct Memory {
    lasts: Mutex<Lasts>,
    searches: Semaphore,
}

/// The event to search for.
pub(super) struct Sought {
    subject: Subject,
    id: String,
    time_nanos: i128,
}

/// Stored state of a subject.
pub(super) enum Stored {
    /// The event is stored.
    This,
    /// The event is not stored; the last sequence of the subject, 0 if it is empty.
    Other(u64),
}

impl Sought {
    pub(super) fn of(message: &Message) -> Self {
        Self { subject: message.subject.clone(), id: message.id.clone(), time_nanos: message.time_nanos }
    }
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { lasts: Mutex::new(Lasts::new(LASTS_MAX)), searches: Semaphore::new(SEARCHES_MAX) }
    }

    /// Returns the last sequence of a subject, if it is remembered.
    pub(super) fn last(&self, subject: &str) -> Option<u64> {
        lock(&self.lasts).get(subject)
    }

    /// Remembers the last sequence of a subject.
    pub(super) fn remember(&self, subject: &str, sequence: u64) {
        lock(&self.lasts).insert(subject, sequence);
    }

    /// Forgets a subject whose last sequence is not known any more.
    pub(super) fn forget(&self, subject: &str) {
        lock(&self.lasts).forget(subject);
    }

    /// Checks if an event is stored, as the last message of its subject or earlier.
    pub(super) async fn look(&self, stream: &Stream<()>, sought: Sought) -> Result<Stored, HandlerError> {
        let subject = sought.subject.as_str();
        let last = match stream.get_last_raw_message_by_subject(subject).await {
            Ok(last) => last,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(Stored::Other(0)),
            Err(error) => return Err(failed(&format!("look at the last message of {subject}"), &error)),
        };
        let is_this = is_message(&last.headers, &sought.id);
        let is_older = last.time.unix_timestamp_nanos() + CLOCK_SKEW_NANOS < sought.time_nanos;
        if is_this || (!is_older && self.search(stream, &sought).await?) {
            return Ok(Stored::This);
        }
        self.remember(subject, last.sequence);
        Ok(Stored::Other(last.sequence))
    }

    /// Searches the messages of the subject that were stored since the event happened.
    async fn search(&self, stream: &Stream<()>, sought: &Sought) -> Result<bool, HandlerError> {
        let _permit = self.searches.acquire().await;
        let what = format!("search {} for an earlier delivery", sought.subject);
        let start_time = from_nanos(sought.time_nanos - CLOCK_SKEW_NANOS).map_err(|error| failed(&what, &*error))?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartTime { start_time },
            ack_policy: AckPolicy::None,
            filter_subject: sought.subject.to_string(),
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
                is_found |= found.headers.as_ref().is_some_and(|headers| is_message(headers, &sought.id));
                left = left.saturating_sub(1);
            }
            if left == before {
                break; // the remaining messages have expired
            }
        }
        if let Err(error) = stream.delete_consumer(&consumer.cached_info().name).await {
            tracing::debug!(%error, "the server removes the consumer by itself");
        }
        Ok(is_found)
    }
}

fn is_message(headers: &HeaderMap, id: &str) -> bool {
    headers.get(NATS_MESSAGE_ID).is_some_and(|stored| stored.as_str() == id)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> HandlerError {
    HandlerError::Failed(format!("failed to {what}: {error}"))
}
