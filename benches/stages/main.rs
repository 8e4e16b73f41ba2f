//! Micro benches of the stages, by criterion. `cargo bench --bench stages -- indexer` runs those of one stage.

mod cloud_event;
mod codec;
mod delta_fifo;
mod indexer;
mod journal;
mod rules;
mod scan;
mod store;
mod work_queue;

use criterion::{criterion_group, criterion_main};
use deltabus::internals::{
    bench::{Generator, Shape},
    object::{
        FieldPath, Object,
        scan::{ScanPlan, TypeMeta, scan_object},
    },
};

/// Divisor of the work in a debug build, which only shows that a bench runs.
const SMOKE: usize = if cfg!(debug_assertions) { 100 } else { 1 };

/// Returns the plan for pods without `metadata.managedFields`, the default of a configuration.
fn plan() -> ScanPlan {
    let drop = [FieldPath::parse("metadata.managedFields").expect("a constant path")];
    ScanPlan::new(&drop, Some(TypeMeta::new("v1", "Pod")))
}

/// Generator of pods of 9 KB, without `managedFields`.
struct Pods {
    generator: Generator,
    plan: ScanPlan,
}

impl Pods {
    fn new(shape: Shape) -> Self {
        Self { generator: Generator::new(shape, 1_000_000, 7), plan: plan() }
    }

    /// Returns a pod after its `change`-th change.
    fn pod(&self, number: usize, change: usize) -> Object {
        scan_object(&self.generator.object(number as u64, change as u64), &self.plan).expect("a pod")
    }
}

/// Returns a pod of 0.2 KB: its identity and a label.
fn small_pod(namespaces: usize, number: usize, version: usize) -> Object {
    let (namespace, app) = (number % namespaces, number % 10);
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns-{namespace}","name":"pod-{number}","uid":"uid-{number}","resourceVersion":"{version}","labels":{{"app":"a{app}"}}}}}}"#
    );
    Object::from_json(json.as_bytes()).expect("it is an object")
}

criterion_group!(
    benches,
    scan::benches,
    codec::benches,
    delta_fifo::benches,
    indexer::benches,
    journal::benches,
    rules::benches,
    store::benches,
    work_queue::benches,
    cloud_event::benches,
);
criterion_main!(benches);
