//! Conductor: brings the running units in line with the desired ones, whenever either changes.
//!
//! ```text
//! configuration ─┐                                        ┌▶ change of one type's units  (a task each)
//! catalog ───────┤                                        │
//! namespaces ────┼─▶ plan (pure) ─▶ reconcile (pure) ─────┼▶ discovery, questions about rights  (tasks)
//! rights ────────┘                  ▲                     │
//!                                   └─ running units      └▶ status of patterns that wait for a type
//! ```
//!
//! The plan is kept until one of its inputs changes. One loop does all this and never waits. Slow work is done by tasks, which
//! change the [`State`] and wake the loop. A panic in the loop is logged, and the loop continues with the same state.

pub(in crate::engine) mod auxiliary;
mod change;
mod memory;
pub(crate) mod restore;
mod rights;
mod served;
pub(in crate::engine) mod state;
mod types_without_units;

use std::{
    any::Any,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, interval, sleep, sleep_until},
};
use tracing::error;

use self::{
    auxiliary::Auxiliary,
    memory::Rest,
    state::{State, TypeState},
};
use super::{
    EngineError,
    handle::Applied,
    handlers::ConfiguredHandlers,
    library::Library,
    plan::{
        Plan, TypeName,
        reconcile::{First, History, Occasion, Steps, reconcile},
    },
    reload::keep_until_restart,
};
use crate::{
    backoff::Backoff,
    delivery::router::Router,
    informer::Shared,
    journal::{Attachment, UnitId},
    list_watch::kube::ClusterAccess,
    mutex::lock,
    registry::Registry,
    status::UnitState,
    supervisor::{Exit, child::panic_text, fault::SharedFault},
};

/// Interval between two checks of the units' state. Changes of that state do not wake the loop.
const LOOK: Duration = Duration::from_millis(500);
/// Period of [`Conductor::tend`].
const TEND_EVERY: Duration = Duration::from_secs(1);
/// Pause after a panic of the loop.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Conductor of an engine; see the module.
pub(super) struct Conductor {
    pub(super) access: ClusterAccess,
    pub(super) registry: Arc<Registry>,
    pub(super) router: Router,
    pub(super) shared: Shared,
    /// `None` when the engine stops.
    pub(super) delivery: Mutex<Option<ConfiguredHandlers>>,
    pub(super) library: Mutex<Library>,
    pub(super) state: Mutex<State>,
    pub(super) auxiliaries: Mutex<Auxiliaries>,
    pub(super) clock: Instant,
    pub(super) poked: Notify,
    /// Number of times that the loop has checked everything.
    pub(super) looks: AtomicU64,
    pub(super) failed: watch::Sender<Option<Fatal>>,
    /// Set when the state directory belongs to this cluster, or when there is no right to check this.
    pub(super) bound: AtomicBool,
    /// Fault that a test injects into the next check.
    pub(super) fault: SharedFault,
}

/// Reason why the engine cannot continue.
#[derive(Clone, Debug)]
pub(super) enum Fatal {
    /// Required type is not served.
    Missing(String),
    /// The state directory belongs to another cluster, or could not be bound to this one.
    State(String),
}

/// Informers for the engine itself.
#[derive(Default)]
pub(super) struct Auxiliaries {
    pub(super) namespaces: Option<Auxiliary>,
    pub(super) definitions: Option<Auxiliary>,
}

impl Conductor {
    /// Runs the loop until the task is aborted.
    pub(super) fn start(self: &Arc<Self>) -> JoinHandle<()> {
        let conductor = Arc::clone(self);
        actix_rt::spawn(async move {
            loop {
                let Err(panic) = AssertUnwindSafe(conductor.run()).catch_unwind().await;
                error!(cause = %panicked(&*panic), "the conductor panicked; restarting it with the same state");
                sleep(AFTER_PANIC).await;
            }
        })
    }

    /// Runs a function on the handlers.
    pub(in crate::engine) fn with_delivery<T>(
        &self,
        act: impl FnOnce(&mut ConfiguredHandlers) -> T,
    ) -> Result<T, EngineError> {
        lock(&self.delivery).as_mut().map(act).ok_or(EngineError::Stopped)
    }

    /// Changes the configuration, and everything that depends on it. An error changes nothing. Also returns the result of
    /// `change`.
    pub(in crate::engine) fn reconfigure<T>(
        &self,
        change: impl FnOnce(&mut Library) -> Result<T, EngineError>,
    ) -> Result<(T, Applied), EngineError> {
        let mut changed = lock(&self.library).clone();
        let result = change(&mut changed)?;
        let mut config = changed.config()?;
        let running = Arc::clone(&self.lock().config);
        let needs_restart = keep_until_restart(&running, &mut config);
        let attachments = self.with_delivery(|delivery| delivery.apply(&config))??;
        {
            let mut library = lock(&self.library);
            changed.indexes = std::mem::take(&mut library.indexes); // they may have grown meanwhile
            *library = changed;
        }
        self.queue_attachments(attachments);
        let mut state = self.lock();
        state.config = Arc::new(config);
        state.told.clear();
        state.rediscovery.ask_now(self.clock.elapsed());
        if state.catalog.is_some() {
            state.all_due(Occasion::Reload);
        } else {
            self.show_all_waiting(&mut state);
        }
        drop(state);
        self.poke();
        Ok((result, Applied { needs_restart }))
    }

    async fn run(self: &Arc<Self>) -> Infallible {
        let (mut tending, mut rest) = (interval(TEND_EVERY), Rest::default());
        loop {
            self.look();
            if rest.is_due(self.clock.elapsed(), LOOK, self.shared.journal.released().0) {
                drop(tokio::task::spawn_blocking(memory::give_back));
            }
            let next = self.next_look();
            while tokio::select! {
                () = self.poked.notified() => false,
                () = sleep_until(next) => false,
                _ = tending.tick() => true,
            } {
                self.tend();
            }
        }
    }

    /// Forgets each ended unit once all readers have read past its events. Also logs the events that handlers have lost.
    fn tend(&self) {
        self.router.forget_units();
        if let Some(delivery) = &*lock(&self.delivery) {
            delivery.handlers.report_losses();
        }
    }

    /// Wakes the loop to check everything soon.
    pub(super) fn poke(&self) {
        self.poked.notify_one();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a function on the units of a type; returns `None` if the type is unknown.
    pub(super) fn of_type<T>(&self, name: &TypeName, act: impl FnOnce(&mut TypeState) -> T) -> Option<T> {
        self.lock().types.get_mut(name).map(act)
    }

    fn next_look(&self) -> Instant {
        let state = self.lock();
        let asks = state.rediscovery.next().filter(|_| !state.discovering).map(|at| self.clock + at);
        let waits =
            state.types.values().filter(|kept| !kept.busy && kept.due.is_some()).filter_map(|kept| kept.not_before);
        let latest = Instant::now() + LOOK;
        waits.chain(asks).fold(latest, Instant::min)
    }

    /// Checks everything once, and starts the work that is due.
    fn look(self: &Arc<Self>) {
        self.fault.strike("conductor");
        self.see_namespaces();
        self.see_units();
        self.see_missing();
        self.ask_for_types();
        self.looks.fetch_add(1, Ordering::Relaxed);
        let Some(outlook) = self.lock().outlook() else { return };
        self.keep_auxiliaries(&outlook);
        self.ask_for_rights(&outlook.plan);
        self.show_waiting(&outlook);
        self.reconcile_all(&outlook.plan);
        self.finish_first_discovery(&outlook.plan);
    }

    fn see_namespaces(&self) {
        let seen = lock(&self.auxiliaries).namespaces.as_ref().map(Auxiliary::namespaces);
        if let Some(seen) = seen {
            self.lock().see_namespaces(seen);
        }
    }

    /// Notes which first lists are complete, and which types the server refuses or allows in the whole cluster.
    fn see_units(&self) {
        let mut state = self.lock();
        let State { types, inquiries, .. } = &mut *state;
        let (mut refused, mut allowed) = (Vec::new(), Vec::new());
        for (name, kept) in types {
            for unit in &mut kept.units {
                let (unit_state, synced) = {
                    let view = unit.informer.status.lock();
                    (view.state, view.synced)
                };
                if synced {
                    unit.first = First::Done;
                }
                if !unit.spec.is_whole_of_namespaces() || unit.supervisor.is_none() {
                    continue; // only a started unit over all namespaces shows whether the whole cluster is refused
                }
                match (inquiries.get(name), unit_state) {
                    (None, UnitState::Forbidden) => refused.push(name.clone()),
                    (Some(inquiry), UnitState::Watching) if !inquiry.asking => allowed.push(name.clone()),
                    _ => {}
                }
            }
            kept.admit();
        }
        refused.dedup();
        for name in &refused {
            state.refuse(name);
        }
        for name in &allowed {
            state.allow(name);
        }
    }

    /// Starts a change for each type whose reconciliation is due, or whose units have pending attachments of readers.
    fn reconcile_all(self: &Arc<Self>, plan: &Plan) {
        let mut state = self.lock();
        state.take_in(plan);
        let now = Instant::now();
        let due: Vec<(TypeName, Occasion)> = state
            .types
            .iter()
            .filter_map(|(name, kept)| {
                let ready = !kept.busy && kept.not_before.is_none_or(|at| at <= now);
                let occasion = kept.due.or((!kept.attachments.is_empty()).then_some(Occasion::Repair));
                occasion.filter(|_| ready).map(|occasion| (name.clone(), occasion))
            })
            .collect();
        for (name, occasion) in due {
            let desired = state.desired(&name, plan);
            let history = state.history(&name, occasion);
            let steps = match &desired {
                Some(desired) => {
                    let running = state.running(&name, desired);
                    let steps = reconcile(&running, desired, history);
                    state.watch(&name, desired);
                    steps
                }
                None => Steps::default(), // still unknown: the running units stay
            };
            let decided = plan.is_decided(&name);
            let Some(kept) = state.types.get_mut(&name) else { continue };
            kept.due = None;
            kept.not_before = None;
            kept.settled |= decided && steps.is_empty();
            let waits = kept.units.iter().any(|unit| unit.saved && steps.keep.contains(&unit.informer.id));
            if steps.is_empty() && kept.attachments.is_empty() && !waits {
                continue;
            }
            kept.busy = true;
            self.spawn_change(name, steps, history);
        }
        state.types.retain(|_, kept| kept.busy || !kept.units.is_empty() || kept.settled || kept.due.is_some());
    }

    /// Runs a change as a task. If the task panics, the type is reconciled again after a delay.
    fn spawn_change(self: &Arc<Self>, name: TypeName, steps: Steps, history: History) {
        let (conductor, of_type) = (Arc::clone(self), name.clone());
        let work = async move { conductor.change(&of_type, steps, history).await };
        self.spawn(work, move |conductor, ended| {
            conductor.of_type(&name, |kept| {
                kept.busy = false;
                let Err(cause) = ended else {
                    kept.failures = None;
                    return;
                };
                let backoff = conductor.shared.supervision.backoff;
                let failures = kept.failures.get_or_insert_with(|| Backoff::new(backoff));
                let delay = failures.fail(conductor.clock.elapsed(), rand::random());
                error!(resource = %name, %cause, ?delay, "failed to change the units of the type; retrying");
                kept.not_before = Some(Instant::now() + delay);
                kept.due = kept.due.max(Some(Occasion::Repair));
            });
        });
    }

    /// Runs `work` as a task. Then passes the result of `work`, or the panic, to `end`, and wakes the loop.
    pub(super) fn spawn<T>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + 'static,
        end: impl FnOnce(&Self, Result<T, Exit>) + 'static,
    ) {
        let conductor = Arc::clone(self);
        actix_rt::spawn(async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            end(&conductor, ended.map_err(|panic| panicked(&*panic)));
            conductor.poke();
        });
    }

    /// Marks the first discovery as complete once the units of its types are shown. Before that, the engine is not ready.
    fn finish_first_discovery(&self, plan: &Plan) {
        if self.registry.is_discovered() {
            return;
        }
        let undecided = plan.types.keys().any(|name| !plan.is_decided(name));
        let at_work = self.lock().types.values().any(|kept| kept.busy || kept.due.is_some());
        if !undecided && !at_work {
            self.registry.set_discovered();
            self.shared.journal.set_discovered();
        }
    }

    /// Shows the units and the waiting patterns. Callers must keep removed informers alive until this returns.
    pub(super) fn show(&self, state: &State) {
        let informers = state.units().into_iter().map(|unit| unit.informer).collect();
        self.registry.set(informers, state.waiting.clone());
    }

    /// Queues each attachment for its unit, which will add or drop the reader. Ignores attachments of units that no longer exist.
    pub(super) fn queue_attachments(&self, attachments: Vec<(UnitId, Attachment)>) {
        let mut state = self.lock();
        for (unit, asked) in attachments {
            let of_unit = |kept: &&mut TypeState| kept.units.iter().any(|known| known.informer.id == unit);
            if let Some(kept) = state.types.values_mut().find(of_unit) {
                kept.queue_attachment(unit, asked);
            }
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Exit {
    Exit::Panicked(panic_text(panic))
}
