//! Delays before failed items are tried again. The caller passes the time; nothing here reads a clock.

use std::{collections::HashMap, hash::Hash, time::Duration};

/// Chooses the delay before an item is tried again. A limiter must not panic or block, because the queue is locked during the call.
#[doc(alias = "TypedRateLimiter")]
pub trait RateLimiter<T>: Send {
    /// Counts a failure of `item` at `now` and returns the delay. All values of `now` come from one monotonic clock.
    #[doc(alias = "When")]
    fn when(&mut self, item: &T, now: Duration) -> Duration;

    /// Forgets the failures of `item`, which has succeeded or is given up.
    #[doc(alias = "Forget")]
    fn forget(&mut self, item: &T);

    /// Returns the number of failures of `item` since it was last forgotten.
    #[doc(alias = "NumRequeues")]
    fn num_requeues(&self, item: &T) -> u32;
}

impl<T> RateLimiter<T> for Box<dyn RateLimiter<T>> {
    fn when(&mut self, item: &T, now: Duration) -> Duration {
        (**self).when(item, now)
    }

    fn forget(&mut self, item: &T) {
        (**self).forget(item);
    }

    fn num_requeues(&self, item: &T) -> u32 {
        (**self).num_requeues(item)
    }
}

/// Returns client-go's default for controllers: the longer of two delays. The first is 5 ms … 1000 s, and grows with the
/// failures of the item. The second limits all items together to 10 per second, with a burst of 100.
#[doc(alias = "DefaultTypedControllerRateLimiter")]
pub fn default_controller_limiter<T: Clone + Eq + Hash + Send + 'static>() -> MaxOf<T> {
    MaxOf::new(vec![
        Box::new(Exponential::new(Duration::from_millis(5), Duration::from_secs(1000))),
        Box::new(TokenBucket::new(Duration::from_millis(100), 100)),
    ])
}

/// Returns client-go's default without the common limit: 1 ms … 1000 s for each item.
#[doc(alias = "DefaultTypedItemBasedRateLimiter")]
pub fn default_item_limiter<T>() -> Exponential<T> {
    Exponential::new(Duration::from_millis(1), Duration::from_secs(1000))
}

/// Counts a failure of an item. Returns the number of earlier failures.
fn count<T: Clone + Eq + Hash>(failures: &mut HashMap<T, u32>, item: &T) -> u32 {
    let Some(failures) = failures.get_mut(item) else {
        failures.insert(item.clone(), 1);
        return 0;
    };
    *failures = failures.saturating_add(1);
    *failures - 1
}

/// Delay of `base × 2ⁿ` after `n` earlier failures of the item, at most `max`, without jitter.
#[doc(alias = "ItemExponentialFailureRateLimiter")]
#[derive(Clone, Debug)]
pub struct Exponential<T> {
    base: Duration,
    max: Duration,
    failures: HashMap<T, u32>,
}

impl<T> Exponential<T> {
    /// Makes a limiter without failures.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, failures: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash + Send> RateLimiter<T> for Exponential<T> {
    fn when(&mut self, item: &T, _now: Duration) -> Duration {
        let factor = 1_u128.checked_shl(count(&mut self.failures, item));
        let nanos = factor.and_then(|factor| self.base.as_nanos().checked_mul(factor));
        nanos.map_or(self.max, |nanos| Duration::from_nanos_u128(nanos.min(self.max.as_nanos())))
    }

    fn forget(&mut self, item: &T) {
        self.failures.remove(item);
    }

    fn num_requeues(&self, item: &T) -> u32 {
        self.failures.get(item).copied().unwrap_or(0)
    }
}

/// Delay of `fast` for the first `fast_attempts` failures of an item, then `slow`.
#[doc(alias = "ItemFastSlowRateLimiter")]
#[derive(Clone, Debug)]
pub struct FastSlow<T> {
    fast: Duration,
    slow: Duration,
    fast_attempts: u32,
    failures: HashMap<T, u32>,
}

impl<T> FastSlow<T> {
    /// Makes a limiter without failures.
    pub fn new(fast: Duration, slow: Duration, fast_attempts: u32) -> Self {
        Self { fast, slow, fast_attempts, failures: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash + Send> RateLimiter<T> for FastSlow<T> {
    fn when(&mut self, item: &T, _now: Duration) -> Duration {
        if count(&mut self.failures, item) < self.fast_attempts { self.fast } else { self.slow }
    }

    fn forget(&mut self, item: &T) {
        self.failures.remove(item);
    }

    fn num_requeues(&self, item: &T) -> u32 {
        self.failures.get(item).copied().unwrap_or(0)
    }
}

/// Token bucket for all items together: one token per `interval`, at most `burst` stored. An item that finds no token
/// waits for the next free one: the n-th such item in a row waits n intervals. Items are not distinguished, so
/// [`RateLimiter::num_requeues`] is 0.
#[doc(alias = "BucketRateLimiter")]
#[derive(Clone, Debug)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// Time at which the bucket is full again if no token is taken.
    full_at: Duration,
}

impl TokenBucket {
    /// Makes a full bucket.
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, full_at: Duration::ZERO }
    }
}

impl<T> RateLimiter<T> for TokenBucket {
    fn when(&mut self, _item: &T, now: Duration) -> Duration {
        self.full_at = self.full_at.max(now).saturating_add(self.interval);
        self.full_at.saturating_sub(now).saturating_sub(self.interval.saturating_mul(self.burst))
    }

    fn forget(&mut self, _item: &T) {}

    fn num_requeues(&self, _item: &T) -> u32 {
        0
    }
}

/// Limiter that returns the longest delay and the highest count of several limiters. Each of these limiters counts every failure.
#[doc(alias = "MaxOfRateLimiter")]
pub struct MaxOf<T> {
    members: Vec<Box<dyn RateLimiter<T>>>,
}

impl<T> MaxOf<T> {
    /// Combines limiters. Without members every delay is zero.
    pub fn new(members: Vec<Box<dyn RateLimiter<T>>>) -> Self {
        Self { members }
    }
}

impl<T> RateLimiter<T> for MaxOf<T> {
    fn when(&mut self, item: &T, now: Duration) -> Duration {
        self.members.iter_mut().map(|member| member.when(item, now)).max().unwrap_or_default()
    }

    fn forget(&mut self, item: &T) {
        for member in &mut self.members {
            member.forget(item);
        }
    }

    fn num_requeues(&self, item: &T) -> u32 {
        self.members.iter().map(|member| member.num_requeues(item)).max().unwrap_or_default()
    }
}

/// Limiter that caps the delays of another limiter at `max`.
#[doc(alias = "WithMaxWaitRateLimiter")]
#[derive(Clone, Debug)]
pub struct MaxWait<L> {
    limiter: L,
    max: Duration,
}

impl<L> MaxWait<L> {
    /// Caps the delays of `limiter`.
    pub fn new(limiter: L, max: Duration) -> Self {
        Self { limiter, max }
    }
}

impl<T, L: RateLimiter<T>> RateLimiter<T> for MaxWait<L> {
    fn when(&mut self, item: &T, now: Duration) -> Duration {
        self.limiter.when(item, now).min(self.max)
    }

    fn forget(&mut self, item: &T) {
        self.limiter.forget(item);
    }

    fn num_requeues(&self, item: &T) -> u32 {
        self.limiter.num_requeues(item)
    }
}
