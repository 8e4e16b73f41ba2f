//! Target of requests: the URL, the configured headers and the credentials. All may be secret.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{
    WebhookOptions,
    signing::{Auth, Credentials},
};
use crate::secret::{ExposeSecret, PlainOrSecret};

/// Minimum length of a part of a secret URL that is hidden by itself. Shorter parts are hidden only within the whole
/// path.
const HIDDEN_PART_MIN: usize = 8;

/// Values of the options `url`, `headers` and `auth`, including secrets. Never print them.
pub(super) struct Target {
    pub(super) url: Uri,
    pub(super) headers: HeaderMap,
    pub(super) credentials: Credentials,
    /// Method, scheme and host for errors; for a secret URL, `***` replaces scheme and host.
    pub(super) place: String,
    /// Texts that errors must not contain.
    pub(super) hidden: Vec<String>,
}

impl Target {
    pub(super) fn read(options: &WebhookOptions) -> Result<Self, String> {
        let credentials = options.auth.as_ref().map(Auth::credentials).transpose()?.unwrap_or_default();
        let url = read_url(&options.url)?;
        let mut hidden = Vec::new();
        let (scheme, host) = (url.scheme_str().unwrap_or_default(), url.authority().map_or("", |host| host.as_str()));
        let place = if options.url.is_secret() {
            hidden.extend([url.to_string(), host.to_owned(), url.host().unwrap_or_default().to_owned()]);
            let path = url.path_and_query().map_or("", |path| path.as_str()).trim_matches('/');
            let parts = path.split(['/', '?', '&', '=']).filter(|part| part.len() >= HIDDEN_PART_MIN);
            hidden.extend([path].into_iter().chain(parts).map(str::to_owned));
            format!("{} ***", options.method)
        } else {
            format!("{} {scheme}://{host}", options.method)
        };
        let mut headers = HeaderMap::new();
        for (name, source) in &options.headers {
            let value = read_header(source)?;
            if source.is_secret() {
                hidden.extend(value.to_str().map(str::to_owned));
            }
            headers.insert(HeaderName::clone(name), value);
        }
        hidden.extend_from_slice(&credentials.hidden);
        Ok(Self { url, headers, credentials, place, hidden })
    }
}

/// Returns the URL of an option. Blocks if it reads a secret from a file.
///
/// # Errors
/// Fails if the secret is missing, or the text is not a valid target URL. The error does not contain a secret.
pub fn read_url(source: &PlainOrSecret) -> Result<Uri, String> {
    let text = source.read()?;
    let text = text.expose_secret();
    // The text before an `@` may be a password, so it is not repeated.
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
pub fn read_header(source: &PlainOrSecret) -> Result<HeaderValue, String> {
    let text = source.read()?;
    let mut value = HeaderValue::from_str(text.expose_secret())
        .map_err(|_| "has characters that no header can carry: expected printable ASCII".to_owned())?;
    value.set_sensitive(source.is_secret());
    Ok(value)
}
