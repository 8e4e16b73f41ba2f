//! HTTP: health, metrics, state, and the Kubernetes read paths, on a thread of its own. Reads only, but that handlers
//! can be paused and resumed.
//!
//! **Invariant:** nothing here writes to a cache, and nothing a request does can stop an actor (I7).

mod auth;
mod control;
mod discovery;
mod events;
mod kube_api;
mod lookup;
mod plain;
mod status;
mod status_object;
mod tls;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode},
    middleware,
    routing::{any, get, post},
};
use axum_server::tls_rustls::RustlsConfig;
use serde_json::Value;
use tokio::sync::watch;

pub use self::{auth::TokenSource, tls::TlsFiles};
use crate::{
    handler::status::{Control, HandlerView},
    journal::Journal,
    registry::Registry,
    subscribe::hub::Hub,
};

/// How many lists are put together at a time; others wait.
const LISTS_AT_ONCE: usize = 2;

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
    snapshots: Arc<kube_api::Snapshots>,
}

impl ServeState {
    /// Makes the state.
    pub fn new(
        registry: Arc<Registry>,
        handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
        control: HandlerControl,
        journal: Journal,
        hub: Arc<Hub>,
    ) -> Self {
        Self {
            registry,
            handlers,
            control,
            journal,
            hub,
            snapshots: Arc::new(kube_api::Snapshots::new(rand::random())),
        }
    }
}

/// A running server; dropping it closes the listener and ends the thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Server {
    /// Returns where it listens: the port, where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Which paths are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Everything.
    Full,
    /// `/livez /readyz /healthz /metrics` alone (`probe_listen`).
    Probes,
}

/// Who may ask, and what the way there is protected by; nothing by default.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Requests need this token.
    pub token: Option<TokenSource>,
    /// HTTPS instead of HTTP.
    pub tls: Option<TlsFiles>,
}

/// Starts a server.
///
/// # Errors
/// When the address cannot be bound, or the certificate cannot be used.
pub fn start(listen: SocketAddr, surface: Surface, protection: Protection, state: ServeState) -> io::Result<Server> {
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    bound_unsent(&listener);
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let Protection { token, tls } = protection;
    let tls = tls.map(|files| load(&files).map(|config| (files, config))).transpose()?;
    let router = router(surface, state).layer(middleware::from_fn_with_state(token, auth::guard));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LISTS_AT_ONCE)
        .thread_name("http-list")
        .build()?;
    thread::Builder::new().name(format!("http-{}", address.port())).spawn(move || {
        runtime.block_on(async move {
            tokio::select! {
                _ = stopped.changed() => {} // an error: the server was dropped
                served = serve(listener, router, tls) => {
                    if let Err(error) = served {
                        tracing::error!(%error, "HTTP server ended");
                    }
                }
            }
        });
    })?;
    Ok(Server { address, _stop: stop })
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

/// Reads the certificate; on a thread of its own, as the caller's may be one of a runtime, where none can be waited for.
fn load(files: &TlsFiles) -> io::Result<RustlsConfig> {
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            runtime.block_on(files.load())
        });
        loading.join().unwrap_or_else(|_| Err(io::Error::other("reading the certificate has panicked")))
    })
}

async fn serve(listener: TcpListener, router: Router, tls: Option<(TlsFiles, RustlsConfig)>) -> io::Result<()> {
    match tls {
        Some((files, config)) => tls::serve(listener, router, files, config).await,
        None => plain::serve(tokio::net::TcpListener::from_std(listener)?, router).await,
    }
}

fn router(surface: Surface, state: ServeState) -> Router {
    let probes = Router::new()
        .route("/livez", get(status::livez))
        .route("/readyz", get(status::readyz))
        .route("/healthz", get(status::healthz))
        .route("/metrics", get(status::metrics));
    let router = match surface {
        Surface::Probes => probes,
        Surface::Full => probes
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
    router.fallback(no_such_path).with_state(state)
}

async fn kube_api(State(state): State<ServeState>, request: Request) -> Response<Body> {
    let ServeState { registry, snapshots, .. } = state;
    kube_api::answer(registry, snapshots, request.method(), request.uri(), request.headers()).await
}

async fn version() -> Json<Value> {
    Json(discovery::version())
}

/// What the API server says, too.
async fn no_such_path() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}
