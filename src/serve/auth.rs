//! Authenticates requests: by bearer tokens, or not at all where only this machine reaches the listener.

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
    browser::{self, AllowedHosts},
    every_minute::EveryMinute,
    listener::Addresses,
    status_object::StatusObject,
};
use crate::{
    config::{HttpScope, check_token},
    mutex::lock,
};

/// Wrong tokens that an address may send at once; afterwards one each `ATTEMPT_INTERVAL`.
const ATTEMPTS: u32 = 10;
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(6);

/// Addresses whose attempts are remembered.
const ADDRESSES_MAX: usize = 4096;

/// Returns the token as it is now, or the reason why it cannot be read: its file may change.
type ReadToken = dyn Fn() -> Result<String, String> + Send + Sync;

/// A token that is accepted.
#[derive(Clone)]
pub struct Token {
    name: Arc<str>,
    scope: HttpScope,
    read: Arc<ReadToken>,
}

impl Token {
    /// Makes a token of its name in the log, its scope and a function that reads it. Each request calls the function, so it
    /// must be quick.
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
    /// Accepted tokens; without any, every client that reaches the listener may do everything.
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

/// Client of an accepted request: an extension of the request, for the audit log.
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

    /// Returns the client, if its request is accepted.
    fn check(&self, request: &Request) -> Result<Caller, StatusObject> {
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
            return Err(StatusObject::not_allowed(&why));
        }
        Ok(Caller { address, token: Some(Arc::clone(&token.name)) })
    }

    /// Returns the token that a request has. A right one is accepted in any case: many clients may share an address.
    fn token(&self, headers: &HeaderMap, address: Option<SocketAddr>) -> Result<&Token, StatusObject> {
        let given = bearer(headers).map(Sha256::digest);
        let mut unreadable = None;
        for token in &self.access.tokens {
            match read(token) {
                // Digests: the duration of the comparison reveals nothing about the token.
                Ok(expected) if given == Some(Sha256::digest(&expected)) => return Ok(token),
                Ok(_) => {}
                Err(error) => unreadable = Some((&token.name, error)),
            }
        }
        if given.is_some()
            && let Some(address) = address
            && !lock(&self.attempts).attempt(address.ip(), Instant::now())
        {
            return Err(StatusObject::too_many_requests("too many wrong tokens from this address, try again later"));
        }
        if let Some((name, error)) = unreadable {
            if self.unreadable.is_due() {
                tracing::error!(token = &**name, %error, "failed to read a token of [http]: it lets no client in");
            }
            return Err(StatusObject::internal_error("the server cannot read its token, its log says why"));
        }
        if given.is_some() && self.wrong.is_due() {
            let address = address.map(|address| address.to_string());
            tracing::warn!(address, "a request with a wrong token was refused");
        }
        Err(StatusObject::unauthorized())
    }
}

/// Accepts a request, or answers it as the API server would.
pub(super) async fn guard(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    match gate.check(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) => refused.into_response().into_response(),
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

/// Wrong tokens by address: each may send some at once, and is forgotten after a while without.
#[derive(Debug, Default)]
struct Attempts(HashMap<IpAddr, Instant>);

impl Attempts {
    /// Counts an attempt; `false` where it is one too many.
    fn attempt(&mut self, address: IpAddr, now: Instant) -> bool {
        let network = network(address);
        if self.0.len() >= ADDRESSES_MAX && !self.0.contains_key(&network) {
            self.0.retain(|_, paid| *paid > now);
            if self.0.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        // The time at which all attempts so far are paid for.
        let paid = self.0.entry(network).or_insert(now);
        let next = (*paid).max(now) + ATTEMPT_INTERVAL;
        let is_allowed = next <= now + ATTEMPT_INTERVAL * ATTEMPTS;
        if is_allowed {
            *paid = next;
        }
        is_allowed
    }
}

/// Returns the addresses of one client as one: an IPv6 client has a network of them.
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

    /// Sends a request; the code of the refusal, or the name of the token.
    fn ask(gate: &Gate, method: Method, authorization: Option<&str>) -> Result<Option<String>, u16> {
        let mut request = Request::builder().method(method).uri("/version").header("host", "localhost");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let address = SocketAddr::from(([10, 0, 0, 9], 40_000));
        request.extensions_mut().insert(Addresses { peer: address, local: address });
        let caller = gate.check(&request).map_err(|refused| refused.code().as_u16())?;
        Ok(caller.token.map(|token| token.to_string()))
    }

    #[test]
    fn request_without_a_right_token_is_refused() {
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
    fn token_that_is_short_or_unreadable_lets_no_client_in() {
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
    fn wrong_tokens_are_limited_and_right_ones_are_not() {
        let gate = gate(vec![token("a", HttpScope::Read, TOKEN)]);
        let codes: Vec<_> = (0..12).map(|_| ask(&gate, Method::GET, Some("Bearer wrong")).unwrap_err()).collect();
        assert_eq!(codes, [[401; 10].as_slice(), &[429; 2]].concat());
        assert!(ask(&gate, Method::GET, Some("Bearer s3cret-s3cret-s3")).is_ok());
    }

    #[test]
    fn attempts_return_with_time_and_are_counted_by_address() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        let [one, other]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let burst = |attempts: &mut Attempts, now| (0..100).filter(|_| attempts.attempt(one, now)).count();
        assert_eq!(burst(&mut attempts, start), 10);
        assert!(attempts.attempt(other, start));
        assert_eq!(burst(&mut attempts, start + ATTEMPT_INTERVAL), 1);
        assert_eq!(burst(&mut attempts, start + Duration::from_hours(1)), 10);
        // An address more than are remembered is refused, until one is forgotten.
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(number));
        let many = (0..5000).filter(|number| attempts.attempt(address(*number), start)).count();
        assert_eq!((many, attempts.0.len()), (ADDRESSES_MAX - 2, ADDRESSES_MAX));
        assert!(attempts.attempt(address(9999), start + Duration::from_hours(2)));
    }

    #[test]
    fn ipv6_network_is_one_client() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }
}
