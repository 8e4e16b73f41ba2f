//! Work queue of a controller: each key once, never two workers on one key, failed keys retried later (Q-1 … Q-11).

mod delayed;
mod handle;
mod limiter;
#[cfg(test)]
mod model_tests;
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

/// Counts and durations of a queue. Totals begin when the queue is made. The values match client-go's workqueue metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items in the FIFO.
    #[doc(alias = "workqueue_depth")]
    pub depth: usize,
    /// Items taken and not yet done.
    pub in_work: usize,
    /// Delayed items whose time has not come.
    pub waiting: usize,
    /// Number of adds that marked an item as needing work. An add of an item that is already marked does not count.
    #[doc(alias = "workqueue_adds_total")]
    pub adds: u64,
    /// Number of delayed adds, rate-limited or not.
    #[doc(alias = "workqueue_retries_total")]
    pub retries: u64,
    /// Number of items taken.
    pub taken: u64,
    /// Number of items done.
    pub done: u64,
    /// Sum of the times that the taken items waited in the FIFO.
    #[doc(alias = "workqueue_queue_duration_seconds")]
    pub queued_for: Duration,
    /// Total working time of the items that are done.
    #[doc(alias = "workqueue_work_duration_seconds")]
    pub worked_for: Duration,
    /// Total working time, so far, of the items that are not done. If the total grows steadily by n seconds per second, n workers
    /// are blocked.
    #[doc(alias = "workqueue_unfinished_work_seconds")]
    pub unfinished: Duration,
    /// Longest working time, so far, of an item that is not done.
    #[doc(alias = "workqueue_longest_running_processor_seconds")]
    pub longest_running: Duration,
}

/// State of an item that is queued or in work.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Dirty (needs work) since this time. The FIFO holds the item exactly once.
    Queued { since: Duration },
    /// Taken at `since`. If the item was added again meanwhile, `again` is the time of that add.
    InWork { since: Duration, again: Option<Duration> },
}

/// State of the queue: open, or shutting down with or without a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Shut down without a drain.
    ShutDown,
    /// Shut down with a drain.
    Draining,
}

/// Result of [`Items::take`].
#[derive(Debug, PartialEq, Eq)]
enum Taken<T> {
    /// This item is now in work.
    Item(T),
    /// No item is ready. Call again at the time `until`, or when woken.
    Nothing { until: Option<Duration> },
    /// No item is left, and none will be added.
    End,
}

/// Tasks and threads to wake up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Nobody,
    /// One caller of `take`.
    OneTaker,
    /// All callers of `take`: the time to wait for has changed, or the queue has ended.
    Takers,
    /// All callers of `take` and of the drain.
    All,
}

/// State of the queue, without locks or a clock. All times are of one monotonic clock with any origin.
///
/// **Invariant:** the FIFO holds exactly the queued items, each once. So the items in work are those in `phases` that
/// are not in the FIFO.
#[derive(Debug)]
struct Items<T> {
    fifo: VecDeque<T>,
    phases: HashMap<T, Phase>,
    delayed: Delayed<T>,
    intake: Intake,
    /// Counters: `adds`, `retries`, `taken`, `done`, `queued_for`, `worked_for`. The method `stats` computes the other values.
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

    /// Marks an item as dirty.
    fn add(&mut self, item: T, now: Duration) -> Wake {
        self.admit_due(now);
        if self.intake == Intake::Open && self.mark_dirty(item, now) { Wake::OneTaker } else { Wake::Nobody }
    }

    /// Marks an item as dirty after `delay`. If an item has several delays, the earliest time counts.
    fn add_after(&mut self, item: T, delay: Duration, now: Duration) -> Wake {
        self.admit_due(now);
        if self.intake != Intake::Open {
            return Wake::Nobody;
        }
        self.counted.retries += 1;
        if delay.is_zero() {
            return self.add(item, now);
        }
        // If this item is now the earliest one, sleeping callers of `take` would wake too late. So they are woken now.
        if self.delayed.put(item, now.saturating_add(delay)) { Wake::Takers } else { Wake::Nobody }
    }

    /// Moves the head of the FIFO into work.
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

    /// Ends the work on an item. An item that was added meanwhile goes to the end of the FIFO.
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

    /// Rejects new items from now on, and drops delayed items whose time is after `now`.
    fn shut_down(&mut self, intake: Intake, now: Duration) -> Wake {
        self.admit_due(now);
        self.intake = intake;
        self.delayed = Delayed::default();
        Wake::All
    }

    fn is_shutting_down(&self) -> bool {
        self.intake != Intake::Open
    }

    /// Returns true if a drain has nothing more to wait for.
    fn is_drained(&self) -> bool {
        self.intake != Intake::Draining || self.phases.is_empty()
    }

    /// Returns the length of the FIFO; delayed items and items in work do not count.
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

    /// Queues the delayed items whose time has come, in the order of their times. Every call runs this first. So
    /// an item gets the same position in the FIFO as if it had been queued exactly at its time.
    fn admit_due(&mut self, now: Duration) {
        while let Some((item, ready_at)) = self.delayed.pop_due(now) {
            // No wake-up is needed: callers of `take` sleep until exactly this time.
            self.mark_dirty(item, ready_at);
        }
    }

    /// Returns true if nothing can be taken, now or later. During a drain, an item that was added again while in work can still be
    /// taken later.
    fn is_over(&self) -> bool {
        let comes_again = |phase: &Phase| matches!(phase, Phase::InWork { again: Some(_), .. });
        match self.intake {
            Intake::Open => false,
            Intake::ShutDown => self.fifo.is_empty(),
            Intake::Draining => self.fifo.is_empty() && !self.phases.values().any(comes_again),
        }
    }

    /// Marks an item as dirty. Returns true if this put the item in the FIFO.
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
