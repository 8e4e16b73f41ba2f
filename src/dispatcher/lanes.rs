//! The lanes from the journal to the handlers: a task each that reads, sends what its
//! [`Schedule`](super::schedule::Schedule) lets out, waits for the answers, and acknowledges.
//!
//! The answer of a handler is its credit: while it has as many batches as it takes, nothing more is read for it, and
//! what waits grows in the journal up to its bounds. Lanes outlive the actors at both their ends.

mod feeds;

use std::{
    collections::BTreeSet,
    future::pending,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::MailboxError;
use futures_util::{StreamExt as _, future::join_all};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{error, info, warn};

use super::{
    Dispatcher, LaneId, Rerouted, Route, UnitId, UnitInfo, UnitOptions,
    lane::{Close, LaneAddress, LaneOptions, Leftover, Remove, Stopped},
    schedule::Room,
    traffic::{Traffic, at},
};
use crate::{
    indexer::Cause,
    journal::{
        Bounds, ChangeSet, Journal, Move, MoveKind, OpenReaderError, ReaderId, ReaderOptions, Sequence, Start,
        UnitTerms,
    },
    mutex::lock,
    supervisor::{Restart, RestartPolicy, SupervisorConfig, child::Heartbeat},
};

/// What a handler that is closed in the middle of a batch, at the deadline of a stop, may take for its flush.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Of that, what an attempt that waits for an answer has to get it.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// Reads of which rules refuse everything, before a lane looks at what else there is to do.
const REFUSED_READS_MAX: usize = 16;
/// Events a report names; the rest is counted.
const LEFT_NAMED_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Draining,
    DrainingDeadLetters,
}

/// What a lane is told from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Orders {
    /// Raised whenever it leads to another handler.
    generation: u64,
    remove: Option<Remove>,
}

/// What becomes of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Removal {
    #[default]
    UnderWay,
    /// It is over; what was not delivered.
    Over(Option<Leftover>),
}

struct Lane {
    id: LaneId,
    reader: ReaderId,
    name: String,
    options: Mutex<Arc<LaneOptions>>,
    orders: watch::Sender<Orders>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// The handler has ended, or was closed; its task shall not be started again.
    ended: AtomicBool,
    /// The handler has ended by itself.
    closed: AtomicBool,
    /// Set when there is nothing more to wait for: what a removal left.
    left: watch::Sender<Removal>,
}

impl Lane {
    fn options(&self) -> Arc<LaneOptions> {
        Arc::clone(&lock(&self.options))
    }

    fn is_removed(&self) -> bool {
        self.orders.borrow().remove.is_some()
    }
}

/// Tells which types a lane takes, now and later.
#[derive(Clone, Debug)]
pub struct LaneTypes {
    table: Arc<Mutex<Dispatcher>>,
    lane: Option<LaneId>,
}

impl LaneTypes {
    /// Returns the types at work that the lane takes, as `plural.group`, in order.
    pub fn names(&self) -> Vec<String> {
        self.lane.map(|lane| lock(&self.table).types(lane)).unwrap_or_default()
    }
}

/// All lanes of an engine: outlives the actor, and is where units and handlers are made known.
#[derive(Clone)]
pub struct Lanes {
    journal: Journal,
    table: Arc<Mutex<Dispatcher>>,
    members: Arc<Mutex<Vec<Arc<Lane>>>>,
    /// Lanes of the table that lead to no handler.
    feeds: Arc<Mutex<Vec<(LaneId, ReaderId)>>>,
    phase: watch::Sender<Phase>,
    supervision: SupervisorConfig,
}

impl Lanes {
    /// Makes an empty set of lanes over a journal; `supervision` says when a lane that has ended starts again.
    pub fn new(journal: Journal, supervision: SupervisorConfig) -> Self {
        let phase = watch::Sender::new(Phase::Running);
        Self { journal, table: Arc::default(), members: Arc::default(), feeds: Arc::default(), phase, supervision }
    }

    /// Starts the tasks of lanes that have none, or whose task has panicked. Call it on the arbiter they shall live on.
    pub fn start(&self) {
        for lane in self.all() {
            let mut task = lock(&lane.task);
            let moves = task.as_ref().is_some_and(|task| !task.is_finished());
            if !moves && !lane.ended.load(Ordering::Acquire) && !self.is_stopping() {
                self.journal.rewind(lane.reader);
                *task = Some(actix_rt::spawn(self.clone().run(Arc::clone(&lane))));
            }
        }
    }

    /// Returns whether [`Lanes::shut_down`] was called.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Adds a lane and returns its reader; it moves once a [`DispatcherActor`](super::actor::DispatcherActor) has
    /// started, or looks after its lanes. It sees what is released from now on.
    pub fn add_lane(&self, options: LaneOptions) -> Result<ReaderId, OpenReaderError> {
        let mut table = lock(&self.table);
        let id = table.add_lane(options.route.clone());
        self.open(&mut table, id, options)
    }

    /// As [`Lanes::add_lane`], to units that are at work: returns those that have to introduce the reader, which sees
    /// nothing of them before (S-5).
    pub fn add_late_lane(&self, options: LaneOptions) -> Result<(ReaderId, Vec<UnitId>), OpenReaderError> {
        let mut table = lock(&self.table);
        let (id, joins) = table.add_late_lane(options.route.clone());
        Ok((self.open(&mut table, id, options)?, joins))
    }

    fn open(&self, table: &mut Dispatcher, id: LaneId, options: LaneOptions) -> Result<ReaderId, OpenReaderError> {
        let name = Some(options.name.clone());
        let reader_options = ReaderOptions { bounds: options.bounds, interest: table.interest(id), name };
        let reader = self.journal.open_reader(Start::Next, reader_options).inspect_err(|_| table.remove_lane(id))?;
        lock(&self.members).push(Arc::new(Lane {
            id,
            reader,
            name: options.name.clone(),
            options: Mutex::new(Arc::new(options)),
            orders: watch::Sender::default(),
            task: Mutex::default(),
            ended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            left: watch::Sender::default(),
        }));
        Ok(reader)
    }

    /// Gives the lane of that name another route, other bounds and another handler; its reader stays, with all that
    /// waits. Returns the reader and which units have to introduce or dismiss it; `None` where there is no such lane,
    /// or its handler had ended by itself: then it is removed. The call in flight ends, the old handler is closed, and what it did not deliver goes to the new one.
    pub fn replace_lane(&self, options: LaneOptions) -> Option<(ReaderId, Rerouted)> {
        let lane = self.find(&options.name)?;
        if lane.ended.load(Ordering::Acquire) {
            self.forget(&lane, Remove::Discard);
            return None;
        }
        let moved = self.reroute_lane(&options.name, options.route.clone(), options.bounds)?;
        *lock(&lane.options) = Arc::new(options);
        lane.orders.send_modify(|orders| orders.generation += 1);
        Some(moved)
    }

    /// As [`Lanes::replace_lane`], but the handler stays.
    pub fn reroute_lane(&self, name: &str, route: Route, bounds: Bounds) -> Option<(ReaderId, Rerouted)> {
        let lane = self.find(name)?;
        let mut table = lock(&self.table);
        let rerouted = table.reroute(lane.id, route);
        self.journal.set_bounds(lane.reader, bounds);
        self.journal.set_interest(lane.reader, &table.interest(lane.id));
        Some((lane.reader, rerouted))
    }

    /// Removes a lane, and closes its handler; a name that is not there has no effect (S-7). The name is free at once.
    /// The answer, which nobody has to wait for, is what was not delivered by the deadline.
    pub fn remove_lane(&self, name: &str, how: Remove) -> impl Future<Output = Option<Leftover>> + use<> {
        let mut left = None;
        if let Some(lane) = self.find(name) {
            left = Some(lane.left.subscribe());
            lane.orders.send_modify(|orders| orders.remove = Some(how));
            if lane.ended.load(Ordering::Acquire) {
                self.forget(&lane, how);
            }
        }
        async move {
            let mut left = left?;
            match &*left.wait_for(|left| *left != Removal::UnderWay).await.ok()? {
                Removal::Over(left) => left.clone(),
                Removal::UnderWay => None,
            }
        }
    }

    /// Returns what tells which types the lane of that name takes; none where there is no such lane.
    pub fn types(&self, name: &str) -> LaneTypes {
        LaneTypes { table: Arc::clone(&self.table), lane: self.find(name).map(|lane| lane.id) }
    }

    /// Makes a unit known; to be called before it appends anything.
    pub fn add_unit(&self, unit: UnitId, info: UnitInfo, options: UnitOptions) {
        let mut table = lock(&self.table);
        let (terms, changed) = table.add_unit(unit, info, options);
        self.open_unit(&table, unit, terms, &changed);
    }

    /// As [`Lanes::add_unit`], for a unit that goes on with what units of the entry `before` have shown: returns the
    /// readers that did not take those. It has to introduce them, and shows them nothing before (S-5).
    pub fn add_heir(&self, unit: UnitId, info: UnitInfo, options: UnitOptions, before: &str) -> Vec<ReaderId> {
        let mut table = lock(&self.table);
        let (terms, changed, strangers) = table.add_heir(unit, info, options, before);
        self.open_unit(&table, unit, terms, &changed);
        self.readers(&strangers)
    }

    /// See [`Dispatcher::skips_downtime`].
    pub fn skips_downtime(&self, entry: &str) -> bool {
        lock(&self.table).skips_downtime(entry)
    }

    /// Makes a unit of an earlier run known, before any other. `known` are the readers of that run. Returns what the unit
    /// has to tell readers for which something has changed: those that did not see it then and take it now begin with
    /// what it has, those that do not take it any more end.
    pub fn restore_unit(
        &self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        stored: (UnitTerms, Option<Sequence>),
        known: &BTreeSet<String>,
    ) -> Vec<Move> {
        let (terms, retired) = stored;
        let mut table = lock(&self.table);
        let takers = table.restore_unit(unit, info, options, terms.resource, retired);
        let mut moves = Vec::new();
        if retired.is_none() {
            for lane in lock(&self.members).iter() {
                let saw = self.journal.joined(lane.reader).contains(&unit);
                let kind = match (takers.contains(&lane.id), saw) {
                    (true, false) => {
                        table.will_join(lane.id, unit);
                        let shows = table.changes(lane.id).has(ChangeSet::INITIAL);
                        let is_known = known.contains(&lane.name);
                        MoveKind::Join(if is_known { Some(Cause::Reload) } else { shows.then_some(Cause::Replay) })
                    }
                    (false, true) => MoveKind::Leave,
                    _ => continue,
                };
                moves.push(Move { reader: lane.reader, kind });
            }
        }
        self.open_unit(&table, unit, terms, &takers);
        moves
    }

    fn open_unit(&self, table: &Dispatcher, unit: UnitId, terms: UnitTerms, changed: &[LaneId]) {
        self.journal.add_unit(unit, terms);
        for lane in lock(&self.members).iter().filter(|lane| changed.contains(&lane.id)) {
            self.journal.set_interest(lane.reader, &table.interest(lane.id));
        }
        for (lane, reader) in lock(&self.feeds).iter().filter(|(lane, _)| changed.contains(lane)) {
            self.journal.set_interest(*reader, &table.interest(*lane));
        }
    }

    /// Returns the readers that do not take units of an entry.
    pub fn readers_without(&self, entry: &str) -> Vec<ReaderId> {
        let lanes = lock(&self.table).lanes_without(entry);
        self.readers(&lanes)
    }

    fn readers(&self, lanes: &[LaneId]) -> Vec<ReaderId> {
        lock(&self.members).iter().filter(|lane| lanes.contains(&lane.id)).map(|lane| lane.reader).collect()
    }

    /// Forgets a unit that appends nothing more, once nothing of it waits anywhere.
    pub fn remove_unit(&self, unit: UnitId) {
        lock(&self.table).retire_unit(unit, self.journal.retire_unit(unit));
    }

    /// Forgets the units that were removed and that every reader has passed.
    pub fn forget_units(&self) {
        let mut table = lock(&self.table);
        for unit in table.forget_units(self.journal.passed()) {
            self.journal.forget_unit(unit);
        }
    }

    /// Returns whether some handler shall see the `round`-th resync of `unit` (S-11).
    pub fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.journal.is_resync_due(unit, round)
    }

    /// Says that all units are known that the first discovery found: before, no handler has synced (S-8).
    pub fn set_discovered(&self) {
        self.journal.set_discovered();
    }

    fn all(&self) -> Vec<Arc<Lane>> {
        lock(&self.members).clone()
    }

    fn find(&self, name: &str) -> Option<Arc<Lane>> {
        lock(&self.members).iter().find(|lane| lane.name == name && !lane.is_removed()).cloned()
    }

    /// Moves the batches of one lane until it has ended.
    async fn run(self, lane: Arc<Lane>) {
        let mut policy = RestartPolicy::new(&self.supervision);
        let clock = Instant::now();
        let handler = &lane.name;
        loop {
            let mut orders = lane.orders.subscribe();
            let life = Life { options: lane.options(), generation: orders.borrow_and_update().generation };
            let address = (life.options.start)();
            life.options.slot.set(Some(address.clone()));
            policy.healthy(clock.elapsed());
            match self.serve(&lane, &life, &address).await {
                Ok(()) => {
                    close(handler, &address, self.supervision.hung_after).await;
                    break;
                }
                Err(Ended::Paused) => break,
                Err(Ended::Ordered) if lane.is_removed() => break,
                Err(Ended::Ordered) => {
                    self.journal.rewind(lane.reader);
                    info!(handler, "the handler was replaced");
                }
                Err(Ended::Stopped(Stopped(reason))) => {
                    lane.closed.store(true, Ordering::Release);
                    let left = self.journal.stats(lane.reader);
                    let undelivered = left.queued + left.in_flight;
                    if self.is_unread() {
                        info!(handler, %reason, undelivered, "the handler has ended");
                    } else {
                        warn!(handler, %reason, undelivered, "the handler has ended");
                    }
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
                        () = life.over(&mut orders) => {}
                    }
                }
            }
            life.options.slot.set(None);
        }
        lane.ended.store(true, Ordering::Release);
        lane.options().slot.set(None);
        let remove = lane.orders.borrow().remove;
        if let Some(how) = remove {
            self.forget(&lane, how);
        }
    }

    /// Takes a lane that was removed and has ended out of everything, and says what it leaves.
    fn forget(&self, lane: &Arc<Lane>, how: Remove) {
        let left = self.leftover(lane).filter(|_| how != Remove::Discard);
        for event in left.iter().flat_map(|left| &left.named) {
            warn!(handler = %lane.name, %event, "not delivered when the handler was removed");
        }
        if let Some(left) = &left {
            warn!(handler = %lane.name, events = left.events, "removed the handler before everything was delivered");
        }
        self.report_losses_of(lane);
        lock(&self.members).retain(|member| !Arc::ptr_eq(member, lane));
        lock(&self.table).remove_lane(lane.id);
        self.journal.close_reader(lane.reader);
        lane.left.send_replace(Removal::Over(left));
    }

    /// Reads, sends and acknowledges until everything is delivered and a stop was asked for.
    async fn serve(&self, lane: &Lane, life: &Life, address: &LaneAddress) -> Result<(), Ended> {
        let mut phase = self.phase.subscribe();
        let mut orders = lane.orders.subscribe();
        let mut paused = life.options.pause.subscribe();
        let last_phase = if life.options.dead_letter { Phase::DrainingDeadLetters } else { Phase::Draining };
        let mut traffic = Traffic::new(life.options.schedule);
        loop {
            let drains = matches!(orders.borrow_and_update().remove, Some(Remove::Drain(_)));
            let drains = drains || *phase.borrow_and_update() >= last_phase;
            let is_paused = *paused.borrow_and_update();
            let is_over = life.is_over(*orders.borrow());
            if is_over || (is_paused && drains) {
                self.end(lane, address, &mut traffic).await;
                return Err(if is_over { Ended::Ordered } else { Ended::Paused });
            }
            let mut is_done = true;
            if !is_paused {
                is_done = self.read(lane, &mut traffic).await;
                while traffic.send(address, drains) {
                    is_done = self.read(lane, &mut traffic).await;
                }
            }
            if drains && is_done && traffic.schedule.is_empty() {
                return Ok(());
            }
            let reads = !is_paused && traffic.schedule.room().is_some();
            let due = traffic.due().filter(|_| !is_paused);
            let is_idle = traffic.calls.is_empty();
            tokio::select! {
                Some((batch, answer)) = traffic.calls.next(), if !is_idle => match answer {
                    Ok(Ok(())) => {
                        self.journal.ack_each(lane.reader, &traffic.schedule.finished(batch));
                    },
                    Ok(Err(stopped)) => return Err(Ended::Stopped(stopped)),
                    Err(MailboxError::Closed | MailboxError::Timeout) => return Err(Ended::Died),
                },
                () = self.journal.readable(lane.reader), if reads => {}
                () = at(due) => {}
                _ = phase.changed() => {}
                _ = paused.changed() => {}
                () = life.news(&mut orders) => {}
                () = sleep(self.supervision.ping_period), if is_idle => self.ping(address).await?,
            }
        }
    }

    /// Reads what the lane's schedule has room for. Returns `false` where it stopped for others to have their turn, as
    /// rules refuse a lot.
    async fn read(&self, lane: &Lane, traffic: &mut Traffic) -> bool {
        let mut refused = 0;
        while let Some(Room { events, bytes }) = traffic.schedule.room() {
            let records = match self.journal.try_fetch(lane.reader, events, bytes).await {
                ControlFlow::Break(records) => records,
                ControlFlow::Continue(()) if refused < REFUSED_READS_MAX => {
                    refused += 1;
                    tokio::task::yield_now().await;
                    continue;
                }
                ControlFlow::Continue(()) => {
                    self.journal.nudge(lane.reader);
                    return false;
                }
            };
            if records.is_empty() {
                return true;
            }
            let sequences: Vec<_> = records.iter().map(|record| record.sequence).collect();
            let events = lock(&self.table).events(records);
            if events.len() < sequences.len() {
                // Nobody can be told of a unit that is forgotten.
                let is_known = |sequence: &Sequence| events.iter().any(|event| event.record.sequence == *sequence);
                let unknown: Vec<_> = sequences.into_iter().filter(|sequence| !is_known(sequence)).collect();
                warn!(handler = %lane.name, events = unknown.len(), "events of a unit that is forgotten, not delivered");
                self.journal.ack_each(lane.reader, &unknown);
            }
            traffic.take(events);
        }
        true
    }

    /// Closes a handler that was replaced, removed or paused at the end; calls in flight end before, if they ever do.
    async fn end(&self, lane: &Lane, address: &LaneAddress, traffic: &mut Traffic) {
        let hung_after = self.supervision.hung_after;
        let calls = async {
            while let Some((batch, answer)) = traffic.calls.next().await {
                if matches!(answer, Ok(Ok(()))) {
                    self.journal.ack_each(lane.reader, &traffic.schedule.finished(batch));
                }
            }
        };
        let ending = async { tokio::join!(calls, close(&lane.name, address, hung_after)) };
        if timeout(hung_after + CLOSE_GRACE, ending).await.is_err() {
            error!(handler = %lane.name, "the handler does not answer, it was not closed");
        }
    }

    /// Asks an idle actor whether it lives. A busy one shows its end by itself.
    async fn ping(&self, address: &LaneAddress) -> Result<(), Ended> {
        match timeout(self.supervision.hung_after, address.heartbeat.send(Heartbeat::default())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended::Died),
        }
    }

    /// Returns whether the handlers are pipes whose readers have left, all of them: `deltabus run … | head` ends then.
    fn is_unread(&self) -> bool {
        let members = lock(&self.members);
        !members.is_empty() && members.iter().all(|lane| lane.closed.load(Ordering::Acquire) && lane.options().is_pipe)
    }

    /// Logs what was dropped since the last call: at the bounds of buffers, or because a handler has ended (I6).
    pub fn report_losses(&self) {
        if self.is_unread() {
            return;
        }
        for lane in self.all() {
            self.report_losses_of(&lane);
        }
    }

    fn report_losses_of(&self, lane: &Lane) {
        let why = if lane.closed.load(Ordering::Acquire) { "the handler has ended" } else { "the buffer is full" };
        let losses = self.journal.take_losses(lane.reader);
        for event in &losses.named {
            warn!(handler = %lane.name, %event, why, "dropped an event");
        }
        if losses.unnamed > 0 {
            warn!(handler = %lane.name, events = losses.unnamed, why, "dropped more events");
        }
    }

    fn leftover(&self, lane: &Lane) -> Option<Leftover> {
        let stats = self.journal.stats(lane.reader);
        let events = stats.queued + stats.in_flight;
        let named = || self.journal.undelivered(lane.reader, LEFT_NAMED_MAX);
        (events > 0).then(|| Leftover { handler: lane.name.clone(), events, named: named() })
    }

    /// Delivers what is released, in lanes that feed dead letters first, and reports what is left at the deadline.
    /// Handlers that are still at work then are closed where they are, so what they wrote is flushed.
    pub async fn shut_down(self, deadline: Instant) -> Vec<Leftover> {
        self.start();
        for (phase, dead_letter) in [(Phase::Draining, false), (Phase::DrainingDeadLetters, true)] {
            self.phase.send_replace(phase);
            for lane in self.all().iter().filter(|lane| lane.options().dead_letter == dead_letter) {
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
            let address = lane.options().slot.get()?;
            Some(async move {
                if timeout(CLOSE_GRACE, close(&lane.name, &address, ANSWER_GRACE)).await.is_err() {
                    error!(handler = %lane.name, "the handler does not answer, it was not closed");
                }
            })
        }))
        .await;
        self.report_losses();
        // A removal may have been under way, and somebody may wait for it.
        let discards = |lane: &Lane| lane.orders.borrow().remove == Some(Remove::Discard);
        let left: Vec<_> = all.iter().filter(|lane| !discards(lane)).filter_map(|lane| self.leftover(lane)).collect();
        for lane in all.iter().filter(|lane| lane.is_removed()) {
            lane.left.send_if_modified(|left| {
                let is_under_way = *left == Removal::UnderWay;
                if is_under_way {
                    *left = Removal::Over(None);
                }
                is_under_way
            });
        }
        left
    }
}

/// What a lane leads to, until it is replaced.
struct Life {
    options: Arc<LaneOptions>,
    generation: u64,
}

impl Life {
    /// Returns whether it ends without delivering what waits.
    fn is_over(&self, orders: Orders) -> bool {
        orders.generation != self.generation
            || match orders.remove {
                None => false,
                Some(Remove::Discard) => true,
                Some(Remove::Drain(deadline)) => deadline <= Instant::now(),
            }
    }

    /// Waits until it is over.
    async fn over(&self, orders: &mut watch::Receiver<Orders>) {
        while !self.is_over(*orders.borrow_and_update()) {
            self.news(orders).await;
        }
    }

    /// Waits until there are other orders, or those there are fall due.
    async fn news(&self, orders: &mut watch::Receiver<Orders>) {
        let deadline = match orders.borrow().remove {
            Some(Remove::Drain(deadline)) => Some(deadline),
            _ => None,
        };
        tokio::select! {
            changed = orders.changed() => if changed.is_err() { pending::<()>().await },
            () = at(deadline) => {}
        }
    }
}

/// Closes a handler and says how that went.
async fn close(handler: &str, address: &LaneAddress, patience: Duration) {
    match address.close.send(Close { patience }).await {
        Ok(Ok(())) => info!(handler, "closed the handler"),
        Ok(Err(error)) => error!(handler, %error, "failed to close the handler"),
        Err(_) => error!(handler, "the handler ended before it was closed"),
    }
}

/// Why a lane ended that was not asked to.
enum Ended {
    /// It was replaced or removed, and is closed.
    Ordered,
    /// It was paused when it should have delivered what is left, and is closed.
    Paused,
    Stopped(Stopped),
    Died,
}
