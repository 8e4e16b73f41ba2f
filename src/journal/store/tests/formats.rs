//! Directories of earlier formats.

use fjall::{Database, KeyspaceCreateOptions, PersistMode};

use super::*;

/// Keyspaces of the first format.
const KEYSPACES: [&str; 7] = ["meta", "units", "records", "bodies", "objects", "readers", "dictionaries"];

/// Converts a directory to the first format: without the new keyspace, with shorter heads, and with the old number.
fn first_format(dir: &Path) {
    let db = Database::builder(dir.join(DB)).open().unwrap();
    let compacted = db.keyspace(files::COMPACTED, KeyspaceCreateOptions::default).unwrap();
    db.delete_keyspace(compacted).unwrap();
    let records = db.keyspace("records", KeyspaceCreateOptions::default).unwrap();
    let heads: Vec<_> = records.iter().map(|entry| entry.into_inner().unwrap()).collect();
    for (key, head) in heads {
        let mut head = head.to_vec();
        (head[0], head[3]) = (1, head[3] & 0x7f);
        records.insert(key, head).unwrap();
    }
    db.persist(PersistMode::SyncAll).unwrap();
    assert!(KEYSPACES.iter().all(|name| db.keyspace_exists(name)));
    drop(db);
    fs::write(dir.join("format"), "1\n").unwrap();
}

fn format(dir: &Path) -> String {
    fs::read_to_string(dir.join("format")).unwrap()
}

fn story() -> Vec<Change> {
    let recreated = Change::Updated { old: pod("b", "u2", 3), object: pod("b", "u3", 4), cause: Cause::Watch };
    vec![initial("a", "u1", 1), synced(1), updated("a", "u1", 1, 2), added("b", "u2", 3), recreated]
}

const TOLD: [&str; 5] = ["added u1/1", "synced", "updated u1/2<1", "added u2/3", "updated u3/4<3"];

/// Returns a directory of the first format with data of every kind.
fn of_the_first_format() -> TempDir {
    let Opened { store, dir, .. } = fresh();
    store.bind("cluster").unwrap();
    store.put_unit(&unit(1)).unwrap();
    store.append(&batch(1, &story())).unwrap();
    let pending = (2..=5).collect();
    let reader = StoredReader { name: "one".to_owned(), position: Sequence(5), pending, ..StoredReader::default() };
    store.put_readers(&[reader]).unwrap();
    store.close().unwrap();
    drop(store);
    first_format(dir.path());
    dir
}

#[track_caller]
fn check(opened: &Opened) {
    assert_eq!(format(opened.dir.path()), "2\n");
    assert_eq!(briefs(&opened.store, 1..=9), TOLD);
    assert_eq!(states(&opened.store, 1), ["ns/a u1/2", "ns/b u3/4"]);
    assert_eq!(opened.recovered.units, [unit(1)]);
    let reader = &opened.recovered.readers[0];
    assert_eq!((reader.pending.len(), reader.compacted.len()), (4, 0));
    opened.store.bind("cluster").unwrap();
}

#[test]
fn first_format_directory_is_taken_over_completely() {
    let opened = reopened(of_the_first_format());
    check(&opened);
    assert!(opened.recovered.clean);
    opened.store.append(&batch(6, &[updated("a", "u1", 2, 5)])).unwrap();
    assert_eq!(briefs(&opened.crash().store, [6]), ["updated u1/5<2"]);
}

#[test]
fn interrupted_takeover_is_repeated() {
    // The keyspace is created, and the number is not written.
    let dir = of_the_first_format();
    let opened = reopened(dir);
    let Opened { store, dir, .. } = opened;
    drop(store);
    fs::write(dir.path().join("format"), "1\n").unwrap();
    fs::write(dir.path().join("format.new"), "2").unwrap();
    check(&reopened(dir));
    // Nothing is created yet, and the last append is torn.
    let dir = of_the_first_format();
    let path = journal_file(dir.path());
    let mut journal = fs::read(&path).unwrap();
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    journal.extend(b"\x01 half of something");
    fs::write(&path, journal).unwrap();
    check(&reopened(dir));
}

/// Old records do not tell if an update changed the uid, so the deletion does not replace the update.
#[test]
fn records_of_first_format_merge_only_when_safe() {
    let opened = reopened(of_the_first_format());
    opened.store.append(&batch(6, &[deleted("b", "u3", 5), deleted("a", "u1", 6)])).unwrap();
    let mut compactor = Compactor::new("one");
    opened.store.scan_compacted(&mut compactor).unwrap();
    let held = Held { positions: (1..=7).collect(), may_merge: (1..=7).collect(), ..Held::default() };
    let step = opened.store.plan_compaction(&mut compactor, &held).unwrap();
    let state = StoredReader {
        name: "one".to_owned(),
        position: Sequence(7),
        pending: step.written.clone(),
        compacted: step.written.clone(),
        ..StoredReader::default()
    };
    opened.store.put_compacted(&step, &state).unwrap();
    let words: Vec<_> =
        opened.store.load_for("one", &step.written.iter().collect::<Vec<_>>()).unwrap().iter().map(brief).collect();
    assert_eq!(words, ["added u1/2", "synced", "added u2/3", "updated u3/4<3", "deleted u3/5", "deleted u1/6"]);
}
