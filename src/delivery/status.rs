//! Status of a handler, and requests to the handler, for `/v1/handlers` and the metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use educe::Educe;
use jiff::Timestamp;
use serde::Serialize;
use tokio::{sync::watch, time::Instant};

use super::{attempts::AttemptOutcome, core::CoreView, router::Router};
use crate::{
    histogram::Histogram,
    journal::{ReaderId, Sequence},
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
    /// An attempt has taken longer than `[supervision] hung_after`. Its thread is not replaced, because too many of the handler's
    /// threads are hung.
    Hung,
    /// The handler's actor has ended unexpectedly. It will be restarted.
    Failed,
    /// Ended, on request or because its sink is closed for good.
    Stopped,
}

/// State and counters of a handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandlerCounts {
    /// Fields that the handler's actor counts or sets, since the handler was added or replaced. [`HandlerStatus::view`] fills in
    /// the fields that come from the journal and the clock, and adds the states `Paused` and `Hung`.
    pub view: HandlerView,
    /// Set while an attempt waits for a hung thread that cannot be replaced.
    pub is_hung: bool,
    /// Events that `once_per` has suppressed.
    pub suppressed: u64,
    oldest_attempt: Option<Instant>,
    next_attempt: Option<Instant>,
    last_error_at: Option<Instant>,
}

impl HandlerCounts {
    /// Records an error at the current time.
    pub(crate) fn note_error(&mut self, error: String) {
        (self.view.last_error, self.last_error_at) = (Some(error), Some(Instant::now()));
    }
}

/// Upper bounds for the age of delivered events, in seconds.
const AGE_BOUNDS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0, 1_800.0];
/// Upper bounds for the duration of a call, in seconds.
const CALL_BOUNDS: &[f64] = &[0.000_25, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];
/// Upper bounds for the number of events of a call.
const BATCH_BOUNDS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1_000.0, 4_000.0];

/// Histograms of one handler.
#[derive(Debug, Educe)]
#[educe(Default)]
pub struct HandlerTimings {
    /// Seconds from the append of an event to the journal until it was delivered. Only events appended in this run are
    /// counted, so that the time between two runs does not count.
    #[educe(Default = Histogram::new(AGE_BOUNDS))]
    pub event_age: Histogram,
    /// Duration of calls in which the whole batch was delivered, in seconds.
    #[educe(Default = Histogram::new(CALL_BOUNDS))]
    pub delivered_calls: Histogram,
    /// Duration of failed calls, including panics and timeouts, in seconds.
    #[educe(Default = Histogram::new(CALL_BOUNDS))]
    pub failed_calls: Histogram,
    /// Number of events in each call. A retry is a call of its own.
    #[educe(Default = Histogram::new(BATCH_BOUNDS))]
    pub call_events: Histogram,
}

impl HandlerTimings {
    /// Counts a call that has ended. `earlier` is the last position in the journal before this run.
    fn observe(&self, outcome: &AttemptOutcome, events: &[Event], took: Duration, now_micros: i64, earlier: Sequence) {
        self.call_events.observe_count(events.len());
        if outcome.is_err() {
            self.failed_calls.observe(took);
            return;
        }
        self.delivered_calls.observe(took);
        // Changes of one transaction have the same time.
        for same in events.chunk_by(|one, next| one.record.time_micros == next.record.time_micros) {
            let Some(first) = same.first() else { continue };
            let counted = same.iter().filter(|event| event.record.sequence > earlier).count() as u64;
            let age = now_micros.saturating_sub(first.record.time_micros).max(0).cast_unsigned();
            self.event_age.observe_many(Duration::from_micros(age).as_secs_f64(), counted);
        }
    }
}

/// Status of one handler.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HandlerView {
    /// Name of the `[handlers.*]` entry.
    pub name: String,
    /// Type of the handler's sink, such as `file` or `kafka`, or the type given by the library user.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// State of the handler.
    pub state: HandlerState,
    /// Watched types whose changes the handler receives, as `plural.group`.
    pub types: Vec<String>,
    /// Waiting events, including those in flight.
    pub queued: u64,
    /// Events delivered.
    pub delivered: u64,
    /// Failed attempts, including those that were not retried.
    pub retried: u64,
    /// Attempts that ended in a panic; `retried` includes them.
    pub panics: u64,
    /// Restarts of the handler's actor, and replacements of its hung threads.
    pub restarts: u64,
    /// Events lost because the handler's buffer was full, or given up without a dead letter.
    pub dropped: u64,
    /// Events that the handler's dead letter accepted.
    pub dead_lettered: u64,
    /// Events refused by `changed` and `when`, or suppressed by `once_per`.
    pub filtered: u64,
    /// Events for which `when` could not be evaluated; `filtered` includes them.
    pub rule_errors: u64,
    /// Last event for which `when` could not be evaluated, with the error; `null` if there was none.
    pub last_rule_error: Option<String>,
    /// Events for which `once_key` could not be rendered. Their object was the key.
    pub key_errors: u64,
    /// Last event for which `once_key` could not be rendered, with the error; `null` if there was none.
    pub last_key_error: Option<String>,
    /// Events coalesced into later ones because the handler's buffer was full.
    pub coalesced: u64,
    /// Updates that lost their `old` because the handler's buffer was full.
    pub olds_given_up: u64,
    /// Set when the whole initial state is delivered or given up (S-8, S-9).
    pub synced: bool,
    /// Position up to which all events are delivered or given up.
    pub position: u64,
    /// Seconds since the oldest waiting event was journaled; `null` if none waits.
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
    pub in_flight_seconds: Option<f64>,
    /// Seconds until the next attempt after a failure; `null` if no failed event waits for one.
    pub next_attempt_seconds: Option<f64>,
    /// Last error; `null` if there was none.
    pub last_error: Option<String>,
    /// Seconds since the last error; `null` if there was none.
    pub last_error_age_seconds: Option<f64>,
    /// Histograms of the handler.
    #[serde(skip)]
    pub timings: Arc<HandlerTimings>,
}

/// Request to a running handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Start no new attempt; running attempts continue to their end. The pause lasts until [`Control::Resume`], or until the
    /// process ends.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Deliver again the events that the handler gave up, if the journal still has them.
    Replay,
}

/// Shared status of one handler. A replaced handler gets a new status.
#[derive(Debug)]
pub(crate) struct HandlerStatus {
    pub(super) name: String,
    /// Set while the handler is paused. When the handler is replaced, its new status keeps this flag.
    pub(super) paused: watch::Sender<bool>,
    counts: Mutex<HandlerCounts>,
    router: Router,
    reader: ReaderId,
}

impl HandlerStatus {
    /// Makes the status of a handler with this reader; `kind` is the type of the handler's sink.
    pub(super) fn new(
        name: &str,
        kind: &'static str,
        paused: watch::Sender<bool>,
        router: Router,
        reader: ReaderId,
    ) -> Self {
        let name = name.to_owned();
        let view = HandlerView { name: name.clone(), kind, ..HandlerView::default() };
        let counts = Mutex::new(HandlerCounts { view, ..HandlerCounts::default() });
        Self { name, paused, counts, router, reader }
    }

    /// Executes a request; returns the number of events that will be delivered again.
    pub(crate) fn control(&self, control: Control) -> u64 {
        match control {
            Control::Pause | Control::Resume => {
                self.paused.send_replace(control == Control::Pause);
                0
            }
            Control::Replay => self.router.journal.replay(self.reader),
        }
    }

    /// Locks the counters for a change. Hold the lock only for a few assignments.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HandlerCounts> {
        lock(&self.counts)
    }

    /// Counts the end of a call in the histograms.
    pub(super) fn observe_call(&self, outcome: &AttemptOutcome, events: &[Event], took: Duration) {
        let (earlier, timings) = (self.router.journal.earlier(), Arc::clone(&self.lock().view.timings));
        timings.observe(outcome, events, took, Timestamp::now().as_microsecond(), earlier);
    }

    /// Records the start of the handler's actor.
    pub(super) fn begin_life(&self) {
        let mut counts = self.lock();
        counts.view.restarts += u64::from(counts.view.state == HandlerState::Failed);
        (counts.view.state, counts.is_hung) = (HandlerState::Running, false);
    }

    /// Records the unexpected end of the handler's actor.
    pub(super) fn end_life(&self, exit: &Exit) {
        let mut counts = self.lock();
        counts.view.state = HandlerState::Failed;
        counts.note_error(format!("handler actor {exit}"));
    }

    /// Sets the state of the running actor's deliveries. The times in `core` count from `clock`.
    pub(super) fn show(&self, core: &CoreView, clock: Instant) {
        let mut counts = self.lock();
        counts.view.state = if core.is_failing { HandlerState::Retrying } else { HandlerState::Running };
        counts.view.in_flight = core.in_flight as u64;
        counts.view.rate_limited = core.is_limited;
        counts.oldest_attempt = core.oldest_attempt.map(|at| clock + at);
        counts.next_attempt = core.next_attempt.map(|at| clock + at);
    }

    /// Returns true if all initial events of the handler's reader are delivered or given up (S-8).
    pub(crate) fn has_synced(&self) -> bool {
        self.router.journal.has_synced(self.reader)
    }

    /// Returns a copy of the whole status.
    pub(crate) fn view(&self) -> HandlerView {
        let (journal, is_paused) = (&self.router.journal, *self.paused.borrow());
        let stats = journal.stats(self.reader);
        let HandlerCounts { view, is_hung, suppressed, oldest_attempt, next_attempt, last_error_at } =
            self.lock().clone();
        let seconds_since = |at: Instant| at.elapsed().as_secs_f64();
        HandlerView {
            state: match view.state {
                HandlerState::Stopped | HandlerState::Failed => view.state,
                _ if is_paused => HandlerState::Paused,
                _ if is_hung => HandlerState::Hung,
                other => other,
            },
            types: self.router.table().types(self.reader),
            queued: stats.queued + stats.in_flight,
            dropped: stats.dropped + view.dropped,
            filtered: stats.filtered + suppressed,
            rule_errors: stats.filter_errors,
            last_rule_error: journal.last_filter_error(self.reader),
            coalesced: stats.coalesced,
            olds_given_up: stats.olds_given_up,
            synced: self.has_synced(),
            position: stats.position.0,
            oldest_undelivered_age_seconds: stats.oldest_micros.map(|micros| {
                let age = Timestamp::now().as_microsecond().saturating_sub(micros).max(0).cast_unsigned();
                Duration::from_micros(age).as_secs_f64()
            }),
            rate_limited: view.rate_limited && !is_paused,
            in_flight_seconds: oldest_attempt.map(seconds_since),
            next_attempt_seconds: next_attempt.map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64()),
            last_error_age_seconds: last_error_at.map(seconds_since),
            ..view
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::Change,
        delivery::attempts::AttemptError,
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
        timings.observe(&Ok(()), &events, took, 2_000_000, Sequence(3));
        assert_eq!(counted(&timings.event_age), (3, 1.0 + 1.0 + 0.5));
        assert_eq!(counted(&timings.delivered_calls), (1, 0.25));
        assert_eq!((counted(&timings.failed_calls), counted(&timings.call_events)), ((0, 0.0), (1, 3.0)));
    }

    #[test]
    fn failed_call_has_duration_but_no_ages() {
        let timings = HandlerTimings::default();
        let outcomes =
            [Err(AttemptError::Failed(HandlerError::Failed("no".into()))), Err(AttemptError::Panicked("oh".into()))];
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
        timings.observe(&Ok(()), &events, Duration::ZERO, 3_000_000, Sequence(7));
        assert_eq!(counted(&timings.event_age), (2, 2.0), "7 is of an earlier run; 9 seems to come from the future");
        assert_eq!(counted(&timings.call_events), (1, 3.0));
    }
}
