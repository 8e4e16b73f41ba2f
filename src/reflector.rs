//! Mirrors one collection of the API server as a stream of events: list or streaming list, then watch, forever.
//!
//! `Reflector` is the pure state machine (rules R-1 … R-64 and D-1 … D-6). The shell in `reflector/run.rs` runs its actions.
//!
//! ```text
//!            ┌───────────────────────── wait, then a new cycle ─────────────────────────┐
//!            ▼                                                                          │
//!   Start ─▶ Streaming ──marker: Replace──▶ Watching ──410, 500, short, broken──▶ Waiting
//!            │ gave up                      ▲  │  ▲                                     │
//!            └──▶ Listing ──last page: ─────┘  │  └──────── wait, then rewatch ──────────┘
//!                           Replace            └─▶ rewatch at once after a normal end
//! ```
//!
//! A cycle begins with an initial state and ends when a watch cannot be resumed. `listing.rs`, `streaming.rs` and
//! `watching.rs` hold one phase each. If a list would delete most known objects, `confirm.rs` requests a second list.
//! If a watch starts from a saved version, `check.rs` first compares it with the server's version.

pub(crate) mod actor;
mod check;
mod confirm;
mod log;
mod listing;
pub(crate) mod messages;
mod pager;
mod report;
pub(crate) mod run;
mod snapshot;
mod stream;
mod streaming;
mod view;
mod watching;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    backoff::{Backoff, BackoffConfig},
    list_watch::{Failure, ListPage, ListRequest, WatchEvent, WatchRequest},
    object::{Object, ResourceVersion},
};

pub(crate) use confirm::Comparison;
pub(crate) use report::{Availability, Counters, EndCause, GiveUpCause, ReflectorReport, Verb};
use {
    confirm::{Doubted, Held},
    listing::Listing,
    stream::Stream,
    streaming::Streaming,
};

/// Events of the reflector: changes in stream order, and whole lists.
#[derive(Clone, Debug)]
pub enum ReflectorEvent {
    /// The server sent `ADDED`.
    Added(Object),
    /// The server sent `MODIFIED`.
    Updated(Object),
    /// The server sent `DELETED`, with the final state of the object.
    Deleted(Object),
    /// A complete list, or the complete snapshot of a streaming list (R-23, R-33).
    Replace {
        /// All objects of the collection, one per key. Objects that cannot be read are placeholders.
        items: Vec<Object>,
        /// Objects that this list lacks, but that must not be deleted. A second list contained these objects, with versions newer
        /// than this list. The cache keeps its states of these objects until the watch reports a change.
        spared: Vec<Object>,
        /// Version of the list.
        resource_version: ResourceVersion,
    },
    /// The stream has reached this version; no object changed (A-5).
    Bookmark(ResourceVersion),
    /// Cached objects are to be delivered again (R-60, R-61).
    Resync {
        /// Number of the resync within the unit, from 1; restarts do not reset it. Handlers use it to select their resyncs (S-11).
        round: u32,
    },
}

/// Use of streaming lists (`WatchList`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamingLists {
    /// Streaming lists, with paged lists as the fallback.
    #[default]
    Auto,
    /// Streaming lists only.
    Always,
    /// Paged lists only.
    Never,
}

/// Settings of a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Educe)]
#[educe(Default)]
pub struct ReflectorConfig {
    /// Use of streaming lists for the initial state.
    pub streaming_lists: StreamingLists,
    /// Number of streams that end without a marker, in one cycle, before the reflector gives up streaming lists (D-2).
    #[educe(Default = 3)]
    pub streaming_attempts_max: u32,
    /// Longest wait for the marker (D-2). The wait begins when the stream opens, and begins again with each `ADDED`.
    #[educe(Default = Duration::from_mins(1))]
    pub marker_deadline: Duration,
    /// Delay before streaming lists are tried again on a server that does not support them (D-2).
    #[educe(Default = Duration::from_mins(30))]
    pub streaming_retry_after: Duration,
    /// Objects per page. `None`: one page if the server's watch cache can answer, otherwise pages of 500 (R-20). `Some(n)`: always
    /// pages of `n`. `Some(0)`: always one page (P-1).
    pub page_size: Option<u32>,
    /// Minimum `timeoutSeconds` of a watch. Each watch uses a random value from `watch_timeout` to `2 × watch_timeout` (R-42).
    #[educe(Default = Duration::from_mins(5))]
    pub watch_timeout: Duration,
    /// Grace period after a watch's `timeoutSeconds`. A watch that is open for longer counts as stalled (D-6).
    #[educe(Default = Duration::from_secs(15))]
    pub watch_grace: Duration,
    /// Longest silence of a watch. A watch that is silent for longer counts as stalled (D-6). Zero: no limit. The limit applies
    /// only after the server has sent a bookmark.
    #[educe(Default = Duration::from_mins(3))]
    pub stall_after: Duration,
    /// Period after the first HTTP 500 on a watch. During this period a 500 causes no new list: the watch is resumed. Zero: every
    /// 500 causes a new list (R-45).
    pub internal_error_retry: Duration,
    /// Time between two resyncs; zero: no resyncs (R-60).
    pub resync_period: Duration,
    /// Delays between cycles, and before a watch that must be delayed (R-3, R-5).
    pub backoff: BackoffConfig,
}

/// Start of a reflector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorStart {
    /// Start with the initial state (R-1), which must not be older than this version. Unset if no state is known.
    Fresh(ResourceVersion),
    /// Start with a watch from the version of the store, for a restarted unit. If that version is unusable (unset or
    /// `"0"`), start with the initial state.
    Resume(ResourceVersion),
    /// Like [`ReflectorStart::Resume`], from a version saved by an earlier process. The reflector first checks that the server's
    /// version is not lower than the saved one, because the server may have been restored from a backup.
    Saved(ResourceVersion),
}

/// Input of the state machine. The shell (`reflector/run.rs`) sends it.
#[derive(Debug)]
pub(crate) enum ReflectorInput {
    /// Start; always the first input.
    Start,
    /// Answer to [`ReflectorAction::List`].
    Page(Result<ListPage, Failure>),
    /// Answer to [`ReflectorAction::Compare`].
    Compared(Comparison),
    /// Answer to [`ReflectorAction::OpenWatch`].
    Opened(Result<(), Failure>),
    /// A batch of the open stream; the shell never splits or reorders it.
    Received(Vec<WatchEvent>),
    /// The open stream ended; `Ok` is an EOF.
    Ended(Result<(), Failure>),
    /// The deadline of [`ReflectorAction::Read`] or [`ReflectorAction::Wait`] has passed.
    Timer,
    /// Stop; no later input has an effect (R-63).
    Stop,
}

/// Next action for the shell (`reflector/run.rs`). Every action except [`ReflectorAction::Read`], [`ReflectorAction::Compare`] and
/// [`ReflectorAction::Keep`] closes the open stream (R-46).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorAction {
    /// Request a page and answer with [`ReflectorInput::Page`]. The source limits the duration.
    List(ListRequest),
    /// Compare the list from [`Reflector::held`] with the known objects, after all earlier events are applied. Answer with
    /// [`ReflectorInput::Compared`].
    Compare,
    /// Open a watch and answer with [`ReflectorInput::Opened`]. The source limits the duration of the opening;
    /// [`ReflectorAction::Read`] has its own deadline (D-6).
    OpenWatch(WatchRequest),
    /// Read the open stream. The next batch is [`ReflectorInput::Received`]; the end is [`ReflectorInput::Ended`].
    ///
    /// The input is [`ReflectorInput::Timer`] if `until` passes first.
    Read { until: Duration },
    /// Make no request before `until`. Then answer with [`ReflectorInput::Timer`].
    Wait { until: Duration },
    /// Continue the last action, because the input does not belong to it (for example, a late timer).
    Keep,
    /// Stop: no further action follows.
    Done,
}

/// Result of one input.
#[derive(Debug)]
pub(crate) struct ReflectorStep {
    pub(crate) events: Vec<ReflectorEvent>,
    pub(crate) action: ReflectorAction,
    pub(crate) reports: Vec<ReflectorReport>,
    /// Server version, if this step obtained it.
    pub(crate) server_version: Option<ResourceVersion>,
    /// Set while the reflector fetches an initial state, or checks the server's version. The shell holds a permit of
    /// `max_concurrent_lists` meanwhile.
    pub(crate) holds_list_permit: bool,
}

/// Times of the first and the last error of a series.
#[derive(Clone, Copy, Debug)]
struct ErrorSeries {
    first: Duration,
    last: Duration,
}

/// The state machine that mirrors one collection, forever.
///
/// One input produces one [`ReflectorStep`]; the machine waits for exactly one answer at a time. Times come from any
/// monotonic clock of the caller. The machine has no clock, no random source and no I/O. It keeps only the objects of an
/// unfinished initial state.
///
/// **Invariants:**
/// - No event of an initial state is emitted before the state is complete (P-5, R-31).
/// - Only [`ReflectorAction::Done`] follows [`ReflectorInput::Stop`] (R-63).
/// - A list is applied only if it is not older than the known state, or is the server's most recent one (D-5).
/// - If a list would delete most known objects, it deletes only those that a second list lacks too.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags that survive cycles (R-7), not states")]
pub(crate) struct Reflector {
    config: ReflectorConfig,
    state: State,
    /// Version of the last list, event or bookmark (R-7).
    last: ResourceVersion,
    /// Set when the next list must be requested without a version, for example because the server rejected `last` (R-7).
    unavailable: bool,
    /// The list that waits until a second list confirms it.
    doubted: Option<Doubted>,
    /// Set when the server's watch cache is off (R-21).
    force_pages: bool,
    /// Set when the store has an initial state, from this reflector or from an earlier one.
    has_listed: bool,
    backoff: Backoff,
    /// Number of streams of this cycle that ended without a marker (D-2).
    unmarked: u32,
    /// Time at which streaming lists are tried again. Set when the server does not support them (D-2).
    streaming_retry_at: Option<Duration>,
    /// Set when the server has sent a bookmark (D-6).
    bookmarks_seen: bool,
    resync_at: Option<Duration>,
    /// Number of the last resync, of this reflector or of the previous one.
    round: u32,
    /// Current series of HTTP 500 (R-45).
    internal_errors: Option<ErrorSeries>,
    /// Availability of the collection: whether the server permits list and watch.
    availability: Availability,
    /// The last failure of a request or a stream. A later success does not clear it.
    last_error: Option<Failure>,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
enum State {
    /// Not started. If `check` is set, the start requests the server's version first.
    Idle {
        check: bool,
    },
    Checking,
    Listing(Listing),
    Streaming(Streaming),
    Comparing(Held),
    Watching(Stream),
    Waiting {
        until: Duration,
        then: Then,
    },
    Stopped,
}

/// Continuation after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Cycle,
    Stream,
    Watch,
    Check,
}

/// State of the step in progress.
struct Turn {
    now: Duration,
    jitter: f64,
    events: Vec<ReflectorEvent>,
    reports: Vec<ReflectorReport>,
    server_version: Option<ResourceVersion>,
}

impl Reflector {
    /// Creates a reflector. Its first input is [`ReflectorInput::Start`].
    pub(crate) fn new(config: ReflectorConfig, start: ReflectorStart) -> Self {
        let (check, has_listed) =
            (matches!(start, ReflectorStart::Saved(_)), !matches!(start, ReflectorStart::Fresh(_)));
        let (ReflectorStart::Fresh(last) | ReflectorStart::Resume(last) | ReflectorStart::Saved(last)) = start;
        let last = Some(last).filter(stream::is_usable).unwrap_or_default();
        Self {
            has_listed: has_listed && !last.is_unset(),
            last,
            state: State::Idle { check },
            unavailable: false,
            doubted: None,
            force_pages: false,
            backoff: Backoff::new(config.backoff),
            unmarked: 0,
            streaming_retry_at: None,
            bookmarks_seen: false,
            resync_at: None,
            round: 0,
            internal_errors: None,
            availability: Availability::Unknown,
            last_error: None,
            counters: Counters::default(),
            config,
        }
    }

    /// Handles an input and returns the next action. `jitter` is uniform in `[0, 1)`, with a new value for each step.
    pub(crate) fn step(&mut self, input: ReflectorInput, now: Duration, jitter: f64) -> ReflectorStep {
        let mut turn = Turn { now, jitter, events: Vec::new(), reports: Vec::new(), server_version: None };
        let action = self.advance(input, &mut turn);
        ReflectorStep {
            holds_list_permit: matches!(
                self.state,
                State::Checking | State::Listing(_) | State::Streaming(_) | State::Comparing(_)
            ),
            server_version: turn.server_version,
            events: turn.events,
            reports: turn.reports,
            action,
        }
    }

    fn advance(&mut self, input: ReflectorInput, turn: &mut Turn) -> ReflectorAction {
        match (std::mem::replace(&mut self.state, State::Stopped), input) {
            (State::Stopped, _) | (_, ReflectorInput::Stop) => ReflectorAction::Done,
            (State::Idle { check: true }, ReflectorInput::Start) if self.has_listed => self.begin_check(),
            (State::Idle { .. }, ReflectorInput::Start) if self.has_listed => self.begin_watch(turn),
            (State::Idle { .. }, ReflectorInput::Start) => self.begin_cycle(turn),
            (State::Checking, ReflectorInput::Page(answer)) => self.checked(answer, turn),
            (State::Comparing(held), ReflectorInput::Compared(comparison)) => self.compared(held, comparison, turn),
            (State::Listing(listing), ReflectorInput::Page(answer)) => self.page(listing, answer, turn),
            (State::Streaming(list), ReflectorInput::Opened(Ok(()))) if !list.is_open() => {
                self.streaming_opened(list, turn)
            }
            (State::Streaming(list), ReflectorInput::Opened(Err(failure))) if !list.is_open() => {
                self.streaming_failed(&list, failure, turn)
            }
            (State::Streaming(list), ReflectorInput::Received(batch)) if list.is_open() => {
                self.receive_streaming(list, batch, turn)
            }
            (State::Streaming(list), ReflectorInput::Ended(end)) if list.is_open() => {
                self.streaming_ended(&list, end, turn)
            }
            (State::Streaming(list), ReflectorInput::Timer) if list.is_open() => self.read_streaming(list, turn),
            (State::Watching(stream), ReflectorInput::Opened(Ok(()))) if !stream.is_open() => {
                self.watch_opened(stream, turn)
            }
            (State::Watching(stream), ReflectorInput::Opened(Err(failure))) if !stream.is_open() => {
                self.watch_refused(&stream, failure, turn)
            }
            (State::Watching(stream), ReflectorInput::Received(batch)) if stream.is_open() => {
                self.receive(stream, batch.into_iter(), turn)
            }
            (State::Watching(stream), ReflectorInput::Ended(end)) if stream.is_open() => {
                self.watch_ended(&stream, end, turn)
            }
            (State::Watching(stream), ReflectorInput::Timer) if stream.is_open() => self.read(stream, turn),
            (State::Waiting { until, then }, ReflectorInput::Timer) if until <= turn.now => self.resume(then, turn),
            (State::Waiting { until, then }, ReflectorInput::Timer) => {
                self.state = State::Waiting { until, then };
                ReflectorAction::Wait { until }
            }
            (state, _) => {
                self.state = state;
                ReflectorAction::Keep
            }
        }
    }

    /// Starts a cycle with its initial state (R-10, R-11).
    fn begin_cycle(&mut self, turn: &mut Turn) -> ReflectorAction {
        self.unmarked = 0;
        let stream = match self.config.streaming_lists {
            StreamingLists::Never => false,
            StreamingLists::Always => true,
            StreamingLists::Auto => self.streaming_retry_at.is_none_or(|at| at <= turn.now),
        };
        if stream { self.begin_streaming(turn) } else { self.begin_list() }
    }

    /// Waits for one backoff delay, or longer if the server asks for it (R-5).
    fn wait(&mut self, then: Then, retry_after: Option<Duration>, turn: &Turn) -> ReflectorAction {
        let delay = self.backoff.fail(turn.now, turn.jitter);
        let delay = retry_after.map_or(delay, |after| delay.max(after.min(RETRY_AFTER_MAX)));
        let until = turn.now.saturating_add(delay);
        if then == Then::Cycle {
            self.resync_at = None;
            self.doubted = None;
        }
        self.state = State::Waiting { until, then };
        ReflectorAction::Wait { until }
    }

    fn resume(&mut self, then: Then, turn: &mut Turn) -> ReflectorAction {
        match then {
            Then::Cycle => self.begin_cycle(turn),
            Then::Stream => self.begin_streaming(turn),
            Then::Watch => self.open_watch(turn),
            Then::Check => self.begin_check(),
        }
    }

    /// Emits a complete state as one Replace (R-23, R-33).
    fn replace(&mut self, items: Vec<Object>, spared: Vec<Object>, version: ResourceVersion, turn: &mut Turn) {
        self.unavailable = false;
        self.has_listed = true;
        self.unmarked = 0;
        self.backoff.healthy(turn.now);
        self.last = version.clone();
        turn.events.push(ReflectorEvent::Replace { items, spared, resource_version: version });
    }

    /// Records and counts a failure.
    fn note(&mut self, verb: Verb, failure: &Failure) {
        let is_unreadable = matches!(failure, Failure::FrameTooLong { .. } | Failure::Undecodable(_));
        self.counters.unreadable += u64::from(is_unreadable);
        match failure.status().map(|status| status.code) {
            Some(404) => self.availability = Availability::Missing,
            Some(401) => self.availability = Availability::Unauthorized,
            Some(403) => self.availability = Availability::Forbidden(verb),
            _ => {}
        }
        self.last_error = Some(failure.clone());
    }
}

/// Longest wait that a server's `Retry-After` can cause. The backoff may be longer.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(2);

/// Returns true if `failure` requires a request for another version (R-22, R-34).
fn refuses_version(failure: &Failure) -> bool {
    failure.status().is_some_and(|status| status.is_expired() || status.too_large)
}

/// Returns true if the same request may succeed later, so that no new list is needed (R-34, R-40).
fn is_temporary(failure: &Failure) -> bool {
    match failure {
        Failure::Refused | Failure::Disconnected(_) | Failure::TimedOut(_) => true,
        Failure::Status(status) => status.code == 429 && !status.is_expired(),
        _ => false,
    }
}

fn retry_after(failure: &Failure) -> Option<Duration> {
    failure.status().and_then(|status| status.retry_after)
}
