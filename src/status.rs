//! What a person can see of a unit while it runs: the view behind `/v1/resources`, the metrics and the progress bars.
//!
//! One short lock per batch, taken by the actors of one unit, which share a thread; readers copy the view out.

mod reloads;
mod timings;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use serde::Serialize;
use strum::AsRefStr;

pub use self::{
    reloads::{ReloadCounts, Reloads},
    timings::Timings,
};
use crate::{
    histogram::Histogram,
    mutex::lock,
    object::ResourceType,
    trace::{self, Span, TraceContext},
};

/// State of a unit as `interfaces.md` §4 names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AsRefStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum UnitState {
    /// The type does not exist, or the server has not been asked which types there are.
    #[default]
    Waiting,
    /// The server refuses the list or the watch: 401 or 403.
    Forbidden,
    /// A list or a streaming list is under way, or about to begin.
    Listing,
    /// A watch is open.
    Watching,
    /// Waiting before the next attempt.
    BackingOff,
    /// Restarted too often; restarts go on, the cache stays readable.
    Degraded,
    /// Stopped as asked.
    Stopped,
}

/// Changes a unit has applied, by what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Objects that were not in the cache before.
    pub added: u64,
    /// Objects with a new version.
    pub updated: u64,
    /// Objects the server said are gone, tombstones included.
    pub deleted: u64,
    /// Objects that left what the unit shows.
    pub removed: u64,
    /// Updates that touched nothing but what `ignore_changes` names: the cache was refreshed, nobody was told.
    pub ignored: u64,
    /// Of `deleted`: found by a list, final state unknown.
    pub tombstones: u64,
}

impl EventCounts {
    /// Returns the count of each type, under its name in metrics.
    pub fn by_type(&self) -> [(&'static str, u64); 5] {
        [
            ("added", self.added),
            ("updated", self.updated),
            ("deleted", self.deleted),
            ("removed", self.removed),
            ("ignored", self.ignored),
        ]
    }
}

/// Everything visible of one unit.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitView {
    /// Name of the `[resources.*]` entry.
    pub name: String,
    /// The one namespace that is watched; `null` for all, and for those that `namespaces` of the entry leaves.
    pub namespace: Option<String>,
    /// `v1`, `apps/v1`; empty while the type is not known.
    pub api_version: String,
    /// `Pod`; empty while the type is not known.
    pub kind: String,
    /// `pods`; the pattern as written while the type is not known.
    pub plural: String,
    /// What the unit is doing.
    pub state: UnitState,
    /// What the state means and what to do about it, where that is not plain: `waiting`, `forbidden`, and `listing` where
    /// a list is confirmed or the server's version looked up.
    pub message: Option<String>,
    /// The initial state is complete in the cache.
    pub synced: bool,
    /// Objects in the cache.
    pub objects: u64,
    /// Bytes of the objects in the cache, their headers included.
    pub bytes: u64,
    /// Version of the cache.
    pub resource_version: String,
    /// Deltas waiting between reflector and indexer.
    pub queue_length: u64,
    /// Bytes of the objects among them.
    pub queue_bytes: u64,
    /// Changes applied since the start.
    pub events: EventCounts,
    /// Restarts of the unit's actors.
    pub restarts: u64,
    /// Lists asked for, the first included.
    pub lists: u64,
    /// Seconds that lists and streaming lists took which became complete, each from its first request to its last object.
    #[serde(skip)]
    pub list_duration: Arc<Histogram>,
    /// Watches opened.
    pub watches: u64,
    /// Documents that were skipped: another type, no name.
    pub skipped: u64,
    /// Events dropped because the transform failed (F-61); each shows again with the next list.
    pub transform_failures: u64,
    /// Values redacted because `where` of `[redact] paths` could not be evaluated.
    pub redact_errors: u64,
    /// Streams given up because nothing came for too long.
    pub stalls: u64,
    /// Answers and streams given up because they were malformed or had an object longer than `max_frame`.
    pub unreadable: u64,
    /// Second lists asked for, because the first would have deleted most of what is cached.
    pub confirmations: u64,
    /// The last thing that went wrong; `null` when nothing ever did.
    pub last_error: Option<String>,
    /// Seconds that the oldest delta not yet applied has waited; 0 at rest.
    #[serde(rename = "lagSeconds")]
    pub lag_seconds: f64,
    /// It was restarted too often; shown as the state.
    #[serde(skip)]
    pub degraded: bool,
    /// The unit was made after the first discovery.
    #[serde(skip)]
    pub late: bool,
    /// Seconds since the server last sent anything, a bookmark included; `null` before it did.
    #[serde(rename = "lastActivitySeconds")]
    pub last_activity_seconds: Option<f64>,
    /// What [`UnitView::lag_seconds`] is counted from when it is shown; `None` at rest.
    #[serde(skip)]
    pub waiting_since: Option<Instant>,
    /// What [`UnitView::last_activity_seconds`] is counted from when it is shown.
    #[serde(skip)]
    pub last_activity: Option<Instant>,
}

/// The shared view of one unit.
#[derive(Debug)]
pub struct UnitStatus {
    view: Mutex<UnitView>,
    /// See [`UnitView::redact_errors`].
    redact_errors: Arc<AtomicU64>,
    /// Span of the last list or watch.
    span: Mutex<Option<TraceContext>>,
}

impl UnitStatus {
    /// Begins the span of a list or a watch, as `does` says.
    pub(crate) fn begin_span(&self, does: &str) -> Span {
        if !trace::is_on() {
            return Span::NONE;
        }
        let span = Span::of_unit(does, &unit(&self.lock()));
        *lock(&self.span) = span.context();
        span
    }

    /// Begins the span of a batch that is being applied.
    pub(crate) fn begin_batch(&self, events: usize) -> Span {
        if !trace::is_on() {
            return Span::NONE;
        }
        let by = *lock(&self.span);
        Span::of_batch(&unit(&self.lock()), by, events)
    }

    /// Makes the view of a unit whose type is known.
    pub fn new(entry: &str, resource: &ResourceType, namespace: Option<&str>) -> Self {
        let mut status = Self::waiting(entry, &resource.plural);
        let view = status.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        view.namespace = namespace.map(str::to_owned);
        view.api_version = resource.api_version();
        view.kind.clone_from(&resource.kind);
        view.state = UnitState::Listing; // as good as: one that waits for its type would count as ready
        status
    }

    /// Shows what is counted elsewhere: see [`UnitView::redact_errors`].
    #[must_use]
    pub fn with_redact_errors(self, redact_errors: Arc<AtomicU64>) -> Self {
        Self { redact_errors, ..self }
    }

    /// Makes the view of a pattern that names no served type yet.
    pub fn waiting(entry: &str, pattern: &str) -> Self {
        let view = UnitView {
            name: entry.to_owned(),
            plural: pattern.to_owned(),
            list_duration: Arc::new(Histogram::new(timings::LIST_BOUNDS)),
            ..UnitView::default()
        };
        Self { view: Mutex::new(view), redact_errors: Arc::default(), span: Mutex::default() }
    }

    /// Copies the view out, with what is counted from then on as of now.
    pub fn view(&self) -> UnitView {
        let mut view = self.lock().clone();
        let seconds_since = |since: Instant| since.elapsed().as_secs_f64();
        view.lag_seconds = view.waiting_since.map_or(0.0, seconds_since);
        view.last_activity_seconds = view.last_activity.map(seconds_since);
        view.redact_errors = self.redact_errors.load(Ordering::Relaxed);
        if view.degraded {
            view.state = UnitState::Degraded;
        }
        view
    }

    /// Locks the view for a change; hold it for no longer than a few assignments.
    pub fn lock(&self) -> MutexGuard<'_, UnitView> {
        lock(&self.view)
    }
}

fn unit(view: &UnitView) -> trace::SpanUnit<'_> {
    trace::SpanUnit { api_version: &view.api_version, plural: &view.plural, namespace: view.namespace.as_deref() }
}
