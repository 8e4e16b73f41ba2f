//! `tls` of `[handlers.<name>]`: authorities and certificate of a client.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Optional;

/// Whom a connection trusts, and as whom it speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientTls {
    /// PEM file of the only authorities that are trusted. "": those of the system.
    #[serde(with = "Optional")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of its key. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
}

impl ClientTls {
    /// Returns the client's certificate and its key, where there are both.
    pub(crate) fn client(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }
}
