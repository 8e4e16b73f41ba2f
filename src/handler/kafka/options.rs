//! What a handler is told.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::AsRefStr;

use super::template::{KeyTemplate, TopicTemplate};
use crate::{cloud_event::ContentMode, handler::client_tls::ClientTls, secret::SecretRef};

/// `[handlers.*]` of type `kafka`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Addresses, `host:port`, of brokers to begin with; the others are learned from them.
    pub brokers: Vec<String>,
    /// Where a message goes.
    pub topic: TopicTemplate,
    /// What its key is.
    pub key: KeyTemplate,
    /// The name of the cluster, for `{cluster}`.
    pub cluster: String,
    /// How an event travels.
    pub mode: ContentMode,
    /// How batches of messages are packed.
    pub compression: KafkaCompression,
    /// Who has to have a message before it is acknowledged.
    pub acks: Acks,
    /// Brokers know a message again that the client repeats. Needs [`Acks::All`].
    pub idempotent: bool,
    /// Who we are.
    pub sasl: Option<KafkaSasl>,
    /// Connections are TLS.
    pub tls: Option<ClientTls>,
    /// What one attempt may take.
    pub timeout: Duration,
    /// Messages are sent one after the other, whatever their object: `order = "total"`.
    pub total_order: bool,
}

/// How batches of messages are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AsRefStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
pub enum KafkaCompression {
    /// Not at all.
    None,
    /// As gzip: dear.
    Gzip,
    /// As Snappy.
    Snappy,
    /// As LZ4: the cheapest.
    Lz4,
    /// As Zstandard: the smallest.
    #[default]
    Zstd,
}

/// Who has to have a message before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Acks {
    /// All replicas that keep up.
    #[default]
    #[serde(rename = "all")]
    All,
    /// The partition's leader: lost if that is lost.
    #[serde(rename = "1")]
    Leader,
    /// Nobody: lost with the connection.
    #[serde(rename = "0")]
    None,
}

impl Acks {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Leader => "1",
            Self::None => "0",
        }
    }
}

/// Who a Kafka handler is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Sasl")]
pub struct KafkaSasl {
    /// How the password is proved. `PLAIN` sends it: only with `tls`. Required.
    pub mechanism: SaslMechanism,
    /// The user. Required.
    pub username: String,
    /// The password. Required.
    pub password: SecretRef,
}

/// How a user is proved to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SaslMechanism {
    /// The password is sent.
    #[serde(rename = "PLAIN")]
    Plain,
    /// The password is proved, by SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// The password is proved, by SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl SaslMechanism {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}
