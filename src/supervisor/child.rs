//! Messages between a supervisor and its actors.

use actix::{Actor, Addr, AsyncContext as _, Context, Message};
use tokio::task::{JoinError, JoinHandle};

use super::{Exit, fault::Fault};

/// Heartbeat. An actor answers if it still handles its mailbox.
#[derive(Clone, Copy, Debug, Default, Message)]
#[rtype(result = "()")]
pub struct Heartbeat(pub Fault);

/// Starts an actor. The returned handle reports the actor's end, including panics. The `start` of actix hides the end, and the
/// `Supervisor` of actix does not restart after a panic.
pub(crate) fn spawn<A: Actor<Context = Context<A>>>(actor: A) -> (Addr<A>, JoinHandle<()>) {
    let ctx = Context::new();
    let addr = ctx.address();
    (addr, actix_rt::spawn(ctx.into_future(actor)))
}

/// Returns the end of an actor from the result of its task.
pub(crate) fn exit_of(ended: Result<(), JoinError>) -> Exit {
    match ended {
        Ok(()) => Exit::Stopped,
        Err(error) if error.is_cancelled() => Exit::ArbiterGone,
        Err(error) => Exit::Panicked(panic_text(error.into_panic().as_ref())),
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}
