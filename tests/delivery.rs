//! `deltabus run` with handlers that speak to other systems: what a cluster does arrives, whatever happens on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(feature = "kafka")]
#[path = "delivery/kafka.rs"]
mod kafka;
#[path = "delivery/nats.rs"]
mod nats;
mod support;
#[path = "delivery/webhook.rs"]
mod webhook;
