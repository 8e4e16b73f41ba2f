//! One stream: takes what its cursor is due, and hands it out as bytes, piece by piece as they are asked for.

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
    hub::{Hub, News, Seat, SubscribeError, is_initial},
    judge::{self, Candidate, Judge, Judged},
    query::{self, SubscriberQuery},
    replay::{Replay, Shown},
    ring::{Entry, Ring},
};
use crate::{
    journal::{
        Sequence,
        store::{LogPage, PageSize},
    },
    rules::Rules,
};

/// What is read of the store at a time.
const PAGE: PageSize = PageSize { max_events: 64, max_bytes: 1 << 20 };
/// How long is waited after the store could not be read.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Objects that are passed over before others have their turn.
const STRIDE: usize = 256;

/// A subscriber: what it asked for, and how far it is. It holds a few pieces at most that are not sent yet.
pub struct Subscriber {
    seat: Seat,
    filter: SubscriberFilter,
    format: StreamFormat,
    cursor: SubscriberCursor,
    news: watch::Receiver<News>,
    replay: Option<Replay>,
    due: VecDeque<Bytes>,
    judging: Option<Judging>,
    /// The stream ends once what is due was taken.
    is_over: bool,
}

/// The expression of a subscriber, and the events that wait for it.
struct Judging {
    when: Arc<Rules>,
    judge: Arc<Judge>,
    candidates: Vec<Candidate>,
    /// The turn that is under way.
    turn: Option<oneshot::Receiver<Judged>>,
}

impl Judging {
    fn is_waiting(&self) -> bool {
        self.turn.is_some() || !self.candidates.is_empty()
    }
}

impl Subscriber {
    /// Lets a subscriber in.
    ///
    /// # Errors
    /// When there are as many as may be, the engine stops, the journal cannot be read, or the expression cannot be used.
    pub async fn enter(hub: &Arc<Hub>, query: SubscriberQuery, format: StreamFormat) -> Result<Self, SubscribeError> {
        let seat = hub.enter().await?;
        let news = hub.news();
        let SubscriberQuery { filter, since, when } = query;
        let judging = match when {
            Some(when) => Some(compile(hub, when).await?),
            None => None,
        };
        let time = match since {
            Since::Time { micros, .. } => Some(place_at(hub, micros).await),
            _ => None,
        };
        let facts = JournalFacts { journal: hub.journal.id(), released: hub.journal.released(), time };
        let cursor = hub.with_ring(|ring| SubscriberCursor::new(&since, filter.initial, ring, &facts));
        let cursor = cursor.ok_or(SubscribeError::Stopping)?;
        // The head goes out at once, and with it the place where the stream begins.
        let due = VecDeque::from([format.heartbeat(hub.journal.id(), cursor.resumable())]);
        Ok(Self { seat, filter, format, cursor, news, replay: None, due, judging, is_over: false })
    }

    /// Returns the next bytes; waits until there are some, for no longer than a heartbeat. `None` when the engine stops, or
    /// the expression has exceeded a limit. The wait can be given up and begun again.
    pub async fn next(&mut self) -> Option<Bytes> {
        let speak_at = Instant::now() + self.seat.0.options().heartbeat;
        loop {
            if let Some(bytes) = self.due.pop_front() {
                return Some(bytes);
            }
            if self.is_over {
                return None;
            }
            // also where much happens, and nothing of it is wanted
            if Instant::now() >= speak_at {
                return Some(self.heartbeat());
            }
            self.due.shrink_to(super::cursor::STEP_EVENTS);
            if self.judging.as_ref().is_some_and(Judging::is_waiting) {
                self.judge(speak_at).await;
                continue;
            }
            if self.replay.is_some() {
                self.go_on().await;
                continue;
            }
            let News { is_over, .. } = *self.news.borrow_and_update();
            let hub = &self.seat.0;
            let has_store = hub.journal.is_stored();
            match hub.with_ring(|ring| self.cursor.step(ring, has_store))? {
                CursorStep::Events(entries) => {
                    self.show(&entries);
                    if self.due.is_empty() {
                        tokio::task::yield_now().await; // others have their turn
                    }
                }
                // Who leaves before it has seen what exists is to see that gap again.
                CursorStep::Gap(gap) => self.tell(&gap, self.cursor.resumable().is_some()),
                CursorStep::State => self.replay = Some(Replay::new(&hub.registry, self.cursor.place())),
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

    fn heartbeat(&self) -> Bytes {
        // A place behind events that wait for their verdict would skip them.
        let place = self.cursor.resumable().filter(|_| !self.judging.as_ref().is_some_and(Judging::is_waiting));
        self.format.heartbeat(self.seat.0.journal.id(), place)
    }

    fn show(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            let unit = entry.event().record.unit;
            if self.cursor.is_due(unit, entry.place()) && self.filter.wants(entry) {
                // While the cache was seen newer than this, going on from here would show it older again.
                let is_place = self.cursor.resumable().is_some();
                self.offer(Candidate { entry: Arc::clone(entry), is_place });
            }
        }
    }

    /// Sends an event, or has it judged first.
    fn offer(&mut self, candidate: Candidate) {
        match &mut self.judging {
            Some(judging) => judging.candidates.push(candidate),
            None => self.send(&candidate),
        }
    }

    fn send(&mut self, Candidate { entry, is_place }: &Candidate) {
        let Hub { encoder, journal, events, .. } = &*self.seat.0;
        self.due.push_back(entry.bytes(encoder, journal.id(), self.format, *is_place));
        events.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Waits for the verdict on some events, until it is time for a heartbeat.
    async fn judge(&mut self, speak_at: Instant) {
        let Some(judging) = &mut self.judging else { return };
        let Judging { when, judge, candidates, turn } = judging;
        let turn = turn.get_or_insert_with(|| {
            let (when, candidates) = (Arc::clone(when), std::mem::take(candidates));
            judge.run(move || judge::judge(&when, candidates))
        });
        let Ok(judged) = timeout_at(speak_at, turn).await else { return };
        judging.turn = None;
        let failed = || Judged { wanted: Vec::new(), rest: Vec::new(), exceeded: Some("it has panicked".to_owned()) };
        let Judged { wanted, rest, exceeded } = judged.unwrap_or_else(|_| failed());
        judging.candidates = rest;
        for candidate in &wanted {
            self.send(candidate);
        }
        if let Some(limit) = exceeded {
            let Hub { journal, cluster, .. } = &*self.seat.0;
            let frame = Frame::of_error(&limit, cluster, journal.id(), Timestamp::now());
            self.due.push_back(frame.unplaced_bytes(self.format));
            self.is_over = true;
        }
    }

    fn tell(&mut self, gap: &StreamGap, is_place: bool) {
        let Hub { journal, cluster, gaps, .. } = &*self.seat.0;
        gaps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let frame = Frame::of_gap(gap, cluster, journal.id(), Timestamp::now());
        self.due.push_back(if is_place { frame.bytes(self.format) } else { frame.unplaced_bytes(self.format) });
    }

    /// Shows some of what exists.
    async fn go_on(&mut self) {
        for _ in 0..STRIDE {
            let Some(replay) = &mut self.replay else { return };
            match replay.next(&self.seat.0.router, &self.filter, &mut self.cursor) {
                Shown::Event(event) => {
                    self.offer(Candidate { entry: Arc::new(Entry::new(event, false)), is_place: false });
                    if !self.due.is_empty() {
                        return;
                    }
                }
                Shown::Nothing => {}
                // It comes again, once all before it were judged.
                Shown::End if self.judging.as_ref().is_some_and(Judging::is_waiting) => return,
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

    /// Reads a page of the store, without blocking this thread.
    async fn read(&mut self, after: Sequence, until: Sequence) {
        let journal = self.seat.0.journal.clone();
        let read = tokio::task::spawn_blocking(move || journal.page((after, until), PAGE)).await;
        let LogPage { records, to, missing, first } = match read {
            Ok(Ok(Some(page))) => page,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                warn!(%error, "failed to read the state for a stream, trying again");
                return tokio::time::sleep(AFTER_FAILURE).await;
            }
            Err(_) => return tokio::time::sleep(AFTER_FAILURE).await, // it panicked, which was reported
        };
        let kept_behind = Sequence(first.0.saturating_sub(1));
        let mut missing = missing;
        if kept_behind <= after {
            let wanted = records.len() as u64;
            let events = self.seat.0.router.table().events(records);
            missing += wanted - events.len() as u64;
            let entries = events.into_iter().map(|event| {
                let is_initial = is_initial(&self.seat.0.journal, &event);
                Arc::new(Entry::new(event, is_initial))
            });
            let entries: Vec<_> = entries.collect();
            if let Some(gap) = self.cursor.read(to, missing, None) {
                // Its place is behind the events of this page, which come after it.
                self.tell(&gap, false);
            }
            self.show(&entries);
        } else {
            self.cursor.read(to, missing, Some(kept_behind));
        }
    }
}

/// Compiles an expression, on the judge's thread.
async fn compile(hub: &Hub, when: String) -> Result<Judging, SubscribeError> {
    let judge = hub.judge()?;
    let cluster = hub.cluster().to_owned();
    let compiled = judge.run(move || query::compile(&when, &cluster)).await;
    let when = compiled.map_err(|_| SubscribeError::Judge("the compiler has panicked".to_owned()))??;
    Ok(Judging { when: Arc::new(when), judge, candidates: Vec::new(), turn: None })
}

/// Returns the place behind which lies what happened at a time or later, and whether some of it is not kept.
async fn place_at(hub: &Arc<Hub>, micros: i64) -> (Sequence, bool) {
    if let Some(place) = hub.with_ring(|ring| ring.before(micros)).flatten() {
        return (place, false);
    }
    let journal = hub.journal.clone();
    match tokio::task::spawn_blocking(move || journal.place_at(micros)).await {
        Ok(Ok(Some((place, first)))) => return (place, first.0 > 1 && place < first),
        Ok(Err(error)) => warn!(%error, "failed to look up a time in the state"),
        Ok(Ok(None)) | Err(_) => {} // without a store; or it panicked, which was reported
    }
    (hub.with_ring(Ring::floor).unwrap_or_default(), true)
}
