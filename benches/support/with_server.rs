//! What benches have in common that measure a process beside the simulated API server.

pub(crate) mod core;
pub(crate) mod engine;
pub(crate) mod measure;
pub(crate) mod observer;
pub(crate) mod process;
pub(crate) mod simulated;
