//! Threads of the units: one arbiter per core, assigned in turn. A hung arbiter is replaced.
//!
//! The three actors of a unit share an arbiter, so a batch stays on one thread from socket to cache. Each arbiter has its
//! own current-thread runtime, which also runs the unit's connections.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use actix::Arbiter;
use tokio::sync::oneshot;

use super::{Exit, child::panic_text};
use crate::mutex::lock;

/// Pool with a fixed number of arbiters.
#[derive(Debug)]
pub struct Arbiters {
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    arbiters: Vec<Arc<Arbiter>>,
    next: usize,
}

/// Arbiter of the pool, and its position in the pool.
#[derive(Clone, Debug)]
pub struct Seat {
    index: usize,
    arbiter: Arc<Arbiter>,
}

impl Arbiters {
    /// Starts `count` arbiters, at least one. Call it inside an actix `System`.
    pub fn new(count: usize) -> Self {
        let arbiters = (0..count.max(1)).map(|_| Arc::new(Arbiter::new())).collect();
        Self { pool: Mutex::new(Pool { arbiters, next: 0 }) }
    }

    /// Returns the next arbiter of the pool, in turn.
    pub fn seat(&self) -> Seat {
        let mut pool = lock(&self.pool);
        let index = pool.next % pool.arbiters.len();
        pool.next += 1;
        Seat { index, arbiter: Arc::clone(&pool.arbiters[index]) }
    }

    /// Runs `work` on the thread of the seat. The future fails if `work` fails or panics, or if the thread has ended.
    pub fn run<T, W>(seat: &Seat, work: W) -> impl Future<Output = Result<T, Exit>> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> Result<T, Exit> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        // A thread that has ended drops the closure, and `reply` with it.
        let _sent = seat.arbiter.spawn_fn(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            drop(reply.send(done.unwrap_or_else(|panic| Err(Exit::Panicked(panic_text(panic.as_ref()))))));
        });
        async move { answer.await.unwrap_or(Err(Exit::ArbiterGone)) }
    }

    /// Returns the same seat with its present arbiter. Another unit may have replaced the earlier arbiter.
    pub fn present(&self, &Seat { index, .. }: &Seat) -> Seat {
        Seat { index, arbiter: Arc::clone(&lock(&self.pool).arbiters[index]) }
    }

    /// Replaces the hung arbiter of a seat, unless another unit has already replaced it. Returns the new seat. The old thread
    /// cannot be ended from outside, so it is abandoned.
    pub fn replace(&self, Seat { index, arbiter }: &Seat) -> Seat {
        let mut pool = lock(&self.pool);
        let present = &mut pool.arbiters[*index];
        if Arc::ptr_eq(present, arbiter) {
            arbiter.stop();
            *present = Arc::new(Arbiter::new());
        }
        Seat { index: *index, arbiter: Arc::clone(present) }
    }

    /// Asks every arbiter to end.
    pub fn stop(&self) {
        for arbiter in &lock(&self.pool).arbiters {
            arbiter.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn units_share_replaced_arbiter() {
        let arbiters = Arbiters::new(1);
        let [one, other] = [arbiters.seat(), arbiters.seat()];
        let replaced = arbiters.replace(&one);
        assert_eq!(Arbiters::run(&arbiters.present(&other), || Ok(1)).await, Ok(1));
        assert!(Arc::ptr_eq(&replaced.arbiter, &arbiters.replace(&other).arbiter), "it is replaced once");
        arbiters.stop();
    }
}
