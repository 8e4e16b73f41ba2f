//! Route to the API server: direct, or through a proxy.

use std::{
    fmt,
    task::{Context, Poll},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, Uri, uri::Authority};
use hyper_util::{
    client::legacy::connect::{
        HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    rt::TokioIo,
};
use percent_encoding::percent_decode_str;
use tokio::{net::TcpStream, time::timeout};
use tower::{BoxError, Service};

use super::connect::CONNECT_TIMEOUT;

/// Route of connections. Never print the credentials of a proxy.
#[derive(Clone, PartialEq)]
pub(super) enum Route {
    /// No proxy.
    Direct,
    /// HTTP proxy, asked with `CONNECT`, and the header with its credentials.
    Http(Uri, Option<HeaderValue>),
    /// SOCKS5 proxy, user and password.
    Socks5(Uri, Option<(String, String)>),
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Http(proxy, _) | Self::Socks5(proxy, _) => proxy.fmt(f),
        }
    }
}

impl Route {
    /// Parses `proxy-url` of a kubeconfig.
    pub(super) fn of_kubeconfig(url: &str) -> Result<Self, String> {
        Self::parse(url, "proxy-url")
    }

    /// Parses a proxy of the environment, where the scheme is optional.
    pub(super) fn of_environment(url: &str) -> Result<Self, String> {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        Self::parse(&url, "HTTPS_PROXY")
            .map_err(|error| format!("{error}; put the server's host into NO_PROXY if it can be reached directly"))
    }

    fn parse(url: &str, name: &str) -> Result<Self, String> {
        // the text before an `@` may be a password
        let expected = |problem: &str| format!("{problem} in {name}: expected http://HOST:PORT or socks5://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| expected("invalid address"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(expected("invalid address"));
        };
        let default_port = match scheme {
            "http" => 80,
            "socks5" | "socks5h" => 1080,
            other => return Err(expected(&format!("unsupported proxy {other}://"))),
        };
        let proxy = with_port(&uri, default_port).ok_or_else(|| expected("invalid address"))?;
        let user_info = authority.as_str().rsplit_once('@').map(|(user_info, _)| user_info);
        if scheme == "http" {
            let header = user_info.map(|user_info| {
                let plain = percent_decode_str(user_info).collect::<Vec<u8>>();
                HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(plain)))
            });
            return Ok(Self::Http(proxy, header.transpose().map_err(|_| expected("invalid password"))?));
        }
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = user_info.map(|user_info| user_info.split_once(':').unwrap_or((user_info, "")));
        Ok(Self::Socks5(proxy, user.map(|(user, password)| (decoded(user), decoded(password)))))
    }

    /// Makes the connector of this route.
    pub(super) fn connector(&self, tcp: HttpConnector) -> Connector {
        match self.clone() {
            Self::Direct => Connector::Direct(tcp),
            Self::Http(proxy, header) => {
                let tunnel = Tunnel::new(proxy, tcp);
                Connector::Http(if let Some(header) = header { tunnel.with_auth(header) } else { tunnel })
            }
            Self::Socks5(proxy, user) => {
                let socks = SocksV5::new(proxy, tcp);
                Connector::Socks5(if let Some((user, password)) = user {
                    socks.with_auth(user, password)
                } else {
                    socks
                })
            }
        }
    }
}

/// Returns the address of a server without user and path, with a port.
fn with_port(uri: &Uri, default: u16) -> Option<Uri> {
    let authority = format!("{}:{}", uri.host().filter(|host| !host.is_empty())?, uri.port_u16().unwrap_or(default));
    let authority: Authority = authority.parse().ok()?;
    Uri::builder().scheme(uri.scheme_str()?).authority(authority).path_and_query("/").build().ok()
}

/// Connector of one route.
#[derive(Clone)]
pub(super) enum Connector {
    Direct(HttpConnector),
    Http(Tunnel<HttpConnector>),
    Socks5(SocksV5<HttpConnector>),
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(tcp) => tcp.poll_ready(context).map_err(Into::into),
            Self::Http(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
            Self::Socks5(socks) => socks.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        // a proxy needs the port, and its connector would take 443 for http:// too
        let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
        let target = with_port(&server, default);
        let connecting = match self {
            Self::Direct(tcp) => return tcp.call(server).map(|result| result.map_err(Into::into)).boxed(),
            Self::Http(tunnel) => {
                tunnel.call(target.unwrap_or(server)).map(|result| result.map_err(BoxError::from)).boxed()
            }
            Self::Socks5(socks) => {
                socks.call(target.unwrap_or(server)).map(|result| result.map_err(BoxError::from)).boxed()
            }
        };
        async move {
            let late = |_| format!("the proxy did not connect within {CONNECT_TIMEOUT:?}");
            timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_addresses_are_parsed_with_defaults() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        for (url, expected) in [
            ("http://proxy.example", Route::Http(uri("http://proxy.example:80"), None)),
            ("http://[::1]:3128/", Route::Http(uri("http://[::1]:3128"), None)),
            (
                "http://me:pa%40ss@proxy:3128",
                Route::Http(uri("http://proxy:3128"), Some(HeaderValue::from_static("Basic bWU6cGFAc3M="))),
            ),
            ("socks5://proxy", Route::Socks5(uri("socks5://proxy:1080"), None)),
            (
                "socks5h://me:pa%40ss@proxy:99",
                Route::Socks5(uri("socks5h://proxy:99"), Some(("me".to_owned(), "pa@ss".to_owned()))),
            ),
        ] {
            assert_eq!(Route::of_kubeconfig(url), Ok(expected), "{url}");
        }
        assert_eq!(Route::of_environment("proxy:3128"), Ok(Route::Http(uri("http://proxy:3128"), None)));
    }

    #[test]
    fn unsupported_proxy_is_named_without_password() {
        for (url, expected) in [
            (
                "https://me:s3cret@proxy",
                "unsupported proxy https:// in proxy-url: expected http://HOST:PORT or socks5://",
            ),
            ("proxy:3128", "invalid address in proxy-url"),
            ("ftp://proxy", "unsupported proxy ftp://"),
            ("http://s3cret pass@x", "invalid address"),
        ] {
            let error = Route::of_kubeconfig(url).unwrap_err();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{url}: {error}");
        }
        assert!(Route::of_environment("https://proxy").unwrap_err().contains("NO_PROXY"));
    }
}
