//! A server that sends generated objects without storing them: lists, pages, streaming lists, watches and bookmarks of one
//! type. A simulated API server answers the other requests of an engine (discovery, rights, definitions, namespaces).

mod stream;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::Method;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use self::stream::Watch;
use super::{Generator, Shape, States, orders::Stamp};
use crate::{
    mutex::lock,
    simulator::{ApiError, Call, Front, Simulator, SimulatorOptions, Workload},
};

/// Time between two steps of a flow.
const FLOW_STEP: Duration = Duration::from_millis(5);
/// Number of changes that a flood makes whenever a watch has sent all changes so far.
const FLOOD_STEP: u64 = 256;
/// Longest wait of [`ReplayServer::tick`] after its last change, until a watch has sent all its changes.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of generated objects, on its own thread. Dropping this value stops the server.
#[derive(Debug)]
pub struct ReplayServer {
    simulator: Simulator,
    shared: Arc<Shared>,
}

/// State that all connections share.
#[derive(Debug)]
struct Shared {
    generator: Generator,
    /// Number of changes so far, and settings for further changes.
    head: watch::Sender<Head>,
    /// Last computed states of the objects. The next states are computed from these.
    states: Mutex<Arc<States>>,
    /// Versions of single changes, with the times at which a watch sent them; `None` while they are not recorded.
    sent: Mutex<Option<Vec<Stamp>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    changes: u64,
    flow: Option<Flow>,
    flood: bool,
}

/// Changes at a constant rate. No timer makes these changes: each call of [`Shared::changes`] makes the changes that are due.
#[derive(Clone, Copy, Debug)]
struct Flow {
    began: Instant,
    per_second: u64,
    made: u64,
}

impl Shared {
    /// Returns the number of changes so far.
    fn changes(&self) -> u64 {
        self.head.send_if_modified(|head| {
            let Some(flow) = &mut head.flow else { return false };
            let due = u64::try_from(flow.began.elapsed().as_micros()).unwrap_or_default() * flow.per_second / 1_000_000;
            let new = due - flow.made;
            flow.made = due;
            head.changes += new;
            new > 0
        });
        self.head.borrow().changes
    }

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

    /// Makes more changes during a flood if `taken`, the last change that a watch has sent, is the newest change.
    fn flood_behind(&self, taken: u64) {
        let head = self.head.borrow();
        let is_due = head.flood && head.changes == taken;
        drop(head);
        if is_due {
            self.head.send_modify(|head| head.changes = head.changes.max(taken + FLOOD_STEP));
        }
    }

    /// Answers a request for the generated type.
    fn send(self: Arc<Self>, call: &Call) -> Result<Body, ApiError> {
        if ["labelSelector", "fieldSelector"].iter().any(|name| !call.param(name).is_empty()) {
            return Err(ApiError::bad_request("the replay server knows no selectors"));
        }
        let unknown = || ApiError::bad_request("resourceVersion or continue is not of this server");
        if call.flag("watch") {
            let from = match call.param("resourceVersion") {
                _ if call.flag("sendInitialEvents") => None,
                "" | "0" => None,
                version => Some(self.generator.change_of(version.parse().map_err(|_| unknown())?)),
            };
            // A watch without version begins with the existing objects. Without `sendInitialEvents`, no bookmark follows them
            //
            return Ok(Watch::open(self, from, call)?.into_body());
        }
        let head = self.changes();
        let place = |token: &str| {
            let (at, first) = token.split_once('.')?;
            Some((at.parse().ok().filter(|at| *at <= head)?, first.parse().ok()?))
        };
        let (at, first) = match call.param("continue") {
            "" => (head, 0),
            token => place(token).ok_or_else(unknown)?,
        };
        let limit = call.number("limit")?.filter(|limit| *limit > 0);
        Ok(stream::page(self, at, first, limit))
    }
}

impl Front for Shared {
    fn answer(self: Arc<Self>, call: &Call) -> Option<Result<Body, ApiError>> {
        let is_of_type = call.method == Method::GET && call.seen.path == self.generator.resource().path(None);
        is_of_type.then(|| self.send(call))
    }
}

impl ReplayServer {
    /// Starts a server on a free loopback port.
    ///
    /// # Errors
    /// Fails if there is no port or no thread.
    pub fn start(generator: Generator) -> io::Result<Self> {
        let shape = generator.shape();
        let (head, states, sent) = (watch::Sender::default(), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { generator, head, states, sent });
        let front: Arc<dyn Front> = Arc::<Shared>::clone(&shared);
        let simulator = Simulator::start_behind(Some(front), SimulatorOptions::default())?;
        if shape == Shape::Custom {
            let defined = Workload::new(1).load_types(simulator.store(), 1, 0);
            defined.map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(Self { simulator, shared })
    }

    /// Returns the URL, such as `http://127.0.0.1:40001`.
    pub fn url(&self) -> String {
        self.simulator.url()
    }

    /// Returns the generator of the server's objects.
    pub fn generator(&self) -> &Generator {
        &self.shared.generator
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.shared.changes()
    }

    /// Makes this number of further changes, as fast as watches accept them.
    pub fn release(&self, changes: u64) {
        self.shared.head.send_modify(|head| head.changes += changes);
    }

    /// Starts a flow with this number of changes per second.
    pub fn flow(&self, per_second: u64) {
        let flow = Flow { began: Instant::now(), per_second, made: 0 };
        self.shared.head.send_modify(|head| head.flow = (per_second > 0).then_some(flow));
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
        self.changes();
        self.shared.head.send_modify(|head| (head.flow, head.flood) = (None, false));
        self.changes()
    }

    /// Makes this number of single changes, at the interval `every`. Returns the version of each change, with the time at which a
    /// watch sent it. Changes that no watch sent are left out.
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
