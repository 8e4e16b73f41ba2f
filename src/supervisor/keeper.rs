//! Keeps one actor alive that shares its thread with its keeper: the dispatcher.

use std::sync::{Arc, Mutex};

use actix::{Actor, Addr, Context};
use tokio::{
    task::{AbortHandle, JoinHandle, yield_now},
    time::{Instant, sleep},
};
use tracing::error;

use super::{
    Exit, Restart, RestartPolicy, SupervisorConfig,
    child::{exit_of, spawn},
};

use crate::mutex::lock;

/// One actor, started again with backoff whenever it panics. It cannot see that it hangs: it would hang too.
#[derive(Debug)]
pub struct Keeper<A: Actor> {
    current: Arc<Mutex<(Addr<A>, AbortHandle)>>,
    watch: JoinHandle<()>,
}

impl<A: Actor<Context = Context<A>>> Keeper<A> {
    /// Starts the actor on the current arbiter, under `name` in the log, and again whenever that is needed.
    pub fn start(name: &'static str, config: &SupervisorConfig, make: impl Fn() -> A + 'static) -> Self {
        let (address, mut ended) = spawn(make());
        let current = Arc::new(Mutex::new((address, ended.abort_handle())));
        let kept = Arc::clone(&current);
        let mut policy = RestartPolicy::new(config);
        let watch = actix_rt::spawn(async move {
            let clock = Instant::now();
            loop {
                policy.healthy(clock.elapsed());
                let exit = exit_of(ended.await);
                if exit == Exit::Stopped {
                    return;
                }
                let Restart { attempt, delay } = policy.failed(clock.elapsed(), rand::random());
                error!(actor = name, cause = %exit, attempt, ?delay, "actor ended, starting it again");
                sleep(delay).await;
                let (address, next) = spawn(make());
                *lock(&kept) = (address, next.abort_handle());
                ended = next;
            }
        });
        Self { current, watch }
    }

    /// Returns the address of the present actor, or of the last one while it is being replaced.
    pub fn address(&self) -> Addr<A> {
        lock(&self.current).0.clone()
    }

    /// Starts it no more. The actor goes on.
    pub fn release(&self) {
        self.watch.abort();
    }

    /// Ends the actor, and returns when it has ended: before its runtime does, or actix polls it once more without one.
    pub async fn end(&self) {
        self.release();
        let actor = lock(&self.current).1.clone();
        actor.abort();
        while !actor.is_finished() {
            yield_now().await;
        }
    }
}
