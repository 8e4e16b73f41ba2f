//! State shared by all subscribers: the ring and its feed, the number of subscribers, and the end of the streams.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tracing::info;

use super::{
    SubscribeCounts, SubscribeOptions,
    judge::Judge,
    query::QueryError,
    ring::{Entry, Ring},
};
use crate::{
    change::{Cause, Change},
    cloud_event::Encoder,
    delivery::router::Router,
    journal::{Journal, OpenReaderError, ReaderId},
    mutex::lock,
    notification::Event,
    registry::Registry,
};

/// Interval at which an ending hub checks the number of remaining subscribers.
const LOOK: Duration = Duration::from_millis(20);

/// Phase of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The engine is restoring its state. New subscribers wait.
    Starting,
    Running,
    /// Remaining events are still sent, then the streams end.
    Ending,
}

/// Source of all streams of an engine.
pub struct Hub {
    pub(super) router: Router,
    /// Journal of all events.
    pub journal: Journal,
    /// Registry of watched types.
    pub registry: Arc<Registry>,
    pub(super) encoder: Encoder,
    pub(super) cluster: String,
    /// Options of streams.
    pub options: SubscribeOptions,
    /// The ring, and the reader of the journal that feeds it; `None` while no feed runs.
    ring: Mutex<Option<(ReaderId, Ring)>>,
    pub(super) phase: watch::Sender<Phase>,
    /// Notifies the subscribers of new events. The value becomes true when no more events will follow.
    pub(super) news: watch::Sender<bool>,
    pub(super) subscribers: AtomicUsize,
    pub(super) events: AtomicU64,
    pub(super) gaps: AtomicU64,
    refused: AtomicU64,
    /// Thread that evaluates expressions. The first subscriber with an expression starts it.
    judge: Mutex<Option<Arc<Judge>>>,
}

/// Reason why a subscriber is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The maximum number of subscribers is connected.
    #[error("too many subscribers: [subscribe] max_subscribers is {0}; try again later")]
    Full(usize),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] OpenReaderError),
    /// The expression in `when` cannot be used.
    #[error(transparent)]
    When(#[from] QueryError),
    /// The thread that evaluates expressions cannot be started, or has failed.
    #[error("cannot evaluate expressions: {0}")]
    Judge(String),
}

/// Admitted subscriber. Dropping it decrements the number of subscribers.
pub(super) struct Seat(pub(super) Arc<Hub>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.subscribers.fetch_sub(1, Relaxed);
    }
}

impl Hub {
    /// Makes a hub. It admits no subscriber before [`Hub::open`].
    pub fn new(router: Router, registry: Arc<Registry>, cluster: &str, options: SubscribeOptions) -> Arc<Self> {
        let journal = router.journal.clone();
        Arc::new(Self {
            encoder: Encoder::new(cluster, journal.id()),
            router,
            journal,
            registry,
            cluster: cluster.to_owned(),
            options,
            ring: Mutex::default(),
            phase: watch::Sender::new(Phase::Starting),
            news: watch::Sender::new(false),
            subscribers: AtomicUsize::new(0),
            events: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            judge: Mutex::default(),
        })
    }

    /// Admits subscribers. Call this when every unit of an earlier run is known.
    pub fn open(&self) {
        self.phase.send_replace(Phase::Running);
    }

    /// Sends the remaining events and ends all streams. Waits for the subscribers until the deadline.
    pub async fn close(&self, deadline: Instant) {
        self.phase.send_replace(Phase::Ending);
        if lock(&self.ring).is_none() {
            self.news.send_replace(true);
        }
        if timeout_at(deadline, self.left()).await.is_err() {
            info!(
                subscribers = self.subscribers.load(Relaxed),
                "streams were cut before the clients had read everything"
            );
        }
    }

    /// Waits until no subscriber is left.
    pub(super) async fn left(&self) {
        while self.subscribers.load(Relaxed) > 0 {
            sleep(LOOK).await;
        }
    }

    /// Returns the counters of all streams.
    pub fn counts(&self) -> SubscribeCounts {
        SubscribeCounts {
            subscribers: self.subscribers.load(Relaxed) as u64,
            events: self.events.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Admits a subscriber, and starts the feed if needed. Waits until the engine has restored its state.
    pub(super) async fn enter(self: &Arc<Self>) -> Result<Seat, SubscribeError> {
        let mut phase = self.phase.subscribe();
        let is_running =
            phase.wait_for(|phase| *phase != Phase::Starting).await.is_ok_and(|phase| *phase == Phase::Running);
        if !is_running {
            return Err(SubscribeError::Stopping);
        }
        let max = self.options.max_subscribers as usize;
        let one_more = |now: usize| (now < max).then_some(now + 1);
        if self.subscribers.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            self.refused.fetch_add(1, Relaxed);
            return Err(SubscribeError::Full(max));
        }
        let seat = Seat(Arc::clone(self));
        self.feed()?;
        Ok(seat)
    }

    /// Returns the thread that evaluates expressions.
    pub(super) fn judge(&self) -> Result<Arc<Judge>, SubscribeError> {
        let mut judge = lock(&self.judge);
        if let Some(judge) = &*judge {
            return Ok(Arc::clone(judge));
        }
        let started = Judge::start().map_err(|error| SubscribeError::Judge(error.to_string()))?;
        Ok(Arc::clone(judge.insert(Arc::new(started))))
    }

    /// Calls `act` with the ring. Returns `None` if there is no ring, because the feed has panicked.
    pub(super) fn with_ring<T>(&self, act: impl FnOnce(&Ring) -> T) -> Option<T> {
        lock(&self.ring).as_ref().map(|(_, ring)| act(ring))
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Option<(ReaderId, Ring)>> {
        lock(&self.ring)
    }

    /// Makes an entry. The entry is initial if its object existed before the engine started. If the type was discovered after the
    /// start, its objects are not initial.
    pub(super) fn entry(&self, event: Event) -> Arc<Entry> {
        let is_first_list = matches!(event.record.change, Change::Added { cause: Cause::Initial, .. });
        let is_initial = is_first_list && self.journal.terms(event.record.unit).is_none_or(|terms| !terms.late);
        Arc::new(Entry::new(event, is_initial))
    }
}
