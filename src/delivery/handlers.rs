//! All handlers of an engine: they are added, replaced, removed, restarted and shut down here.
//!
//! Each handler has a task that keeps its actor running. Requests to a handler are kept here, so that they outlive the
//! actor.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{self, AtomicBool},
    },
    time::Duration,
};

use actix_rt::ArbiterHandle;
use futures_util::{FutureExt as _, future::join_all};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout, timeout_at},
};
use tracing::{error, info, warn};

use super::{
    core::{CoreOptions, HandlerOrder},
    handler_loop::HandlerLoop,
    router::Router,
    sink::Sink,
    status::{Control, HandlerState, HandlerStatus, HandlerView},
    table::Route,
    throttle::state::ThrottleRule,
};
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::fault::Harm;
use crate::{
    journal::{Attachment, Bounds, EventName, OpenReaderError, ReaderId, UnitId},
    mutex::lock,
    notification::Notification,
    supervisor::{Exit, Restart, RestartPolicy, Supervision, child::panic_text, fault::SharedFault},
};

/// Extra time for running attempts after the deadline of a shutdown.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// Time for a sink to close after the running attempts have ended.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// Maximum number of events that a report names; the others are only counted.
const NAMED_MAX: usize = 100;
/// Maximum number of batches in a handler's queue of events that other handlers gave up.
const LETTERS_MAX: usize = 16;

/// Definition of a handler.
pub(crate) struct NewHandler {
    pub name: String,
    /// Type of the handler's sink, such as `file` or `kafka`, or the type given by the library user.
    pub kind: &'static str,
    /// Selection of the handler's events.
    pub route: Route,
    /// Bounds of the events that wait for the handler.
    pub bounds: Bounds,
    pub core: CoreOptions,
    /// Destination of the handler's events.
    pub sink: Sink,
    /// Name of the handler that receives the events that this handler gives up.
    pub dead_letter: Option<String>,
    /// Rule that suppresses events of a key that had one recently. It does not apply to events that other handlers gave up.
    pub throttle: Option<ThrottleRule>,
}

/// Parts of a handler that are replaced together. A restarted actor has the same parts.
pub(super) struct HandlerParts {
    pub(super) core: CoreOptions,
    pub(super) sink: Sink,
    pub(super) dead_letter: Option<String>,
    pub(super) throttle: Option<ThrottleRule>,
    pub(super) status: Arc<HandlerStatus>,
}

/// Treatment of waiting events when a handler is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remove {
    /// Deliver waiting events until the deadline, and report the rest.
    Drain(Instant),
    /// End the running calls, and discard waiting events (S-7).
    Discard,
}

/// Events that were not delivered before a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// Name of the handler.
    pub handler: String,
    pub events: u64,
    /// Names of the oldest of these events, at most 100.
    pub named: Vec<EventName>,
}

/// Part of a handler in which a fault is injected.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Actor of the handler; the fault takes effect at once.
    Actor,
    /// Thread of the handler; the fault takes effect with the next batch.
    Thread,
}

/// Current parts of a handler, requests to it, and the cause of its end. All times count from [`RunningHandlers::clock`].
pub(super) struct HandlerRequests {
    parts: Arc<HandlerParts>,
    /// Time at which running attempts of the previous parts are cancelled, if the parts were replaced.
    replace_by: Duration,
    order: HandlerOrder,
    removed: Option<Remove>,
    /// Set if the handler has ended because its sink is closed for good.
    ended_by_sink: bool,
}

impl HandlerRequests {
    /// Returns the engine's request to the actor with these parts. If the parts were replaced, the actor must close.
    pub(super) fn order(&self, parts: &Arc<HandlerParts>) -> HandlerOrder {
        if Arc::ptr_eq(parts, &self.parts) { self.order } else { HandlerOrder::Close(self.replace_by) }
    }
}

/// Events that another handler gave up, and the channel for the answer. If the events are not delivered, the channel is closed
/// without an answer.
pub(super) type DeadLetter = (Notification, oneshot::Sender<()>);

/// One handler.
pub(super) struct HandlerMember {
    name: String,
    pub(super) reader: ReaderId,
    pub(super) requests: watch::Sender<HandlerRequests>,
    /// Queue of the events that other handlers gave up. Closed when this handler has ended.
    letters: mpsc::Sender<DeadLetter>,
    /// Fault to inject into the actor, for tests.
    pub(super) fault: SharedFault,
}

impl HandlerMember {
    fn parts(&self) -> Arc<HandlerParts> {
        Arc::clone(&self.requests.borrow().parts)
    }

    fn has_ended(&self) -> bool {
        self.letters.is_closed()
    }

    fn removed(&self) -> Option<Remove> {
        self.requests.borrow().removed
    }

    /// Delivers events that another handler gave up. Returns false if this handler ends before the events are delivered.
    pub(super) async fn take(&self, events: Notification) -> bool {
        let (answer, answered) = oneshot::channel();
        self.letters.send((events, answer)).await.is_ok() && answered.await.is_ok()
    }
}

/// All handlers of an engine.
#[derive(Clone)]
pub(crate) struct RunningHandlers {
    /// Router of the handlers' readers.
    pub router: Router,
    members: Arc<Mutex<Vec<Arc<HandlerMember>>>>,
    arbiter: ArbiterHandle,
    /// Set after [`RunningHandlers::shut_down`] was called.
    pub(super) is_stopping: Arc<AtomicBool>,
    supervision: Supervision,
    /// Instant from which all times of the actors count.
    pub(super) clock: Instant,
}

impl RunningHandlers {
    /// Makes an empty set of handlers. `supervision` has the restart delays of actors that have panicked. All actors run on the
    /// current arbiter.
    ///
    /// # Panics
    /// Panics without an arbiter.
    pub(crate) fn new(router: Router, supervision: Supervision) -> Self {
        let (arbiter, clock) = (actix_rt::Arbiter::current(), Instant::now());
        Self { router, members: Arc::default(), arbiter, is_stopping: Arc::default(), supervision, clock }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns the status of all handlers, except those that are being removed.
    pub(crate) fn views(&self) -> Vec<HandlerView> {
        let is_shown = |member: &Arc<HandlerMember>| member.removed().is_none();
        self.all().iter().filter(|member| is_shown(member)).map(|member| member.parts().status.view()).collect()
    }

    /// Returns the status of a handler; `None` if no handler has this name.
    pub(crate) fn status(&self, name: &str) -> Option<Arc<HandlerStatus>> {
        self.find(name).map(|member| Arc::clone(&member.parts().status))
    }

    /// Pauses, resumes or replays a handler; returns the number of replayed events, and the handler's view. Returns `None`
    /// if no handler has this name.
    pub(crate) fn control(&self, name: &str, control: Control) -> Option<(u64, HandlerView)> {
        let status = self.status(name)?;
        let replayed = status.control(control);
        info!(handler = name, ?control, replayed, "changed the handler on request");
        Some((replayed, status.view()))
    }

    /// Adds a handler and starts it, or replaces the handler of the same name. A new handler receives events that are released from
    /// now on. A replacement keeps the reader of the old handler with all waiting events, and stays paused if the old handler was
    /// paused. The old sink is closed after its running calls. Then the new sink receives the remaining events. Returns the running
    /// units that must add or remove the reader (S-5).
    ///
    /// # Errors
    /// Fails if the journal cannot open a reader.
    pub(crate) fn put(&self, options: NewHandler) -> Result<Vec<(UnitId, Attachment)>, OpenReaderError> {
        let NewHandler { name, kind, route, bounds, core, sink, dead_letter, throttle } = options;
        let before = self.find(&name);
        let paused = before.as_ref().map(|member| member.parts().status.paused.clone()).unwrap_or_default();
        let parts = |reader| {
            let status = Arc::new(HandlerStatus::new(&name, kind, paused, self.router.clone(), reader));
            Arc::new(HandlerParts { core, sink, dead_letter, throttle, status })
        };
        let replace_by = self.now() + self.supervision.hung_after;
        match before {
            Some(member) if !member.has_ended() => {
                let attachments = self.router.set_route(member.reader, route, bounds);
                let parts = parts(member.reader);
                member.requests.send_modify(|requests| (requests.parts, requests.replace_by) = (parts, replace_by));
                return Ok(attachments);
            }
            Some(member) => self.forget(&member, Remove::Discard), // its sink was closed for good
            None => {}
        }
        let (reader, attachments) = self.router.open(Some(&name), route, bounds)?;
        let (parts, order) = (parts(reader), HandlerOrder::Run);
        let requests = HandlerRequests { parts, replace_by, order, removed: None, ended_by_sink: false };
        let requests = watch::Sender::new(requests);
        let (letters, received) = mpsc::channel(LETTERS_MAX);
        let member = Arc::new(HandlerMember { name, reader, requests, letters, fault: SharedFault::default() });
        lock(&self.members).push(Arc::clone(&member));
        let all = self.clone();
        self.arbiter.spawn_fn(move || drop(actix_rt::spawn(all.keep(member, received))));
        Ok(attachments)
    }

    /// Replaces route and bounds of a handler, but not the sink. See [`RunningHandlers::put`].
    pub(crate) fn set_route(&self, name: &str, route: Route, bounds: Bounds) -> Vec<(UnitId, Attachment)> {
        self.find(name).map(|member| self.router.set_route(member.reader, route, bounds)).unwrap_or_default()
    }

    /// Removes a handler in the background. Its name can be reused at once. An unknown name has no effect (S-7).
    pub(crate) fn remove(&self, name: &str, how: Remove) {
        let Some(member) = self.find(name) else { return };
        let hung_after = self.supervision.hung_after;
        let order = match how {
            Remove::Drain(until) => {
                let until = until.saturating_duration_since(self.clock);
                HandlerOrder::Drain { until, close_by: until + hung_after }
            }
            Remove::Discard => HandlerOrder::Close(self.now() + hung_after),
        };
        member.requests.send_modify(|requests| (requests.removed, requests.order) = (Some(how), order));
        if member.has_ended() {
            self.forget(&member, how);
        }
    }

    /// Injects a fault into a handler.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn sabotage(&self, name: &str, spot: Spot, harm: Harm) {
        let Some(member) = self.find(name) else { return };
        match &member.parts().sink {
            Sink::Thread(worker) if spot == Spot::Thread => worker.sabotage(harm),
            _ => {
                member.fault.put(harm);
                member.requests.send_modify(|_| {}); // wakes the actor
            }
        }
    }

    fn all(&self) -> Vec<Arc<HandlerMember>> {
        lock(&self.members).clone()
    }

    /// Returns the newest handler of this name, for dead letters. It may be a removed handler that still drains.
    pub(super) fn dead_letter(&self, name: &str) -> Option<Arc<HandlerMember>> {
        lock(&self.members).iter().rev().find(|member| member.name == name).cloned()
    }

    fn find(&self, name: &str) -> Option<Arc<HandlerMember>> {
        lock(&self.members).iter().find(|member| member.name == name && member.removed().is_none()).cloned()
    }

    /// Runs a handler's actor, and restarts it, until the handler has ended.
    async fn keep(self, member: Arc<HandlerMember>, mut letters: mpsc::Receiver<DeadLetter>) {
        let mut policy = RestartPolicy::new(&self.supervision);
        let handler = &member.name;
        let ended_by_sink = loop {
            let parts = member.parts();
            policy.healthy(self.now());
            parts.status.begin_life();
            let actor = HandlerLoop::new(&self, &member, Arc::clone(&parts));
            let ended = tokio::select! {
                ended = AssertUnwindSafe(actor.run(&mut letters)).catch_unwind() => ended,
                () = self.overdue(&member, &parts) => {
                    error!(handler, "failed to close the handler: it does not answer");
                    Ok(None)
                }
            };
            let is_replaced = !Arc::ptr_eq(&parts, &member.parts());
            match ended {
                Ok(end) => {
                    parts.status.lock().view.state = HandlerState::Stopped;
                    if end.is_some() || !is_replaced {
                        break end;
                    }
                    info!(handler, "the handler was replaced");
                }
                Err(panic) => {
                    let exit = Exit::Panicked(panic_text(panic.as_ref()));
                    parts.status.end_life(&exit);
                    let Restart { attempt, delay } = policy.failed(self.now(), rand::random());
                    warn!(handler, cause = %exit, attempt, ?delay, "the handler's actor has ended; restarting it");
                    let is_over = |requests: &HandlerRequests| requests.order(&parts) != HandlerOrder::Run;
                    drop(timeout(delay, member.requests.subscribe().wait_for(is_over)).await);
                }
            }
            self.router.journal.rewind(member.reader);
        };
        member.requests.send_modify(|requests| requests.ended_by_sink = ended_by_sink.is_some());
        letters.close(); // before `removed` is read, so that either this task or `remove` forgets the handler
        if let Some(reason) = ended_by_sink {
            self.report_end(&member, &reason);
        }
        if let Some(how) = member.removed().filter(|_| !self.is_stopping.load(atomic::Ordering::Acquire)) {
            self.forget(&member, how);
        }
    }

    /// Waits until the time at which the actor with these parts must have ended. Waits without a limit while the actor has no
    /// request to end.
    async fn overdue(&self, member: &HandlerMember, parts: &Arc<HandlerParts>) {
        let mut requests = member.requests.subscribe();
        loop {
            let limit = match requests.borrow_and_update().order(parts) {
                HandlerOrder::Run => Duration::MAX,
                HandlerOrder::Drain { close_by, .. } | HandlerOrder::Close(close_by) => close_by + CLOSE_GRACE,
            };
            if timeout(limit.saturating_sub(self.now()), requests.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Logs that the sink of a handler was closed for good, and ends the delivery of the handler's waiting events. Without a store
    /// these events are lost; with a store, the next run delivers them.
    fn report_end(&self, member: &HandlerMember, reason: &str) {
        let left = self.router.journal.stats(member.reader);
        let (handler, undelivered) = (&member.name, left.queued + left.in_flight);
        if self.is_unread() {
            info!(handler, %reason, undelivered, "the handler has ended");
        } else {
            warn!(handler, %reason, undelivered, "the handler has ended");
        }
        self.router.journal.abandon(member.reader);
    }

    /// Removes a handler that has ended, and logs its undelivered events.
    fn forget(&self, member: &Arc<HandlerMember>, how: Remove) {
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

    /// Returns true if all handlers are `stdout` and their output is no longer read, as in `deltabus run … | head`.
    fn is_unread(&self) -> bool {
        let is_pipe = |member: &HandlerMember| member.parts().status.lock().view.kind == "stdout";
        let is_unread = |member: &Arc<HandlerMember>| member.requests.borrow().ended_by_sink && is_pipe(member);
        let members = lock(&self.members);
        !members.is_empty() && members.iter().all(is_unread)
    }

    /// Logs the events that were dropped since the last call. Events are dropped if a buffer is full or a handler has ended (E6).
    pub(crate) fn report_losses(&self) {
        if !self.is_unread() {
            self.all().iter().for_each(|member| self.report_losses_of(member));
        }
    }

    fn report_losses_of(&self, member: &HandlerMember) {
        let handler = &member.name;
        let why = if member.requests.borrow().ended_by_sink { "the handler has ended" } else { "the buffer is full" };
        let losses = self.router.journal.take_losses(member.reader);
        for event in &losses.named {
            warn!(handler, %event, why, "dropped an event");
        }
        if losses.unnamed > 0 {
            warn!(handler, events = losses.unnamed, why, "dropped more events");
        }
    }

    fn leftover(&self, member: &HandlerMember) -> Option<Leftover> {
        let journal = &self.router.journal;
        let stats = journal.stats(member.reader);
        let events = stats.queued + stats.in_flight;
        let named = || journal.undelivered(member.reader, NAMED_MAX);
        (events > 0).then(|| Leftover { handler: member.name.clone(), events, named: named() })
    }

    /// Delivers the released events, and returns those that remain at the deadline. Handlers that receive dead letters
    /// end last. At the deadline all open sinks are closed, so that they flush their output.
    pub(crate) async fn shut_down(&self, deadline: Instant) -> Vec<Leftover> {
        self.is_stopping.store(true, atomic::Ordering::Release);
        let all = self.all();
        let until = deadline.saturating_duration_since(self.clock);
        let close_by = until + ANSWER_GRACE;
        let dead_letters: HashSet<String> =
            all.iter().filter_map(|member| member.parts().dead_letter.clone()).collect();
        for takes_dead_letters in [false, true] {
            let members = all.iter().filter(|member| dead_letters.contains(&member.name) == takes_dead_letters);
            let ended = members.map(|member| {
                member.requests.send_modify(|requests| {
                    // A removal with another deadline may be running.
                    requests.order = match requests.order {
                        HandlerOrder::Close(earlier) => HandlerOrder::Close(earlier.min(close_by)),
                        HandlerOrder::Run | HandlerOrder::Drain { .. } => HandlerOrder::Drain { until, close_by },
                    };
                });
                member.letters.closed()
            });
            drop(timeout_at(deadline, join_all(ended)).await);
        }
        // All tasks have ended by `latest`, unless their arbiter has stopped.
        let latest = deadline.max(Instant::now()) + ANSWER_GRACE + CLOSE_GRACE * 2;
        drop(timeout_at(latest, join_all(all.iter().map(|member| member.letters.closed()))).await);
        self.report_losses();
        let left = all.iter().filter(|member| member.removed() != Some(Remove::Discard));
        left.filter_map(|member| self.leftover(member)).collect()
    }
}
