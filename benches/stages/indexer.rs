//! The indexer: an event from plan to publish, and reads.

use std::{cell::LazyCell, hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, Throughput};
use deltabus::internals::{
    bench::Shape,
    delta_fifo::{Delta, DeltaKind, Deltas},
    indexer::{Indexer, IndexerOptions, store::EvmapStore},
    lister::{LabelSelector, Lister, Selector},
    object::{KeyRef, Object},
};

use crate::{SMOKE, small_pod};

const KEYS: usize = 100_000 / SMOKE;

fn batch(kind: DeltaKind, objects: impl Iterator<Item = Object>) -> Deltas {
    Deltas { deltas: objects.map(|object| Delta { kind, object }).collect(), ..Deltas::default() }
}

fn apply(indexer: &mut Indexer, deltas: Deltas) {
    let transaction = indexer.plan(deltas);
    indexer.commit(&transaction);
    indexer.publish();
    black_box(transaction);
}

fn filled(namespaces: usize) -> Indexer {
    let mut indexer = Indexer::new(EvmapStore::new(1, []), IndexerOptions::default());
    apply(&mut indexer, batch(DeltaKind::Replaced, (0..KEYS).map(|n| small_pod(namespaces, n, 1))));
    indexer.publish_idle();
    indexer
}

pub(crate) fn benches(c: &mut Criterion) {
    writes(c);
    reads(c);
}

fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("indexer/write");
    for len in [1, 64, 1024] {
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function(format!("batch of {len} updates"), |b| {
            let (mut indexer, mut next) = (filled(100), 0);
            let updates = || {
                next += len;
                batch(DeltaKind::Updated, (next..next + len).map(|n| small_pod(100, n * 7919 % KEYS, n + 2)))
            };
            b.iter_batched(updates, |deltas| apply(&mut indexer, deltas), BatchSize::SmallInput);
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("one addition or deletion in a large namespace", |b| {
        let (mut indexer, mut next) = (filled(1), 0);
        let turn = || {
            next += 1;
            let kind = if next % 2 == 0 { DeltaKind::Added } else { DeltaKind::Deleted };
            batch(kind, std::iter::once(small_pod(1, next / 2 * 7919 % KEYS, next)))
        };
        b.iter_batched(turn, |deltas| apply(&mut indexer, deltas), BatchSize::SmallInput);
    });
    group.finish();
}

fn reads(c: &mut Criterion) {
    let namespaces = 1_000 / SMOKE;
    let indexer = LazyCell::new(|| filled(namespaces));
    let lister = LazyCell::new(|| Lister::new(indexer.store().reader(), Arc::new(Shape::Pods.resource())));
    let mut group = c.benchmark_group("indexer/read");
    group.bench_function("by key", |b| {
        let keys: Vec<Object> = (0..KEYS).map(|n| small_pod(namespaces, n * 7919 % KEYS, 1)).collect();
        let mut next = 0;
        b.iter(|| {
            next = (next + 1) % KEYS;
            let KeyRef { namespace, name } = keys[next].key();
            lister.get(KeyRef { namespace, name }).expect("it is there")
        });
    });
    group.bench_function("by index, 100 objects", |b| b.iter(|| lister.by_index("namespace", "ns-7")));
    let selector = Selector::from(LabelSelector::parse("app=a7").expect("a selector"));
    group
        .bench_function("by namespace and label, 100 objects", |b| b.iter(|| lister.namespace("ns-7").list(&selector)));
    group.sample_size(20);
    group.bench_function("list of all", |b| b.iter(|| lister.list(&Selector::all())));
    group.finish();
}
