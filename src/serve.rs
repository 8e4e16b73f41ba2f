//! HTTP: health, metrics, state, and the Kubernetes read paths, on a thread of its own. Reads only.
//!
//! **Invariant:** nothing here writes to a cache, and nothing a request does can stop an actor (I7).

mod discovery;
mod kube_api;
mod lookup;
mod status;
mod status_object;

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
    routing::{any, get},
};
use serde_json::Value;
use tokio::sync::watch;

use crate::{handler::status::HandlerView, registry::Registry};

/// How many lists are put together at a time; others wait.
const LISTS_AT_ONCE: usize = 2;

/// What requests are answered from.
#[derive(Clone)]
pub struct ServeState {
    /// The informers.
    pub registry: Arc<Registry>,
    /// Tells the handlers' state.
    pub handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
    snapshots: Arc<kube_api::Snapshots>,
}

impl ServeState {
    /// Makes the state.
    pub fn new(registry: Arc<Registry>, handlers: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>) -> Self {
        Self { registry, handlers, snapshots: Arc::new(kube_api::Snapshots::new(rand::random())) }
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

/// Starts a server.
///
/// # Errors
/// When the address cannot be bound.
pub fn start(listen: SocketAddr, surface: Surface, state: ServeState) -> io::Result<Server> {
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let router = router(surface, state);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LISTS_AT_ONCE)
        .thread_name("http-list")
        .build()?;
    thread::Builder::new().name(format!("http-{}", address.port())).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            tokio::select! {
                _ = stopped.changed() => {} // an error: the server was dropped
                served = axum::serve(listener, router).into_future() => {
                    if let Err(error) = served {
                        tracing::error!(%error, "HTTP server ended");
                    }
                }
            }
        });
    })?;
    Ok(Server { address, _stop: stop })
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
