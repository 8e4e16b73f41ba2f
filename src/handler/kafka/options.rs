//! Options of a handler of type `kafka`.

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::AsRefStr;

use crate::{
    cloud_event::ContentMode,
    handler::client_tls::ClientTls,
    secret::SecretRef,
    text::{addresses, required},
};

/// Options of a handler of type `kafka`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("brokers"))]
pub struct KafkaOptions {
    /// Addresses of brokers of one cluster, `host:port`; other brokers are discovered from them. Required.
    #[schemars(transform = addresses("kafka-0:9092"))]
    pub brokers: Vec<String>,
    /// Topic of a message. `{cluster}` `{group}` `{resource}` `{namespace}` are filled in: "core" for the empty group, "_" for no
    /// namespace. Letters, digits, "." and "-" stay, other bytes become `_XX`. Brokers or administrators create topics.
    #[educe(Default = "k8s.{resource}".to_owned())]
    pub topic: String,
    /// Key of a message. `{uid}` `{cluster}` `{group}` `{resource}` `{kind}` `{namespace}` `{name}` are filled in unchanged.
    /// Messages of one key stay in order in one partition. `deleted` and `removed` are tombstones: messages of this key without a
    /// value.
    #[educe(Default = "{uid}".to_owned())]
    pub key: String,
    /// Form of an event: `structured`, one JSON object, or `binary`, with its attributes as `ce_` headers and its data as the
    /// value.
    pub mode: ContentMode,
    /// Compression of batches of messages.
    pub compression: KafkaCompression,
    /// Replicas that must have a message before it is acknowledged: `all` in sync, the leader (`1`), or none (`0`).
    pub acks: Acks,
    /// Makes brokers drop a message that is repeated after a lost response. Needs `acks = "all"`.
    #[educe(Default = true)]
    pub idempotent: bool,
    /// Credentials of the handler. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KafkaSasl")]
    pub sasl: Option<KafkaSasl>,
    /// Requires TLS, and sets its certificates. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
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
    /// Zstandard: makes the smallest batches.
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
