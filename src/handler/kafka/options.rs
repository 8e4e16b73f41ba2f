//! Options of a handler of type `kafka`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::AsRefStr;

use super::template::{KeyTemplate, TopicTemplate};
use crate::{cloud_event::ContentMode, handler::client_tls::ClientTls, secret::SecretRef};

/// `[handlers.*]` of type `kafka`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Addresses, `host:port`, of some brokers; the client learns the others from them.
    pub brokers: Vec<String>,
    /// Topic of a message.
    pub topic: TopicTemplate,
    /// Key of a message.
    pub key: KeyTemplate,
    /// Name of the cluster, for `{cluster}`.
    pub cluster: String,
    /// Content mode of a message.
    pub mode: ContentMode,
    /// Compression of batches of messages.
    pub compression: KafkaCompression,
    /// Replicas that must have a message before it is acknowledged.
    pub acks: Acks,
    /// Brokers recognize messages that the client repeats. Needs [`Acks::All`].
    pub idempotent: bool,
    /// Credentials.
    pub sasl: Option<KafkaSasl>,
    /// TLS of the connections; `None`: no TLS.
    pub tls: Option<ClientTls>,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Messages are sent one after the other, also for different objects: `order = "total"`.
    pub total_order: bool,
}

/// Compression of batches of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AsRefStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
pub enum KafkaCompression {
    /// No compression.
    None,
    /// gzip: needs the most CPU time.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4: needs the least CPU time.
    Lz4,
    /// Zstandard: the smallest.
    #[default]
    Zstd,
}

/// Replicas that must have a message before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AsRefStr)]
pub enum Acks {
    /// All in-sync replicas.
    #[default]
    #[serde(rename = "all")]
    #[strum(serialize = "all")]
    All,
    /// Only the partition's leader. Messages are lost if the leader is lost.
    #[serde(rename = "1")]
    #[strum(serialize = "1")]
    Leader,
    /// No acknowledgement. Messages are lost if the connection is lost.
    #[serde(rename = "0")]
    #[strum(serialize = "0")]
    None,
}

/// Credentials of a Kafka handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Sasl")]
pub struct KafkaSasl {
    /// Mechanism that proves the password. `PLAIN` sends the password: use it only with `tls`. Required.
    pub mechanism: SaslMechanism,
    /// Name of the user. Required.
    pub username: String,
    /// The password. Required.
    pub password: SecretRef,
}

/// Mechanism that proves a user's password to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AsRefStr)]
pub enum SaslMechanism {
    /// The password is sent.
    #[serde(rename = "PLAIN")]
    #[strum(serialize = "PLAIN")]
    Plain,
    /// SCRAM with SHA-256; the password is not sent.
    #[serde(rename = "SCRAM-SHA-256")]
    #[strum(serialize = "SCRAM-SHA-256")]
    ScramSha256,
    /// SCRAM with SHA-512; the password is not sent.
    #[serde(rename = "SCRAM-SHA-512")]
    #[strum(serialize = "SCRAM-SHA-512")]
    ScramSha512,
}
