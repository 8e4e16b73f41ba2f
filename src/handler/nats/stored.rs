//! Stored messages: the last sequence of a subject, and a search for an event.

use std::{collections::HashMap, hash::BuildHasher as _, sync::Mutex};

use async_nats::{
    Subject,
    datetime::from_nanos,
    jetstream::{
        consumer::{AckPolicy, DeliverPolicy, pull},
        stream::{LastRawMessageErrorKind, Stream},
    },
};
use educe::Educe;
use foldhash::fast::RandomState;
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;

use super::{
    link::ANSWER_WAIT,
    message::{has_id, message_id},
    received::Received,
};
use crate::{handler::HandlerError, journal::Sequence, mutex::lock, notification::Event};

/// Maximum difference between the clocks of engine and servers.
const CLOCK_SKEW_NANOS: i128 = 60_000_000_000;
/// Maximum number of remembered subjects.
const LASTS_MAX: usize = 262_144;
/// Maximum number of concurrent looks at a last message. Their answers contain whole messages.
const LOOKS_MAX: usize = 64;
/// Maximum number of concurrent searches. Each search needs a consumer on the server.
const SEARCHES_MAX: usize = 16;
/// Maximum number of messages that one request of a search asks for.
const SEARCH_BATCH: usize = 500;

/// Last message of a subject.
#[derive(Clone, Copy)]
struct Last {
    /// Sequence in the stream.
    sequence: u64,
    /// Hash of the id.
    id: u64,
    /// Position of the event in the journal.
    position: Sequence,
}

/// Knowledge about a stream, kept between batches.
#[derive(Educe)]
#[educe(Default)]
pub(super) struct Memory {
    /// Last message of each subject, by the hash of the subject. Two subjects with the same hash share an entry, so the entry can
    /// have the wrong sequence for a subject. The server refuses a message with a wrong sequence, and the caller then checks the
    /// stored messages.
    lasts: Mutex<HashMap<u64, Last, RandomState>>,
    #[educe(Default = Semaphore::new(SEARCHES_MAX))]
    searches: Semaphore,
    #[educe(Default = Semaphore::new(LOOKS_MAX))]
    looks: Semaphore,
}

impl Memory {
    /// Returns the last sequence of a subject, if it is remembered. Returns `None` if the event, which has this id, is not newer than
    /// the last message: outside the duplicate window, the stream would store a repeated event twice.
    pub(super) fn last(&self, subject: &str, event: &Event, id: &str) -> Option<u64> {
        let lasts = lock(&self.lasts);
        let hash = |text: &str| lasts.hasher().hash_one(text);
        let &Last { sequence, id: last_id, position } = lasts.get(&hash(subject))?;
        // A repeated event can have a new position.
        (event.record.sequence >= position && last_id != hash(id)).then_some(sequence)
    }

    /// Remembers the last message of a subject. If the memory is full, it is cleared first. Then each forgotten subject costs one
    /// request again.
    pub(super) fn remember(&self, subject: &str, event: &Event, sequence: u64) {
        let mut lasts = lock(&self.lasts);
        if lasts.len() >= LASTS_MAX {
            lasts.clear();
        }
        let hash = |text: &str| lasts.hasher().hash_one(text);
        let (subject, id) = (hash(subject), hash(&message_id(event)));
        lasts.insert(subject, Last { sequence, id, position: event.record.sequence });
    }

    /// Forgets a subject whose last sequence is not known any more.
    pub(super) fn forget(&self, subject: &str) {
        let mut lasts = lock(&self.lasts);
        let key = lasts.hasher().hash_one(subject);
        lasts.remove(&key);
    }

    /// Reduces the number of concurrent looks, to at least one: the answers to fewer looks take less memory.
    pub(super) fn look_slower(&self) {
        let idle = self.looks.available_permits();
        self.looks.forget_permits(idle - idle.div_ceil(4));
    }

    /// Looks for the message of an event in the stream. Returns `None` if the stream has it. Otherwise returns the last sequence of
    /// the subject, or 0 if the subject has no message.
    pub(super) async fn look(
        &self,
        stream: &Stream,
        subject: &Subject,
        event: &Event,
        received: &Received,
    ) -> Result<Option<u64>, HandlerError> {
        let permit = self.looks.acquire().await;
        let last = stream.get_last_raw_message_by_subject(subject).await;
        if let Ok(last) = &last {
            received.consume_stored(&last.headers, &last.payload);
        }
        drop(permit);
        let last = match last {
            Ok(last) => last,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(Some(0)),
            Err(error) => return Err(failed(&format!("look at the last message of {subject}"), &error)),
        };
        let id = message_id(event);
        // The message cannot have been stored much before the engine received the change.
        let earliest = i128::from(event.record.time_micros) * 1000 - CLOCK_SKEW_NANOS;
        let is_older = last.time.unix_timestamp_nanos() < earliest;
        if has_id(&last.headers, &id) {
            self.remember(subject, event, last.sequence);
            return Ok(None);
        }
        if !is_older && self.search(stream, subject, &id, earliest, received).await? {
            return Ok(None);
        }
        Ok(Some(last.sequence))
    }

    /// Returns true if the stream has a message with this id. Searches the messages of the subject since `earliest`, in nanoseconds
    /// since the Unix epoch.
    async fn search(
        &self,
        stream: &Stream,
        subject: &Subject,
        id: &str,
        earliest: i128,
        received: &Received,
    ) -> Result<bool, HandlerError> {
        let _permit = self.searches.acquire().await;
        let what = format!("search {subject} for an earlier delivery");
        let start_time = from_nanos(earliest).map_err(|error| failed(&what, &*error))?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartTime { start_time },
            ack_policy: AckPolicy::None,
            filter_subject: subject.to_string(),
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
                received.consume([&*found]);
                is_found |= found.headers.as_ref().is_some_and(|headers| has_id(headers, id));
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

fn failed(what: &str, error: &dyn std::fmt::Display) -> HandlerError {
    HandlerError::Failed(format!("failed to {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cloud_event::tests::{event, unit},
        journal::testing::added,
    };

    fn numbered(number: u64) -> Event {
        let mut event = event(unit("", "pods", "Pod"), added("web", "u", number));
        event.record.sequence = Sequence(number);
        event
    }

    #[test]
    fn memory_is_bounded_and_newest_message_wins() {
        let memory = Memory::default();
        for (subject, number, sequence) in [("a", 1, 1), ("b", 2, 2), ("a", 4, 3)] {
            memory.remember(subject, &numbered(number), sequence);
        }
        let known = |subject, event: &Event| memory.last(subject, event, &message_id(event));
        let last = |subject, number| known(subject, &numbered(number));
        assert_eq!((last("a", 5), last("b", 3)), (Some(3), Some(2)));
        let mut repeated = numbered(4);
        repeated.record.sequence = Sequence(9);
        assert_eq!((last("a", 3), last("a", 4), known("a", &repeated)), (None, None, None), "the stream must be asked");
        memory.forget("a");
        assert_eq!(last("a", 5), None);
        let event = numbered(5);
        for i in 0..LASTS_MAX as u64 {
            memory.remember(&format!("other-{i}"), &event, i);
        }
        assert_eq!((last("b", 6), last("other-9", 6)), (None, None));
        assert!(lock(&memory.lasts).len() <= LASTS_MAX);
    }
}
