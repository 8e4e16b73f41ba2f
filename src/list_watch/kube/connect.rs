//! The HTTP client below a [`kube::Client`]: HTTP/1.1, one connection a watch, dead peers noticed.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{Config, client::ConfigExt};
use tower::{BoxError, ServiceBuilder};

/// Without a TCP connection after so long the server counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a connection may be silent before the kernel probes it, and the time between probes. HTTP/1.1 has no ping
/// of its own (T-5); a dead peer is known after three probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBES: u32 = 3;

/// How long an unused connection is kept. Less than load balancers do, so that few requests meet a closed one.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How much is read from a socket at once. A connection keeps a buffer of this size for as long as its watch lives, once
/// its first list has filled it: hyper's own 400 KiB would be most of what a type costs.
const READ_BUFFER: usize = 64 << 10;

/// Makes a client on the current tokio runtime.
///
/// It differs from the kube crate's own in the socket options, and in what is left out: its retries, which would be
/// silent, and its log lines, which would call each 404 an error.
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
