//! Queue handle, and the guard of an item in work. Tasks and threads share the queue: they add items, and wait for items.

use std::{
    fmt,
    hash::Hash,
    ops::Deref,
    pin::pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{Intake, Items, RateLimiter, Stats, Taken, Wake, default_controller_limiter};

use crate::mutex::lock;

/// A rate-limited queue with delays, for distinct items (usually keys). Clones are handles of the same queue.
///
/// Only [`WorkQueue::take_blocking`] blocks; the two `async` methods wait. Nothing runs in the background: the callers
/// of `take` also watch the delayed items.
///
/// Handlers [`add`](Self::add) the keys that need work; workers [`take`](Self::take) them. A key that is
/// added several times before it is taken is taken once. A key that is added while it is in work is taken once more
/// afterwards. So a worker reads the current state from a [`Lister`](crate::lister::Lister) and does not need to know
/// the events (H-2).
///
/// ```text
///   add ─────────▶ FIFO ──take──▶ in work ──done──▶ gone
///                   ▲ ▲                      │
///   add_after ▶ waiting (by ready time)      └─ added meanwhile: to the FIFO's end
/// ```
///
/// ```
/// # use std::time::Duration;
/// use deltabus::WorkQueue;
///
/// # async fn reconcile(_key: &str) -> Result<(), std::fmt::Error> { Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let queue = WorkQueue::default();
/// queue.add("default/web".to_owned());
/// # queue.shut_down();
/// while let Some(key) = queue.take().await {
///     match reconcile(&key).await {
///         Ok(()) => key.finish(),
///         Err(error) => {
///             eprintln!("{key}: {error}");
///             key.retry();
///         }
///     }
/// }
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// **Invariant:** after the last `add` of an item, at least one `take` of it follows (Q-11), unless the queue is shut
/// down. Intermediate states may be skipped: the queue is a set of keys, not a log.
///
/// The queue holds at most one entry for each distinct item in the FIFO or in work, and at most one that is delayed. So
/// its size is bounded by the number of distinct items.
#[doc(alias = "TypedRateLimitingInterface")]
#[doc(alias = "TypedDelayingInterface")]
pub struct WorkQueue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    origin: Instant,
    /// Wakes the tasks in `take`.
    takers: Notify,
    /// Wakes the threads in `take_blocking`.
    taker_threads: Condvar,
    /// Wakes the tasks that wait for a drain.
    drainers: Notify,
}

struct State<T> {
    items: Items<T>,
    limiter: Box<dyn RateLimiter<T>>,
}

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Clone + Eq + Hash + Send + 'static> Default for WorkQueue<T> {
    /// Makes a queue with client-go's default limiter for controllers (Q-9), see [`default_controller_limiter`].
    fn default() -> Self {
        Self::new(default_controller_limiter())
    }
}

impl<T: Clone + Eq + Hash> fmt::Debug for WorkQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkQueue").field(&self.stats()).finish()
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Only `Hash`, `Eq` and `Clone` of the items can panic under the lock.
        lock(&self.state)
    }

    /// Reads the clock. The caller holds the lock, so that times never go back.
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::OneTaker => {
                self.takers.notify_one();
                self.taker_threads.notify_one();
            }
            Wake::Takers | Wake::All => {
                self.takers.notify_waiters();
                self.taker_threads.notify_all();
            }
        }
        if wake == Wake::All {
            self.drainers.notify_waiters();
        }
    }
}

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    /// Makes an empty queue with this limiter for [`WorkQueue::add_rate_limited`].
    pub fn new(limiter: impl RateLimiter<T> + 'static) -> Self {
        let state = State { items: Items::new(), limiter: Box::new(limiter) };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                origin: Instant::now(),
                takers: Notify::new(),
                taker_threads: Condvar::new(),
                drainers: Notify::new(),
            }),
        }
    }

    /// Marks an item as needing work. Has no effect if it is already marked. An item in work is taken again afterwards
    /// (Q-2). Ignored after a shutdown.
    #[doc(alias = "Add")]
    pub fn add(&self, item: T) {
        self.change(|items, now| items.add(item, now));
    }

    /// Marks an item as needing work after `delay`. If an item has several delays, the earliest time counts. Items are queued in
    /// the order of their times (Q-7). With a zero delay, the item is added at once. Has no effect after a shutdown. A shutdown
    /// also drops delayed items.
    ///
    /// A delayed item is not yet marked as needing work. If it is added without a delay meanwhile, it is queued at once, and again
    /// when its delay ends.
    #[doc(alias = "AddAfter")]
    pub fn add_after(&self, item: T, delay: Duration) {
        self.change(|items, now| items.add_after(item, delay, now));
    }

    /// Counts a failure of an item and adds it after the delay that the limiter chooses. Returns this delay (Q-10).
    #[doc(alias = "AddRateLimited")]
    pub fn add_rate_limited(&self, item: T) -> Duration {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        let delay = state.limiter.when(&item, now);
        let wake = state.items.add_after(item, delay, now);
        drop(state);
        self.shared.wake(wake);
        delay
    }

    /// Clears the failures of an item, but does not end the work on it (Q-10). [`WorkItem::finish`] does both. Without one of
    /// these calls, the limiter keeps the failures, even if the item has succeeded.
    #[doc(alias = "Forget")]
    pub fn forget(&self, item: &T) {
        self.shared.lock().limiter.forget(item);
    }

    /// Returns the number of rate-limited adds of an item since it was last forgotten (Q-8).
    #[doc(alias = "NumRequeues")]
    pub fn num_requeues(&self, item: &T) -> u32 {
        self.shared.lock().limiter.num_requeues(item)
    }

    /// Waits for an item and takes it into work; `None` when the queue is shut down and empty. No other `take` returns
    /// the item until it is done (Q-3).
    ///
    /// Dropping the future loses no item. Needs a tokio runtime with time enabled.
    #[doc(alias = "Get")]
    pub async fn take(&self) -> Option<WorkItem<T>> {
        // Without this, a worker that never waits would starve the other tasks of its thread.
        tokio::task::consume_budget().await;
        loop {
            // Registered before the check, so that an add after the check wakes this task. If the check finds an item, tokio passes
            // an unused wake-up on to another task.
            let mut changed = pin!(self.shared.takers.notified());
            changed.as_mut().enable();
            let taken = {
                let mut state = self.shared.lock();
                state.items.take(self.shared.now())
            };
            let until = match taken {
                Taken::Item(item) => return Some(WorkItem { item, queue: self.clone() }),
                Taken::End => return None,
                Taken::Nothing { until } => until,
            };
            match until.and_then(|until| self.shared.origin.checked_add(until)) {
                Some(ready_at) => drop(timeout_at(ready_at, changed).await),
                None => changed.await,
            }
        }
    }

    /// Waits like [`WorkQueue::take`] but blocks the thread, for workers that are threads. Needs no runtime.
    pub fn take_blocking(&self) -> Option<WorkItem<T>> {
        let mut state = self.shared.lock();
        loop {
            let now = self.shared.now();
            let until = match state.items.take(now) {
                Taken::Item(item) => return Some(WorkItem { item, queue: self.clone() }),
                Taken::End => return None,
                Taken::Nothing { until } => until,
            };
            let threads = &self.shared.taker_threads;
            state = match until {
                Some(until) => {
                    let woken = threads.wait_timeout(state, until.saturating_sub(now));
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => threads.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Rejects new items from now on. Queued items can still be taken; then [`WorkQueue::take`] returns `None`. Does
    /// not wait for items in work (Q-5). Ends a running drain (Q-6).
    #[doc(alias = "ShutDown")]
    pub fn shut_down(&self) {
        self.change(|items, now| items.shut_down(Intake::ShutDown, now));
    }

    /// Rejects new items from now on. Waits until the queued items are taken and the items in work are done (Q-6).
    ///
    /// An item in work that was added again before this call is still taken. The call waits for ever if no worker takes
    /// the items, or an item is never done. [`WorkQueue::shut_down`] ends the wait. Dropping the future ends the wait
    /// too, but not the drain.
    ///
    /// In client-go, the drain waits only for items in work, and may return while some are queued.
    #[doc(alias = "ShutDownWithDrain")]
    pub async fn shut_down_with_drain(&self) {
        self.change(|items, now| items.shut_down(Intake::Draining, now));
        loop {
            let mut changed = pin!(self.shared.drainers.notified());
            changed.as_mut().enable();
            if self.shared.lock().items.is_drained() {
                return;
            }
            changed.await;
        }
    }

    /// Returns true if the queue was shut down, with or without a drain.
    #[doc(alias = "ShuttingDown")]
    pub fn is_shutting_down(&self) -> bool {
        self.shared.lock().items.is_shutting_down()
    }

    /// Returns the number of items that can be taken now. Delayed items and items in work do not count (Q-2).
    #[doc(alias = "Len")]
    pub fn len(&self) -> usize {
        self.shared.lock().items.len(self.shared.now())
    }

    /// Returns true if no item can be taken now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns counts and durations of the queue. Scans all its items.
    pub fn stats(&self) -> Stats {
        self.shared.lock().items.stats(self.shared.now())
    }

    fn change(&self, change: impl FnOnce(&mut Items<T>, Duration) -> Wake) {
        let wake = {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            change(&mut state.items, now)
        };
        self.shared.wake(wake);
    }
}

/// Guard of an item in work. It dereferences to the item, and displays as the item.
///
/// Dropping the guard calls [`WorkItem::done`], so an early return cannot leak the item. If a panic drops it,
/// [`WorkItem::retry`] is called. The guard may be sent to another task or thread.
pub struct WorkItem<T: Clone + Eq + Hash> {
    item: T,
    queue: WorkQueue<T>,
}

impl<T: Clone + Eq + Hash> WorkItem<T> {
    /// Ends the work. The failures of the item remain counted. If the item was added meanwhile, it goes to the end of the queue
    /// (Q-4).
    #[doc(alias = "Done")]
    pub fn done(self) {}

    /// Ends the work with success: clears the failures of the item.
    pub fn finish(self) {
        self.queue.forget(&self.item);
    }

    /// Ends the work with failure. The item is added again after the returned delay, unless the queue is shut down.
    pub fn retry(self) -> Duration {
        self.queue.add_rate_limited(self.item.clone())
    }

    /// Returns the number of earlier failures of the item, see [`WorkQueue::num_requeues`].
    pub fn num_requeues(&self) -> u32 {
        self.queue.num_requeues(&self.item)
    }
}

impl<T: Clone + Eq + Hash> Deref for WorkItem<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T: Clone + Eq + Hash + fmt::Display> fmt::Display for WorkItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.item.fmt(f)
    }
}

impl<T: Clone + Eq + Hash + fmt::Debug> fmt::Debug for WorkItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Item").field(&self.item).finish()
    }
}

impl<T: Clone + Eq + Hash> Drop for WorkItem<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.queue.add_rate_limited(self.item.clone());
        }
        self.queue.change(|items, now| items.done(&self.item, now));
    }
}
