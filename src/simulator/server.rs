//! HTTP side of the simulator: connections, and the path from a request to the store and back.

mod body;
mod discovery;
mod list;
mod request;
mod respond;
mod watch;

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::watch as signal,
};

use super::{SimulatorOptions, faults::Faults, shared::SharedStore};
use crate::mutex::lock;

pub use request::SeenRequest;

/// Number of requests that the log keeps.
const REQUESTS_KEPT: usize = 10_000;

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: SharedStore,
    pub(super) faults: Faults,
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
    /// Counter of breaks: connections of an earlier epoch are closed.
    pub(super) epoch: u64,
}

impl Shared {
    pub(super) fn new(store: SharedStore, options: SimulatorOptions) -> Self {
        Self {
            store,
            faults: Faults::default(),
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

/// Accepts one connection; returns `None` after a short wait if that fails.
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
    let resets = Arc::new(AtomicBool::new(false));
    // best effort: otherwise small frames wait for acknowledgements
    drop(stream.set_nodelay(true));
    let open = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    shared.connections_peak.fetch_max(open, Ordering::Relaxed);
    let service = hyper::service::service_fn(|request| {
        Box::pin(respond::respond(Arc::clone(&shared), Arc::clone(&resets), request))
    });
    let mut serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let broken = orders.wait_for(|orders| orders.stopped || orders.epoch != epoch);
    let served = tokio::select! {
        // a FIN would prevent a reset
        served = poll_fn(|cx| serving.poll_without_shutdown(cx)) => Some(served),
        _ = broken => None,
    };
    let mut stream = serving.into_parts().io.into_inner();
    if resets.load(Ordering::Relaxed)
        && let Err(error) = stream.set_zero_linger()
    {
        tracing::debug!(%error, "simulator: the connection closes without a reset");
    }
    match served {
        Some(Ok(())) => drop(stream.shutdown().await),
        Some(Err(error)) => tracing::debug!(%error, "simulator: connection ended"),
        None => {}
    }
    shared.connections.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
