//! What rules cost where changes are routed: a hundred readers of one journal, each with a rule of its own, are told of
//! 20,000 updates of pods of 9 KB, 64 at a time, as a watch brings them. The state before is packed, as a cache keeps it.
//!
//! A row is one such run; its figure is the time that reading takes, divided by the rules and by the events. That of readers
//! without a rule is in it, and has a row. `--sample-size 10` or less makes one run of each row in place of three.

#[path = "support/process.rs"]
#[expect(dead_code, reason = "other benches start processes")]
mod process;

use std::{
    env,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use deltabus::{
    indexer::{Cause, Change, store::Reached},
    journal::{
        Bounds, ChangeSet, Filter, Interest, Journal, ReaderId, ReaderOptions, RecordFilter, Start, TypeNumber, UnitId,
        UnitInterest, UnitTerms,
    },
    object::{
        FieldPath,
        packer::{Compression, Packer},
        scan::{ScanPlan, TypeMeta, scan_object},
    },
    rules::{Rules, RulesOptions},
    simulator::{diverse_pod, realistic_pod},
};
use jiff::Timestamp;

/// Divides the work of a debug build, which only shows that the bench runs: its figures mean nothing.
const SMOKE: usize = if cfg!(debug_assertions) { 1_000 } else { 1 };
const EVENTS: usize = 20_000 / SMOKE;
const RULES: usize = 100;
/// Changes that are appended together.
const BATCH: usize = 64;
const UNIT: UnitId = UnitId(0);

/// Templates of rules, taken in turn; `{n}` is another number in each rule. None of them matches: what matches is read on.
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
    Row { name: "**metadata alone**", changed: &[], when: METADATA, diverse: false },
    Row { name: "**metadata alone**, diverse pods", changed: &[], when: METADATA, diverse: true },
    Row { name: "**spec or status**", changed: &[], when: SPEC_OR_STATUS, diverse: false },
    Row { name: "**spec or status**, diverse pods", changed: &[], when: SPEC_OR_STATUS, diverse: true },
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

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") || !process::is_asked_for("rules", &args) {
        return;
    }
    let runs = if process::sample_size(&args).is_some_and(|size| size <= 10) { 1 } else { 3 };
    println!("rules: {RULES} rules, {EVENTS} updates of pods of 9 KB; median of {runs}");
    println!("| each rule reads | µs a rule and event |\n|---|---|");
    let alike = updates(realistic_pod);
    let diverse = updates(|number| diverse_pod(7, number));
    for row in ROWS {
        let updates = if row.diverse { &diverse } else { &alike };
        let mut spent: Vec<_> = (0..runs).map(|_| route(&row, updates)).collect();
        spent.sort_unstable();
        println!("| {} | {:.2} |", row.name, micros(spent[runs / 2]) / micros_of(EVENTS * RULES));
    }
}

/// Makes updates of pods, nothing of them dropped.
fn updates(pod: impl Fn(usize) -> String) -> Vec<Change> {
    let plan = ScanPlan::new(&[], Some(TypeMeta::new("v1", "Pod")));
    let packer = Packer::new(Compression::Zstd);
    let update = |number| {
        let json = pod(number);
        let object = |json: &str| scan_object(json.as_bytes(), &plan).expect("a pod");
        let old = object(&json);
        packer.look_at([&old].into_iter());
        let object = object(&json.replacen("Running", "Failed", 1));
        Change::Updated { old: packer.pack(&old), object, cause: Cause::Watch }
    };
    (0..EVENTS).map(update).collect()
}

/// Tells readers with such rules of all updates; returns how long they read.
fn route(row: &Row, updates: &[Change]) -> Duration {
    let journal = Journal::in_memory();
    journal.add_unit(UNIT, UnitTerms { resource: TypeNumber(0), late: false, cached: true });
    let readers: Vec<_> = (0..RULES).map(|number| reader(&journal, row, number)).collect();
    let mut spent = Duration::ZERO;
    for batch in updates.chunks(BATCH) {
        let ticket =
            journal.append(UNIT, 0, batch, &Reached::default(), Timestamp::UNIX_EPOCH).expect("it is in memory");
        journal.release(ticket);
        let begin = now();
        for reader in &readers {
            let read = black_box(journal.read(*reader, BATCH, usize::MAX));
            assert_eq!(
                read.is_empty(),
                !row.changed.is_empty() || !row.when.is_empty(),
                "{}: a rule is wrong",
                row.name
            );
            if let Some(last) = read.last() {
                journal.ack(*reader, last.sequence);
            }
        }
        spent += begin.elapsed();
    }
    for reader in readers {
        assert_eq!(journal.last_filter_error(reader), None, "{}", row.name);
    }
    spent
}

/// Opens a reader as the lane of a handler with such a rule is one.
fn reader(journal: &Journal, row: &Row, number: usize) -> ReaderId {
    let changed = row.changed.iter().map(|path| FieldPath::parse(path).expect("a constant path")).collect();
    let template = row.when.get(number % row.when.len().max(1));
    let when = template.map(|template| template.replace("{n}", &number.to_string()));
    let rules = Rules::compile(RulesOptions { changed, when, cluster: "bench".to_owned(), ..RulesOptions::default() })
        .expect("a rule");
    let filter = (!rules.is_empty()).then(|| RecordFilter::new(Arc::new(rules) as Arc<dyn Filter>));
    let units = [(UNIT, UnitInterest { joins: false, resync_every: 0 })].into();
    let interest = Interest { changes: ChangeSet::ALL, filter, units };
    let options = ReaderOptions { bounds: Bounds::default(), interest, name: None };
    journal.open_reader(Start::Next, options).expect("a reader")
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "it is small")]
fn micros_of(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::disallowed_methods, reason = "a bench measures")]
fn now() -> Instant {
    Instant::now()
}
