//! What all subscribers share: the ring and who feeds it, how many there are, and the end.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tracing::info;

use super::{SubscribeCounts, SubscribeOptions, judge::Judge, query::QueryError, ring::Ring};
use crate::{
    change::{Cause, Change},
    cloud_event::Encoder,
    delivery::router::Router,
    journal::{Journal, OpenReaderError, ReaderId},
    mutex::lock,
    notification::Event,
    registry::Registry,
};

/// How often is looked whether streams have ended.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How far an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// What was known before is being taken up: nobody is let in yet.
    Starting,
    Running,
    /// What is there is still shown, then streams end.
    Ending,
}

/// Moves on whenever there is something to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Counts what came.
    pub(super) count: u64,
    /// Nothing more comes.
    pub(super) is_over: bool,
}

/// Where streams of events come from; one an engine.
pub struct Hub {
    pub(super) router: Router,
    pub(super) journal: Journal,
    pub(super) registry: Arc<Registry>,
    pub(super) encoder: Encoder,
    pub(super) cluster: String,
    options: SubscribeOptions,
    /// With the reader of the journal that it is fed by; `None` while there is none.
    ring: Mutex<Option<(ReaderId, Ring)>>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) news: watch::Sender<News>,
    pub(super) subscribers: AtomicUsize,
    pub(super) events: AtomicU64,
    pub(super) gaps: AtomicU64,
    refused: AtomicU64,
    /// Started by the first subscriber with an expression.
    judge: Mutex<Option<Arc<Judge>>>,
}

/// Why nobody more is let in.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// There are as many as there may be.
    #[error("there are {0} subscribers, as many as [subscribe] max_subscribers lets in: try again later")]
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
    #[error("expressions cannot be evaluated: {0}")]
    Judge(String),
}

/// One subscriber, as far as it is counted.
pub(super) struct Seat(pub(super) Arc<Hub>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.subscribers.fetch_sub(1, Relaxed);
    }
}

impl Hub {
    /// Makes a hub that lets nobody in before [`Hub::open`].
    pub fn new(
        router: Router,
        journal: Journal,
        registry: Arc<Registry>,
        cluster: &str,
        options: SubscribeOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            encoder: Encoder::new(cluster, journal.id()).telling_who_changed(),
            router,
            journal,
            registry,
            cluster: cluster.to_owned(),
            options,
            ring: Mutex::default(),
            phase: watch::Sender::new(Phase::Starting),
            news: watch::Sender::new(News { count: 0, is_over: false }),
            subscribers: AtomicUsize::new(0),
            events: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            judge: Mutex::default(),
        })
    }

    /// Returns the name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Lets subscribers in: every unit of an earlier run is known.
    pub fn open(&self) {
        self.phase.send_if_modified(|phase| {
            let is_new = *phase == Phase::Starting;
            if is_new {
                *phase = Phase::Running;
            }
            is_new
        });
    }

    /// Shows subscribers what is left, and ends their streams; waits for them until the deadline.
    pub async fn close(&self, deadline: Instant) {
        self.phase.send_replace(Phase::Ending);
        if lock(&self.ring).is_none() {
            self.news.send_modify(|news| news.is_over = true);
        }
        let gone = async {
            while self.subscribers.load(Relaxed) > 0 {
                sleep(LOOK).await;
            }
        };
        if timeout_at(deadline, gone).await.is_err() {
            info!(subscribers = self.subscribers.load(Relaxed), "streams were cut: nobody has read their end");
        }
    }

    /// Returns what there is to see.
    pub fn counts(&self) -> SubscribeCounts {
        SubscribeCounts {
            subscribers: self.subscribers.load(Relaxed) as u64,
            events: self.events.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Returns how streams are served.
    pub fn options(&self) -> &SubscribeOptions {
        &self.options
    }

    /// Returns the registry of what is watched.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a subscriber in, and sees that the ring is fed; waits until the engine has taken up what it knew.
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

    pub(super) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Does something with the ring; `None` where nobody feeds it, after a panic of who did.
    pub(super) fn with_ring<T>(&self, act: impl FnOnce(&Ring) -> T) -> Option<T> {
        lock(&self.ring).as_ref().map(|(_, ring)| act(ring))
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Option<(ReaderId, Ring)>> {
        lock(&self.ring)
    }

    pub(super) fn is_ending(&self) -> bool {
        *self.phase.borrow() == Phase::Ending
    }
}

/// Returns whether an event tells of an object that existed before the engine did; what a type has that was found later
/// is news.
pub(super) fn is_initial(journal: &Journal, event: &Event) -> bool {
    let is_first_list = matches!(event.record.change, Change::Added { cause: Cause::Initial, .. });
    is_first_list && journal.terms(event.record.unit).is_none_or(|terms| !terms.late)
}

pub(super) fn now_micros() -> i64 {
    Timestamp::now().as_microsecond()
}
