//! Engine as a whole: starts, changes and stops discovery, informers, journal, handlers and HTTP in the right
//! order.
//!
//! ```text
//! start:  journal → router and handlers → HTTP → conductor ─ finds a type ─▶ router knows it → its units start
//! stop:   units (what was read is applied and journaled) → handlers (what was journaled is delivered) → HTTP
//! ```
//!
//! [`plan`] decides, without input and output, which units should run. The [`conductor`] carries the decisions out whenever
//! configuration, types, namespaces or rights change. `builder`, `handle` and `running` are what a program sees.

mod builder;
pub(crate) mod conductor;
pub(crate) mod dry_run;
mod handle;
mod handlers;
mod library;
mod options;
pub(crate) mod plan;
mod redaction;
pub(crate) mod reload;
mod running;
mod sources;

use std::net::SocketAddr;

#[cfg(any(test, feature = "testing"))]
pub use crate::delivery::handlers::Spot;
use crate::list_watch::kube::AccessError;
pub use builder::EngineBuilder;
pub use handle::{Applied, EngineHandle};
pub use running::RunningEngine;

/// Reason why an engine did not start, did not change, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No access to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A handler cannot be created.
    #[error("failed to start handler {name}: {error}")]
    Handler {
        /// Name in `[handlers.<name>]`.
        name: String,
        /// Error of the handler.
        error: String,
    },
    /// Binding an HTTP address failed.
    #[error("failed to listen on {address} ([http] {key}): {error}")]
    Listen {
        /// Configured address.
        address: SocketAddr,
        /// Option that sets the address.
        key: &'static str,
        /// Error of the system.
        error: std::io::Error,
    },
    /// A type is not served, and its entry has `on_missing = "fail"`.
    #[error("{0}")]
    Missing(String),
    /// State directory that cannot be used.
    #[error("{0}")]
    State(String),
    /// Invalid configuration, including entries that a program added.
    #[error("{0}")]
    Configuration(String),
    /// Name of a handler that does not exist.
    #[error("no handler {0:?}")]
    UnknownHandler(String),
    /// Stopping or stopped engine, which accepts no handlers and no changes (S-6).
    #[error("the engine was stopped")]
    Stopped,
}

/// Events that were not delivered before the engine stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// For each handler: its name, the number of undelivered events, and the names of the first of these events.
    pub undelivered: Vec<(String, u64, Vec<String>)>,
}

/// Entry point of the library: [`Engine::builder`] begins a new engine.
///
/// ```no_run
/// use deltabus::Engine;
/// use k8s_openapi::api::core::v1::Pod;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// actix::System::new().block_on(async {
///     let engine = Engine::builder().watch::<Pod>().start().await?;
///     engine.wait_for_sync().await;
///     if let Some(pods) = engine.lister_of::<Pod>() {
///         println!("{} pods", pods.untyped().len());
///     }
///     engine.stop().await;
///     Ok(())
/// })
/// # }
/// ```
pub struct Engine;

impl Engine {
    /// Returns the builder of a new engine. By default, the engine watches nothing.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }
}
