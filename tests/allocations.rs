//! Allocations of an event on its way from the socket's bytes to a reader of the journal, stage by stage.
//!
//! Unlike times, the counts are the same on every machine and under any load. Budgets are just above the measured counts.
//! A change that needs more raises the budget here, with a reason. `cargo test --test allocations -- --nocapture` prints
//! the table.

use std::{ops::Range, sync::Arc};

use deltabus::internals::{
    bench::{Generator, Shape},
    change::Reached,
    delta_fifo::{DeltaFifo, QueueOrder},
    indexer::{Indexer, IndexerOptions, store::EvmapStore},
    journal::{
        Bounds, ChangeSet, Interest, Journal, ReaderId, ReaderOptions, TypeNumber, UnitId, UnitInterest, UnitTerms,
    },
    list_watch::{WatchEvent, decode::WatchDecoder},
    object::{
        FieldPath, Keep,
        packer::{Compression, Packer},
        scan::{ScanPlan, TypeMeta},
    },
    reflector::ReflectorEvent,
};
use jiff::Timestamp;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Number of pods, each updated once per round, and number of events per batch.
const PODS: usize = 512;
const BATCH: usize = 64;
const UNIT: UnitId = UnitId(0);

/// Limit of one stage: blocks and bytes per event.
struct Budget {
    stage: &'static str,
    blocks: f64,
    bytes: f64,
}

const BUDGETS: [Budget; 4] = [
    Budget { stage: "decode", blocks: 2.2, bytes: 6_200.0 },
    Budget { stage: "DeltaFIFO", blocks: 0.2, bytes: 120.0 },
    Budget { stage: "indexer, packed and published", blocks: 2.5, bytes: 750.0 },
    Budget { stage: "journal, appended, read and acknowledged", blocks: 0.3, bytes: 250.0 },
];

/// The stages of an engine without a state directory.
struct Stages {
    keep: Keep,
    decoder: WatchDecoder,
    fifo: DeltaFifo,
    indexer: Indexer,
    journal: Journal,
    reader: ReaderId,
}

impl Stages {
    fn new() -> Self {
        let drop = [FieldPath::parse("metadata.managedFields").expect("a constant path")];
        let pods = TypeMeta::new("v1", "Pod");
        let plan = Arc::new(ScanPlan::new(&drop, Some(pods.clone())));
        let keep = Keep::Packed(Arc::new(Packer::new(Compression::Zstd)));
        let options = IndexerOptions { keep: keep.clone(), ..IndexerOptions::default() };
        let journal = Journal::in_memory();
        journal.add_unit(UNIT, UnitTerms { resource: TypeNumber(0), late: false, cached: true });
        let units = [(UNIT, UnitInterest { attaches: false, resync_every: 0 })].into();
        let interest = Interest { changes: ChangeSet::ALL, filter: None, units };
        let reader =
            journal.open_reader(ReaderOptions { bounds: Bounds::default(), interest, name: None }).expect("a reader");
        Self {
            keep,
            decoder: WatchDecoder::new(pods, plan, 1 << 24),
            fifo: DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), true),
            indexer: Indexer::new(EvmapStore::new(1, []), options),
            journal,
            reader,
        }
    }

    /// Passes one batch through all stages, from bytes to acknowledgement; adds each stage's allocations.
    fn pass(&mut self, bytes: &[u8], spent: &mut [(u64, u64); 4]) {
        let mut at = 0;
        let mut lap = |before: &mut dhat::HeapStats| {
            let now = dhat::HeapStats::get();
            spent[at].0 += now.total_blocks - before.total_blocks;
            spent[at].1 += now.total_bytes - before.total_bytes;
            (*before, at) = (dhat::HeapStats::get(), at + 1);
        };
        let mut mark = dhat::HeapStats::get();
        let mut events = Vec::with_capacity(BATCH);
        self.decoder.push(bytes, &mut events).expect("a stream");
        lap(&mut mark);

        for event in events {
            let WatchEvent::Modified(object) = event else { panic!("unexpected {event:?}") };
            self.fifo.push(ReflectorEvent::Updated(object));
        }
        let deltas = self.fifo.pop().expect("a batch");
        lap(&mut mark);

        self.keep.look_at(deltas.deltas.iter().map(|delta| &delta.object));
        let transaction = self.indexer.plan(deltas);
        self.indexer.commit(&transaction);
        self.indexer.publish();
        lap(&mut mark);

        let now = Timestamp::UNIX_EPOCH;
        let ticket =
            self.journal.append(UNIT.writer(0), &transaction.changes, &Reached::default(), now).expect("it is taken");
        self.journal.release(ticket);
        let read = self.journal.read(self.reader, BATCH, usize::MAX);
        assert_eq!(read.len(), BATCH);
        self.journal.ack(self.reader, read.last().expect("a record").sequence);
        lap(&mut mark);
    }
}

/// Returns the bytes of a watch in which each of these pods is modified for the `round`-th time.
fn stream(pods: Range<usize>, round: usize) -> Vec<u8> {
    let generator = Generator::new(Shape::Pods, PODS as u64, 1);
    let line = |pod: usize| {
        let json = String::from_utf8(generator.object(pod as u64, 0)).expect("JSON is UTF-8");
        let version = format!("\"resourceVersion\":\"{}\"", 1_000 * round + pod);
        let (before, after) = json.split_once("\"resourceVersion\":\"").expect("it has one");
        let (_, after) = after.split_once('"').expect("it ends");
        format!("{{\"type\":\"MODIFIED\",\"object\":{before}{version}{after}}}\n")
    };
    pods.map(line).collect::<String>().into_bytes()
}

#[test]
fn event_allocates_little_beyond_its_bodies() {
    let _counting = dhat::Profiler::builder().testing().build();
    let mut stages = Stages::new();
    let round = |stages: &mut Stages, batches: &[Vec<u8>]| {
        let mut spent = [(0, 0); 4];
        for batch in batches {
            stages.pass(batch, &mut spent);
        }
        spent
    };
    let batches = |round: usize| -> Vec<_> {
        (0..PODS).step_by(BATCH).map(|first| stream(first..first + BATCH, round)).collect()
    };
    // One-time allocations happen first: tables, the dictionary, buffers.
    for at in 1..4 {
        round(&mut stages, &batches(at));
    }
    let last = batches(4);
    let before = dhat::HeapStats::get();
    let spent = round(&mut stages, &last);
    let after = dhat::HeapStats::get();
    #[expect(clippy::cast_precision_loss, reason = "these are small")]
    let an_event = |count: u64| count as f64 / PODS as f64;
    println!("| stage | blocks an event | bytes an event |\n|---|---|---|");
    for (budget, (blocks, bytes)) in BUDGETS.iter().zip(spent) {
        println!("| {} | {:.2} | {:.0} |", budget.stage, an_event(blocks), an_event(bytes));
    }
    for (budget, (blocks, bytes)) in BUDGETS.iter().zip(spent) {
        let (stage, blocks, bytes) = (budget.stage, an_event(blocks), an_event(bytes));
        assert!(blocks <= budget.blocks, "{stage}: {blocks} blocks an event, at most {}", budget.blocks);
        assert!(bytes <= budget.bytes, "{stage}: {bytes} bytes an event, at most {}", budget.bytes);
    }
    let grown = after.curr_bytes.saturating_sub(before.curr_bytes);
    assert!(grown < 64 << 10, "nothing piles up: {grown} bytes more after {PODS} updates of as many objects");
}
