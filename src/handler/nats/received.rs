//! Bytes that the server has sent and nothing has consumed yet: a bound on the memory of the client library.
//!
//! The library keeps an incomplete message, the answers to pings that the server does not read, and the messages that wait in
//! subscriptions. It has no limit for them. All of them arrived as bytes, so their difference to the consumed bytes bounds them.

use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::Message;

/// Bytes that may be unconsumed, beside two messages of the maximum size.
const UNCONSUMED_MAX: u64 = 16 << 20;
/// Largest maximum size of a message that the server's word is taken for: that of a NATS server.
const PAYLOAD_MAX: usize = 64 << 20;
/// Bytes of a message beside subjects, headers and payload, at most.
const FRAME: u64 = 64;
/// Estimated size of an answer that the library consumes itself.
const ANSWER: u64 = 2 << 10;

/// Count of consumed bytes. An estimate that is too high does no harm, since there are never more consumed than received bytes.
#[derive(Debug, Default)]
pub(super) struct Consumed(AtomicU64);

impl Consumed {
    /// Counts a message.
    pub(super) fn message(&self, message: &Message) {
        self.bytes(message.length);
    }

    /// Counts an answer of this length, or another text of the server.
    pub(super) fn bytes(&self, length: usize) {
        self.0.fetch_add(length as u64 + FRAME, Ordering::Relaxed);
    }

    /// Counts an answer that the library consumes, with a base64 text of `length` bytes in it.
    pub(super) fn answer(&self, length: usize) {
        self.0.fetch_add(length as u64 * 2 + ANSWER, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limit of unconsumed bytes of one connection.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// Part of the consumed bytes that was counted too much.
    surplus: u64,
}

impl Limit {
    /// Returns the limit if more bytes are unconsumed. `max_payload` is the server's maximum size of a message.
    pub(super) fn exceeded(&mut self, received: u64, consumed: u64, max_payload: usize) -> Option<u64> {
        self.surplus = self.surplus.max(consumed.saturating_sub(received));
        let limit = UNCONSUMED_MAX + 2 * max_payload.min(PAYLOAD_MAX) as u64;
        (received + self.surplus > consumed + limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_unconsumed_bytes_count() {
        let mut limit = Limit::default();
        assert_eq!(limit.exceeded(18 * MIB, 0, 1 << 20), None);
        assert_eq!(limit.exceeded(18 * MIB + 1, 0, 1 << 20), Some(18 * MIB));
        assert_eq!(limit.exceeded(1000 * MIB, 985 * MIB, 1 << 20), None);
        assert_eq!(limit.exceeded(1000 * MIB, 900 * MIB, usize::MAX), None, "two messages of the largest size");
        assert_eq!(limit.exceeded(1061 * MIB, 900 * MIB, usize::MAX), Some(144 * MIB));
    }

    #[test]
    fn estimate_too_high_gives_no_credit() {
        let mut limit = Limit::default();
        assert_eq!(limit.exceeded(10 * MIB, 500 * MIB, 1 << 20), None);
        assert_eq!(limit.exceeded(28 * MIB, 500 * MIB, 1 << 20), None);
        assert_eq!(limit.exceeded(29 * MIB, 500 * MIB, 1 << 20), Some(18 * MIB));
    }
}
