//! `deltabus run` with handlers for other systems: all changes of the cluster arrive, despite faults on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(feature = "kafka")]
mod kafka;
mod nats;
mod webhook;
