//! Messages between the processes of a measurement: JSON, one line each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Shape;

/// Role of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// The server that sends generated objects. It first answers with its URL and the bytes of an object, on average.
    Server {
        /// Shape of the objects.
        shape: Shape,
        /// Number of objects.
        objects: u64,
        /// Decides their values and the order of their changes.
        seed: u64,
    },
    /// The engine that is measured. Its first result is [`Synced`].
    Engine(EngineOptions),
}

/// The engine that is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineOptions {
    /// The API server, without credentials.
    pub server: String,
    /// The type, as `match` of a configuration has it.
    pub resource: String,
    /// `compression` of the configuration.
    pub compression: String,
    /// Set to keep `metadata.managedFields` and last-applied.
    pub keep_all: bool,
    /// Indexes beside that of namespaces.
    pub indexes: Vec<String>,
    /// `[state] dir`.
    pub state: Option<PathBuf>,
}

/// Order to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerOrder {
    /// Make so many changes, as fast as watches take them. No answer.
    Release(u64),
    /// From now on make so many changes a second. No answer.
    Flow(u64),
    /// From now on make changes as fast as watches take them. No answer.
    Flood,
    /// End the flow or flood. It answers with the number of changes, and with the version of the last.
    Hold,
    /// Make single changes, one each `every_micros`. It answers with a [`Stamp`] for each, taken at its socket.
    Tick {
        /// Number of changes.
        changes: u64,
        /// Microseconds from one to the next.
        every_micros: u64,
    },
}

/// A version, and a moment of [`monotonic`](super::measure::monotonic).
pub type Stamp = (u64, u64);

/// Order to the engine once it is synced, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineOrder {
    /// Measure until the handler has seen this version: nothing, once that has begun, then [`EventsCost`].
    Reach(u64),
    /// From now on note when each event arrives: nothing.
    Note,
    /// Return what was noted up to this version: a [`Stamp`] for each event, taken at the call of the handler.
    Arrivals(u64),
    /// Read for so long, in each of several ways: [`Reads`](super::figures::Reads), and the events a second meanwhile.
    Read {
        /// Milliseconds of each way.
        millis: u64,
        /// Reads by key alone.
        by_key_only: bool,
    },
    /// Measure what happens within so many milliseconds: [`EventsCost`].
    Follow(u64),
}

/// Answer of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineAnswer {
    /// Progress: objects while it syncs, events later, and the last failure.
    Progress {
        /// Objects in the cache, or events since the sync.
        done: u64,
        /// The last failure.
        wrong: Option<String>,
    },
    /// Result of the start, or of an [`EngineOrder`].
    Done(Value),
    /// It cannot continue.
    Failed(String),
}

/// Cost of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Synced {
    /// Objects in the cache.
    pub objects: u64,
    /// From the start of the engine to the event that says that its cache is complete; nanoseconds.
    pub wall_nanos: u64,
    /// Until it had come to rest; nanoseconds.
    pub cpu_nanos: u64,
    /// At rest; bytes.
    pub resident: u64,
    /// The most there was until then; bytes.
    pub resident_peak: u64,
    /// Bytes of the objects in the cache, as they are kept.
    pub bodies: u64,
    /// Bytes of JSON of an object as it is kept, on average.
    pub object_bytes: u64,
}

/// Cost of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsCost {
    /// Events that the handler was called with.
    pub delivered: u64,
    /// From the first to the last of them; nanoseconds.
    pub wall_nanos: u64,
    /// From the order until the engine had come to rest; nanoseconds.
    pub cpu_nanos: u64,
    /// At rest; bytes.
    pub resident: u64,
    /// Bytes of the objects in the cache, as they are kept.
    pub bodies: u64,
    /// Bytes handed to disks since the order.
    pub written: u64,
}
