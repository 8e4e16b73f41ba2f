//! Events as NATS messages, stored in a `JetStream` stream or only sent.
//!
//! # Order
//!
//! Messages of one object are sent one after the other, each after the previous one is acknowledged. Messages of
//! different objects are sent concurrently. A broken connection fails the attempt. Its messages may have been stored,
//! and the next attempt sends them again. Within the stream's `duplicate_window`, the server drops such a copy by its
//! `Nats-Msg-Id`, which is the event's id.
//!
//! # Stored once, also outside the window
//!
//! With [`ExpectLast::PerSubject`], a message has the expected last sequence of its subject. The server stores the message only if
//! this sequence matches. The handler remembers the last sequences of subjects. For a new object it expects an empty subject. The
//! sequence can be unknown, for example after a start, or because the bounded memory was cleared. If the sequence is unknown or
//! does not match, or if this event or a later one was stored last, the handler checks the stored messages:
//!
//! 1. The last message of the subject has the event's id: the event is already stored, so it counts as delivered.
//! 2. The last message was stored before the event happened (by more than a minute, as clocks may differ): the event is
//!    not stored yet. The handler sends the event, and now expects the sequence of this last message.
//! 3. Otherwise, the handler searches the messages of the subject since the event happened. If one of them has the event's id, the
//!    event counts as delivered. Otherwise, the event is not stored yet, as in 2.
//!
//! Therefore, a change is stored once as long as its message is kept, regardless of the window and of restarts. This
//! requires one subject per object, a stream that keeps messages until they expire, and clocks that differ by less than
//! a minute. Two writers to one subject lose no message and store no change twice. Their messages are in order of
//! arrival.
//!
//! The handler requires the feature `nats`. The options and the templates of subjects are always compiled.

#[cfg(feature = "nats")]
mod acks;
#[cfg(feature = "nats")]
mod attempt;
#[cfg(feature = "nats")]
mod auth;
#[cfg(feature = "nats")]
mod deliver;
#[cfg(feature = "nats")]
mod link;
#[cfg(feature = "nats")]
mod message;
mod options;
#[cfg(feature = "nats")]
mod publish;
#[cfg(feature = "nats")]
mod received;
#[cfg(feature = "nats")]
mod stored;
#[cfg(feature = "nats")]
mod stream;
pub(crate) mod subject;
#[cfg(test)]
#[cfg(feature = "nats")]
mod tests;

#[cfg(feature = "nats")]
pub use deliver::NatsHandler;
pub use options::{ExpectLast, JetStreamOptions, NatsAuth, NatsOptions};
