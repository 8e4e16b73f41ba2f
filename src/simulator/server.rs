//! The HTTP side of the simulator: connections, and from a request to the store and back.

mod body;
mod discovery;
mod list;
mod request;
mod respond;
mod watch;

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    net::{SocketAddr, TcpListener as StdListener},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch as signal,
};

use super::{SimulatorOptions, faults::Faults, shared::SharedStore};

use crate::mutex::lock;

pub use request::SeenRequest;

/// How many requests the log keeps.
const REQUESTS_KEPT: usize = 10_000;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: SharedStore,
    pub(super) faults: Faults,
    pub(super) options: SimulatorOptions,
    requests: Mutex<VecDeque<SeenRequest>>,
    connections: AtomicUsize,
    connections_peak: AtomicUsize,
    watches: AtomicUsize,
    orders: signal::Sender<Orders>,
}

/// What the accept loop and the connections are told.
#[derive(Clone, Copy, Debug)]
struct Orders {
    listening: bool,
    stopped: bool,
    /// Connections of an earlier epoch are broken.
    epoch: u64,
}

impl Shared {
    pub(super) fn new(store: SharedStore, options: SimulatorOptions) -> Self {
        let (orders, _) = signal::channel(Orders { listening: true, stopped: false, epoch: 0 });
        Self {
            store,
            faults: Faults::new(options.seed),
            options,
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            connections_peak: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            orders,
        }
    }

    pub(super) fn requests(&self) -> Vec<SeenRequest> {
        lock(&self.requests).iter().cloned().collect()
    }

    pub(super) fn clear_requests(&self) {
        lock(&self.requests).clear();
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn connections_peak(&self) -> usize {
        self.connections_peak.load(Ordering::Relaxed)
    }

    pub(super) fn open_watches(&self) -> usize {
        self.watches.load(Ordering::Relaxed)
    }

    pub(super) fn close_connections(&self) {
        self.orders.send_modify(|orders| orders.epoch += 1);
    }

    pub(super) fn set_listening(&self, listening: bool) {
        self.orders.send_modify(|orders| orders.listening = listening);
    }

    pub(super) fn stop(&self) {
        self.orders.send_modify(|orders| orders.stopped = true);
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

/// Serves until told to stop.
pub(super) async fn serve(listener: StdListener, shared: Arc<Shared>) {
    let mut orders = shared.orders.subscribe();
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = TcpListener::from_std(listener).ok();
    loop {
        let now = *orders.borrow_and_update();
        if now.stopped {
            return;
        }
        if !now.listening {
            listener = None;
        } else if listener.is_none() {
            listener = bind(address).and_then(TcpListener::from_std).ok();
        }
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { return },
            accepted = accept(listener.as_ref()), if now.listening => {
                if let Some(stream) = accepted {
                    tokio::spawn(connection(stream, Arc::clone(&shared)));
                }
            }
        }
    }
}

/// Takes one connection; `None` after a moment where that fails.
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
    let line = Arc::new(Line::default());
    // best effort: without it small frames wait for acknowledgements
    drop(stream.set_nodelay(true));
    let wire = Wire { stream, line: Arc::clone(&line) };
    let open = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    shared.connections_peak.fetch_max(open, Ordering::Relaxed);
    let service =
        hyper::service::service_fn(|request| respond::respond(Arc::clone(&shared), Arc::clone(&line), request));
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(wire), service);
    let broken = orders.wait_for(|orders| orders.stopped || orders.epoch != epoch);
    tokio::select! {
        served = serving => if let Err(error) = served { tracing::debug!(%error, "simulator: connection ended") },
        _ = broken => {}
    }
    shared.connections.fetch_sub(1, Ordering::Relaxed);
}

/// What the answers on one connection can ask of it.
#[derive(Debug, Default)]
struct Line {
    reset: AtomicBool,
}

impl Line {
    /// Lets the connection end with RST instead of FIN.
    fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

/// A TCP stream that can end with a reset.
struct Wire {
    stream: TcpStream,
    line: Arc<Line>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.line.reset.load(Ordering::Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "simulator: the connection closes without a reset");
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(())); // a FIN first would spoil the reset
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
