//! A full state in a real directory: records of slow readers are coalesced, and nothing is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::LazyLock,
    time::Duration,
};

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::{
    change::{Change, Reached},
    object::{Identity, Object, packer::Compression},
};

const MAX_BYTES: u64 = 128 << 20;
const NAMES: u64 = 10;

fn open(dir: &Path, options: JournalOptions) -> Journal {
    let (journal, _) = Journal::open(dir, options).unwrap();
    with_unit(journal)
}

fn with_unit(journal: Journal) -> Journal {
    let terms = UnitTerms { resource: TypeNumber(0), late: false, cached: true };
    journal.add_unit(UnitId(0), terms);
    journal.packer(UnitId(0), Compression::None);
    journal
}

/// Opens the journal once all threads of the closed one have ended.
async fn open_when_free(dir: &Path, options: JournalOptions) -> Journal {
    loop {
        match Journal::open(dir, options) {
            Ok((journal, _)) => return journal,
            Err(OpenJournalError::Store(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

fn reader(journal: &Journal, name: &str) -> ReaderId {
    reader_with(journal, name, None)
}

fn reader_with(journal: &Journal, name: &str, filter: Option<RecordFilter>) -> ReaderId {
    let seen = UnitInterest { attaches: false, resync_every: 0 };
    let interest = Interest { units: [(UnitId(0), seen)].into(), changes: ChangeSet::ALL, filter };
    let bounds = Bounds { max_events: 16, max_bytes: 64 << 20, when_full: WhenFull::Coalesce };
    journal.open_reader(ReaderOptions { bounds, interest, name: Some(name.to_owned()) }).unwrap()
}

/// Returns text that does not compress.
pub(super) fn noise(bytes: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'#' + u8::try_from(state % 57).unwrap())
    };
    std::iter::repeat_with(letter).take(bytes).collect()
}

/// Objects of a cluster, which change all the time.
#[derive(Default)]
struct Cluster {
    /// Name → uid and version.
    states: BTreeMap<String, (String, u64)>,
    version: u64,
    /// Uids of deleted objects.
    deleted: BTreeSet<String>,
    largest: u64,
}

impl Cluster {
    fn object(name: &str, uid: &str, version: u64) -> Object {
        static FILLING: LazyLock<String> = LazyLock::new(|| noise(64 << 10));
        // The non-ASCII letter keeps debug builds fast: they check 64 KiB slowly for ASCII, and fast for UTF-8.
        let head = format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"data":"é"#);
        let identity = Identity { namespace: "ns", name, uid, resource_version: &version.to_string() };
        Object::assemble(identity, &[head.as_bytes(), FILLING.as_bytes(), br#""}"#])
    }

    /// Changes every object; one in ten rounds deletes one.
    fn round(&mut self, round: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in (0..NAMES).map(|number| format!("o{number}")) {
            self.version += 1;
            let (version, cause) = (self.version, Cause::Watch);
            match self.states.get(&name).cloned() {
                None => {
                    let uid = format!("u{version}");
                    let object = Self::object(&name, &uid, version);
                    changes.push(Change::Added { object, cause });
                    self.states.insert(name, (uid, version));
                }
                Some((uid, known)) if round % 10 == 9 && version.is_multiple_of(NAMES) => {
                    changes.push(Change::Deleted { object: Self::object(&name, &uid, known), tombstone: false, cause });
                    self.states.remove(&name);
                    self.deleted.insert(uid);
                }
                Some((uid, known)) => {
                    let (old, object) = (Self::object(&name, &uid, known), Self::object(&name, &uid, version));
                    changes.push(Change::Updated { old, object, cause });
                    self.states.insert(name, (uid, version));
                }
            }
        }
        changes
    }

    /// Appends rounds of changes like an indexer: it retries once the journal is writable.
    async fn churn(&mut self, journal: &Journal, rounds: std::ops::Range<u64>) {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        for round in rounds {
            pace.tick().await; // some 30 MB a second
            let changes = self.round(round);
            loop {
                match journal.append(UnitId(0).writer(1), &changes, &Reached::default(), Timestamp::UNIX_EPOCH) {
                    Ok(ticket) => break journal.release(ticket),
                    Err(AppendError::NotWritable(NotWritable::Full { .. } | NotWritable::Behind { .. })) => {
                        journal.writable().await; // the disk is slow
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            self.largest = self.largest.max(journal.health().disk_bytes);
            if journal.health().disk_bytes > MAX_BYTES / 2 * 3 {
                below_the_bound(journal).await; // the disk is too slow in this run
            }
        }
    }
}

/// Waits until coalescing has made room.
async fn below_the_bound(journal: &Journal) {
    while journal.health().disk_bytes > MAX_BYTES {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Records that a reader was shown.
#[derive(Default)]
struct Shown {
    states: BTreeMap<String, (String, u64)>,
    deleted: BTreeSet<String>,
    events: u64,
    /// Set when a crash may have repeated records of the same kind.
    repeats: bool,
}

impl Shown {
    fn take(&mut self, records: &[Record]) {
        for record in records {
            self.events += 1;
            let object = record.object().unwrap();
            let version = object.resource_version().parse().unwrap();
            let before = self.states.get(object.name()).cloned();
            match &record.change {
                Change::Deleted { .. } => {
                    assert!(self.repeats || before.is_some_and(|(uid, _)| uid == *object.uid()), "E2: {record:?}");
                    self.states.remove(object.name());
                    self.deleted.insert(object.uid().to_owned());
                    continue;
                }
                Change::Added { .. } => assert!(self.repeats || before.is_none(), "E2: {record:?}"),
                Change::Updated { old, .. } => {
                    let old = (old.uid().to_owned(), old.resource_version().parse().unwrap());
                    assert!(self.repeats || before == Some(old), "its old is what was shown: {record:?}");
                }
                change => panic!("nobody made {change:?}"),
            }
            self.states.insert(object.name().to_owned(), (object.uid().to_owned(), version));
        }
    }

    async fn take_all(&mut self, journal: &Journal, reader: ReaderId) {
        while journal.stats(reader).position < journal.health().last {
            let batch = journal.fetch(reader, 16, usize::MAX).await;
            match batch.last() {
                Some(last) => journal.ack(reader, last.sequence),
                None => drop(tokio::time::timeout(Duration::from_millis(50), journal.readable(reader)).await),
            }
            self.take(&batch);
        }
    }
}

/// Appends more than four times the size limit of the state.
#[tokio::test(flavor = "multi_thread")]
async fn dead_handler_keeps_state_near_max_bytes() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: MAX_BYTES, ..JournalOptions::default() };
    let journal = open(dir.path(), options);
    let dead = reader(&journal, "dead");
    let mut cluster = Cluster::default();
    cluster.churn(&journal, 0..900).await;
    assert!(cluster.largest < 3 * MAX_BYTES, "near the bound: {}", cluster.largest);
    below_the_bound(&journal).await;
    let stats = journal.stats(dead);
    assert!(stats.coalesced > stats.wanted / 2 && stats.dropped == 0, "{stats:?}");
    let mut shown = Shown::default();
    shown.take_all(&journal, dead).await;
    assert_eq!((&shown.states, &shown.deleted), (&cluster.states, &cluster.deleted));
    assert_eq!(shown.events, journal.stats(dead).acknowledged);
    journal.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_during_merging_loses_no_final_state() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: MAX_BYTES, ..JournalOptions::default() };
    let mut cluster = Cluster::default();
    let mut shown = Shown { repeats: true, ..Shown::default() };
    for run in 0..4 {
        let journal = with_unit(open_when_free(dir.path(), options).await);
        let slow = reader(&journal, "slow");
        cluster.churn(&journal, run * 120..run * 120 + 60).await;
        // It reads some records, and acknowledges fewer.
        let batch = journal.fetch(slow, 16, usize::MAX).await;
        journal.ack_each(slow, &batch.iter().take(10).map(|record| record.sequence).collect::<Vec<_>>());
        shown.take(&batch);
        cluster.churn(&journal, run * 120 + 60..run * 120 + 120).await;
        // The run ends without a stop.
    }
    let journal = with_unit(open_when_free(dir.path(), options).await);
    let slow = reader(&journal, "slow");
    shown.take_all(&journal, slow).await;
    assert_eq!((&shown.states, &shown.deleted), (&cluster.states, &cluster.deleted));
    assert_eq!(journal.stats(slow).dropped, 0);
    journal.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_during_merging_keeps_object_order() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: MAX_BYTES / 2, ..JournalOptions::default() };
    let journal = open(dir.path(), options);
    let slow = reader(&journal, "slow");
    let dead = reader(&journal, "dead");
    let mut cluster = Cluster::default();
    let mut shown = Shown::default();
    for part in 0..50 {
        cluster.churn(&journal, part * 10..part * 10 + 10).await;
        let batch = journal.fetch(slow, 16, usize::MAX).await;
        journal.ack_each(slow, &batch.iter().map(|record| record.sequence).collect::<Vec<_>>());
        shown.take(&batch);
    }
    for reader in [slow, dead] {
        let mut shown = if reader == slow { std::mem::take(&mut shown) } else { Shown::default() };
        shown.take_all(&journal, reader).await;
        assert_eq!((&shown.states, &shown.deleted), (&cluster.states, &cluster.deleted));
        assert!(journal.stats(reader).coalesced > 0);
    }
    journal.close().unwrap();
}

/// Filter that refuses two thirds of all updates.
#[derive(Debug)]
struct Thirds;

impl ReaderFilter for Thirds {
    fn judge(&self, record: &Record) -> Result<bool, String> {
        let version = record.object().unwrap().resource_version().parse::<u64>().unwrap();
        let is_update = matches!(record.change, Change::Updated { .. });
        Ok(!is_update || version.is_multiple_of(3))
    }
}

/// Includes a restart: coalesced records are not judged again, all others are.
#[tokio::test(flavor = "multi_thread")]
async fn refused_records_are_not_merged_in_full_state() {
    let dir = TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: MAX_BYTES / 2, ..JournalOptions::default() };
    let filter = || Some(RecordFilter::new(std::sync::Arc::new(Thirds)));
    let mut cluster = Cluster::default();
    let mut journal = open(dir.path(), options);
    let mut slow = reader_with(&journal, "slow", filter());
    for run in 0..2 {
        cluster.churn(&journal, run * 120..run * 120 + 120).await;
        let is_merged = |stats: ReaderStats| stats.filtered > 100 && stats.coalesced > 50;
        while !is_merged(journal.stats(slow)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if run == 0 {
            journal.close().unwrap();
            drop(journal);
            journal = open_when_free(dir.path(), options).await;
            journal.packer(UnitId(0), Compression::None);
            slow = reader_with(&journal, "slow", filter());
        }
    }
    let mut last = BTreeMap::new();
    while journal.stats(slow).position < journal.health().last {
        let batch = journal.fetch(slow, 16, usize::MAX).await;
        for record in &batch {
            let object = record.object().unwrap();
            let version = object.resource_version().parse::<u64>().unwrap();
            let is_wanted = version.is_multiple_of(3) || !matches!(record.change, Change::Updated { .. });
            assert!(is_wanted, "{record:?} was refused");
            last.insert(object.name().to_owned(), version);
        }
        match batch.last() {
            Some(record) => journal.ack(slow, record.sequence),
            None => drop(tokio::time::timeout(Duration::from_millis(50), journal.readable(slow)).await),
        }
    }
    for (name, (_, version)) in &cluster.states {
        let shown = last.get(name).copied().unwrap_or_default();
        // Three rounds of ten objects: one of three states of an object is wanted.
        assert!(shown + 3 * NAMES > *version, "{name} is at {version}, {shown} was shown");
    }
    assert_eq!(journal.stats(slow).dropped, 0);
    journal.close().unwrap();
}
