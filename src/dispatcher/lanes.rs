//! The lanes from the journal to the handlers: a task each that reads, sends one batch, waits for the answer, and
//! acknowledges.
//!
//! The answer of a handler is its credit: while it has a batch, nothing more is read for it, and what waits grows in
//! the journal up to its bounds. Lanes outlive the actors at both their ends.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{MailboxError, Message, Recipient};
use futures_util::future::join_all;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{error, info, warn};

use super::{Dispatcher, LaneId, Notification, Route, UnitId, UnitInfo};
use crate::{
    journal::{Bounds, EventName, Gap, Journal, ReaderId, ReaderOptions, Start},
    supervisor::{
        Restart, RestartPolicy, SupervisorConfig,
        child::{Heartbeat, Inject},
    },
};

/// What a handler that is closed in the middle of a batch, at the deadline of a stop, may take for its flush.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Events a report names; the rest is counted.
const LEFT_NAMED_MAX: usize = 100;

/// The answer to a [`Notification`] by a handler that has ended and takes no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(pub String);

/// `Ok` means: delivered, or given up as configured; it is acknowledged and not sent again.
impl Message for Notification {
    type Result = Result<(), Stopped>;
}

/// Nothing more will come: flush, sync, end. The answer is what went wrong.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), String>")]
pub struct Close;

/// Where a lane leads.
#[derive(Clone, Debug)]
pub struct LaneAddress {
    /// Takes batches, one at a time.
    pub events: Recipient<Notification>,
    /// Takes the end; what is in delivery ends at the next pause.
    pub close: Recipient<Close>,
    /// Says that the actor lives.
    pub heartbeat: Recipient<Heartbeat>,
    /// Test hook.
    #[doc(hidden)]
    pub hook: Option<Recipient<Inject>>,
}

/// The address of a lane that may be started again meanwhile; what a dead letter is reached by.
#[derive(Clone, Debug, Default)]
pub struct LaneSlot(Arc<Mutex<Option<LaneAddress>>>);

impl LaneSlot {
    /// Returns where the lane leads now; `None` before its first start and after its end.
    pub fn get(&self) -> Option<LaneAddress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, address: Option<LaneAddress>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

/// What a lane is made of.
pub struct LaneOptions {
    /// Name of the handler.
    pub name: String,
    /// What it wants.
    pub route: Route,
    /// What may wait for it.
    pub bounds: Bounds,
    /// Largest batch: events.
    pub batch_events: usize,
    /// Largest batch: bytes of bodies, unless one event has more.
    pub batch_bytes: usize,
    /// It takes what others give up, so it is closed after them.
    pub dead_letter: bool,
    /// Where its current address is kept.
    pub slot: LaneSlot,
    /// Starts the actor behind the lane, on the dispatcher's arbiter; again whenever that actor has ended by itself.
    pub start: Box<dyn Fn() -> LaneAddress + Send + Sync>,
}

/// What a stop left undelivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Name of the handler.
    pub handler: String,
    /// How many events.
    pub events: u64,
    /// The oldest of them, up to a hundred.
    pub named: Vec<EventName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Draining,
    DrainingDeadLetters,
}

struct Lane {
    id: LaneId,
    reader: ReaderId,
    options: LaneOptions,
    task: Mutex<Option<JoinHandle<()>>>,
    /// The handler has ended, or was closed; its task shall not be started again.
    ended: AtomicBool,
}

/// All lanes of an engine: outlives the actor, and is where units and handlers are made known.
#[derive(Clone)]
pub struct Lanes {
    journal: Journal,
    table: Arc<Mutex<Dispatcher>>,
    members: Arc<Mutex<Vec<Arc<Lane>>>>,
    phase: watch::Sender<Phase>,
    supervision: SupervisorConfig,
}

impl Lanes {
    /// Makes an empty set of lanes over a journal; `supervision` says when a lane that has ended starts again.
    pub fn new(journal: Journal, supervision: SupervisorConfig) -> Self {
        let phase = watch::Sender::new(Phase::Running);
        Self { journal, table: Arc::default(), members: Arc::default(), phase, supervision }
    }

    /// Starts the tasks of lanes that have none, or whose task has panicked. Call it on the arbiter they shall live on.
    pub fn start(&self) {
        for lane in self.all() {
            let mut task = lock(&lane.task);
            let moves = task.as_ref().is_some_and(|task| !task.is_finished());
            if !moves && !lane.ended.load(Ordering::Acquire) && *self.phase.borrow() == Phase::Running {
                self.journal.rewind(lane.reader);
                *task = Some(actix_rt::spawn(self.clone().run(Arc::clone(&lane))));
            }
        }
    }

    /// Adds a lane and returns its reader; it moves once a [`DispatcherActor`](super::actor::DispatcherActor) has started. It sees what is released
    /// from now on.
    pub fn add_lane(&self, options: LaneOptions) -> Result<ReaderId, Gap> {
        let mut table = lock(&self.table);
        let id = table.add_lane(options.route.clone());
        let reader_options = ReaderOptions { bounds: options.bounds, interest: table.interest(id) };
        let reader = self.journal.open_reader(Start::Next, reader_options)?;
        lock(&self.members).push(Arc::new(Lane {
            id,
            reader,
            options,
            task: Mutex::default(),
            ended: AtomicBool::new(false),
        }));
        Ok(reader)
    }

    /// Makes a unit known; to be called before it appends anything.
    pub fn add_unit(&self, unit: UnitId, info: UnitInfo) {
        let mut table = lock(&self.table);
        let changed = table.add_unit(unit, info);
        for lane in lock(&self.members).iter().filter(|lane| changed.contains(&lane.id)) {
            self.journal.set_interest(lane.reader, table.interest(lane.id));
        }
    }

    fn all(&self) -> Vec<Arc<Lane>> {
        lock(&self.members).clone()
    }

    /// Moves the batches of one lane until it has ended.
    async fn run(self, lane: Arc<Lane>) {
        let mut policy = RestartPolicy::new(&self.supervision);
        let clock = Instant::now();
        let handler = &lane.options.name;
        loop {
            let address = (lane.options.start)();
            lane.options.slot.set(Some(address.clone()));
            policy.healthy(clock.elapsed());
            match self.serve(&lane, &address).await {
                Ok(()) => {
                    close(handler, &address).await;
                    break;
                }
                Err(Ended::Stopped(Stopped(reason))) => {
                    let left = self.journal.stats(lane.reader);
                    warn!(handler, %reason, undelivered = left.queued + left.in_flight, "the handler has ended");
                    self.journal.abandon(lane.reader);
                    break;
                }
                Err(Ended::Died) => {
                    self.journal.rewind(lane.reader);
                    let Restart { attempt, delay } = policy.failed(clock.elapsed(), rand::random());
                    warn!(handler, attempt, ?delay, "the lane has ended by itself, starting it again");
                    let mut phase = self.phase.subscribe();
                    tokio::select! {
                        () = sleep(delay) => {}
                        _ = phase.changed() => {} // a stop does not wait for it
                    }
                }
            }
        }
        lane.ended.store(true, Ordering::Release);
        lane.options.slot.set(None);
    }

    /// Reads, sends and acknowledges until everything is delivered and a stop was asked for.
    async fn serve(&self, lane: &Lane, address: &LaneAddress) -> Result<(), Ended> {
        let mut phase = self.phase.subscribe();
        let last_phase = if lane.options.dead_letter { Phase::DrainingDeadLetters } else { Phase::Draining };
        loop {
            let drain = *phase.borrow_and_update() >= last_phase;
            let records = self.journal.read(lane.reader, lane.options.batch_events, lane.options.batch_bytes);
            let Some(last) = records.last().map(|record| record.sequence) else {
                if drain {
                    return Ok(());
                }
                tokio::select! {
                    () = self.journal.readable(lane.reader) => {}
                    _ = phase.changed() => {}
                    () = sleep(self.supervision.ping_period) => self.ping(address).await?,
                }
                continue;
            };
            let notification = lock(&self.table).notification(records);
            match address.events.send(notification).await {
                Ok(Ok(())) => self.journal.ack(lane.reader, last),
                Ok(Err(stopped)) => return Err(Ended::Stopped(stopped)),
                Err(MailboxError::Closed | MailboxError::Timeout) => return Err(Ended::Died),
            }
        }
    }

    /// Asks an idle actor whether it lives. A busy one shows its end by itself.
    async fn ping(&self, address: &LaneAddress) -> Result<(), Ended> {
        match timeout(self.supervision.hung_after, address.heartbeat.send(Heartbeat)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended::Died),
        }
    }

    /// Logs what was dropped at the bounds of buffers since the last call.
    pub fn report_losses(&self) {
        for lane in self.all() {
            let losses = self.journal.take_losses(lane.reader);
            for event in &losses.named {
                warn!(handler = %lane.options.name, %event, "dropped an event, the buffer is full");
            }
            if losses.unnamed > 0 {
                warn!(handler = %lane.options.name, events = losses.unnamed, "dropped more events, the buffer is full");
            }
        }
    }

    /// Delivers what is released, in lanes that feed dead letters first, and reports what is left at the deadline.
    /// Handlers that are still at work then are closed where they are, so what they wrote is flushed.
    pub async fn shut_down(self, deadline: Instant) -> Vec<Leftover> {
        self.start();
        for (phase, dead_letter) in [(Phase::Draining, false), (Phase::DrainingDeadLetters, true)] {
            self.phase.send_replace(phase);
            for lane in self.all().iter().filter(|lane| lane.options.dead_letter == dead_letter) {
                let task = lock(&lane.task).take();
                if let Some(mut task) = task
                    && timeout_at(deadline, &mut task).await.is_err()
                {
                    task.abort();
                }
            }
        }
        let all = self.all();
        let late = all.iter().filter(|lane| !lane.ended.swap(true, Ordering::AcqRel));
        join_all(late.filter_map(|lane| {
            let address = lane.options.slot.get()?;
            Some(async move {
                if timeout(CLOSE_GRACE, close(&lane.options.name, &address)).await.is_err() {
                    error!(handler = %lane.options.name, "the handler does not answer, it was not closed");
                }
            })
        }))
        .await;
        self.report_losses();
        let left = |lane: &Arc<Lane>| {
            let stats = self.journal.stats(lane.reader);
            let events = stats.queued + stats.in_flight;
            let handler = lane.options.name.clone();
            (events > 0).then(|| Leftover {
                handler,
                events,
                named: self.journal.undelivered(lane.reader, LEFT_NAMED_MAX),
            })
        };
        self.all().iter().filter_map(left).collect()
    }
}

/// Closes a handler and says how that went.
async fn close(handler: &str, address: &LaneAddress) {
    match address.close.send(Close).await {
        Ok(Ok(())) => info!(handler, "closed the handler"),
        Ok(Err(error)) => error!(handler, %error, "failed to close the handler"),
        Err(_) => error!(handler, "the handler ended before it was closed"),
    }
}

/// Why a lane ended that was not asked to.
enum Ended {
    Stopped(Stopped),
    Died,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
