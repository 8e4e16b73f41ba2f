//! Initial state by a streaming list (R-30 … R-36, D-2).

use std::time::Duration;

use super::{
    GiveUpCause, Reflector, ReflectorAction, ReflectorReport, State, StreamingLists, Then, Turn, Verb, is_temporary,
    refuses_version, retry_after,
    snapshot::Snapshot,
    stream::{Stream, is_usable},
};
use crate::{
    list_watch::{Failure, PassedOver, WatchEvent},
    object::ResourceVersion,
};

/// Time between two warnings that the marker is late.
const MARKER_WARNING_PERIOD: Duration = Duration::from_secs(10);

/// A streaming list before its marker.
#[derive(Debug)]
pub(super) struct Streaming {
    stream: Stream,
    scratch: Snapshot,
    /// Time of the last `ADDED`, or of the opening: the marker's deadline counts from it (D-2).
    added_at: Duration,
    warn_at: Duration,
}

impl Streaming {
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_open()
    }
}

impl Reflector {
    /// Requests a streaming list.
    pub(super) fn begin_streaming(&mut self, turn: &Turn) -> ReflectorAction {
        let version = if self.unavailable { ResourceVersion::unset() } else { self.last.clone() };
        let (stream, request) = self.new_stream(version, true, turn);
        self.counters.streaming_lists += 1;
        let (added_at, warn_at) = (turn.now, turn.now.saturating_add(MARKER_WARNING_PERIOD));
        self.state = State::Streaming(Streaming { stream, scratch: Snapshot::default(), added_at, warn_at });
        ReflectorAction::OpenWatch(request)
    }

    pub(super) fn streaming_opened(&mut self, mut streaming: Streaming, turn: &mut Turn) -> ReflectorAction {
        streaming.stream.opened_at = Some(turn.now);
        streaming.added_at = turn.now;
        streaming.warn_at = turn.now.saturating_add(MARKER_WARNING_PERIOD);
        self.read_streaming(streaming, turn)
    }

    /// Fills the scratch store up to the marker; later events belong to the watch.
    pub(super) fn receive_streaming(
        &mut self,
        mut streaming: Streaming,
        batch: Vec<WatchEvent>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        let mut batch = batch.into_iter();
        let mut counted = 0;
        let mut failed = None;
        while let Some(event) = batch.next() {
            match event {
                WatchEvent::Added(object) => {
                    streaming.added_at = turn.now;
                    streaming.scratch.upsert(object);
                }
                WatchEvent::Modified(object) => {
                    streaming.scratch.upsert(object);
                }
                WatchEvent::Deleted(object) => streaming.scratch.remove(object.key()),
                // A marker with an unusable version is ignored: no watch could resume from it without losing events.
                WatchEvent::Bookmark { resource_version, initial_events_end: true } if is_usable(&resource_version) => {
                    self.bookmarks_seen = true;
                    streaming.stream.accept(counted + 1, turn.now);
                    return self.marked(streaming, resource_version, batch, turn);
                }
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::PassedOver { object, why } => {
                    streaming.added_at = turn.now;
                    self.count_passed_over(&object, &why, turn);
                    if why != PassedOver::Foreign {
                        streaming.scratch.upsert(object);
                    }
                }
                WatchEvent::Skipped(reason) => {
                    self.skip(reason, turn);
                    continue;
                }
                WatchEvent::Error(status) => {
                    failed = Some(Failure::Status(status));
                    break;
                }
                WatchEvent::Undecodable(what) => {
                    failed = Some(Failure::Undecodable(what));
                    break;
                }
            }
            counted += 1;
        }
        streaming.stream.accept(counted, turn.now);
        match failed {
            None => self.read_streaming(streaming, turn),
            Some(failure) => self.streaming_failed(&streaming, failure, turn),
        }
    }

    /// Emits the scratch store as one Replace; the same stream becomes the watch of this cycle.
    fn marked(
        &mut self,
        streaming: Streaming,
        version: ResourceVersion,
        rest: std::vec::IntoIter<WatchEvent>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        if self.refuses_older(&version, &streaming.stream.requested, turn) {
            return self.begin_streaming(turn);
        }
        let Streaming { stream, scratch, .. } = streaming;
        self.complete(scratch.into_items(), version, Some((stream, rest)), turn)
    }

    /// Continues the stream as the watch, after its state was emitted.
    pub(super) fn go_on(
        &mut self,
        mut stream: Stream,
        rest: std::vec::IntoIter<WatchEvent>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        self.watch_confirmed(turn);
        self.arm_resync(turn);
        stream.unordered = false;
        stream.vouched = true;
        self.receive(stream, rest, turn)
    }

    /// Continues reading, unless the marker is overdue (D-2).
    pub(super) fn read_streaming(&mut self, mut streaming: Streaming, turn: &mut Turn) -> ReflectorAction {
        let due = streaming.added_at.saturating_add(self.config.marker_deadline).min(streaming.stream.ends_at());
        if due <= turn.now {
            return self.give_up(GiveUpCause::Deadline, true, turn);
        }
        if streaming.warn_at <= turn.now {
            streaming.warn_at = turn.now.saturating_add(MARKER_WARNING_PERIOD);
            turn.reports.push(ReflectorReport::MarkerLate {
                waiting: turn.now.saturating_sub(streaming.stream.began_at()),
                silent: streaming.stream.heard_at.map(|at| turn.now.saturating_sub(at)),
            });
        }
        let until = due.min(streaming.warn_at);
        self.state = State::Streaming(streaming);
        ReflectorAction::Read { until }
    }

    /// Processes the end of a streaming list before its marker. After a normal end or a lost connection, requests the streaming
    /// list again, a limited number of times (R-35, D-2).
    pub(super) fn streaming_ended(
        &mut self,
        streaming: &Streaming,
        end: Result<(), Failure>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        match end {
            Ok(()) => {}
            Err(failure @ (Failure::Disconnected(_) | Failure::Refused)) => self.note(Verb::Watch, &failure),
            Err(failure) => return self.streaming_failed(streaming, failure, turn),
        }
        if streaming.stream.is_short(turn.now) {
            return self.give_up(GiveUpCause::Short, false, turn);
        }
        self.unmarked += 1;
        if self.unmarked >= self.config.streaming_attempts_max {
            return self.give_up(GiveUpCause::Unmarked { streams: self.unmarked }, true, turn);
        }
        if streaming.stream.is_quick(turn.now) {
            return self.wait(Then::Stream, None, turn);
        }
        self.begin_streaming(turn)
    }

    /// Handles a refusal, or an ERROR before the marker.
    pub(super) fn streaming_failed(
        &mut self,
        streaming: &Streaming,
        failure: Failure,
        turn: &mut Turn,
    ) -> ReflectorAction {
        self.note(Verb::Watch, &failure);
        if is_temporary(&failure) {
            let after = retry_after(&failure);
            turn.reports.push(ReflectorReport::WatchDelayed(failure));
            return self.wait(Then::Stream, after, turn);
        }
        if refuses_version(&failure) {
            self.unavailable = true;
            let version = streaming.stream.requested.clone();
            if !version.is_unset() {
                turn.reports.push(ReflectorReport::VersionRefused { version, failure });
                return self.begin_streaming(turn);
            }
        }
        // Only these codes mean that streaming is unsupported. A missing right, type or server says nothing about streaming.
        let remember = failure.status().is_some_and(|status| matches!(status.code, 400 | 405 | 406 | 415 | 422));
        self.give_up(GiveUpCause::Failed(failure), remember, turn)
    }

    /// Continues with a paged list in the same cycle. If only streaming lists are allowed, waits for the next cycle instead.
    fn give_up(&mut self, cause: GiveUpCause, remember: bool, turn: &mut Turn) -> ReflectorAction {
        let only_streams = self.config.streaming_lists == StreamingLists::Always;
        let retry_at = (remember && !only_streams).then(|| turn.now.saturating_add(self.config.streaming_retry_after));
        self.streaming_retry_at = retry_at;
        let after = if let GiveUpCause::Failed(failure) = &cause { retry_after(failure) } else { None };
        turn.reports.push(ReflectorReport::GaveUpStreaming { cause, retry_at });
        if only_streams { self.wait(Then::Cycle, after, turn) } else { self.begin_list() }
    }
}
