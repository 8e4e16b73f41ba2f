//! What a handler is told.

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
    /// Addresses, `nats://host:4222` or `tls://host:4222`; more are learned from the cluster.
    pub servers: Vec<String>,
    /// What the server calls the connection.
    pub name: String,
    /// Who we are.
    pub auth: NatsAuth,
    /// Requires TLS; without it, and without `tls://`, TLS is used where the server asks for it.
    pub tls: Option<ClientTls>,
    /// Where a message goes.
    pub subject: SubjectTemplate,
    /// The name of the cluster, for `{cluster}`.
    pub cluster: String,
    /// How an event travels.
    pub mode: ContentMode,
    /// The stream; without one, messages are sent and forgotten.
    pub jetstream: Option<JetStreamOptions>,
}

impl NatsOptions {
    /// Returns whether every connection needs TLS. An address of `tls://` stands for all servers: the client learns further
    /// ones from the server, without a scheme.
    pub(crate) fn requires_tls(&self) -> bool {
        self.tls.is_some() || ask_for_tls(&self.servers)
    }
}

/// Returns whether one of the addresses asks for TLS, which counts for all.
pub(crate) fn ask_for_tls(servers: &[String]) -> bool {
    let mut schemes = servers.iter().filter_map(|server| server.split_once("://"));
    schemes.any(|(scheme, _)| scheme.eq_ignore_ascii_case("tls"))
}

/// Who we are. Secrets are read for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, transform = exclusive_keys)]
pub enum NatsAuth {
    /// Nobody.
    #[default]
    #[serde(skip)]
    None,
    /// File of a JWT and a seed, as `nsc generate creds` writes it; read for each connection.
    #[serde(rename = "creds_file")]
    Credentials(PathBuf),
    /// A user and a password.
    #[serde(rename = "basic")]
    UserPassword {
        /// The user.
        #[serde(rename = "username")]
        user: String,
        /// The password.
        password: SecretRef,
    },
    /// A token.
    Token(SecretRef),
    /// The seed of a user's key, which begins with SU.
    Nkey(SecretRef),
}

/// A stream that keeps what was sent.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "NatsJetStream", transform = required("stream"))]
pub struct JetStreamOptions {
    /// Its name. Required.
    pub stream: String,
    /// Whether it is made where it is not there, and compared with the options below where it is.
    #[educe(Default = true)]
    pub create: bool,
    /// The subjects that it takes. Default: those that `subject` makes, of every cluster.
    pub subjects: Vec<String>,
    /// How long a message is kept. "0s": for ever.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_hours(7 * 24))]
    pub max_age: Duration,
    /// How long the server knows an event again by its id, and drops it.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(10))]
    pub duplicate_window: Duration,
    /// How many servers keep each message.
    #[schemars(range(min = 1, max = 5))]
    #[educe(Default = 1)]
    pub replicas: u32,
    /// Whether a message is stored on condition that nothing follows what is known of its subject: `per-subject` keeps a
    /// change stored once outside of `duplicate_window` too.
    pub expect_last: ExpectLast,
}

impl JetStreamOptions {
    /// Returns the options of a stream with all defaults.
    pub fn new(stream: impl Into<String>) -> Self {
        Self { stream: stream.into(), ..Self::default() }
    }
}

/// The condition on which a stream takes a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectLast {
    /// None.
    #[default]
    Off,
    /// The last sequence of its subject is the expected one.
    PerSubject,
}
