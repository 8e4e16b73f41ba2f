//! Tests of each rule of the queue (Q-1 … Q-11): its state with explicit times, its handle with tokio's paused clock.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep, timeout},
};

use super::{
    Exponential, FastSlow, Intake, Items, MaxOf, MaxWait, RateLimiter, Stats, Taken, TokenBucket, Wake, WorkQueue,
    default_controller_limiter, default_item_limiter,
};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const ZERO: Duration = Duration::ZERO;

/// Takes without waiting.
fn take(items: &mut Items<char>, now: Duration) -> Option<char> {
    match items.take(now) {
        Taken::Item(item) => Some(item),
        Taken::Nothing { .. } | Taken::End => None,
    }
}

fn queue_of(added: &str) -> Items<char> {
    let mut items = Items::new();
    for item in added.chars() {
        assert_eq!(items.add(item, ZERO), Wake::OneTaker);
    }
    items
}

fn drain(items: &mut Items<char>, now: Duration) -> String {
    std::iter::from_fn(|| take(items, now).inspect(|item| _ = items.done(item, now))).collect()
}

/// Rule: Q-1.
#[test]
fn items_come_first_in_first_out() {
    assert_eq!(drain(&mut queue_of("bca"), ZERO), "bca");
}

/// Rule: Q-2.
#[test]
fn item_added_twice_is_taken_once() {
    let mut items = queue_of("ab");
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.len(ZERO), 2);
    assert_eq!(drain(&mut items, ZERO), "ab");
}

/// Rule: Q-2.
#[test]
fn len_counts_only_the_fifo() {
    let mut items = queue_of("ab");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody, "in work: queued when done");
    assert_eq!(items.add_after('c', SECONDS(1), ZERO), Wake::Takers);
    assert_eq!(items.len(ZERO), 1);
    assert_eq!(items.len(SECONDS(1)), 2);
}

/// Rule: Q-3.
#[test]
fn item_in_work_is_not_taken_again() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(take(&mut items, ZERO), None);
}

/// Rule: Q-4.
#[test]
fn adds_during_work_requeue_item_once_at_tail() {
    let mut items = queue_of("ab");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    for _ in 0..3 {
        assert_eq!(items.add('a', ZERO), Wake::Nobody);
    }
    assert_eq!(items.done(&'a', ZERO), Wake::OneTaker);
    assert_eq!(drain(&mut items, ZERO), "ba");
}

/// Rule: Q-5.
#[test]
fn shutdown_hands_out_queued_items_and_refuses_adds() {
    let mut items = queue_of("ab");
    assert_eq!(items.add_after('c', MILLIS(1), ZERO), Wake::Takers);
    assert_eq!(items.shut_down(Intake::ShutDown, ZERO), Wake::All);
    assert_eq!(items.add('d', ZERO), Wake::Nobody);
    assert_eq!(items.add_after('d', MILLIS(1), ZERO), Wake::Nobody);
    assert_eq!(items.take(ZERO), Taken::Item('a'));
    assert_eq!(items.take(ZERO), Taken::Item('b'));
    assert_eq!(items.take(SECONDS(1)), Taken::End, "items in work are not waited for, delayed ones are dropped");
    assert!(items.is_drained());
}

/// Rule: Q-5.
#[test]
fn item_due_at_shutdown_is_handed_out() {
    let mut items = queue_of("");
    assert_eq!(items.add_after('a', MILLIS(1), ZERO), Wake::Takers);
    assert_eq!(items.shut_down(Intake::ShutDown, MILLIS(1)), Wake::All);
    assert_eq!(drain(&mut items, MILLIS(1)), "a");
}

/// Rule: Q-6.
#[test]
fn drain_waits_for_queued_and_running_items() {
    let mut items = queue_of("ab");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.shut_down(Intake::Draining, ZERO), Wake::All);
    assert_eq!(items.done(&'a', ZERO), Wake::Nobody);
    assert!(!items.is_drained(), "b is queued");
    assert_eq!(items.take(ZERO), Taken::Item('b'));
    assert_eq!(items.take(ZERO), Taken::End);
    assert!(!items.is_drained(), "b is in work");
    assert_eq!(items.done(&'b', ZERO), Wake::All);
    assert!(items.is_drained());
}

/// Rule: Q-6.
#[test]
fn item_added_before_drain_still_runs() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.shut_down(Intake::Draining, ZERO), Wake::All);
    assert_eq!(items.take(ZERO), Taken::Nothing { until: None }, "it will be queued again, so a worker stays");
    assert_eq!(items.done(&'a', ZERO), Wake::OneTaker);
    assert_eq!(items.take(ZERO), Taken::Item('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.done(&'a', ZERO), Wake::All);
    assert!(items.is_drained());
}

/// Rule: Q-6.
#[test]
fn plain_shutdown_releases_drain() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.shut_down(Intake::Draining, ZERO), Wake::All);
    assert!(!items.is_drained());
    assert_eq!(items.shut_down(Intake::ShutDown, ZERO), Wake::All);
    assert!(items.is_drained());
}

/// Rule: Q-7.
#[test]
fn zero_delay_is_plain_add() {
    let mut items = queue_of("a");
    assert_eq!(items.add_after('b', ZERO, ZERO), Wake::OneTaker);
    assert_eq!(drain(&mut items, ZERO), "ab");
}

/// Rule: Q-7.
#[test]
fn waiting_items_come_in_order_of_their_times() {
    let mut items = queue_of("");
    for (item, delay) in [('c', 30), ('a', 10), ('x', 40), ('b', 20), ('d', 30)] {
        let first = matches!(item, 'a' | 'c');
        assert_eq!(items.add_after(item, MILLIS(delay), ZERO), if first { Wake::Takers } else { Wake::Nobody });
    }
    assert_eq!(items.take(ZERO), Taken::Nothing { until: Some(MILLIS(10)) });
    assert_eq!(drain(&mut items, MILLIS(9)), "");
    assert_eq!(drain(&mut items, MILLIS(39)), "abcd");
    assert_eq!(items.take(MILLIS(39)), Taken::Nothing { until: Some(MILLIS(40)) });
}

/// Rule: Q-7.
#[test]
fn earliest_of_several_times_wins() {
    for delays in [[20, 10, 30], [10, 20, 30], [30, 20, 10]] {
        let mut items = queue_of("");
        for delay in delays {
            items.add_after('a', MILLIS(delay), ZERO);
        }
        assert_eq!(drain(&mut items, MILLIS(9)), "", "{delays:?}");
        assert_eq!(drain(&mut items, MILLIS(10)), "a", "{delays:?}");
        assert_eq!(drain(&mut items, MILLIS(40)), "", "{delays:?}: once");
    }
}

/// Rule: Q-7.
#[test]
fn due_item_precedes_later_add() {
    let mut items = queue_of("");
    assert_eq!(items.add_after('a', MILLIS(10), ZERO), Wake::Takers);
    items.add('b', MILLIS(20));
    assert_eq!(drain(&mut items, MILLIS(20)), "ab");
}

/// Rule: Q-7.
#[test]
fn add_during_delay_runs_at_once_and_again() {
    let mut items = queue_of("");
    items.add_after('a', MILLIS(10), ZERO);
    items.add('a', ZERO);
    assert_eq!(drain(&mut items, ZERO), "a");
    assert_eq!(drain(&mut items, MILLIS(10)), "a");
}

/// Rule: Q-7.
#[test]
fn endless_delay_never_ends() {
    let mut items = queue_of("");
    items.add_after('a', Duration::MAX, SECONDS(1));
    assert_eq!(items.take(SECONDS(1 << 40)), Taken::Nothing { until: Some(Duration::MAX) });
}

#[test]
fn stats_match_client_go() {
    let mut items = queue_of("ab");
    items.add('a', SECONDS(1));
    assert_eq!(take(&mut items, SECONDS(3)), Some('a'));
    items.add('a', SECONDS(4));
    items.add_after('c', SECONDS(60), SECONDS(4));
    assert_eq!(take(&mut items, SECONDS(5)), Some('b'));
    let expected = Stats {
        depth: 0,
        in_work: 2,
        waiting: 1,
        adds: 3,
        retries: 1,
        taken: 2,
        queued_for: SECONDS(3 + 5),
        unfinished: SECONDS(7 + 5),
        longest_running: SECONDS(7),
        ..Stats::default()
    };
    assert_eq!(items.stats(SECONDS(10)), expected);
    items.done(&'a', SECONDS(10));
    items.done(&'b', SECONDS(10));
    let expected = Stats {
        depth: 1,
        in_work: 0,
        done: 2,
        worked_for: SECONDS(7 + 5),
        unfinished: ZERO,
        longest_running: ZERO,
        ..expected
    };
    assert_eq!(items.stats(SECONDS(10)), expected);
    assert_eq!(take(&mut items, SECONDS(10)), Some('a'));
    assert_eq!(items.stats(SECONDS(10)).queued_for, SECONDS(3 + 5 + 6), "it was dirty since the fourth second");
}

/// Checks the delays of several failures of one item at the given times.
#[track_caller]
fn check<T>(mut limiter: impl RateLimiter<T>, item: &T, failures: &[(u64, u64)]) {
    for (at, expected) in failures {
        assert_eq!(limiter.when(item, MILLIS(*at)), MILLIS(*expected), "at {at} ms");
    }
}

/// Rule: Q-8.
#[test]
fn exponential_delay_doubles_per_item_to_maximum() {
    let mut limiter = Exponential::new(MILLIS(1), MILLIS(10));
    let delays = |limiter: &mut Exponential<_>, item| [(); 6].map(|()| limiter.when(&item, ZERO).as_millis());
    assert_eq!(delays(&mut limiter, 'a'), [1, 2, 4, 8, 10, 10]);
    assert_eq!(limiter.when(&'b', ZERO), MILLIS(1), "another item");
    assert_eq!((limiter.num_requeues(&'a'), limiter.num_requeues(&'b'), limiter.num_requeues(&'c')), (6, 1, 0));
    limiter.forget(&'a');
    assert_eq!((limiter.num_requeues(&'a'), limiter.num_requeues(&'b')), (0, 1));
    assert_eq!(limiter.when(&'a', ZERO), MILLIS(1));
}

/// Rule: Q-8.
#[test]
fn exponential_delay_never_overflows() {
    let max = SECONDS(1000);
    for base in [Duration::from_nanos(1), MILLIS(5), Duration::MAX] {
        let mut limiter = Exponential::new(base, max);
        let delays: Vec<_> = (0..200).map(|_| limiter.when(&'a', ZERO)).collect();
        assert!(delays.is_sorted() && delays[199] == max, "{base:?}: {delays:?}");
    }
    check(Exponential::new(ZERO, max), &'a', &[(0, 0); 100]);
}

/// Rule: Q-8.
#[test]
fn fast_slow_is_fast_for_first_failures() {
    let mut limiter = FastSlow::new(MILLIS(5), SECONDS(10), 3);
    let delays = |limiter: &mut FastSlow<_>, item| [(); 5].map(|()| limiter.when(&item, ZERO).as_millis());
    assert_eq!(delays(&mut limiter, 'a'), [5, 5, 5, 10_000, 10_000]);
    assert_eq!(limiter.when(&'b', ZERO), MILLIS(5), "another item");
    assert_eq!(limiter.num_requeues(&'a'), 5);
    limiter.forget(&'a');
    assert_eq!(limiter.num_requeues(&'a'), 0);
    assert_eq!(delays(&mut limiter, 'a'), [5, 5, 5, 10_000, 10_000]);
}

/// Rule: Q-8.
#[test]
fn token_bucket_is_shared_and_refills() {
    let bucket = TokenBucket::new(MILLIS(100), 3);
    check(bucket.clone(), &'a', &[(0, 0), (0, 0), (0, 0), (0, 100), (0, 200), (50, 250)]);
    check(bucket.clone(), &'a', &[(0, 0), (0, 0), (0, 0), (100, 0), (100, 100), (300, 0)]);
    check(bucket.clone(), &'a', &[(0, 0), (5000, 0), (5000, 0), (5000, 0), (5000, 100)]);
    check(TokenBucket::new(MILLIS(100), 0), &'a', &[(0, 100), (0, 200)]);
    check(TokenBucket::new(ZERO, 0), &'a', &[(0, 0); 10]);
    let mut shared = bucket;
    for item in ['a', 'b', 'c'] {
        assert_eq!(shared.when(&item, ZERO), ZERO);
    }
    assert_eq!(shared.when(&'d', ZERO), MILLIS(100));
    RateLimiter::forget(&mut shared, &'d');
    assert_eq!((shared.when(&'d', ZERO), RateLimiter::num_requeues(&shared, &'d')), (MILLIS(200), 0));
}

/// Rule: Q-8.
#[test]
fn max_of_takes_longest_delay_of_all_members() {
    let exponential = || Box::new(Exponential::new(MILLIS(1), MILLIS(8)));
    let fast_slow = Box::new(FastSlow::new(MILLIS(3), MILLIS(5), 3));
    let mut limiter = MaxOf::new(vec![fast_slow, exponential()]);
    let delays = [(); 5].map(|()| limiter.when(&'a', ZERO).as_millis());
    assert_eq!(delays, [3, 3, 4, 8, 8]);
    assert_eq!((limiter.num_requeues(&'a'), limiter.num_requeues(&'b')), (5, 0));
    limiter.forget(&'a');
    assert_eq!((limiter.num_requeues(&'a'), limiter.when(&'a', ZERO)), (0, MILLIS(3)));
    let bucket = Box::new(TokenBucket::new(MILLIS(1), 100));
    let mut limiter = MaxOf::new(vec![exponential(), bucket]);
    limiter.when(&'a', ZERO);
    assert_eq!(limiter.num_requeues(&'a'), 1, "the highest count");
    assert_eq!(MaxOf::new(Vec::new()).when(&'a', ZERO), ZERO);
}

/// Rule: Q-8.
#[test]
fn max_wait_caps_another_limiter() {
    let mut limiter = MaxWait::new(Exponential::new(MILLIS(5), SECONDS(1000)), MILLIS(12));
    assert_eq!([(); 4].map(|()| limiter.when(&'a', ZERO).as_millis()), [5, 10, 12, 12]);
    assert_eq!(limiter.num_requeues(&'a'), 4);
    limiter.forget(&'a');
    assert_eq!((limiter.num_requeues(&'a'), limiter.when(&'a', ZERO)), (0, MILLIS(5)));
}

/// Rule: Q-9.
#[test]
fn default_limiters_match_client_go() {
    let mut limiter = default_controller_limiter();
    assert_eq!([(); 3].map(|()| limiter.when(&0, ZERO).as_millis()), [5, 10, 20]);
    for item in 4..=100 {
        assert_eq!(limiter.when(&item, ZERO), MILLIS(5), "within the burst of 100");
    }
    assert_eq!(limiter.when(&101, ZERO), MILLIS(100), "10 a second");
    assert_eq!(limiter.when(&102, ZERO), MILLIS(200));
    let far = SECONDS(1 << 30);
    assert_eq!((0..30).map(|_| limiter.when(&7, far)).max(), Some(SECONDS(1000)));

    let mut limiter = default_item_limiter();
    let delays: Vec<_> = (0..30).map(|_| limiter.when(&'a', ZERO)).collect();
    assert_eq!((delays[0], delays[1], delays[29]), (MILLIS(1), MILLIS(2), SECONDS(1000)));
}

fn queue() -> WorkQueue<char> {
    WorkQueue::new(Exponential::new(SECONDS(1), SECONDS(1000)))
}

/// Returns a worker that reports the taken items, with their times.
fn worker(queue: &WorkQueue<char>, began: Instant) -> JoinHandle<Vec<(char, u64)>> {
    let queue = queue.clone();
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Some(item) = queue.take().await {
            taken.push((*item, began.elapsed().as_secs()));
        }
        taken
    })
}

/// Lets every task run until it waits; with a paused clock, no time passes.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[test]
fn handles_and_items_are_send_and_sync() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<WorkQueue<String>>();
    is_shared::<super::WorkItem<String>>();
}

/// Rule: Q-3.
#[tokio::test(start_paused = true)]
async fn take_waits_for_an_add() {
    let (queue, began) = (queue(), Instant::now());
    let worker = worker(&queue, began);
    settle().await;
    queue.add('a');
    settle().await;
    assert_eq!(queue.stats().done, 1, "a dropped item is done");
    queue.shut_down();
    assert_eq!(worker.await.unwrap(), [('a', 0)]);
}

/// Rule: Q-5.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_every_worker() {
    let (queue, began) = (queue(), Instant::now());
    let workers: Vec<_> = (0..4).map(|_| worker(&queue, began)).collect();
    settle().await;
    queue.shut_down();
    for worker in workers {
        assert!(worker.await.unwrap().is_empty());
    }
    assert!(queue.is_shutting_down());
    assert!(queue.take().await.is_none());
}

/// Rule: Q-6.
#[tokio::test(start_paused = true)]
async fn drain_waits_for_work_and_ends_workers() {
    let queue = queue();
    queue.add('a');
    queue.add('b');
    let held = queue.take().await.unwrap();
    let drain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.shut_down_with_drain().await }
    });
    settle().await;
    assert!(!drain.is_finished());
    assert!(queue.is_shutting_down());
    let worker = worker(&queue, Instant::now());
    settle().await;
    assert!(!drain.is_finished(), "{held:?} is in work");
    held.done();
    drain.await.unwrap();
    assert_eq!(worker.await.unwrap(), [('b', 0)]);
}

/// Rule: Q-6.
#[tokio::test(start_paused = true)]
async fn workers_wait_for_draining_items_and_then_end() {
    let queue = queue();
    queue.add('a');
    let held = queue.take().await.unwrap();
    queue.add('a');
    let workers: Vec<_> = (0..3).map(|_| worker(&queue, Instant::now())).collect();
    settle().await;
    let drain = queue.shut_down_with_drain();
    let end = async {
        settle().await;
        assert!(workers.iter().all(|worker| !worker.is_finished()));
        held.done();
    };
    tokio::join!(drain, end);
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.unwrap());
    }
    assert_eq!(taken, [('a', 0)]);
}

/// Rule: Q-6.
#[tokio::test(start_paused = true)]
async fn shutdown_releases_drain_of_unfinished_item() {
    let queue = queue();
    queue.add('a');
    let held = queue.take().await;
    assert!(timeout(SECONDS(3600), queue.shut_down_with_drain()).await.is_err());
    let release = async { queue.shut_down() };
    tokio::join!(queue.shut_down_with_drain(), release);
    drop(held);
}

/// Rule: Q-7.
#[tokio::test(start_paused = true)]
async fn workers_wake_when_waiting_items_are_due() {
    let (queue, began) = (queue(), Instant::now());
    let worker = worker(&queue, began);
    queue.add_after('c', SECONDS(30));
    settle().await;
    queue.add_after('a', SECONDS(10));
    queue.add_after('b', SECONDS(20));
    queue.add_after('c', SECONDS(40));
    assert_eq!((queue.len(), queue.is_empty(), queue.stats().waiting), (0, true, 3));
    sleep(SECONDS(60)).await;
    queue.shut_down();
    assert_eq!(worker.await.unwrap(), [('a', 10), ('b', 20), ('c', 30)]);
}

/// Rule: Q-7.
#[tokio::test(start_paused = true)]
async fn remaining_worker_takes_over_earlier_wakeup() {
    let (queue, began) = (queue(), Instant::now());
    let (first, second) = (worker(&queue, began), worker(&queue, began));
    settle().await;
    queue.add_after('a', SECONDS(5));
    settle().await;
    first.abort();
    sleep(SECONDS(6)).await;
    queue.shut_down();
    assert_eq!(second.await.unwrap(), [('a', 5)]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_take_loses_nothing() {
    let queue = queue();
    let (first, second) = (worker(&queue, Instant::now()), worker(&queue, Instant::now()));
    settle().await;
    queue.add('a'); // wakes the first, which no longer runs
    first.abort();
    settle().await;
    queue.shut_down();
    assert_eq!(second.await.unwrap(), [('a', 0)]);
}

/// Rule: Q-10.
#[tokio::test(start_paused = true)]
async fn retry_delay_grows_and_forget_clears_only_limiter() {
    let (queue, began) = (queue(), Instant::now());
    queue.add('a');
    for (at, delay) in [(0, 1), (1, 2), (3, 4)] {
        let item = queue.take().await.unwrap();
        assert_eq!(began.elapsed(), SECONDS(at));
        assert_eq!(item.retry(), SECONDS(delay));
    }
    let item = queue.take().await.unwrap();
    assert_eq!((began.elapsed(), item.num_requeues()), (SECONDS(7), 3));
    queue.forget(&item);
    assert_eq!((item.num_requeues(), queue.stats().in_work), (0, 1), "the item is not done yet");
    assert_eq!(queue.add_rate_limited('a'), SECONDS(1));
    item.finish();
    assert_eq!((queue.num_requeues(&'a'), queue.stats().in_work, queue.stats().waiting), (0, 0, 1));
    let item = queue.take().await.unwrap();
    assert_eq!((*item, began.elapsed()), ('a', SECONDS(8)));
}

/// Rule: Q-11.
#[tokio::test(start_paused = true)]
async fn add_during_work_is_processed_afterwards() {
    let queue = queue();
    queue.add('a');
    let item = queue.take().await.unwrap();
    queue.add('a');
    assert!(timeout(SECONDS(60), queue.take()).await.is_err());
    item.finish();
    assert_eq!(*queue.take().await.unwrap(), 'a');
}

#[tokio::test(start_paused = true)]
async fn panicking_worker_fails_its_item_without_leak() {
    let queue = queue();
    queue.add('a');
    let panicking = tokio::spawn({
        let queue = queue.clone();
        async move {
            let item = queue.take().await.unwrap();
            panic!("test panic on {item:?}");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!((queue.stats().in_work, queue.num_requeues(&'a')), (0, 1));
    let began = Instant::now();
    assert_eq!((*queue.take().await.unwrap(), began.elapsed()), ('a', SECONDS(1)));
}

#[tokio::test(start_paused = true)]
async fn busy_worker_yields_to_others() {
    let queue: Arc<WorkQueue<u32>> = Arc::default();
    (0..10_000).for_each(|item| queue.add(item));
    let worker = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { while queue.take().await.is_some() {} }
    });
    yield_now().await;
    assert!(queue.stats().done < 10_000);
    queue.shut_down_with_drain().await;
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stats_follow_the_clock() {
    let queue = queue();
    queue.add('a');
    advance(SECONDS(2)).await;
    let item = queue.take().await.unwrap();
    advance(SECONDS(3)).await;
    let stats = queue.stats();
    assert_eq!((stats.queued_for, stats.longest_running, stats.unfinished), (SECONDS(2), SECONDS(3), SECONDS(3)));
    item.done();
    assert!(format!("{queue:?}").contains("worked_for: 3s"), "{queue:?}");
}

#[test]
fn threads_take_items_added_by_tasks_and_threads() {
    let queue = WorkQueue::new(Exponential::new(MILLIS(1), MILLIS(20)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue: WorkQueue<u32> = queue.clone();
            std::thread::spawn(move || {
                let mut taken = 0;
                while let Some(item) = queue.take_blocking() {
                    taken += 1;
                    if item.is_multiple_of(3) && item.num_requeues() < 2 {
                        _ = item.retry();
                    } else {
                        item.finish();
                    }
                }
                taken
            })
        })
        .collect();
    (0..3000).for_each(|item| queue.add(item));
    queue.add_after(3001, MILLIS(5));
    while queue.stats().done < 3000 + 2 * 1000 + 1 {
        std::thread::yield_now();
    }
    queue.shut_down();
    let taken: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(taken, 3000 + 2 * 1000 + 1);
    assert_eq!((queue.stats().waiting, queue.stats().in_work, queue.len()), (0, 0, 0));
}

#[test]
fn waiting_thread_wakes_on_add_timer_and_end() {
    let queue = queue();
    let (tell, told) = std::sync::mpsc::channel();
    let worker = std::thread::spawn({
        let queue = queue.clone();
        move || {
            while let Some(item) = queue.take_blocking() {
                tell.send(*item).unwrap();
            }
        }
    });
    // Long enough for the thread to wait. If it is not, the test checks less, but still passes.
    let pause = || std::thread::sleep(MILLIS(30));
    pause();
    queue.add('a');
    assert_eq!(told.recv_timeout(SECONDS(20)), Ok('a'));
    pause();
    queue.add_after('b', MILLIS(30));
    assert_eq!(told.recv_timeout(SECONDS(20)), Ok('b'));
    pause();
    queue.shut_down();
    assert!(
        told.recv_timeout(SECONDS(20)).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    worker.join().unwrap();
}

/// Tasks on many threads add and take: no add is lost, and no item is in work twice.
///
/// Rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_add_is_lost_between_threads() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
    let queue: WorkQueue<usize> = WorkQueue::default();
    let wanted: Arc<[AtomicU32; 8]> = Arc::default();
    let seen: Arc<[AtomicU32; 8]> = Arc::default();
    let busy: Arc<[AtomicBool; 8]> = Arc::default();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (queue, wanted) = (queue.clone(), Arc::clone(&wanted));
            let (seen, busy) = (Arc::clone(&seen), Arc::clone(&busy));
            tokio::spawn(async move {
                while let Some(item) = queue.take().await {
                    assert!(!busy[*item].swap(true, SeqCst), "Q-3");
                    seen[*item].store(wanted[*item].load(SeqCst), SeqCst);
                    yield_now().await;
                    busy[*item].store(false, SeqCst);
                    item.finish();
                }
            })
        })
        .collect();
    let adders: Vec<_> = (0..4)
        .map(|adder| {
            let (queue, wanted) = (queue.clone(), Arc::clone(&wanted));
            tokio::spawn(async move {
                for step in 0..5000 {
                    let item = (step * 7 + adder) % 8;
                    wanted[item].fetch_add(1, SeqCst);
                    queue.add(item);
                    if step % 16 == 0 {
                        yield_now().await;
                    }
                }
            })
        })
        .collect();
    for adder in adders {
        adder.await.unwrap();
    }
    queue.shut_down_with_drain().await;
    for worker in workers {
        worker.await.unwrap();
    }
    for (wanted, seen) in wanted.iter().zip(seen.iter()) {
        assert_eq!(wanted.load(SeqCst), seen.load(SeqCst), "Q-11");
    }
}
