//! Authentication of requests by bearer tokens, with `auth = "token"` in `[http]`.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use hashbrown::HashMap;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{api_error::ApiError, browser, listener::Addresses};
use crate::{
    config::{Http, HttpAuth, HttpScope, check_token},
    failures::Failures,
    mutex::lock,
    secret::{ExposeSecret as _, SecretRef, SecretString},
    subscribe::judge::StreamClient,
};

/// Number of wrong tokens that an address may send in a burst.
const ATTEMPTS: u32 = 10;
/// Time after which an address may send one more wrong token.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(6);

/// Maximum number of addresses whose attempts are stored.
const ADDRESSES_MAX: usize = 4096;

/// Access rules of `[http]`, and the counters of failed attempts.
#[derive(Debug)]
pub(super) struct Gate {
    http: Arc<Http>,
    attempts: Mutex<Attempts>,
    /// Counter of failures to read a token. Its times are durations since `start`.
    unreadable: Mutex<Failures>,
    /// Counter of requests with a wrong token. Its times are durations since `start`.
    wrong: Mutex<Failures>,
    start: Instant,
}

/// Client of an accepted request, stored in the request for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) address: Option<SocketAddr>,
    /// Name of the token; `None` without authentication.
    pub(super) token: Option<String>,
}

impl Caller {
    /// Returns the client whose streams and lists share one part of the engine's limits. It is the token, because a client can use many
    /// addresses.
    pub(super) fn stream_client(&self) -> StreamClient {
        let network = || self.address.map(|address| network(address.ip()).to_string());
        StreamClient(self.token.clone().or_else(network).unwrap_or_default())
    }
}

impl Gate {
    pub(super) fn new(http: Arc<Http>) -> Arc<Self> {
        let (unreadable, wrong) = (Mutex::default(), Mutex::default());
        Arc::new(Self { http, attempts: Mutex::default(), unreadable, wrong, start: Instant::now() })
    }

    /// Returns the client if its request is accepted.
    fn check(&self, request: &Request) -> Result<Caller, ApiError> {
        let (method, headers) = (request.method(), request.headers());
        let addresses = request.extensions().get::<Addresses>();
        browser::check(method, request.uri(), headers, addresses, &self.http.allowed_hosts)?;
        let address = addresses.map(|addresses| addresses.peer);
        if self.http.auth == HttpAuth::None {
            return Ok(Caller { address, token: None });
        }
        let (name, scope) = self.token(headers, address)?;
        let needed = if is_change(method) { HttpScope::Control } else { HttpScope::Read };
        if scope < needed {
            let why = format!("token {name:?} has the scope \"read\"; this request needs \"control\"");
            return Err(ApiError::not_allowed(&why));
        }
        Ok(Caller { address, token: Some(name.to_owned()) })
    }

    /// Returns the name and the scope of the token of a request. A valid token is accepted even after too many wrong tokens
    /// from its address, because many clients may share an address.
    fn token(&self, headers: &HeaderMap, address: Option<SocketAddr>) -> Result<(&str, HttpScope), ApiError> {
        let given = bearer(headers).map(Sha256::digest);
        let mut unreadable = None;
        for (name, secret, scope) in self.http.tokens() {
            match read(secret) {
                // Compares digests, so that the duration reveals nothing about the token.
                Ok(expected) if given == Some(Sha256::digest(expected.expose_secret())) => return Ok((name, scope)),
                Ok(_) => {}
                Err(error) => unreadable = Some((name, error)),
            }
        }
        if given.is_some()
            && let Some(address) = address
            && !lock(&self.attempts).attempt(address.ip(), Instant::now())
        {
            return Err(ApiError::too_many_requests("too many wrong tokens from this address, try again later"));
        }
        if let Some((name, error)) = unreadable {
            if self.is_due(&self.unreadable) {
                tracing::error!(token = name, %error, "cannot read a token of [http]: its clients are refused");
            }
            return Err(ApiError::internal_error("the server cannot read its token: see its log"));
        }
        if given.is_some() && self.is_due(&self.wrong) {
            let address = address.map(|address| address.to_string());
            tracing::warn!(address, "a request with a wrong token was refused");
        }
        Err(ApiError::unauthorized())
    }

    /// Counts a failure. Returns true if this failure is to be logged. Some failures are not logged, because otherwise clients
    /// could fill the log.
    fn is_due(&self, failures: &Mutex<Failures>) -> bool {
        lock(failures).failed(self.start.elapsed()).is_some()
    }
}

/// Passes an accepted request on. Answers a refused request with an error in the form of the API server.
pub(super) async fn guard(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    match gate.check(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Reads a token. Each request reads the token, so that a changed token takes effect at once. The cost is low, because the
/// token is in a small file or in memory.
fn read(secret: &SecretRef) -> Result<SecretString, String> {
    let token = secret.read()?;
    check_token(token.expose_secret())?;
    Ok(token)
}

/// Returns the token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Addresses that sent wrong tokens. The value is the time at which the full burst of the address is available again. After this
/// time, the address may be dropped.
#[derive(Debug, Default)]
struct Attempts(HashMap<IpAddr, Instant>);

impl Attempts {
    /// Counts a wrong token. Returns `false`, without counting it, if the address has reached its limit or if too many other
    /// addresses are stored.
    fn attempt(&mut self, address: IpAddr, now: Instant) -> bool {
        let network = network(address);
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&network) {
            self.0.retain(|_, paid| *paid > now);
            if self.0.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        // Time at which the full burst is available again.
        let paid = self.0.entry(network).or_insert(now);
        let next = (*paid).max(now) + ATTEMPT_INTERVAL;
        let is_allowed = next <= now + ATTEMPT_INTERVAL * ATTEMPTS;
        if is_allowed {
            *paid = next;
        }
        is_allowed
    }
}

/// Returns the address under which the attempts of a client are counted. For IPv6, this is its /64 network, because a client can
/// use every address of that network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use axum::body::Body;
    use tempfile::TempDir;

    use super::*;
    use crate::config::HttpToken;

    const TOKEN: &str = "s3cret-s3cret-s3";

    /// Writes tokens to files in a new directory. Returns the directory, and a gate that accepts the tokens.
    fn gate(tokens: &[(&str, HttpScope, &str)]) -> (TempDir, Arc<Gate>) {
        let dir = tempfile::tempdir().unwrap();
        let token = |(name, scope, content): &(&str, HttpScope, &str)| {
            let file = dir.path().join(name);
            fs::write(&file, content).unwrap();
            HttpToken { name: (*name).to_owned(), token: SecretRef::File(file), scope: *scope }
        };
        let tokens = tokens.iter().map(token).collect();
        let http = Http { auth: HttpAuth::Token, tokens, ..Http::default() };
        (dir, Gate::new(Arc::new(http)))
    }

    /// Sends a request; returns the name of the token, or the code of the refusal.
    fn ask(gate: &Gate, method: Method, authorization: Option<&str>) -> Result<Option<String>, u16> {
        let mut request = Request::builder().method(method).uri("/version").header("host", "localhost");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let address = SocketAddr::from(([10, 0, 0, 9], 40_000));
        request.extensions_mut().insert(Addresses { peer: address, local: address });
        let caller = gate.check(&request).map_err(|refused| refused.code)?;
        Ok(caller.token)
    }

    #[test]
    fn request_without_valid_token_is_refused() {
        let (_dir, gate) = gate(&[("a", HttpScope::Control, TOKEN)]);
        for right in ["Bearer s3cret-s3cret-s3", "bearer  s3cret-s3cret-s3"] {
            assert_eq!(ask(&gate, Method::GET, Some(right)), Ok(Some("a".to_owned())), "{right:?}");
        }
        for wrong in ["Bearer s3cret-s3cret-s", "Bearer s3cret-s3cret-s34", "Bearer", "s3cret-s3cret-s3", "Basic x", ""]
        {
            assert_eq!(ask(&gate, Method::GET, Some(wrong)), Err(401), "{wrong:?}");
        }
        assert_eq!(ask(&gate, Method::GET, None), Err(401));
    }

    #[test]
    fn no_token_lets_no_client_in() {
        let (_dir, gate) = gate(&[]);
        assert_eq!(ask(&gate, Method::GET, None), Err(401));
        assert_eq!(ask(&gate, Method::GET, Some("Bearer s3cret-s3cret-s3")), Err(401));
    }

    #[test]
    fn short_or_unreadable_token_lets_no_client_in() {
        for content in [Some(""), Some("s3cret"), None] {
            let (dir, gate) =
                gate(&[("a", HttpScope::Read, content.unwrap_or_default()), ("b", HttpScope::Read, TOKEN)]);
            if content.is_none() {
                fs::remove_file(dir.path().join("a")).unwrap();
            }
            for wrong in ["Bearer ", "Bearer s3cret"] {
                assert_eq!(ask(&gate, Method::GET, Some(wrong)), Err(500));
            }
            assert_eq!(
                ask(&gate, Method::GET, Some("Bearer s3cret-s3cret-s3")),
                Ok(Some("b".to_owned())),
                "another token"
            );
        }
    }

    #[test]
    fn scope_read_changes_nothing() {
        let (_dir, gate) = gate(&[("a", HttpScope::Read, TOKEN), ("b", HttpScope::Control, "t-t-t-t-t-t-t-t-t")]);
        let (reads, controls) = (Some("Bearer s3cret-s3cret-s3"), Some("Bearer t-t-t-t-t-t-t-t-t"));
        assert_eq!(ask(&gate, Method::GET, reads), Ok(Some("a".to_owned())));
        assert_eq!(ask(&gate, Method::POST, reads), Err(403));
        assert_eq!(ask(&gate, Method::POST, controls), Ok(Some("b".to_owned())));
    }

    #[test]
    fn wrong_tokens_are_rate_limited() {
        let (_dir, gate) = gate(&[("a", HttpScope::Read, TOKEN)]);
        let codes: Vec<_> = (0..12).map(|_| ask(&gate, Method::GET, Some("Bearer wrong")).unwrap_err()).collect();
        assert_eq!(codes, [[401; 10].as_slice(), &[429; 2]].concat());
        assert!(ask(&gate, Method::GET, Some("Bearer s3cret-s3cret-s3")).is_ok());
    }

    #[test]
    fn attempts_refill_over_time_per_address() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        let [one, other]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let burst = |attempts: &mut Attempts, now| (0..100).filter(|_| attempts.attempt(one, now)).count();
        assert_eq!(burst(&mut attempts, start), 10);
        assert!(attempts.attempt(other, start));
        assert_eq!(burst(&mut attempts, start + ATTEMPT_INTERVAL), 1);
        assert_eq!(burst(&mut attempts, start + Duration::from_hours(1)), 10);
        // Addresses beyond the maximum are refused until one is forgotten.
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let many = (0..5000).filter(|number| attempts.attempt(address(*number), start)).count();
        assert_eq!((many, attempts.0.len()), (ADDRESSES_MAX - 2, ADDRESSES_MAX));
        assert!(attempts.attempt(address(9999), start + Duration::from_hours(2)));
    }

    #[test]
    fn ipv6_network_counts_as_one_client() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }
}
