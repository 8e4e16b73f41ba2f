//! Bytes that the server has sent and nothing has consumed yet: a bound on the memory of the client library.
//!
//! The library keeps an incomplete message, the answers to pings that the server does not read, and the messages that wait in
//! subscriptions, without a limit on their size. All of them arrived as bytes, so the unconsumed bytes bound them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message, Statistics};

/// Maximum of unconsumed bytes. If there are more, the connection is ended.
const UNCONSUMED_MAX: u64 = 16 << 20;
/// Unconsumed bytes after which the connection is replaced between two attempts. The library itself consumes small answers, and
/// they are not counted as consumed. So this number increases slowly on every connection.
const UNCONSUMED_STALE: u64 = 4 << 20;
/// Interval of the checks.
const CHECK: Duration = Duration::from_millis(10);
/// Bytes of a message beside subject, reply subject, headers and payload: `MSG`, the id of the subscription, lengths, separators.
const FRAME: usize = 20;

/// Count of the bytes that one [`Link`](super::link::Link) has received and consumed.
#[derive(Debug, Default)]
pub(super) struct Received {
    statistics: Arc<Statistics>,
    consumed: AtomicU64,
    /// Lowest difference of received and consumed bytes so far; below zero if an estimate was too high. Zero bytes were unconsumed
    /// at that time, so a high estimate gives no credit for later bytes.
    lowest: AtomicI64,
}

impl Received {
    pub(super) fn new(statistics: Arc<Statistics>) -> Self {
        Self { statistics, ..Self::default() }
    }

    /// Counts messages as consumed.
    pub(super) fn consume<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) {
        self.consume_bytes(messages.into_iter().map(|message| message.length + FRAME).sum());
    }

    /// Counts an answer with a stored message as consumed. The answer has headers and payload as base64.
    pub(super) fn consume_stored(&self, headers: &HeaderMap, payload: &[u8]) {
        let line = |(name, values): (&HeaderName, &Vec<HeaderValue>)| -> usize {
            let name: &str = name.as_ref();
            values.iter().map(|value| name.len() + value.as_str().len() + ": \r\n".len()).sum()
        };
        self.consume_bytes((headers.iter().map(line).sum::<usize>() + payload.len()) / 3 * 4);
    }

    fn consume_bytes(&self, bytes: usize) {
        self.consumed.fetch_add(bytes as u64, Ordering::Release);
    }

    fn unconsumed(&self) -> u64 {
        let consumed = self.consumed.load(Ordering::Acquire); // first: these bytes were received before
        let received = self.statistics.in_bytes.load(Ordering::Relaxed);
        let difference = received.wrapping_sub(consumed).cast_signed();
        let lowest = self.lowest.fetch_min(difference, Ordering::Relaxed).min(difference);
        difference.abs_diff(lowest)
    }

    /// Returns true if the connection should be replaced before the next attempt.
    pub(super) fn is_stale(&self) -> bool {
        self.unconsumed() > UNCONSUMED_STALE
    }

    /// Waits until too many bytes are unconsumed. Returns the reason to end the connection.
    pub(super) async fn exceeded(&self) -> String {
        while self.unconsumed() <= UNCONSUMED_MAX {
            tokio::time::sleep(CHECK).await;
        }
        format!("the server has sent more than {} MiB that nothing waits for", UNCONSUMED_MAX >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn receive(received: &Received, bytes: usize) {
        received.statistics.in_bytes.add(bytes as u64, Ordering::Relaxed);
    }

    #[test]
    fn only_unconsumed_bytes_count() {
        let received = Received::default();
        for _ in 0..100 {
            receive(&received, 4 * MIB);
            assert_eq!((received.unconsumed(), received.is_stale()), (UNCONSUMED_STALE, false));
            received.consume_bytes(4 * MIB);
        }
        receive(&received, 4 * MIB + 1);
        assert!(received.is_stale());
    }

    #[test]
    fn high_estimate_gives_no_credit() {
        let received = Received::default();
        receive(&received, 10 * MIB);
        received.consume_bytes(500 * MIB);
        assert_eq!(received.unconsumed(), 0);
        receive(&received, 5 * MIB);
        assert_eq!(received.unconsumed(), 5 << 20);
    }

    #[test]
    fn stored_message_counts_at_most_its_answer() {
        let received = Received::default();
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", "uid.1");
        received.consume_stored(&headers, &[0; 3000]);
        // `NATS/1.0\r\n` and the last line end are not counted
        assert_eq!(received.consumed.into_inner(), ("Nats-Msg-Id: uid.1\r\n".len() as u64 + 3000) / 3 * 4);
    }
}
