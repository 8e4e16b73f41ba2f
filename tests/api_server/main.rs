//! The engine, an example and the simulator, compared with a real Kubernetes API server.

mod controller;
mod run;
mod simulator;
#[path = "../support/mod.rs"]
mod support;
mod versions;
