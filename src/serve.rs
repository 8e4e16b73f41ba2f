//! HTTP server, on a separate thread: health, metrics, state, and the Kubernetes read paths. All requests are reads, except
//! those that control handlers.
//!
//! **Invariant:** requests never write to a cache, and no request can stop an actor (I7).

mod accept;
mod api_error;
mod auth;
mod browser;
mod budget;
mod connection;
mod control;
pub(crate) mod discovery;
mod events;
mod every_minute;
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
    time::{MissedTickBehavior, interval},
};

pub use self::{
    api_error::ApiError,
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

/// Divisor of `max_response_bytes` for the separate budget of `/metrics`.
const METRICS_SHARE: u64 = 16;

/// Maximum number of lists that are built at a time; others wait.
const LISTS_AT_ONCE: usize = 2;

/// Maximum number of lists that wait to be built.
const LISTS_WAITING: usize = 64;

/// Interval at which expired snapshots of paged lists are dropped.
const EXPIRE: Duration = Duration::from_secs(30);

/// Maximum bytes of a connection in the kernel that are not sent yet.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Function that controls the handler of this name. It returns the number of replayed events and the handler's view, or
/// `None` if no handler has the name.
pub type HandlerControl = Arc<dyn Fn(&str, Control) -> Option<(u64, HandlerView)> + Send + Sync>;

/// State from which requests are answered.
#[derive(Clone)]
pub struct ServeState {
    /// Watched types and their caches.
    pub registry: Arc<Registry>,
    /// Returns the views of the handlers.
    pub handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
    /// Pauses, resumes and replays handlers.
    pub control: HandlerControl,
    /// Journal with the waiting events.
    pub journal: Journal,
    /// Source of event streams.
    pub hub: Arc<Hub>,
    /// URL of the API server, without credentials.
    pub server: Arc<str>,
    snapshots: Arc<kube_api::Snapshots>,
    budget: Arc<ResponseBudget>,
    /// Permits for streams: each open stream holds one.
    streams: Arc<Semaphore>,
    /// Permits for lists: a request holds one while its list waits to be built or is being built.
    lists: Arc<Semaphore>,
}

impl ServeState {
    /// Creates the state of one server with these limits.
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
            snapshots: Arc::new(kube_api::Snapshots::new()),
            budget: ResponseBudget::new(limits.max_response_bytes),
            streams: Arc::new(Semaphore::new(limits.max_streams())),
            lists: Arc::new(Semaphore::new(LISTS_WAITING)),
        }
    }
}

/// Running server; dropping it closes the listener and ends the thread.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl HttpServer {
    /// Returns the address of the listener, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Paths that a server serves.
#[derive(Clone, Debug)]
pub enum Surface {
    /// Everything, for clients that are accepted.
    Full(ListenerAccess),
    /// Only `/livez /readyz /healthz /metrics`, for every client (`probe_listen`).
    Probes,
}

/// Address and protection of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Paths that are served.
    pub surface: Surface,
    /// Certificate for HTTPS; without one, HTTP.
    pub tls: Option<TlsFiles>,
    /// Limits of connections and responses.
    pub limits: ConnectionLimits,
}

/// Starts a server. Reads the certificate, if there is one: blocks briefly.
///
/// # Errors
/// Fails if the address cannot be bound, or if the certificate cannot be used.
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
                _ = stopped.changed() => {} // an error means that the server was dropped
                () = Listener { socket: listener, certificate, router, limits, budget, metrics_budget }.serve() => {}
            }
        });
    })?;
    Ok(HttpServer { address, _stop: stop })
}

/// Drops expired snapshots, because they hold objects. Continues until the runtime ends.
async fn expire(snapshots: Arc<kube_api::Snapshots>) {
    let mut due = interval(EXPIRE);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        snapshots.expire();
    }
}

/// Limits the unsent bytes of each connection in the kernel to `UNSENT_BYTES_MAX`. Without the limit, they can reach 4 MB if
/// a client does not read. They count towards the engine's control group, and writing them takes time from other
/// subscribers. Bytes in transit are not limited, so distant connections stay as fast. Connections inherit the option from
/// the listener (tcp(7)).
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
        .route("/healthz", get(status::readyz))
        .route("/metrics", get(status::metrics));
    let router = match &surface {
        Surface::Probes => probes,
        Surface::Full(_) => probes
            .route("/v1/resources", get(status::resources))
            .route("/v1/handlers", get(status::handlers))
            .route("/v1/events", get(events::events))
            .route("/v1/handlers/{name}/{action}", post(control::control))
            .route("/version", get(|| async { Json(discovery::version()) }))
            .route("/api", any(kube_api::answer))
            .route("/apis", any(kube_api::answer))
            .route("/api/{*path}", any(kube_api::answer))
            .route("/apis/{*path}", any(kube_api::answer)),
    };
    let router = router.fallback(no_such_path).with_state(state);
    match surface {
        Surface::Probes => router,
        Surface::Full(access) => router.layer(middleware::from_fn_with_state(auth::Gate::new(access), auth::guard)),
    }
}

/// Returns the same response as the API server.
async fn no_such_path() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}
