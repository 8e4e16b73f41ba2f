//! What an event costs in the indexer, plan to publish, and what reads cost.

use std::{hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use deltabus::{
    delta_fifo::{Delta, DeltaKind, Deltas},
    indexer::{
        Indexer, IndexerOptions,
        store::{EvmapStore, IndexStore},
    },
    lister::{LabelSelector, Lister, Selector},
    object::{KeyRef, Object, ResourceType},
};

const KEYS: usize = 100_000;

fn object(namespaces: usize, n: usize, version: usize) -> Object {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns-{}","name":"pod-{n}","uid":"uid-{n}","resourceVersion":"{version}","labels":{{"app":"a{}"}}}}}}"#,
        n % namespaces,
        n % 10
    );
    Object::from_json(json.as_bytes()).expect("it is an object")
}

fn batch(kind: DeltaKind, objects: impl Iterator<Item = Object>) -> Deltas {
    Deltas { deltas: objects.map(|object| Delta { kind, object }).collect(), ..Deltas::default() }
}

fn apply(indexer: &mut Indexer, deltas: Deltas) {
    let transaction = indexer.plan(deltas);
    indexer.commit(&transaction);
    indexer.publish(0);
    black_box(transaction);
}

fn filled(namespaces: usize) -> Indexer {
    let mut indexer = Indexer::new(EvmapStore::new(1, []), IndexerOptions::default());
    apply(&mut indexer, batch(DeltaKind::Replaced, (0..KEYS).map(|n| object(namespaces, n, 1))));
    indexer.publish_idle();
    indexer
}

fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("indexer/write");
    for len in [1, 64, 1024] {
        let mut indexer = filled(100);
        let mut next = 0;
        let mut updates = || {
            let deltas =
                batch(DeltaKind::Updated, (0..len).map(|n| object(100, (next + n) * 7919 % KEYS, next + n + 2)));
            next += len;
            deltas
        };
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function(format!("batch of {len} updates"), |b| {
            b.iter_batched(&mut updates, |deltas| apply(&mut indexer, deltas), BatchSize::SmallInput);
        });
    }
    let mut indexer = filled(1);
    let mut next = 0;
    let mut turn = || {
        next += 1;
        let kind = if next % 2 == 0 { DeltaKind::Added } else { DeltaKind::Deleted };
        batch(kind, std::iter::once(object(1, next / 2 * 7919 % KEYS, next)))
    };
    group.throughput(Throughput::Elements(1));
    group.bench_function("one addition or deletion in a namespace of 100,000", |b| {
        b.iter_batched(&mut turn, |deltas| apply(&mut indexer, deltas), BatchSize::SmallInput);
    });
    group.finish();
}

fn reads(c: &mut Criterion) {
    let indexer = filled(1_000);
    let resource = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Pod".into(),
        plural: "pods".into(),
        namespaced: true,
    };
    let lister = Lister::new(indexer.store().reader(), Arc::new(resource));
    let mut group = c.benchmark_group("indexer/read");
    let keys: Vec<Object> = (0..KEYS).map(|n| object(1_000, n * 7919 % KEYS, 1)).collect();
    let mut next = 0;
    group.bench_function("by key", |b| {
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
    group.bench_function("list of 100,000", |b| b.iter(|| lister.list(&Selector::all())));
    group.finish();
}

/// Prints what the process holds beside the bodies of 100,000 objects, with the index of namespaces.
fn memory(_: &mut Criterion) {
    let resident = || -> Option<usize> {
        let pages = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse::<usize>().ok()?;
        Some(pages * 4096)
    };
    let objects: Vec<Object> = (0..KEYS).map(|n| object(100, n, 1)).collect();
    let before = resident();
    let mut indexer = Indexer::new(EvmapStore::new(1, []), IndexerOptions::default());
    for piece in objects.chunks(1_000) {
        apply(&mut indexer, batch(DeltaKind::Added, piece.iter().cloned()));
    }
    indexer.publish_idle();
    if let (Some(before), Some(after)) = (before, resident()) {
        println!("indexer/memory: {} bytes an object beside its body", after.saturating_sub(before) / KEYS);
    }
    let before = resident();
    let fifo = deltabus::delta_fifo::DeltaFifo::new(<_>::default(), objects.iter().cloned(), true);
    if let (Some(before), Some(after)) = (before, resident()) {
        println!("delta_fifo/memory: {} bytes an object known", after.saturating_sub(before) / fifo.known_len());
    }
}

criterion_group!(benches, memory, writes, reads);
criterion_main!(benches);
