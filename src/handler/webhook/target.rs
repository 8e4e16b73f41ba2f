//! Target of requests: the client, the URL, the configured headers and the credentials. All may be secret.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::pki_types::ServerName;

use super::{
    WebhookOptions,
    signing::{Auth, Credentials},
};
use crate::{
    handler::client_tls,
    secret::{ExposeSecret, PlainOrSecret},
};

/// Idle time after which a connection is closed. Most servers close idle connections later. A request therefore rarely meets a
/// connection that the server is closing.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of pings on an HTTP/2 connection with open requests, and timeout of each ping.
const PING: Duration = Duration::from_secs(10);
/// Minimum length, in bytes, of a part of a secret URL's path that error texts hide wherever it occurs. Shorter parts are hidden
/// only within the whole path.
const HIDDEN_PART_MIN: usize = 8;

type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Values of the options, including secrets. Never print them.
pub(super) struct Target {
    pub(super) client: Client,
    pub(super) url: Uri,
    pub(super) headers: HeaderMap,
    /// Header for the key of a request.
    pub(super) key_header: Option<HeaderName>,
    pub(super) credentials: Credentials,
    /// Method, scheme and host for errors; for a secret URL, `***` replaces scheme and host.
    pub(super) place: String,
    /// Texts that errors must not contain.
    pub(super) hidden: Vec<String>,
}

impl Target {
    /// Returns the files of all options.
    pub(super) fn files(options: &WebhookOptions) -> Vec<PathBuf> {
        let secrets = [&options.url].into_iter().chain(options.headers.values()).filter_map(PlainOrSecret::file);
        let auth = options.auth.as_ref().and_then(|auth| auth.secret().file());
        secrets.chain(auth).chain(options.tls.client().files()).map(ToOwned::to_owned).collect()
    }

    pub(super) fn read(options: &WebhookOptions) -> Result<Self, String> {
        let credentials = options.auth.as_ref().map(Auth::credentials).transpose()?.unwrap_or_default();
        let url = read_url(&options.url)?;
        let mut hidden = Vec::new();
        let method = http::Method::from(options.method);
        let (scheme, host) = (url.scheme_str().unwrap_or_default(), url.authority().map_or("", |host| host.as_str()));
        let place = if options.url.is_secret() {
            hidden.extend([url.to_string(), host.to_owned(), url.host().unwrap_or_default().to_owned()]);
            let path = url.path_and_query().map_or("", |path| path.as_str()).trim_matches('/');
            let parts = path.split(['/', '?', '&', '=']).filter(|part| part.len() >= HIDDEN_PART_MIN);
            hidden.extend([path].into_iter().chain(parts).map(str::to_owned));
            format!("{method} ***")
        } else {
            format!("{method} {scheme}://{host}")
        };
        let mut headers = HeaderMap::new();
        for (name, source) in &options.headers {
            let value = read_header(source)?;
            if source.is_secret() {
                hidden.extend(value.to_str().map(str::to_owned));
            }
            headers.insert(header_name(name)?, value);
        }
        hidden.extend_from_slice(&credentials.hidden);
        let key_header = options.idempotency_header.as_deref().map(header_name).transpose()?;
        let is_https = url.scheme_str() == Some("https");
        let tls = if is_https { options.tls.client().config() } else { Ok(client_tls::without_tls()) };
        let client = connect(tls.map_err(|(_, error)| error)?, options.tls.server_name.as_deref());
        Ok(Self { client, url, headers, key_header, credentials, place, hidden })
    }
}

/// Returns the URL of an option. Blocks if it reads a secret from a file.
///
/// # Errors
/// Fails if the secret is missing, or the text is not a valid target URL. The error does not contain a secret.
pub(crate) fn read_url(source: &PlainOrSecret) -> Result<Uri, String> {
    let text = source.read()?;
    let text = text.expose_secret();
    // The text before an `@` may be a password, so errors do not show it.
    let authority = text.split_once("://").map_or("", |(_, rest)| rest).split(['/', '?', '#']).next();
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err("has a user or password in it: expected them in `auth`".to_owned());
    }
    if text.contains('#') {
        return Err("has a fragment, `#…`, which is never sent: expected it without".to_owned());
    }
    let has_host = |url: &Uri| url.host().is_some_and(|host| !host.is_empty());
    let url = text.parse::<Uri>().ok();
    url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && has_host(url)).ok_or_else(|| {
        let found = if text.contains('@') { "***".to_owned() } else { format!("{source:?}") };
        format!("expected a URL such as \"https://hooks.example.com/events\", found {found}")
    })
}

/// Returns the value of a header. Blocks if it reads a secret from a file.
///
/// # Errors
/// Fails if the secret is missing, or not a valid header value. The error does not contain the text.
pub(crate) fn read_header(source: &PlainOrSecret) -> Result<HeaderValue, String> {
    let text = source.read()?;
    let mut value = HeaderValue::from_str(text.expose_secret())
        .map_err(|_| "has characters that no header can carry: expected printable ASCII".to_owned())?;
    value.set_sensitive(source.is_secret());
    Ok(value)
}

/// Parses the name of a header.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, String> {
    name.parse().map_err(|_| format!("{name:?} is not a valid header name: expected letters, digits and `-`"))
}

fn connect(tls: rustls::ClientConfig, server_name: Option<&str>) -> Client {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(IDLE));
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = server_name.and_then(|name| ServerName::try_from(name.to_owned()).ok()) {
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .build(https.enable_all_versions().wrap_connector(http))
}
