//! Parts of `deltabus bench`: generated objects, a server that sends them, an engine that is measured while it receives
//! them, and the resulting figures.
//!
//! ```text
//! command: Generator → ReplayServer ─────HTTP over loopback─────▶┐
//!          measurements ──orders──▶ engine process: Probe (Engine, handler)
//!          Run → figures → table, JSON, picture ◀──answers──┘
//! ```
//!
//! CPU and memory are those of the engine's process, which does nothing else. The command line starts this process, and
//! exchanges orders and answers with it.

pub mod chart;
mod field;
pub mod figures;
mod generator;
pub mod measure;
pub mod orders;
mod probe;
mod reads;
mod replay;
pub mod report;
mod shape;

pub use generator::{Generator, States};
pub use probe::{Probe, ProbeError};
pub use replay::ReplayServer;
pub use shape::Shape;
