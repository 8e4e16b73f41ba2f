//! What a person can see of a unit while it runs: the view behind `/v1/resources`, the metrics and the progress bars.
//!
//! One short lock per batch, taken by the actors of one unit, which share a thread; readers copy the view out.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::Serialize;

use crate::object::ResourceType;

/// State of a unit as `interfaces.md` §4 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitState {
    /// The type does not exist, or the server has not been asked which types there are.
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

impl UnitState {
    /// Returns the name used in JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Forbidden => "forbidden",
            Self::Listing => "listing",
            Self::Watching => "watching",
            Self::BackingOff => "backing_off",
            Self::Degraded => "degraded",
            Self::Stopped => "stopped",
        }
    }
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
    /// Of `deleted`: found by a list, final state unknown.
    pub tombstones: u64,
}

/// Everything visible of one unit.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitView {
    /// Name of the `[resources.*]` entry.
    pub name: String,
    /// `v1`, `apps/v1`; empty while the type is not known.
    pub api_version: String,
    /// `Pod`; empty while the type is not known.
    pub kind: String,
    /// `pods`; the pattern as written while the type is not known.
    pub plural: String,
    /// What the unit is doing.
    pub state: UnitState,
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
    /// Watches opened.
    pub watches: u64,
    /// Documents that were skipped: another type, no name.
    pub skipped: u64,
    /// Streams given up because nothing came for too long.
    pub stalls: u64,
    /// The last thing that went wrong; `null` when nothing ever did.
    pub last_error: Option<String>,
    /// Seconds that the oldest delta not yet applied has waited; 0 at rest.
    #[serde(rename = "lagSeconds")]
    pub lag_seconds: f64,
    /// It was restarted too often; shown as the state.
    #[serde(skip)]
    pub degraded: bool,
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
}

impl UnitStatus {
    /// Makes the view of a unit whose type is known.
    pub fn new(entry: &str, resource: &ResourceType) -> Self {
        let mut status = Self::waiting(entry, &resource.plural);
        let view = status.view.get_mut().unwrap_or_else(PoisonError::into_inner);
        view.state = UnitState::Listing; // `waiting` would not keep the engine from being ready
        view.api_version = resource.api_version();
        view.kind.clone_from(&resource.kind);
        view.state = UnitState::Listing; // as good as: one that waits for its type would count as ready
        status
    }

    /// Makes the view of a pattern that names no served type yet.
    pub fn waiting(entry: &str, pattern: &str) -> Self {
        Self {
            view: Mutex::new(UnitView {
                name: entry.to_owned(),
                api_version: String::new(),
                kind: String::new(),
                plural: pattern.to_owned(),
                state: UnitState::Waiting,
                synced: false,
                objects: 0,
                bytes: 0,
                resource_version: String::new(),
                queue_length: 0,
                queue_bytes: 0,
                events: EventCounts::default(),
                restarts: 0,
                lists: 0,
                watches: 0,
                skipped: 0,
                stalls: 0,
                last_error: None,
                lag_seconds: 0.0,
                degraded: false,
                last_activity_seconds: None,
                waiting_since: None,
                last_activity: None,
            }),
        }
    }

    /// Copies the view out, with what is counted from then on as of now.
    pub fn view(&self) -> UnitView {
        let mut view = self.lock().clone();
        let seconds_since = |since: Instant| since.elapsed().as_secs_f64();
        view.lag_seconds = view.waiting_since.map_or(0.0, seconds_since);
        view.last_activity_seconds = view.last_activity.map(seconds_since);
        if view.degraded {
            view.state = UnitState::Degraded;
        }
        view
    }

    /// Locks the view for a change; hold it for no longer than a few assignments.
    pub fn lock(&self) -> MutexGuard<'_, UnitView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
