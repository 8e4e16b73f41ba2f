//! The shell of the queue: a handle to share, waiting for items by task or by thread, and the guard of an item in work.

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

/// A rate-limited, delaying queue of distinct items: keys, as a rule. Clones are handles of one queue.
///
/// No call blocks but [`WorkQueue::take_blocking`]; the two `async` ones wait. Nothing runs in the background: items
/// that wait for their time are looked after by whoever takes. See the [module](super) for what is promised.
#[doc(alias = "TypedRateLimitingInterface")]
#[doc(alias = "TypedDelayingInterface")]
pub struct WorkQueue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    origin: Instant,
    /// Tasks and threads in `take`, and tasks that wait for the drain.
    takers: Notify,
    taker_threads: Condvar,
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
    /// With client-go's default for controllers, see [`default_controller_limiter`].
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
        // What panics under the lock is the items' own `Hash`, `Eq` and `Clone`.
        lock(&self.state)
    }

    /// Reads the clock; with the lock held, so that times go up.
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

    /// Says that an item needs work. Nothing changes if that is known already; one that is in work comes again after
    /// it. Ignored after a shutdown.
    #[doc(alias = "Add")]
    pub fn add(&self, item: T) {
        self.change(|items, now| items.add(item, now));
    }

    /// Says that an item will need work when `delay` has passed. Of several times for one item the earliest counts;
    /// items come in the order of their times. A zero delay is [`WorkQueue::add`]. Ignored after a shutdown,
    /// which also forgets what waits.
    ///
    /// Waiting does not count as needing work: added meanwhile, an item comes at once, and once more at its time.
    #[doc(alias = "AddAfter")]
    pub fn add_after(&self, item: T, delay: Duration) {
        self.change(|items, now| items.add_after(item, delay, now));
    }

    /// Counts a failure of an item and adds it after the delay that the limiter says, which is returned.
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

    /// Clears the failures of an item, and nothing else: its work is not done by that. Items that succeed and
    /// are never forgotten stay in the limiter for ever; [`WorkItem::finish`] does both.
    #[doc(alias = "Forget")]
    pub fn forget(&self, item: &T) {
        self.shared.lock().limiter.forget(item);
    }

    /// Returns how often an item was added rate-limited since it was last forgotten.
    #[doc(alias = "NumRequeues")]
    pub fn num_requeues(&self, item: &T) -> u32 {
        self.shared.lock().limiter.num_requeues(item)
    }

    /// Waits for an item and takes it into work; `None` when the queue was shut down and nothing is left. No other
    /// `take` returns the item until it is done.
    ///
    /// Dropping the future loses nothing. Needs a tokio runtime with time.
    #[doc(alias = "Get")]
    pub async fn take(&self) -> Option<WorkItem<T>> {
        // Else a worker that never waits for anything would keep its thread from all others.
        tokio::task::consume_budget().await;
        loop {
            // Registered before the look: what is added after it wakes this task. A wake-up that is not used because
            // the look found something is passed on to another.
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

    /// As [`WorkQueue::take`], blocking the thread: for workers that are threads. Needs no runtime.
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

    /// Takes no new items from now on. What is queued is still handed out, then [`WorkQueue::take`] says `None`; what
    /// is in work is not waited for. Ends a drain that is waited for.
    #[doc(alias = "ShutDown")]
    pub fn shut_down(&self) {
        self.change(|items, now| items.shut_down(Intake::ShutDown, now));
    }

    /// Takes no new items from now on, and waits until what was queued is taken and what is in work is done.
    ///
    /// An item that was added before, while in work, is still taken. Waits for ever if nobody takes or an item is never
    /// done; [`WorkQueue::shut_down`] ends the wait. Dropping the future ends the wait too, not the drain.
    ///
    /// client-go's waits for items in work only, and may return while some are queued.
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

    /// Returns whether the queue was shut down, draining or not.
    #[doc(alias = "ShuttingDown")]
    pub fn is_shutting_down(&self) -> bool {
        self.shared.lock().items.is_shutting_down()
    }

    /// Returns how many items can be taken now; those in work and those that wait for their time are not counted.
    #[doc(alias = "Len")]
    pub fn len(&self) -> usize {
        self.shared.lock().items.len(self.shared.now())
    }

    /// Returns whether there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the queue holds and has done. Looks at every item in it.
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

/// An item in work. Dereferences to the item, and is shown as it.
///
/// Dropping it is [`WorkItem::done`], so no early return leaks it; where a panic drops it, it is [`WorkItem::retry`]. It may be
/// sent to another task or thread.
pub struct WorkItem<T: Clone + Eq + Hash> {
    item: T,
    queue: WorkQueue<T>,
}

impl<T: Clone + Eq + Hash> WorkItem<T> {
    /// Ends the work. If the item was added meanwhile, it is queued again, last. Its failures stay counted.
    #[doc(alias = "Done")]
    pub fn done(self) {}

    /// Ends the work with success: forgets the failures of the item.
    pub fn finish(self) {
        self.queue.forget(&self.item);
    }

    /// Ends the work with failure: the item comes again after the delay that is returned, unless the queue is shut down.
    pub fn retry(self) -> Duration {
        self.queue.add_rate_limited(self.item.clone())
    }

    /// Returns how often the item failed before, see [`WorkQueue::num_requeues`].
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
