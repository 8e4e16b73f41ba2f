//! The journal in a real directory: stops, crashes, slow readers, and disk errors.

use std::{fs, path::Path, time::Duration};

use jiff::Timestamp;
use tempfile::TempDir;

use super::{testing::*, *};
use crate::change::Change;
use crate::{
    change::{Cause, Reached},
    object::Object,
};

pub(super) fn open(dir: &Path, options: JournalOptions) -> Journal {
    // A process that another test starts holds the lock of a closed journal until its `exec`.
    let opened = (0..500).find_map(|_| match Journal::open(dir, options) {
        Err(OpenJournalError::Store(error)) if error.to_string().contains("is in use") => {
            std::thread::sleep(Duration::from_millis(20));
            None
        }
        opened => Some(opened.unwrap()),
    });
    let (journal, _) = opened.expect("nobody holds its lock");
    (0..2).for_each(|unit| journal.add_unit(UnitId(unit), terms(unit)));
    journal
}

fn terms(unit: u32) -> UnitTerms {
    UnitTerms { resource: TypeNumber(unit), late: false, cached: true }
}

pub(super) fn named(name: &str, bounds: Bounds) -> ReaderOptions {
    let seen = UnitInterest { attaches: false, resync_every: 0 };
    let units = (0..2).map(|unit| (UnitId(unit), seen)).collect();
    ReaderOptions {
        bounds,
        interest: Interest { units, changes: ChangeSet::ALL, filter: None },
        name: Some(name.to_owned()),
    }
}

pub(super) fn small() -> Bounds {
    Bounds { max_events: 16, max_bytes: 64 << 10, when_full: WhenFull::Coalesce }
}

fn commit(journal: &Journal, unit: u32, changes: &[Change]) -> Ticket {
    let ticket = journal.append(UnitId(unit).writer(1), changes, &Reached::default(), Timestamp::UNIX_EPOCH).unwrap();
    journal.release(ticket);
    ticket
}

/// Commits like an indexer: it retries once the journal is writable.
async fn commit_at_last(journal: &Journal, changes: &[Change]) -> u64 {
    let mut refused = 0;
    loop {
        match journal.append(UnitId(0).writer(1), changes, &Reached::default(), Timestamp::UNIX_EPOCH) {
            Ok(ticket) => {
                journal.release(ticket);
                return refused;
            }
            Err(AppendError::NotWritable(_)) => {
                refused += 1;
                journal.writable().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads `count` records, and acknowledges each batch at once.
async fn take(journal: &Journal, reader: ReaderId, count: usize) -> Vec<Record> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let batch = journal.fetch(reader, (count - taken.len()).min(100), usize::MAX).await;
        match batch.last() {
            Some(last) => journal.ack(reader, last.sequence),
            None => journal.readable(reader).await,
        }
        taken.extend(batch);
    }
    taken
}

pub(super) fn words(records: &[Record]) -> Vec<String> {
    records.iter().map(brief).collect()
}

/// Copies a store that may be written meanwhile. Files come before directories: the seal names what the database must have, so a
/// later seal would name data that the copy of the database lacks.
pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> = fs::read_dir(from).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.file_type().unwrap().is_dir());
    for entry in entries {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn clean_stop_repeats_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let id = journal.id().to_owned();
    let reader = journal.open_reader(named("one", small())).unwrap();
    commit(&journal, 0, &[added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)]);
    journal.describe_unit(UnitId(0), serde_json::json!({ "entry": "pods" }));
    assert_eq!(words(&take(&journal, reader, 1).await), ["added a/1"]);
    let batch = journal.fetch(reader, 10, usize::MAX).await;
    assert_eq!(journal.ack_each(reader, &[batch[1].sequence]), 1, "the last one first");
    journal.close().unwrap();
    let closed = journal.append(UnitId(0).writer(1), &[added("d", "d", 1)], &Reached::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(closed, Err(AppendError::NotWritable(NotWritable::Closed)));
    drop(journal);

    let journal = open(dir.path(), JournalOptions::default());
    assert_eq!(journal.id(), id);
    assert_eq!(journal.units()[0].description["entry"], "pods");
    assert_eq!((journal.next_unit(), journal.dormant_readers()), (UnitId(2), vec!["one".to_owned()]));
    let reader = journal.open_reader(named("one", small())).unwrap();
    let late = commit(&journal, 1, &[added("e", "e", 1)]);
    assert!(late.first > batch[1].sequence, "places go on");
    assert_eq!(words(&take(&journal, reader, 2).await), ["added b/1", "added e/1"]);
    let twice = journal.open_reader(named("one", small()));
    assert_eq!(twice, Err(OpenReaderError::Taken("one".to_owned())));
    journal.close().unwrap();
}

#[tokio::test]
async fn unacknowledged_records_return_after_crash() {
    let (dir, crashed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", Bounds::default())).unwrap();
    let changes: Vec<_> = (1..=50).map(|version| added(&format!("p{version}"), "u", version)).collect();
    for batch in changes.chunks(5) {
        commit(&journal, 0, batch);
    }
    let seen = words(&take(&journal, reader, 20).await);
    let in_flight = words(&journal.fetch(reader, 5, usize::MAX).await);
    copy(dir.path(), crashed.path());
    drop(journal);

    let journal = open(crashed.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", small())).unwrap();
    let queued = usize::try_from(journal.stats(reader).queued).unwrap();
    let again = words(&take(&journal, reader, queued).await);
    let all: Vec<_> =
        changes.iter().map(|change| format!("added u/{}", change.object().unwrap().resource_version())).collect();
    // All durable records were read at least once: those appended before the last record was seen.
    assert!(again.ends_with(&all[all.len() - 5..]) || queued >= in_flight.len());
    let first = all.len() - again.len();
    assert_eq!(again, all[first..], "in order, without holes, to the last one");
    assert!(first <= seen.len(), "nothing is skipped that was not acknowledged");
}

/// Rule: D-11.
#[tokio::test]
async fn slow_reader_holds_few_records_and_gets_all() {
    const EVENTS: u64 = 100_000;
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("slow", small())).unwrap();
    for batch in 0..EVENTS / 500 {
        let changes: Vec<_> = (1..=500).map(|n| updated("a", "a", batch * 500 + n - 1, batch * 500 + n)).collect();
        commit_at_last(&journal, &changes).await;
    }
    let mut seen = 0;
    while seen < EVENTS {
        let batch = journal.fetch(reader, 100, usize::MAX).await;
        let Some(last) = batch.last() else {
            journal.readable(reader).await;
            continue;
        };
        assert!(journal.inner.core()[reader].held() <= 32, "in the queue and in flight");
        for record in &batch {
            seen += 1;
            assert_eq!(brief(record), format!("updated a/{seen}<{}", seen - 1));
        }
        journal.ack(reader, last.sequence);
    }
    let stats = journal.stats(reader);
    assert_eq!((stats.acknowledged, stats.dropped, stats.coalesced, stats.queued), (EVENTS, 0, 0, 0));
}

#[tokio::test]
async fn given_up_records_are_replayed_after_restart() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", small())).unwrap();
    commit(&journal, 0, &[added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)]);
    while journal.stats(reader).queued < 3 {
        journal.readable(reader).await;
    }
    let batch = journal.fetch(reader, 10, usize::MAX).await;
    journal.give_up(reader, &[batch[1].sequence]);
    journal.ack(reader, batch[2].sequence);
    assert_eq!(journal.stats(reader).given_up, 1);
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("one", small())).unwrap();
    assert_eq!(journal.stats(reader).queued, 0);
    assert_eq!(journal.replay(reader), 1);
    assert_eq!(words(&take(&journal, reader, 1).await), ["added b/1"]);
    assert_eq!(journal.replay(reader), 0, "once");
}

#[tokio::test]
async fn given_up_records_are_retained_after_give_up() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { retention: Duration::from_secs(4), ..JournalOptions::default() };
    let journal = open(dir.path(), options);
    let reader = journal.open_reader(named("one", small())).unwrap();
    commit(&journal, 0, &[added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)]);
    while journal.stats(reader).queued < 3 {
        journal.readable(reader).await;
    }
    let batch = journal.fetch(reader, 10, usize::MAX).await;
    journal.ack(reader, batch[0].sequence);
    while journal.health().first <= batch[0].sequence {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // All three are old now. The sleep proves that the next retention removes none of them.
    journal.give_up(reader, &[batch[1].sequence]);
    journal.ack(reader, batch[2].sequence);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(journal.replay(reader), 1);
    assert_eq!(words(&take(&journal, reader, 1).await), ["added b/1"]);
}

/// Rule: S-5.
#[tokio::test]
async fn joined_reader_keeps_its_unit_after_restart() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let mut options = named("late", small());
    options.interest.units.values_mut().for_each(|unit| unit.attaches = true);
    let late = journal.open_reader(options.clone()).unwrap();
    let other = journal.open_reader(named("other", small())).unwrap();
    let replay = Change::Added { object: pod("a", "a", 1), cause: Cause::Replay };
    let attach = Attachment { reader: late, kind: AttachmentKind::Attach(None) };
    journal.attach(attach, UnitId(0).writer(1), &[replay], Timestamp::UNIX_EPOCH).unwrap();
    journal.attach(attach, UnitId(1).writer(1), &[], Timestamp::UNIX_EPOCH).unwrap();
    commit(&journal, 0, &[updated("a", "a", 1, 2)]);
    commit(&journal, 1, &[added("b", "b", 1)]);
    journal.close().unwrap();
    drop((journal, other));
    let journal = open(dir.path(), JournalOptions::default());
    let late = journal.open_reader(options).unwrap();
    assert_eq!(journal.attached(late), [UnitId(0), UnitId(1)].into());
    assert_eq!(words(&take(&journal, late, 3).await), ["added a/1", "updated a/2<1", "added b/1"]);
    let other = journal.open_reader(named("other", small())).unwrap();
    assert_eq!(words(&take(&journal, other, 2).await), ["updated a/2<1", "added b/1"]);
    assert_eq!(journal.stats(other).queued, 0);
}

#[tokio::test]
async fn new_reader_gets_no_records_of_removed_one() {
    let (dir, crashed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let journal = open(dir.path(), JournalOptions::default());
    let old = journal.open_reader(named("one", small())).unwrap();
    // The detachment stays invisible, because an earlier append is not released.
    journal.append(UnitId(1).writer(1), &[added("x", "x", 1)], &Reached::default(), Timestamp::UNIX_EPOCH).unwrap();
    let detach = Attachment { reader: old, kind: AttachmentKind::Detach };
    journal.attach(detach, UnitId(0).writer(1), &[removed("a", "a", 1)], Timestamp::UNIX_EPOCH).unwrap();
    journal.close_reader(old);
    let mut options = named("one", small());
    options.interest.units.values_mut().for_each(|unit| unit.attaches = true);
    journal.open_reader(options.clone()).unwrap();
    copy(dir.path(), crashed.path());

    let journal = open(crashed.path(), JournalOptions::default());
    let new = journal.open_reader(options).unwrap();
    assert_eq!(journal.stats(new).queued, 0);
    commit(&journal, 1, &[added("y", "y", 1)]);
    let attach = Attachment { reader: new, kind: AttachmentKind::Attach(None) };
    journal.attach(attach, UnitId(0).writer(1), &[], Timestamp::UNIX_EPOCH).unwrap();
    commit(&journal, 0, &[added("b", "b", 1)]);
    assert_eq!(words(&take(&journal, new, 1).await), ["added b/1"]);
}

/// Returns changes of which none can be coalesced.
fn different(count: u64) -> Vec<Change> {
    (1..=count).map(|n| added(&format!("p{n}"), &format!("u{n}"), n)).collect()
}

async fn wait_for(journal: &Journal, is_so: impl Fn(&JournalHealth) -> bool) {
    while !is_so(&journal.health()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn retention_removes_only_unneeded_records() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions { max_bytes: 1, ..JournalOptions::default() });
    let slow = journal.open_reader(named("slow", small())).unwrap();
    commit_at_last(&journal, &different(100)).await;
    // The state exceeds its limit, all of it is needed, and none can be coalesced.
    let is_slow = |why: &_| matches!(why, Some(NotWritable::Full { slowest, .. }) if slowest == "slow");
    wait_for(&journal, |health| is_slow(&health.not_writable)).await;
    let refused =
        journal.append(UnitId(0).writer(1), &different(1), &Reached::default(), Timestamp::UNIX_EPOCH).unwrap_err();
    assert!(refused.to_string().contains("the slowest handler is \"slow\""), "{refused}");
    assert_eq!(journal.health().needed, Sequence(101), "what waits is in entries of its own");
    assert_eq!(words(&take(&journal, slow, 100).await), words(&different_records(100)));
    journal.writable().await;
    let health = journal.health();
    assert!(health.stored && health.syncs > 0 && health.disk_bytes > 0, "{health:?}");
}

fn different_records(count: u64) -> Vec<Record> {
    let record = |(sequence, change)| Record {
        sequence: Sequence(sequence),
        unit: UnitId(0),
        time_micros: 0,
        change,
        old_lost: false,
    };
    (1..).zip(different(count)).map(record).collect()
}

#[tokio::test]
async fn drop_policy_names_losses_of_slowest_reader() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: 1, on_full: OnFull::Drop, ..JournalOptions::default() };
    let journal = open(dir.path(), options);
    let slow = journal.open_reader(named("slow", small())).unwrap();
    commit(&journal, 0, &different(100));
    journal.readable(slow).await;
    let read = journal.fetch(slow, 8, usize::MAX).await;
    assert_eq!(read.len(), 8);
    while journal.stats(slow).dropped < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let read: Vec<_> = read.iter().map(|record| record.sequence).collect();
    assert_eq!(journal.ack_each(slow, &read), 8, "what was read stays");
    let mut seen: Vec<_> = read.iter().map(|sequence| sequence.0).collect();
    while journal.stats(slow).queued > 0 {
        let batch = journal.fetch(slow, 100, usize::MAX).await;
        journal.ack_each(slow, &batch.iter().map(|record| record.sequence).collect::<Vec<_>>());
        seen.extend(batch.iter().map(|record| record.sequence.0));
    }
    let losses = journal.take_losses(slow);
    seen.extend(losses.named.iter().map(|lost| lost.sequence.0));
    seen.sort_unstable();
    assert_eq!((seen, losses.unnamed), ((1..=100).collect(), 0), "each is delivered, or named");
}

/// A limit on file sizes simulates a full disk. It applies to the whole process, so the test runs in a child process.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_blocks_reading_and_loses_nothing() {
    const CHILD: &str = "DELTABUS_TEST_FULL_DISK";
    if std::env::var_os(CHILD).is_none() {
        let test = "journal::stored_tests::full_disk_blocks_reading_and_loses_nothing";
        // A write beyond the limit must fail, and not end the process.
        let child = std::process::Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let dir = TempDir::new().unwrap();
        let journal = open(dir.path(), JournalOptions::default());
        let reader = journal.open_reader(named("one", small())).unwrap();
        let change = |n: u64| updated("a", "a", n - 1, n);
        for n in 1..=100 {
            commit_at_last(&journal, &[change(n)]).await;
        }
        limit_file_size("1");
        let mut n = 101;
        let refused = loop {
            match journal.append(UnitId(0).writer(1), &[change(n)], &Reached::default(), Timestamp::UNIX_EPOCH) {
                Ok(ticket) => journal.release(ticket),
                Err(refused) => break refused,
            }
            n += 1;
        };
        assert!(matches!(refused, AppendError::NotWritable(NotWritable::Failed(_))), "{refused}");
        assert!(journal.health().not_writable.is_some());
        let waiting = tokio::spawn({
            let journal = journal.clone();
            async move { journal.writable().await }
        });
        limit_file_size("unlimited");
        tokio::time::timeout(Duration::from_mins(1), waiting).await.unwrap().unwrap();
        for n in n..n + 50 {
            commit_at_last(&journal, &[change(n)]).await;
        }
        let all = usize::try_from(n + 49).unwrap();
        let seen = take(&journal, reader, all).await;
        let expected: Vec<_> = (1..=all).map(|n| format!("updated a/{n}<{}", n - 1)).collect();
        assert_eq!(words(&seen), expected);
        assert!(journal.health().failures > 0);
        journal.close().unwrap();
    });
}

#[cfg(target_os = "linux")]
/// Limits the size of files that this process writes, in bytes. Existing data is kept.
fn limit_file_size(bytes: &str) {
    let status = std::process::Command::new("prlimit")
        .args([format!("--pid={}", std::process::id()), format!("--fsize={bytes}:unlimited")])
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn positions_of_earlier_runs_are_known() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    assert_eq!(journal.earlier(), Sequence(0));
    let ticket = commit(&journal, 0, &[added("a", "u1", 1), added("b", "u2", 1)]);
    journal.flush().unwrap();
    let health = journal.health();
    assert!(health.syncs > 0, "it was flushed");
    assert_eq!(health.sync_duration.count(), health.syncs);
    journal.close().unwrap();
    drop(journal);
    assert_eq!(open(dir.path(), JournalOptions::default()).earlier(), ticket.last);
}

fn compact(dir: &Path) -> u64 {
    // See `open`.
    let compacted = (0..500).find_map(|_| match Journal::compact(dir, JournalOptions::default()) {
        Err(error) if error.to_string().contains("is in use") => {
            std::thread::sleep(Duration::from_millis(20));
            None
        }
        compacted => Some(compacted.unwrap()),
    });
    compacted.expect("nobody holds its lock")
}

/// Returns the number of files below a directory that contain this text.
fn files_with(dir: &Path, text: &str) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let count = |path: std::path::PathBuf| {
        if path.is_dir() {
            return files_with(&path, text);
        }
        usize::from(memchr::memmem::find(&fs::read(path).unwrap(), text.as_bytes()).is_some())
    };
    entries.map(count).sum()
}

/// Returns a state of an object. Unlike the rest of the body, the version is stored as it is, not compressed.
fn state(version: &str) -> Object {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"db","uid":"u","resourceVersion":"{version}"}}}}"#
    );
    Object::from_json(json.as_bytes()).unwrap()
}

#[tokio::test]
async fn compacted_state_contains_no_removed_value() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("out", small())).unwrap();
    let (old, new) = (state("a value that leaks"), state("a redacted value"));
    commit(&journal, 0, &[Change::Added { object: old.clone(), cause: Cause::Watch }]);
    commit(&journal, 0, &[Change::Updated { old, object: new, cause: Cause::Watch }]);
    assert_eq!(take(&journal, reader, 1).await.len(), 1);
    journal.close().unwrap();
    drop(journal);
    // The second change still waits, with the old value.
    assert_eq!(compact(dir.path()), 1);
    assert!(files_with(dir.path(), "a value that leaks") > 0);

    let journal = open(dir.path(), JournalOptions::default());
    let reader = journal.open_reader(named("out", small())).unwrap();
    assert!(take(&journal, reader, 1).await[0].change.old().is_some());
    journal.close().unwrap();
    drop(journal);
    assert!(files_with(dir.path(), "a value that leaks") > 0, "the files keep removed data");
    assert_eq!(compact(dir.path()), 0);
    assert_eq!(files_with(dir.path(), "a value that leaks"), 0);

    let journal = open(dir.path(), JournalOptions::default());
    let mut cached = Vec::new();
    journal.objects(UnitId(0), &mut |object| cached.push(object.resource_version().to_owned())).unwrap();
    assert_eq!(cached, ["a redacted value"]);
    let reader = journal.open_reader(named("out", small())).unwrap();
    commit(&journal, 0, &[added("next", "u9", 3)]);
    let next = take(&journal, reader, 1).await;
    assert_eq!((next.len(), next[0].sequence), (1, Sequence(3)), "positions go on");
}

#[tokio::test]
async fn interrupted_compaction_keeps_the_state() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path(), JournalOptions::default());
    commit(&journal, 0, &[added("a", "u", 1)]);
    journal.close().unwrap();
    drop(journal);
    let at = |name: &str| dir.path().join(name);
    let states = || {
        let journal = open(dir.path(), JournalOptions::default());
        let mut found = 0;
        journal.objects(UnitId(0), &mut |_| found += 1).unwrap();
        journal.close().unwrap();
        found
    };
    // before the first rename, between both, after the second
    fs::create_dir(at("db.new")).unwrap();
    assert_eq!(states(), 1);
    fs::create_dir(at("db.new")).unwrap();
    fs::rename(at("db"), at("db.old")).unwrap();
    assert_eq!(states(), 1);
    fs::create_dir(at("db.old")).unwrap();
    assert_eq!(states(), 1);
    assert!(!at("db.new").exists() && !at("db.old").exists());
}
