//! The shell of `Reflector`: carries its requests to a [`ListWatch`] and its events to the DeltaFIFO.

use std::{rc::Rc, sync::Arc};

use actix::{Actor, ActorContext as _, ActorFutureExt as _, AsyncContext as _, Context, Handler, WrapFuture as _};
use tokio::sync::{Semaphore, watch};

use super::{
    Reflector,
    messages::{Queue, Stop, UnitHooks},
    run::Run,
};
use crate::{
    list_watch::ListWatch,
    object::{Keep, ResourceType},
    supervisor::{child::Heartbeat, fault::Moment},
};

/// The actor around one `Reflector`. Its loop is a future of the actor, so a panic in it is the actor's.
pub struct ReflectorActor {
    run: Option<Run>,
    stop: watch::Sender<bool>,
}

impl ReflectorActor {
    /// Makes the actor. `list_permits` bounds the lists under way in the whole engine (`max_concurrent_lists`).
    pub(crate) fn new(
        reflector: Reflector,
        source: Rc<dyn ListWatch>,
        fifo: Queue,
        list_permits: Arc<Semaphore>,
        (resource, keep): (Arc<ResourceType>, Keep),
        unit: UnitHooks,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let run = Run::new(reflector, source, fifo, list_permits, (resource, keep), unit, stopped);
        Self { run: Some(run), stop }
    }
}

impl Actor for ReflectorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let run = self.run.take().expect("an actor is started once");
        ctx.spawn(run.run().into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Handler<Stop> for ReflectorActor {
    type Result = ();

    fn handle(&mut self, Stop: Stop, _ctx: &mut Self::Context) {
        self.stop.send_replace(true);
    }
}

impl Handler<Heartbeat> for ReflectorActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(mut fault): Heartbeat, _ctx: &mut Self::Context) {
        fault.strike(Moment::Now, "reflector actor");
    }
}
