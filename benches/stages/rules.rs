//! Rules at the routing of changes: a hundred readers of one journal, each with its own rule, read a batch of updates of
//! pods of 9 KB. The previous state is packed, as in a cache.
//!
//! Only reading is timed. An element is one rule and one event.

use std::{
    cell::LazyCell,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput};
use deltabus::internals::{
    bench::Shape,
    change::{Cause, Change, Reached},
    journal::{
        Bounds, ChangeSet, Interest, Journal, ReaderFilter, ReaderId, ReaderOptions, RecordFilter, TypeNumber, UnitId,
        UnitInterest, UnitTerms,
    },
    object::{
        FieldPath,
        packer::{Compression, Packer},
    },
    rules::{Rules, RulesOptions},
};
use jiff::Timestamp;

use crate::Pods;

const RULES: usize = 100;
/// Number of changes per append.
const BATCH: usize = 64;
const BATCHES: usize = 16;
const UNIT: UnitId = UnitId(0);

/// Templates of rules, used in turn; `{n}` is a different number in each rule. No rule matches: a match would be read on.
struct Row {
    name: &'static str,
    /// Paths of `changed`.
    changed: &'static [&'static str],
    /// Templates of `when`.
    when: &'static [&'static str],
    diverse: bool,
}

const METADATA: &[&str] = &[
    "object.metadata.labels['app.kubernetes.io/name'] == 'app-{n}'",
    "object.metadata.namespace == 'ns-{n}' || object.metadata.name.startsWith('x{n}')",
    "object.metadata.namespace == 'ns-{n}' && object.kind == 'Pod'",
    "has(object.metadata.annotations) && 'example.com/{n}' in object.metadata.annotations",
    "object.metadata.ownerReferences.exists(o, o.name == 'set-{n}')",
    "has(object.metadata.deletionTimestamp) && type == 'updated' && object.metadata.name != '{n}'",
    "has(object.metadata.labels.tier) && object.metadata.labels.tier in ['a{n}', 'b{n}']",
    "object.metadata.creationTimestamp.startsWith('19{n}')",
];
const SPEC_OR_STATUS: &[&str] = &[
    "object.spec.nodeName == 'node-x{n}' || object.status.phase == 'x{n}'",
    "object.spec.containers.exists(c, c.image.matches('^registry-{n}/'))",
    "object.status.phase != old.status.phase && object.spec.nodeName == 'node-x{n}'",
    "object.status.containerStatuses.exists(c, c.restartCount > 1{n})",
    "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'x{n}')",
    "object.spec.priority == 1{n} && object.status.podIP == '{n}'",
    "object.spec.containers.map(c, c.image) != old.spec.containers.map(c, c.image) && cluster == '{n}'",
    "size(object.spec.volumes) > 1{n} || object.spec.serviceAccountName == 'x{n}'",
];

const ROWS: [Row; 12] = [
    Row { name: "no rule", changed: &[], when: &[], diverse: false },
    Row { name: "metadata alone", changed: &[], when: METADATA, diverse: false },
    Row { name: "metadata alone, diverse pods", changed: &[], when: METADATA, diverse: true },
    Row { name: "spec or status", changed: &[], when: SPEC_OR_STATUS, diverse: false },
    Row { name: "spec or status, diverse pods", changed: &[], when: SPEC_OR_STATUS, diverse: true },
    Row { name: "of these: namespace and name", changed: &[], when: &[METADATA[1]], diverse: false },
    Row { name: "of these: a label", changed: &[], when: &[METADATA[0]], diverse: false },
    Row {
        name: "of these: a field of each of spec and status",
        changed: &[],
        when: &[SPEC_OR_STATUS[0]],
        diverse: false,
    },
    Row { name: "of these: a list in spec", changed: &[], when: &[SPEC_OR_STATUS[1]], diverse: false },
    Row { name: "of these: old and object", changed: &[], when: &[SPEC_OR_STATUS[2]], diverse: false },
    Row { name: "`changed` of spec and labels", changed: &["spec", "metadata.labels"], when: &[], diverse: false },
    Row { name: "`changes`", changed: &[], when: &["'spec.x{n}' in changes"], diverse: false },
];

pub(crate) fn benches(c: &mut Criterion) {
    let [alike, diverse] = [Shape::Pods, Shape::Diverse].map(|shape| LazyCell::new(move || updates(shape)));
    let mut group = c.benchmark_group("rules");
    group.throughput(Throughput::Elements((RULES * BATCH) as u64)).sample_size(10);
    for row in ROWS {
        group.bench_function(row.name, |b| {
            let mut batches = if row.diverse { &diverse } else { &alike }.chunks(BATCH).cycle();
            let journal = Journal::in_memory();
            journal.add_unit(UNIT, UnitTerms { resource: TypeNumber(0), late: false, cached: true });
            let readers: Vec<_> = (0..RULES).map(|number| reader(&journal, &row, number)).collect();
            b.iter_custom(|batches_read| {
                let batches = batches.by_ref().take(usize::try_from(batches_read).expect("a few"));
                batches.map(|batch| read(&journal, &readers, &row, batch)).sum()
            });
            for reader in readers {
                assert_eq!(journal.last_filter_error(reader), None, "{}", row.name);
            }
        });
    }
    group.finish();
}

/// Generates updates of pods, with the old and the new state.
fn updates(shape: Shape) -> Vec<Change> {
    let (pods, packer) = (Pods::new(shape), Packer::new(Compression::Zstd));
    let update = |number| {
        let old = pods.pod(number, 0);
        packer.look_at([&old].into_iter());
        Change::Updated { old: packer.pack(&old), object: pods.pod(number, 1), cause: Cause::Watch }
    };
    (0..BATCH * BATCHES).map(update).collect()
}

/// Appends a batch; returns the time that all readers take to read it.
#[expect(clippy::disallowed_methods, reason = "a bench measures")]
fn read(journal: &Journal, readers: &[ReaderId], row: &Row, batch: &[Change]) -> Duration {
    let ticket =
        journal.append(UNIT.writer(0), batch, &Reached::default(), Timestamp::UNIX_EPOCH).expect("it is in memory");
    journal.release(ticket);
    let begin = Instant::now();
    for reader in readers {
        let read = black_box(journal.read(*reader, BATCH, usize::MAX));
        assert_eq!(read.is_empty(), !row.changed.is_empty() || !row.when.is_empty(), "{}: a rule is wrong", row.name);
        if let Some(last) = read.last() {
            journal.ack(*reader, last.sequence);
        }
    }
    begin.elapsed()
}

/// Opens a reader like that of a handler with such a rule.
fn reader(journal: &Journal, row: &Row, number: usize) -> ReaderId {
    let changed = row.changed.iter().map(|path| FieldPath::parse(path).expect("a constant path")).collect();
    let template = row.when.get(number % row.when.len().max(1));
    let when = template.map(|template| template.replace("{n}", &number.to_string()));
    let rules = Rules::compile(RulesOptions { changed, when, cluster: "bench".to_owned(), ..RulesOptions::default() })
        .expect("a rule");
    let filter = (!rules.is_empty()).then(|| RecordFilter::new(Arc::new(rules) as Arc<dyn ReaderFilter>));
    let units = [(UNIT, UnitInterest { attaches: false, resync_every: 0 })].into();
    let interest = Interest { changes: ChangeSet::ALL, filter, units };
    let options = ReaderOptions { bounds: Bounds::default(), interest, name: None };
    journal.open_reader(options).expect("a reader")
}
