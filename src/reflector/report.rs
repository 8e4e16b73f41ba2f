//! State, counters and log reports of the reflector.

use std::time::Duration;

use strum::AsRefStr;

use super::Comparison;
use crate::{
    list_watch::{Failure, SkipReason, Status},
    object::ResourceVersion,
};

/// A verb of RBAC rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Verb {
    List,
    /// A watch, or a streaming list.
    Watch,
}

/// Availability of the collection, from the last answers of the server. Unlike the state of the reflector, it does not alternate
/// while the reflector retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Availability {
    /// No answer yet.
    #[default]
    Unknown,
    /// A watch was opened, and no 401, 403 or 404 has come since.
    Available,
    /// The last answer was 404. Cached objects are kept.
    Missing,
    /// The last answer to this verb was 403. Cached objects are kept.
    Forbidden(Verb),
    /// The last answer was 401. Cached objects are kept.
    Unauthorized,
}

/// Reason why a watch ended, or why a streaming list ended after its marker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndCause {
    /// EOF, reset, server timeout.
    #[error("closed")]
    Closed,
    /// EOF within a second and without an event.
    #[error("closed at once, without an event")]
    Short,
    /// No event and no bookmark came in time (D-6).
    #[error("no data for {}s", silent.as_secs())]
    Stalled { silent: Duration },
    /// An ERROR on the stream.
    #[error("server answered {0}")]
    Error(Status),
    /// The rest of the stream cannot be read (R-54, `max_frame`).
    #[error("{0}")]
    Broken(Failure),
}

/// Reason why a streaming list was given up (R-34, R-35, D-2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GiveUpCause {
    /// The server refused the streaming list, or its stream failed.
    #[error("{0}")]
    Failed(Failure),
    #[error("the stream ended at once, without an event")]
    Short,
    #[error("{streams} streams ended before the initial state was complete")]
    Unmarked { streams: u32 },
    #[error("the initial state was not complete in time")]
    Deadline,
}

/// An event for the log, or for the error callback of R-2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorReport {
    /// A list failed, and therefore the cycle failed.
    ListFailed(Failure),
    /// A page of a list failed, and its request will be repeated (T-1, T-3).
    ListDelayed(Failure),
    /// A watch could not be opened, and therefore the cycle failed.
    WatchStartFailed(Failure),
    /// A watch or a streaming list could not be opened and will be retried without a list (R-40, T-1, T-3).
    WatchDelayed(Failure),
    /// A watch ended. If `relist`, a list follows; otherwise the watch is resumed.
    WatchEnded { cause: EndCause, relist: bool },
    /// The requested version was refused as expired or too large. The request is repeated without a version.
    VersionRefused { version: ResourceVersion, failure: Failure },
    /// A streaming list was given up (R-34, R-35, D-2). The next attempt is after `retry_at`; `None`: in the next cycle.
    GaveUpStreaming { cause: GiveUpCause, retry_at: Option<Duration> },
    /// A streaming list has no marker yet; this report is repeated every ten seconds. `silent` is the time since the last
    /// event; `None` before the first event.
    MarkerLate { waiting: Duration, silent: Option<Duration> },
    /// A list was refused because it is older than the known state, or older than the list that it should confirm. Another list is
    /// requested (D-5).
    OlderListRefused { version: ResourceVersion, last: ResourceVersion },
    /// The server's version is lower than the known one. All known objects are then compared with the server's most recent state.
    ServerOlder { version: ResourceVersion, last: ResourceVersion },
    /// A list would delete most known objects; a second one is requested.
    ConfirmingList { version: ResourceVersion, comparison: Comparison },
    /// The second list arrived. Objects that both lists lack are deleted.
    ListConfirmed { version: ResourceVersion, found: usize },
    /// The server's most recent list is older than the known state, because etcd was restored. It is applied (D-5).
    ServerWentBack { version: ResourceVersion, last: ResourceVersion },
    /// A list had several objects with the same key; the last was kept (F-31).
    Duplicates { count: u64 },
    /// A list had items without a name or of another type (K-4, R-55).
    Rejected { count: u64 },
    /// The transform failed for objects of a watch. Their events are lost until the next list (F-61).
    TransformFailed { count: u64, first: String },
    /// Objects of a list or a watch are nested too deeply to be decoded. Their last states are kept.
    Unread { count: u64, first: String },
    /// Documents of a watch were skipped.
    Skipped { count: u64, first: SkipReason },
}

/// Counters of a reflector since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Lists started, including repeats with another version.
    pub(crate) lists: u64,
    /// Watches requested; streaming lists are not counted.
    pub(crate) watches: u64,
    /// Streaming lists requested.
    pub(crate) streaming_lists: u64,
    /// Second lists requested because the first would have deleted most known objects.
    pub(crate) confirmations: u64,
    /// Requests for the server's version.
    pub(crate) checks: u64,
    /// Watches closed by the reflector because they were silent (D-6).
    pub(crate) stalls: u64,
    /// Watch documents skipped, list items dropped because they have no name or another type, and objects that are nested too
    /// deeply to be decoded.
    pub(crate) skipped: u64,
    /// Lists and watches that could not be decoded, or had an object longer than `max_frame`.
    pub(crate) unreadable: u64,
    /// Events dropped because the transform failed (F-61).
    pub(crate) transform_failures: u64,
}
