//! A server that sends generated objects without storing them: lists, pages, streaming lists, watches and bookmarks of one
//! type. It forwards other requests of an engine (discovery, rights, definitions, namespaces) to a simulated API server.

mod stream;

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State, rejection::QueryRejection},
    response::{IntoResponse as _, Response},
    routing::get,
    serve::ListenerExt as _,
};
use http::{StatusCode, Uri, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use self::stream::Watch;
use super::{Generator, Shape, States, orders::Stamp};
use crate::{
    mutex::lock,
    simulator::{Simulator, SimulatorOptions, Workload},
};

/// Time between two steps of a flow.
const FLOW_STEP: Duration = Duration::from_millis(5);
/// Number of changes that a flood adds each time a watch has sent the last change.
const FLOOD_STEP: u64 = 256;
/// Timeout for a single change to reach a socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of generated objects on its own thread; dropping it stops it.
#[derive(Debug)]
pub struct ReplayServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Runtime of the server; `None` while it is dropped.
    runtime: Option<Runtime>,
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
    client: Client<HttpConnector, Body>,
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
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("replay").enable_all().build()?;
        let listener = {
            let _in_runtime = runtime.enter();
            TcpListener::from_std(listener)?
        };
        // Without this option, small frames wait for acknowledgements.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let path = shared.generator.resource().path(None);
        let routes = Router::new().route(&path, get(answer)).fallback(forward).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, routes).await });
        runtime.spawn(flow(Arc::clone(&shared)));
        Ok(Self { address, shared, runtime: Some(runtime), _simulator: simulator })
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

    /// Makes single changes at the interval `every`. Returns the times at which they were written to the watch's socket.
    /// Changes that no watch accepted are left out.
    pub async fn tick(&self, changes: u64, every: Duration) -> Vec<Stamp> {
        *lock(&self.shared.sent) = Some(Vec::new());
        for _ in 0..changes {
            sleep(every).await;
            self.release(1);
        }
        let deadline = Instant::now() + SEND_TIMEOUT;
        let sent = || lock(&self.shared.sent).as_ref().map_or(0, |sent| sent.len() as u64);
        while sent() < changes && Instant::now() < deadline {
            sleep(FLOW_STEP).await;
        }
        lock(&self.shared.sent).take().unwrap_or_default()
    }
}

impl Drop for ReplayServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // unlike a drop, this is allowed within another runtime
        }
    }
}

/// Query of a request for the generated type.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    watch: String,
    resource_version: String,
    send_initial_events: String,
    allow_watch_bookmarks: String,
    timeout_seconds: Option<u64>,
    limit: Option<u64>,
    #[serde(rename = "continue")]
    continue_token: String,
    label_selector: String,
    field_selector: String,
}

fn is_true(text: &str) -> bool {
    matches!(text, "true" | "1")
}

type Refusal = (StatusCode, Json<Value>);

fn refuse(code: StatusCode, message: &str) -> Refusal {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""), "code": code.as_u16(),
    });
    (code, Json(status))
}

/// Answers a request for the generated type.
async fn answer(
    State(shared): State<Arc<Shared>>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(asked) = asked.map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.to_string()))?;
    if !asked.label_selector.is_empty() || !asked.field_selector.is_empty() {
        return Err(refuse(StatusCode::BAD_REQUEST, "the replay server knows no selectors"));
    }
    let body = if is_true(&asked.watch) { watch(shared, &asked) } else { list(shared, &asked) };
    let unknown = || refuse(StatusCode::BAD_REQUEST, "resourceVersion or continue is not of this server");
    let body = body.ok_or_else(unknown)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn watch(shared: Arc<Shared>, asked: &Asked) -> Option<Body> {
    let from = match asked.resource_version.as_str() {
        _ if is_true(&asked.send_initial_events) => None,
        "" | "0" => None,
        version => Some(shared.generator.change_of(version.parse().ok()?)),
    };
    // A watch without version begins with the existing objects, and sends no bookmark after them.
    Some(Watch::open(shared, from, asked).into_body())
}

fn list(shared: Arc<Shared>, asked: &Asked) -> Option<Body> {
    let head = shared.head.borrow().changes;
    let (at, first) = match asked.continue_token.split_once('.') {
        Some((at, first)) => (at.parse().ok().filter(|at| *at <= head)?, first.parse().ok()?),
        None if asked.continue_token.is_empty() => (head, 0),
        None => return None,
    };
    Some(stream::page(shared, at, first, asked.limit.filter(|limit| *limit > 0)))
}

/// Forwards a request to the simulated API server.
async fn forward(State(shared): State<Arc<Shared>>, mut request: Request) -> Result<Response, Refusal> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri = format!("http://{}{path}", shared.behind).parse::<Uri>();
    *request.uri_mut() = uri.map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.to_string()))?;
    let response = shared.client.request(request).await;
    let response = response.map_err(|error| refuse(StatusCode::BAD_GATEWAY, &error.to_string()))?;
    Ok(response.map(Body::new))
}

/// Makes the changes of a flow.
async fn flow(shared: Arc<Shared>) {
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
