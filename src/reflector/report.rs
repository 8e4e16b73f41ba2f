//! What the reflector says about itself: its state, counters, and reports for the log.

use std::time::Duration;

use strum::AsRefStr;

use super::Comparison;
use crate::{
    list_watch::{Failure, SkipReason, Status},
    object::ResourceVersion,
};

/// What a reflector is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorState {
    /// Not started yet.
    Idle,
    /// Asks whether the server is as new as what is known.
    Checking,
    /// Asks for a second list, because the first would delete most of what is known.
    Confirming(Comparison),
    /// Waits for a page of a list.
    Listing,
    /// Reads the initial state from a streaming list, up to its marker.
    Streaming,
    /// Opens or reads a watch; the initial state is known.
    Watching,
    /// Sends nothing for a while.
    Waiting { until: Duration, reason: WaitReason },
    /// Sends nothing any more.
    Stopped,
}

/// What a wait recovers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// 404: the type, or the namespace's collection, does not exist.
    Missing,
    /// 401 or 403.
    Forbidden,
    /// 429.
    TooManyRequests,
    /// Refused or lost connections.
    Unreachable,
    /// The version of the watch is too old; a list comes next.
    Expired,
    /// A stream ended at once (R-44, D-1).
    Closed,
    /// Anything else; [`Reflector::last_error`](super::Reflector::last_error) says what.
    Failed,
}

impl WaitReason {
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Refused | Failure::Disconnected(_) => Self::Unreachable,
            Failure::Status(status) if status.is_expired() => Self::Expired,
            Failure::Status(status) => match status.code {
                404 => Self::Missing,
                401 | 403 => Self::Forbidden,
                429 => Self::TooManyRequests,
                _ => Self::Failed,
            },
            _ => Self::Failed,
        }
    }
}

/// What of a collection is asked for, as rights name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Verb {
    /// A list.
    List,
    /// A watch, or a streaming list.
    Watch,
}

/// Whether the server lets us list and watch; steadier than [`ReflectorState`], which alternates while it retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// The last watch was opened.
    Available,
    /// The last answer was 404; what is cached is kept.
    Missing,
    /// The last answer to this was 403; what is cached is kept.
    Forbidden(Verb),
    /// The last answer was 401; what is cached is kept.
    Unauthorized,
}

/// Why a watch, or a streaming list after its marker, ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndCause {
    /// EOF, reset, server timeout.
    #[error("closed")]
    Closed,
    /// EOF within a second and without an event.
    #[error("closed at once, without an event")]
    Short,
    /// Neither an event nor a bookmark came in time (D-6).
    #[error("nothing came for {}s", silent.as_secs())]
    Stalled { silent: Duration },
    /// An ERROR on the stream.
    #[error("server answered {0}")]
    Error(Status),
    /// The stream cannot be read further (R-54, `max_frame`).
    #[error("{0}")]
    Broken(Failure),
}

/// Why a streaming list was given up (R-34, R-35, D-2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GiveUpCause {
    /// The server refused it, or the stream failed.
    #[error("{0}")]
    Failed(Failure),
    #[error("the stream ended at once, without an event")]
    Short,
    #[error("{streams} streams ended before the initial state was complete")]
    Unmarked { streams: u32 },
    #[error("the initial state was not complete in time")]
    Deadline,
}

/// Something worth a line in the log, or the error callback of R-2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorReport {
    /// A list failed, and with it the cycle.
    ListFailed(Failure),
    /// A watch could not be opened, and with it the cycle failed.
    WatchStartFailed(Failure),
    /// A watch could not be opened and will be tried again; no list is needed.
    WatchDelayed(Failure),
    /// A watch ended. A list comes next if `relist`; otherwise the watch is resumed.
    WatchEnded { cause: EndCause, relist: bool },
    /// The version asked for was refused as expired or too large; asked again without one.
    VersionRefused { version: ResourceVersion, failure: Failure },
    /// A streaming list was given up (R-34, R-35, D-2). It is not tried before `retry_at`; `None`: the next cycle tries.
    GaveUpStreaming { cause: GiveUpCause, retry_at: Option<Duration> },
    /// A streaming list still has no marker; repeated every ten seconds. `silent` counts from its last event.
    MarkerLate { waiting: Duration, silent: Option<Duration> },
    /// A list older than what is known was refused and asked for again (D-5).
    OlderListRefused { version: ResourceVersion, last: ResourceVersion },
    /// The server's version is lower than the one known: its most recent state is compared with everything known.
    ServerOlder { version: ResourceVersion, last: ResourceVersion },
    /// A list would delete most of what is known; a second one is asked for.
    ConfirmingList { version: ResourceVersion, comparison: Comparison },
    /// The second list came: what both lack is deleted.
    ListConfirmed { version: ResourceVersion, found: usize },
    /// The server's most recent list is older than what is known: etcd was restored. It is applied (D-5).
    ServerWentBack { version: ResourceVersion, last: ResourceVersion },
    /// A list had several objects of one key; the last was kept (F-31).
    Duplicates { count: u64 },
    /// A list had items without a name or of another type (K-4, R-55).
    Rejected { count: u64 },
    /// The transform failed for objects of a watch; what was said of them is lost until the next list (F-61).
    TransformFailed { count: u64, first: String },
    /// Documents of a watch were skipped.
    Skipped { count: u64, first: SkipReason },
}

/// What a reflector has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Lists begun, repeats with another version included.
    pub(crate) lists: u64,
    /// Watches asked for, streaming lists not included.
    pub(crate) watches: u64,
    /// Streaming lists asked for.
    pub(crate) streaming_lists: u64,
    /// Changes emitted: added, updated, deleted.
    pub(crate) changes: u64,
    /// Answers and errors "too old".
    pub(crate) expired: u64,
    /// Lists refused as older than what is known (D-5).
    pub(crate) older_lists: u64,
    /// Second lists asked for because the first would have deleted most of what is known (D7).
    pub(crate) confirmations: u64,
    /// Times the server was asked for its version.
    pub(crate) checks: u64,
    /// Watches closed here because nothing came (D-6).
    pub(crate) stalls: u64,
    /// Watch documents skipped.
    pub(crate) skipped: u64,
    /// Watch documents or streams that could not be decoded.
    pub(crate) undecodable: u64,
    /// Lists and watches with an object longer than `max_frame`.
    pub(crate) frames_too_long: u64,
    /// Items of lists dropped as nameless or of another type.
    pub(crate) rejected: u64,
    /// Events dropped because the transform failed (F-61).
    pub(crate) transform_failures: u64,
}
