//! Actors of one generation of a unit: their addresses, and the order in which they stop.

use actix::{Addr, Recipient};
use tokio::task::JoinHandle;
use tracing::{error, warn};

use crate::{
    delta_fifo::{actor::DeltaFifoActor, messages::Drain},
    indexer::actor::{IndexerActor, Terminate},
    object::ResourceType,
    reflector::{actor::ReflectorActor, messages::Stop},
    supervisor::{ActorIndex, Generation, child::Heartbeat},
};

/// Names of a unit's actors, in the order of their [`ActorIndex`].
pub(super) const STAGES: [&str; 3] = ["reflector", "DeltaFIFO", "indexer"];

/// Running actors of a unit. The supervisor awaits their exits.
#[derive(Debug)]
pub struct Actors {
    /// First stage.
    pub reflector: Addr<ReflectorActor>,
    /// Second stage.
    pub fifo: Addr<DeltaFifoActor>,
    /// Third stage.
    pub indexer: Addr<IndexerActor>,
    /// One handle for each stage, in the same order; a panic is a `JoinError`.
    pub exits: [JoinHandle<()>; 3],
}

/// Addresses of one generation, and the actors that are alive.
pub(super) struct Running {
    pub(super) generation: Generation,
    reflector: Addr<ReflectorActor>,
    fifo: Addr<DeltaFifoActor>,
    pub(super) indexer: Addr<IndexerActor>,
    pub(super) heartbeats: [Recipient<Heartbeat>; 3],
    alive: [bool; 3],
    pub(super) stopping: bool,
}

impl Running {
    /// Stores the addresses of actors that have just started. Also returns the handles that report the actors' exits.
    pub(super) fn new(generation: Generation, actors: Actors) -> (Self, [JoinHandle<()>; 3]) {
        let Actors { reflector, fifo, indexer, exits } = actors;
        let heartbeats = [reflector.clone().recipient(), fifo.clone().recipient(), indexer.clone().recipient()];
        let alive = [true; 3];
        (Self { generation, reflector, fifo, indexer, heartbeats, alive, stopping: false }, exits)
    }

    /// Begins a stop, in which the actors end one after the other.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.stop_next();
    }

    /// Marks an actor as ended. During a stop, asks the next actor to end.
    pub(super) fn ended(&mut self, actor: ActorIndex) {
        self.alive[actor] = false;
        if self.stopping {
            self.stop_next();
        }
    }

    /// Asks the first living stage to end. The next stage is asked when that stage has ended, so all received events are
    /// applied.
    fn stop_next(&self) {
        let asked = match self.alive {
            [true, ..] => self.reflector.try_send(Stop).is_ok(),
            [_, true, _] => self.fifo.try_send(Drain).is_ok(),
            [.., true] => self.indexer.try_send(Terminate).is_ok(),
            _ => return,
        };
        if !asked {
            warn!("cannot ask an actor to stop: its mailbox is full or closed; the stop does not wait for it");
        }
    }
}

/// Logs actors that were abandoned.
pub(super) fn report_abandoned(resource: &ResourceType, abandoned: &[ActorIndex]) {
    for &actor in abandoned {
        error!(%resource, actor = STAGES[actor], "left a hung actor behind; its thread is lost until it returns");
    }
}
