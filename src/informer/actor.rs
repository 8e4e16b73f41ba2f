//! Actor that runs the state machine `Supervisor` for one unit: starts the unit's actors on an arbiter, sends heartbeats and
//! reports exits.
//!
//! This supervisor runs on the system's arbiter, so it survives every failure of the unit's arbiter. Actix's own `Supervisor` is
//! not used: it restarts without delay, keeps the same instance, and does not restart after a panic.

use std::sync::Arc;

use actix::{
    Actor, ActorContext as _, ActorFutureExt as _, Addr, AsyncContext as _, Context, Handler, Message, MessageResult,
    ResponseFuture, SpawnHandle, WrapFuture as _,
};
use tokio::{sync::oneshot, time::Instant};
use tracing::{error, info, warn};

use super::{
    Informer, Shared,
    running::{Actors, Running, STAGES, report_abandoned},
};
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::fault::Fault;
use crate::{
    indexer::actor::IndexerActor,
    supervisor::{
        ActorIndex, Decision, Exit, Generation, Restart, Supervisor, SupervisorInput,
        arbiters::{Arbiters, Seat},
        child::{Heartbeat, exit_of},
    },
};

/// Injects a fault into one actor of the unit; actors are counted from 0, the reflector first.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage(pub ActorIndex, pub Fault);

/// Stops the unit: the reflector, then the queue after its items are applied, then the indexer. Answers when all have ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StopUnit;

/// Asks for the address of the indexer. The answer is `None` while the unit starts or restarts, and after the unit has ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<Addr<IndexerActor>>")]
pub(crate) struct RunningIndexer;

/// Supervisor of one [`Informer`].
pub(crate) struct UnitSupervisor {
    informer: Arc<Informer>,
    shared: Shared,
    seat: Seat,
    core: Supervisor,
    clock: Instant,
    timer: Option<SpawnHandle>,
    running: Option<Running>,
    stop_waiters: Vec<oneshot::Sender<()>>,
    /// Faults for actors that are not up yet.
    #[cfg(any(test, feature = "testing"))]
    faults: [Fault; 3],
}

impl UnitSupervisor {
    /// Creates a supervisor. Starting the supervisor as an actor starts the unit.
    pub(crate) fn new(informer: Arc<Informer>, shared: Shared) -> Self {
        Self {
            seat: shared.arbiters.seat(),
            core: Supervisor::new(shared.supervision, STAGES.len()),
            clock: Instant::now(),
            timer: None,
            running: None,
            stop_waiters: Vec::new(),
            #[cfg(any(test, feature = "testing"))]
            faults: Default::default(),
            informer,
            shared,
        }
    }

    /// Passes an input to the core, and carries out its decision.
    fn step(&mut self, input: SupervisorInput, ctx: &mut Context<Self>) {
        let verdict = self.core.step(input, self.clock.elapsed(), rand::random());
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(wake_at) = verdict.wake_at {
            let delay = wake_at.saturating_sub(self.clock.elapsed());
            self.timer = Some(ctx.run_later(delay, |supervisor, ctx| supervisor.step(SupervisorInput::Timer, ctx)));
        }
        match verdict.decision {
            Decision::Nothing => {}
            Decision::Start { generation, abandoned } => self.boot(generation, &abandoned, ctx),
            Decision::Stop(_) => {
                if let Some(running) = &mut self.running {
                    running.stop();
                }
            }
            Decision::Ping { generation, actors } => self.ping(generation, &actors, ctx),
            Decision::Done { abandoned } => {
                report_abandoned(&self.informer.resource, &abandoned);
                if !abandoned.is_empty() {
                    // An abandoned actor may have appended records without releasing them. Later records of the journal wait until
                    // these records are released (E4).
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
        self.seat = if abandoned.is_empty() {
            self.shared.arbiters.present(&self.seat)
        } else {
            report_abandoned(&self.informer.resource, abandoned);
            self.shared.arbiters.replace(&self.seat)
        };
        let (informer, shared) = (Arc::clone(&self.informer), self.shared.clone());
        let launch = move || informer.launch(generation.0, &shared).map_err(Exit::Failed);
        let booted = Arbiters::run(&self.seat, launch);
        ctx.spawn(booted.into_actor(self).map(move |booted, supervisor, ctx| match booted {
            // The supervisor had already abandoned this start. The actors end with their thread.
            _ if generation != supervisor.core.generation() => {}
            Ok(actors) => supervisor.watch(generation, actors, ctx),
            Err(exit) => supervisor.failed_to_boot(generation, &exit, ctx),
        }));
    }

    fn failed_to_boot(&mut self, generation: Generation, exit: &Exit, ctx: &mut Context<Self>) {
        if *exit == Exit::ArbiterGone {
            self.seat = self.shared.arbiters.replace(&self.seat);
        }
        for actor in 0..STAGES.len() {
            self.exited(generation, actor, exit.clone(), ctx);
        }
    }

    fn watch(&mut self, generation: Generation, actors: Actors, ctx: &mut Context<Self>) {
        let (mut running, exits) = Running::new(generation, actors);
        for (actor, exit) in exits.into_iter().enumerate() {
            ctx.spawn(exit.into_actor(self).map(move |ended, supervisor, ctx| {
                supervisor.exited(generation, actor, exit_of(ended), ctx);
            }));
        }
        if !self.stop_waiters.is_empty() {
            running.stop(); // asked while the unit was starting
        }
        self.running = Some(running);
        self.step(SupervisorInput::Started(generation), ctx);
        #[cfg(any(test, feature = "testing"))]
        self.strike();
    }

    /// Returns the actors of this generation; `None` if they were replaced or never came up.
    fn running(&self, generation: Generation) -> Option<&Running> {
        self.running.as_ref().filter(|running| running.generation == generation)
    }

    fn exited(&mut self, generation: Generation, actor: ActorIndex, exit: Exit, ctx: &mut Context<Self>) {
        if generation != self.core.generation() {
            return; // an abandoned actor
        }
        let expected = self.running.as_ref().is_some_and(|running| running.stopping);
        let resource = &*self.informer.resource;
        if exit != Exit::Stopped {
            error!(%resource, actor = STAGES[actor], cause = %exit, "actor ended");
            self.informer.status.lock().last_error = Some(format!("{} {exit}", STAGES[actor]));
        } else if !expected {
            warn!(%resource, actor = STAGES[actor], "actor stopped unexpectedly");
        }
        if let Some(running) = self.running.as_mut().filter(|running| running.generation == generation) {
            running.ended(actor);
        }
        self.step(SupervisorInput::Exited { generation, actor, exit }, ctx);
    }

    fn ping(&mut self, generation: Generation, actors: &[ActorIndex], ctx: &mut Context<Self>) {
        let Some(running) = self.running(generation) else { return };
        for &actor in actors {
            let answer = running.heartbeats[actor].send(Heartbeat::default());
            ctx.spawn(answer.into_actor(self).map(move |answer, supervisor, ctx| {
                if answer.is_ok() {
                    supervisor.step(SupervisorInput::Answered { generation, actor }, ctx);
                }
            }));
        }
    }

    fn publish(&mut self) {
        let mut view = self.informer.status.lock();
        self.core.show(&mut view);
        if let Some((Restart { attempt, delay }, actor, cause)) = self.core.take_failure(self.clock.elapsed()) {
            if *cause == Exit::Hung {
                view.last_error = Some(format!("{} hung", actor.map_or("start", |actor| STAGES[actor])));
            }
            drop(view);
            info!(resource = %self.informer.resource, attempt, ?delay, %cause, "unit restarts");
        }
    }
}

impl Actor for UnitSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.step(SupervisorInput::Start, ctx);
    }
}

impl Handler<StopUnit> for UnitSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, StopUnit: StopUnit, ctx: &mut Self::Context) -> Self::Result {
        let (waiter, stopped) = oneshot::channel();
        self.stop_waiters.push(waiter);
        self.step(SupervisorInput::Stop, ctx);
        Box::pin(async move { drop(stopped.await) })
    }
}

impl Handler<RunningIndexer> for UnitSupervisor {
    type Result = MessageResult<RunningIndexer>;

    fn handle(&mut self, RunningIndexer: RunningIndexer, _ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.running.as_ref().map(|running| running.indexer.clone()))
    }
}

#[cfg(any(test, feature = "testing"))]
impl UnitSupervisor {
    /// Injects the stored faults into the actors of this generation. If the actors are not up yet, the faults stay stored.
    fn strike(&mut self) {
        let Some(running) = self.running(self.core.generation()) else { return };
        for (heartbeat, fault) in running.heartbeats.clone().iter().zip(&mut self.faults) {
            if let Some(fault) = fault.take() {
                drop(heartbeat.try_send(Heartbeat(fault)));
            }
        }
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
