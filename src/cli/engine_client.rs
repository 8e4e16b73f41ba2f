//! Client of a running engine: its address, its token, and requests to it.

use std::{
    env,
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use crate::list_watch::kube::raw::Opened;
use crate::{
    config::{self, Config, HttpAuth},
    list_watch::Failure,
    list_watch::kube::ClusterAccess,
    list_watch::kube::raw::{Answer, RawClient},
    secret::{SecretRef, SecretString},
};
use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::StreamExt as _;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Default address of an engine.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";
/// Port of [`DEFAULT_ADDRESS`].
const DEFAULT_PORT: u16 = 8080;

/// Environment variable that may contain the token.
const TOKEN_VARIABLE: &str = "DELTABUS_TOKEN";

/// Time limit for one response.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Options that locate an engine.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Address of the engine: `HOST[:PORT]` or a URL [default: `[http] listen` of the configuration, else
    /// `127.0.0.1:8080`].
    #[arg(long, value_name = "URL", env = "DELTABUS_ENGINE", value_parser = engine_url)]
    engine: Option<String>,
    /// Configuration of the engine; can be repeated.
    #[arg(short = 'c', long = "config", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// File with the token for an engine with `[http] auth = "token"` [default: the token in the variable `DELTABUS_TOKEN`,
    /// else `[http] token` of the configuration].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of certificate authorities to trust for https:// [default: `[http] tls.cert_file` of the configuration,
    /// else the system's authorities].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl EngineArgs {
    /// Loads the configuration if files are given.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Config>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        Ok(Some(Config::load(&self.files, crate::config::environment())?.config))
    }

    /// Returns true if the user names an engine with `--engine` or `DELTABUS_ENGINE`. The command must then use no other engine.
    pub(crate) fn is_named(&self) -> bool {
        self.engine.is_some()
    }

    /// Loads the configuration and creates a client of the engine. See [`Self::client`].
    pub(crate) fn connect(&self) -> anyhow::Result<EngineClient> {
        self.client(self.load()?.as_ref())
    }

    /// Creates a client of the engine on the current tokio runtime. Reads files, so it blocks the thread. Sends no request.
    pub(crate) fn client(&self, config: Option<&Config>) -> anyhow::Result<EngineClient> {
        let url = self.url(config)?;
        let token = self.token(config)?;
        if token.is_some() && !is_private(&url) {
            bail!("cannot send the token to {url}: the connection is not encrypted; use https://");
        }
        let configured = config.and_then(|config| config.http.tls.cert_file.as_deref());
        let ca_file = self.ca_file.as_deref().or(configured).filter(|_| url.starts_with("https://"));
        let authorities = ca_file.map(certificates).transpose()?;
        let access = ClusterAccess::with_token(&url, "engine", token, authorities)
            .with_context(|| format!("invalid engine address {url:?}"))?;
        let client = RawClient::new(&access);
        Ok(EngineClient { url, access, client })
    }

    fn token(&self, config: Option<&Config>) -> anyhow::Result<Option<SecretString>> {
        let http = config.map(|config| &config.http);
        let secret = match &self.token_file {
            Some(file) => Some(SecretRef::File(file.clone())),
            None if env::var_os(TOKEN_VARIABLE).is_some() => Some(SecretRef::Env(TOKEN_VARIABLE.to_owned())),
            // If the configuration has several tokens, the one with the widest scope is used.
            None => http
                .filter(|http| http.auth == HttpAuth::Token)
                .and_then(|http| http.tokens().max_by_key(|(_, _, scope)| *scope).map(|(_, secret, _)| secret.clone())),
        };
        let read = secret.map(|secret| secret.read()).transpose().map_err(anyhow::Error::msg);
        read.with_context(|| format!("cannot read the engine's token; pass it with --token-file or {TOKEN_VARIABLE}"))
    }

    /// Returns the engine's address.
    fn url(&self, config: Option<&Config>) -> anyhow::Result<String> {
        if let Some(url) = &self.engine {
            return Ok(url.clone());
        }
        let Some(config) = config else { return Ok(format!("http://{DEFAULT_ADDRESS}")) };
        match config.http.listen {
            None => bail!("the engine of this configuration has no address: [http] listen is off"),
            Some(address) if address.port() == 0 => {
                bail!("[http] listen has port 0 (any free port): pass --engine with the address in the engine's log")
            }
            Some(address) => {
                let scheme = if config.http.tls.files().is_some() { "https" } else { "http" };
                Ok(format!("{scheme}://{}", reachable(address)))
            }
        }
    }
}

/// Parses the address of an engine, and returns its URL. The address is a URL, or `HOST[:PORT]` for plain HTTP.
fn engine_url(text: &str) -> Result<String, String> {
    let expected = || "expected HOST[:PORT] or a URL, such as localhost:8080 or https://deltabus.example".to_owned();
    let text = text.trim_end_matches('/');
    let bare = text.parse::<Ipv6Addr>().map(|address| format!("[{address}]"));
    let host = bare.as_deref().unwrap_or(text);
    let has_scheme = host.contains("://");
    let url = if has_scheme { host.to_owned() } else { format!("http://{host}") };
    let uri: http::Uri = url.parse().map_err(|_| expected())?;
    let authority = uri.authority().ok_or_else(expected)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    // `port_u16` ignores an invalid port
    let port = authority.as_str().strip_prefix(authority.host()).ok_or_else(expected)?;
    let is_port = port.is_empty() || authority.port_u16().is_some_and(|port| port > 0);
    if !is_http || authority.host().is_empty() || !is_port || uri.query().is_some() {
        return Err(expected());
    }
    Ok(if has_scheme || !port.is_empty() { url } else { format!("{url}:{DEFAULT_PORT}") })
}

/// Replaces the unspecified address by the loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    address
}

/// Returns true if traffic to an address is encrypted or stays on this machine.
fn is_private(url: &str) -> bool {
    url.starts_with("https://") || is_loopback(url)
}

/// Returns true if an address is on this machine.
pub(crate) fn is_loopback(url: &str) -> bool {
    url.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some_and(config::webhook::is_loopback))
}

/// Reads the certificates of a PEM file.
fn certificates(file: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let read: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&pem).map(|read| read.map(|der| der.to_vec())).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => bail!("{} holds no certificate: expected PEM, \"-----BEGIN CERTIFICATE-----\"", file.display()),
    }
}

/// Client of a running engine, for use on one thread.
pub(crate) struct EngineClient {
    /// URL of the engine.
    pub(crate) url: String,
    /// Access to the engine as to a cluster. This is possible because the read API of an engine follows the Kubernetes API.
    pub(crate) access: ClusterAccess,
    client: RawClient,
}

impl EngineClient {
    /// Sends a GET request and returns the response, even if it is an error.
    pub(crate) async fn ask(&self, path: &str, accept: &str) -> anyhow::Result<Answer> {
        self.client.get(path, accept, ANSWER_TIMEOUT).await.map_err(|failure| self.unreachable(&failure))
    }

    /// Sends a GET request. If the engine answers with an error, fails with the message of the engine.
    pub(crate) async fn get(&self, path: &str, accept: &str) -> anyhow::Result<Answer> {
        self.answered(self.ask(path, accept).await?)
    }

    /// Sends a GET request whose response is an endless stream.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Opened> {
        self.client.open(path, headers, ANSWER_TIMEOUT).await.map_err(|failure| self.unreachable(&failure))
    }

    /// Reads the body of a response that refuses a stream, and returns it as an error for the user.
    pub(crate) async fn refused(&self, mut opened: Opened) -> anyhow::Error {
        let mut body = Vec::new();
        while let Some(Ok(piece)) = opened.body.next().await {
            body.extend_from_slice(&piece);
        }
        self.refusal(opened.code, &body)
    }

    /// Checks whether an engine listens. If an engine answers, returns `Ok(None)`. If the connection is refused, returns
    /// `Ok(Some(error))`: an error with advice for the user. If the request fails for another reason, returns `Err`.
    pub(crate) async fn absent(&self) -> anyhow::Result<Option<anyhow::Error>> {
        match self.client.get("/livez", "*/*", ANSWER_TIMEOUT).await {
            Ok(_) => Ok(None),
            Err(failure @ Failure::Refused) => Ok(Some(self.unreachable(&failure))),
            Err(failure) => Err(self.unreachable(&failure)),
        }
    }

    /// Sends a POST request without a body. If the engine answers with an error, fails with the message of the engine.
    pub(crate) async fn post(&self, path: &str) -> anyhow::Result<Answer> {
        let answer = self.client.post(path, ANSWER_TIMEOUT).await.map_err(|failure| self.unreachable(&failure))?;
        self.answered(answer)
    }

    fn answered(&self, answer: Answer) -> anyhow::Result<Answer> {
        if answer.code == 200 { Ok(answer) } else { Err(self.refusal(answer.code, &answer.body)) }
    }

    /// Converts an error response of the engine to an error for the user.
    fn refusal(&self, code: u16, body: &[u8]) -> anyhow::Error {
        let url = &self.url;
        anyhow::Error::msg(match code {
            401 => format!("the engine at {url} requires a token: pass it with --token-file FILE or {TOKEN_VARIABLE}"),
            _ => message(code, body),
        })
    }

    /// Sends a GET request and parses the JSON response.
    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.get(path, "application/json").await?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("unexpected answer to {path} from {}: is that a deltabus engine?", self.url))
    }

    /// Returns an error that explains why no response came, and what the user can do.
    fn unreachable(&self, failure: &Failure) -> anyhow::Error {
        let url = &self.url;
        match failure {
            Failure::Refused => anyhow::anyhow!(
                "no engine listens at {url}: start one with `deltabus run -c FILE` or `deltabus demo`, or name another \
                 with --engine URL or DELTABUS_ENGINE"
            ),
            failure => anyhow::anyhow!(
                "cannot reach the engine at {url}: {failure}; name another engine with --engine URL or DELTABUS_ENGINE"
            ),
        }
    }
}

/// Returns the text of an error response: the message of a `Status`, else the body unless it is a page for a browser.
pub(crate) fn message(code: u16, body: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    let text = String::from_utf8_lossy(body);
    match status.as_ref().and_then(|status| status["message"].as_str()) {
        Some(message) => message.to_owned(),
        None if text.trim_start().starts_with('<') => {
            format!("HTTP {code} with an HTML page: is that a deltabus engine?")
        }
        None => format!("HTTP {code}: {}", text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::HttpTls;

    use super::*;

    #[test]
    fn token_is_sent_only_encrypted_or_locally() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080", true),
            ("http://localhost:8080", true),
            ("https://engine.example", true),
            ("http://engine.example", false),
            ("http://10.0.0.7:8080", false),
            ("http://127.0.0.1.example", false),
        ] {
            assert_eq!(is_private(url), expected, "{url}");
        }
    }

    #[test]
    fn answer_of_another_server_is_explained() {
        assert_eq!(message(404, br#"{"kind": "Status", "message": "pods \"a\" not found"}"#), "pods \"a\" not found");
        assert_eq!(message(502, b"bad gateway\n"), "HTTP 502: bad gateway");
        let page = b"\n<!DOCTYPE HTML><html><body>File not found</body></html>";
        assert_eq!(message(404, page), "HTTP 404 with an HTML page: is that a deltabus engine?");
    }

    #[test]
    fn engine_is_named_by_url_or_host() {
        for (text, url) in [
            ("localhost", "http://localhost:8080"),
            ("localhost:9090", "http://localhost:9090"),
            ("10.0.0.7", "http://10.0.0.7:8080"),
            ("[::1]:8080", "http://[::1]:8080"),
            ("[::1]", "http://[::1]:8080"),
            ("::1", "http://[::1]:8080"),
            ("deltabus.ops.svc:80", "http://deltabus.ops.svc:80"),
            ("http://localhost", "http://localhost"),
            ("http://x:1/", "http://x:1"),
            ("https://deltabus.example/prod/", "https://deltabus.example/prod"),
        ] {
            assert_eq!(engine_url(text).as_deref(), Ok(url), "{text}");
        }
        for text in ["", "/", "ftp://x", "http://", ":8080", "x:", "x:port", "x:0", "x:99999", "a b", "x?y", "user@x:1"]
        {
            let error = engine_url(text).unwrap_err();
            assert!(error.contains("such as localhost:8080"), "{text}: {error}");
        }
    }

    #[test]
    fn engine_url_comes_from_flag_config_or_default() {
        let args = |engine: Option<&str>| EngineArgs {
            engine: engine.map(str::to_owned),
            files: Vec::new(),
            token_file: None,
            ca_file: None,
        };
        let config = |listen: &str| {
            let text = format!("[resources.pods]\nmatch = [\"pods\"]\n[http]\nlisten = \"{listen}\"\n");
            Config::from_toml_str(&text).unwrap()
        };
        let configured = config("127.0.0.1:9000");
        assert_eq!(args(Some("http://x:1")).url(Some(&configured)).unwrap(), "http://x:1");
        assert_eq!(args(None).url(Some(&configured)).unwrap(), "http://127.0.0.1:9000");
        assert_eq!(args(None).url(None).unwrap(), "http://127.0.0.1:8080");
        assert!(args(None).url(Some(&config(""))).unwrap_err().to_string().contains("off"));
        assert!(args(None).url(Some(&config("127.0.0.1:0"))).unwrap_err().to_string().contains("--engine"));
        let mut secure = config("127.0.0.1:9000");
        secure.http.tls = HttpTls { cert_file: Some("c".into()), key_file: Some("k".into()) };
        assert_eq!(args(None).url(Some(&secure)).unwrap(), "https://127.0.0.1:9000");
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()).to_string(), "127.0.0.1:80");
        assert_eq!(reachable("[::]:80".parse().unwrap()).to_string(), "[::1]:80");
    }
}
