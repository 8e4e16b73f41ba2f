//! Events as Kafka messages, keyed so that a compacted topic equals the cluster's state.
//!
//! # Order
//!
//! The messages of a batch belong to different objects and are sent concurrently. The next message of an object is in a
//! later batch. A batch starts only after earlier batches with the same objects are acknowledged. Each key belongs to one
//! partition, and the client keeps the order within a partition when connections fail. The client repeats a message until the
//! message is stored. With `idempotent`, a broker recognizes the repetition. An attempt that ends without an answer leaves its
//! messages with the client, and the next attempt waits for the same messages (`kafka/sent.rs`).
//!
//! With `idempotent`, a message is therefore stored twice only after a stop during a delivery, or after a failed client was
//! replaced. The next run or client then sends the unacknowledged messages again.
//!
//! The client is librdkafka, which includes its own OpenSSL and takes minutes to compile. Therefore this handler
//! requires the feature `kafka`. Templates ([`template`]) and options are always compiled.

#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod deliver;
#[cfg(feature = "kafka")]
mod failure;
#[cfg(feature = "kafka")]
pub(crate) mod message;
mod options;
#[cfg(feature = "kafka")]
mod sent;
#[cfg_attr(not(any(feature = "kafka", test)), expect(dead_code, reason = "the handler is not built"))]
pub(crate) mod template;

#[cfg(feature = "kafka")]
pub use deliver::KafkaHandler;
pub use options::{Acks, KafkaCompression, KafkaOptions, KafkaSasl, SaslMechanism};
