//! An HTTP server in this process, behind a gate.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use crate::support::receiver::Server;
use http::Response;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Manner, Sink};
use crate::support::gate::{Door, Gate};

/// The server of a webhook.
pub(crate) struct Hook {
    gate: Gate,
    refuses: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<Value>>>,
    _runtime: Runtime,
}

impl Hook {
    /// Starts the server.
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let (taken, refuses): (Arc<Mutex<Vec<Value>>>, Arc<AtomicBool>) = Default::default();
        let (taking, refusing) = (Arc::clone(&taken), Arc::clone(&refuses));
        let server = runtime.block_on(Server::start(None, move |seen| {
            let mut answer = Response::new(String::new());
            if refusing.load(Ordering::SeqCst) {
                *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                return Some(answer);
            }
            let mut taking = taking.lock().expect("not poisoned");
            match seen.json() {
                Value::Array(events) => taking.extend(events),
                event => taking.push(event),
            }
            Some(answer)
        }));
        Self { gate: Gate::before(server.address), refuses, taken, _runtime: runtime }
    }
}

impl Sink for Hook {
    fn handler(&self) -> String {
        format!(
            "type = \"webhook\"\nurl = \"http://{}/hook\"\ntimeout = \"5s\"\nbatch = {{ max_events = 20, timeout = \"20ms\" }}",
            self.gate.address
        )
    }

    fn be(&mut self, manner: Manner) {
        self.refuses.store(manner == Manner::Refuses, Ordering::SeqCst);
        self.gate.set(Door::of(manner));
    }

    fn arrived(&self) -> Vec<Value> {
        self.taken.lock().expect("not poisoned").clone()
    }

    fn shows_repetitions(&self) -> bool {
        true
    }
}

impl Door {
    /// Returns the gate's behaviour. It is open for refusals, because the server itself refuses.
    pub(super) fn of(manner: Manner) -> Self {
        match manner {
            Manner::Well | Manner::Refuses => Self::Open,
            Manner::Gone => Self::Shut,
            Manner::Stuck => Self::Stuck,
            Manner::Mute => Self::Mute,
        }
    }
}
