//! `[http]`: address, authentication and encryption of the HTTP server.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    report::{Section, recheck},
    text::{Optional, Text, print_duration},
};
use crate::secret::{ExposeSecret as _, SecretRef};

/// Default address of the HTTP server.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Minimum length of a token in bytes: shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Minimum timeout: open connections are checked once a second.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// HTTP server of the engine.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Http {
    /// Address of the HTTP server; "" = off. An address that other machines can reach needs `auth = "token"` and `tls`.
    #[serde(with = "Text::<Option<SocketAddr>>")]
    #[educe(Default = Some(LISTEN))]
    pub listen: Option<SocketAddr>,
    /// Address that serves only `/livez`, `/readyz`, `/healthz` and `/metrics`, without authentication and TLS, for instance
    /// "0.0.0.0:8081". Default "": off.
    #[serde(with = "Text::<Option<SocketAddr>>")]
    pub probe_listen: Option<SocketAddr>,
    /// Authentication at `listen`: `none` admits every client, `token` only clients with a token.
    pub auth: HttpAuth,
    /// Token of `auth = "token"`, sent as `Authorization: Bearer …`, at least 16 bytes. Its scope is `control`. `auth = "token"`
    /// needs this token or `tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub token: Option<SecretRef>,
    /// Further tokens of `auth = "token"`, each with a name and a scope.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<HttpToken>,
    /// Certificate of `listen`. Default: HTTP without TLS.
    pub tls: HttpTls,
    /// Host names and addresses, without a port, that `listen` accepts in `Host` and `Origin`. Loopback, `localhost` and the
    /// address that the client connected to are always accepted. A request for another host is refused with 421: it may
    /// come from a web page whose host name points to this machine.
    pub allowed_hosts: Vec<String>,
    /// Maximum number of open connections of `listen`; `probe_listen` allows 64. At the limit, the connection that has
    /// waited longest for its client is closed. If no connection waits for its client, a new one is refused.
    #[schemars(range(min = 1))]
    #[educe(Default = 1024)]
    pub max_connections: u32,
    /// Time limit for the TLS handshake and for the head of a request (up to 32 KiB). At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(10))]
    pub header_timeout: Duration,
    /// Time after which a kept-alive connection without a request is closed. At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(2))]
    pub idle_timeout: Duration,
    /// Time after which a response is cut if the client reads nothing of it. At least "1s". Streams are not cut; they
    /// report lost events as a `gap`.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub write_timeout: Duration,
    /// Maximum total size of the responses that are being written, except streams. At this size, further requests get 429, except
    /// for responses of up to 16 KiB. The response that reaches the maximum may exceed it.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 256 << 20)]
    pub max_response_bytes: u64,
}

/// One of several tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpToken {
    /// Name of the token in the log.
    pub name: String,
    /// Token of at least 16 bytes.
    pub token: SecretRef,
    /// Requests that the token allows: `read`, or `control`, which can also pause, resume and replay handlers.
    #[serde(default)]
    pub scope: HttpScope,
}

/// Requests that a token allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HttpScope {
    /// All reads.
    #[default]
    Read,
    /// All reads, and requests that pause, resume and replay handlers.
    Control,
}

/// Authentication of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HttpAuth {
    /// Admits every client that can reach the address.
    #[default]
    None,
    /// Admits only clients with a token.
    Token,
}

/// Certificate of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpTls {
    /// PEM file of the certificate and its intermediate certificates; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the unencrypted key; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
}

impl HttpTls {
    /// Returns the files of the certificate and of the key, if both are set.
    pub fn files(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }
}

impl Http {
    /// Reports contradictions.
    pub(super) fn check(&self, at: &mut Section<'_>) {
        match self.auth {
            HttpAuth::Token if self.token.is_none() && self.tokens.is_empty() => at.error(
                &["auth"],
                "no client could authenticate: expected `token` too, such as { file = \
                 \"/run/secrets/deltabus/token\" }",
            ),
            HttpAuth::None => {
                for (key, is_set) in [("token", self.token.is_some()), ("tokens", !self.tokens.is_empty())] {
                    if is_set {
                        at.error(&[key], "has no effect: expected auth = \"token\" too, or no token");
                    }
                }
            }
            HttpAuth::Token => {}
        }
        let mut names = BTreeSet::from([DEFAULT_TOKEN_NAME]);
        for HttpToken { name, .. } in &self.tokens {
            if name.is_empty() || !names.insert(name) {
                let rule = "is empty or used twice: expected a different name for each token";
                at.error(&["tokens"], format!("the name {name:?} {rule}"));
            }
        }
        for host in self.allowed_hosts.iter().filter(|host| !is_host(host)) {
            let message = format!("expected a host name or an address without scheme and port, found {host:?}");
            at.error(&["allowed_hosts"], message);
        }
        for (key, timeout) in [
            ("header_timeout", self.header_timeout),
            ("idle_timeout", self.idle_timeout),
            ("write_timeout", self.write_timeout),
        ] {
            if timeout < TIMEOUT_MIN {
                at.error(&[key], format!("expected at least \"1s\", found {:?}", print_duration(timeout)));
            }
        }
        match (&self.tls.cert_file, &self.tls.key_file) {
            (Some(_), None) => at.error(&["tls", "cert_file"], "expected `key_file` too"),
            (None, Some(_)) => at.error(&["tls", "key_file"], "expected `cert_file` too"),
            _ => {}
        }
        if self.listen.is_some_and(|listen| listen.port() != 0) && self.listen == self.probe_listen {
            at.error(&["probe_listen"], "is also the address of `listen`: expected another address, or \"\"");
        }
        if let Some(address) = self.listen.filter(|address| !address.ip().is_loopback()) {
            let missing = match (self.auth, self.tls.cert_file.is_some() || self.tls.key_file.is_some()) {
                (HttpAuth::Token, true) => return,
                (HttpAuth::Token, false) => "the token would be sent without encryption: expected `tls`",
                (HttpAuth::None, true) => "any client could read everything: expected auth = \"token\"",
                (HttpAuth::None, false) => "any client could read everything: expected auth = \"token\" and `tls`",
            };
            let loopback = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
            let port = address.port();
            let message = format!(
                "{address} can be reached from other machines, and {missing}, or a loopback address such as \
                 \"{loopback}:{port}\""
            );
            at.error(&["listen"], message);
        }
    }

    /// Checks that the section can be used, because a program may change it after loading. Blocks the thread.
    ///
    /// # Errors
    /// Fails on contradictions, such as an address that other machines can reach without a token; or if a token cannot be
    /// read or is too short.
    pub fn ready(&self) -> Result<(), String> {
        recheck(|at| self.check(at)).map_err(|error| format!("[http] {error}"))?;
        for (name, secret, _) in self.tokens() {
            // The check refuses entries of `tokens` with this name.
            let key = if name == DEFAULT_TOKEN_NAME { name.to_owned() } else { format!("tokens, {name:?}") };
            let token = secret.read().map_err(|error| format!("[http] {key}: {error}"))?;
            check_token(token.expose_secret())
                .map_err(|error| format!("[http] {key}: {error}; make one with: openssl rand -hex 32"))?;
        }
        Ok(())
    }

    /// Returns the name, the location and the scope of each token.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, &SecretRef, HttpScope)> {
        let single = self.token.iter().map(|token| (DEFAULT_TOKEN_NAME, token, HttpScope::Control));
        single.chain(self.tokens.iter().map(|token| (&*token.name, &token.token, token.scope)))
    }
}

/// Checks that a token is long enough.
pub(crate) fn check_token(token: &str) -> Result<(), String> {
    match token.len() {
        TOKEN_BYTES_MIN.. => Ok(()),
        bytes => Err(format!("expected at least {TOKEN_BYTES_MIN} bytes, found {bytes}")),
    }
}

/// Name that the log shows for the token of the option `token`.
const DEFAULT_TOKEN_NAME: &str = "token";

/// Returns true if a text is a host name or an address, and nothing else.
fn is_host(text: &str) -> bool {
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
    };
    is_name(text) || text.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_address_requires_token_and_tls() {
        let mut http = Http::default();
        assert_eq!(http.ready(), Ok(()));
        http.listen = Some(SocketAddr::from(([0, 0, 0, 0], 8080)));
        let error = http.ready().unwrap_err();
        assert!(error.starts_with("[http] listen: 0.0.0.0:8080 can be reached from other machines"), "{error}");
        let http = Http { auth: HttpAuth::Token, ..Http::default() };
        assert!(
            http.ready().unwrap_err().starts_with("[http] auth: no client could authenticate"),
            "no token lets no client in"
        );
    }
}
