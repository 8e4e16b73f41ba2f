//! How commands reach a running engine: where it listens, and requests to it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use deltabus::{
    config::Config,
    list_watch::Failure,
    list_watch::kube::ClusterAccess,
    list_watch::kube::raw::{Answer, RawClient},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Where an engine listens that was not told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Where the engine is.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Where the engine listens [default: `[http] listen` of FILE, else `127.0.0.1:8080`].
    #[arg(long, value_name = "URL", env = "DELTABUS_ENGINE")]
    engine: Option<String>,
    /// The configuration that the engine runs with; can be repeated.
    #[arg(short = 'c', long = "config", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
}

impl EngineArgs {
    /// Loads the configuration, where one is named.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Config>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        Ok(Some(Config::load(&self.files, deltabus::config::environment())?.config))
    }

    /// Returns the engine's address.
    pub(crate) fn url(&self, config: Option<&Config>) -> anyhow::Result<String> {
        if let Some(url) = &self.engine {
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let Some(config) = config else { return Ok(DEFAULT_URL.to_owned()) };
        match config.http.listen {
            None => bail!("the engine of this configuration listens nowhere: [http] listen is off"),
            Some(address) if address.port() == 0 => {
                bail!("[http] listen has port 0, any free one: the engine's log says which, name it with --engine URL")
            }
            Some(address) => Ok(format!("http://{}", reachable(address))),
        }
    }
}

/// Replaces "every address" by this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    address
}

/// A running engine, as seen from this thread.
pub(crate) struct EngineClient {
    url: String,
    access: ClusterAccess,
    client: RawClient,
}

impl EngineClient {
    /// Makes a client on the current tokio runtime; sends nothing.
    pub(crate) fn new(url: String) -> anyhow::Result<Self> {
        let access = ClusterAccess::without_credentials(&url, "engine")
            .with_context(|| format!("the engine's address {url:?} cannot be used"))?;
        let client = RawClient::new(&access)?;
        Ok(Self { url, access, client })
    }

    /// Returns its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns it as a cluster: its read API is the Kubernetes API's.
    pub(crate) fn access(&self) -> &ClusterAccess {
        &self.access
    }

    /// GETs a path, whatever the answer is.
    pub(crate) async fn ask(&self, path: &str, accept: &str) -> anyhow::Result<Answer> {
        self.client.get(path, accept, ANSWER_TIMEOUT).await.map_err(|failure| self.unreachable(&failure))
    }

    /// GETs a path; an error that is answered fails with the engine's own words.
    pub(crate) async fn get(&self, path: &str, accept: &str) -> anyhow::Result<Answer> {
        let answer = self.ask(path, accept).await?;
        if answer.code != 200 {
            bail!("{}", message(answer.code, &answer.body));
        }
        Ok(answer)
    }

    /// GETs JSON.
    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.get(path, "application/json").await?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("unexpected answer to {path} from {}: is that a deltabus engine?", self.url))
    }

    /// Says why there is no answer, and what to do.
    fn unreachable(&self, failure: &Failure) -> anyhow::Error {
        let url = &self.url;
        match failure {
            Failure::Refused => anyhow::anyhow!(
                "no engine listens at {url}: start one with `deltabus run -c FILE` or `deltabus demo`, or name another \
                 with --engine URL or DELTABUS_ENGINE"
            ),
            failure => anyhow::anyhow!("failed to ask the engine at {url}: {failure}"),
        }
    }
}

/// Returns what an error says: the message of a `Status`, else its text.
pub(crate) fn message(code: u16, body: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    match status.as_ref().and_then(|status| status["message"].as_str()) {
        Some(message) => message.to_owned(),
        None => format!("HTTP {code}: {}", String::from_utf8_lossy(body).trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_where_it_is_named_else_configured_else_at_the_default() {
        let args = |engine: Option<&str>| EngineArgs { engine: engine.map(str::to_owned), files: Vec::new() };
        let config = |listen: &str| {
            let text = format!("[resources.pods]\nmatch = [\"pods\"]\n[http]\nlisten = \"{listen}\"\n");
            Config::from_toml_str(&text).unwrap()
        };
        let configured = config("127.0.0.1:9000");
        assert_eq!(args(Some("http://x:1/")).url(Some(&configured)).unwrap(), "http://x:1");
        assert_eq!(args(None).url(Some(&configured)).unwrap(), "http://127.0.0.1:9000");
        assert_eq!(args(None).url(None).unwrap(), DEFAULT_URL);
        assert!(args(None).url(Some(&config(""))).unwrap_err().to_string().contains("off"));
        assert!(args(None).url(Some(&config("127.0.0.1:0"))).unwrap_err().to_string().contains("--engine"));
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()).to_string(), "127.0.0.1:80");
        assert_eq!(reachable("[::]:80".parse().unwrap()).to_string(), "[::1]:80");
    }
}
