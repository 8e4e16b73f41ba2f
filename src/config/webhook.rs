//! `[handlers.<name>]` of type `webhook`: sends events to an HTTP server.

use std::{collections::BTreeMap, time::Duration};

use educe::Educe;
use http::{HeaderName, StatusCode, Uri, header};
use rustls::pki_types::ServerName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    error::{Problem, problem},
    text::Optional,
};
use crate::{
    cloud_event::ContentMode,
    handler::webhook::{Auth as WebhookAuth, TlsOptions as WebhookTls, WebhookOptions, read_header, read_url},
    secret::PlainOrSecret,
    text::required,
};

/// Options of a handler of type `webhook`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("url"))]
pub struct WebhookSink {
    /// URL for the events: `http://` or `https://`, without a user or password; or a secret that contains the URL.
    /// Required.
    #[schemars(regex(pattern = "^https?://"), extend("examples" = ["https://hooks.example.com/events"]))]
    #[educe(Default = PlainOrSecret::Plain(String::new()))]
    pub url: PlainOrSecret,
    /// Method of the requests.
    pub method: WebhookMethod,
    /// Form of an event: `structured`, one JSON object, or `binary`, with its attributes as `ce-` headers and its data as
    /// the body.
    pub mode: ContentMode,
    /// Further headers of every request; values are texts or secrets.
    pub headers: BTreeMap<String, PlainOrSecret>,
    /// Authentication of the sender, one of three kinds. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WebhookAuth")]
    pub auth: Option<WebhookAuth>,
    /// Trusted certificates of the server, and the certificate of the client.
    pub tls: WebhookTls,
    /// Header with the id of the event, so that a receiver can detect repetitions; for a batch, a hash of the ids of
    /// its events. "": none.
    #[serde(with = "Optional")]
    #[educe(Default = Some("Idempotency-Key".to_owned()))]
    pub idempotency_header: Option<String>,
    /// Statuses from 400 to 599 that end the retries of an event: the event goes to the `dead_letter` handler, or is
    /// dropped and counted. After 413, smaller forms of the event are tried first. All other statuses except 2xx are
    /// retried until `give_up_after`.
    #[schemars(inner(range(min = 400, max = 599)))]
    #[educe(Default = vec![400, 413, 422])]
    pub reject: Vec<u16>,
}

/// Method of a webhook's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum WebhookMethod {
    /// Usual method.
    #[default]
    Post,
    /// Method for receivers that store the event.
    Put,
    /// Method for receivers that change a stored event.
    Patch,
}

impl WebhookSink {
    /// Returns the options of the handler. Reads no file and no secret; [`WebhookSink::unready`] does.
    ///
    /// # Errors
    /// Returns all problems.
    pub(crate) fn options(&self, batched: bool, timeout: Duration) -> Result<WebhookOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        let url = self.plain_url().transpose();
        let url = url.map_err(|error| problems.push(problem(&["url"], error))).unwrap_or_default();
        let headers = self.headers(&mut problems);
        let idempotency_header = self.idempotency(&mut problems);
        problems.extend(self.auth_problem());
        problems.extend(self.tls_problem(url.as_ref()));
        if batched && self.mode == ContentMode::Binary {
            let message =
                "a batch is a JSON array, which \"binary\" does not support: expected \"structured\", or no `batch`";
            problems.push(problem(&["mode"], message));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let method = match self.method {
            WebhookMethod::Post => http::Method::POST,
            WebhookMethod::Put => http::Method::PUT,
            WebhookMethod::Patch => http::Method::PATCH,
        };
        let (auth, tls) = (self.auth.clone(), self.tls.clone());
        let reject = self.reject.iter().filter_map(|status| StatusCode::from_u16(*status).ok()).collect();
        let (mode, url) = (self.mode, self.url.clone());
        Ok(WebhookOptions { url, method, mode, batched, headers, idempotency_header, reject, auth, tls, timeout })
    }

    /// Returns problems with the files and secrets that are named. Reads them: blocks.
    pub(crate) fn unready(&self) -> Vec<Problem> {
        let auth = self.auth.as_ref().and_then(|auth| {
            let keys = match auth {
                WebhookAuth::Bearer(_) => vec!["auth", "bearer"],
                WebhookAuth::Basic { .. } => vec!["auth", "basic", "password"],
                WebhookAuth::Signature(_) => vec!["auth", "signature"],
            };
            auth.check().err().map(|error| problem(&keys, error))
        });
        let url = read_url(&self.url);
        let is_https = url.as_ref().is_ok_and(|url| url.scheme_str() == Some("https"));
        let url = url.err().filter(|_| self.url.is_secret()).map(|error| problem(&["url"], error));
        let secrets = self.headers.iter().filter(|(_, value)| value.is_secret());
        let headers = secrets.filter_map(|(name, value)| Some(problem(&["headers", name], read_header(value).err()?)));
        let tls = self.tls.check().err().filter(|_| is_https).map(|(key, error)| problem(&["tls", key], error));
        url.into_iter().chain(headers).chain(auth).chain(tls).collect()
    }

    /// Returns suspicious settings.
    pub(crate) fn oddities(&self) -> Vec<Problem> {
        let is_open = |url: &Uri| url.scheme_str() == Some("http") && !is_loopback(url.host().unwrap_or_default());
        if self.plain_url().is_none_or(|url| !url.is_ok_and(|url| is_open(&url))) {
            return Vec::new();
        }
        let odd =
            |keys: &[&str]| problem(keys, "`url` is http://: the secret is sent without encryption; expected https://");
        let sends_secret = matches!(self.auth, Some(WebhookAuth::Bearer(_) | WebhookAuth::Basic { .. }));
        let secrets = self.headers.iter().filter(|(_, value)| value.is_secret());
        let headers = secrets.map(|(name, _)| odd(&["headers", name]));
        sends_secret.then(|| odd(&["auth"])).into_iter().chain(headers).collect()
    }

    /// Checks a URL that is written in the configuration; returns `None` if a secret contains it.
    fn plain_url(&self) -> Option<Result<Uri, String>> {
        (!self.url.is_secret()).then(|| read_url(&self.url))
    }

    fn headers(&self, problems: &mut Vec<Problem>) -> Vec<(HeaderName, PlainOrSecret)> {
        let mut headers: Vec<(HeaderName, PlainOrSecret)> = Vec::new();
        for (name, value) in &self.headers {
            let header = own_header(name).and_then(|header| {
                if !value.is_secret() {
                    read_header(value)?;
                }
                let is_set = headers.iter().any(|(other, _)| *other == header);
                if is_set {
                    Err("is already set in another letter case: expected it once".to_owned())
                } else {
                    Ok(header)
                }
            });
            match header {
                Ok(header) => headers.push((header, value.clone())),
                Err(error) => problems.push(problem(&["headers", name], error)),
            }
        }
        headers
    }

    fn idempotency(&self, problems: &mut Vec<Problem>) -> Option<HeaderName> {
        let name = self.idempotency_header.as_ref()?;
        let taken = self.headers.keys().any(|other| other.eq_ignore_ascii_case(name));
        let header = match own_header(name) {
            Ok(_) if taken => Err("is also in `headers`: expected it in only one of the two".to_owned()),
            other => other,
        };
        header.map_err(|error| problems.push(problem(&["idempotency_header"], error))).ok()
    }

    fn auth_problem(&self) -> Option<Problem> {
        let Some(WebhookAuth::Basic { username, .. }) = &self.auth else { return None };
        let unfit = username.contains(|c: char| c == ':' || c.is_control());
        unfit.then(|| {
            problem(&["auth", "basic", "username"], "expected a name without colons and control characters (RFC 7617)")
        })
    }

    fn tls_problem(&self, url: Option<&Uri>) -> Option<Problem> {
        if url.is_some_and(|url| url.scheme_str() == Some("http")) && self.tls != WebhookTls::default() {
            return Some(problem(&["tls"], "`url` is http://, without TLS: expected https://, or no `tls`"));
        }
        let name = self.tls.server_name.as_ref()?;
        let unfit = ServerName::try_from(name.as_str()).is_err();
        unfit.then(|| problem(&["tls", "server_name"], format!("expected a host name or IP address, found {name:?}")))
    }
}

/// Returns true if a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Parses the name of a header that users may set.
fn own_header(name: &str) -> Result<HeaderName, String> {
    const OURS: [HeaderName; 9] = [
        header::CONNECTION,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    const SECRET: [HeaderName; 3] = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE];
    let header = HeaderName::try_from(name)
        .map_err(|_| format!("{name:?} is not a valid header name: expected letters, digits and `-`"))?;
    if SECRET.contains(&header) {
        return Err("contains a secret, which must be a reference: expected it in `auth`".to_owned());
    }
    if OURS.contains(&header) || header.as_str().starts_with("ce-") || header.as_str().starts_with("webhook-") {
        return Err("is set by the handler itself: expected another header".to_owned());
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, SinkConfig};

    /// Returns the keys of suspicious settings of a webhook.
    fn odd(url: &str, lines: &str) -> Vec<String> {
        let text = format!(
            "[resources.pods]\nmatch = [\"pods\"]\n[handlers.hook]\ntype = \"webhook\"\nenabled = false\nurl = \"{url}\"\n{lines}"
        );
        let config = Config::from_toml_str(&text).unwrap();
        let SinkConfig::Webhook(webhook) = &config.handlers["hook"].sink else { panic!("{:?}", config.handlers) };
        webhook.oddities().into_iter().map(|(keys, _)| keys.join(".")).collect()
    }

    #[test]
    fn secret_sent_to_webhook_unencrypted_causes_warning() {
        let bearer = "auth = { bearer = { env = \"X\" } }";
        let headers = "headers = { \"X-Key\" = { env = \"X\" }, \"X-Team\" = \"platform\" }";
        assert_eq!(odd("http://hooks.example.com/", bearer), ["auth"]);
        assert_eq!(odd("http://hooks.example.com/", headers), ["headers.X-Key"]);
        assert_eq!(odd("http://hooks.example.com/", &format!("{bearer}\n{headers}")), ["auth", "headers.X-Key"]);
        for url in ["https://hooks.example.com/", "http://127.0.0.1:1/", "http://localhost/"] {
            assert!(odd(url, &format!("{bearer}\n{headers}")).is_empty(), "{url}");
        }
        let signature = "auth = { signature = { env = \"X\" } }";
        assert!(odd("http://hooks.example.com/", signature).is_empty(), "the secret of a signature stays here");
    }
}
