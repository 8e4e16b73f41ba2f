//! Loop of a reflector: one step of the state machine, then the requested action.

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use futures_util::{StreamExt as _, future::LocalBoxFuture};
use rand::RngExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until},
};
use tracing::info;

use super::{
    Reflector, ReflectorAction, ReflectorEvent, ReflectorInput, ReflectorReport, ReflectorStep,
    log::log,
    messages::{Compare, Events, Queue, UnitHooks},
};
use crate::{
    failures::Failures,
    list_watch::{Failure, ListWatch, WatchEvent, WatchStream, retry::repeat_after},
    object::{Keep, Object, ResourceType},
    status::UnitState,
    trace::Span,
};

/// A [`Reflector`] with the resources that its actions need.
pub(crate) struct ReflectorRun {
    reflector: Reflector,
    source: Rc<dyn ListWatch>,
    fifo: Queue,
    list_permits: Arc<Semaphore>,
    resource: Arc<ResourceType>,
    keep: Keep,
    unit: UnitHooks,
    started: Instant,
    /// Time at which the list in progress was requested.
    listing_since: Option<Instant>,
    stream: Option<WatchStream>,
    /// Span of the list or watch in progress.
    span: Span,
    /// Failures since the last watch was opened.
    failures: Failures,
    permit: Option<OwnedSemaphorePermit>,
    /// Failure that was last written into the view. It is not written again: it would replace a later failure of another actor.
    told: Option<Failure>,
}

impl ReflectorRun {
    /// Creates the loop. `list_permits` limits the concurrent lists of the whole engine (`max_concurrent_lists`).
    pub(crate) fn new(
        mut reflector: Reflector,
        source: Rc<dyn ListWatch>,
        fifo: Queue,
        list_permits: Arc<Semaphore>,
        resource: Arc<ResourceType>,
        keep: Keep,
        unit: UnitHooks,
    ) -> Self {
        reflector.round = unit.round.load(Ordering::Relaxed);
        Self {
            reflector,
            source,
            fifo,
            list_permits,
            resource,
            keep,
            unit,
            started: Instant::now(),
            listing_since: None,
            stream: None,
            span: Span::NONE,
            failures: Failures::default(),
            permit: None,
            told: None,
        }
    }

    /// Runs until the reflector is stopped or the queue has ended.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut input = ReflectorInput::Start;
        let mut doing = ReflectorAction::Done;
        loop {
            let received = Instant::now();
            if matches!(
                input,
                ReflectorInput::Page(Ok(_)) | ReflectorInput::Opened(Ok(())) | ReflectorInput::Received(_)
            ) {
                self.unit.status.lock().last_activity = Some(received.into_std());
            }
            if let ReflectorInput::Page(Err(failure))
            | ReflectorInput::Opened(Err(failure))
            | ReflectorInput::Ended(Err(failure)) = &input
            {
                self.span.fail(failure);
            }
            if matches!(input, ReflectorInput::Opened(Ok(())) | ReflectorInput::Received(_))
                && let Some(failures) = self.failures.worked()
            {
                info!(resource = %self.resource, failures, "the type is watched again");
            }
            let mut step = self.reflector.step(input, received - self.started, rand::rng().random());
            self.observe(&step);
            self.observe_list(&step, received);
            self.leave_out_resync(&mut step.events);
            match step.action {
                ReflectorAction::Done => return,
                ReflectorAction::Keep => {}
                action => doing = action,
            }
            let events = Events { events: step.events, received };
            input = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => ReflectorInput::Stop,
                next = self.hand_on_and_perform(events, step.holds_list_permit, &doing) => match next {
                    Some(input) => input,
                    None => return,
                },
            };
            if step.holds_list_permit {
                self.pack(&mut input);
            }
        }
    }

    /// Packs the objects of a list. This saves memory, because the objects are held until the list is complete.
    fn pack(&self, input: &mut ReflectorInput) {
        if !self.keep.is_whole() {
            return;
        }
        let mut objects: Vec<&mut Object> = match input {
            ReflectorInput::Page(Ok(page)) => page.items.iter_mut().collect(),
            ReflectorInput::Received(events) => {
                let objects = events.iter_mut().filter_map(|event| match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
                    _ => None,
                });
                objects.collect()
            }
            _ => return,
        };
        self.keep.look_at(objects.iter().map(|object| &**object));
        for object in &mut objects {
            **object = self.keep.of(object);
        }
    }

    /// Stores the number of a resync that is the last event. Removes this event if no handler waits for the resync.
    fn leave_out_resync(&self, events: &mut Vec<ReflectorEvent>) {
        if let Some(&ReflectorEvent::Resync { round }) = events.last() {
            self.unit.round.store(round, Ordering::Relaxed);
            if !(self.unit.is_due)(round) {
                events.pop();
            }
        }
    }

    /// Sends events to the queue, then runs the action; `None` ends the loop.
    async fn hand_on_and_perform(
        &mut self,
        events: Events,
        listing: bool,
        action: &ReflectorAction,
    ) -> Option<ReflectorInput> {
        if !events.events.is_empty() && self.fifo.events.send(events).await.is_err() {
            return None; // the queue has stopped: the whole unit will be restarted
        }
        if !listing {
            self.permit = None;
        } else if self.permit.is_none() {
            self.permit = Arc::clone(&self.list_permits).acquire_owned().await.ok();
        }
        self.perform(action).await
    }

    async fn perform(&mut self, action: &ReflectorAction) -> Option<ReflectorInput> {
        if !matches!(action, ReflectorAction::Read { .. } | ReflectorAction::Compare) {
            self.stream = None;
        }
        let asked = Instant::now();
        Some(match action {
            ReflectorAction::List(request) => {
                if request.continue_token.is_none() {
                    self.span = self.unit.status.begin_span("list");
                    self.listing_since = Some(asked);
                }
                let page = |source: &dyn ListWatch| source.list(request.clone());
                // The pages that have arrived stay in memory, so the permit is kept.
                let keeps_permit = request.continue_token.is_some();
                ReflectorInput::Page(self.repeated(page, ReflectorReport::ListDelayed, keeps_permit).await)
            }
            ReflectorAction::Compare => {
                ReflectorInput::Compared(self.fifo.compare.send(Compare(self.reflector.held()?)).await.ok()?)
            }
            ReflectorAction::OpenWatch(request) => {
                self.span = self.unit.status.begin_span("watch");
                if request.initial_events {
                    self.listing_since = Some(asked);
                }
                let watch = |source: &dyn ListWatch| source.watch(request.clone());
                let opened = self.repeated(watch, ReflectorReport::WatchDelayed, false).await;
                if opened.is_ok() {
                    self.unit.timings.watch_open.observe(asked.elapsed());
                }
                ReflectorInput::Opened(opened.map(|stream| self.stream = Some(stream)))
            }
            ReflectorAction::Read { until } => {
                let stream = self.stream.as_mut().expect("the core reads only what it opened");
                tokio::select! {
                    biased;
                    batch = stream.next() => match batch {
                        Some(Ok(events)) => ReflectorInput::Received(events),
                        Some(Err(failure)) => ReflectorInput::Ended(Err(failure)),
                        None => ReflectorInput::Ended(Ok(())),
                    },
                    () = sleep_until(self.started + *until) => ReflectorInput::Timer,
                }
            }
            ReflectorAction::Wait { until } => {
                self.span = Span::NONE;
                sleep_until(self.started + *until).await;
                ReflectorInput::Timer
            }
            ReflectorAction::Keep | ReflectorAction::Done => return None,
        })
    }

    /// Sends one request, and repeats it after failures that allow a repeat (T-1, T-3). Shows and logs each of these failures when it
    /// arrives. Without `keeps_permit`, other units may list during the delays.
    async fn repeated<T>(
        &mut self,
        send: impl Fn(&dyn ListWatch) -> LocalBoxFuture<'static, Result<T, Failure>>,
        delayed: fn(Failure) -> ReflectorReport,
        keeps_permit: bool,
    ) -> Result<T, Failure> {
        let mut repeats = 0;
        loop {
            let failure = match send(&*self.source).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let Some(delay) = repeat_after(&failure, repeats) else { return Err(failure) };
            repeats += 1;
            {
                let mut view = self.unit.status.lock();
                (view.state, view.last_error) = (UnitState::BackingOff, Some(failure.to_string()));
            }
            log(&delayed(failure), &self.resource, &mut self.failures, self.started.elapsed());
            let permit = self.permit.take_if(|_| !keeps_permit);
            let had_permit = permit.is_some();
            drop(permit);
            sleep(delay).await;
            if had_permit {
                self.permit = Arc::clone(&self.list_permits).acquire_owned().await.ok();
            }
            self.reflector.show(&mut self.unit.status.lock(), &self.resource);
        }
    }

    /// Records the duration of a list once the list is complete: `step` then compares or emits it.
    fn observe_list(&mut self, step: &ReflectorStep, received: Instant) {
        let is_complete = step.action == ReflectorAction::Compare
            || step.events.iter().any(|event| matches!(event, ReflectorEvent::Replace { .. }));
        if is_complete && let Some(since) = self.listing_since.take() {
            self.unit.status.lock().list_duration.observe(received - since);
        }
    }

    fn observe(&mut self, step: &ReflectorStep) {
        for report in &step.reports {
            log(report, &self.resource, &mut self.failures, self.started.elapsed());
        }
        if let Some(version) = &step.server_version {
            (self.unit.server_is_at)(version);
        }
        let mut view = self.unit.status.lock();
        self.reflector.show(&mut view, &self.resource);
        let failure = &self.reflector.last_error;
        if *failure != self.told {
            self.told.clone_from(failure);
            view.last_error = failure.as_ref().map(ToString::to_string).or(view.last_error.take());
        }
    }
}
