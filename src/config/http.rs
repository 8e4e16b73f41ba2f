//! `[http]`: where HTTP is served, to whom, and how the way there is protected.

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
    error::{Problem, problem},
    schema,
    text::{Optional, Text, print_duration},
};
use crate::secret::{ExposeSecret as _, SecretRef};

/// Address of everything that is served, unless it is configured.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Bytes that a token has at least: fewer can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// The shortest timeout: open connections are checked once a second.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Where HTTP is served.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Http {
    /// Address of everything that is served; "" = off. One that other machines can reach needs `auth = "token"` and `tls`.
    #[serde(with = "Optional")]
    #[schemars(schema_with = "schema::address")]
    #[educe(Default = Some(LISTEN))]
    pub listen: Option<SocketAddr>,
    /// Address at which `/livez`, `/readyz`, `/healthz` and `/metrics` alone are served, without authentication and TLS,
    /// for instance "0.0.0.0:8081". Default "": off.
    #[serde(with = "Optional")]
    #[schemars(schema_with = "schema::address")]
    pub probe_listen: Option<SocketAddr>,
    /// Who is let in at `listen`: `none`, everybody, or `token`, who has the `token`.
    pub auth: HttpAuth,
    /// The token of `auth = "token"`: `Authorization: Bearer …`, at least 16 bytes. Its scope is `control`. `auth = "token"`
    /// needs this one or `tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub token: Option<SecretRef>,
    /// Further tokens of `auth = "token"`, each with a name and a scope.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<HttpToken>,
    /// The certificate of `listen`. Default: HTTP without TLS.
    pub tls: HttpTls,
    /// Host names and addresses that `listen` accepts in `Host` and `Origin`, beside loopback, `localhost` and the address
    /// that the client connected to; without a port. A request for another host is refused with 421: it may come from a web
    /// page whose name was made to mean this machine.
    pub allowed_hosts: Vec<String>,
    /// Open connections of `listen`; `probe_listen` takes 64. At the limit the connection that has waited longest for its
    /// client is closed; a new one is refused where all of them are being answered.
    #[schemars(range(min = 1))]
    #[educe(Default = 1024)]
    pub max_connections: u32,
    /// Time that a client has for the TLS handshake and for the head of a request (up to 32 KiB). At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(10))]
    pub header_timeout: Duration,
    /// Time after which a kept-alive connection without a request is closed. At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(2))]
    pub idle_timeout: Duration,
    /// Time after which an answer is cut of which the client reads nothing. At least "1s". Streams are not cut: they get `gap`.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub write_timeout: Duration,
    /// Bytes of all answers that are being written, streams excluded. Beyond it a request is answered with 429; a single
    /// answer may be larger, and one of up to 16 KiB is never refused.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 256 << 20)]
    pub max_response_bytes: u64,
}

/// One of several tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpToken {
    /// Name of the token in the log.
    pub name: String,
    /// The token, at least 16 bytes.
    pub token: SecretRef,
    /// Requests that it allows: `read`, or `control`, which can also pause, resume and replay handlers.
    #[serde(default)]
    pub scope: HttpScope,
}

/// Requests that a token allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HttpScope {
    /// Every read.
    #[default]
    Read,
    /// Every read, and to pause, resume and replay handlers.
    Control,
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
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of its key, unencrypted; read again when it changes. "": none.
    #[serde(with = "Optional")]
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
    pub(crate) fn mistakes(&self) -> Vec<Problem> {
        let mut mistakes = Vec::new();
        let mut wrong = |keys: &[&str], message: &str| mistakes.push(problem(keys, message));
        match self.auth {
            HttpAuth::Token if self.token.is_none() && self.tokens.is_empty() => wrong(
                &["auth"],
                "nobody could be let in: expected `token` too, such as { file = \"/run/secrets/deltabus/token\" }",
            ),
            HttpAuth::None => {
                for (key, is_set) in [("token", self.token.is_some()), ("tokens", !self.tokens.is_empty())] {
                    if is_set {
                        wrong(&[key], "is not asked for: expected auth = \"token\" too, or no token");
                    }
                }
            }
            HttpAuth::Token => {}
        }
        let mut names = BTreeSet::from([DEFAULT_TOKEN_NAME]);
        for HttpToken { name, .. } in &self.tokens {
            if name.is_empty() || !names.insert(name) {
                let rule = "is empty or used twice: expected a name of its own for each token";
                wrong(&["tokens"], &format!("the name {name:?} {rule}"));
            }
        }
        for host in self.allowed_hosts.iter().filter(|host| !is_host(host)) {
            let message = format!("expected a host name or an address without scheme and port, found {host:?}");
            wrong(&["allowed_hosts"], &message);
        }
        for (key, timeout) in [
            ("header_timeout", self.header_timeout),
            ("idle_timeout", self.idle_timeout),
            ("write_timeout", self.write_timeout),
        ] {
            if timeout < TIMEOUT_MIN {
                wrong(&[key], &format!("expected at least \"1s\", found {:?}", print_duration(timeout)));
            }
        }
        match (&self.tls.cert_file, &self.tls.key_file) {
            (Some(_), None) => wrong(&["tls", "cert_file"], "expected `key_file` too"),
            (None, Some(_)) => wrong(&["tls", "key_file"], "expected `cert_file` too"),
            _ => {}
        }
        if let (Some(all), Some(probes)) = (self.listen, self.probe_listen)
            && all == probes
            && all.port() != 0
        {
            wrong(&["probe_listen"], "is the address of `listen` too: expected another one, or \"\"");
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
            wrong(&["listen"], &message);
        }
        mistakes
    }

    /// Checks that it can be used: a program may have changed it after it was loaded. Reads files: blocks.
    ///
    /// # Errors
    /// A mistake, such as an address that other machines reach without a token; or a token that cannot be read, or is too
    /// short.
    pub fn ready(&self) -> Result<(), String> {
        if let Some((keys, message)) = self.mistakes().into_iter().next() {
            return Err(format!("[http] {}: {message}", keys.join(".")));
        }
        for (name, secret, _) in self.tokens() {
            // No other token has that name.
            let key = if name == DEFAULT_TOKEN_NAME { name.to_owned() } else { format!("tokens, {name:?}") };
            let token = secret.read().map_err(|error| format!("[http] {key}: {error}"))?;
            check_token(token.expose_secret())
                .map_err(|error| format!("[http] {key}: {error}; make one with: openssl rand -hex 32"))?;
        }
        Ok(())
    }

    /// Returns each token that lets a client in: its name, its place, its scope.
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

/// Name of `token` in the log.
const DEFAULT_TOKEN_NAME: &str = "token";

/// Returns whether a text is a host name or an address, and nothing else.
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
    fn address_changed_by_a_program_needs_token_and_tls_too() {
        let mut http = Http::default();
        assert_eq!(http.ready(), Ok(()));
        http.listen = Some(SocketAddr::from(([0, 0, 0, 0], 8080)));
        let error = http.ready().unwrap_err();
        assert!(error.starts_with("[http] listen: 0.0.0.0:8080 can be reached from other machines"), "{error}");
        let http = Http { auth: HttpAuth::Token, ..Http::default() };
        assert!(
            http.ready().unwrap_err().starts_with("[http] auth: nobody could be let in"),
            "no token lets no client in"
        );
    }
}
