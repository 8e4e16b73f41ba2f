//! Coalesced records of a reader: interrupted steps, repeated steps, and leftovers.

use super::*;

const READER: &str = "slow";

/// Returns the state of a reader with pending positions, some of them coalesced.
fn waiting(pending: &RoaringTreemap, compacted: &RoaringTreemap, position: u64) -> StoredReader {
    StoredReader {
        name: READER.to_owned(),
        position: Sequence(position),
        pending: pending.clone(),
        compacted: compacted.clone(),
        ..StoredReader::default()
    }
}

/// A reader of a store, handled as in the journal.
struct Slow {
    pending: RoaringTreemap,
    compacted: RoaringTreemap,
    last: u64,
}

impl Slow {
    fn new(opened: &Opened, last: u64) -> Self {
        let slow = Self { pending: (1..=last).collect(), compacted: RoaringTreemap::new(), last };
        opened.store.put_readers(&[slow.state()]).unwrap();
        slow
    }

    fn state(&self) -> StoredReader {
        waiting(&self.pending, &self.compacted, self.last)
    }

    /// Continues with the state that a new run finds.
    fn restore(&mut self, opened: &Opened) {
        let state = opened.recovered.readers.iter().find(|reader| reader.name == READER).unwrap();
        (self.pending, self.compacted) = (state.pending.clone(), state.compacted.clone());
    }

    /// Plans a step with this number of positions.
    fn plan(&self, store: &Store, compactor: &mut Compactor, positions: usize) -> CompactionStep {
        while compactor.scan_from.is_some() {
            store.scan_compacted(compactor).unwrap();
        }
        let positions = (&self.pending - &self.compacted).iter().take(positions).collect();
        store
            .plan_compaction(compactor, &Held { positions, may_merge: self.pending.clone(), ..Held::default() })
            .unwrap()
    }

    fn take(&mut self, step: &CompactionStep) {
        self.pending -= &step.superseded;
        self.compacted -= &step.superseded;
        self.compacted |= &step.written;
        self.compacted &= &self.pending;
    }

    /// Coalesces all records in steps with this number of positions.
    fn compact(&mut self, store: &Store, positions: usize) {
        let mut compactor = Compactor::new(READER);
        while self.compacted.len() < self.pending.len() {
            let step = self.plan(store, &mut compactor, positions);
            self.take(&step);
            store.put_compacted(&step, &self.state()).unwrap();
        }
    }

    fn load(&self, store: &Store) -> Vec<Record> {
        store.load_for(READER, &self.pending.iter().collect::<Vec<_>>()).unwrap()
    }

    fn words(&self, store: &Store) -> Vec<String> {
        self.load(store).iter().map(|record| format!("{} {}", record.sequence.0, brief(record))).collect()
    }
}

/// Returns changes of which many can be coalesced.
fn changes() -> Vec<Change> {
    let replayed = |object| Change::Added { object, cause: Cause::Initial };
    vec![
        replayed(pod("a", "u1", 1)),
        synced(1),
        updated("a", "u1", 1, 2),
        added("b", "u2", 3),
        updated("a", "u1", 2, 4),
        updated("b", "u2", 3, 5),
        deleted("b", "u2", 6),
        added("b", "u3", 7),
        removed("a", "u1", 4),
        added("a", "u1", 4),
        removed("a", "u1", 4),
        updated("c", "u4", 8, 9),
        updated("c", "u4", 9, 10),
        Change::Updated { old: pod("c", "u4", 10), object: pod("c", "u5", 11), cause: Cause::Watch },
        deleted("c", "u5", 12),
        Change::Unchanged { object: pod("b", "u3", 7), cause: Cause::Relist },
    ]
}

fn merged() -> [&'static str; 9] {
    [
        "1 added u1/4",
        "2 synced",
        "6 added u2/5",
        "7 deleted u2/6",
        "8 added u3/7",
        "11 removed u1/4",
        "13 updated u4/10<8",
        "14 updated u5/11<10",
        "15 deleted u5/12",
    ]
}

#[test]
fn merged_records_need_no_log_record() {
    for positions in [1, 3, 100] {
        let opened = fresh();
        let last = changes().len() as u64;
        opened.store.append(&batch(1, &changes())).unwrap();
        let mut slow = Slow::new(&opened, last);
        slow.compact(&opened.store, positions);
        assert_eq!(slow.words(&opened.store), merged(), "in steps of {positions}");
        opened.store.retain(Sequence(last + 1)).unwrap();
        assert_eq!(slow.words(&opened.store), merged());
        let old = slow.load(&opened.store).into_iter().find(|record| record.sequence == Sequence(13)).unwrap();
        assert_eq!(old.old().unwrap().json(), pod("c", "u4", 8).json());
        let opened = opened.crash();
        slow.restore(&opened);
        assert_eq!(slow.words(&opened.store), merged());
        assert_eq!(slow.compacted.len(), 9);
        // Only the state of the one living object remains.
        slow.pending.clear();
        slow.compacted.clear();
        opened.store.put_readers(&[slow.state()]).unwrap();
        assert_eq!((bodies(&opened.store), entries(&opened.store)), (1, 0));
        let opened = opened.crash();
        assert_eq!(opened.recovered.readers[0].compacted, RoaringTreemap::new());
    }
}

fn entries(store: &Store) -> usize {
    store.with("count", |_, files| Ok(files.compacted.len()?)).unwrap()
}

#[test]
fn crash_between_compaction_steps_leaves_usable_store() {
    let last = changes().len() as u64;
    for crash_after in 0..=last {
        let opened = fresh();
        opened.store.append(&batch(1, &changes())).unwrap();
        let mut slow = Slow::new(&opened, last);
        let mut compactor = Compactor::new(READER);
        for _ in 0..crash_after {
            let step = slow.plan(&opened.store, &mut compactor, 1);
            slow.take(&step);
            opened.store.put_compacted(&step, &slow.state()).unwrap();
        }
        // The step is planned and not written.
        drop(slow.plan(&opened.store, &mut compactor, 1));
        let needed = (&slow.pending - &slow.compacted).min().unwrap_or(last + 1);
        opened.store.retain(Sequence(needed)).unwrap();
        let opened = opened.crash();
        slow.restore(&opened);
        slow.compact(&opened.store, 2);
        assert_eq!(slow.words(&opened.store), merged(), "after {crash_after} steps");
    }
}

#[test]
fn torn_compaction_step_is_ignored() {
    let last = changes().len() as u64;
    let opened = fresh();
    opened.store.append(&batch(1, &changes())).unwrap();
    let mut slow = Slow::new(&opened, last);
    slow.compact(&opened.store, 100);
    let Opened { store, dir, .. } = opened;
    drop(store);
    let path = journal_file(dir.path());
    let mut journal = fs::read(&path).unwrap();
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).unwrap() - 3);
    fs::write(&path, journal).unwrap();
    let opened = reopened(dir);
    slow.restore(&opened);
    assert_eq!((slow.pending.len(), slow.compacted.len(), entries(&opened.store)), (last, 0, 0));
    assert_eq!(slow.words(&opened.store).len() as u64, last);
}

#[test]
fn repeated_compaction_step_changes_nothing() {
    let last = changes().len() as u64;
    let opened = fresh();
    opened.store.append(&batch(1, &changes())).unwrap();
    let mut slow = Slow::new(&opened, last);
    let mut compactor = Compactor::new(READER);
    while slow.compacted.len() < slow.pending.len() {
        let step = slow.plan(&opened.store, &mut compactor, 2);
        slow.take(&step);
        opened.store.put_compacted(&step, &slow.state()).unwrap();
        opened.store.reopen().unwrap();
        opened.store.put_compacted(&step, &slow.state()).unwrap();
    }
    assert_eq!(slow.words(&opened.store), merged());
    assert_eq!(entries(&opened.store), merged().len());
}

#[test]
fn acknowledged_records_leave_running_compaction_step() {
    let opened = fresh();
    opened.store.append(&batch(1, &changes())).unwrap();
    let mut slow = Slow::new(&opened, changes().len() as u64);
    let step = slow.plan(&opened.store, &mut Compactor::new(READER), 100);
    slow.take(&step);
    slow.pending.remove(1);
    slow.compacted.remove(1);
    opened.store.put_compacted(&step, &slow.state()).unwrap();
    assert_eq!(slow.words(&opened.store), merged()[1..]);
    assert_eq!(entries(&opened.store), merged().len() - 1);
}

#[test]
fn removed_reader_leaves_nothing_behind() {
    let opened = fresh();
    let last = changes().len() as u64;
    opened.store.append(&batch(1, &changes())).unwrap();
    let mut slow = Slow::new(&opened, last);
    slow.compact(&opened.store, 100);
    let other = StoredReader { name: format!("{READER}\0"), ..slow.state() };
    opened.store.put_readers(&[other]).unwrap();
    opened.store.retain(Sequence(last + 1)).unwrap();
    // This is the state after only the first of its writes.
    let name = READER.as_bytes();
    opened.store.with("cut", |_, files| Ok(files.readers.remove(name)?)).unwrap();
    let opened = opened.crash();
    assert_eq!((entries(&opened.store), bodies(&opened.store)), (0, 1));

    let mut slow = Slow::new(&opened, last);
    slow.pending.clear();
    opened.store.append(&batch(last + 1, &changes())).unwrap();
    slow.pending.extend(last + 1..=last * 2);
    slow.compact(&opened.store, 100);
    assert_eq!(entries(&opened.store), merged().len());
    opened.store.remove_reader(READER).unwrap();
    assert_eq!(entries(&opened.store), 0);
    assert!(opened.store.load_for(READER, &[last + 1]).unwrap().len() == 1, "the log has it");
}

#[test]
fn packed_bodies_are_copied_unchanged() {
    let opened = fresh();
    let with = |n: u64| {
        let json = format!(
            r#"{{"kind":"Pod","metadata":{{"namespace":"ns","name":"p","uid":"u","resourceVersion":"{n}"}},"x":"{}"}}"#,
            "lorem ipsum ".repeat(50)
        );
        let identity = Identity { namespace: "ns", name: "p", uid: "u", resource_version: &n.to_string() };
        Object::assemble(identity, &[json.as_bytes()])
    };
    let change = |n: u64| Change::Updated { old: with(n - 1), object: with(n), cause: Cause::Watch };
    opened.store.append(&batch(1, &(2..=1500).map(change).collect::<Vec<_>>())).unwrap();
    let mut slow = Slow::new(&opened, 1499);
    slow.compact(&opened.store, 400);
    opened.store.retain(Sequence(1500)).unwrap();
    let opened = opened.crash();
    slow.restore(&opened);
    let records = slow.load(&opened.store);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].object().unwrap().json(), with(1500).json());
    assert_eq!(records[0].old().unwrap().json(), with(1).json());
}
