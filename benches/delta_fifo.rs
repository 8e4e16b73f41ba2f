//! What an event costs in the queue: pushed, popped, known.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use deltabus::{
    delta_fifo::{DeltaFifo, Order},
    object::Object,
    reflector::Event,
};

const KEYS: usize = 100_000;

fn object(n: usize, version: usize) -> Object {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns-{}","name":"pod-{n}","uid":"uid-{n}","resourceVersion":"{version}"}}}}"#,
        n % 100
    );
    Object::from_json(json.as_bytes()).expect("it is an object")
}

fn queue(c: &mut Criterion) {
    let known: Vec<Object> = (0..KEYS).map(|n| object(n, 1)).collect();
    for (order, name) in [(Order::Stream, "stream"), (Order::PerKey, "per_key")] {
        let mut group = c.benchmark_group(format!("delta_fifo/{name}"));
        for len in [1, 64, 1024] {
            let mut fifo = DeltaFifo::new(order, known.iter().cloned(), true);
            let mut next = 0;
            group.throughput(Throughput::Elements(len as u64));
            group.bench_function(format!("batch of {len}"), |b| {
                let events = |next: &mut usize| -> Vec<Event> {
                    let events = (0..len).map(|n| Event::Updated(object((*next + n) * 7919 % KEYS, *next + n + 2)));
                    let events = events.collect();
                    *next += len;
                    events
                };
                b.iter_batched(
                    || events(&mut next),
                    |events| {
                        for event in events {
                            fifo.push(event);
                        }
                        while let Some(deltas) = fifo.pop() {
                            black_box(deltas);
                            fifo.processed();
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.throughput(Throughput::Elements(KEYS as u64));
        group.sample_size(10);
        group.bench_function("relist of 100,000 unchanged", |b| {
            let mut fifo = DeltaFifo::new(order, known.iter().cloned(), true);
            b.iter_batched(
                || known.clone(),
                |items| {
                    fifo.push(Event::Replace { items, spared: Vec::new(), resource_version: "9".into() });
                    black_box(fifo.pop());
                },
                BatchSize::LargeInput,
            );
        });
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);
