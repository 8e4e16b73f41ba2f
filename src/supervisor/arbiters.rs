//! Threads of the units: one arbiter per core, assigned in turn. A hung arbiter is replaced.
//!
//! The three actors of a unit share an arbiter, so a batch stays on one thread from socket to cache. Each arbiter has its
//! own current-thread runtime, which also runs the unit's connections.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use actix::Arbiter;
use tokio::sync::oneshot;

use super::{Exit, child::panic_text};
use crate::mutex::lock;

/// Fixed number of arbiters.
#[derive(Debug)]
pub struct Arbiters {
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    seats: Vec<Seated>,
    next: usize,
}

#[derive(Debug)]
struct Seated {
    arbiter: Arbiter,
    /// Number of earlier arbiters at this position.
    generation: u64,
}

/// Reference to an arbiter of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    index: usize,
    generation: u64,
}

impl Arbiters {
    /// Starts `count` arbiters, at least one. Call it inside an actix `System`.
    pub fn new(count: usize) -> Self {
        let seats = (0..count.max(1)).map(|_| Seated { arbiter: Arbiter::new(), generation: 0 }).collect();
        Self { pool: Mutex::new(Pool { seats, next: 0 }) }
    }

    /// Returns the next seat in turn.
    pub fn seat(&self) -> Seat {
        let mut pool = lock(&self.pool);
        let index = pool.next % pool.seats.len();
        pool.next += 1;
        Seat { index, generation: pool.seats[index].generation }
    }

    /// Runs `work` on the thread of the seat. The future fails if `work` fails or panics, or if the thread has ended.
    pub fn run<T, W>(&self, seat: Seat, work: W) -> impl Future<Output = Result<T, Exit>> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> Result<T, Exit> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let arbiter = lock(&self.pool).seats[seat.index].arbiter.handle();
        // A thread that has ended drops the closure, and `reply` with it.
        let _sent = arbiter.spawn_fn(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            drop(reply.send(done.unwrap_or_else(|panic| Err(Exit::Panicked(panic_text(panic.as_ref()))))));
        });
        async move { answer.await.unwrap_or(Err(Exit::ArbiterGone)) }
    }

    /// Replaces the hung arbiter of a seat, unless another unit has done so, and returns the new seat. The old thread cannot be
    /// ended from outside, so it is abandoned.
    pub fn replace(&self, seat: Seat) -> Seat {
        let mut pool = lock(&self.pool);
        let place = &mut pool.seats[seat.index];
        if place.generation == seat.generation {
            std::mem::replace(&mut place.arbiter, Arbiter::new()).stop();
            place.generation += 1;
        }
        Seat { index: seat.index, generation: place.generation }
    }

    /// Asks every arbiter to end.
    pub fn stop(&self) {
        for place in &lock(&self.pool).seats {
            place.arbiter.stop();
        }
    }
}
