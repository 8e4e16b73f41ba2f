//! Protection against requests that a web page of another site makes a browser send.
//!
//! A page can send requests to any address that its visitor can reach. It can read the response only if the page and the address
//! have the same origin. DNS rebinding gives both the same origin: a host name first points to the server of the page, then to this
//! machine. The header `Host` contains this host name, so the request can be refused.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Authority};

use super::{api_error::ApiError, listener::Addresses};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Checks `Host`, `Origin` and `Sec-Fetch-Site` of a request. Accepted hosts are loopback, the address that the client connected
/// to, and the hosts in `allowed` (`[http] allowed_hosts`).
///
/// # Errors
/// 421 for a host that is not served here, 403 for a page of another site.
pub(super) fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    addresses: Option<&Addresses>,
    allowed: &[String],
) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (host, further) = (hosts.next(), hosts.next());
    let named = host.and_then(authority).filter(|_| further.is_none());
    // A request to a proxy also names the host in its target.
    let is_served = |authority: &Authority| is_served(&host_of(authority), addresses, allowed);
    let is_own = named.as_ref().is_some_and(is_served) && uri.authority().is_none_or(is_served);
    let Some(named) = named.filter(|_| is_own) else {
        let message = format!(
            "this server is not reachable as {}: expected localhost, a loopback address or the server's own address in \
             Host; if the name is right, add it to [http] allowed_hosts",
            shown(host)
        );
        return Err(ApiError::new(421, message));
    };
    for origin in headers.get_all(header::ORIGIN) {
        if !is_own_origin(origin, &named, allowed) {
            return Err(ApiError::foreign_origin(&shown(Some(origin))));
        }
    }
    let is = |name, value: &str| headers.get(name).is_some_and(|header| header == value);
    let is_navigation = *method == Method::GET && is(SEC_FETCH_MODE, "navigate") && is(SEC_FETCH_DEST, "document");
    // An `Origin` was checked above.
    if is(SEC_FETCH_SITE, "cross-site") && !is_navigation && !headers.contains_key(header::ORIGIN) {
        return Err(ApiError::foreign_origin("another site"));
    }
    Ok(())
}

/// Parses `HOST` or `HOST:PORT`.
fn authority(header: &HeaderValue) -> Option<Authority> {
    let text = header.to_str().ok()?;
    (!text.contains('@')).then(|| text.parse().ok())?
}

/// Returns the host in lower case, without port and brackets.
fn host_of(authority: &Authority) -> String {
    authority.host().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn is_served(host: &str, addresses: Option<&Addresses>, allowed: &[String]) -> bool {
    let is_own = |ip: IpAddr| {
        let ip = ip.to_canonical();
        ip.is_loopback() || addresses.is_some_and(|addresses| addresses.local.ip().to_canonical() == ip)
    };
    host == "localhost" || host.parse().is_ok_and(is_own) || is_allowed(host, allowed)
}

fn is_allowed(host: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
}

/// Returns true if `origin` is the requested host and port, or if the host of `origin` is allowed.
fn is_own_origin(origin: &HeaderValue, host: &Authority, allowed: &[String]) -> bool {
    let text = origin.to_str().unwrap_or_default();
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let origin = rest.and_then(|rest| rest.parse::<Authority>().ok());
    origin.is_some_and(|origin| origin == *host || is_allowed(&host_of(&origin), allowed))
}

/// Returns the text of a header for an error message.
fn shown(header: Option<&HeaderValue>) -> String {
    header.map_or_else(|| "none".to_owned(), |header| format!("{:?}", String::from_utf8_lossy(header.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: Addresses = Addresses {
        peer: std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9)), 40_000),
        local: std::net::SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 8080),
    };

    /// Returns the code of the refusal, or 200.
    fn code(pairs: &[(&str, &[u8])]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let allowed = ["Engine.example.com".to_owned()];
        let checked = check(&Method::GET, &Uri::from_static("/api/v1/pods"), &headers, Some(&ADDRESSES), &allowed);
        checked.map_or_else(|refused| refused.code, |()| 200)
    }

    #[test]
    fn only_hosts_of_this_listener_are_served() {
        for host in [
            "127.0.0.1:8080",
            "127.0.0.2",
            "[::1]:8080",
            "[::1]",
            "localhost",
            "LOCALHOST:9",
            "localhost.:80",
            "10.0.0.1:8080",
            "[::ffff:127.0.0.1]",
            "engine.example.com:8443",
            "ENGINE.example.COM",
        ] {
            assert_eq!(code(&[("host", host.as_bytes())]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.2",
            "0.0.0.0",
            "",
            "user@localhost",
            "sub.engine.example.com",
            "127.1",
            "2130706433",
        ] {
            assert_eq!(code(&[("host", host.as_bytes())]), 421, "{host}");
        }
        assert_eq!(code(&[]), 421, "no host");
        assert_eq!(code(&[("host", b"localhost"), ("host", b"evil.example")]), 421, "two hosts");
        assert_eq!(code(&[("host", b"local\xffhost")]), 421, "undecodable");
    }

    #[test]
    fn host_in_target_is_checked_too() {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let of = |target| check(&Method::GET, &Uri::from_static(target), &headers, None, &[]);
        assert!(of("http://localhost:8080/livez").is_ok());
        assert!(of("http://evil.example/livez").is_err());
    }

    #[test]
    fn only_pages_of_this_listener_are_served() {
        let host: (&str, &[u8]) = ("host", b"127.0.0.1:8080");
        for origin in ["http://127.0.0.1:8080", "https://127.0.0.1:8080", "https://engine.example.com"] {
            assert_eq!(code(&[host, ("origin", origin.as_bytes())]), 200, "{origin}");
        }
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1:8081",
            "http://127.0.0.1:80809",
            "file://",
            "",
            "127.0.0.1:8080",
        ] {
            assert_eq!(code(&[host, ("origin", origin.as_bytes())]), 403, "{origin}");
        }
        assert_eq!(code(&[host, ("origin", b"http://evil\xff")]), 403, "undecodable");
    }

    #[test]
    fn cross_site_request_is_refused_unless_navigation() {
        let host: (&str, &[u8]) = ("host", b"localhost:8080");
        let cross: (&str, &[u8]) = ("sec-fetch-site", b"cross-site");
        assert_eq!(code(&[host, cross]), 403);
        assert_eq!(code(&[host, cross, ("sec-fetch-mode", b"no-cors"), ("sec-fetch-dest", b"image")]), 403);
        assert_eq!(code(&[host, cross, ("sec-fetch-mode", b"navigate"), ("sec-fetch-dest", b"iframe")]), 403);
        assert_eq!(code(&[host, cross, ("sec-fetch-mode", b"navigate"), ("sec-fetch-dest", b"document")]), 200);
        for site in ["same-origin", "same-site", "none"] {
            assert_eq!(code(&[host, ("sec-fetch-site", site.as_bytes())]), 200, "{site}");
        }
    }
}
