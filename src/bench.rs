//! Parts of `deltabus bench`: objects that are made by rule instead of kept, a server that sends
//! them, an engine that is watched while it takes them, and figures of that.
//!
//! ```text
//! parent ─orders─▶ server process: Generator → ReplayServer ─┐ HTTP over loopback
//!        ─orders─▶ engine process: Probe (Engine, handler) ◀─┘
//!        ◀─answers─ Run → figures → table, JSON, picture
//! ```
//!
//! CPU and memory are those of the engine's process, which does nothing else. The shells that start the processes and
//! carry orders and answers are in the command line.

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
