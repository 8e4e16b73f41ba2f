//! The shell of [`Dispatcher`](super::Dispatcher): starts the tasks of the [`Lanes`], and again whenever one has panicked.
//!
//! Lanes outlive the actor: after a panic of it they go on, and a new one over the same [`Lanes`] finds them moving.

use std::time::Duration;

use actix::{Actor, AsyncContext as _, Context, Handler, Message};

pub use super::{
    lane::{Close, DeadLetter, LaneAddress, LaneOptions, LaneSlot, Leftover, PauseSwitch, Remove, Stopped},
    lanes::{LaneTypes, Lanes},
};
use crate::supervisor::{child::Heartbeat, fault::Moment};

/// How often losses at the bound of a buffer, and lanes that do not move, are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The actor that starts the lanes' tasks. They are stopped without it: [`Lanes`] outlive it.
pub struct DispatcherActor {
    lanes: Lanes,
}

impl DispatcherActor {
    /// Makes the actor; lanes that move already are left alone.
    pub fn new(lanes: Lanes) -> Self {
        Self { lanes }
    }
}

/// Starts the lanes that were added since it last looked.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Look;

impl Handler<Look> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, Look: Look, _ctx: &mut Self::Context) {
        self.lanes.start();
    }
}

impl Actor for DispatcherActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.lanes.start();
        ctx.run_interval(LOOK_EVERY, |actor, _| {
            actor.lanes.report_losses();
            actor.lanes.forget_units();
            actor.lanes.start();
        });
    }
}

impl Handler<Heartbeat> for DispatcherActor {
    type Result = ();

    fn handle(&mut self, Heartbeat(mut fault): Heartbeat, _ctx: &mut Self::Context) {
        fault.strike(Moment::Now, "dispatcher actor");
    }
}
