//! `deltabus run` on a live cluster: API server, controllers, scheduler and nodes.

mod churn;
mod install;
mod kubectl;
mod simulator;
#[path = "../support/mod.rs"]
mod support;
