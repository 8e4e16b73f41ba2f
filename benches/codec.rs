//! What it costs to pack a body and to unpack it, and what is left of it: by zstd and by lz4, with a dictionary of its type
//! and without. It prints a table of its own behind criterion's figures.

use std::{
    env,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use deltabus::{
    object::{
        FieldPath, Object,
        codec::{self, Codec, Dictionary},
        scan::{ScanPlan, TypeMeta, scan_object},
    },
    simulator::{diverse_pod, realistic_pod},
};

/// Pods that are packed, beside those that the dictionary is made of.
const PODS: usize = 1_000;
/// Pods that the dictionary is made of, at most.
const SAMPLES: usize = 24;

/// Makes the JSON of a pod.
type Make = fn(usize) -> String;

fn pods(make: impl Fn(usize) -> String, numbers: impl Iterator<Item = usize>) -> Vec<Object> {
    let drop = [FieldPath::parse("metadata.managedFields").expect("a constant path")];
    let plan = ScanPlan::new(&drop, Some(TypeMeta::new("v1", "Pod")));
    numbers.map(|n| scan_object(make(n).as_bytes(), &plan).expect("a pod")).collect()
}

/// Microseconds a pod of the fastest of some rounds over all.
#[expect(clippy::disallowed_methods, clippy::cast_precision_loss, reason = "what takes so long is what is measured")]
fn micros_a_pod(mut round: impl FnMut() -> usize) -> f64 {
    let rounds = if env::args().any(|arg| arg == "--test") { 1 } else { 15 };
    let took = (0..rounds).map(|_| {
        let began = Instant::now();
        black_box(round());
        began.elapsed()
    });
    took.min().as_ref().map_or(0.0, Duration::as_secs_f64) * 1e6 / PODS as f64
}

fn bodies(c: &mut Criterion) {
    let mut table = String::from("| pods, how | bytes | of | pack µs | unpack µs |\n|---|---|---|---|---|\n");
    let kinds: [(&str, Make); 2] = [("one shape", realistic_pod), ("diverse", |n| diverse_pod(7, n))];
    for (kind, make) in kinds {
        let samples = pods(make, (0..SAMPLES).map(|n| 2 * PODS + n * 37));
        let samples: Vec<_> = samples.iter().map(Object::json).collect();
        let dictionary = Dictionary::choose(&samples).and_then(|bytes| Dictionary::new(1, &bytes)).map(Arc::new);
        let pods = pods(make, 0..PODS);
        let bytes: usize = pods.iter().map(Object::json_bytes).sum();
        let ways = [
            ("zstd with a dictionary", Codec::Zstd, dictionary.clone()),
            ("zstd without", Codec::Zstd, None),
            ("lz4 with a dictionary", Codec::Lz4, dictionary),
            ("lz4 without", Codec::Lz4, None),
        ];
        for (how, codec, dictionary) in ways {
            let pack = |pod: &Object| codec::with_packed(&pod.json(), codec, dictionary.as_deref(), <[u8]>::to_vec);
            let packed: Vec<_> = pods.iter().map(pack).collect();
            let left: usize = packed.iter().map(Vec::len).sum();
            let objects: Vec<Object> = pods
                .iter()
                .zip(&packed)
                .map(|(pod, body)| codec::of_packed(pod.identity(), body, pod.json_bytes(), codec, dictionary.clone()))
                .map(|object| object.expect("a body"))
                .collect();
            let pack_all = || pods.iter().map(|pod| pack(black_box(pod)).len()).sum::<usize>();
            let unpack_all = || objects.iter().map(|pod| pod.json().len()).sum::<usize>();
            let (packing, unpacking) = (micros_a_pod(pack_all), micros_a_pod(unpack_all));
            let (left, of) = (left / PODS, bytes / PODS);
            table.extend([format!("| {kind}, {how} | {left} | {of} | {packing:.1} | {unpacking:.1} |\n")]);
            let mut group = c.benchmark_group(format!("bodies of {kind}, {how}"));
            group.throughput(Throughput::Elements(PODS as u64));
            group.bench_function("pack", |b| b.iter(pack_all));
            group.bench_function("unpack", |b| b.iter(unpack_all));
            group.finish();
        }
    }
    c.bench_function("make a dictionary of 24 pods", |b| {
        let samples = pods(|n| diverse_pod(7, n), 0..SAMPLES);
        let samples: Vec<_> = samples.iter().map(Object::json).collect();
        b.iter(|| Dictionary::choose(black_box(&samples)).map(|bytes| Dictionary::new(1, &bytes)));
    });
    println!("{table}");
}

criterion_group!(benches, bodies);
criterion_main!(benches);
