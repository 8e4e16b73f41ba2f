//! Status of a handler, and requests to it, for `/v1/handlers` and the metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use super::{attempts::AttemptOutcome, core::CoreView, router::Router};
use crate::{
    histogram::Histogram,
    journal::{ReaderId, ReaderStats, Sequence},
    mutex::lock,
    notification::Event,
    supervisor::Exit,
};

/// State of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerState {
    /// No attempt was made yet, or the handler is being opened.
    #[default]
    Starting,
    /// The last attempt succeeded, or none was needed.
    Running,
    /// The last attempt of some delivery failed; it will be retried.
    Retrying,
    /// Paused by a user; events wait.
    Paused,
    /// An attempt has taken longer than `[supervision] hung_after`, and too many threads are hung to start another.
    Hung,
    /// Unexpected end of its actor, which will be restarted.
    Failed,
    /// Ended, on request or because its sink is closed for good.
    Stopped,
}

/// State and counters of a handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerCounts {
    /// `Starting`, `Running`, `Failed` or `Stopped`; the other states are derived from the other fields.
    pub state: HandlerState,
    /// Events delivered, including dead letters of other handlers.
    pub delivered: u64,
    /// Attempts that failed and were retried.
    pub retried: u64,
    /// Attempts among these that panicked.
    pub panics: u64,
    /// Starts of the handler's actor, including the first one.
    pub lives: u64,
    /// Times that the handler's thread hung and was replaced.
    pub threads_replaced: u64,
    /// Events given up without a dead letter.
    pub given_up: u64,
    /// Events given up and accepted by the dead letter.
    pub dead_lettered: u64,
    /// Events given up because they were too large in every form.
    pub too_large: u64,
    /// Events that were too large for the sink, and were delivered without their `old`.
    pub without_old: u64,
    /// Events that were too large for the sink, and were delivered as a reference.
    pub references: u64,
    /// Set while an attempt waits for a hung thread that cannot be replaced.
    pub is_hung: bool,
    /// State of the deliveries.
    pub core: CoreView,
    /// Start of the oldest running attempt, in microseconds since the Unix epoch.
    pub oldest_attempt: Option<i64>,
    /// Last error, and its time in microseconds since the Unix epoch.
    pub last_error: Option<(String, i64)>,
}

impl HandlerCounts {
    /// Records an error at the current time.
    pub fn note_error(&mut self, error: impl Into<String>) {
        self.last_error = Some((error.into(), Timestamp::now().as_microsecond()));
    }
}

/// Switch that pauses a handler. It outlives the handler's actors and sinks.
#[derive(Clone, Debug, Default)]
pub struct PauseSwitch(watch::Sender<bool>);

impl PauseSwitch {
    /// Pauses or resumes the handler.
    pub fn set(&self, paused: bool) {
        self.0.send_replace(paused);
    }

    /// Returns true if it is paused.
    pub fn is_paused(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns a receiver of its state.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// Upper bounds for the age of delivered events, in seconds.
const AGE_BOUNDS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0, 1_800.0];
/// Upper bounds for the duration of a call, in seconds.
const CALL_BOUNDS: &[f64] = &[0.000_25, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];
/// Upper bounds for the number of events of a call.
const BATCH_BOUNDS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1_000.0, 4_000.0];

/// Histograms of one handler.
#[derive(Debug)]
pub struct HandlerTimings {
    /// Seconds from the append of an event to the journal until it was delivered. Only events appended in this run are
    /// counted, so that the time between two runs does not count.
    pub event_age: Histogram,
    /// Duration of calls in which the whole batch was delivered, in seconds.
    pub delivered_calls: Histogram,
    /// Duration of failed calls, including panics and timeouts, in seconds.
    pub failed_calls: Histogram,
    /// Number of events per call, including repeated calls.
    pub call_events: Histogram,
}

impl Default for HandlerTimings {
    fn default() -> Self {
        Self {
            event_age: Histogram::new(AGE_BOUNDS),
            delivered_calls: Histogram::new(CALL_BOUNDS),
            failed_calls: Histogram::new(CALL_BOUNDS),
            call_events: Histogram::new(BATCH_BOUNDS),
        }
    }
}

impl HandlerTimings {
    /// Counts the end of a call. `earlier` is the last position of earlier runs.
    fn observe(&self, outcome: &AttemptOutcome, events: &[Event], took: Duration, now_micros: i64, earlier: Sequence) {
        self.call_events.observe_count(events.len());
        if *outcome != AttemptOutcome::Delivered {
            self.failed_calls.observe(took);
            return;
        }
        self.delivered_calls.observe(took);
        // Changes of one transaction have one time.
        for same in events.chunk_by(|one, next| one.record.time_micros == next.record.time_micros) {
            let Some(first) = same.first() else { continue };
            let counted = same.iter().filter(|event| event.record.sequence > earlier).count() as u64;
            let age = now_micros.saturating_sub(first.record.time_micros).max(0).cast_unsigned();
            self.event_age.observe_many(Duration::from_micros(age).as_secs_f64(), counted);
        }
    }
}

/// Status of one handler.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HandlerView {
    /// Name of the `[handlers.*]` entry.
    pub name: String,
    /// `stdout`, `file`, `blackhole`, or the type given by the library user.
    #[serde(rename = "type")]
    pub kind: String,
    /// State of the handler.
    pub state: HandlerState,
    /// Watched types whose changes it receives, as `plural.group`.
    pub types: Vec<String>,
    /// Waiting events, including those in flight.
    pub queued: u64,
    /// Events delivered.
    pub delivered: u64,
    /// Attempts that failed and were retried.
    pub retried: u64,
    /// Attempts among these that panicked.
    pub panics: u64,
    /// Restarts of its actor, and replacements of its hung thread.
    pub restarts: u64,
    /// Events lost because its buffer was full, or given up without a dead letter.
    pub dropped: u64,
    /// Events that its dead letter accepted.
    pub dead_lettered: u64,
    /// Events refused by `changed` and `when`.
    pub filtered: u64,
    /// Events among these for which `when` could not be evaluated.
    pub rule_errors: u64,
    /// The last of them, and its error; `null` if there was none.
    pub last_rule_error: Option<String>,
    /// Events coalesced into later ones because its buffer was full.
    pub coalesced: u64,
    /// Updates that lost their `old` because its buffer was full.
    pub olds_given_up: u64,
    /// Set when the whole initial state is delivered or given up (S-8, S-9).
    pub synced: bool,
    /// Position up to which all events are delivered or given up.
    pub position: u64,
    /// Seconds since the oldest waiting event was journaled; `null` if none waits.
    #[serde(rename = "oldestUndeliveredAgeSeconds")]
    pub oldest_undelivered_age_seconds: Option<f64>,
    /// Deliveries in progress, including those that wait for a retry.
    pub in_flight: u64,
    /// Set while a delivery waits for `rate_limit`, or for a delay that the sink asked for.
    pub rate_limited: bool,
    /// Events that were too large for the sink, and were delivered without their `old`.
    pub without_old: u64,
    /// Events that were too large for the sink, and were delivered as a reference.
    pub references: u64,
    /// Events given up because they were too large in every form.
    pub too_large: u64,
    /// Seconds since the start of the oldest running attempt; `null` between attempts.
    #[serde(rename = "inFlightSeconds")]
    pub in_flight_seconds: Option<f64>,
    /// Last error; `null` if there was none.
    pub last_error: Option<String>,
    /// Seconds since the last error.
    #[serde(rename = "lastErrorAgeSeconds")]
    pub last_error_age_seconds: Option<f64>,
    /// Histograms of the handler.
    #[serde(skip)]
    pub timings: Arc<HandlerTimings>,
}

/// Request to a running handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Start no delivery; running deliveries end. It lasts until [`Control::Resume`] or a restart.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Deliver again the events that it gave up, if they are still known.
    Replay,
}

/// The shared status of one handler.
#[derive(Debug)]
pub struct HandlerStatus {
    name: String,
    kind: String,
    switch: PauseSwitch,
    counts: Mutex<HandlerCounts>,
    timings: Arc<HandlerTimings>,
    reader: Mutex<Option<(Router, ReaderId)>>,
}

impl HandlerStatus {
    /// Makes the status of a handler; `kind` is its type.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(name: &str, kind: &str) -> Self {
        Self::with_switch(name, kind, PauseSwitch::default())
    }

    /// Makes the status of a handler, paused by an existing switch.
    pub fn with_switch(name: &str, kind: &str, switch: PauseSwitch) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        let (counts, timings, reader) = (Mutex::default(), Arc::default(), Mutex::default());
        Self { name, kind, switch, counts, timings, reader }
    }

    /// Returns its pause switch.
    pub fn switch(&self) -> &PauseSwitch {
        &self.switch
    }

    /// Executes a request; returns the number of events that will be delivered again.
    pub fn control(&self, control: Control) -> u64 {
        match control {
            Control::Pause => self.switch.set(true),
            Control::Resume => self.switch.set(false),
            Control::Replay => return self.of_reader(|router, reader| router.journal().replay(reader).queued),
        }
        0
    }

    fn of_reader<T: Default>(&self, ask: impl FnOnce(&Router, ReaderId) -> T) -> T {
        lock(&self.reader).as_ref().map(|(router, reader)| ask(router, *reader)).unwrap_or_default()
    }

    /// Returns the handler's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the reader of this handler, for its numbers and types.
    pub fn attach(&self, router: Router, reader: ReaderId) {
        *lock(&self.reader) = Some((router, reader));
    }

    /// Locks the counters for a change. Hold the lock only for a few assignments.
    pub fn lock(&self) -> MutexGuard<'_, HandlerCounts> {
        lock(&self.counts)
    }

    /// Counts the end of a call in the histograms.
    pub(super) fn observe_call(&self, outcome: &AttemptOutcome, events: &[Event], took: Duration) {
        let earlier = self.of_reader(|router, _| Some(router.journal().earlier())).unwrap_or(Sequence(0));
        self.timings.observe(outcome, events, took, Timestamp::now().as_microsecond(), earlier);
    }

    /// Records the start of its actor.
    pub fn begin_life(&self) {
        let mut counts = self.lock();
        counts.lives += 1;
        counts.state = HandlerState::Running;
        (counts.is_hung, counts.core, counts.oldest_attempt) = (false, CoreView::default(), None);
    }

    /// Records that its actor has ended unexpectedly.
    pub fn end_life(&self, exit: &Exit) {
        let mut counts = self.lock();
        counts.state = HandlerState::Failed;
        counts.note_error(format!("handler actor {exit}"));
    }

    /// Sets the state of the deliveries; `oldest_attempt` is the age of the oldest running attempt.
    pub(super) fn show(&self, core: CoreView, oldest_attempt: Option<Duration>) {
        let micros = |age: Duration| {
            Timestamp::now().as_microsecond().saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX))
        };
        let mut counts = self.lock();
        (counts.core, counts.oldest_attempt) = (core, oldest_attempt.map(micros));
    }

    /// Returns the numbers of its reader.
    pub fn reader_stats(&self) -> ReaderStats {
        self.of_reader(|router, reader| router.journal().stats(reader))
    }

    /// Returns true if all initial events of its reader are delivered or given up (S-8).
    pub fn has_synced(&self) -> bool {
        self.of_reader(|router, reader| router.journal().has_synced(reader))
    }

    /// Returns a copy of the whole status.
    pub fn view(&self, now: Timestamp) -> HandlerView {
        let stats = self.reader_stats();
        let counts = self.lock().clone();
        let seconds_since = |micros: i64| {
            Duration::from_micros(now.as_microsecond().saturating_sub(micros).max(0).cast_unsigned()).as_secs_f64()
        };
        HandlerView {
            name: self.name.clone(),
            kind: self.kind.clone(),
            state: match counts.state {
                HandlerState::Stopped | HandlerState::Failed => counts.state,
                _ if self.switch.is_paused() => HandlerState::Paused,
                _ if counts.is_hung => HandlerState::Hung,
                _ if counts.core.is_failing => HandlerState::Retrying,
                other => other,
            },
            types: self.of_reader(|router, reader| router.table().types(reader)),
            queued: stats.queued + stats.in_flight,
            delivered: counts.delivered,
            retried: counts.retried,
            panics: counts.panics,
            restarts: counts.lives.saturating_sub(1) + counts.threads_replaced,
            dropped: stats.dropped + counts.given_up,
            dead_lettered: counts.dead_lettered,
            filtered: stats.filtered,
            rule_errors: stats.filter_errors,
            last_rule_error: self.of_reader(|router, reader| router.journal().last_filter_error(reader)),
            coalesced: stats.coalesced,
            olds_given_up: stats.olds_given_up,
            synced: self.has_synced(),
            position: stats.position.0,
            oldest_undelivered_age_seconds: stats.oldest_micros.map(seconds_since),
            in_flight: counts.core.in_flight as u64,
            rate_limited: counts.core.is_limited && !self.switch.is_paused(),
            without_old: counts.without_old,
            references: counts.references,
            too_large: counts.too_large,
            in_flight_seconds: counts.oldest_attempt.map(seconds_since),
            last_error_age_seconds: counts.last_error.as_ref().map(|(_, at)| seconds_since(*at)),
            last_error: counts.last_error.map(|(error, _)| error),
            timings: Arc::clone(&self.timings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::Change,
        handler::HandlerError,
        journal::{Record, UnitId, testing::*},
        notification::UnitInfo,
        object::ResourceType,
    };

    /// Returns events with these positions, appended at these times in microseconds.
    fn events(places: &[(u64, i64)]) -> Vec<Event> {
        let [group, version, kind, plural] = ["", "v1", "Thing", "things"].map(str::to_owned);
        let resource = ResourceType { group, version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "entry".to_owned(), resource, namespace: None });
        let change: Change = added("a", "u1", 1);
        let event = |&(place, time_micros): &(u64, i64)| {
            let (sequence, change) = (Sequence(place), change.clone());
            let record = Record { sequence, unit: UnitId(0), time_micros, change, old_lost: false };
            Event { unit: Arc::clone(&unit), record }
        };
        places.iter().map(event).collect()
    }

    fn counted(histogram: &Histogram) -> (u64, f64) {
        (histogram.snapshot().count(), histogram.snapshot().sum())
    }

    #[test]
    fn delivered_call_counts_events_and_their_ages() {
        let (timings, took) = (HandlerTimings::default(), Duration::from_millis(250));
        let events = events(&[(4, 1_000_000), (5, 1_000_000), (6, 1_500_000)]);
        timings.observe(&AttemptOutcome::Delivered, &events, took, 2_000_000, Sequence(3));
        assert_eq!(counted(&timings.event_age), (3, 1.0 + 1.0 + 0.5));
        assert_eq!(counted(&timings.delivered_calls), (1, 0.25));
        assert_eq!((counted(&timings.failed_calls), counted(&timings.call_events)), ((0, 0.0), (1, 3.0)));
    }

    #[test]
    fn failed_call_has_duration_but_no_ages() {
        let timings = HandlerTimings::default();
        let outcomes =
            [AttemptOutcome::Failed(HandlerError::Failed("no".into())), AttemptOutcome::Panicked("oh".into())];
        for outcome in outcomes {
            timings.observe(&outcome, &events(&[(1, 0)]), Duration::from_secs(2), 5_000_000, Sequence(0));
        }
        assert_eq!((counted(&timings.failed_calls), counted(&timings.call_events)), ((2, 4.0), (2, 2.0)));
        assert_eq!((counted(&timings.event_age), counted(&timings.delivered_calls)), ((0, 0.0), (0, 0.0)));
    }

    #[test]
    fn earlier_runs_and_clock_changes_distort_no_age() {
        let timings = HandlerTimings::default();
        let events = events(&[(7, 1_000_000), (8, 1_000_000), (9, 90_000_000)]);
        timings.observe(&AttemptOutcome::Delivered, &events, Duration::ZERO, 3_000_000, Sequence(7));
        assert_eq!(counted(&timings.event_age), (2, 2.0), "7 is of an earlier run; 9 seems to come from the future");
        assert_eq!(counted(&timings.call_events), (1, 3.0));
    }
}
