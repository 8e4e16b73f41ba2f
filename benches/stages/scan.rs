//! The scan: find, cut and copy a pod of 9 KB, of which two fifths are `managedFields`, and a custom resource of 2 KB.
//!
//! `serde_json` does only two thirds of the work: it finds the identity in a borrowed struct, without cutting and copying.

use std::{borrow::Cow, hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput};
use deltabus::internals::{
    bench::{Generator, Shape},
    list_watch::decode::{ListDecoder, WatchDecoder},
    object::{
        FieldPath,
        scan::{ScanPlan, TypeMeta, scan_object},
    },
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "read by nobody, but written")]
struct Borrowed<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "read by nobody, but written")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
}

fn plan() -> ScanPlan {
    let paths = ["metadata.managedFields", "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']"];
    let drop = paths.map(|path| FieldPath::parse(path).expect("a constant path"));
    ScanPlan::new(&drop, Some(TypeMeta::new("v1", "Pod")))
}

/// Returns the JSON of an object.
fn json(shape: Shape) -> String {
    String::from_utf8(Generator::new(shape, 100, 1).object(7, 0)).expect("JSON is UTF-8")
}

pub(crate) fn benches(c: &mut Criterion) {
    objects(c);
    streams(c);
}

fn objects(c: &mut Criterion) {
    for (name, shape) in [("pod", Shape::Pods), ("custom resource", Shape::Custom)] {
        let pod = json(shape);
        let mut group = c.benchmark_group(format!("scan/{name}"));
        group.throughput(Throughput::Bytes(pod.len() as u64));
        let (cut, whole) = (plan(), ScanPlan::default());
        group.bench_function("scan, cut, copy", |b| {
            b.iter(|| scan_object(black_box(pod.as_bytes()), &cut).expect("a pod"));
        });
        let mut noting = cut.clone();
        noting.notes_who_changed = true;
        group.bench_function("scan, cut, copy, who changed it", |b| {
            b.iter(|| scan_object(black_box(pod.as_bytes()), &noting).expect("a pod"));
        });
        group.bench_function("scan, copy", |b| {
            b.iter(|| scan_object(black_box(pod.as_bytes()), &whole).expect("a pod"));
        });
        group.bench_function("copy alone", |b| b.iter(|| black_box(pod.as_bytes()).to_vec()));
        group.bench_function("utf-8 alone", |b| b.iter(|| std::str::from_utf8(black_box(pod.as_bytes())).is_ok()));
        group.bench_function("serde_json, borrowed identity", |b| {
            b.iter(|| serde_json::from_slice::<Borrowed<'_>>(black_box(pod.as_bytes())).expect("a pod"));
        });
        group.bench_function("serde_json, Value", |b| {
            b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(pod.as_bytes())).expect("a pod"));
        });
        let object = scan_object(pod.as_bytes(), &cut).expect("a pod");
        let path = FieldPath::parse("spec.nodeName").expect("a constant path");
        group.bench_function("pluck spec.nodeName", |b| b.iter(|| black_box(&object).pluck(&path)));
        group.bench_function("labels", |b| b.iter(|| black_box(&object).labels().len()));
        group.finish();
    }
}

fn streams(c: &mut Criterion) {
    const PODS: usize = 100;
    let pod = json(Shape::Pods);
    let stream = format!("{{\"type\":\"MODIFIED\",\"object\":{pod}}}\n").repeat(PODS);
    let list = format!("{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"items\":[{}]}}", vec![&*pod; PODS].join(","));
    let (served, plan) = (TypeMeta::new("v1", "Pod"), Arc::new(plan()));
    let mut group = c.benchmark_group("scan/100 pods");
    group.throughput(Throughput::Elements(PODS as u64));
    for chunk in [16 << 10, 128 << 10] {
        group.bench_function(format!("watch in chunks of {} KiB", chunk >> 10), |b| {
            b.iter(|| {
                let mut decoder = WatchDecoder::new(served.clone(), Arc::clone(&plan), 1 << 24);
                let mut events = Vec::new();
                stream.as_bytes().chunks(chunk).for_each(|c| decoder.push(c, &mut events).expect("a stream"));
                assert_eq!(events.len(), PODS);
            });
        });
        group.bench_function(format!("list in chunks of {} KiB", chunk >> 10), |b| {
            b.iter(|| {
                let mut decoder = ListDecoder::new(served.clone(), Arc::clone(&plan), 1 << 24);
                list.as_bytes().chunks(chunk).for_each(|c| decoder.push(c).expect("a list"));
                assert_eq!(decoder.finish().expect("a list").items.len(), PODS);
            });
        });
    }
    group.finish();
}
