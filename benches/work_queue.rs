//! What an item costs in the work queue: added, taken, done; and added while it waits.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use deltabus::work_queue::{WorkQueue, default_controller_limiter};

const ITEMS: usize = 1_000;

fn work_queue(c: &mut Criterion) {
    let keys: Vec<String> = (0..ITEMS).map(|number| format!("namespace-{}/pod-{number}", number % 10)).collect();
    let queue = WorkQueue::new(default_controller_limiter());
    let take_all = || {
        for _ in 0..ITEMS {
            queue.take_blocking().expect("there is one").finish();
        }
    };
    let mut group = c.benchmark_group("work_queue");
    group.throughput(Throughput::Elements(ITEMS as u64));
    group.bench_function("add, take, finish", |b| {
        b.iter(|| {
            keys.iter().for_each(|key| queue.add(key.clone()));
            take_all();
        });
    });
    keys.iter().for_each(|key| queue.add(key.clone()));
    group.bench_function("add what waits already", |b| b.iter(|| keys.iter().for_each(|key| queue.add(key.clone()))));
    take_all();
    group.finish();
}

criterion_group!(benches, work_queue);
criterion_main!(benches);
