//! Options of a handler of type `nats`.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::subject::SubjectTemplate;
use crate::{
    cloud_event::ContentMode,
    handler::client_tls::ClientTls,
    secret::{SecretRef, exclusive_keys},
    text::{Text, required},
};

/// `[handlers.*]` of type `nats`.
#[derive(Clone, Debug, PartialEq)]
pub struct NatsOptions {
    /// Addresses, `nats://host:4222` or `tls://host:4222`; the client learns others from the cluster.
    pub servers: Vec<String>,
    /// Name of the connection, shown by the server.
    pub name: String,
    /// Credentials.
    pub auth: NatsAuth,
    /// Requires TLS. Without this and without `tls://`, TLS is used if the server requires it.
    pub tls: Option<ClientTls>,
    /// Subject of a message.
    pub subject: SubjectTemplate,
    /// Name of the cluster, for `{cluster}`.
    pub cluster: String,
    /// Content mode of a message.
    pub mode: ContentMode,
    /// The stream. Without one, messages are sent but not stored.
    pub jetstream: Option<JetStreamOptions>,
}

/// Returns true if every connection needs TLS. One `tls://` address is enough, because the client learns further servers without
/// a scheme.
pub(crate) fn requires_tls(tls: Option<&ClientTls>, servers: &[String]) -> bool {
    let is_tls = |(scheme, _): (&str, &str)| scheme.eq_ignore_ascii_case("tls");
    tls.is_some() || servers.iter().filter_map(|server| server.split_once("://")).any(is_tls)
}

/// Credentials. Secrets are read for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, transform = exclusive_keys)]
pub enum NatsAuth {
    /// No credentials.
    #[default]
    #[serde(skip)]
    None,
    /// File with a JWT and a seed, written by `nsc generate creds`; read for each connection.
    #[serde(rename = "creds_file")]
    Credentials(PathBuf),
    /// User and password.
    #[serde(rename = "basic")]
    UserPassword {
        /// Name of the user.
        #[serde(rename = "username")]
        user: String,
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

impl JetStreamOptions {
    /// Returns the options of a stream with all defaults.
    pub fn new(stream: impl Into<String>) -> Self {
        Self { stream: stream.into(), ..Self::default() }
    }
}

/// Condition under which a stream stores a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectLast {
    /// No condition.
    #[default]
    Off,
    /// The last sequence of its subject is the expected one.
    PerSubject,
}
