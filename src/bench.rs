//! Parts of `deltabus bench`: generated objects, a server that sends them, an engine that is measured while it receives
//! them, and the resulting figures.
//!
//! ```text
//! command: Generator → ReplayServer ─────HTTP over loopback─────▶┐
//!          measurements ──orders──▶ engine process: Probe (Engine, handler)
//!          Run → figures → table, JSON, picture ◀──answers──┘
//! ```
//!
//! The engine runs alone in a second process, so the measured CPU time and memory are only those of the engine. The command
//! line starts this process, sends orders to it, and receives its answers.

pub(crate) mod chart;
mod field;
pub(crate) mod figures;
mod generator;
pub(crate) mod measure;
pub(crate) mod orders;
mod probe;
mod reads;
mod replay;
pub(crate) mod report;
mod shape;

pub use generator::{Generator, States};
pub use probe::Probe;
pub(crate) use probe::ProbeError;
pub use replay::ReplayServer;
pub use shape::Shape;
