//! HTTP client below a [`kube::Client`]: HTTP/1.1, one connection per watch, detection of dead peers.
//!
//! Reasons: `docs/decisions/0015-http-1.md`.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{Config, client::ConfigExt};
use tower::{BoxError, ServiceBuilder};

/// Longest time to open a TCP connection. After this time, the server counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without traffic after which the kernel probes a connection, and interval of further probes. HTTP/1.1 has no ping (T-5).
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Number of unanswered probes after which the peer counts as dead.
const KEEPALIVE_PROBES: u32 = 3;

/// Time after which an unused connection is closed. Load balancers close unused connections later, so few requests meet a
/// connection that is already closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a connection's read buffer. A list enlarges the buffer, and the buffer keeps this size during the later watch.
/// With hyper's default of 400 KiB, the buffer would be most of the memory that a type needs.
const READ_BUFFER: usize = 64 << 10;

/// Creates a client on the current tokio runtime.
///
/// Unlike the kube crate's own client, this client applies the limits of this module. It does not retry, because such retries
/// would be invisible. It does not log, because each 404 would be logged as an error.
pub(super) fn client(config: &Config) -> Result<kube::Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(config.connect_timeout.map_or(CONNECT_TIMEOUT, |limit| limit.min(CONNECT_TIMEOUT))));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let http = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .http1_max_buf_size(READ_BUFFER)
        .build::<_, kube::client::Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}
