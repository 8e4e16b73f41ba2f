//! A server that sends generated objects without storing them: lists, pages, streaming lists, watches and bookmarks of one
//! type. It forwards other requests of an engine (discovery, rights, definitions, namespaces) to a simulated API server.

mod answer;
mod stream;

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::{Instant, MissedTickBehavior, interval},
};

use super::{Generator, Shape, States, orders::Stamp};
use crate::{
    mutex::lock,
    simulator::{Simulator, SimulatorOptions, Workload},
};

/// A response body.
type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, hyper::Error>;

/// Time between two steps of a flow.
const FLOW_STEP: Duration = Duration::from_millis(5);
/// Number of changes that a flood adds each time a watch has sent the last one.
const FLOOD_STEP: u64 = 256;
/// Timeout for a single change to reach a socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of generated objects, with its own thread and runtime; dropping it stops it.
#[derive(Debug)]
pub struct ReplayServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _simulator: Simulator,
}

/// State that all connections share.
#[derive(Debug)]
struct Shared {
    generator: Generator,
    /// Number of changes so far, and the rate of further ones.
    head: watch::Sender<Head>,
    /// States for the last list.
    states: Mutex<Arc<States>>,
    /// Times at which single changes were written to a socket; `None` while they are not recorded.
    sent: Mutex<Option<Vec<Stamp>>>,
    /// Address of the simulated API server.
    behind: SocketAddr,
    client: Client<HttpConnector, hyper::body::Incoming>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    changes: u64,
    /// Changes per second.
    flow: u64,
    flood: bool,
}

impl Shared {
    /// Returns the states after `change`.
    fn states(&self, change: u64) -> Arc<States> {
        let mut kept = lock(&self.states);
        if kept.at() != change {
            let mut states = if kept.at() < change { States::clone(&kept) } else { States::default() };
            states.advance(&self.generator, change);
            *kept = Arc::new(states);
        }
        Arc::clone(&kept)
    }

    /// Continues a flood after a watch has sent all changes.
    fn flood_behind(&self, taken: u64) {
        let head = self.head.borrow();
        let is_due = head.flood && head.changes == taken;
        drop(head);
        if is_due {
            self.head.send_modify(|head| head.changes = head.changes.max(taken + FLOOD_STEP));
        }
    }
}

impl ReplayServer {
    /// Starts a server on a free loopback port.
    ///
    /// # Errors
    /// Fails if there is no port or no thread.
    pub fn start(generator: Generator) -> io::Result<Self> {
        let simulator = Simulator::start(SimulatorOptions::default())?;
        if generator.shape() == Shape::Custom {
            let defined = Workload::new(1).load_types(simulator.store(), 1, 0);
            defined.map_err(|error| io::Error::other(error.to_string()))?;
        }
        let listener = StdListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            generator,
            head: watch::Sender::default(),
            states: Mutex::default(),
            sent: Mutex::default(),
            behind: simulator.address(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("replay".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, &serving) => {}
                    () = flow(&serving) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread), _simulator: simulator })
    }

    /// Returns the URL, such as `http://127.0.0.1:40001`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the generator of its objects.
    pub fn generator(&self) -> &Generator {
        &self.shared.generator
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.shared.head.borrow().changes
    }

    /// Makes changes as fast as watches accept them.
    pub fn release(&self, changes: u64) {
        self.shared.head.send_modify(|head| head.changes += changes);
    }

    /// Starts a flow with this number of changes per second.
    pub fn flow(&self, per_second: u64) {
        self.shared.head.send_modify(|head| head.flow = per_second);
    }

    /// Starts making changes as fast as a watch accepts them.
    pub fn flood(&self) {
        self.shared.head.send_modify(|head| {
            head.flood = true;
            head.changes += FLOOD_STEP; // wakes the watches
        });
    }

    /// Ends flow and flood; returns the number of changes so far.
    pub fn hold(&self) -> u64 {
        self.shared.head.send_modify(|head| (head.flow, head.flood) = (0, false));
        self.changes()
    }

    /// Makes single changes, one every `every`. Returns the times at which they were written to the watch's socket, without
    /// those that no watch accepted. Blocks meanwhile.
    pub fn tick(&self, changes: u64, every: Duration) -> Vec<Stamp> {
        *lock(&self.shared.sent) = Some(Vec::new());
        let sent = || lock(&self.shared.sent).as_ref().map_or(0, |sent| sent.len() as u64);
        for _ in 0..changes {
            thread::sleep(every);
            self.release(1);
        }
        let mut waited = Duration::ZERO;
        while sent() < changes && waited < SEND_TIMEOUT {
            thread::sleep(FLOW_STEP);
            waited += FLOW_STEP;
        }
        lock(&self.shared.sent).take().unwrap_or_default()
    }
}

impl Drop for ReplayServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the replay server's thread has panicked");
        }
    }
}

async fn serve(listener: StdListener, shared: &Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(FLOW_STEP).await;
            continue;
        };
        drop(stream.set_nodelay(true)); // best effort: otherwise small frames wait for acknowledgements
        let shared = Arc::clone(shared);
        let service = hyper::service::service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(answer::answer(shared, request).await) }
        });
        tokio::spawn(async move {
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = serving.await {
                tracing::debug!(%error, "replay: connection ended");
            }
        });
    }
}

/// Makes the changes of a flow.
async fn flow(shared: &Shared) {
    let mut head = shared.head.subscribe();
    loop {
        if head.wait_for(|head| head.flow > 0).await.is_err() {
            return;
        }
        let mut steps = interval(FLOW_STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (began, per_second, mut made) = (Instant::now(), head.borrow().flow, 0);
        while head.borrow().flow == per_second {
            steps.tick().await;
            let due = u64::try_from(began.elapsed().as_micros()).unwrap_or_default() * per_second / 1_000_000;
            shared.head.send_modify(|head| head.changes += due - made);
            made = due;
        }
    }
}
