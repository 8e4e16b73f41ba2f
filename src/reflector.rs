//! Mirrors one collection of the API server as a stream of events: list or streaming list, then watch, for ever.
//!
//! `Reflector` is the pure machine (rules R-1 … R-64 with D-1 … D-6); `reflector/actor.rs` carries its actions out.
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
//! `watching.rs` hold one phase each. A list that would delete most of what is known is confirmed by a second one:
//! `confirm.rs`. A watch from a saved version begins with a look at the server's: `check.rs`.

pub mod actor;
mod check;
mod confirm;
mod log;
mod listing;
pub mod messages;
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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    backoff::{Backoff, BackoffConfig},
    list_watch::{Failure, ListPage, ListRequest, WatchEvent, WatchRequest},
    object::{Object, ResourceVersion},
};

pub(crate) use confirm::{Comparison, Listed};
pub(crate) use report::{
    Availability, Counters, EndCause, GiveUpCause, ReflectorReport, ReflectorState, Verb, WaitReason,
};
use {
    confirm::{Doubted, Held},
    listing::Listing,
    stream::Stream,
    streaming::Streaming,
};

/// What the reflector emits: changes in stream order, and whole lists.
#[derive(Clone, Debug)]
pub enum ReflectorEvent {
    /// The server said `ADDED`.
    Added(Object),
    /// The server said `MODIFIED`.
    Updated(Object),
    /// The server said `DELETED`; the object is its final state.
    Deleted(Object),
    /// A complete list, or the complete snapshot of a streaming list (R-23, R-33).
    Replace {
        /// Every object of the collection, each key once.
        items: Vec<Object>,
        /// What it lacks and is not to be deleted: a second list had it, changed since this one (D7). The state that is
        /// known of it stays until the watch tells more.
        spared: Vec<Object>,
        /// Version of the list.
        resource_version: ResourceVersion,
    },
    /// The stream has come so far; no object changed (A-5).
    Bookmark(ResourceVersion),
    /// Cached objects shall be delivered again (R-60, R-61).
    Resync {
        /// Counts the resyncs of the unit from 1, over its restarts: by it a handler knows which are its own (S-11).
        round: u32,
    },
}

/// Whether lists are streamed (`WatchList`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamingLists {
    /// Streamed, with paged lists as the fallback.
    #[default]
    Auto,
    /// Streamed, or not at all.
    Always,
    /// Paged only.
    Never,
}

/// How a reflector asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReflectorConfig {
    /// Whether the initial state is streamed.
    pub streaming_lists: StreamingLists,
    /// Unmarked streams before a streaming list is given up (D-2).
    pub streaming_attempts_max: u32,
    /// The marker must come within this time of the opening and of each `ADDED` before it (D-2).
    pub marker_deadline: Duration,
    /// For so long a server that does not stream is not asked to again (D-2).
    pub streaming_retry_after: Duration,
    /// Objects a page: `None` pages by 500 where the server has to read etcd anyway, and asks its watch cache for
    /// everything at once (R-20); `Some(n)` always pages by `n`; `Some(0)` never pages (P-1).
    pub page_size: Option<u32>,
    /// `timeoutSeconds` is drawn from `[watch_timeout, 2 × watch_timeout]` for each watch (R-42).
    pub watch_timeout: Duration,
    /// How long after its `timeoutSeconds` a watch may still be open before it counts as stalled (D-6).
    pub watch_grace: Duration,
    /// Once a bookmark was seen, a watch without events or bookmarks for so long counts as stalled; zero: never (D-6).
    pub stall_after: Duration,
    /// For so long after a first 500 on a watch the watch is resumed instead of listed again; zero: never (R-45).
    pub internal_error_retry: Duration,
    /// Between two resyncs; zero: never (R-60).
    pub resync_period: Duration,
    /// Between cycles, and before a watch that needs patience (R-3, R-5).
    pub backoff: BackoffConfig,
}

impl Default for ReflectorConfig {
    fn default() -> Self {
        Self {
            streaming_lists: StreamingLists::Auto,
            streaming_attempts_max: 3,
            marker_deadline: Duration::from_mins(1),
            streaming_retry_after: Duration::from_mins(30),
            page_size: None,
            watch_timeout: Duration::from_mins(5),
            watch_grace: Duration::from_secs(15),
            stall_after: Duration::from_mins(3),
            internal_error_retry: Duration::ZERO,
            resync_period: Duration::ZERO,
            backoff: BackoffConfig::default(),
        }
    }
}

/// Where a reflector begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReflectorStart {
    /// With the initial state (R-1).
    #[default]
    Fresh,
    /// With a watch from the version that the store has reached: a restarted unit (D6). An unusable version (unset,
    /// `"0"`) is a fresh start.
    Resume(ResourceVersion),
    /// As [`Start::Resume`], from a version that was saved before a start of the process: first the server is asked
    /// whether it is as new (D7). It may have been restored from a backup meanwhile.
    Saved(ResourceVersion),
}

/// What has happened, as the shell tells it.
#[derive(Debug)]
pub(crate) enum ReflectorInput {
    /// Begin; the first input.
    Start,
    /// The answer to [`ReflectorAction::List`].
    Page(Result<ListPage, Failure>),
    /// The answer to [`ReflectorAction::Compare`].
    Compared(Comparison),
    /// The answer to [`ReflectorAction::OpenWatch`].
    Opened(Result<(), Failure>),
    /// A batch of the open stream; never cut or reordered.
    Received(Vec<WatchEvent>),
    /// The open stream ended; by an EOF if `Ok`.
    Ended(Result<(), Failure>),
    /// The time of [`ReflectorAction::Read`] or [`ReflectorAction::Wait`] has come.
    Timer,
    /// Stop for good (R-63).
    Stop,
}

/// What the shell does next. Everything but [`ReflectorAction::Read`], [`ReflectorAction::Compare`] and [`ReflectorAction::Keep`] closes a stream that
/// is open (R-46).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReflectorAction {
    /// Ask for a page and answer with [`ReflectorInput::Page`]. How long that may take is the source's to bound.
    List(ListRequest),
    /// Hold a list against what is known once all events are applied, and answer with [`ReflectorInput::Compared`].
    Compare(Listed),
    /// Open a watch and answer with [`ReflectorInput::Opened`]. How long that may take is the source's to bound; afterwards
    /// [`ReflectorAction::Read`] has a deadline (D-6).
    OpenWatch(WatchRequest),
    /// Read the open stream: the next batch is [`ReflectorInput::Received`], its end [`ReflectorInput::Ended`].
    ///
    /// When `until` comes first, [`ReflectorInput::Timer`].
    Read { until: Duration },
    /// Send nothing until then, then [`ReflectorInput::Timer`]. The reason is for people.
    Wait { until: Duration, reason: WaitReason },
    /// The input did not fit what was asked for, a late timer for instance: go on with the last action.
    Keep,
    /// Nothing any more: stopped.
    Done,
}

/// What one input led to.
#[derive(Debug)]
pub(crate) struct ReflectorStep {
    pub(crate) events: Vec<ReflectorEvent>,
    pub(crate) action: ReflectorAction,
    pub(crate) reports: Vec<ReflectorReport>,
    /// Set when `events` moved the version from which a watch may be resumed once they are applied.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold it against what the queue makes of the events"))]
    pub(crate) resume_version: Option<ResourceVersion>,
    /// Where the server is, when it was asked for that.
    pub(crate) server_version: Option<ResourceVersion>,
    /// The action is part of fetching an initial state: it needs a permit of `max_concurrent_lists`, to be kept until a
    /// step says `false`.
    pub(crate) holds_list_permit: bool,
}

/// The machine: mirrors one collection, for ever.
///
/// One input in, one [`ReflectorStep`] out; it waits for exactly one answer at a time. Times are on any monotonic clock of the
/// caller. It has no clock, no random source and no I/O, and it keeps no objects but those of an unfinished initial
/// state.
///
/// **Invariants:** nothing of an initial state is emitted before it is complete (P-5, R-31); no action but
/// [`ReflectorAction::Done`] follows [`ReflectorInput::Stop`] (R-63); a list is applied only if it is at least as new as what is known,
/// or the server's most recent (D-5); what a list would delete of most of the known is deleted only if a second list
/// lacks it too (D7).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own that survives cycles (R-7), none a state")]
pub(crate) struct Reflector {
    config: ReflectorConfig,
    state: State,
    /// The version synced or seen last (R-7).
    last: ResourceVersion,
    /// `last` was refused as expired or too large (R-7).
    unavailable: bool,
    /// The list that is being confirmed (D7).
    doubted: Option<Doubted>,
    /// The server's watch cache is off (R-21).
    force_pages: bool,
    /// An initial state was emitted, or is in the store from which this was resumed.
    has_listed: bool,
    backoff: Backoff,
    /// Unmarked streams of this cycle (D-2).
    unmarked: u32,
    /// The server does not stream; asked again at this time (D-2).
    streaming_retry_at: Option<Duration>,
    /// The server sends bookmarks (D-6).
    bookmarks_seen: bool,
    resync_at: Option<Duration>,
    /// The last resync.
    round: u32,
    /// Times of the first and the last of several 500s on a watch (R-45).
    internal_errors: Option<(Duration, Duration)>,
    availability: Availability,
    last_error: Option<Failure>,
    counters: Counters,
}

#[derive(Debug)]
enum State {
    /// Asks for the server's version first if `check`.
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
        reason: WaitReason,
        then: Then,
    },
    Stopped,
}

/// What follows a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Cycle,
    Stream,
    Watch,
    Check,
}

/// One step in the making.
struct Turn {
    now: Duration,
    jitter: f64,
    events: Vec<ReflectorEvent>,
    reports: Vec<ReflectorReport>,
    version_moved: bool,
    server_version: Option<ResourceVersion>,
}

impl Reflector {
    /// Makes a reflector. Its first input is [`ReflectorInput::Start`].
    pub(crate) fn new(config: ReflectorConfig, start: ReflectorStart) -> Self {
        let (last, check) = match start {
            ReflectorStart::Fresh => (ResourceVersion::unset(), false),
            ReflectorStart::Resume(version) => (version, false),
            ReflectorStart::Saved(version) => (version, true),
        };
        let last = Some(last).filter(stream::is_usable).unwrap_or_default();
        Self {
            has_listed: !last.is_unset(),
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

    /// Takes what has happened and returns what to do. `jitter` is uniform in `[0, 1)`, a new one for each step.
    pub(crate) fn step(&mut self, input: ReflectorInput, now: Duration, jitter: f64) -> ReflectorStep {
        let mut turn =
            Turn { now, jitter, events: Vec::new(), reports: Vec::new(), version_moved: false, server_version: None };
        let action = self.advance(input, &mut turn);
        ReflectorStep {
            holds_list_permit: matches!(
                self.state,
                State::Checking | State::Listing(_) | State::Streaming(_) | State::Comparing(_)
            ),
            resume_version: turn.version_moved.then(|| self.last.clone()),
            server_version: turn.server_version,
            events: turn.events,
            reports: turn.reports,
            action,
        }
    }

    /// Returns what it is doing.
    pub(crate) fn state(&self) -> ReflectorState {
        match (&self.state, &self.doubted) {
            (State::Listing(_) | State::Streaming(_), Some(doubted)) => ReflectorState::Confirming(doubted.comparison),
            (State::Idle { .. }, _) => ReflectorState::Idle,
            (State::Checking, _) => ReflectorState::Checking,
            (State::Listing(_) | State::Comparing(_), _) => ReflectorState::Listing,
            (State::Streaming(_), _) => ReflectorState::Streaming,
            (State::Watching(_), _) => ReflectorState::Watching,
            (&State::Waiting { until, reason, .. }, _) => ReflectorState::Waiting { until, reason },
            (State::Stopped, _) => ReflectorState::Stopped,
        }
    }

    /// Goes on counting resyncs behind `round`, the last one of the reflector before.
    #[must_use]
    pub(crate) fn after_round(self, round: u32) -> Self {
        Self { round, ..self }
    }

    /// Returns the last failure of a request or a stream, also after it was overcome.
    pub(crate) fn last_error(&self) -> Option<&Failure> {
        self.last_error.as_ref()
    }

    /// Returns whether the server lets us list and watch.
    pub(crate) fn availability(&self) -> Availability {
        self.availability
    }

    /// Returns what was counted.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
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
            (State::Waiting { until, then, .. }, ReflectorInput::Timer) if until <= turn.now => self.resume(then, turn),
            (State::Waiting { until, reason, then }, ReflectorInput::Timer) => {
                self.state = State::Waiting { until, reason, then };
                ReflectorAction::Wait { until, reason }
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

    /// Waits for one backoff delay, and for as long as the server asks (R-5).
    fn wait(&mut self, reason: WaitReason, then: Then, retry_after: Option<Duration>, turn: &Turn) -> ReflectorAction {
        let delay = self.backoff.fail(turn.now, turn.jitter);
        let delay = retry_after.map_or(delay, |after| delay.max(after.min(RETRY_AFTER_MAX)));
        let until = turn.now.saturating_add(delay);
        if then == Then::Cycle {
            self.resync_at = None;
            self.doubted = None;
        }
        self.state = State::Waiting { until, reason, then };
        ReflectorAction::Wait { until, reason }
    }

    fn resume(&mut self, then: Then, turn: &mut Turn) -> ReflectorAction {
        match then {
            Then::Cycle => self.begin_cycle(turn),
            Then::Stream => self.begin_streaming(turn),
            Then::Watch => self.open_watch(turn),
            Then::Check => self.begin_check(),
        }
    }

    /// Hands a complete state on, as one Replace (R-23, R-33).
    fn replace(&mut self, items: Vec<Object>, spared: Vec<Object>, version: ResourceVersion, turn: &mut Turn) {
        self.unavailable = false;
        self.has_listed = true;
        self.unmarked = 0;
        self.backoff.healthy(turn.now);
        self.last = version.clone();
        turn.version_moved = true;
        turn.events.push(ReflectorEvent::Replace { items, spared, resource_version: version });
    }

    /// Notes a failure for those who look, and counts it.
    fn note(&mut self, verb: Verb, failure: &Failure) {
        match failure {
            Failure::Status(status) if status.is_expired() => self.counters.expired += 1,
            Failure::FrameTooLong { .. } => self.counters.frames_too_long += 1,
            Failure::Undecodable(_) => self.counters.undecodable += 1,
            _ => {}
        }
        match WaitReason::of(failure) {
            WaitReason::Missing => self.availability = Availability::Missing,
            WaitReason::Forbidden if failure.status().is_some_and(|status| status.code == 401) => {
                self.availability = Availability::Unauthorized;
            }
            WaitReason::Forbidden => self.availability = Availability::Forbidden(verb),
            _ => {}
        }
        self.last_error = Some(failure.clone());
    }
}

/// No answer of a server makes us wait longer than this at once, a long backoff aside.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(2);

/// Returns whether `failure` says that another version must be asked for (R-22, R-34).
fn refuses_version(failure: &Failure) -> bool {
    failure.status().is_some_and(|status| status.is_expired() || status.too_large)
}

fn retry_after(failure: &Failure) -> Option<Duration> {
    failure.status().and_then(|status| status.retry_after)
}
