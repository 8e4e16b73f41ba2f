//! The shell of [`Supervisor`] for one unit: boots its actors on an arbiter, asks for heartbeats, reports exits.
//!
//! It lives on the system's arbiter, so it survives whatever happens to the unit's. actix's own `Supervisor` is not
//! used: it restarts without delay, keeps the same instance, and does not restart after a panic.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, Recipient,
    ResponseFuture, SpawnHandle, WrapFuture as _,
};
use tokio::{sync::oneshot, time::Instant};
use tracing::{error, info, warn};

use super::{
    ActorIndex, Decision, Exit, Generation, Input, Supervisor, SupervisorConfig, UnitState,
    child::{Heartbeat, exit_of, panic_text},
    fault::Fault,
};
use crate::{
    delta_fifo::actor::{DeltaFifoActor, Drain},
    engine::arbiters::{Arbiters, Seat},
    indexer::actor::{AddIndexers, AddIndexersError, IndexerActor, MoveError, MoveReader, Terminate},
    informer::{Actors, Informer, Shared},
    reflector::actor::{ReflectorActor, Stop},
};

/// Does harm to one actor of the unit, counted from 0 in the order of the data.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage(pub ActorIndex, pub Fault);

/// Stops the unit: the reflector first, then what is queued is applied, then the rest. Answers when all have ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StopUnit;

/// How long a unit that was asked to stop may take before it is left behind.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The stages, as actors are counted.
const STAGES: [&str; 3] = ["reflector", "DeltaFIFO", "indexer"];

/// Supervises one [`Informer`].
pub(crate) struct UnitSupervisor {
    informer: Arc<Informer>,
    shared: Shared,
    arbiters: Arc<Arbiters>,
    seat: Seat,
    core: Supervisor,
    clock: Instant,
    timer: Option<SpawnHandle>,
    running: Option<Running>,
    stop_waiters: Vec<oneshot::Sender<()>>,
    /// Faults that wait for actors that are up, in a test.
    faults: [Fault; 3],
}

/// How the actors of one generation are reached.
struct Running {
    generation: Generation,
    reflector: Addr<ReflectorActor>,
    fifo: Addr<DeltaFifoActor>,
    indexer: Addr<IndexerActor>,
    heartbeats: [Recipient<Heartbeat>; 3],
    alive: [bool; 3],
    stopping: bool,
}

impl Running {
    /// Asks the first stage that still lives to end: a later one follows when it has, so what was read is applied.
    fn press_on(&self) {
        let asked = match self.alive {
            _ if !self.stopping => return,
            [true, ..] => self.reflector.try_send(Stop).is_ok(),
            [_, true, _] => self.fifo.try_send(Drain).is_ok(),
            [.., true] => self.indexer.try_send(Terminate).is_ok(),
            _ => return,
        };
        if !asked {
            warn!("an actor's mailbox takes no request to stop; it will be left behind");
        }
    }
}

impl UnitSupervisor {
    /// Makes a supervisor; the unit starts with the actor.
    pub(crate) fn new(
        informer: Arc<Informer>,
        shared: Shared,
        arbiters: Arc<Arbiters>,
        config: SupervisorConfig,
    ) -> Self {
        let config = SupervisorConfig { stop_timeout: STOP_TIMEOUT.min(config.stop_timeout), ..config };
        Self {
            seat: arbiters.seat(),
            core: Supervisor::new(config, STAGES.len()),
            clock: Instant::now(),
            timer: None,
            running: None,
            stop_waiters: Vec::new(),
            faults: Default::default(),
            informer,
            shared,
            arbiters,
        }
    }

    /// One step of the core, and what it decided.
    fn step(&mut self, input: Input, ctx: &mut Context<Self>) {
        let verdict = self.core.step(input, self.clock.elapsed(), rand::random());
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(wake_at) = verdict.wake_at {
            let delay = wake_at.saturating_sub(self.clock.elapsed());
            self.timer = Some(ctx.run_later(delay, |supervisor, ctx| supervisor.step(Input::Timer, ctx)));
        }
        match verdict.decision {
            Decision::Nothing => {}
            Decision::Start { generation, abandoned } => self.boot(generation, &abandoned, ctx),
            Decision::Stop(_) => self.ask_to_stop(),
            Decision::Ping { generation, actors } => self.ping(generation, &actors, ctx),
            Decision::Done { abandoned } => {
                self.complain_of(&abandoned);
                if !abandoned.is_empty() {
                    // What it appended was accepted, and holds everything behind it up (I4).
                    self.informer.take_over(self.core.generation().0 + 1, &self.shared.journal);
                }
                for waiter in self.stop_waiters.drain(..) {
                    let _nobody_waits_any_more = waiter.send(());
                }
                ctx.stop();
            }
        }
        self.publish();
    }

    fn boot(&mut self, generation: Generation, abandoned: &[ActorIndex], ctx: &mut Context<Self>) {
        if !abandoned.is_empty() {
            self.complain_of(abandoned);
            self.seat = self.arbiters.replace(self.seat);
        }
        let (informer, shared) = (Arc::clone(&self.informer), self.shared.clone());
        let (reply, booted) = oneshot::channel();
        let sent = self.arbiters.arbiter(self.seat).spawn_fn(move || {
            let launched = catch_unwind(AssertUnwindSafe(|| informer.launch(generation.0, &shared)));
            drop(reply.send(match launched {
                Ok(launched) => launched.map_err(|error| Exit::Failed(error.to_string())),
                Err(panic) => Err(Exit::Panicked(panic_text(panic.as_ref()))),
            }));
        });
        let booted = async move { if sent { booted.await.ok() } else { None } };
        ctx.spawn(booted.into_actor(self).map(move |booted, supervisor, ctx| match booted {
            // It hung until it was given up on; what it started ends with its thread.
            _ if generation != supervisor.core.generation() => {}
            Some(Ok(actors)) => supervisor.watch(generation, actors, ctx),
            Some(Err(exit)) => supervisor.failed_to_boot(generation, &exit, ctx),
            None => supervisor.failed_to_boot(generation, &Exit::ArbiterGone, ctx),
        }));
    }

    fn failed_to_boot(&mut self, generation: Generation, exit: &Exit, ctx: &mut Context<Self>) {
        if *exit == Exit::ArbiterGone {
            self.seat = self.arbiters.replace(self.seat);
        }
        for actor in 0..STAGES.len() {
            self.exited(generation, actor, exit.clone(), ctx);
        }
    }

    fn watch(&mut self, generation: Generation, actors: Actors, ctx: &mut Context<Self>) {
        let Actors { reflector, fifo, indexer, exits } = actors;
        self.running = Some(Running {
            generation,
            heartbeats: [reflector.clone().recipient(), fifo.clone().recipient(), indexer.clone().recipient()],
            reflector,
            fifo,
            indexer,
            alive: [true; 3],
            stopping: !self.stop_waiters.is_empty(), // asked while the unit was starting
        });
        for (actor, exit) in exits.into_iter().enumerate() {
            ctx.spawn(exit.into_actor(self).map(move |ended, supervisor, ctx| {
                supervisor.exited(generation, actor, exit_of(ended), ctx);
            }));
        }
        self.step(Input::Started(generation), ctx);
        if let Some(running) = &self.running {
            running.press_on();
        }
        self.strike();
    }

    /// Does the harm that was asked for, once the actors of this generation are up: a cache that is brought up to the
    /// journal counts events before that.
    fn strike(&mut self) {
        let generation = self.core.generation();
        let Some(running) = self.running.as_ref().filter(|running| running.generation == generation) else { return };
        for (heartbeat, fault) in running.heartbeats.iter().zip(&mut self.faults) {
            if let Some(fault) = fault.take() {
                drop(heartbeat.try_send(Heartbeat(fault)));
            }
        }
    }

    fn exited(&mut self, generation: Generation, actor: ActorIndex, exit: Exit, ctx: &mut Context<Self>) {
        if generation != self.core.generation() {
            return; // who was left behind has ended at last
        }
        let expected = self.running.as_ref().is_some_and(|running| running.stopping);
        let resource = &*self.informer.resource;
        if exit != Exit::Stopped {
            error!(%resource, actor = STAGES[actor], cause = %exit, "actor ended");
            self.informer.status.lock().last_error = Some(format!("{} {exit}", STAGES[actor]));
        } else if !expected {
            warn!(%resource, actor = STAGES[actor], "actor stopped unasked");
        }
        if let Some(running) = self.running.as_mut().filter(|running| running.generation == generation) {
            running.alive[actor] = false;
            running.press_on();
        }
        self.step(Input::Exited { generation, actor, exit }, ctx);
    }

    fn ask_to_stop(&mut self) {
        if let Some(running) = &mut self.running {
            running.stopping = true;
            running.press_on();
        }
    }

    fn ping(&mut self, generation: Generation, actors: &[ActorIndex], ctx: &mut Context<Self>) {
        let Some(running) = self.running.as_ref().filter(|running| running.generation == generation) else { return };
        for &actor in actors {
            let answer = running.heartbeats[actor].send(Heartbeat::default());
            ctx.spawn(answer.into_actor(self).map(move |answer, supervisor, ctx| {
                if answer.is_ok() {
                    supervisor.step(Input::Answered { generation, actor }, ctx);
                }
            }));
        }
    }

    fn complain_of(&self, abandoned: &[ActorIndex]) {
        for &actor in abandoned {
            let resource = &*self.informer.resource;
            error!(%resource, actor = STAGES[actor], "left a hung actor behind; its thread is lost until it returns");
        }
    }

    fn publish(&self) {
        let mut view = self.informer.status.lock();
        view.restarts = self.core.restarts();
        let state = self.core.state();
        view.degraded = self.core.is_degraded() && state != UnitState::Stopped;
        match state {
            UnitState::BackingOff { attempt, until, cause } => {
                let delay = until.saturating_sub(self.clock.elapsed());
                if view.state != crate::status::UnitState::BackingOff {
                    info!(resource = %self.informer.resource, attempt, ?delay, %cause, "unit restarts");
                    if cause == Exit::Hung {
                        let hung = self.core.last_exit().and_then(|(actor, _)| actor);
                        view.last_error = Some(format!("{} hung", hung.map_or("start", |actor| STAGES[actor])));
                    }
                }
                view.state = crate::status::UnitState::BackingOff;
            }
            UnitState::Stopped => view.state = crate::status::UnitState::Stopped,
            _ => {}
        }
    }
}

impl Actor for UnitSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.step(Input::Start, ctx);
    }
}

impl Handler<StopUnit> for UnitSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, StopUnit: StopUnit, ctx: &mut Self::Context) -> Self::Result {
        let (waiter, stopped) = oneshot::channel();
        self.stop_waiters.push(waiter);
        self.step(Input::Stop, ctx);
        Box::pin(async move { drop(stopped.await) })
    }
}

impl Handler<AddIndexers> for UnitSupervisor {
    type Result = ResponseFuture<Result<(), AddIndexersError>>;

    fn handle(&mut self, indexers: AddIndexers, _ctx: &mut Self::Context) -> Self::Result {
        let indexer = self.running.as_ref().map(|running| running.indexer.clone());
        Box::pin(async move {
            let indexer = indexer.ok_or(AddIndexersError::NotRunning)?;
            indexer.send(indexers).await.unwrap_or(Err(AddIndexersError::NotRunning))
        })
    }
}

impl Handler<MoveReader> for UnitSupervisor {
    type Result = ResponseFuture<Result<(), MoveError>>;

    fn handle(&mut self, asked: MoveReader, _ctx: &mut Self::Context) -> Self::Result {
        let indexer = self.running.as_ref().map(|running| running.indexer.clone());
        Box::pin(async move {
            let indexer = indexer.ok_or(MoveError::NotRunning)?;
            indexer.send(asked).await.unwrap_or(Err(MoveError::NotRunning))
        })
    }
}

#[cfg(any(test, feature = "testing"))]
impl Handler<Sabotage> for UnitSupervisor {
    type Result = ();

    fn handle(&mut self, Sabotage(actor, fault): Sabotage, _ctx: &mut Self::Context) {
        self.faults[actor] = fault;
        self.strike();
    }
}
