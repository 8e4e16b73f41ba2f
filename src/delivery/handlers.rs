//! All handlers of an engine: they are added, replaced, removed, restarted and shut down here.
//!
//! Each handler has a task that keeps its actor running. Requests to a handler are kept here, so that they outlive the
//! actor.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{self, AtomicBool},
    },
    time::Duration,
};

use actix_rt::ArbiterHandle;
use futures_util::future::join_all;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::{error, info, warn};

use super::{
    actor::HandlerActor,
    core::HandlerOrder,
    parts::{Contact, End, HandlerParts, HandlerSlot, Ordered},
    route::Route,
    router::Router,
    table::Rerouted,
};
use crate::{
    journal::{Bounds, EventName, OpenReaderError, ReaderId, UnitId},
    mutex::lock,
    supervisor::{
        Exit, Restart, RestartPolicy, SupervisorConfig,
        child::{exit_of, spawn},
    },
};

/// Extra time for running attempts after the deadline of a shutdown.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// Time for a sink to close after the running attempts have ended.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Maximum number of events that a report names; the others are only counted.
const NAMED_MAX: usize = 100;

/// Parts of a handler.
pub struct DeliveryOptions {
    /// Name of the handler.
    pub name: String,
    /// Selection of its events.
    pub route: Route,
    /// Bounds of the events that wait for the handler.
    pub bounds: Bounds,
    /// Parts of its actor.
    pub parts: HandlerParts,
    /// Slot of its actor's address.
    pub slot: HandlerSlot,
    /// Set if it receives events given up by other handlers, so that it is closed after them.
    pub takes_dead_letters: bool,
    /// Set if it writes to a pipe. Events that remain when the pipe's reader has ended are not counted as lost.
    pub is_pipe: bool,
}

/// Treatment of waiting events when a handler is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// Deliver waiting events until the deadline, and report the rest.
    Drain(Instant),
    /// End the running calls, and discard waiting events (S-7).
    Discard,
}

/// Events that were not delivered before a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Name of the handler.
    pub handler: String,
    /// Number of events.
    pub events: u64,
    /// The oldest of them, at most a hundred.
    pub named: Vec<EventName>,
}

/// Pending requests to a handler.
#[derive(Clone, Copy, Debug)]
struct Wishes {
    /// Counter of replacements.
    generation: u64,
    replaced_at: Instant,
    removed: Option<Remove>,
    wish: Wish,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    Run,
    /// Drain until this time, then close. Running attempts have the given duration to end.
    Drain(Instant, Duration),
    /// Close. Running attempts have until this time to end.
    Close(Instant),
}

impl Wishes {
    /// Returns the request to the actor of a generation, and the time at which it changes by itself.
    fn order(&self, generation: u64, now: Instant, hung_after: Duration) -> (Wish, Option<Instant>) {
        if generation != self.generation {
            return (Wish::Close(self.replaced_at + hung_after), None);
        }
        match self.wish {
            Wish::Drain(until, patience) if until <= now => (Wish::Close(until + patience), None),
            Wish::Drain(until, _) => (self.wish, Some(until)),
            wish => (wish, None),
        }
    }
}

/// State of the task that keeps a handler's actor running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Kept,
    /// Closed on request.
    Closed,
    /// Ended, because its sink is closed for good.
    Ended,
}

struct Member {
    reader: ReaderId,
    name: String,
    options: Mutex<Arc<DeliveryOptions>>,
    wishes: watch::Sender<Wishes>,
    standing: watch::Sender<Standing>,
}

impl Member {
    fn options(&self) -> Arc<DeliveryOptions> {
        Arc::clone(&lock(&self.options))
    }

    fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    fn removed(&self) -> Option<Remove> {
        self.wishes.borrow().removed
    }

    /// Waits until the handler has ended.
    async fn ended(&self) {
        let mut standing = self.standing.subscribe();
        drop(standing.wait_for(|standing| *standing != Standing::Kept).await);
    }
}

/// All handlers of an engine.
#[derive(Clone)]
pub struct Handlers {
    router: Router,
    members: Arc<Mutex<Vec<Arc<Member>>>>,
    arbiter: ArbiterHandle,
    is_stopping: Arc<AtomicBool>,
    supervision: SupervisorConfig,
}

impl Handlers {
    /// Makes an empty set. `supervision` has the restart delays of actors that have panicked. All actors run on the
    /// current arbiter.
    ///
    /// # Panics
    /// Panics without an arbiter.
    pub fn new(router: Router, supervision: SupervisorConfig) -> Self {
        let arbiter = actix_rt::Arbiter::current();
        Self { router, members: Arc::default(), arbiter, is_stopping: Arc::default(), supervision }
    }

    /// Returns the router of their readers.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Returns true if [`Handlers::shut_down`] was called.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(atomic::Ordering::Acquire)
    }

    /// Adds a handler and starts it. It receives events that are released from now on. Returns its reader, and the
    /// running units that must add the reader (S-5).
    ///
    /// # Errors
    /// Fails if the journal cannot open a reader.
    pub fn add(&self, options: DeliveryOptions) -> Result<(ReaderId, Vec<UnitId>), OpenReaderError> {
        let (reader, joins) = self.router.open(&options.name, options.route.clone(), options.bounds)?;
        let wishes = Wishes { generation: 0, replaced_at: Instant::now(), removed: None, wish: Wish::Run };
        let member = Arc::new(Member {
            reader,
            name: options.name.clone(),
            options: Mutex::new(Arc::new(options)),
            wishes: watch::Sender::new(wishes),
            standing: watch::Sender::new(Standing::Kept),
        });
        lock(&self.members).push(Arc::clone(&member));
        let all = self.clone();
        self.arbiter.spawn_fn(move || drop(actix_rt::spawn(all.keep(member))));
        Ok((reader, joins))
    }

    /// Replaces the handler of the same name, with its route, bounds and sink. Its reader stays, with all waiting
    /// events. The running calls end, the old sink is closed, and the new one receives the remaining events. Returns
    /// the reader, and the units that must add or remove it. `None` if no such handler exists, or its sink was closed
    /// for good; the handler is then removed.
    pub fn replace(&self, options: DeliveryOptions) -> Option<(ReaderId, Rerouted)> {
        let member = self.find(&options.name)?;
        if member.standing() != Standing::Kept {
            self.forget(&member, Remove::Discard);
            return None;
        }
        let rerouted = self.reroute(&options.name, options.route.clone(), options.bounds)?;
        *lock(&member.options) = Arc::new(options);
        member.wishes.send_modify(|wishes| {
            wishes.generation += 1;
            wishes.replaced_at = Instant::now();
        });
        Some(rerouted)
    }

    /// Replaces route and bounds, but not the sink. See [`Handlers::replace`].
    pub fn reroute(&self, name: &str, route: Route, bounds: Bounds) -> Option<(ReaderId, Rerouted)> {
        let member = self.find(name)?;
        Some((member.reader, self.router.reroute(member.reader, route, bounds)))
    }

    /// Removes a handler in the background. Its name can be reused at once. An unknown name has no effect (S-7).
    pub fn remove(&self, name: &str, how: Remove) {
        let Some(member) = self.find(name) else { return };
        member.wishes.send_modify(|wishes| {
            wishes.removed = Some(how);
            wishes.wish = match how {
                Remove::Drain(until) => Wish::Drain(until, self.supervision.hung_after),
                Remove::Discard => Wish::Close(Instant::now() + self.supervision.hung_after),
            };
        });
        if member.standing() != Standing::Kept {
            self.forget(&member, how);
        }
    }

    fn all(&self) -> Vec<Arc<Member>> {
        lock(&self.members).clone()
    }

    fn find(&self, name: &str) -> Option<Arc<Member>> {
        lock(&self.members).iter().find(|member| member.name == name && member.removed().is_none()).cloned()
    }

    /// Runs a handler's actor, and restarts it, until the handler has ended.
    async fn keep(self, member: Arc<Member>) {
        let mut policy = RestartPolicy::new(&self.supervision);
        let clock = Instant::now();
        let handler = &member.name;
        let ended_by_sink = loop {
            let options = member.options();
            let generation = member.wishes.borrow().generation;
            policy.healthy(clock.elapsed());
            let ended = self.live(&member, &options, generation).await;
            options.slot.set(None);
            let is_replaced = member.wishes.borrow().generation != generation;
            match ended {
                Ok(End::Closed) if is_replaced => info!(handler, "the handler was replaced"),
                Ok(End::Closed) => break None,
                Ok(End::Sink(reason)) => break Some(reason),
                Err(exit) => {
                    options.parts.status.end_life(&exit);
                    let Restart { attempt, delay } = policy.failed(clock.elapsed(), rand::random());
                    warn!(handler, cause = %exit, attempt, ?delay, "the handler's actor has ended; restarting it");
                    let is_over =
                        |wishes: &Wishes| !matches!(wishes.wish, Wish::Run) || wishes.generation != generation;
                    drop(timeout(delay, member.wishes.subscribe().wait_for(is_over)).await);
                }
            }
            self.router.journal().rewind(member.reader);
        };
        member.standing.send_replace(if ended_by_sink.is_some() { Standing::Ended } else { Standing::Closed });
        if let Some(reason) = ended_by_sink {
            self.report_end(&member, &reason);
        }
        if let Some(how) = member.removed().filter(|_| !self.is_stopping()) {
            self.forget(&member, how);
        }
    }

    /// Runs one actor of a handler to its end; `Err` means that it was not asked to end.
    async fn live(&self, member: &Member, options: &DeliveryOptions, generation: u64) -> Result<End, Exit> {
        let (end, mut ended) = oneshot::channel();
        let epoch = Instant::now();
        let source = (self.router.clone(), member.reader);
        let (address, task) = spawn(HandlerActor::new(options.parts.clone(), source, epoch, end));
        let contact = Contact {
            dead_letters: address.clone().recipient(),
            #[cfg(any(test, feature = "testing"))]
            heartbeats: address.clone().recipient(),
        };
        options.slot.set(Some(contact));
        options.parts.status.begin_life();
        let mut wishes = member.wishes.subscribe();
        let mut paused = options.parts.status.switch().subscribe();
        loop {
            let wish = wishes.borrow_and_update().order(generation, Instant::now(), self.supervision.hung_after);
            let (order, changes_at) = match wish {
                (Wish::Run, at) => (HandlerOrder::Run, at),
                (Wish::Drain(..), at) => (HandlerOrder::Drain, at),
                (Wish::Close(until), _) if until + CLOSE_GRACE <= Instant::now() => {
                    error!(handler = %member.name, "failed to close the handler: it does not answer");
                    task.abort();
                    drop(task.await); // must end before its arbiter, else actix polls it without one
                    return Ok(End::Closed);
                }
                (Wish::Close(until), _) => {
                    (HandlerOrder::Close(until.saturating_duration_since(epoch)), Some(until + CLOSE_GRACE))
                }
            };
            let is_paused = *paused.borrow_and_update();
            let _ended_by_itself = address.send(Ordered { order, is_paused }).await;
            tokio::select! {
                end = &mut ended => return match end {
                    Ok(end) => Ok(end),
                    Err(_) => Err(exit_of(task.await)),
                },
                _ = wishes.changed() => {}
                _ = paused.changed() => {}
                () = sleep_until(changes_at.unwrap_or_else(Instant::now)), if changes_at.is_some() => {}
            }
        }
    }

    /// Logs that the sink of a handler was closed for good, and discards the events that wait for it.
    fn report_end(&self, member: &Member, reason: &str) {
        let left = self.router.journal().stats(member.reader);
        let (handler, undelivered) = (&member.name, left.queued + left.in_flight);
        if self.is_unread() {
            info!(handler, %reason, undelivered, "the handler has ended");
        } else {
            warn!(handler, %reason, undelivered, "the handler has ended");
        }
        self.router.journal().abandon(member.reader);
    }

    /// Removes a handler that has ended, and logs its undelivered events.
    fn forget(&self, member: &Arc<Member>, how: Remove) {
        let handler = &member.name;
        if let Some(left) = self.leftover(member).filter(|_| how != Remove::Discard) {
            for event in &left.named {
                warn!(handler, %event, "not delivered when the handler was removed");
            }
            warn!(handler, events = left.events, "removed the handler before everything was delivered");
        }
        self.report_losses_of(member);
        lock(&self.members).retain(|other| !Arc::ptr_eq(other, member));
        self.router.close(member.reader);
    }

    /// Returns true if all handlers are pipes whose readers have ended. `deltabus run … | head` then ends.
    fn is_unread(&self) -> bool {
        let is_unread = |member: &Arc<Member>| member.standing() == Standing::Ended && member.options().is_pipe;
        let members = lock(&self.members);
        !members.is_empty() && members.iter().all(is_unread)
    }

    /// Logs the events dropped since the last call, because a buffer was full or a handler has ended (I6).
    pub fn report_losses(&self) {
        if !self.is_unread() {
            self.all().iter().for_each(|member| self.report_losses_of(member));
        }
    }

    fn report_losses_of(&self, member: &Member) {
        let handler = &member.name;
        let why = if member.standing() == Standing::Ended { "the handler has ended" } else { "the buffer is full" };
        let losses = self.router.journal().take_losses(member.reader);
        for event in &losses.named {
            warn!(handler, %event, why, "dropped an event");
        }
        if losses.unnamed > 0 {
            warn!(handler, events = losses.unnamed, why, "dropped more events");
        }
    }

    fn leftover(&self, member: &Member) -> Option<Leftover> {
        let journal = self.router.journal();
        let stats = journal.stats(member.reader);
        let events = stats.queued + stats.in_flight;
        let named = || journal.undelivered(member.reader, NAMED_MAX);
        (events > 0).then(|| Leftover { handler: member.name.clone(), events, named: named() })
    }

    /// Delivers the released events, and returns those that remain at the deadline. Handlers that receive dead letters
    /// end last. At the deadline the sinks are closed as they are, so that they flush their output.
    pub async fn shut_down(&self, deadline: Instant) -> Vec<Leftover> {
        self.is_stopping.store(true, atomic::Ordering::Release);
        let all = self.all();
        for takes_dead_letters in [false, true] {
            let members = all.iter().filter(|member| member.options().takes_dead_letters == takes_dead_letters);
            let ended = members.map(|member| {
                member.wishes.send_modify(|wishes| {
                    // A removal with another deadline may be running.
                    wishes.wish = match wishes.wish {
                        Wish::Close(until) => Wish::Close(until.min(deadline + ANSWER_GRACE)),
                        Wish::Run | Wish::Drain(..) => Wish::Drain(deadline, ANSWER_GRACE),
                    };
                });
                member.ended()
            });
            drop(timeout_at(deadline, join_all(ended)).await);
        }
        // All tasks have ended by then, unless their arbiter has stopped.
        let latest = deadline.max(Instant::now()) + ANSWER_GRACE + CLOSE_GRACE * 2;
        drop(timeout_at(latest, join_all(all.iter().map(|member| member.ended()))).await);
        self.report_losses();
        let left = all.iter().filter(|member| member.removed() != Some(Remove::Discard));
        left.filter_map(|member| self.leftover(member)).collect()
    }
}
