//! The work queue: an item is added, taken and done; and is added again while it waits.

use criterion::{Criterion, Throughput};
use deltabus::internals::work_queue::{WorkQueue, default_controller_limiter};

const ITEMS: usize = 1_000;

pub(crate) fn benches(c: &mut Criterion) {
    let keys: Vec<String> = (0..ITEMS).map(|number| format!("namespace-{}/pod-{number}", number % 10)).collect();
    let queue = WorkQueue::<String>::new(default_controller_limiter());
    let add_all = || {
        for key in &keys {
            queue.add(key.clone());
        }
    };
    let take_all = || {
        for _ in 0..ITEMS {
            queue.take_blocking().expect("there is one").finish();
        }
    };
    let mut group = c.benchmark_group("work_queue");
    group.throughput(Throughput::Elements(ITEMS as u64));
    group.bench_function("add, take, finish", |b| {
        b.iter(|| {
            add_all();
            take_all();
        });
    });
    add_all();
    group.bench_function("add what waits already", |b| b.iter(add_all));
    take_all();
    group.finish();
}
