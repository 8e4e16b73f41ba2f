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
