//! Packing and unpacking of bodies: by zstd and by lz4, with and without a dictionary of their type.

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput};
use deltabus::internals::{
    bench::Shape,
    object::{
        Object,
        codec::{self, Compression, Dictionary},
    },
};

use crate::Pods;

/// Number of packed pods, in addition to the dictionary's samples.
const PODS: usize = 1_000;
/// Maximum number of pods in the dictionary.
const SAMPLES: usize = 24;

fn samples(pods: &Pods) -> Vec<Vec<u8>> {
    (0..SAMPLES).map(|n| pods.pod(2 * PODS + n * 37, 0).json().to_vec()).collect()
}

pub(crate) fn benches(c: &mut Criterion) {
    for (kind, shape) in [("one shape", Shape::Pods), ("diverse", Shape::Diverse)] {
        let make = Pods::new(shape);
        let dictionary = Dictionary::choose(&samples(&make)).and_then(|bytes| Dictionary::new(1, &bytes)).map(Arc::new);
        let pods: Vec<Object> = (0..PODS).map(|n| make.pod(n, 0)).collect();
        let bytes: usize = pods.iter().map(Object::json_bytes).sum();
        for (how, codec, dictionary) in [
            ("zstd with a dictionary", Compression::Zstd, dictionary.clone()),
            ("zstd without", Compression::Zstd, None),
            ("lz4 with a dictionary", Compression::Lz4, dictionary),
            ("lz4 without", Compression::Lz4, None),
        ] {
            let pack = |pod: &Object| codec::with_packed(&pod.json(), codec, dictionary.as_deref(), <[u8]>::to_vec);
            let packed: Vec<_> = pods.iter().map(pack).collect();
            let unpacked = |(pod, body): (&Object, &Vec<u8>)| {
                codec::of_packed(pod.identity(), body, pod.json_bytes(), codec, dictionary.clone()).expect("a body")
            };
            let objects: Vec<Object> = pods.iter().zip(&packed).map(unpacked).collect();
            let left = packed.iter().map(Vec::len).sum::<usize>() / PODS;
            let mut group = c.benchmark_group(format!("codec/{kind}, {how}, {left} of {} bytes", bytes / PODS));
            group.throughput(Throughput::Elements(PODS as u64));
            group.bench_function("pack", |b| {
                b.iter(|| pods.iter().map(|pod| pack(black_box(pod)).len()).sum::<usize>());
            });
            group.bench_function("unpack", |b| b.iter(|| objects.iter().map(|pod| pod.json().len()).sum::<usize>()));
            group.finish();
        }
    }
    c.bench_function("codec/make a dictionary of 24 pods", |b| {
        let samples = samples(&Pods::new(Shape::Diverse));
        b.iter(|| Dictionary::choose(black_box(&samples)).map(|bytes| Dictionary::new(1, &bytes)));
    });
}
