//! Checks of `[handlers.<name>]` of type `webhook`.

use std::collections::HashSet;

use http::{HeaderName, header};
use rustls::pki_types::ServerName;

use super::report::Section;
use crate::{
    cloud_event::ContentMode,
    handler::webhook::{Auth, WebhookOptions, WebhookTls, header_name, read_header, read_url},
};

impl WebhookOptions {
    /// Checks the options, except the files and secrets: see [`WebhookOptions::check_files`].
    pub(super) fn check(&self, batched: bool, at: &mut Section<'_>) {
        let url = if self.url.is_secret() { None } else { at.valid(&["url"], read_url(&self.url)) };
        let is_http = url.as_ref().is_some_and(|url| url.scheme_str() == Some("http"));
        self.check_headers(at);
        if let Some(Auth::Basic { username, .. }) = &self.auth
            && username.contains(|c: char| c == ':' || c.is_control())
        {
            let message = "expected a name without colons and control characters (RFC 7617)";
            at.error(&["auth", "basic", "username"], message);
        }
        if is_http && self.tls != WebhookTls::default() {
            at.error(&["tls"], "`url` is http://, without TLS: expected https://, or no `tls`");
        } else if let Some(name) = &self.tls.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            at.error(&["tls", "server_name"], format!("expected a host name or IP address, found {name:?}"));
        }
        if batched && self.mode == ContentMode::Binary {
            let message =
                "a batch is a JSON array, which \"binary\" does not support: expected \"structured\", or no `batch`";
            at.error(&["mode"], message);
        }
        if is_http && url.is_some_and(|url| !is_loopback(url.host().unwrap_or_default())) {
            let message = "`url` is http://: the secret is sent without encryption; expected https://";
            if matches!(self.auth, Some(Auth::Bearer(_) | Auth::Basic { .. })) {
                at.warn(&["auth"], message);
            }
            for (name, _) in self.headers.iter().filter(|(_, value)| value.is_secret()) {
                at.warn(&["headers", name], message);
            }
        }
    }

    fn check_headers(&self, at: &mut Section<'_>) {
        let mut known = HashSet::new();
        for (name, value) in &self.headers {
            let header = own_header(name).and_then(|header| {
                if !value.is_secret() {
                    read_header(value)?;
                }
                let is_new = known.insert(header);
                is_new.then_some(()).ok_or_else(|| "is already set in another letter case: expected it once".to_owned())
            });
            at.valid(&["headers", name], header);
        }
        if let Some(name) = &self.idempotency_header
            && at.valid(&["idempotency_header"], own_header(name)).is_some()
            && self.headers.keys().any(|other| other.eq_ignore_ascii_case(name))
        {
            at.error(&["idempotency_header"], "is also in `headers`: expected it in only one of the two");
        }
    }

    /// Checks the files and secrets that the options name. Blocks while it reads them.
    pub(super) fn check_files(&self, at: &mut Section<'_>) {
        let url = read_url(&self.url);
        let is_https = url.as_ref().is_ok_and(|url| url.scheme_str() == Some("https"));
        if self.url.is_secret() {
            at.valid(&["url"], url);
        }
        for (name, value) in self.headers.iter().filter(|(_, value)| value.is_secret()) {
            at.valid(&["headers", name], read_header(value));
        }
        if let Some(auth) = &self.auth {
            let keys: &[&str] = match auth {
                Auth::Bearer(_) => &["auth", "bearer"],
                Auth::Basic { .. } => &["auth", "basic", "password"],
                Auth::Signature(_) => &["auth", "signature"],
            };
            at.valid(keys, auth.credentials());
        }
        if is_https && let Err((key, error)) = self.tls.client().config() {
            at.error(&["tls", key], error);
        }
    }
}

/// Returns true if a host is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Parses the name of a header, and refuses a header that users must not set.
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
    let header = header_name(name)?;
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
    use crate::config::{Config, SinkConfig, report::Report};

    /// Returns the keys of the warnings for a webhook with this URL and these further lines.
    fn odd(url: &str, lines: &str) -> Vec<String> {
        let text = format!(
            "[resources.pods]\nmatch = [\"pods\"]\n[handlers.hook]\ntype = \"webhook\"\nenabled = false\nurl = \"{url}\"\n{lines}"
        );
        let config = Config::from_toml_str(&text).unwrap();
        let SinkConfig::Webhook(webhook) = &config.handlers["hook"].sink else { panic!("{:?}", config.handlers) };
        let mut report = Report::default();
        webhook.check(false, &mut report.root());
        report.warnings.into_iter().map(|warning| warning.key).collect()
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
