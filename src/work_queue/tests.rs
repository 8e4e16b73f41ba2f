//! The rules of the queue one by one (Q-1 … Q-11): the machine by explicit times, the handle on tokio's paused clock.

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

#[test]
fn q1_items_come_first_in_first_out() {
    assert_eq!(drain(&mut queue_of("bca"), ZERO), "bca");
}

#[test]
fn q2_an_item_added_twice_is_taken_once() {
    let mut items = queue_of("ab");
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.len(ZERO), 2);
    assert_eq!(drain(&mut items, ZERO), "ab");
}

#[test]
fn q2_len_counts_the_fifo_only() {
    let mut items = queue_of("ab");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody, "in work: queued when done");
    assert_eq!(items.add_after('c', SECONDS(1), ZERO), Wake::Takers);
    assert_eq!(items.len(ZERO), 1);
    assert_eq!(items.len(SECONDS(1)), 2);
}

#[test]
fn q3_an_item_in_work_is_given_to_nobody_else() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(take(&mut items, ZERO), None);
}

#[test]
fn q4_adds_during_work_make_one_more_run_at_the_tail() {
    let mut items = queue_of("ab");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    for _ in 0..3 {
        assert_eq!(items.add('a', ZERO), Wake::Nobody);
    }
    assert_eq!(items.done(&'a', ZERO), Wake::OneTaker);
    assert_eq!(drain(&mut items, ZERO), "ba");
}

#[test]
fn q5_a_shutdown_hands_out_what_is_queued_and_takes_nothing_in() {
    let mut items = queue_of("ab");
    assert_eq!(items.add_after('c', MILLIS(1), ZERO), Wake::Takers);
    assert_eq!(items.shut_down(Intake::ShutDown, ZERO), Wake::All);
    assert_eq!(items.add('d', ZERO), Wake::Nobody);
    assert_eq!(items.add_after('d', MILLIS(1), ZERO), Wake::Nobody);
    assert_eq!(items.take(ZERO), Taken::Item('a'));
    assert_eq!(items.take(ZERO), Taken::Item('b'));
    assert_eq!(items.take(SECONDS(1)), Taken::End, "done is not waited for, what waited is forgotten");
    assert!(items.is_drained());
}

#[test]
fn q5_what_is_due_at_the_shutdown_is_handed_out() {
    let mut items = queue_of("");
    assert_eq!(items.add_after('a', MILLIS(1), ZERO), Wake::Takers);
    assert_eq!(items.shut_down(Intake::ShutDown, MILLIS(1)), Wake::All);
    assert_eq!(drain(&mut items, MILLIS(1)), "a");
}

#[test]
fn q6_a_drain_waits_for_what_is_queued_and_in_work() {
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

#[test]
fn q6_what_was_added_to_an_item_in_work_before_a_drain_is_still_run() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.shut_down(Intake::Draining, ZERO), Wake::All);
    assert_eq!(items.take(ZERO), Taken::Nothing { until: None }, "it comes again: a worker stays");
    assert_eq!(items.done(&'a', ZERO), Wake::OneTaker);
    assert_eq!(items.take(ZERO), Taken::Item('a'));
    assert_eq!(items.add('a', ZERO), Wake::Nobody);
    assert_eq!(items.done(&'a', ZERO), Wake::All);
    assert!(items.is_drained());
}

#[test]
fn q6_a_plain_shutdown_releases_a_drain() {
    let mut items = queue_of("a");
    assert_eq!(take(&mut items, ZERO), Some('a'));
    assert_eq!(items.shut_down(Intake::Draining, ZERO), Wake::All);
    assert!(!items.is_drained());
    assert_eq!(items.shut_down(Intake::ShutDown, ZERO), Wake::All);
    assert!(items.is_drained());
}

#[test]
fn q7_no_delay_is_an_add() {
    let mut items = queue_of("a");
    assert_eq!(items.add_after('b', ZERO, ZERO), Wake::OneTaker);
    assert_eq!(drain(&mut items, ZERO), "ab");
}

#[test]
fn q7_waiting_items_come_in_the_order_of_their_times() {
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

#[test]
fn q7_of_several_times_the_earliest_counts() {
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

#[test]
fn q7_what_became_due_stands_before_what_is_added_later() {
    let mut items = queue_of("");
    assert_eq!(items.add_after('a', MILLIS(10), ZERO), Wake::Takers);
    items.add('b', MILLIS(20));
    assert_eq!(drain(&mut items, MILLIS(20)), "ab");
}

#[test]
fn q7_an_item_added_while_it_waits_comes_at_once_and_again() {
    let mut items = queue_of("");
    items.add_after('a', MILLIS(10), ZERO);
    items.add('a', ZERO);
    assert_eq!(drain(&mut items, ZERO), "a");
    assert_eq!(drain(&mut items, MILLIS(10)), "a");
}

#[test]
fn q7_an_endless_delay_never_ends() {
    let mut items = queue_of("");
    items.add_after('a', Duration::MAX, SECONDS(1));
    assert_eq!(items.take(SECONDS(1 << 40)), Taken::Nothing { until: Some(Duration::MAX) });
}

#[test]
fn stats_count_as_client_go_does() {
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
    assert_eq!(items.stats(SECONDS(10)).queued_for, SECONDS(3 + 5 + 6), "it was dirty from the fourth second on");
}

/// The delays of failures of one item, one after another at the times given.
#[track_caller]
fn check<T>(mut limiter: impl RateLimiter<T>, item: &T, failures: &[(u64, u64)]) {
    for (at, expected) in failures {
        assert_eq!(limiter.when(item, MILLIS(*at)), MILLIS(*expected), "at {at} ms");
    }
}

#[test]
fn q8_exponential_doubles_per_item_up_to_its_maximum() {
    let mut limiter = Exponential::new(MILLIS(1), MILLIS(10));
    let delays = |limiter: &mut Exponential<_>, item| [(); 6].map(|()| limiter.when(&item, ZERO).as_millis());
    assert_eq!(delays(&mut limiter, 'a'), [1, 2, 4, 8, 10, 10]);
    assert_eq!(limiter.when(&'b', ZERO), MILLIS(1), "another item");
    assert_eq!((limiter.num_requeues(&'a'), limiter.num_requeues(&'b'), limiter.num_requeues(&'c')), (6, 1, 0));
    limiter.forget(&'a');
    assert_eq!((limiter.num_requeues(&'a'), limiter.num_requeues(&'b')), (0, 1));
    assert_eq!(limiter.when(&'a', ZERO), MILLIS(1));
}

#[test]
fn q8_exponential_caps_where_it_would_overflow() {
    let max = SECONDS(1000);
    for base in [Duration::from_nanos(1), MILLIS(5), Duration::MAX] {
        let mut limiter = Exponential::new(base, max);
        let delays: Vec<_> = (0..200).map(|_| limiter.when(&'a', ZERO)).collect();
        assert!(delays.is_sorted() && delays[199] == max, "{base:?}: {delays:?}");
    }
    check(Exponential::new(ZERO, max), &'a', &[(0, 0); 100]);
}

#[test]
fn q8_fast_slow_is_fast_for_the_first_failures_of_an_item() {
    let mut limiter = FastSlow::new(MILLIS(5), SECONDS(10), 3);
    let delays = |limiter: &mut FastSlow<_>, item| [(); 5].map(|()| limiter.when(&item, ZERO).as_millis());
    assert_eq!(delays(&mut limiter, 'a'), [5, 5, 5, 10_000, 10_000]);
    assert_eq!(limiter.when(&'b', ZERO), MILLIS(5), "another item");
    assert_eq!(limiter.num_requeues(&'a'), 5);
    limiter.forget(&'a');
    assert_eq!(limiter.num_requeues(&'a'), 0);
    assert_eq!(delays(&mut limiter, 'a'), [5, 5, 5, 10_000, 10_000]);
}

#[test]
fn q8_a_token_bucket_is_shared_and_fills_with_time() {
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

#[test]
fn q8_max_of_is_the_longest_delay_and_asks_every_member() {
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

#[test]
fn q8_max_wait_caps_another_limiter() {
    let mut limiter = MaxWait::new(Exponential::new(MILLIS(5), SECONDS(1000)), MILLIS(12));
    assert_eq!([(); 4].map(|()| limiter.when(&'a', ZERO).as_millis()), [5, 10, 12, 12]);
    assert_eq!(limiter.num_requeues(&'a'), 4);
    limiter.forget(&'a');
    assert_eq!((limiter.num_requeues(&'a'), limiter.when(&'a', ZERO)), (0, MILLIS(5)));
}

#[test]
fn q9_the_defaults_are_those_of_client_go() {
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

/// A worker that tells what it took, and when.
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

/// Lets every task run until it waits; on a paused clock no time passes.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

#[test]
fn handles_and_items_go_to_other_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<WorkQueue<String>>();
    is_shared::<super::WorkItem<String>>();
}

#[tokio::test(start_paused = true)]
async fn q3_take_waits_for_an_add() {
    let (queue, began) = (queue(), Instant::now());
    let worker = worker(&queue, began);
    settle().await;
    queue.add('a');
    settle().await;
    assert_eq!(queue.stats().done, 1, "dropped is done");
    queue.shut_down();
    assert_eq!(worker.await.unwrap(), [('a', 0)]);
}

#[tokio::test(start_paused = true)]
async fn q5_a_shutdown_ends_every_worker() {
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

#[tokio::test(start_paused = true)]
async fn q6_a_drain_waits_for_the_work_and_ends_the_workers() {
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

#[tokio::test(start_paused = true)]
async fn q6_workers_wait_for_what_a_drain_still_runs_and_all_of_them_end() {
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

#[tokio::test(start_paused = true)]
async fn q6_a_shutdown_ends_the_wait_for_an_item_that_is_never_done() {
    let queue = queue();
    queue.add('a');
    let held = queue.take().await;
    assert!(timeout(SECONDS(3600), queue.shut_down_with_drain()).await.is_err());
    let release = async { queue.shut_down() };
    tokio::join!(queue.shut_down_with_drain(), release);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn q7_workers_wake_at_the_times_of_waiting_items() {
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

#[tokio::test(start_paused = true)]
async fn q7_an_earlier_time_is_kept_by_the_others_where_one_worker_goes_away() {
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
async fn a_take_that_is_given_up_loses_nothing() {
    let queue = queue();
    let (first, second) = (worker(&queue, Instant::now()), worker(&queue, Instant::now()));
    settle().await;
    queue.add('a'); // wakes the first, which does not run any more
    first.abort();
    settle().await;
    queue.shut_down();
    assert_eq!(second.await.unwrap(), [('a', 0)]);
}

#[tokio::test(start_paused = true)]
async fn q10_a_retry_waits_longer_each_time_and_forget_clears_only_the_limiter() {
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
    assert_eq!((item.num_requeues(), queue.stats().in_work), (0, 1), "done is still required");
    assert_eq!(queue.add_rate_limited('a'), SECONDS(1));
    item.finish();
    assert_eq!((queue.num_requeues(&'a'), queue.stats().in_work, queue.stats().waiting), (0, 0, 1));
    let item = queue.take().await.unwrap();
    assert_eq!((*item, began.elapsed()), ('a', SECONDS(8)));
}

#[tokio::test(start_paused = true)]
async fn q11_an_add_during_work_is_worked_on_afterwards() {
    let queue = queue();
    queue.add('a');
    let item = queue.take().await.unwrap();
    queue.add('a');
    assert!(timeout(SECONDS(60), queue.take()).await.is_err());
    item.finish();
    assert_eq!(*queue.take().await.unwrap(), 'a');
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_has_failed_and_leaks_nothing() {
    let queue = queue();
    queue.add('a');
    let panicking = tokio::spawn({
        let queue = queue.clone();
        async move {
            let item = queue.take().await.unwrap();
            panic!("a test's panic over {item:?}");
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!((queue.stats().in_work, queue.num_requeues(&'a')), (0, 1));
    let began = Instant::now();
    assert_eq!((*queue.take().await.unwrap(), began.elapsed()), ('a', SECONDS(1)));
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_lets_others_run() {
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
fn threads_take_what_tasks_and_threads_add() {
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
fn a_thread_that_waits_is_woken_by_an_add_a_time_and_the_end() {
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
    // Long enough for the thread to wait; where it does not yet, this shows less and still holds.
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

/// Tasks on many threads, adding while others take: an add is never lost, an item never in work twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q3_q11_hold_between_threads() {
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
