//! The shell of [`Dispatcher`](super::Dispatcher): starts the tasks of the [`Lanes`], and again whenever one has panicked.
//!
//! Lanes outlive the actor: after a panic of it they go on, and a new one over the same [`Lanes`] finds them moving.

use std::time::Duration;

use actix::{Actor, AsyncContext as _, Context, Handler, Message, ResponseFuture};
use tokio::time::Instant;

pub use super::lanes::{Close, LaneAddress, LaneOptions, LaneSlot, Lanes, Leftover, Stopped};
use crate::supervisor::child::{Heartbeat, Inject};

/// How often losses at the bound of a buffer, and lanes that do not move, are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The actor that starts the lanes' tasks, and stops them.
pub struct DispatcherActor {
    lanes: Lanes,
}

impl DispatcherActor {
    /// Makes the actor; lanes that move already are left alone.
    pub fn new(lanes: Lanes) -> Self {
        Self { lanes }
    }
}

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.lanes.start();
        ctx.run_interval(LOOK_EVERY, |actor, _| {
            actor.lanes.report_losses();
            actor.lanes.start();
        });
    }
}

/// Starts the tasks of lanes that were added since.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct StartLanes;

impl Handler<StartLanes> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, StartLanes: StartLanes, _ctx: &mut Self::Context) {
        self.lanes.start();
    }
}

/// Delivers everything released, closes the handlers, and answers what was left at the deadline (I4). To be sent when
/// no unit appends any more.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Vec<Leftover>")]
pub struct Shutdown {
    /// How long that may take.
    pub within: Duration,
}

impl Handler<Shutdown> for DispatcherActor {
    type Result = ResponseFuture<Vec<Leftover>>;

    fn handle(&mut self, Shutdown { within }: Shutdown, _ctx: &mut Self::Context) -> Self::Result {
        Box::pin(self.lanes.clone().shut_down(Instant::now() + within))
    }
}

impl Handler<Heartbeat> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, Heartbeat: Heartbeat, _ctx: &mut Self::Context) {}
}

impl Handler<Inject> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, Inject(harm, _): Inject, _ctx: &mut Self::Context) {
        harm.strike("dispatcher actor");
    }
}
