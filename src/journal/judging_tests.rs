//! A compaction judges waiting records in parts, so commits do not wait for all of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use jiff::Timestamp;

use super::{room_tests::noise, testing::*, *};
use crate::{
    change::{Change, Reached},
    object::{Identity, Object, packer::Compression},
};

/// Number of records that wait in memory, all of them unjudged.
const WAITING: u64 = 1_000;
const MAX_BYTES: usize = 16 << 20;

/// Filter that wants everything. It reports each record, and waits for permission to continue.
#[derive(Debug)]
struct Told {
    judged: AtomicU64,
    says: Mutex<Sender<u64>>,
    goes_on: Mutex<Receiver<()>>,
}

impl ReaderFilter for Told {
    fn judge(&self, _: &Record) -> Result<bool, String> {
        let number = self.judged.fetch_add(1, Ordering::Relaxed) + 1;
        if self.says.lock().unwrap().send(number).is_ok() {
            self.goes_on.lock().unwrap().recv().ok(); // an error means that the test wants no more reports
        }
        Ok(true)
    }
}

fn commit(journal: &Journal, changes: &[Change]) -> Sequence {
    let ticket = journal.append(UnitId(0).writer(1), changes, &Reached::default(), Timestamp::UNIX_EPOCH).unwrap();
    journal.release(ticket);
    ticket.last
}

/// Returns a change that takes a quarter of the room.
fn large(version: u64) -> Change {
    let (name, uid, resource_version, filling) = ("large", "large", version.to_string(), noise(MAX_BYTES / 4));
    let json =
        format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"data":"{filling}"}}"#);
    let identity = Identity { namespace: "ns", name, uid, resource_version: &resource_version };
    Change::Added { object: Object::assemble(identity, &[json.as_bytes()]), cause: Cause::Watch }
}

#[test]
fn commit_is_durable_while_compaction_judges() {
    let dir = tempfile::TempDir::new().unwrap();
    let options = JournalOptions { max_bytes: MAX_BYTES as u64, ..JournalOptions::default() };
    let (journal, _) = Journal::open(dir.path(), options).unwrap();
    journal.add_unit(UnitId(0), UnitTerms { resource: TypeNumber(0), late: false, cached: true });
    journal.packer(UnitId(0), Compression::None);
    let ((says, said), (tell, goes_on)) = (channel(), channel());
    let filter = Told { judged: AtomicU64::new(0), says: Mutex::new(says), goes_on: Mutex::new(goes_on) };
    let interest = Interest { filter: Some(RecordFilter::new(Arc::new(filter))), ..everything() };
    let bounds = Bounds { max_events: 10_000, ..Bounds::default() };
    let options = ReaderOptions { bounds, interest, name: Some("slow".to_owned()) };
    journal.open_reader(options).unwrap();
    let waiting: Vec<_> = (1..=WAITING).map(|version| updated("a", "a", version, version + 1)).collect();
    let waiting = commit(&journal, &waiting);
    while journal.released() < waiting {
        std::thread::yield_now();
    }
    // The state fills up until the first record is judged.
    let mut sizes = 1..;
    let first = loop {
        match said.recv_timeout(Duration::from_millis(20)) {
            Ok(first) => break first,
            Err(_) => drop(commit(&journal, &[large(sizes.next().unwrap())])),
        }
    };
    assert_eq!(first, 1);
    let committed = commit(&journal, &[added("b", "b", 1)]);
    assert!(journal.released() < committed, "the committer has not come to it");
    let mut judged = 1;
    while journal.released() < committed {
        tell.send(()).unwrap();
        judged = said.recv().unwrap();
    }
    assert!(judged < WAITING, "all were judged first");
    drop((said, tell)); // the remaining records are judged without reports
    journal.close().unwrap();
}
