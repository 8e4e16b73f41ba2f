//! Events as messages of Kafka, keyed so that a compacted topic equals the cluster's state.
//!
//! # Order
//!
//! The messages of a batch are of different objects and sent at once. The next message of an object is in a batch that
//! begins when this one is acknowledged. One key is one partition, within which the client keeps the order of what it was given,
//! whatever becomes of connections: it repeats a message until it is stored, and where it is `idempotent` a broker
//! knows the repetition again. An attempt that ends without an answer leaves its messages with the client, and the next
//! attempt waits for the same ones (`kafka/sent.rs`).
//!
//! So nothing is stored twice but by a stop amid a delivery: the next run sends again what was not acknowledged.
//!
//! The client is librdkafka. It brings an OpenSSL of its own, for minutes of compiling: the handler is there with the
//! feature `kafka` alone. What makes messages of events ([`message`], [`template`]) is always there, as are the options.

#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod deliver;
#[cfg(feature = "kafka")]
mod failure;
pub mod message;
mod options;
#[cfg(feature = "kafka")]
mod publish;
#[cfg(feature = "kafka")]
mod sent;
pub mod template;
#[cfg(test)]
mod testing;

#[cfg(feature = "kafka")]
pub use deliver::KafkaHandler;
pub use options::{Acks, KafkaCompression, KafkaOptions, KafkaSasl, SaslMechanism};
