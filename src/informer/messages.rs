//! Requests of an engine to the supervisor of a unit.

use actix::{Handler, Message, ResponseFuture};
use tokio::sync::oneshot;

use super::actor::UnitSupervisor;
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::{ActorIndex, fault::Fault};
use crate::{
    indexer::actor::{AddIndexers, AddIndexersError, IndexerActor, MoveError, MoveReader},
    supervisor::SupervisorInput,
};

/// Injects a fault into one actor of the unit; actors are counted from 0 in the order of the data.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage(pub ActorIndex, pub Fault);

/// Stops the unit: the reflector, then the queue after its items are applied, then the indexer. Answers when all have ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StopUnit;

impl UnitSupervisor {
    /// Forwards a message to the indexer, if it is running.
    fn ask_indexer<M, T, E>(&self, message: M, not_running: E) -> ResponseFuture<Result<T, E>>
    where
        M: Message<Result = Result<T, E>> + Send + 'static,
        IndexerActor: Handler<M>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let indexer = self.running.as_ref().map(|running| running.indexer.clone());
        Box::pin(async move {
            match indexer {
                Some(indexer) => indexer.send(message).await.unwrap_or(Err(not_running)),
                None => Err(not_running),
            }
        })
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

impl Handler<AddIndexers> for UnitSupervisor {
    type Result = ResponseFuture<Result<(), AddIndexersError>>;

    fn handle(&mut self, indexers: AddIndexers, _ctx: &mut Self::Context) -> Self::Result {
        self.ask_indexer(indexers, AddIndexersError::NotRunning)
    }
}

impl Handler<MoveReader> for UnitSupervisor {
    type Result = ResponseFuture<Result<(), MoveError>>;

    fn handle(&mut self, asked: MoveReader, _ctx: &mut Self::Context) -> Self::Result {
        self.ask_indexer(asked, MoveError::NotRunning)
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
