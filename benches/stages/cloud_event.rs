//! Encoding of an event of a 6 KB object with its previous state, in each format.

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput};
use deltabus::internals::{
    bench::Shape,
    change::{Cause, Change},
    cloud_event::{DataFormat, Encoder, Formatter, template::Template},
    journal::{Record, Sequence, UnitId},
    notification::{Event, UnitInfo},
    object::Object,
};

fn pod(version: &str) -> Object {
    let filler = r#"{"name":"KEY","value":"a quoted \"value\" of some length"},"#.repeat(100);
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-1","namespace":"default","uid":"5f1c0e62","resourceVersion":"{version}"}},"spec":{{"env":[{}]}}}}"#,
        filler.trim_end_matches(',')
    );
    Object::from_json(json.as_bytes()).expect("a pod")
}

pub(crate) fn benches(criterion: &mut Criterion) {
    let unit = Arc::new(UnitInfo { entry: "pods".into(), resource: Shape::Pods.resource(), namespace: None });
    let change = Change::Updated { old: pod("48210"), object: pod("48211"), cause: Cause::Watch };
    let record = Record {
        sequence: Sequence(12345),
        unit: UnitId(0),
        time_micros: 1_795_243_203_123_456,
        change,
        old_lost: false,
    };
    let mut event = Event { unit, record };
    let encoder = Encoder::new("prod-eu1", "9f2c41d07b6e");
    let mut out = Vec::new();
    encoder.encode(&mut out, &event);
    let mut group = criterion.benchmark_group("cloud_event");
    group.throughput(Throughput::Bytes(out.len() as u64));
    group.bench_function("update_6k_with_old", |bencher| {
        bencher.iter(|| {
            out.clear();
            encoder.encode(&mut out, black_box(&event));
            out.len()
        });
    });
    let template = Template::compile("{{ object.metadata.name }}: {{ changes | tojson }}").expect("a template");
    let of = |format| Formatter::new(encoder.clone(), format);
    for (name, formatter) in [
        ("object", of(DataFormat::Object)),
        ("patch", of(DataFormat::Patch)),
        ("merge_patch", of(DataFormat::MergePatch)),
        ("diff", of(DataFormat::Diff)),
        ("template", Formatter::of_template(encoder.clone(), template)),
    ] {
        group.bench_function(format!("update_6k_as_{name}"), |bencher| {
            bencher.iter(|| {
                event.record.sequence.0 += 1; // a new event, so that nothing computed before is reused
                out.clear();
                formatter.line(&mut out, black_box(&event)).expect("it can be written");
                out.len()
            });
        });
    }
    group.finish();
}
