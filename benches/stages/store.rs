//! The store on disk: append, read back, open. Pods of 9 KB with individual values, without `managedFields`.

use std::{cell::LazyCell, hint::black_box};

use criterion::{BatchSize, Criterion, Throughput};
use deltabus::internals::{
    bench::Shape,
    change::{Cause, Change},
    journal::{
        Sequence, UnitId,
        store::{Append, Store},
    },
};
use tempfile::TempDir;

use crate::{Pods, SMOKE};

const PODS: usize = 200_000 / SMOKE;
const BATCH: usize = 64;
const UNIT: UnitId = UnitId(1);

/// A store with all pods, and a backlog of as many updates.
struct Filled {
    pods: Pods,
    dir: TempDir,
}

impl Filled {
    fn new() -> Self {
        let here = std::env::current_dir().expect("there is one"); // on a disk: /tmp may be in memory
        let filled = Self { pods: Pods::new(Shape::Diverse), dir: tempfile::tempdir_in(here).expect("there is room") };
        let (store, _) = filled.open();
        for first in (0..PODS).step_by(BATCH) {
            let pods = first..PODS.min(first + BATCH);
            let added = |n| Change::Added { object: filled.pods.pod(n, 0), cause: Cause::Initial };
            append(&store, first + 1, &pods.clone().map(added).collect::<Vec<_>>());
            append(&store, PODS + first + 1, &pods.map(|n| filled.updated(n, 1)).collect::<Vec<_>>());
        }
        store.close().expect("there is room");
        filled
    }

    fn open(&self) -> (Store, usize) {
        let (store, recovered) = Store::open(self.dir.path(), true).expect("a store");
        (store, usize::try_from(recovered.last.0).expect("a small number"))
    }

    fn updated(&self, pod: usize, change: usize) -> Change {
        let [old, object] = [change - 1, change].map(|change| self.pods.pod(pod, change));
        Change::Updated { old, object, cause: Cause::Watch }
    }
}

fn append(store: &Store, first: usize, changes: &[Change]) {
    let first = Sequence(first as u64);
    let append = Append { unit: UNIT, first, time_micros: 1, changes, only: None, reached: None };
    store.append(&append).expect("there is room");
}

pub(crate) fn benches(c: &mut Criterion) {
    let filled = LazyCell::new(Filled::new);
    let mut group = c.benchmark_group("store");
    group.sample_size(10);
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("append 64 updates of 6 KB", |b| {
        let (store, mut last) = filled.open();
        let mut change = 1;
        let updates = || {
            change += 1;
            (0..BATCH).map(|n| filled.updated(n * 31 % PODS, change)).collect::<Vec<_>>()
        };
        let append = |changes: Vec<_>| {
            append(&store, last + 1, &changes);
            last += BATCH;
            changes
        };
        b.iter_batched(updates, append, BatchSize::SmallInput);
    });
    group.throughput(Throughput::Elements(1_000));
    group.bench_function("load 1,000 records with the previous object", |b| {
        let (store, last) = filled.open();
        let some: Vec<u64> = (last - 999..=last).map(|sequence| sequence as u64).collect();
        b.iter(|| store.load(black_box(&some)).expect("they are kept").len());
    });
    group.bench_function("1,000 heads", |b| {
        let (store, last) = filled.open();
        b.iter(|| {
            let mut bytes = 0;
            store
                .heads(Sequence((last - 1_000) as u64), &mut |head| bytes += head.json_bytes())
                .expect("they are kept");
            bytes
        });
    });
    group.throughput(Throughput::Elements(PODS as u64));
    group.bench_function("read all objects", |b| {
        let (store, _) = filled.open();
        b.iter(|| {
            let mut bytes = 0;
            store.objects(UNIT, &mut |object| bytes += object.json().len()).expect("they are kept");
            bytes
        });
    });
    group.bench_function("open", |b| b.iter(|| filled.open().1));
    group.finish();
}
