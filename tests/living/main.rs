//! `deltabus run` on a living cluster: API server, controllers, scheduler and nodes.

mod churn;
mod install;
mod kubectl;
#[path = "../support/mod.rs"]
mod support;
