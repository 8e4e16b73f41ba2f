//! What the contract asks of a sink. A further kind of handler is one more `impl` of [`Sink`].

pub(crate) mod exec;
pub(crate) mod file;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod webhook;

use std::path::Path;

use serde_json::Value;

use crate::support::engine::Engine;

/// How a sink behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It takes everything.
    Well,
    /// It is there and says no.
    Refuses,
    /// It is not there.
    Gone,
    /// It says nothing, and takes nothing.
    Stuck,
    /// It takes everything, and nobody hears of that.
    Mute,
}

/// A system that a handler delivers to.
pub(crate) trait Sink {
    /// Returns the lines of `[handlers.out]`.
    fn handler(&self) -> String;

    /// Makes it behave so from now on.
    fn be(&mut self, manner: Manner);

    /// Returns the events that arrived, in order. What arrived in part is left out.
    fn arrived(&self) -> Vec<Value>;

    /// Whether what was taken and not acknowledged is there again after it was repeated: others drop or take back one of
    /// the two.
    fn shows_repetitions(&self) -> bool;

    /// Whether nothing is ever there twice, not even after a crash.
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
