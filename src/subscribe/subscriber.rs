//! Stream of one subscriber. The cursor chooses each step. Each call of `next` returns one piece of the output.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout_at},
};
use tracing::warn;

use super::{
    cursor::{CursorStep, JournalFacts, Since, SubscriberCursor},
    filter::SubscriberFilter,
    frame::{Frame, StreamFormat},
    gap::StreamGap,
    hub::{Hub, Seat, SubscribeError},
    judge::{self, Candidate, Judge, Judged, StreamClient},
    query::{self, SubscriberQuery},
    replay::{Replay, Shown},
    ring::Entry,
};
use crate::{
    journal::{
        Sequence,
        store::{LogPage, PageSize},
    },
    rules::Rules,
};

/// Size of one read of the store.
const PAGE: PageSize = PageSize { max_events: 64, max_bytes: 1 << 20 };
/// Delay after a failed read of the store.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Number of replayed objects after which other tasks have their turn.
const STRIDE: usize = 256;

/// A subscriber: its request and its position. It buffers only a few pieces that are not yet sent.
pub struct Subscriber {
    seat: Seat,
    filter: SubscriberFilter,
    format: StreamFormat,
    cursor: SubscriberCursor,
    news: watch::Receiver<bool>,
    replay: Option<Replay>,
    due: VecDeque<Bytes>,
    judging: Option<Judging>,
    /// Set when the stream ends after its buffered pieces.
    is_over: bool,
}

/// Expression of a subscriber, and the events for which it must still be evaluated.
struct Judging {
    client: StreamClient,
    when: Arc<Rules>,
    judge: Arc<Judge>,
    candidates: Vec<Candidate>,
    /// Receiver of the result of a running evaluation.
    turn: Option<oneshot::Receiver<Judged>>,
}

impl Subscriber {
    /// Admits a subscriber of a client.
    ///
    /// # Errors
    /// Fails if the maximum number of subscribers is connected, the engine is stopping, the journal cannot be read, or
    /// the expression is invalid.
    pub async fn enter(
        hub: &Arc<Hub>,
        client: StreamClient,
        query: SubscriberQuery,
        format: StreamFormat,
    ) -> Result<Self, SubscribeError> {
        let seat = hub.enter().await?;
        let news = hub.news.subscribe();
        let SubscriberQuery { filter, since, when } = query;
        let judging = match when {
            Some(when) => Some(compile(hub, client, when).await?),
            None => None,
        };
        let time = match since {
            Since::Time { micros, .. } => Some(position_at(hub, micros).await),
            _ => None,
        };
        let facts = JournalFacts { journal: hub.journal.id(), released: hub.journal.released(), time };
        let cursor = hub.with_ring(|ring| SubscriberCursor::new(&since, filter.initial, ring, &facts));
        let cursor = cursor.ok_or(SubscribeError::Stopping)?;
        // The response headers are sent at once, together with the position at which the stream starts.
        let due = VecDeque::from([format.heartbeat(hub.journal.id(), cursor.resumable())]);
        Ok(Self { seat, filter, format, cursor, news, replay: None, due, judging, is_over: false })
    }

    /// Returns the next bytes. If there are none within the heartbeat interval, returns a heartbeat. Returns `None` when the engine
    /// stops, or after the expression has exceeded a limit. The future may be dropped, and `next` called again.
    pub async fn next(&mut self) -> Option<Bytes> {
        let speak_at = Instant::now() + self.seat.0.options.heartbeat;
        loop {
            if let Some(bytes) = self.due.pop_front() {
                return Some(bytes);
            }
            if self.is_over {
                return None;
            }
            // A heartbeat is also due while there are many events but none that is wanted.
            if Instant::now() >= speak_at {
                return Some(self.heartbeat());
            }
            self.due.shrink_to(super::cursor::STEP_EVENTS);
            if self.is_judging() {
                self.judge(speak_at).await;
                continue;
            }
            if self.replay.is_some() {
                self.go_on().await;
                continue;
            }
            let is_over = *self.news.borrow_and_update();
            let hub = &self.seat.0;
            let has_store = hub.journal.is_stored();
            match hub.with_ring(|ring| self.cursor.step(ring, has_store))? {
                CursorStep::Events(entries) => {
                    self.show(&entries);
                    if self.due.is_empty() {
                        tokio::task::yield_now().await; // other tasks have their turn
                    }
                }
                // If existing objects follow the gap, the gap has no `id:`. So a client that reconnects before it has all objects
                // receives the gap again.
                CursorStep::Gap(gap) => self.tell(&gap, self.cursor.resumable().is_some()),
                CursorStep::State => self.replay = Some(Replay::new(&hub.registry, self.cursor.position())),
                CursorStep::Read { after, until } => self.read(after, until).await,
                CursorStep::Rest if is_over => return None,
                CursorStep::Rest => {
                    if let Ok(Err(_)) = timeout_at(speak_at, self.news.changed()).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Returns true if events wait for their evaluation.
    fn is_judging(&self) -> bool {
        self.judging.as_ref().is_some_and(|judging| judging.turn.is_some() || !judging.candidates.is_empty())
    }

    fn heartbeat(&self) -> Bytes {
        // While events wait for evaluation, the heartbeat has no position. A client that resumed there would miss these events.
        let position = self.cursor.resumable().filter(|_| !self.is_judging());
        self.format.heartbeat(self.seat.0.journal.id(), position)
    }

    fn show(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            let unit = entry.event.record.unit;
            if self.cursor.is_due(unit, entry.position()) && self.filter.wants(entry) {
                // The subscriber may have received a newer state from a cache. Then the event gets no `id:`, because a stream that
                // resumes here would send older states again.
                let is_position = self.cursor.resumable().is_some();
                self.offer(Candidate { entry: Arc::clone(entry), is_position });
            }
        }
    }

    /// Sends an event, or queues it for evaluation.
    fn offer(&mut self, candidate: Candidate) {
        match &mut self.judging {
            Some(judging) => judging.candidates.push(candidate),
            None => self.send(&candidate),
        }
    }

    fn send(&mut self, Candidate { entry, is_position }: &Candidate) {
        let Hub { encoder, journal, events, .. } = &*self.seat.0;
        self.due.push_back(entry.bytes(encoder, journal.id(), self.format, *is_position));
        events.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Runs one turn of the evaluation, and sends the wanted events. Returns early if a heartbeat is due.
    async fn judge(&mut self, speak_at: Instant) {
        let Some(judging) = &mut self.judging else { return };
        let Judging { client, when, judge, candidates, turn } = judging;
        let turn = turn.get_or_insert_with(|| {
            let (when, candidates) = (Arc::clone(when), std::mem::take(candidates));
            judge.run(client, move || judge::judge(&when, candidates))
        });
        let Ok(judged) = timeout_at(speak_at, turn).await else { return };
        judging.turn = None;
        let failed = |_| Judged { exceeded: Some("the evaluation has panicked".to_owned()), ..Judged::default() };
        let Judged { wanted, rest, exceeded } = judged.unwrap_or_else(failed);
        judging.candidates = rest;
        for candidate in &wanted {
            self.send(candidate);
        }
        if let Some(limit) = exceeded {
            let Hub { journal, cluster, .. } = &*self.seat.0;
            let frame = Frame::of_error(&limit, cluster, journal.id(), Timestamp::now());
            self.due.push_back(frame.bytes(self.format, false));
            self.is_over = true;
        }
    }

    fn tell(&mut self, gap: &StreamGap, is_position: bool) {
        let Hub { journal, cluster, gaps, .. } = &*self.seat.0;
        gaps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let frame = Frame::of_gap(gap, journal.is_stored(), cluster, journal.id(), Timestamp::now());
        self.due.push_back(frame.bytes(self.format, is_position));
    }

    /// Replays some of the existing objects.
    async fn go_on(&mut self) {
        for _ in 0..STRIDE {
            let Some(replay) = &mut self.replay else { return };
            match replay.next(&self.seat.0.router, &self.filter, &mut self.cursor) {
                Shown::Event(event) => {
                    self.offer(Candidate { entry: Arc::new(Entry::new(event, false)), is_position: false });
                    if !self.due.is_empty() {
                        return;
                    }
                }
                Shown::Nothing => {}
                // First, all earlier events must be evaluated. The next call of `replay.next` returns `End` again.
                Shown::End if self.is_judging() => return,
                Shown::End => {
                    self.replay = None;
                    self.cursor.state_shown();
                    if self.format == StreamFormat::Sse {
                        self.due.push_back(self.heartbeat());
                    }
                    return;
                }
            }
        }
        tokio::task::yield_now().await;
    }

    /// Reads a page of the store without blocking this thread.
    async fn read(&mut self, after: Sequence, until: Sequence) {
        let journal = self.seat.0.journal.clone();
        let read = tokio::task::spawn_blocking(move || journal.page((after, until), PAGE)).await;
        let LogPage { records, to, missing, first } = match read {
            Ok(Ok(Some(page))) => page,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                warn!(%error, "failed to read [state] dir for a stream; retrying");
                return tokio::time::sleep(AFTER_FAILURE).await;
            }
            Err(_) => return tokio::time::sleep(AFTER_FAILURE).await, // the read panicked; already logged
        };
        let kept_behind = Sequence(first.0.saturating_sub(1));
        if kept_behind > after {
            return self.cursor.expired(kept_behind);
        }
        let wanted = records.len();
        let events = self.seat.0.router.table().events(records);
        let missing = missing + (wanted - events.len()) as u64;
        let entries: Vec<_> = events.into_iter().map(|event| self.seat.0.entry(event)).collect();
        if let Some(gap) = self.cursor.read(to, missing) {
            // The gap has no `id:`. It is sent before the events of this page, but its position is after them.
            self.tell(&gap, false);
        }
        self.show(&entries);
    }
}

/// Compiles an expression, on the judge's thread.
async fn compile(hub: &Hub, client: StreamClient, when: String) -> Result<Judging, SubscribeError> {
    let judge = hub.judge()?;
    let cluster = hub.cluster.clone();
    let compiled = judge.run(&client, move || query::compile(&when, &cluster)).await;
    let when = compiled.map_err(|_| SubscribeError::Judge("the compiler of expressions has panicked".to_owned()))??;
    Ok(Judging { client, when: Arc::new(when), judge, candidates: Vec::new(), turn: None })
}

/// Returns the position just before a time. Also returns true if some events after this time are no longer kept.
async fn position_at(hub: &Arc<Hub>, micros: i64) -> (Sequence, bool) {
    let (journal, floor) = (hub.journal.clone(), hub.with_ring(|ring| ring.floor).unwrap_or_default());
    match tokio::task::spawn_blocking(move || journal.before(micros)).await {
        // Without a store, only the ring has the records.
        Ok(Ok(moment)) if !hub.journal.is_stored() => {
            (moment.position.max(floor), moment.is_cut || moment.position < floor)
        }
        Ok(Ok(moment)) => (moment.position, moment.is_cut),
        Ok(Err(error)) => {
            warn!(%error, "failed to look up a time in [state] dir");
            (floor, true)
        }
        Err(_) => (floor, true), // the lookup panicked, which is already logged
    }
}
