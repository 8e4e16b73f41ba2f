//! Shared parts of integration tests; each test crate uses some of them.
#![allow(dead_code, reason = "each test crate uses a part")]

pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod disk;
pub(crate) mod engine;
pub(crate) mod forger;
pub(crate) mod gate;
pub(crate) mod helm;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod latch;
pub(crate) mod layer;
pub(crate) mod listener;
pub(crate) mod live;
pub(crate) mod living;
pub(crate) mod nats;
pub(crate) mod observer;
pub(crate) mod promtool;
pub(crate) mod prometheus;
pub(crate) mod proxy;
pub(crate) mod receiver;
pub(crate) mod scripted;
pub(crate) mod simulated;
pub(crate) mod sabotaged;
pub(crate) mod sink;
pub(crate) mod stream;
pub(crate) mod told;
pub(crate) mod unsynced;
pub(crate) mod verify;
