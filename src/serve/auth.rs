//! Who may ask: a bearer token, or whoever is on this machine.
//!
//! Without a token a server listens on loopback only (the configuration sees to that), and everybody there may read. What
//! changes something is refused when a browser asks for another site: a page that somebody looks at is not somebody.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use sha2::{Digest as _, Sha256};

use super::status_object::StatusObject;

/// Returns the token that is right now, or why it cannot be read: it may lie in a file that changes.
type ReadToken = dyn Fn() -> Result<String, String> + Send + Sync;

/// Where the token of `auth = "token"` comes from; asked for every request.
#[derive(Clone)]
pub struct TokenSource(Arc<ReadToken>);

impl TokenSource {
    /// Makes a source of a function that is quick.
    pub fn new(read: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource(***)")
    }
}

/// Lets a request through, or answers it as the API server would.
pub(super) async fn guard(State(token): State<Option<TokenSource>>, request: Request, next: Next) -> Response {
    let verdict = match &token {
        Some(token) => check_token(token, request.headers()),
        None if is_change(request.method()) => check_origin(request.headers()),
        None => Ok(()),
    };
    match verdict {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response().into_response(),
    }
}

fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn check_token(token: &TokenSource, headers: &HeaderMap) -> Result<(), StatusObject> {
    let expected = (token.0)().map_err(|error| {
        tracing::error!(%error, "failed to read the token of [http]: nobody is let in");
        StatusObject::internal_error("the server cannot read its token, its log says why")
    })?;
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = match given.split_once(' ') {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") => given.trim(),
        _ => "",
    };
    // Digests: how long it takes says nothing of how much of the token is right.
    let is_right = !expected.is_empty() && Sha256::digest(given) == Sha256::digest(&expected);
    if is_right { Ok(()) } else { Err(StatusObject::unauthorized()) }
}

/// A browser says for which site it asks, where that is another one than the one it asks. It is the same where somebody's
/// name has been made to mean this machine: a site has to be an address, or `localhost`.
fn check_origin(headers: &HeaderMap) -> Result<(), StatusObject> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let is_this_machine = host.parse::<SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || host.split(':').next() == Some("localhost");
    let own = |origin: &str| is_this_machine && origin.split_once("://").is_some_and(|(_, origin)| origin == host);
    match text(header::ORIGIN) {
        Some(origin) if !own(origin) => Err(StatusObject::foreign_origin(origin)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap())
        });
        pairs.collect()
    }

    fn source(token: &'static str) -> TokenSource {
        TokenSource::new(move || Ok(token.to_owned()))
    }

    #[test]
    fn a_request_without_the_token_is_refused() {
        let is_let_in = |given: &[(&str, &str)]| check_token(&source("s3cret"), &headers(given)).is_ok();
        assert!(is_let_in(&[("authorization", "Bearer s3cret")]));
        assert!(is_let_in(&[("authorization", "bearer  s3cret")]));
        for wrong in ["Bearer s3cre", "Bearer s3cret1", "Bearer", "s3cret", "Basic s3cret", ""] {
            assert!(!is_let_in(&[("authorization", wrong)]), "{wrong:?}");
        }
        assert!(!is_let_in(&[]));
    }

    #[test]
    fn an_empty_or_unreadable_token_lets_nobody_in() {
        let none = headers(&[("authorization", "Bearer ")]);
        assert!(check_token(&source(""), &none).is_err());
        assert!(check_token(&TokenSource::new(|| Err("no such file".into())), &none).is_err());
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let host = ("host", "127.0.0.1:8080");
        assert!(check_origin(&headers(&[host])).is_ok(), "no browser");
        assert!(check_origin(&headers(&[host, ("origin", "http://127.0.0.1:8080")])).is_ok());
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "[::1]"] {
            assert!(check_origin(&headers(&[("host", host), ("origin", &format!("http://{host}"))])).is_ok(), "{host}");
        }
        let rebound = headers(&[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")]);
        assert!(check_origin(&rebound).is_err(), "a name that means this machine now");
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8081", "http://127.0.0.1:80809"] {
            assert!(check_origin(&headers(&[host, ("origin", origin)])).is_err(), "{origin}");
        }
        assert!(is_change(&Method::POST) && !is_change(&Method::GET));
    }
}
