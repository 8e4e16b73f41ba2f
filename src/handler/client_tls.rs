//! `tls` of `[handlers.<name>]`: certificate authorities, and the certificate of the client.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Optional;

/// TLS of a client: trusted authorities, and its own certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientTls {
    /// PEM file of the trusted authorities; no others are trusted. "": those of the system.
    #[serde(with = "Optional")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's key. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
}

impl ClientTls {
    /// Returns the client's certificate and key, if both are set.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn client(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }
}
