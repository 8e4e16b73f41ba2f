//! The whole: discovery, informers, journal, handlers and HTTP, started, changed and stopped in the right
//! order.
//!
//! ```text
//! start:  journal → router and handlers → HTTP → conductor ─ finds a type ─▶ router knows it → its units start
//! stop:   units (what was read is applied and journaled) → handlers (what was journaled is delivered) → HTTP
//! ```
//!
//! Which units shall run is decided in [`plan`] and [`reconcile`]; the conductor carries it out, whenever configuration,
//! types, namespaces or rights change.

mod auxiliary;
mod builder;
mod change;
mod conductor;
pub mod dry_run;
mod facts;
mod handle;
mod handlers;
mod library;
mod memory;
mod options;
pub mod plan;
pub mod presence;
pub mod reconcile;
mod redaction;
pub mod rediscovery;
pub mod reload;
mod restore;
mod rights;
mod rows;
mod running;
mod sinks;
mod served;
mod sources;
mod state;
mod typed;

use std::net::SocketAddr;

use crate::list_watch::kube::AccessError;
pub use builder::EngineBuilder;
pub use handle::{Applied, EngineHandle};
#[cfg(any(test, feature = "testing"))]
pub use handlers::Spot;
pub use handlers::{OwnClosure, OwnHandler, OwnSink};
pub use running::RunningEngine;
pub use typed::TypedLister;

/// Why an engine did not start, did not change, or ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no way to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A handler cannot be made.
    #[error("failed to start handler {name}: {error}")]
    Handler {
        /// `[handlers.<name>]`.
        name: String,
        /// What it said.
        error: String,
    },
    /// An HTTP address cannot be bound.
    #[error("failed to listen on {address} ([http] {key}): {error}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The option.
        key: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// An entry with `on_missing = "fail"` names a type that the server does not serve.
    #[error("{0}")]
    Missing(String),
    /// The state directory cannot be used.
    #[error("{0}")]
    State(String),
    /// What a program asks to be watched is no configuration.
    #[error("{0}")]
    Configuration(String),
    /// There is no handler of this name.
    #[error("there is no handler {0:?}")]
    UnknownHandler(String),
    /// Handlers cannot be added or changed any more (S-6).
    #[error("the engine is stopping")]
    Stopping,
    /// The engine was stopped (S-6).
    #[error("the engine was stopped")]
    Stopped,
}

/// What a stop left undelivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// By handler: how many events, and the first of them by name.
    pub undelivered: Vec<(String, u64, Vec<String>)>,
}

/// An engine that has not been started.
///
/// ```no_run
/// use deltabus::engine::Engine;
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
    /// Begins an engine; without more it watches nothing.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }
}
