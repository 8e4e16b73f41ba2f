//! What the processes of a measurement say to each other, as JSON, one line each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Shape, figures::Reads};

/// What a process is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// The server that sends generated objects.
    Server {
        /// What they look like.
        shape: Shape,
        /// How many there are.
        objects: u64,
        /// What decides their values and the order of their changes.
        seed: u64,
    },
    /// The engine that is measured.
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
    /// Whether `metadata.managedFields` and last-applied stay.
    pub keep_all: bool,
    /// Indexes beside that of namespaces.
    pub indexes: Vec<String>,
    /// `[state] dir`.
    pub state: Option<PathBuf>,
}

/// What the server is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerOrder {
    /// Make so many changes, as fast as whoever watches takes them. No answer.
    Release(u64),
    /// From now on make so many changes a second. No answer.
    Flow(u64),
    /// From now on make changes as fast as whoever watches takes them. No answer.
    Flood,
    /// End the flow or flood. [`ServerAnswer::Head`].
    Hold,
    /// Make single changes, one each `every_micros`. [`ServerAnswer::Sent`].
    Tick {
        /// How many.
        changes: u64,
        /// Microseconds from one to the next.
        every_micros: u64,
    },
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerAnswer {
    /// It listens.
    Listening {
        /// Where.
        url: String,
        /// Bytes of an object, on average.
        object_bytes: u64,
    },
    /// It has come so far.
    Head {
        /// Changes that were made.
        changes: u64,
        /// The version of the last.
        version: u64,
    },
    /// Version of each change, and when it was handed to the socket.
    Sent(Vec<Stamp>),
}

/// A version, and a moment of [`monotonic`](super::measure::monotonic).
pub type Stamp = (u64, u64);

/// What the engine is told once it is synced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineOrder {
    /// Measure until the handler has seen this version: [`EngineAnswer::Ready`], then [`EngineAnswer::Reached`].
    Reach(u64),
    /// From now on note when each event arrives. [`EngineAnswer::Ready`].
    Note,
    /// Say what was noted up to this version. [`EngineAnswer::Arrived`].
    Arrivals(u64),
    /// Read for so long, in each of several ways: [`EngineAnswer::Read`].
    Read {
        /// Milliseconds of each way.
        millis: u64,
        /// Reads by key alone.
        by_key_only: bool,
    },
    /// Measure what happens within so many milliseconds. [`EngineAnswer::Reached`].
    Follow(u64),
}

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineAnswer {
    /// How far it has come: objects while it syncs, events later, and what is wrong.
    Progress {
        /// Objects in the cache, or events since the sync.
        done: u64,
        /// The last thing that went wrong.
        wrong: Option<String>,
    },
    /// It is synced.
    Synced(Synced),
    /// It has begun what it was told.
    Ready,
    /// It has come so far.
    Reached(Reached),
    /// Version of each event, and when the handler was called with it.
    Arrived(Vec<Stamp>),
    /// What reads took, and how many events came a second meanwhile.
    Read(Reads, f64),
    /// It cannot go on.
    Failed(String),
}

/// What a sync took.
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

/// What events took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reached {
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
