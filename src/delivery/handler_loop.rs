//! Actor around [`HandlerCore`]: it reads the events of a handler, sends them to the handler's sink, and acknowledges them.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{
    attempts::GiveUp,
    core::{HandlerAction, HandlerCore},
    handlers::{DeadLetter, HandlerMember, HandlerParts, RunningHandlers},
    log::{DeliveryLog, Sent},
    schedule::DeliveryId,
    throttle::state::Throttled,
};
use crate::{
    handler::Form,
    notification::{Event, Notification},
};

/// Futures of one kind that run concurrently.
type Running<T> = FuturesUnordered<LocalBoxFuture<'static, T>>;

/// Longest time for which the last events of `once_per` are not on disk.
const SAVE_THROTTLE_EVERY: Duration = Duration::from_secs(30);

/// Loop of a handler: a task that executes the actions of its core. It ends only after the last action, or with a panic.
pub(super) struct HandlerLoop<'a> {
    handlers: &'a RunningHandlers,
    member: &'a HandlerMember,
    parts: Arc<HandlerParts>,
    core: HandlerCore,
    log: DeliveryLog,
    attempts: Running<Sent>,
    /// Given-up events that are being sent to the dead-letter handler. The flag is set if that handler accepted the events.
    given_up: Running<(DeliveryId, Notification, GiveUp, bool)>,
    /// The current read, if there is one.
    reading: Running<Option<Vec<Event>>>,
    /// Set if the current read waits for new events.
    awaits_events: bool,
    /// Events of the last read, while the throttle judges them. No other read starts meanwhile.
    judging: Running<Throttled>,
    throttle_saved_at: Duration,
    answers: HashMap<DeliveryId, oneshot::Sender<()>>,
}

impl<'a> HandlerLoop<'a> {
    /// Makes the actor of a handler with these parts.
    pub(super) fn new(handlers: &'a RunningHandlers, member: &'a HandlerMember, parts: Arc<HandlerParts>) -> Self {
        let (core, log) = (HandlerCore::new(parts.core), DeliveryLog::new(Arc::clone(&parts.status)));
        Self {
            handlers,
            member,
            parts,
            core,
            log,
            attempts: Running::new(),
            given_up: Running::new(),
            reading: Running::new(),
            awaits_events: false,
            judging: Running::new(),
            throttle_saved_at: Duration::ZERO,
            answers: HashMap::new(),
        }
    }

    /// Runs the handler to its end. Returns the reason if its sink is closed for good.
    pub(super) async fn run(mut self, letters: &mut mpsc::Receiver<DeadLetter>) -> Option<String> {
        let mut requests = self.member.requests.subscribe();
        let mut paused = self.parts.status.paused.subscribe();
        loop {
            tokio::task::consume_budget().await; // a sink that never waits must not starve the other handlers
            self.member.fault.strike("handler actor");
            let now = self.handlers.now();
            let (order, is_paused) = (requests.borrow_and_update().order(&self.parts), *paused.borrow_and_update());
            self.core.order(order, is_paused, now);
            let mut end = ControlFlow::Continue(());
            while let Some(action) = self.core.next(now) {
                end = self.perform(action);
            }
            self.read();
            self.parts.status.show(&self.core.view(now), self.handlers.clock);
            let saves = self.save_throttle(now);
            if let ControlFlow::Break(reason) = end {
                self.save_throttle_now().await;
                if reason.is_none() {
                    self.log.closed(&self.parts.sink.close().await);
                }
                return reason;
            }
            let wait = self.core.wake_at().map(|at| at.saturating_sub(now));
            tokio::select! {
                Some(sent) = self.attempts.next() => self.finished(&sent),
                Some((delivery, events, reason, is_taken)) = self.given_up.next() => {
                    self.gave_up(delivery, &events, &reason, is_taken);
                }
                Some(events) = self.reading.next() => self.arrived(events),
                Some(judged) = self.judging.next() => self.judged(judged),
                Some((events, answer)) = letters.recv() => {
                    self.answers.insert(self.core.dead_letter(events), answer);
                }
                _ = requests.changed() => {}
                _ = paused.changed() => {}
                () = sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {}
                () = sleep(SAVE_THROTTLE_EVERY), if saves => {}
            }
        }
    }

    /// Starts an action. Returns `Break` for the last action, with the reason if the sink is closed for good.
    fn perform(&mut self, action: HandlerAction) -> ControlFlow<Option<String>> {
        match action {
            HandlerAction::Send(delivery, events, form) => self.send(delivery, events, form),
            HandlerAction::Cancel => self.attempts.clear(),
            HandlerAction::GiveUp(delivery, events, reason) => self.give_up(delivery, events, reason),
            HandlerAction::Acknowledge(delivery, sequences) => {
                self.log.end(delivery);
                self.handlers.router.journal.ack_each(self.member.reader, &sequences);
            }
            HandlerAction::Answer(delivery, is_delivered) => {
                self.log.end(delivery);
                let answer = self.answers.remove(&delivery).filter(|_| is_delivered);
                answer.map(|answer| answer.send(())); // the handler that sent these events may have ended meanwhile
            }
            HandlerAction::End(reason) => return ControlFlow::Break(reason),
        }
        ControlFlow::Continue(())
    }

    fn send(&mut self, delivery: DeliveryId, events: Notification, form: Form) {
        let (events, parts) = (self.log.begin(delivery, events), Arc::clone(&self.parts));
        let attempt = async move {
            let begun = Instant::now();
            let outcome = parts.sink.deliver(events.clone(), form, &parts.status).await;
            Sent { delivery, events, form, outcome, took: begun.elapsed() }
        };
        self.attempts.push(attempt.boxed_local());
    }

    fn finished(&mut self, sent: &Sent) {
        let now = self.handlers.now();
        let failure = self.core.finished(sent.delivery, sent.outcome.clone(), now, rand::random());
        self.log.finished(sent, failure, self.core.view(now).is_failing, now);
    }

    fn give_up(&mut self, delivery: DeliveryId, events: Notification, reason: GiveUp) {
        let dead_letter = self.parts.dead_letter.as_ref().and_then(|name| self.handlers.dead_letter(name));
        let handed_over = async move {
            let is_taken = match dead_letter {
                Some(handler) => handler.take(events.clone()).await,
                None => false,
            };
            (delivery, events, reason, is_taken)
        };
        self.given_up.push(handed_over.boxed_local());
    }

    fn gave_up(&mut self, delivery: DeliveryId, events: &Notification, reason: &GiveUp, is_taken: bool) {
        self.log.gave_up(delivery, events, reason, is_taken);
        if self.core.gave_up(delivery) {
            self.handlers.router.journal.give_up(self.member.reader, &events.sequences());
        }
    }

    /// Stops the current read if the core has no room. Otherwise starts a read, unless one is running.
    fn read(&mut self) {
        let (room, awaits_events) = (self.core.room(), self.core.is_exhausted);
        if room.is_none() || (self.awaits_events && !awaits_events) {
            self.reading.clear();
        }
        let Some(room) = room.filter(|_| self.reading.is_empty() && self.judging.is_empty()) else { return };
        self.awaits_events = awaits_events;
        let (router, reader) = (self.handlers.router.clone(), self.member.reader);
        let read = async move {
            if awaits_events {
                router.journal.readable(reader).await;
                return None; // the room may have changed meanwhile
            }
            Some(router.read(reader, room).await)
        };
        self.reading.push(read.boxed_local());
    }

    /// Takes the events of a read. With a throttle, they are judged first, on another thread: rendering keys may take long. The
    /// judgement is never dropped, because the events count as read.
    fn arrived(&mut self, events: Option<Vec<Event>>) {
        match (events, &self.parts.throttle) {
            (Some(events), Some(throttle)) if !events.is_empty() => {
                let throttle = throttle.clone();
                let judged = spawn_blocking(move || throttle.judge(events));
                self.judging.push(judged.map(|judged| judged.expect("a judgement does not panic")).boxed_local());
            }
            (events, _) => self.core.read(events, self.handlers.now()),
        }
    }

    /// Acknowledges the suppressed events, and passes the others on.
    fn judged(&mut self, judged: Throttled) {
        self.log.throttled(&judged);
        self.handlers.router.journal.ack_each(self.member.reader, &judged.suppressed);
        // If no event of a read is wanted, others may still wait.
        self.core.read(Some(judged.wanted).filter(|wanted| !wanted.is_empty()), self.handlers.now());
    }

    /// Saves the state of the throttle in the background if that is due. Returns true if it has to be saved later.
    fn save_throttle(&mut self, now: Duration) -> bool {
        let Some(state) = self.parts.throttle.as_ref().map(|throttle| &throttle.state) else { return false };
        let is_unsaved = state.is_unsaved();
        if is_unsaved && now.saturating_sub(self.throttle_saved_at) >= SAVE_THROTTLE_EVERY {
            self.throttle_saved_at = now;
            let state = Arc::clone(state);
            drop(spawn_blocking(move || state.save()));
        }
        is_unsaved
    }

    async fn save_throttle_now(&self) {
        if let Some(throttle) = &self.parts.throttle {
            let state = Arc::clone(&throttle.state);
            drop(spawn_blocking(move || state.save()).await);
        }
    }
}
