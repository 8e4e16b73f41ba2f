//! What a handler is told.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::subject::SubjectTemplate;
use crate::{cloud_event::ContentMode, secret::SecretRef};

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
    pub tls: Option<NatsTls>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NatsAuth {
    /// Nobody.
    #[default]
    #[serde(skip)]
    None,
    /// A file of a JWT and a seed, as `nsc` makes it.
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
    /// The seed of a user's key.
    Nkey(SecretRef),
}

/// How the server is trusted, and trusts us. PEM files, read for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsTls {
    /// Certificates to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The stream of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JetStreamOptions {
    /// Its name.
    pub stream: String,
    /// It is made where it is not there, and compared where it is.
    pub create: bool,
    /// What it takes; empty: the subjects of the template.
    pub subjects: Vec<String>,
    /// Messages are kept so long; zero is for ever.
    pub max_age: Duration,
    /// The server knows a message again for so long.
    pub duplicate_window: Duration,
    /// Servers that keep each message.
    pub replicas: usize,
    /// Whether messages are stored on condition.
    pub expect_last: ExpectLast,
}

impl JetStreamOptions {
    /// Returns the options of a stream with all defaults.
    pub fn new(stream: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            create: true,
            subjects: Vec::new(),
            max_age: Duration::from_hours(7 * 24),
            duplicate_window: Duration::from_mins(10),
            replicas: 1,
            expect_last: ExpectLast::Off,
        }
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
