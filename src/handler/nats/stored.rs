//! Stored messages: the last sequence of a subject, and a search for an event.

use std::{collections::HashMap, hash::BuildHasher as _, sync::Mutex};

use async_nats::{
    HeaderMap,
    datetime::from_nanos,
    header::NATS_MESSAGE_ID,
    jetstream::{
        consumer::{AckPolicy, DeliverPolicy, pull},
        stream::{LastRawMessageErrorKind, Stream},
    },
};
use educe::Educe;
use foldhash::fast::RandomState;
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;

use super::{link::ANSWER_WAIT, message::Message};
use crate::{handler::HandlerError, mutex::lock};

/// Maximum difference between the clocks of engine and servers.
const CLOCK_SKEW_NANOS: i128 = 60_000_000_000;
/// Maximum number of remembered subjects.
const LASTS_MAX: usize = 262_144;
/// Maximum number of concurrent searches. Each search needs a consumer on the server.
const SEARCHES_MAX: usize = 16;
/// Maximum number of messages that one request of a search asks for.
const SEARCH_BATCH: usize = 500;

/// Knowledge about a stream, kept between batches.
#[derive(Educe)]
#[educe(Default)]
pub(super) struct Memory {
    /// Last sequence of each subject, by the hash of the subject. Two subjects with the same hash share an entry, so the entry can
    /// have the wrong sequence for a subject. The server refuses a message with a wrong sequence, and the caller then checks the
    /// stored messages.
    lasts: Mutex<HashMap<u64, u64, RandomState>>,
    #[educe(Default = Semaphore::new(SEARCHES_MAX))]
    searches: Semaphore,
}

impl Memory {
    /// Returns the last sequence of a subject, if it is remembered; 0 means a subject without messages.
    pub(super) fn last(&self, subject: &str) -> Option<u64> {
        let lasts = lock(&self.lasts);
        lasts.get(&lasts.hasher().hash_one(subject)).copied()
    }

    /// Remembers the last sequence of a subject. If the memory is full, it is cleared first. Then each forgotten subject costs one
    /// request again.
    pub(super) fn remember(&self, subject: &str, sequence: u64) {
        let mut lasts = lock(&self.lasts);
        if lasts.len() >= LASTS_MAX {
            lasts.clear();
        }
        let key = lasts.hasher().hash_one(subject);
        lasts.insert(key, sequence);
    }

    /// Forgets a subject whose last sequence is not known any more.
    pub(super) fn forget(&self, subject: &str) {
        let mut lasts = lock(&self.lasts);
        let key = lasts.hasher().hash_one(subject);
        lasts.remove(&key);
    }

    /// Looks for a message in the stream. Returns `None` if the stream has the message. Otherwise returns the last sequence of the
    /// message's subject, or 0 if the subject has no message.
    pub(super) async fn look(&self, stream: &Stream, sought: &Message) -> Result<Option<u64>, HandlerError> {
        let subject = sought.subject.as_str();
        let last = match stream.get_last_raw_message_by_subject(subject).await {
            Ok(last) => last,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(Some(0)),
            Err(error) => return Err(failed(&format!("look at the last message of {subject}"), &error)),
        };
        let is_this = is_message(&last.headers, &sought.id);
        let is_older = last.time.unix_timestamp_nanos() + CLOCK_SKEW_NANOS < sought.time_nanos;
        if is_this || (!is_older && self.search(stream, sought).await?) {
            return Ok(None);
        }
        self.remember(subject, last.sequence);
        Ok(Some(last.sequence))
    }

    /// Returns true if the stream has stored the message since the event happened. Searches only messages of the same subject.
    async fn search(&self, stream: &Stream, sought: &Message) -> Result<bool, HandlerError> {
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
            tracing::debug!(%error, "failed to delete the consumer; the server removes it later");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_memory_is_bounded_and_newest_sequence_wins() {
        let memory = Memory::default();
        for (subject, sequence) in [("a", 1), ("b", 2), ("a", 3)] {
            memory.remember(subject, sequence);
        }
        assert_eq!((memory.last("a"), memory.last("b")), (Some(3), Some(2)));
        memory.forget("a");
        assert_eq!(memory.last("a"), None);
        for i in 0..LASTS_MAX as u64 {
            memory.remember(&format!("other-{i}"), i);
        }
        assert_eq!((memory.last("b"), memory.last("other-9")), (None, None));
        assert!(lock(&memory.lasts).len() <= LASTS_MAX);
    }
}
