//! Messages to and from the process of the measured engine: JSON, one per line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Options of the measured engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineOptions {
    /// URL of the API server, without credentials.
    pub server: String,
    /// Type of the objects, in the syntax of `match` in the configuration.
    pub resource: String,
    /// `compression` in the configuration.
    pub compression: String,
    /// Set to keep `metadata.managedFields` and the annotation `kubectl.kubernetes.io/last-applied-configuration` in the cache.
    pub keep_all: bool,
    /// Indexes in addition to the index of namespaces.
    pub indexes: Vec<String>,
    /// `[state] dir`.
    pub state: Option<PathBuf>,
}

/// A version, and a time of [`monotonic`](super::measure::monotonic).
pub(crate) type Stamp = (u64, u64);

/// Order to the synced engine. Each result is sent as an [`EngineAnswer::Done`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum EngineOrder {
    /// Measures until the handler has seen this version. The engine answers twice: with an empty result when the measurement
    /// starts, and with [`EventsCost`] when it ends.
    Reach(u64),
    /// Records the arrival of each event until this version. The engine answers twice: with an empty result at the start, and with
    /// a list at the end. The list has one [`Stamp`] per event, with the time at which the handler was called.
    Note(u64),
    /// Runs each kind of read. Result: [`Reads`](super::figures::Reads), and the number of events per second during the reads.
    Read {
        /// Set to read by key only.
        by_key_only: bool,
    },
    /// Measures for this number of milliseconds. Result: [`EventsCost`].
    Follow(u64),
}

/// Answer of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum EngineAnswer {
    /// Progress of the sync or of an [`EngineOrder`].
    Progress {
        /// Objects received by the sync, or events since the order.
        done: u64,
        /// Last failure; `None` if there was none.
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
    /// Nanoseconds from the start of the engine to the event that reports the complete cache.
    pub wall_nanos: u64,
    /// CPU nanoseconds until the engine was idle.
    pub cpu_nanos: u64,
    /// Resident bytes of the engine at the end of the measurement.
    pub resident: u64,
    /// Peak resident bytes until the engine was idle.
    pub resident_peak: u64,
    /// Bytes that the objects occupy in the cache.
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
    /// Nanoseconds from the first to the last delivered event.
    pub wall_nanos: u64,
    /// CPU nanoseconds from the order until the engine is idle; for [`EngineOrder::Follow`], until its fixed time ends.
    pub cpu_nanos: u64,
    /// Resident bytes of the engine at the end of the measurement.
    pub resident: u64,
    /// Bytes written to disks since the order.
    pub written: u64,
}
