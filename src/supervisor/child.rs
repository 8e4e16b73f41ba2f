//! What a supervisor and the actors it keeps say to each other.

use std::{fmt::Debug, time::Duration};

use actix::{Actor, Addr, AsyncContext as _, Context, Message};
use tokio::task::{JoinError, JoinHandle};

use super::Exit;

/// Asks an actor whether it still works its mailbox.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Heartbeat;

/// Test hook: the actor does itself harm.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Inject(pub Harm, pub Moment);

/// Test hook: what goes wrong.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// A panic.
    Panic,
    /// The thread does nothing else for so long.
    Hang(Duration),
    /// The thread does nothing else until the test lets it continue.
    Hold(&'static dyn Hold),
}

/// Test hook: keeps a thread for as long as the test wants.
#[doc(hidden)]
pub trait Hold: Debug + Sync {
    /// Blocks the current thread.
    fn hold(&self);
}

/// Test hook: when it goes wrong. All but the indexer know only the first.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At once.
    Now,
    /// In the next batch, before it is appended to the journal.
    BeforeAppend,
    /// In the next batch, between append and publish.
    BeforePublish,
    /// In the next batch, between publish and release.
    BeforeRelease,
}

impl Harm {
    /// Does it.
    ///
    /// # Panics
    /// As asked.
    pub fn strike(self, whom: &str) {
        match self {
            Self::Panic => panic!("injected into the {whom}"),
            Self::Hang(time) => std::thread::sleep(time),
            Self::Hold(hold) => hold.hold(),
        }
    }
}

/// Starts an actor so that its end, panics included, is seen by whoever awaits the handle: actix's own `start` hides
/// it, and its `Supervisor` does not restart after a panic.
pub fn spawn<A: Actor<Context = Context<A>>>(actor: A) -> (Addr<A>, JoinHandle<()>) {
    let ctx = Context::new();
    let addr = ctx.address();
    (addr, actix_rt::spawn(ctx.into_future(actor)))
}

/// Reads what the end of an actor's task says of it.
pub fn exit_of(ended: Result<(), JoinError>) -> Exit {
    match ended {
        Ok(()) => Exit::Stopped,
        Err(error) if error.is_cancelled() => Exit::ArbiterGone,
        Err(error) => Exit::Panicked(panic_text(error.into_panic().as_ref())),
    }
}

/// Returns what a panic said.
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}
