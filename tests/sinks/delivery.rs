//! `deltabus run` with handlers that speak to other systems: what a cluster does arrives, whatever happens on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(feature = "kafka")]
mod kafka;
mod nats;
mod webhook;
