//! The engine with the embedded cluster, which can produce every fault.

mod backpressure;
mod changed_by;
mod events;
mod faults;
mod guards;
mod handlers;
mod http_auth;
mod http_edge;
mod ignored;
mod library;
mod metrics;
mod monitoring;
mod random_changes;
mod reads;
mod redaction;
mod relist;
mod reload;
mod restart;
mod room;
mod rows;
mod rules;
mod scopes;
mod special_files;
mod state;
mod state_faults;
mod state_upgrade;
#[path = "../support/mod.rs"]
mod support;
