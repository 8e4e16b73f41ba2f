//! Status of a running unit, for `/v1/resources`, the metrics and the progress bars.
//!
//! Actors lock the status for a short time, once per batch. They rarely wait, because the actors of a unit share a thread and
//! readers only copy the view.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use strum::AsRefStr;

use crate::{
    histogram::Histogram,
    mutex::lock,
    object::ResourceType,
    trace::{self, Span, TraceContext},
};

/// Upper bounds of the buckets for durations of lists, in seconds. There are few buckets, because each unit has its own histogram.
const LIST_BOUNDS: &[f64] = &[0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

/// State of a unit, with its name in `/v1/resources`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AsRefStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum UnitState {
    /// The type does not exist, or discovery has not finished.
    #[default]
    Waiting,
    /// The server refuses the list or the watch: 401 or 403.
    Forbidden,
    /// A list or a streaming list is running, or about to start.
    Listing,
    /// A watch is open.
    Watching,
    /// Waiting before the next attempt.
    BackingOff,
    /// Restarted too often. Restarts continue, and the cache stays readable.
    Degraded,
    /// Stopped on request.
    Stopped,
}

/// Changes that a unit has applied, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Objects that were not in the cache before.
    pub added: u64,
    /// Objects with a new version.
    pub updated: u64,
    /// Objects deleted on the server, including tombstones.
    pub deleted: u64,
    /// Objects that left the scope of the unit.
    pub removed: u64,
    /// Updates that changed only fields in `ignore_changes`. The cache was updated, and no event was delivered.
    pub ignored: u64,
    /// Deletions that were found by a list, so the final state of the object is unknown. Also counted in `deleted`.
    pub tombstones: u64,
}

impl EventCounts {
    /// Returns the count of each kind, with its name in metrics.
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

/// Status of one unit.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitView {
    /// Name of the `[resources.*]` entry.
    pub name: String,
    /// The watched namespace; `null` for all namespaces, or for those that match `namespaces` of the entry.
    pub namespace: Option<String>,
    /// `v1`, `apps/v1`; empty while the type is unknown.
    pub api_version: String,
    /// `Pod`; empty while the type is unknown.
    pub kind: String,
    /// `pods`; while the type is unknown, the configured pattern.
    pub plural: String,
    /// State of the unit. In the stored view, it is the state of the unit's reflector; see [`UnitView::supervised`].
    pub state: UnitState,
    /// Explanation of the state, and advice. Set for `waiting` and `forbidden`. Also set for `listing` while a second list confirms
    /// the first one, or while the server's version is checked.
    pub message: Option<String>,
    /// Set when the initial state is complete in the cache.
    pub synced: bool,
    /// Objects in the cache.
    pub objects: u64,
    /// Memory of the cached objects in bytes, including the header of each object.
    pub bytes: u64,
    /// Resource version of the cache.
    pub resource_version: String,
    /// Number of deltas between reflector and indexer.
    pub queue_length: u64,
    /// Size of the objects in these deltas, in bytes.
    pub queue_bytes: u64,
    /// Changes applied since the start.
    pub events: EventCounts,
    /// Restarts of the unit's actors.
    pub restarts: u64,
    /// Lists requested, including the first.
    pub lists: u64,
    /// Duration of complete lists and streaming lists in seconds, from the first request to the last object.
    #[serde(skip)]
    pub list_duration: Arc<Histogram>,
    /// Watches opened.
    pub watches: u64,
    /// Documents from the server that were skipped, because they have another type or no name, or are nested too deeply.
    pub skipped: u64,
    /// Events dropped because the transform failed (F-61). The next list contains the objects of these events.
    pub transform_failures: u64,
    /// Values redacted because `where` of `[redact] paths` could not be evaluated.
    pub redact_errors: u64,
    /// Streams closed because no data arrived for too long.
    pub stalls: u64,
    /// Lists and watches aborted because they were malformed, or had an object longer than `max_frame`.
    pub unreadable: u64,
    /// Second lists requested because the first one would have deleted most of the cache.
    pub confirmations: u64,
    /// Last error; `null` if there was none.
    pub last_error: Option<String>,
    /// Age of the oldest delta that is not yet applied, in seconds; 0 if there is none.
    #[serde(rename = "lagSeconds")]
    pub lag_seconds: f64,
    /// State of the unit's actors, which hides the one of the reflector in [`UnitStatus::view`]; `None` while they run.
    #[serde(skip)]
    pub supervised: Option<UnitState>,
    /// Set if the unit was restarted too often; [`UnitStatus::view`] then sets `state` to `degraded`.
    #[serde(skip)]
    pub degraded: bool,
    /// Set if the unit was created after the first discovery.
    #[serde(skip)]
    pub late: bool,
    /// Seconds since the server last sent anything, bookmarks included; `null` if it has sent nothing yet.
    #[serde(rename = "lastActivitySeconds")]
    pub last_activity_seconds: Option<f64>,
    /// Time after which the type no longer delays readiness, because only a wildcard selects it; `None` if it is always required.
    #[serde(skip)]
    pub required_until: Option<Instant>,
    /// Reception time of the oldest delta that is not yet applied, for [`UnitView::lag_seconds`]; `None` if there is none.
    #[serde(skip)]
    pub waiting_since: Option<Instant>,
    /// Time at which the server last sent anything, for [`UnitView::last_activity_seconds`]; `None` if it has sent nothing yet.
    #[serde(skip)]
    pub last_activity: Option<Instant>,
}

impl UnitView {
    /// Returns true if the type delays readiness while it is not synced.
    #[expect(clippy::disallowed_methods, reason = "the time has no effect on the unit, only on what is shown")]
    pub fn is_required(&self) -> bool {
        self.required_until.is_none_or(|until| Instant::now() < until)
    }
}

/// Shared status of one unit.
#[derive(Debug)]
pub struct UnitStatus {
    view: Mutex<UnitView>,
    created: Instant,
    /// See [`UnitView::redact_errors`].
    redact_errors: Arc<AtomicU64>,
    /// Span of the last list or watch.
    span: Mutex<Option<TraceContext>>,
}

impl UnitStatus {
    /// Begins the span of a list or a watch; `does` is the name of the operation.
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

    /// Makes the status of a unit whose type is known.
    pub fn new(entry: &str, resource: &ResourceType, namespace: Option<&str>) -> Self {
        let mut status = Self::waiting(entry, &resource.plural);
        let view = status.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        view.namespace = namespace.map(str::to_owned);
        view.api_version = resource.api_version();
        view.kind.clone_from(&resource.kind);
        view.state = UnitState::Listing; // not `Waiting`, which would count as ready
        status
    }

    /// Uses `redact_errors` as the counter for [`UnitView::redact_errors`]. The redaction of the unit increments this counter.
    #[must_use]
    pub fn with_redact_errors(self, redact_errors: Arc<AtomicU64>) -> Self {
        Self { redact_errors, ..self }
    }

    /// Makes the status of a pattern that matches no served type yet.
    pub fn waiting(entry: &str, pattern: &str) -> Self {
        let view = UnitView {
            name: entry.to_owned(),
            plural: pattern.to_owned(),
            list_duration: Arc::new(Histogram::new(LIST_BOUNDS)),
            ..UnitView::default()
        };
        #[expect(clippy::disallowed_methods, reason = "the only user of this time is `required_until`")]
        let created = Instant::now();
        Self { view: Mutex::new(view), created, redact_errors: Arc::default(), span: Mutex::default() }
    }

    /// Limits the time for which the type delays readiness, counted from the creation of the status; `None` for no limit.
    pub fn require_for(&self, limit: Option<Duration>) {
        self.lock().required_until = limit.and_then(|limit| self.created.checked_add(limit));
    }

    /// Returns a copy of the view, with ages computed for the current time.
    pub fn view(&self) -> UnitView {
        let mut view = self.lock().clone();
        let seconds_since = |since: Instant| since.elapsed().as_secs_f64();
        view.lag_seconds = view.waiting_since.map_or(0.0, seconds_since);
        view.last_activity_seconds = view.last_activity.map(seconds_since);
        view.redact_errors = self.redact_errors.load(Ordering::Relaxed);
        view.state = view.supervised.unwrap_or(view.state);
        if view.degraded {
            view.state = UnitState::Degraded;
        }
        view
    }

    /// Locks the view for a change. Hold the lock only for a few assignments.
    pub fn lock(&self) -> MutexGuard<'_, UnitView> {
        lock(&self.view)
    }
}

/// Histograms for all units of an engine. With hundreds of types, one histogram per unit would be too many series.
#[derive(Debug)]
pub struct Timings {
    /// Duration from the request for a watch or streaming list to the head of its answer, in seconds. Only successful
    /// requests count.
    pub watch_open: Histogram,
    /// Duration from the decoding of a watch event until its batch is applied, published and released, in seconds.
    pub event_age: Histogram,
    /// Number of deltas in a batch for an indexer.
    pub batch_events: Histogram,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            watch_open: Histogram::new(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
            event_age: Histogram::new(&[
                0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
            ]),
            batch_events: Histogram::new(&[1.0, 4.0, 16.0, 64.0, 256.0, 1_000.0, 4_000.0, 16_000.0, 64_000.0]),
        }
    }
}

/// Counters of the configurations given to a running engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Number of applied configurations.
    pub applied: u64,
    /// Number of configurations refused because of errors.
    pub refused: u64,
    /// Time of the last applied configuration; `None` before the first one.
    pub last_applied: Option<Timestamp>,
    /// Time and first error of the last refused configuration; `None` if the last one was applied.
    pub refusal: Option<(Timestamp, String)>,
}

impl ReloadCounts {
    /// Counts a configuration that was applied, or refused because of an error.
    pub fn count(&mut self, outcome: Result<(), String>) {
        let now = Timestamp::now();
        match outcome {
            Ok(()) => {
                self.applied += 1;
                (self.last_applied, self.refusal) = (Some(now), None);
            }
            Err(error) => {
                self.refused += 1;
                self.refusal = Some((now, error));
            }
        }
    }
}

fn unit(view: &UnitView) -> trace::SpanUnit<'_> {
    trace::SpanUnit { api_version: &view.api_version, plural: &view.plural, namespace: view.namespace.as_deref() }
}
