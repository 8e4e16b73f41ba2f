//! What the store on disk costs: an append of 64 events, reading back, opening, bytes written, memory.
//!
//! Pods of 9.3 KB, `managedFields` cut, with values of their own. The report before criterion's figures counts all
//! threads of the process, those of the store that flush and compact too, and what the system wrote for it.

#[path = "support/measure.rs"]
mod measure;

use std::{
    error::Error,
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, Throughput};
use deltabus::{
    bench::measure::written,
    indexer::{Cause, Change},
    journal::{
        Sequence, UnitId,
        store::{Append, Store, StoreOptions},
    },
    object::{
        FieldPath, Object,
        scan::{ScanPlan, TypeMeta, scan_object},
    },
    simulator::{diverse_pod, realistic_pod},
};

/// Divides the work of a debug build, which only shows that the bench runs: its figures mean nothing.
const SMOKE: usize = if cfg!(debug_assertions) { 100 } else { 1 };
const PODS: usize = 200_000 / SMOKE;
const BATCH: usize = 64;
/// Updates of the report, and how many records behind them are kept.
const UPDATES: usize = 200_000 / SMOKE;
const KEPT: u64 = 50_000 / SMOKE as u64;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Makes pods of one kind or of many.
struct Pods {
    plan: ScanPlan,
    diverse: bool,
}

impl Pods {
    fn new(diverse: bool) -> Self {
        let drop = [FieldPath::parse("metadata.managedFields").expect("a constant path")];
        Self { plan: ScanPlan::new(&drop, Some(TypeMeta::new("v1", "Pod"))), diverse }
    }

    /// Returns pod `n` in a version, and the bytes that the server sent.
    fn make(&self, n: usize, version: usize) -> (Object, usize) {
        let text = if self.diverse { diverse_pod(7, n) } else { realistic_pod(n) };
        let sent = format!(r#""resourceVersion":"{}""#, 1000 + n);
        let text = text.replace(&sent, &format!(r#""resourceVersion":"{}""#, 1000 + n + version));
        (scan_object(text.as_bytes(), &self.plan).expect("a pod"), text.len())
    }

    fn added(&self, n: usize) -> (Change, usize) {
        let (object, sent) = self.make(n, 0);
        (Change::Added { object, cause: Cause::Initial }, sent)
    }

    fn updated(&self, n: usize, version: usize) -> (Change, usize) {
        let (object, sent) = self.make(n, version);
        (Change::Updated { old: self.make(n, version - 1).0, object, cause: Cause::Watch }, sent)
    }
}

fn append(store: &Store, first: u64, changes: &[Change]) -> Outcome<()> {
    let append = Append { unit: UnitId(1), first: Sequence(first), time_micros: 1, changes, only: None, reached: None };
    Ok(store.append(&append)?)
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}

/// What one event cost.
struct Cost {
    cpu: Duration,
    written: u64,
    /// Bytes of JSON that the server sent for it.
    sent: u64,
}

/// Appends what `change` makes, 64 at a time, synced every tenth batch; pods are made outside of what is measured.
fn run(store: &Store, first: u64, count: usize, change: impl Fn(usize) -> (Change, usize)) -> Outcome<Cost> {
    let (mut cpu, mut bytes, mut sent) = (Duration::ZERO, 0, 0);
    let mut at = 0;
    while at < count {
        let chunk: Vec<(Change, usize)> = (at..count.min(at + 80 * BATCH)).map(&change).collect();
        sent += chunk.iter().map(|(_, sent)| sent).sum::<usize>();
        let changes: Vec<Change> = chunk.into_iter().map(|(change, _)| change).collect();
        let (cpu_before, bytes_before) = (measure::cpu(), written());
        for (n, batch) in changes.chunks(BATCH).enumerate() {
            append(store, first + (at + n * BATCH) as u64, batch)?;
            if n % 10 == 9 {
                store.sync()?;
            }
        }
        let last = first + (at + changes.len()) as u64;
        while store.retain(Sequence(last.saturating_sub(KEPT)))?.more {}
        cpu += measure::cpu().saturating_sub(cpu_before);
        bytes += written() - bytes_before;
        at += changes.len();
    }
    let events = count as u64;
    Ok(Cost { cpu: cpu / u32::try_from(count)?, written: bytes / events, sent: sent as u64 / events })
}

fn report(dir: &Path, diverse: bool) -> Outcome<()> {
    let pods = Pods::new(diverse);
    let what = if diverse { "diverse pods" } else { "pods of one shape" };
    let before = measure::resident();
    let (store, _) = Store::open(dir, &StoreOptions::default())?;
    let tell = |step: &str, cost: &Cost| {
        println!(
            "{what}, {step}: {:?} CPU, {} bytes written ({} % of {} of JSON) an event; {} MB on disk, {} MB of memory more",
            cost.cpu,
            cost.written,
            cost.written * 100 / cost.sent,
            cost.sent,
            store.disk_bytes() >> 20,
            measure::resident().saturating_sub(before) >> 20
        );
    };
    tell("first list", &run(&store, 1, PODS, |n| pods.added(n))?);
    let update = |round: usize| move |n: usize| ((n * 7919) % PODS, round, n);
    for round in 1..=2 {
        let pick = update(round);
        let change = |n: usize| {
            let (pod, round, _) = pick(n);
            pods.updated(pod, round)
        };
        let first = (PODS + (round - 1) * UPDATES + 1) as u64;
        tell("updates", &run(&store, first, UPDATES, change)?);
    }
    let started = now();
    store.close()?;
    println!("{what}, close: {:?}", started.elapsed());
    let started = now();
    let (store, recovered) = Store::open(dir, &StoreOptions::default())?;
    println!("{what}, open: {:?}", started.elapsed());
    let started = now();
    let mut objects = 0;
    store.objects(UnitId(1), &mut |object| objects += usize::from(object.json().len() > 1))?;
    println!("{what}, read back {objects} objects: {:?}", started.elapsed());
    let started = now();
    let mut heads = 0;
    store.heads(Sequence(0), &mut |_| heads += 1)?;
    println!("{what}, {heads} heads: {:?}", started.elapsed());
    let started = now();
    let all: Vec<u64> = (recovered.first.0..=recovered.last.0).collect();
    let loaded: usize = all.chunks(1000).map(|some| store.load(some).map_or(0, |records| records.len())).sum();
    println!("{what}, load {loaded} records with old: {:?}", started.elapsed());
    Ok(())
}

fn criterion_figures(c: &mut Criterion, dir: &Path) -> Outcome<()> {
    let pods = Pods::new(true);
    let (store, recovered) = Store::open(dir, &StoreOptions::default())?;
    let mut group = c.benchmark_group("store");
    group.sample_size(20);
    let mut next = recovered.last.0 + 1;
    let mut version = 10;
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("append 64 updates of 6 KB", |b| {
        let make = || {
            version += 1;
            (0..BATCH).map(|n| pods.updated(n * 31 % PODS, version).0).collect::<Vec<_>>()
        };
        b.iter_batched(
            make,
            |changes| {
                append(&store, next, &changes).expect("there is room");
                next += BATCH as u64;
                changes
            },
            BatchSize::SmallInput,
        );
    });
    let some: Vec<u64> = (recovered.last.0 - 999..=recovered.last.0).collect();
    group.throughput(Throughput::Elements(some.len() as u64));
    group.bench_function("load 1000 records with old", |b| {
        b.iter(|| store.load(black_box(&some)).expect("they are kept").len());
    });
    group.bench_function("1000 heads", |b| {
        let after = Sequence(next - 1001);
        b.iter(|| {
            let mut bytes = 0;
            store.heads(after, &mut |head| bytes += head.json_bytes).expect("they are kept");
            bytes
        });
    });
    drop(store);
    group.sample_size(10);
    group.bench_function("open with 200,000 objects", |b| {
        b.iter(|| Store::open(dir, &StoreOptions::default()).expect("a store").1.last);
    });
    group.finish();
    Ok(())
}

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    report(&dir.path().join("alike"), false)?;
    report(&dir.path().join("diverse"), true)?;
    let mut criterion = Criterion::default().configure_from_args();
    criterion_figures(&mut criterion, &dir.path().join("diverse"))?;
    criterion.final_summary();
    Ok(())
}
