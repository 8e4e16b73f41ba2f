//! What a supervisor and the actors it keeps say to each other.

use actix::{Actor, Addr, AsyncContext as _, Context, Message};
use tokio::task::{JoinError, JoinHandle};

use super::{Exit, fault::Fault};

/// Asks an actor whether it still works its mailbox.
#[derive(Clone, Copy, Debug, Default, Message)]
#[rtype(result = "()")]
pub struct Heartbeat(pub Fault);

/// Starts an actor so that its end, panics included, is seen by whoever awaits the handle: actix's own `start` hides
/// it, and its `Supervisor` does not restart after a panic.
pub(crate) fn spawn<A: Actor<Context = Context<A>>>(actor: A) -> (Addr<A>, JoinHandle<()>) {
    let ctx = Context::new();
    let addr = ctx.address();
    (addr, actix_rt::spawn(ctx.into_future(actor)))
}

/// Reads what the end of an actor's task says of it.
pub(crate) fn exit_of(ended: Result<(), JoinError>) -> Exit {
    match ended {
        Ok(()) => Exit::Stopped,
        Err(error) if error.is_cancelled() => Exit::ArbiterGone,
        Err(error) => Exit::Panicked(panic_text(error.into_panic().as_ref())),
    }
}

/// Returns what a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}
