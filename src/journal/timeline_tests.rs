//! The timeline of a journal in a real directory, and skipping of what is delivered already.

use std::{collections::BTreeMap, num::NonZeroU64, path::Path};

use jiff::Timestamp;
use tempfile::TempDir;

use super::{
    stored_tests::{copy, named, open, small, words},
    testing::*,
    *,
};
use crate::change::{Change, Reached};

const UNIT: UnitId = UnitId(0);

/// Appends at a version, and at as many microseconds.
fn append(journal: &Journal, unit: u32, version: u64, changes: &[Change]) -> Ticket {
    let resume_version = version.to_string().as_str().into();
    let reached = Reached { resume_version, ..Reached::default() };
    let time = Timestamp::from_microsecond(i64::try_from(version).unwrap()).unwrap();
    let ticket = journal.append(UnitId(unit).writer(1), changes, &reached, time).unwrap();
    journal.release(ticket);
    ticket
}

fn version(epoch: u32, version: u64) -> UnitVersion {
    UnitVersion { epoch: Epoch(epoch), version: NonZeroU64::new(version).unwrap() }
}

fn after(journal: &Journal, at: UnitVersion) -> Result<u64, OutOfReach> {
    match journal.after(UNIT, at) {
        Ok(position) => Ok(position.0),
        Err(AfterError::OutOfReach(why)) => Err(why),
        Err(AfterError::Store(error)) => panic!("{error}"),
    }
}

fn before(journal: &Journal, micros: i64) -> (u64, bool) {
    let TimedPosition { position, is_cut } = journal.before(micros).unwrap();
    (position.0, is_cut)
}

/// Appends versions 10, 20 … 1,000 of a unit, one record each, at the positions 1 to 100.
fn hundred(dir: &Path) -> Journal {
    let journal = open(dir, JournalOptions::default());
    append(&journal, 0, 10, &[added("a", "a", 10)]);
    for at in 2..=100 {
        append(&journal, 0, at * 10, &[updated("a", "a", at * 10 - 10, at * 10)]);
    }
    journal.flush().unwrap();
    journal
}

fn check_hundred(journal: &Journal) {
    for at in 1..=100 {
        assert_eq!(after(journal, version(0, at * 10)), Ok(at), "the position of version {at}0");
        assert_eq!(after(journal, version(0, at * 10 + 5)), if at < 100 { Ok(at) } else { Err(OutOfReach::Future) });
        assert_eq!(journal.at(UNIT, Sequence(at)).unwrap(), Some(version(0, at * 10)));
        let micros = i64::try_from(at * 10).unwrap();
        assert_eq!([before(journal, micros), before(journal, micros + 1)], [(at - 1, false), (at, false)]);
    }
    assert_eq!(after(journal, version(0, 9)), Err(OutOfReach::Compacted), "the unit begins with its first list");
    assert_eq!(journal.at(UNIT, Sequence(0)).unwrap(), None);
    assert_eq!((journal.latest(UNIT), journal.latest(UnitId(1))), (Some(version(0, 1_000)), None));
}

#[test]
fn versions_and_times_are_found_in_memory_and_on_disk() {
    let dir = TempDir::new().unwrap();
    let journal = hundred(dir.path());
    check_hundred(&journal);
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path(), JournalOptions::default());
    check_hundred(&journal);
}

#[test]
fn crash_moves_unsaved_versions_to_an_earlier_position() {
    let (dir, crashed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let journal = hundred(dir.path());
    copy(dir.path(), crashed.path());
    let journal = (open(crashed.path(), JournalOptions::default()), drop(journal)).0;
    for at in 1..100 {
        let found = after(&journal, version(0, at * 10));
        assert!(
            found.is_err_and(|why| why == OutOfReach::Compacted) || found.is_ok_and(|found| found <= at),
            "{found:?}"
        );
        assert!(before(&journal, i64::try_from(at * 10).unwrap()).0 < at);
    }
    append(&journal, 0, 1_010, &[updated("a", "a", 1_000, 1_010)]);
    journal.flush().unwrap();
    assert_eq!(after(&journal, version(0, 1_010)), Ok(101), "later versions are exact again");
}

#[test]
fn removed_changes_are_compacted() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { retention: std::time::Duration::ZERO, ..JournalOptions::default() };
    let journal = open(dir.path(), options);
    append(&journal, 0, 10, &[added("a", "a", 10)]);
    append(&journal, 1, 11, &[added("b", "b", 11)]);
    append(&journal, 0, 20, &[updated("a", "a", 10, 20)]);
    append(&journal, 1, 21, &[updated("b", "b", 11, 21)]);
    journal.flush().unwrap();
    let is_removed = || journal.health().first > Sequence(4);
    for _ in 0..1_000 {
        if is_removed() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(is_removed(), "{:?}", journal.health());
    assert_eq!(after(&journal, version(0, 10)), Err(OutOfReach::Compacted));
    assert_eq!(after(&journal, version(0, 20)), Ok(4), "nothing is missing after the newest version");
    assert_eq!(before(&journal, 15), (4, true));
}

#[test]
fn lower_version_begins_an_epoch() {
    let dir = TempDir::new().unwrap();
    let journal = hundred(dir.path());
    append(&journal, 0, 500, &[removed("a", "a", 1_000)]);
    journal.flush().unwrap();
    assert_eq!(journal.latest(UNIT), Some(version(1, 500)));
    assert_eq!(after(&journal, version(0, 990)), Err(OutOfReach::OtherEpoch));
    assert_eq!(after(&journal, version(1, 490)), Err(OutOfReach::Compacted), "the versions below began no epoch");
    assert_eq!(after(&journal, version(1, 501)), Err(OutOfReach::Future));
    assert_eq!(after(&journal, version(1, 500)), Ok(101));
    assert_eq!(journal.at(UNIT, Sequence(100)).unwrap(), Some(version(0, 1_000)), "positions stay comparable");
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path(), JournalOptions::default());
    assert_eq!(journal.latest(UNIT), Some(version(1, 500)), "a restart keeps the epoch");
    assert_eq!(before(&journal, 1_000), (99, false));
    assert_eq!(before(&journal, 1_001), (101, false), "times never go back");
}

#[test]
fn memory_alone_reaches_back_for_a_bounded_number_of_appends() {
    let journal = Journal::in_memory();
    journal.add_unit(UNIT, UnitTerms { resource: TypeNumber(0), late: false, cached: true });
    append(&journal, 0, 10, &[added("a", "a", 10)]);
    assert_eq!((after(&journal, version(0, 10)), before(&journal, 5)), (Ok(1), (0, false)));
    for at in 2..=100 {
        append(&journal, 0, at * 10, &[updated("a", "a", at * 10 - 10, at * 10)]);
    }
    assert_eq!((after(&journal, version(0, 1_000)), after(&journal, version(0, 950))), (Ok(100), Ok(95)));
    assert_eq!((after(&journal, version(0, 500)), before(&journal, 500)), (Err(OutOfReach::Compacted), (0, true)));
}

#[test]
fn skipped_records_are_not_delivered_except_open_ones() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", small())).unwrap();
    for at in 1..=60 {
        append(&journal, 0, at * 10, &[added(&format!("a{at}"), &format!("a{at}"), at * 10)]);
        append(&journal, 1, at * 10 + 1, &[added(&format!("b{at}"), &format!("b{at}"), at * 10 + 1)]);
    }
    journal.flush().unwrap();
    let in_flight = words(&journal.read(reader, 2, usize::MAX));
    assert_eq!(in_flight, ["added a1/10", "added b1/11"]);
    let is_open = |record: &Record| record.object().is_some_and(|object| object.uid() == "a7");
    let versions = BTreeMap::from([(UNIT, version(0, 505))]);
    assert_eq!(journal.skip_to(reader, &versions, &is_open).unwrap(), 50 - 2, "a1 is in flight, a7 is open");
    assert_eq!(journal.skip_to(reader, &versions, &is_open).unwrap(), 0);
    let stats = journal.stats(reader);
    assert_eq!((stats.acknowledged, stats.in_flight, stats.position), (48, 2, Sequence(0)));
    journal.ack(reader, Sequence(2));
    let versions =
        BTreeMap::from([(UNIT, version(0, 9_999)), (UnitId(1), version(0, 591)), (UnitId(2), version(0, 5))]);
    assert_eq!(journal.skip_to(reader, &versions, &is_open).unwrap(), 10 + 58, "a later version skips all there is");
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", small())).unwrap();
    assert_eq!(words(&journal.read(reader, 99, usize::MAX)), ["added a7/70", "added b60/601"]);
}
