//! Messages between the processes of a measurement: JSON, one per line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Shape;

/// Role of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// The server of generated objects. Its first answer is its URL and the average size of an object in bytes.
    Server {
        /// Shape of the objects.
        shape: Shape,
        /// Number of objects.
        objects: u64,
        /// Seed of the values and of the order of changes.
        seed: u64,
    },
    /// The measured engine. Its first result is [`Synced`].
    Engine(EngineOptions),
}

/// Options of the measured engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineOptions {
    /// URL of the API server, without credentials.
    pub server: String,
    /// The type, in the syntax of `match`.
    pub resource: String,
    /// `compression` in the configuration.
    pub compression: String,
    /// Set to keep `metadata.managedFields` and last-applied.
    pub keep_all: bool,
    /// Indexes besides that of namespaces.
    pub indexes: Vec<String>,
    /// `[state] dir`.
    pub state: Option<PathBuf>,
}

/// Order to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerOrder {
    /// Make this number of changes, as fast as watches accept them. No answer.
    Release(u64),
    /// Start making this number of changes per second. No answer.
    Flow(u64),
    /// Start making changes as fast as watches accept them. No answer.
    Flood,
    /// End the flow or flood. The answer is the number of changes and the last version.
    Hold,
    /// Make single changes, one every `every_micros`. The answer has a [`Stamp`] for each, taken at the server's socket.
    Tick {
        /// Number of changes.
        changes: u64,
        /// Microseconds between two changes.
        every_micros: u64,
    },
}

/// A version, and a time of [`monotonic`](super::measure::monotonic).
pub type Stamp = (u64, u64);

/// Order to the synced engine, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineOrder {
    /// Measure until the handler has seen this version. Results: nothing at the start, then [`EventsCost`].
    Reach(u64),
    /// Start recording the arrival of each event. Result: nothing.
    Note,
    /// Return the records up to this version. Result: a [`Stamp`] for each event, taken at the call of the handler.
    Arrivals(u64),
    /// Read in several ways. Results: [`Reads`](super::figures::Reads), and the events per second meanwhile.
    Read {
        /// Milliseconds per way of reading.
        millis: u64,
        /// Set to read by key only.
        by_key_only: bool,
    },
    /// Measure for this number of milliseconds. Result: [`EventsCost`].
    Follow(u64),
}

/// Answer of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineAnswer {
    /// Progress: objects during the sync, events later.
    Progress {
        /// Objects in the cache, or events since the sync.
        done: u64,
        /// Last failure.
        wrong: Option<String>,
    },
    /// Result of the start, or of an [`EngineOrder`].
    Done(Value),
    /// The engine cannot continue.
    Failed(String),
}

/// Cost of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Synced {
    /// Objects in the cache.
    pub objects: u64,
    /// Nanoseconds from the start of the engine to the event that its cache is complete.
    pub wall_nanos: u64,
    /// CPU nanoseconds until the engine was idle.
    pub cpu_nanos: u64,
    /// Resident bytes of the idle engine.
    pub resident: u64,
    /// Peak resident bytes until then.
    pub resident_peak: u64,
    /// Bytes of the cached objects in their cached form.
    pub bodies: u64,
    /// Average JSON bytes of an object in the cache.
    pub object_bytes: u64,
}

/// Cost of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsCost {
    /// Events delivered to the handler.
    pub delivered: u64,
    /// Nanoseconds from the first to the last of them.
    pub wall_nanos: u64,
    /// CPU nanoseconds from the order until the engine was idle.
    pub cpu_nanos: u64,
    /// Resident bytes of the idle engine.
    pub resident: u64,
    /// Bytes of the cached objects in their cached form.
    pub bodies: u64,
    /// Bytes written to disks since the order.
    pub written: u64,
}
