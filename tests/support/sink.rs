//! Interface of sinks for the contract tests. Another kind of handler needs another `impl` of [`Sink`].

pub(crate) mod exec;
pub(crate) mod file;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod webhook;

use std::path::Path;

use serde_json::Value;

use crate::support::engine::Engine;

/// Behaviour of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Accepts everything.
    Well,
    /// The sink is reachable and refuses everything.
    Refuses,
    /// The sink is not reachable.
    Gone,
    /// The sink neither answers nor accepts anything.
    Stuck,
    /// Accepts everything without a confirmation.
    Mute,
}

/// A system that a handler delivers to.
pub(crate) trait Sink {
    /// Returns the lines of `[handlers.out]`.
    fn handler(&self) -> String;

    /// Sets its behaviour from now on.
    fn be(&mut self, manner: Manner);

    /// Returns the events that arrived completely, in order.
    fn arrived(&self) -> Vec<Value>;

    /// Returns true if an accepted but unacknowledged event is present twice after its repetition. Other sinks drop or undo one
    /// of the two.
    fn shows_repetitions(&self) -> bool;

    /// Returns true if no event is ever present twice, even after a crash.
    fn stores_once(&self) -> bool {
        false
    }

    /// Runs an engine on the configuration in a directory.
    fn run(&self, dir: &Path) -> Engine {
        Engine::run_again(dir, &[])
    }
}

/// A sink whose handler has this `format`.
pub(crate) struct Formatted<S>(pub(crate) &'static str, pub(crate) S);

impl<S: Sink> Sink for Formatted<S> {
    fn handler(&self) -> String {
        format!("format = {:?}\n{}", self.0, self.1.handler())
    }

    fn be(&mut self, manner: Manner) {
        self.1.be(manner);
    }

    fn arrived(&self) -> Vec<Value> {
        self.1.arrived()
    }

    fn shows_repetitions(&self) -> bool {
        self.1.shows_repetitions()
    }

    fn stores_once(&self) -> bool {
        self.1.stores_once()
    }

    fn run(&self, dir: &Path) -> Engine {
        self.1.run(dir)
    }
}
