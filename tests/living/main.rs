//! `deltabus run` on a live cluster: API server, controllers, scheduler and nodes.

mod churn;
mod install;
mod kubectl;
#[path = "../support/mod.rs"]
mod support;
