//! Handlers and their destinations: files, commands, HTTP servers, NATS and Kafka.

mod contract;
mod cookbook;
mod crash;
mod delivery;
mod exec;
mod formats;
#[cfg(feature = "kafka")]
mod kafka;
mod nats;
#[cfg(feature = "otlp")]
mod telemetry;
#[path = "../support/mod.rs"]
mod support;
mod webhook;
