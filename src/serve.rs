//! HTTP server, on a separate thread: health, metrics, state, and the Kubernetes read paths. All requests are reads, except
//! those that control handlers.
//!
//! **Invariant:** requests never write to a cache, and no request can stop an actor (E7).

mod accept;
mod api_error;
mod auth;
mod browser;
mod budget;
mod connection;
mod control;
pub(crate) mod discovery;
mod events;
pub(crate) mod kube_api;
mod listener;
mod status;
mod tls;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use axum::{
    Json, Router,
    http::StatusCode,
    middleware,
    routing::{any, get, post},
};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};

pub(crate) use self::api_error::ApiError;
use self::{auth::Gate, budget::ResponseBudget, listener::Listener, tls::Certificate};
use crate::{config::Http, delivery::handlers::RunningHandlers, subscribe::hub::Hub};

/// Maximum number of open connections of `probe_listen`.
pub(crate) const PROBE_CONNECTIONS: u32 = 64;

/// Number by which `max_response_bytes` is divided. The quotient is the separate budget of `/metrics`.
const METRICS_SHARE: u64 = 16;

/// Maximum number of lists that are built at a time; others wait.
const LISTS_AT_ONCE: usize = 2;

/// Maximum number of lists that wait to be built or are being built.
const LISTS_WAITING: usize = 64;

/// Interval at which expired snapshots of paged lists are dropped.
const EXPIRE: Duration = Duration::from_secs(30);

/// Maximum number of unsent bytes that the kernel holds for a connection.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Everything that a server needs to answer requests.
#[derive(Clone)]
pub(crate) struct ServeState {
    /// Source of event streams. It also gives access to the watched types and to the journal.
    hub: Arc<Hub>,
    handlers: RunningHandlers,
    /// URL of the API server, without credentials.
    server: Arc<str>,
    http: Arc<Http>,
    snapshots: Arc<kube_api::Snapshots>,
    budget: Arc<ResponseBudget>,
    /// Permits for streams: each open stream holds one.
    streams: Arc<Semaphore>,
    /// Permits for lists: a request holds one while its list waits to be built or is being built.
    lists: Arc<Semaphore>,
}

impl ServeState {
    /// Creates the state that all servers of the `[http]` section share.
    pub(crate) fn new(hub: Arc<Hub>, handlers: RunningHandlers, server: &str, http: &Http) -> Self {
        Self {
            hub,
            handlers,
            server: server.into(),
            snapshots: Arc::new(kube_api::Snapshots::new()),
            budget: ResponseBudget::new(http.max_response_bytes),
            streams: Arc::new(Semaphore::new(max_streams(http.max_connections))),
            lists: Arc::new(Semaphore::new(LISTS_WAITING)),
            http: Arc::new(http.clone()),
        }
    }
}

/// Returns the maximum number of open streams. Up to 64 connections are left for other requests.
fn max_streams(max_connections: u32) -> usize {
    max_connections.saturating_sub((max_connections / 16).clamp(1, 64)).max(1) as usize
}

/// Running server; dropping it closes the listener and ends the thread.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl HttpServer {
    /// Returns the address of the listener, with the actual port if port 0 was requested.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Paths that a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// Everything, for clients that are accepted (`listen`).
    Full,
    /// Only `/livez /readyz /healthz /metrics`, for every client and without TLS (`probe_listen`).
    Probes,
}

/// Starts a server on an address. Blocks briefly to read the certificate, if there is one.
///
/// # Errors
/// Fails if the address cannot be bound, or if the certificate cannot be used.
pub(crate) fn start(address: SocketAddr, surface: Surface, state: ServeState) -> io::Result<HttpServer> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    bound_unsent(&listener);
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let http = Arc::clone(&state.http);
    let (tls, max_connections, budget) = match surface {
        Surface::Full => (http.tls.files(), http.max_connections, Arc::clone(&state.budget)),
        Surface::Probes => (None, PROBE_CONNECTIONS, ResponseBudget::new(http.max_response_bytes)),
    };
    let max_connections = max_connections as usize;
    let certificate = tls.map(|(cert, key)| Certificate::load([cert.clone(), key.clone()])).transpose()?;
    let metrics_budget = ResponseBudget::new(http.max_response_bytes / METRICS_SHARE);
    let snapshots = Arc::clone(&state.snapshots);
    let router = router(surface, state);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LISTS_AT_ONCE)
        .thread_name("http-list")
        .build()?;
    thread::Builder::new().name(format!("http-{}", address.port())).spawn(move || {
        runtime.block_on(async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "HTTP server ended"),
            };
            if let Some(certificate) = certificate.clone() {
                tokio::spawn(certificate.follow());
            }
            tokio::spawn(expire(snapshots));
            let server = Listener { certificate, router, http, max_connections, budget, metrics_budget };
            tokio::select! {
                _ = stopped.changed() => {} // an error means that the server was dropped
                () = server.serve(listener) => {}
            }
        });
    })?;
    Ok(HttpServer { address, _stop: stop })
}

/// Drops expired snapshots, because they hold objects. Continues until the runtime ends.
async fn expire(snapshots: Arc<kube_api::Snapshots>) {
    loop {
        sleep(EXPIRE).await;
        snapshots.expire();
    }
}

/// Sets `TCP_NOTSENT_LOWAT` of the listener to `UNSENT_BYTES_MAX`; connections inherit the option (tcp(7)). Without this limit, the
/// kernel holds up to 4 MB of unsent bytes for a client that does not read. These bytes count towards the memory of the engine's
/// control group, and the time to write them delays other subscribers. The limit excludes bytes in transit, so it does not slow
/// down distant connections.
fn bound_unsent(listener: &TcpListener) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(listener).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        tracing::debug!(%error, "failed to set TCP_NOTSENT_LOWAT");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = listener;
}

fn router(surface: Surface, state: ServeState) -> Router {
    let http = Arc::clone(&state.http);
    let probes = Router::new()
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/healthz", get(status::readyz))
        .route("/metrics", get(status::metrics));
    let router = match surface {
        Surface::Probes => probes,
        Surface::Full => probes
            .route("/v1/resources", get(status::resources))
            .route("/v1/handlers", get(status::handlers))
            .route("/v1/events", get(events::events))
            .route("/v1/handlers/{name}/{action}", post(control::control))
            .route("/version", get(|| async { Json(discovery::version()) }))
            // The client for Python ends these three paths with a slash.
            .route("/version/", get(|| async { Json(discovery::version()) }))
            .route("/api", any(kube_api::answer))
            .route("/api/", any(kube_api::answer))
            .route("/apis", any(kube_api::answer))
            .route("/apis/", any(kube_api::answer))
            .route("/api/{*path}", any(kube_api::answer))
            .route("/apis/{*path}", any(kube_api::answer))
            .route("/openapi/{*path}", any(no_schemas)),
    };
    let router = router.fallback(no_such_path).with_state(state);
    match surface {
        Surface::Probes => router,
        Surface::Full => router.layer(middleware::from_fn_with_state(Gate::new(http), auth::guard)),
    }
}

/// Returns the response to a request for schemas, which `kubectl explain` and the validation of `kubectl apply` need. kubectl shows
/// the text of an answer only if it is no `Status`, and its code is none of the well-known ones.
async fn no_schemas() -> (StatusCode, &'static str) {
    let text = "deltabus is a read-only cache without schemas: send writes and kubectl explain to the API server, with kubectl \
                without --server or with another --context";
    (StatusCode::NOT_IMPLEMENTED, text)
}

/// Returns the response to an unknown path, the same as that of the API server.
async fn no_such_path() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_leave_connections_for_other_requests() {
        assert_eq!([1, 2, 16, 64, 1024, 10_000].map(max_streams), [1, 1, 15, 60, 960, 9_936]);
    }
}
