//! `[http]`: where HTTP is served, to whom, and how the way there is protected.

use std::{net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{schema, text};
use crate::secret::SecretRef;

/// Where HTTP is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Http {
    /// Address of everything that is served; "" = off. One that other machines can reach needs `auth = "token"` and `tls`.
    #[serde(with = "text::optional")]
    #[schemars(schema_with = "schema::address")]
    pub listen: Option<SocketAddr>,
    /// Address at which `/livez`, `/readyz`, `/healthz` and `/metrics` alone are served, without authentication and TLS,
    /// for instance "0.0.0.0:8081". Default "": off.
    #[serde(with = "text::optional")]
    #[schemars(schema_with = "schema::address")]
    pub probe_listen: Option<SocketAddr>,
    /// Who is let in at `listen`: `none`, everybody, or `token`, who has the `token`.
    pub auth: HttpAuth,
    /// The token of `auth = "token"`: `Authorization: Bearer …`. Required then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub token: Option<SecretRef>,
    /// The certificate of `listen`. Default: HTTP without TLS.
    pub tls: HttpTls,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
            probe_listen: None,
            auth: HttpAuth::None,
            token: None,
            tls: HttpTls::default(),
        }
    }
}

/// Who is let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HttpAuth {
    /// Everybody who can reach the address.
    #[default]
    None,
    /// Who has the token.
    Token,
}

/// The certificate of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpTls {
    /// PEM file of the certificate, and behind it those that lead to the CA's; read again when it changes. "": none.
    #[serde(with = "text::optional")]
    #[schemars(with = "String")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of its key, unencrypted; read again when it changes. "": none.
    #[serde(with = "text::optional")]
    #[schemars(with = "String")]
    pub key_file: Option<PathBuf>,
}

impl HttpTls {
    /// Returns both files, where there are both.
    pub fn files(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }
}

impl Http {
    /// Returns what does not go together: the key, and a sentence.
    pub(crate) fn mistakes(&self) -> Vec<(Vec<&'static str>, String)> {
        let mut mistakes = Vec::new();
        let mut wrong = |keys: &[&'static str], message: String| mistakes.push((keys.to_vec(), message));
        match (self.auth, &self.token) {
            (HttpAuth::Token, None) => wrong(
                &["auth"],
                "nobody could be let in: expected `token` too, such as { file = \"/run/secrets/deltabus/token\" }"
                    .to_owned(),
            ),
            (HttpAuth::None, Some(_)) => {
                wrong(&["token"], "is not asked for: expected auth = \"token\" too, or no token".to_owned());
            }
            _ => {}
        }
        for (set, unset, key) in [
            (&self.tls.cert_file, &self.tls.key_file, ["cert_file", "key_file"]),
            (&self.tls.key_file, &self.tls.cert_file, ["key_file", "cert_file"]),
        ] {
            if set.is_some() && unset.is_none() {
                wrong(&["tls", key[0]], format!("expected `{}` too", key[1]));
            }
        }
        if let (Some(all), Some(probes)) = (self.listen, self.probe_listen)
            && all == probes
            && all.port() != 0
        {
            wrong(&["probe_listen"], "is the address of `listen` too: expected another one, or \"\"".to_owned());
        }
        if let Some(address) = self.listen.filter(|address| !address.ip().is_loopback()) {
            let missing = match (self.auth, self.tls.cert_file.is_some() || self.tls.key_file.is_some()) {
                (HttpAuth::Token, true) => return mistakes,
                (HttpAuth::Token, false) => "the token would travel without encryption: expected `tls`",
                (HttpAuth::None, true) => "everybody there could read everything: expected auth = \"token\"",
                (HttpAuth::None, false) => "everybody there could read everything: expected auth = \"token\" and `tls`",
            };
            let loopback = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
            let port = address.port();
            let message = format!(
                "{address} can be reached from other machines, and {missing}, or a loopback address such as \
                 \"{loopback}:{port}\""
            );
            mistakes.push((vec!["listen"], message));
        }
        mistakes
    }

    /// Returns what cannot be used of what it names, as a sentence. Reads files: blocks.
    ///
    /// # Errors
    /// A token that cannot be read.
    pub fn ready(&self) -> Result<(), String> {
        match &self.token {
            Some(token) => token.read().map(drop).map_err(|error| format!("[http] token: {error}")),
            None => Ok(()),
        }
    }
}
