//! The watch phase: opening, events, end (R-40 …, D-1, D-5, D-6).

use std::{cmp::Ordering, time::Duration};

use super::{
    Availability, EndCause, ErrorSeries, Reflector, ReflectorAction, ReflectorEvent, ReflectorReport, State, Then,
    Turn, Verb, is_temporary, retry_after,
    stream::{Stream, is_usable},
};
use crate::{
    list_watch::{Failure, PassedOver, SkipReason, Status, WatchEvent, WatchRequest},
    object::{Object, ResourceVersion},
};

/// Minimum time between two HTTP 500s of different series.
const INTERNAL_ERROR_GAP: Duration = Duration::from_mins(1);

impl Reflector {
    /// Enters the watch phase: the initial state is known.
    pub(super) fn begin_watch(&mut self, turn: &Turn) -> ReflectorAction {
        self.arm_resync(turn);
        self.open_watch(turn)
    }

    /// Requests a watch from `last`.
    pub(super) fn open_watch(&mut self, turn: &Turn) -> ReflectorAction {
        let (stream, request) = self.new_stream(self.last.clone(), false, turn);
        self.counters.watches += 1;
        self.state = State::Watching(stream);
        ReflectorAction::OpenWatch(request)
    }

    /// Creates a stream and its request. Each request has a random timeout.
    pub(super) fn new_stream(
        &self,
        version: ResourceVersion,
        initial_events: bool,
        turn: &Turn,
    ) -> (Stream, WatchRequest) {
        let least = u32::try_from(self.config.watch_timeout.as_secs()).unwrap_or(u32::MAX / 2).clamp(1, u32::MAX / 2);
        let share = f64::from(least) * turn.jitter.clamp(0.0, 1.0);
        let timeout = Duration::from_secs_f64(f64::from(least) + share).as_secs();
        let lifetime = Duration::from_secs(timeout).saturating_add(self.config.watch_grace);
        let timeout_seconds = u32::try_from(timeout).unwrap_or(u32::MAX);
        let stream = Stream::new(version.clone(), turn.now, lifetime);
        (stream, WatchRequest { resource_version: version, initial_events, timeout_seconds })
    }

    pub(super) fn watch_opened(&mut self, mut stream: Stream, turn: &mut Turn) -> ReflectorAction {
        stream.opened_at = Some(turn.now);
        self.watch_confirmed(turn);
        self.read(stream, turn)
    }

    /// Records that a watch works. The collection is available, and the backoff's healthy period begins (D-3).
    pub(super) fn watch_confirmed(&mut self, turn: &Turn) {
        self.backoff.healthy(turn.now);
        self.availability = Availability::Available;
    }

    /// Handles a watch that could not be opened (R-40, T-3).
    pub(super) fn watch_refused(&mut self, stream: &Stream, failure: Failure, turn: &mut Turn) -> ReflectorAction {
        self.note(Verb::Watch, &failure);
        let after = retry_after(&failure);
        match failure {
            Failure::Disconnected(_) | Failure::TimedOut(_) => {
                turn.reports.push(ReflectorReport::WatchDelayed(failure));
                self.rewatch(stream, turn)
            }
            _ if is_temporary(&failure) => {
                turn.reports.push(ReflectorReport::WatchDelayed(failure));
                self.wait(Then::Watch, after, turn)
            }
            _ => {
                turn.reports.push(ReflectorReport::WatchStartFailed(failure));
                self.wait(Then::Cycle, after, turn)
            }
        }
    }

    /// Handles events of an open watch, in order (R-50 … R-53).
    pub(super) fn receive(
        &mut self,
        mut stream: Stream,
        batch: std::vec::IntoIter<WatchEvent>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        turn.events.reserve(batch.len());
        let mut counted = 0;
        // Index of the newest event in `turn.events`. The version is copied from this event only, not from every event.
        let mut newest = None;
        let mut end = None;
        for event in batch {
            let event = match event {
                WatchEvent::Added(object) => ReflectorEvent::Added(object),
                WatchEvent::Modified(object) => {
                    stream.unordered = false;
                    ReflectorEvent::Updated(object)
                }
                WatchEvent::Deleted(object) => {
                    stream.unordered = false;
                    ReflectorEvent::Deleted(object)
                }
                WatchEvent::Bookmark { resource_version, .. } => {
                    self.take_version(newest.take(), turn);
                    stream.unordered = false;
                    counted += 1;
                    stream.vouched |= self.bookmark(resource_version, turn);
                    continue;
                }
                WatchEvent::PassedOver { object, why } => {
                    self.take_version(newest.take(), turn);
                    counted += 1;
                    stream.vouched = true;
                    self.pass_over(&stream, &object, &why, turn);
                    continue;
                }
                WatchEvent::Skipped(reason) => {
                    self.skip(reason, turn);
                    continue;
                }
                WatchEvent::Error(status) => {
                    end = Some(Failure::Status(status));
                    break;
                }
                WatchEvent::Undecodable(what) => {
                    end = Some(Failure::Undecodable(what));
                    break;
                }
            };
            counted += 1;
            stream.vouched = true;
            if !stream.unordered {
                newest = Some(turn.events.len());
            }
            turn.events.push(event);
        }
        self.take_version(newest, turn);
        stream.accept(counted, turn.now);
        match end {
            None => self.read(stream, turn),
            Some(failure) => self.watch_ended(&stream, Err(failure), turn),
        }
    }

    /// Sets `last` to the version of the event `turn.events[place]`. An object without a version changes nothing.
    fn take_version(&mut self, place: Option<usize>, turn: &Turn) {
        let Some(ReflectorEvent::Added(object) | ReflectorEvent::Updated(object) | ReflectorEvent::Deleted(object)) =
            place.and_then(|place| turn.events.get(place))
        else {
            return;
        };
        let version = ResourceVersion::from(object.resource_version());
        if is_usable(&version) {
            self.last = version;
        }
    }

    /// Sets `last` to a bookmark's version, unless that version is lower than `last` (R-51, D-5). Returns true if `last` was set.
    fn bookmark(&mut self, version: ResourceVersion, turn: &mut Turn) -> bool {
        self.bookmarks_seen = true;
        if !is_usable(&version) || version.compare(&self.last) == Some(Ordering::Less) {
            return false;
        }
        self.last = version.clone();
        turn.events.push(ReflectorEvent::Bookmark(version));
        true
    }

    /// Handles an event that is withheld from the store. Emits a bookmark with the version of the event, unless the stream ignores
    /// versions.
    fn pass_over(&mut self, stream: &Stream, object: &Object, why: &PassedOver, turn: &mut Turn) {
        self.count_passed_over(object, why, turn);
        let version = ResourceVersion::from(object.resource_version());
        if !stream.unordered && is_usable(&version) {
            self.last = version.clone();
            turn.events.push(ReflectorEvent::Bookmark(version));
        }
    }

    /// Counts an event that is withheld because its object cannot be read, or its transform failed. The failed transforms of one step
    /// share one report.
    pub(super) fn count_passed_over(&mut self, object: &Object, why: &PassedOver, turn: &mut Turn) {
        let error = match why {
            PassedOver::Foreign => return,
            PassedOver::TooDeep => return self.note_unread(object, turn),
            PassedOver::TransformFailed(error) => error.clone(),
        };
        self.counters.transform_failures += 1;
        for report in &mut turn.reports {
            if let ReflectorReport::TransformFailed { count, .. } = report {
                *count += 1;
                return;
            }
        }
        turn.reports.push(ReflectorReport::TransformFailed { count: 1, first: error });
    }

    /// Counts an object that cannot be read. The unread objects of one step share one report.
    pub(super) fn note_unread(&mut self, object: &Object, turn: &mut Turn) {
        self.counters.skipped += 1;
        for report in &mut turn.reports {
            if let ReflectorReport::Unread { count, .. } = report {
                *count += 1;
                return;
            }
        }
        turn.reports.push(ReflectorReport::Unread { count: 1, first: object.key().to_string() });
    }

    /// Counts a skipped document. The skipped documents of one step share one report.
    pub(super) fn skip(&mut self, reason: SkipReason, turn: &mut Turn) {
        self.counters.skipped += 1;
        for report in &mut turn.reports {
            if let ReflectorReport::Skipped { count, .. } = report {
                *count += 1;
                return;
            }
        }
        turn.reports.push(ReflectorReport::Skipped { count: 1, first: reason });
    }

    /// Emits a resync if it is due. Then continues reading, unless the stream was silent or open for too long (D-6).
    pub(super) fn read(&mut self, stream: Stream, turn: &mut Turn) -> ReflectorAction {
        if self.resync_at.is_some_and(|at| at <= turn.now) {
            self.round = self.round.wrapping_add(1);
            turn.events.push(ReflectorEvent::Resync { round: self.round });
            self.arm_resync(turn);
        }
        let mut until = stream.ends_at();
        if self.bookmarks_seen && !self.config.stall_after.is_zero() {
            until = until.min(stream.alive_at().saturating_add(self.config.stall_after));
        }
        if until <= turn.now {
            self.counters.stalls += 1;
            let silent = turn.now.saturating_sub(stream.alive_at());
            return self.close(&stream, EndCause::Stalled { silent }, turn);
        }
        let until = self.resync_at.map_or(until, |at| at.min(until));
        self.state = State::Watching(stream);
        ReflectorAction::Read { until }
    }

    pub(super) fn arm_resync(&mut self, turn: &Turn) {
        let period = self.config.resync_period;
        self.resync_at = (!period.is_zero()).then(|| turn.now.saturating_add(period));
    }

    /// Handles the end of a watch (R-43 … ).
    pub(super) fn watch_ended(
        &mut self,
        stream: &Stream,
        end: Result<(), Failure>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        if let Err(failure) = &end {
            self.note(Verb::Watch, failure);
        }
        match end {
            Ok(()) | Err(Failure::Disconnected(_) | Failure::Refused) if stream.is_short(turn.now) => {
                turn.reports.push(ReflectorReport::WatchEnded { cause: EndCause::Short, relist: true });
                self.wait(Then::Cycle, None, turn)
            }
            Ok(()) | Err(Failure::Disconnected(_) | Failure::Refused) => self.close(stream, EndCause::Closed, turn),
            Err(Failure::Status(status)) => self.watch_error(stream, status, turn),
            Err(failure) => {
                turn.reports.push(ReflectorReport::WatchEnded { cause: EndCause::Broken(failure), relist: true });
                self.wait(Then::Cycle, None, turn)
            }
        }
    }

    /// Handles an ERROR on the stream.
    fn watch_error(&mut self, stream: &Stream, status: Status, turn: &mut Turn) -> ReflectorAction {
        let after = status.retry_after;
        let internal = status.code == 500 || status.reason == "InternalError";
        if status.code == 429 && self.is_resumable(stream) {
            turn.reports.push(ReflectorReport::WatchEnded { cause: EndCause::Error(status), relist: false });
            return self.wait(Then::Watch, after, turn);
        }
        if internal && self.tolerates_internal_error(turn.now) {
            return self.close(stream, EndCause::Error(status), turn);
        }
        turn.reports.push(ReflectorReport::WatchEnded { cause: EndCause::Error(status), relist: true });
        self.wait(Then::Cycle, after, turn)
    }

    /// Returns true if an HTTP 500 requires no new list: the series of 500s began at most `internal_error_retry` ago.
    fn tolerates_internal_error(&mut self, now: Duration) -> bool {
        let budget = self.config.internal_error_retry;
        if budget.is_zero() {
            return false;
        }
        let current = self.internal_errors.filter(|series| now.saturating_sub(series.last) < INTERNAL_ERROR_GAP);
        let first = current.map_or(now, |series| series.first);
        self.internal_errors = Some(ErrorSeries { first, last: now });
        now.saturating_sub(first) <= budget
    }

    /// Ends a stream; the watch is resumed if possible.
    fn close(&mut self, stream: &Stream, cause: EndCause, turn: &mut Turn) -> ReflectorAction {
        turn.reports.push(ReflectorReport::WatchEnded { cause, relist: !self.is_resumable(stream) });
        self.rewatch(stream, turn)
    }

    /// Returns true if a watch may follow the stream without a list. Either there is a version to resume from, or the stream was
    /// requested without a version and has shown only `ADDED`.
    fn is_resumable(&self, stream: &Stream) -> bool {
        is_usable(&self.last) || stream.unordered
    }

    /// Opens the next watch: at once after a stream of at least a second, otherwise after a wait (R-43, D-1). After a suspiciously
    /// silent stream, checks the version of the server first. If no watch can be resumed, waits and then starts a new cycle.
    fn rewatch(&mut self, stream: &Stream, turn: &mut Turn) -> ReflectorAction {
        match (stream.is_quick(turn.now), self.is_resumable(stream)) {
            (false, true) if is_usable(&self.last) && stream.is_suspicious(turn.now) => self.begin_check(),
            (false, true) => self.open_watch(turn),
            (true, true) => self.wait(Then::Watch, None, turn),
            (_, false) => self.wait(Then::Cycle, None, turn),
        }
    }
}
