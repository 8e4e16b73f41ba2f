//! Options of a handler of type `nats`.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cloud_event::ContentMode,
    handler::client_tls::ClientTls,
    secret::{SecretRef, exclusive_keys},
    text::{Text, addresses, required},
};

/// Options of a handler of type `nats`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("servers"))]
pub struct NatsOptions {
    /// Addresses of servers of one cluster, `nats://` or `tls://`, without a user or password. One `tls://` address requires
    /// TLS of all servers, including those that the cluster announces. Required.
    #[schemars(transform = addresses("nats://nats.nats:4222"))]
    pub servers: Vec<String>,
    /// Name of the connection on the servers.
    #[educe(Default = "deltabus".to_owned())]
    pub name: String,
    /// Credentials of the handler, one of four kinds. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NatsAuth")]
    pub auth: Option<NatsAuth>,
    /// Requires TLS, and sets its certificates; files are read for each connection. Default: TLS if the server asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
    /// Subject of a message. `{cluster}` `{group}` `{resource}` `{namespace}` `{name}` `{kind}` `{version}` `{event}` are
    /// filled in, at most one between two dots: "core" for the empty group, "_" for no namespace. Letters, digits and
    /// "-" stay, other bytes become %XX.
    #[educe(Default = "k8s.{cluster}.{group}.{resource}.{namespace}.{name}".to_owned())]
    pub subject: String,
    /// Form of an event: `binary`, with its attributes as `ce-` headers and its data as the payload, or `structured`, one
    /// JSON object.
    #[educe(Default = ContentMode::Binary)]
    pub mode: ContentMode,
    /// Stream of `JetStream`. Default: none; messages reach only the current subscribers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "JetStreamOptions")]
    pub jetstream: Option<JetStreamOptions>,
}

impl NatsOptions {
    /// Returns true if every connection needs TLS. One `tls://` address is enough, because the client learns further servers
    /// without a scheme.
    pub(crate) fn requires_tls(&self) -> bool {
        let is_tls = |(scheme, _): (&str, &str)| scheme.eq_ignore_ascii_case("tls");
        self.tls.is_some() || self.servers.iter().filter_map(|server| server.split_once("://")).any(is_tls)
    }
}

/// Credentials. Secrets are read for each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, transform = exclusive_keys)]
pub enum NatsAuth {
    /// File with a JWT and a seed, written by `nsc generate creds`; read for each connection.
    CredsFile(PathBuf),
    /// User and password.
    Basic {
        /// Name of the user.
        username: String,
        /// The password.
        password: SecretRef,
    },
    /// A token.
    Token(SecretRef),
    /// Seed of a user's key; it begins with SU.
    Nkey(SecretRef),
}

/// Stream that stores messages.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "NatsJetStream", transform = required("stream"))]
pub struct JetStreamOptions {
    /// Name of the stream. Required.
    pub stream: String,
    /// Creates the stream if it does not exist. An existing stream is compared with the options below.
    #[educe(Default = true)]
    pub create: bool,
    /// Subjects of the stream. Default: all subjects of the `subject` template, for every cluster.
    pub subjects: Vec<String>,
    /// Time that a message is kept. "0s": for ever.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_hours(7 * 24))]
    pub max_age: Duration,
    /// Time in which the server recognizes the id of an event and drops a copy.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(10))]
    pub duplicate_window: Duration,
    /// Number of servers that store each message.
    #[schemars(range(min = 1, max = 5))]
    #[educe(Default = 1)]
    pub replicas: u32,
    /// Condition under which a message is stored. `per-subject`: only if its subject has the expected last sequence, so
    /// that a change is stored once, even outside `duplicate_window`.
    pub expect_last: ExpectLast,
}

/// Condition under which a stream stores a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectLast {
    /// No condition.
    #[default]
    Off,
    /// The last sequence of the message's subject equals the expected sequence.
    PerSubject,
}
