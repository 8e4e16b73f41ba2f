//! Refused records: they are acknowledged, counted, and judged before records are coalesced.

use std::sync::Mutex;

use jiff::Timestamp;

use super::{testing::*, *};
use crate::change::{Change, Reached};

/// Filter that refuses odd versions, fails for version 7, and remembers the judged records.
#[derive(Debug, Default)]
struct Even(Mutex<Vec<String>>);

impl ReaderFilter for Even {
    fn judge(&self, record: &Record) -> Result<bool, String> {
        let Some(object) = record.object() else { return Ok(true) };
        self.0.lock().unwrap().push(brief(record));
        match object.resource_version().parse::<u64>().unwrap() {
            7 => Err("seven".to_owned()),
            version => Ok(version.is_multiple_of(2)),
        }
    }
}

fn open(journal: &Journal, max_events: usize, filter: &std::sync::Arc<Even>) -> ReaderId {
    let filter: std::sync::Arc<Even> = std::sync::Arc::clone(filter);
    let interest = Interest { filter: Some(RecordFilter::new(filter)), ..everything() };
    let bounds = Bounds { max_events, ..Bounds::default() };
    journal.open_reader(ReaderOptions { bounds, interest, name: None }).unwrap()
}

fn commit(journal: &Journal, changes: &[Change]) {
    let ticket = journal.append(UnitId(0).writer(1), changes, &Reached::default(), Timestamp::UNIX_EPOCH).unwrap();
    journal.release(ticket);
    journal.inner.core().check();
}

fn read(journal: &Journal, reader: ReaderId) -> Vec<String> {
    let batch = journal.read(reader, 100, usize::MAX);
    if let Some(last) = batch.last() {
        journal.ack(reader, last.sequence);
    }
    journal.inner.core().check();
    batch.iter().map(brief).collect()
}

#[test]
fn refused_record_is_acknowledged_when_read() {
    let (journal, even) = (Journal::in_memory(), std::sync::Arc::default());
    let reader = open(&journal, 100, &even);
    commit(&journal, &[added("a", "a", 1), updated("a", "a", 1, 2), updated("a", "a", 2, 3), synced(1)]);
    assert!(even.0.lock().unwrap().is_empty(), "nothing is judged where it is appended");
    assert_eq!((journal.stats(reader).queued, journal.stats(reader).filtered), (4, 0));
    assert_eq!(read(&journal, reader), ["updated a/2<1", "synced"]);
    let stats = journal.stats(reader);
    assert_eq!((stats.wanted, stats.filtered, stats.acknowledged, stats.filter_errors), (4, 2, 2, 0));
    commit(&journal, &[updated("a", "a", 6, 7), deleted("b", "b", 9)]);
    assert!(read(&journal, reader).is_empty());
    let stats = journal.stats(reader);
    assert_eq!((stats.filtered, stats.filter_errors, stats.position), (4, 1, journal.released()));
    assert_eq!(journal.last_filter_error(reader).as_deref(), Some("ns/a: seven"));
}

#[test]
fn changes_are_filtered_before_merging() {
    let (journal, even) = (Journal::in_memory(), std::sync::Arc::default());
    let reader = open(&journal, 1, &even);
    commit(&journal, &[added("x", "x", 2), added("y", "y", 4)]);
    for (from, to) in [(1, 2), (2, 3), (3, 4), (4, 6)] {
        commit(&journal, &[updated("a", "a", from, to)]);
    }
    let asked = std::mem::take(&mut *even.0.lock().unwrap());
    assert_eq!(asked[2..], ["updated a/2<1", "updated a/3<2", "updated a/4<3", "updated a/6<4"]);
    let mut shown = read(&journal, reader);
    shown.extend(read(&journal, reader));
    shown.extend(read(&journal, reader));
    assert_eq!(shown, ["added x/2", "added y/4", "updated a/6<1"], "what was merged is judged no more");
    assert!(even.0.lock().unwrap().is_empty());
    assert_eq!((journal.stats(reader).filtered, journal.stats(reader).coalesced), (1, 2));
}

#[test]
fn new_filter_judges_unjudged_waiting_records() {
    let (journal, even) = (Journal::in_memory(), std::sync::Arc::default());
    let reader = open(&journal, 100, &even);
    commit(&journal, &[added("a", "a", 1), added("b", "b", 2)]);
    journal.set_interest(reader, &everything());
    assert_eq!(read(&journal, reader), ["added a/1", "added b/2"]);
    commit(&journal, &[added("c", "c", 3)]);
    let filter = Some(RecordFilter::new(std::sync::Arc::<Even>::default()));
    journal.set_interest(reader, &Interest { filter, ..everything() });
    assert!(read(&journal, reader).is_empty());
    assert_eq!(journal.stats(reader).filtered, 1);
}

#[test]
fn reread_record_is_not_judged_again() {
    let (journal, even) = (Journal::in_memory(), std::sync::Arc::default());
    let reader = open(&journal, 100, &even);
    commit(&journal, &[added("a", "a", 1), added("b", "b", 2)]);
    assert_eq!(journal.read(reader, 9, usize::MAX).len(), 1);
    journal.rewind(reader);
    assert_eq!(read(&journal, reader), ["added b/2"]);
    assert_eq!(even.0.lock().unwrap().len(), 2);
}

#[test]
fn lagging_reader_keeps_only_wanted_records() {
    let (journal, even) = (Journal::in_memory(), std::sync::Arc::default());
    let reader = open(&journal, 10_000, &even);
    let changes: Vec<_> = (0..5_000).map(|version| deleted("a", "a", version * 2 + 1)).collect();
    commit(&journal, &changes);
    assert!(journal.stats(reader).queued < 1_000, "{:?}", journal.stats(reader));
    assert!(read(&journal, reader).is_empty());
    assert_eq!((journal.stats(reader).filtered, journal.stats(reader).dropped), (5_000, 0));
}
