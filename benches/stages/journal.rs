//! The journal in memory: an event is appended, released, read and acknowledged by each reader.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use deltabus::internals::{
    change::{Cause, Change, Reached},
    journal::{
        Bounds, ChangeSet, Interest, Journal, ReaderId, ReaderOptions, TypeNumber, UnitId, UnitInterest, UnitTerms,
    },
};
use jiff::Timestamp;

use crate::small_pod;

const UNIT: UnitId = UnitId(0);

fn update(number: usize) -> Change {
    Change::Updated { old: small_pod(1, number, 1), object: small_pod(1, number, 2), cause: Cause::Watch }
}

fn with_unit() -> Journal {
    let journal = Journal::in_memory();
    journal.add_unit(UNIT, UnitTerms { resource: TypeNumber(0), late: false, cached: true });
    journal
}

fn reader(journal: &Journal) -> ReaderId {
    let units = [(UNIT, UnitInterest { attaches: false, resync_every: 0 })].into();
    let interest = Interest { changes: ChangeSet::ALL, filter: None, units };
    let options = ReaderOptions { bounds: Bounds::default(), interest, name: None };
    journal.open_reader(options).expect("it is in memory")
}

fn append(journal: &Journal, changes: &[Change]) {
    let ticket =
        journal.append(UNIT.writer(0), changes, &Reached::default(), Timestamp::UNIX_EPOCH).expect("it is in memory");
    journal.release(ticket);
}

pub(crate) fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("journal/append, read and acknowledge");
    for (len, readers) in [(1, 1), (64, 1), (64, 8), (1024, 1)] {
        let journal = with_unit();
        let readers: Vec<_> = (0..readers).map(|_| reader(&journal)).collect();
        let changes: Vec<_> = (0..len).map(update).collect();
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function(format!("batch of {len}, {} readers", readers.len()), |b| {
            b.iter(|| {
                append(&journal, &changes);
                for reader in &readers {
                    let read = black_box(journal.read(*reader, len, usize::MAX));
                    journal.ack(*reader, read.last().expect("all are read").sequence);
                }
            });
        });
    }
    group.finish();

    let journal = with_unit();
    let reader = reader(&journal);
    let changes: Vec<_> = (0..64).map(update).collect();
    let mut group = c.benchmark_group("journal/append before a reader that does not read");
    group.throughput(Throughput::Elements(64));
    group.bench_function("batch of 64 of the same objects", |b| b.iter(|| append(&journal, &changes)));
    group.finish();
    black_box(journal.read(reader, usize::MAX, usize::MAX));
}
