//! What a controller still has to do: each key once, no key twice at a time, failures later (Q-1 … Q-11).
//!
//! Handlers [`add`](WorkQueue::add) the keys of what has to be looked at, workers [`take`](WorkQueue::take) them. However
//! often a key is added before it is taken, it is taken once; added while it is in work, it is taken once more
//! afterwards. So a worker looks at the present state, in a [`Lister`](crate::lister::Lister), and need not know what
//! happened (H-2).
//!
//! ```text
//!   add ─────────▶ FIFO ──take──▶ in work ──done──▶ gone
//!                   ▲ ▲                      │
//!   add_after ▶ waiting (by ready time)      └─ added meanwhile: to the FIFO's end
//! ```
//!
//! ```
//! # use std::time::Duration;
//! use deltabus::work_queue::WorkQueue;
//!
//! # async fn reconcile(_key: &str) -> Result<(), std::fmt::Error> { Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let queue = WorkQueue::default();
//! queue.add("default/web".to_owned());
//! # queue.shut_down();
//! while let Some(key) = queue.take().await {
//!     match reconcile(&key).await {
//!         Ok(()) => key.finish(),
//!         Err(error) => {
//!             eprintln!("{key}: {error}");
//!             key.retry();
//!         }
//!     }
//! }
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Invariant:** after the last `add` of an item, at least one `take` of it follows (Q-11), unless the queue is shut
//! down. States in between may be skipped: this is a set of keys, not a log.
//!
//! It holds at most one entry for each distinct item in the FIFO or in work, and one among those that wait: the bound
//! is the number of distinct items.

mod delayed;
mod handle;
mod limiter;
#[cfg(test)]
mod model_test;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::Duration,
};

use delayed::Delayed;
pub use handle::{WorkItem, WorkQueue};
pub use limiter::{
    Exponential, FastSlow, MaxOf, MaxWait, RateLimiter, TokenBucket, default_controller_limiter, default_item_limiter,
};

/// What a queue holds now and has done since it was made: the numbers of client-go's workqueue metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items in the FIFO.
    #[doc(alias = "workqueue_depth")]
    pub depth: usize,
    /// Items that were taken and are not done.
    pub in_work: usize,
    /// Items that wait for their time.
    pub waiting: usize,
    /// How often an item that needed no work came to need it; repeated adds of one item count once.
    #[doc(alias = "workqueue_adds_total")]
    pub adds: u64,
    /// How often an item was added for later, rate-limited or not.
    #[doc(alias = "workqueue_retries_total")]
    pub retries: u64,
    /// How often an item was taken.
    pub taken: u64,
    /// How often an item was done.
    pub done: u64,
    /// How long the taken items had needed work by then, added up.
    #[doc(alias = "workqueue_queue_duration_seconds")]
    pub queued_for: Duration,
    /// How long the done items were in work, added up.
    #[doc(alias = "workqueue_work_duration_seconds")]
    pub worked_for: Duration,
    /// How long the items in work have been, added up. Where it grows by more than a second a second, workers hang.
    #[doc(alias = "workqueue_unfinished_work_seconds")]
    pub unfinished: Duration,
    /// How long the item that was taken first of those in work has been in work.
    #[doc(alias = "workqueue_longest_running_processor_seconds")]
    pub longest_running: Duration,
}

/// Where an item is that is not merely waiting for its time.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Dirty since then, and once in the FIFO.
    Queued { since: Duration },
    /// Taken then; with `again` dirty as well, since that time.
    InWork { since: Duration, again: Option<Duration> },
}

/// Whether new items are taken in, and who waits for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Q-5.
    ShutDown,
    /// Q-6.
    Draining,
}

/// What [`Items::take`] found.
#[derive(Debug, PartialEq, Eq)]
enum Taken<T> {
    /// This is in work now.
    Item(T),
    /// Nothing; look again at this time, or when woken.
    Nothing { until: Option<Duration> },
    /// Nothing, and nothing will come.
    End,
}

/// Who has to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Nobody,
    /// One of those who wait in `take`.
    OneTaker,
    /// All of those who wait in `take`: when to look changed, or there is nothing to wait for.
    Takers,
    /// They, and who waits for the drain.
    All,
}

/// The queue as a plain machine; times are of one monotonic clock, whatever its origin.
///
/// **Invariant:** the FIFO holds the queued items and no other, each once. So `phases` less the FIFO is in work.
#[derive(Debug)]
struct Items<T> {
    fifo: VecDeque<T>,
    phases: HashMap<T, Phase>,
    delayed: Delayed<T>,
    intake: Intake,
    /// `adds` and the four that `take` and `done` count; the rest of it is computed when asked for.
    counted: Stats,
}

impl<T: Clone + Eq + Hash> Items<T> {
    fn new() -> Self {
        Self {
            fifo: VecDeque::new(),
            phases: HashMap::new(),
            delayed: Delayed::default(),
            intake: Intake::Open,
            counted: Stats::default(),
        }
    }

    /// Marks an item as dirty (Q-2).
    fn add(&mut self, item: T, now: Duration) -> Wake {
        self.admit_due(now);
        if self.intake == Intake::Open && self.mark_dirty(item, now) { Wake::OneTaker } else { Wake::Nobody }
    }

    /// Marks an item as dirty once `delay` has passed; the earliest of its times counts (Q-7).
    fn add_after(&mut self, item: T, delay: Duration, now: Duration) -> Wake {
        self.admit_due(now);
        if self.intake != Intake::Open {
            return Wake::Nobody;
        }
        self.counted.retries += 1;
        if delay.is_zero() {
            return self.add(item, now);
        }
        // Takers sleep until the earliest time that they knew of.
        if self.delayed.put(item, now.saturating_add(delay)) { Wake::Takers } else { Wake::Nobody }
    }

    /// Moves the head of the FIFO into work (Q-3).
    fn take(&mut self, now: Duration) -> Taken<T> {
        self.admit_due(now);
        let Some(item) = self.fifo.pop_front() else {
            return if self.is_over() { Taken::End } else { Taken::Nothing { until: self.delayed.next_at() } };
        };
        let taken = self.phases.insert(item.clone(), Phase::InWork { since: now, again: None });
        let Some(Phase::Queued { since }) = taken else { unreachable!("the FIFO holds queued items only") };
        self.counted.taken += 1;
        self.counted.queued_for += now.saturating_sub(since);
        Taken::Item(item)
    }

    /// Ends the work on an item; to the FIFO's end with it if it was added meanwhile (Q-4).
    fn done(&mut self, item: &T, now: Duration) -> Wake {
        self.admit_due(now);
        let Some((item, Phase::InWork { since, again })) = self.phases.remove_entry(item) else {
            unreachable!("only an item in work is done, and once")
        };
        self.counted.done += 1;
        self.counted.worked_for += now.saturating_sub(since);
        if let Some(since) = again {
            self.queue(item, since);
            return Wake::OneTaker;
        }
        if self.intake == Intake::Draining && self.phases.is_empty() { Wake::All } else { Wake::Nobody }
    }

    /// Takes nothing in from now on, and forgets what waits for a time after `now` (Q-5, Q-6, Q-7).
    fn shut_down(&mut self, intake: Intake, now: Duration) -> Wake {
        self.admit_due(now);
        self.intake = intake;
        self.delayed = Delayed::default();
        Wake::All
    }

    fn is_shutting_down(&self) -> bool {
        self.intake != Intake::Open
    }

    /// Whether a drain need not be waited for any more.
    fn is_drained(&self) -> bool {
        self.intake != Intake::Draining || self.phases.is_empty()
    }

    /// Returns the length of the FIFO; what waits or is in work does not count (Q-2).
    fn len(&mut self, now: Duration) -> usize {
        self.admit_due(now);
        self.fifo.len()
    }

    fn stats(&mut self, now: Duration) -> Stats {
        let depth = self.len(now);
        let mut stats =
            Stats { depth, in_work: self.phases.len() - depth, waiting: self.delayed.len(), ..self.counted };
        for phase in self.phases.values() {
            if let Phase::InWork { since, .. } = phase {
                let running = now.saturating_sub(*since);
                stats.unfinished += running;
                stats.longest_running = stats.longest_running.max(running);
            }
        }
        stats
    }

    /// Adds what has waited long enough, in the order of its times (Q-7). First in every call: an item is in the FIFO
    /// where it would be if this had run in time.
    fn admit_due(&mut self, now: Duration) {
        while let Some((item, ready_at)) = self.delayed.pop_due(now) {
            // Nobody is to be woken: takers sleep until this very time.
            self.mark_dirty(item, ready_at);
        }
    }

    /// Whether there is nothing to take and nothing will come. While draining, what was added to an item in work is
    /// still to come (Q-6).
    fn is_over(&self) -> bool {
        let comes_again = |phase: &Phase| matches!(phase, Phase::InWork { again: Some(_), .. });
        match self.intake {
            Intake::Open => false,
            Intake::ShutDown => self.fifo.is_empty(),
            Intake::Draining => self.fifo.is_empty() && !self.phases.values().any(comes_again),
        }
    }

    /// Returns whether the item is in the FIFO by that.
    fn mark_dirty(&mut self, item: T, since: Duration) -> bool {
        let is_queued = match self.phases.get_mut(&item) {
            Some(Phase::Queued { .. } | Phase::InWork { again: Some(_), .. }) => return false,
            Some(Phase::InWork { again, .. }) => {
                *again = Some(since);
                false
            }
            None => {
                self.queue(item, since);
                true
            }
        };
        self.counted.adds += 1;
        is_queued
    }

    fn queue(&mut self, item: T, since: Duration) {
        self.phases.insert(item.clone(), Phase::Queued { since });
        self.fifo.push_back(item);
    }
}
