//! The queue: an event is pushed, popped and acknowledged.

use std::{cell::LazyCell, hint::black_box};

use criterion::{BatchSize, Criterion, Throughput};
use deltabus::internals::{
    delta_fifo::{DeltaFifo, QueueOrder},
    object::Object,
    reflector::ReflectorEvent,
};

use crate::{SMOKE, small_pod};

const KEYS: usize = 100_000 / SMOKE;

pub(crate) fn benches(c: &mut Criterion) {
    let known: LazyCell<Vec<Object>> = LazyCell::new(|| (0..KEYS).map(|n| small_pod(100, n, 1)).collect());
    for (order, name) in [(QueueOrder::Stream, "stream"), (QueueOrder::PerKey, "per_key")] {
        let mut group = c.benchmark_group(format!("delta_fifo/{name}"));
        for len in [1, 64, 1024] {
            group.throughput(Throughput::Elements(len as u64));
            group.bench_function(format!("batch of {len}"), |b| {
                let mut fifo = DeltaFifo::new(order, known.iter().cloned(), true);
                let mut next = 0;
                let events = || -> Vec<ReflectorEvent> {
                    next += len;
                    (next..next + len)
                        .map(|n| ReflectorEvent::Updated(small_pod(100, n * 7919 % KEYS, n + 2)))
                        .collect()
                };
                let push_and_pop = |events: Vec<ReflectorEvent>| {
                    for event in events {
                        fifo.push(event);
                    }
                    while let Some(deltas) = fifo.pop() {
                        black_box(deltas);
                    }
                };
                b.iter_batched(events, push_and_pop, BatchSize::SmallInput);
            });
        }
        group.throughput(Throughput::Elements(KEYS as u64));
        group.sample_size(10);
        group.bench_function("relist without a change", |b| {
            let mut fifo = DeltaFifo::new(order, known.iter().cloned(), true);
            let replace = |items| {
                fifo.push(ReflectorEvent::Replace { items, spared: Vec::new(), resource_version: "9".into() });
                black_box(fifo.pop());
            };
            b.iter_batched(|| known.clone(), replace, BatchSize::LargeInput);
        });
    }
}
