//! HTTP side of the simulator: connections, and the path from a request to the store and back.

mod discovery;
#[cfg(any(test, feature = "testing"))]
mod faults;
mod list;
mod protobuf;
mod request;
mod respond;
mod watch;

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse as _, Response},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::watch as signal,
};

use super::{ApiError, SimulatorOptions, shared::SharedStore};
use crate::mutex::lock;

#[cfg(any(test, feature = "testing"))]
use self::faults::respond;
pub(crate) use list::list_head;
pub(crate) use request::Call;
pub use request::{RequestKind, SeenRequest};
pub(crate) use watch::{WatchTimer, push_bookmark, push_event};

/// Number of requests that the log keeps.
const REQUESTS_KEPT: usize = 10_000;

/// A server in front of the simulator, for objects that are not in the store. It gets each request first.
pub(crate) trait Front: fmt::Debug + Send + Sync {
    /// Returns the body of a JSON answer; `None` leaves the request to the simulator.
    fn answer(self: Arc<Self>, call: &Call) -> Option<Result<Body, ApiError>>;
}

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: SharedStore,
    #[cfg(any(test, feature = "testing"))]
    pub(super) faults: super::Faults,
    front: Option<Arc<dyn Front>>,
    pub(super) options: SimulatorOptions,
    pub(super) requests: Mutex<VecDeque<SeenRequest>>,
    pub(super) connections: AtomicUsize,
    pub(super) connections_peak: AtomicUsize,
    pub(super) watches: AtomicUsize,
    orders: signal::Sender<Orders>,
}

/// Commands to the accept loop and the connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    pub(super) is_down: bool,
    pub(super) stopped: bool,
    /// Counter that is incremented to break all open connections: a connection closes when the counter changes.
    pub(super) epoch: u64,
}

impl Shared {
    pub(super) fn new(store: SharedStore, front: Option<Arc<dyn Front>>, options: SimulatorOptions) -> Self {
        Self {
            store,
            #[cfg(any(test, feature = "testing"))]
            faults: super::Faults::default(),
            front,
            options,
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            connections_peak: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            orders: signal::Sender::default(),
        }
    }

    /// Changes the commands.
    pub(super) fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(change);
    }

    fn saw(&self, request: SeenRequest) {
        let mut requests = lock(&self.requests);
        if requests.len() == REQUESTS_KEPT {
            requests.pop_front();
        }
        requests.push_back(request);
    }
}

/// Opens the listening socket.
pub(super) fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until stopped.
pub(super) async fn serve(listener: StdListener, shared: Arc<Shared>) {
    let mut orders = shared.orders.subscribe();
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = TcpListener::from_std(listener).ok();
    loop {
        let now = *orders.borrow_and_update();
        if now.stopped {
            return;
        }
        if now.is_down {
            listener = None;
        } else if listener.is_none() {
            listener = bind(address).and_then(TcpListener::from_std).ok();
        }
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { return },
            accepted = accept(listener.as_ref()), if !now.is_down => {
                if let Some(stream) = accepted {
                    tokio::spawn(connection(stream, Arc::clone(&shared)));
                }
            }
        }
    }
}

/// Accepts one connection. Without a listener, or after a failure, waits briefly and returns `None`.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    let accepted = match listener {
        Some(listener) => listener.accept().await.ok(),
        None => None,
    };
    if accepted.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    accepted.map(|(stream, _)| stream)
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut orders = shared.orders.subscribe();
    let epoch = orders.borrow().epoch;
    // without this option, small frames would wait for acknowledgements; an error is ignored
    drop(stream.set_nodelay(true));
    let open = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    shared.connections_peak.fetch_max(open, Ordering::Relaxed);
    let service = service_fn(|request| Box::pin(answer(Arc::clone(&shared), request)));
    let mut serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let broken = orders.wait_for(|orders| orders.stopped || orders.epoch != epoch);
    let served = tokio::select! {
        // no shutdown here: after a FIN, a fault could not reset the connection
        served = poll_fn(|cx| serving.poll_without_shutdown(cx)) => Some(served),
        _ = broken => None,
    };
    let mut stream = serving.into_parts().io.into_inner();
    match served {
        Some(Ok(())) => drop(stream.shutdown().await),
        Some(Err(error)) => {
            #[cfg(any(test, feature = "testing"))]
            faults::close(&stream, &error);
            tracing::debug!(%error, "simulator: connection ended");
        }
        None => {}
    }
    shared.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Answers one request. `Err` closes the connection without an answer; only a fault causes it.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response> {
    let (head, body) = request.into_parts();
    match Call::of(head) {
        Ok(call) => {
            shared.saw(call.seen.clone());
            respond(&shared, call, Body::new(body)).await
        }
        Err(error) => Ok(error.into_response()),
    }
}

#[cfg(not(any(test, feature = "testing")))]
async fn respond(shared: &Arc<Shared>, call: Call, body: Body) -> io::Result<Response> {
    Ok(respond::respond(shared, &call, body).await)
}

#[cfg(test)]
mod tests;
