//! Shell of `Reflector`: starts and stops its loop, and answers heartbeats.

use actix::{Actor, ActorContext as _, ActorFutureExt as _, AsyncContext as _, Context, Handler, WrapFuture as _};
use tokio::sync::watch;

use super::{messages::Stop, run::ReflectorRun};
use crate::supervisor::{child::Heartbeat, fault::Moment};

/// The actor around one `Reflector`. Its loop is a future of the actor, so a panic in the loop fails the actor.
pub struct ReflectorActor {
    run: Option<(ReflectorRun, watch::Receiver<bool>)>,
    stop: watch::Sender<bool>,
}

impl ReflectorActor {
    /// Creates the actor of a loop.
    pub(crate) fn new(run: ReflectorRun) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { run: Some((run, stopped)), stop }
    }
}

impl Actor for ReflectorActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (run, stopped) = self.run.take().expect("an actor is started once");
        ctx.spawn(run.run(stopped).into_actor(self).map(|(), _, ctx| ctx.stop()));
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
