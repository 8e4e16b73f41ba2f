//! HTTP: health, metrics, state, and the Kubernetes read paths, on a thread of its own. Reads only, but that handlers
//! can be paused and resumed.
//!
//! **Invariant:** nothing here writes to a cache, and nothing a request does can stop an actor (I7).

mod accept;
mod auth;
mod browser;
mod budget;
mod connection;
mod control;
mod discovery;
mod events;
mod every_minute;
pub(crate) mod kube_api;
mod listener;
mod lookup;
mod status;
mod status_object;
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
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode},
    middleware,
    routing::{any, get, post},
};
use serde_json::Value;
use tokio::{
    sync::{Semaphore, watch},
    time::{MissedTickBehavior, interval},
};

pub use self::{
    auth::{ListenerAccess, Token},
    browser::AllowedHosts,
    connection::ConnectionLimits,
    tls::TlsFiles,
};
use self::{budget::ResponseBudget, listener::Listener};
use crate::{
    delivery::status::{Control, HandlerView},
    journal::Journal,
    registry::Registry,
    subscribe::hub::Hub,
};

/// Part of `max_response_bytes` that `/metrics` has to itself: one in so many bytes.
const METRICS_SHARE: u64 = 16;

/// How many lists are put together at a time; others wait.
const LISTS_AT_ONCE: usize = 2;

/// Lists that may wait to be put together.
const LISTS_WAITING: usize = 64;

/// Interval at which expired snapshots of paged lists are dropped.
const EXPIRE: Duration = Duration::from_secs(30);

/// Bytes that may wait in the kernel, beside those on the way.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Asks something of the handler of a name: how many events it will deliver again, and how it is now; `None` where
/// there is no such handler.
pub type HandlerControl = Arc<dyn Fn(&str, Control) -> Option<(u64, HandlerView)> + Send + Sync>;

/// What requests are answered from.
#[derive(Clone)]
pub struct ServeState {
    /// The informers.
    pub registry: Arc<Registry>,
    /// Tells the handlers' state.
    pub handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
    /// Pauses handlers, and lets them go on.
    pub control: HandlerControl,
    /// What waits to be delivered, and how that is kept.
    pub journal: Journal,
    /// Streams events.
    pub hub: Arc<Hub>,
    /// URL of the API server, without credentials.
    pub server: Arc<str>,
    snapshots: Arc<kube_api::Snapshots>,
    budget: Arc<ResponseBudget>,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
    /// One permit for each list that may be put together or wait for it.
    lists: Arc<Semaphore>,
}

impl ServeState {
    /// Makes the state of one server with these limits.
    pub fn new(
        registry: Arc<Registry>,
        handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
        control: HandlerControl,
        journal: Journal,
        hub: Arc<Hub>,
        server: &str,
        limits: &ConnectionLimits,
    ) -> Self {
        Self {
            registry,
            handlers,
            control,
            journal,
            hub,
            server: server.into(),
            snapshots: Arc::new(kube_api::Snapshots::new(rand::random())),
            budget: ResponseBudget::new(limits.max_response_bytes),
            streams: Arc::new(Semaphore::new(limits.max_streams())),
            lists: Arc::new(Semaphore::new(LISTS_WAITING)),
        }
    }
}

/// A running server; dropping it closes the listener and ends the thread.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl HttpServer {
    /// Returns where it listens: the port, where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Paths that a server serves.
#[derive(Clone, Debug)]
pub enum Surface {
    /// Everything, to clients that are accepted.
    Full(ListenerAccess),
    /// `/livez /readyz /healthz /metrics` alone, to every client (`probe_listen`).
    Probes,
}

/// A server's address and protection.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Paths that are served.
    pub surface: Surface,
    /// HTTPS instead of HTTP.
    pub tls: Option<TlsFiles>,
    /// Limits of connections and answers.
    pub limits: ConnectionLimits,
}

/// Starts a server. Blocks on the disk for a moment where there is a certificate.
///
/// # Errors
/// When the address cannot be bound, or the certificate cannot be used.
pub fn start(options: ServeOptions, state: ServeState) -> io::Result<HttpServer> {
    let ServeOptions { listen, surface, tls, limits } = options;
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    bound_unsent(&listener);
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let certificate = tls.map(TlsFiles::load).transpose()?;
    let (budget, snapshots) = (Arc::clone(&state.budget), Arc::clone(&state.snapshots));
    let metrics_budget = ResponseBudget::new(limits.max_response_bytes / METRICS_SHARE);
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
            tokio::select! {
                _ = stopped.changed() => {} // an error: the server was dropped
                () = Listener { socket: listener, certificate, router, limits, budget, metrics_budget }.serve() => {}
            }
        });
    })?;
    Ok(HttpServer { address, _stop: stop })
}

/// Drops expired snapshots, which hold objects, until the runtime ends.
async fn expire(snapshots: Arc<kube_api::Snapshots>) {
    let mut due = interval(EXPIRE);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        snapshots.expire();
    }
}

/// Bounds what the kernel takes for a connection whose other side does not read, to `UNSENT_BYTES_MAX` in place of the 4 MB
/// that its buffer may grow to: that is memory of the engine's control group, and filling it takes the other subscribers' time.
/// What is on the way is not bounded, so a connection that is far away is as fast as it was. Connections have it from the
/// listener (tcp(7)).
fn bound_unsent(listener: &TcpListener) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(listener).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        tracing::debug!(%error, "failed to set TCP_NOTSENT_LOWAT");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = listener;
}

fn router(surface: Surface, state: ServeState) -> Router {
    let probes = Router::new()
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/healthz", get(status::healthz))
        .route("/metrics", get(status::metrics));
    let router = match &surface {
        Surface::Probes => probes,
        Surface::Full(_) => probes
            .route("/v1/resources", get(status::resources))
            .route("/v1/handlers", get(status::handlers))
            .route("/v1/events", get(events::events))
            .route("/v1/handlers/{name}/{action}", post(control::control))
            .route("/version", get(version))
            .route("/api", any(kube_api))
            .route("/apis", any(kube_api))
            .route("/api/{*path}", any(kube_api))
            .route("/apis/{*path}", any(kube_api)),
    };
    let router = router.fallback(no_such_path).with_state(state);
    match surface {
        Surface::Probes => router,
        Surface::Full(access) => router.layer(middleware::from_fn_with_state(auth::Gate::new(access), auth::guard)),
    }
}

async fn kube_api(State(state): State<ServeState>, request: Request) -> Response<Body> {
    kube_api::answer(state, request.method(), request.uri(), request.headers()).await
}

async fn version() -> Json<Value> {
    Json(discovery::version())
}

/// What the API server says, too.
async fn no_such_path() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}
