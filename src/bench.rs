//! Parts of `deltabus bench`: generated objects, a server that sends them, an engine that is measured while it receives
//! them, and the resulting figures.
//!
//! ```text
//! parent ─orders─▶ server process: Generator → ReplayServer ─┐ HTTP over loopback
//!        ─orders─▶ engine process: Probe (Engine, handler) ◀─┘
//!        ◀─answers─ Run → figures → table, JSON, picture
//! ```
//!
//! CPU and memory are those of the engine's process, which does nothing else. The command line starts the processes and
//! passes orders and answers between them.

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
