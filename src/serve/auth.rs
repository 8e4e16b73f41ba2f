//! Authentication of requests by bearer tokens; none is needed if only this machine can reach the listener.

use std::{
    fmt,
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

use super::{
    api_error::ApiError,
    browser::{self, AllowedHosts},
    every_minute::EveryMinute,
    listener::Addresses,
};
use crate::{
    config::{HttpScope, check_token},
    mutex::lock,
};

/// Wrong tokens that an address may send in a burst; then one per `ATTEMPT_INTERVAL`.
const ATTEMPTS: u32 = 10;
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(6);

/// Maximum number of addresses whose attempts are stored.
const ADDRESSES_MAX: usize = 4096;

/// Function that returns the current token, or the reason why it cannot be read. Its file may change.
type ReadToken = dyn Fn() -> Result<String, String> + Send + Sync;

/// Accepted token.
#[derive(Clone)]
pub struct Token {
    name: Arc<str>,
    scope: HttpScope,
    read: Arc<ReadToken>,
}

impl Token {
    /// Creates a token from its name in the log, its scope and a function that reads it. The function runs for each request,
    /// so it must be fast.
    pub fn new(
        name: &str,
        scope: HttpScope,
        read: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), scope, read: Arc::new(read) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, {:?}, ***)", self.name, self.scope)
    }
}

/// Clients that a listener accepts.
#[derive(Clone, Debug, Default)]
pub struct ListenerAccess {
    /// Accepted tokens. If there are none, every client that reaches the listener may do everything.
    pub tokens: Vec<Token>,
    /// Names under which the listener may be reached.
    pub allowed_hosts: AllowedHosts,
}

/// Access rules of one listener, with the state that they need.
#[derive(Debug)]
pub(super) struct Gate {
    access: ListenerAccess,
    attempts: Mutex<Attempts>,
    unreadable: EveryMinute,
    wrong: EveryMinute,
}

/// Client of an accepted request, stored in the request for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) address: Option<SocketAddr>,
    /// `None` without authentication.
    pub(super) token: Option<Arc<str>>,
}

impl Gate {
    pub(super) fn new(access: ListenerAccess) -> Arc<Self> {
        Arc::new(Self {
            access,
            attempts: Mutex::default(),
            unreadable: EveryMinute::default(),
            wrong: EveryMinute::default(),
        })
    }

    /// Returns the client if its request is accepted.
    fn check(&self, request: &Request) -> Result<Caller, ApiError> {
        let (method, headers) = (request.method(), request.headers());
        let addresses = request.extensions().get::<Addresses>();
        browser::check((method, request.uri(), headers), addresses, &self.access.allowed_hosts)?;
        let address = addresses.map(|addresses| addresses.peer);
        if self.access.tokens.is_empty() {
            return Ok(Caller { address, token: None });
        }
        let token = self.token(headers, address)?;
        let needed = if is_change(method) { HttpScope::Control } else { HttpScope::Read };
        if token.scope < needed {
            let name = &token.name;
            let why = format!("token {name:?} has the scope \"read\"; this request needs \"control\"");
            return Err(ApiError::not_allowed(&why));
        }
        Ok(Caller { address, token: Some(Arc::clone(&token.name)) })
    }

    /// Returns the token of a request. A valid token is accepted even after too many wrong tokens from its address,
    /// because many clients may share an address.
    fn token(&self, headers: &HeaderMap, address: Option<SocketAddr>) -> Result<&Token, ApiError> {
        let given = bearer(headers).map(Sha256::digest);
        let mut unreadable = None;
        for token in &self.access.tokens {
            match read(token) {
                // Compares digests, so that the duration reveals nothing about the token.
                Ok(expected) if given == Some(Sha256::digest(&expected)) => return Ok(token),
                Ok(_) => {}
                Err(error) => unreadable = Some((&token.name, error)),
            }
        }
        if given.is_some()
            && let Some(address) = address
            && !lock(&self.attempts).attempt(address.ip(), Instant::now())
        {
            return Err(ApiError::too_many_requests("too many wrong tokens from this address, try again later"));
        }
        if let Some((name, error)) = unreadable {
            if self.unreadable.is_due() {
                tracing::error!(token = &**name, %error, "cannot read a token of [http]: its clients are refused");
            }
            return Err(ApiError::internal_error("the server cannot read its token: see its log"));
        }
        if given.is_some() && self.wrong.is_due() {
            let address = address.map(|address| address.to_string());
            tracing::warn!(address, "a request with a wrong token was refused");
        }
        Err(ApiError::unauthorized())
    }
}

/// Accepts a request, or refuses it in the form of the API server.
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

fn read(token: &Token) -> Result<String, String> {
    let read = (token.read)()?;
    check_token(&read)?;
    Ok(read)
}

/// Returns the token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Wrong tokens by address. Each address may send a burst. An entry may be dropped after a time without wrong tokens.
#[derive(Debug, Default)]
struct Attempts(HashMap<IpAddr, Instant>);

impl Attempts {
    /// Counts an attempt; returns `false` if it exceeds the limit.
    fn attempt(&mut self, address: IpAddr, now: Instant) -> bool {
        let network = network(address);
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&network) {
            self.0.retain(|_, paid| *paid > now);
            if self.0.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        // The time at which the budget for all attempts so far is restored.
        let paid = self.0.entry(network).or_insert(now);
        let next = (*paid).max(now) + ATTEMPT_INTERVAL;
        let is_allowed = next <= now + ATTEMPT_INTERVAL * ATTEMPTS;
        if is_allowed {
            *paid = next;
        }
        is_allowed
    }
}

/// Returns one address for all addresses of a client: an IPv6 client has a whole network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const TOKEN: &str = "s3cret-s3cret-s3";

    fn token(name: &str, scope: HttpScope, token: &'static str) -> Token {
        Token::new(name, scope, move || Ok(token.to_owned()))
    }

    fn gate(tokens: Vec<Token>) -> Arc<Gate> {
        Gate::new(ListenerAccess { tokens, allowed_hosts: AllowedHosts::default() })
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
        Ok(caller.token.map(|token| token.to_string()))
    }

    #[test]
    fn request_without_valid_token_is_refused() {
        let gate = gate(vec![token("a", HttpScope::Control, TOKEN)]);
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
    fn short_or_unreadable_token_lets_no_client_in() {
        for source in [
            token("a", HttpScope::Read, ""),
            token("a", HttpScope::Read, "s3cret"),
            Token::new("a", HttpScope::Read, || Err("no such file".into())),
        ] {
            let gate = gate(vec![source, token("b", HttpScope::Read, TOKEN)]);
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
        let gate = gate(vec![token("a", HttpScope::Read, TOKEN), token("b", HttpScope::Control, "t-t-t-t-t-t-t-t-t")]);
        let (reads, controls) = (Some("Bearer s3cret-s3cret-s3"), Some("Bearer t-t-t-t-t-t-t-t-t"));
        assert_eq!(ask(&gate, Method::GET, reads), Ok(Some("a".to_owned())));
        assert_eq!(ask(&gate, Method::POST, reads), Err(403));
        assert_eq!(ask(&gate, Method::POST, controls), Ok(Some("b".to_owned())));
    }

    #[test]
    fn wrong_tokens_are_rate_limited() {
        let gate = gate(vec![token("a", HttpScope::Read, TOKEN)]);
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
