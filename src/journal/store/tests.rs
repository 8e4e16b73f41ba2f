mod compaction;
mod faults;
mod formats;
mod model;
mod page;
mod permissions;

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{
    record::{Old, StoredBody},
    wire::Uid,
    *,
};
use crate::{
    change::{Cause, Change, Reached},
    journal::{
        ChangeKind, Held, Record, Sequence, TypeNumber, UnitTerms,
        testing::{added, brief, deleted, initial, pod, removed, synced, updated},
    },
    object::{ChangedBy, Identity, Object, packer::Compression},
};

/// Store in a directory of its own.
struct Opened {
    store: Store,
    recovered: Recovered,
    dir: TempDir,
}

fn fresh() -> Opened {
    reopened(tempfile::tempdir().unwrap())
}

fn reopened(dir: TempDir) -> Opened {
    let (store, recovered) = open(dir.path()).unwrap();
    Opened { store, recovered, dir }
}

impl Opened {
    /// Ends the run without closing the store, and starts the next one.
    fn crash(self) -> Self {
        drop(self.store);
        reopened(self.dir)
    }

    fn close(self) -> Self {
        self.store.close().unwrap();
        reopened(self.dir)
    }
}

fn open(dir: &Path) -> Result<(Store, Recovered), StoreError> {
    open_with(dir, true)
}

/// Opens the store once its lock is free. A process that another test starts holds the lock until its `exec`.
fn open_with(dir: &Path, group_fsync: bool) -> Result<(Store, Recovered), StoreError> {
    for _ in 0..500 {
        match Store::open(dir, group_fsync) {
            Err(error) if matches!(error.fault, Fault::Locked(_)) => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
    Store::open(dir, group_fsync)
}

fn batch(first: u64, changes: &[Change]) -> Append<'_> {
    Append { unit: UnitId(1), first: Sequence(first), time_micros: 7, changes, only: None, reached: None }
}

fn briefs(store: &Store, sequences: impl IntoIterator<Item = u64>) -> Vec<String> {
    store.load(&sequences.into_iter().collect::<Vec<_>>()).unwrap().iter().map(brief).collect()
}

fn states(store: &Store, unit: u32) -> Vec<String> {
    let mut found = Vec::new();
    let mut visit =
        |object: Object| found.push(format!("{} {}/{}", object.key(), object.uid(), object.resource_version()));
    store.objects(UnitId(unit), &mut visit).unwrap();
    found
}

fn bodies(store: &Store) -> usize {
    store.with("count", |_, files| Ok(files.bodies.len()?)).unwrap()
}

fn unit(id: u32) -> StoredUnit {
    StoredUnit {
        id: UnitId(id),
        description: serde_json::json!({"entry": "pods", "n": [1, null]}),
        terms: UnitTerms { resource: TypeNumber(id + 3), late: true, cached: false },
        reached: Reached { generation: 3, store_version: "9".into(), resume_version: "11".into(), synced: true },
        retired: Some(Sequence(77)),
    }
}

/// Returns the active journal file of fjall. A crash damages its end.
fn journal_file(dir: &Path) -> PathBuf {
    tail::active_journal(&dir.join(DB)).unwrap().unwrap()
}

#[test]
fn every_change_survives_crash_and_close() {
    let causes = [Cause::Relist, Cause::Resync { round: 300 }, Cause::Downtime, Cause::Reload, Cause::Replay];
    let mut changes = vec![
        initial("a", "u1", 1),
        synced(1),
        updated("a", "u1", 1, 2),
        Change::Updated { old: pod("a", "u1", 3), object: pod("a", "u1", 3), cause: Cause::Watch },
        Change::Deleted { object: pod("a", "u1", 3), tombstone: true, cause: Cause::Relist },
        added("b", "5f1c0e62-8d9f-4a55-9c54-0123456789ab", 5),
        removed("b", "5f1c0e62-8d9f-4a55-9c54-0123456789ab", 6),
        added("c", "u3", 7),
    ];
    changes.extend(causes.map(|cause| Change::Unchanged { object: pod("c", "u3", 7), cause }));
    let nothing_known = pod("a", "u1", 4);
    changes.push(Change::Updated { old: nothing_known.clone(), object: nothing_known, cause: Cause::Watch });
    let opened = fresh();
    opened.store.append(&batch(1, &changes)).unwrap();
    let expected: Vec<String> = changes.iter().map(|change| format!("{change:?}")).collect();
    let last = changes.len() as u64;
    let check = |opened: &Opened| {
        let loaded = opened.store.load(&(1..=last).collect::<Vec<_>>()).unwrap();
        let found: Vec<String> = loaded.iter().map(|record| format!("{:?}", record.change)).collect();
        assert_eq!(found, expected);
        assert_eq!(*loaded[2].object().unwrap().json(), *pod("a", "u1", 2).json());
        assert_eq!(loaded[2].old().unwrap().json(), pod("a", "u1", 1).json());
        assert!(loaded.last().unwrap().change.lacks_old());
        assert!(loaded.iter().all(|record| record.old_lost == record.change.lacks_old()));
        assert!(loaded.iter().all(|record| record.time_micros == 7 && record.unit == UnitId(1)));
        let mut kinds = Vec::new();
        opened.store.heads(Sequence(2), &mut |head| kinds.push((head.sequence, head.kind, head.cause))).unwrap();
        let of = |(change, sequence): (&Change, u64)| (sequence, ChangeKind::of(change));
        let heads: Vec<_> = kinds.iter().map(|(sequence, kind, _)| (*sequence, *kind)).collect();
        assert_eq!(heads, changes.iter().zip(1..).skip(2).map(of).collect::<Vec<_>>());
        assert_eq!(kinds[7].2, Some(Cause::Resync { round: 300 }));
        assert_eq!(states(&opened.store, 1), ["ns/a u1/4", "ns/c u3/7"]);
    };
    check(&opened);
    let opened = opened.crash();
    assert_eq!((opened.recovered.last, opened.recovered.clean), (Sequence(last), false));
    check(&opened);
    let opened = opened.close();
    assert_eq!((opened.recovered.first, opened.recovered.clean), (Sequence(1), true));
    check(&opened);
}

#[test]
fn record_head_describes_its_record() {
    let opened = fresh();
    let changes = [added("a", "u1", 1)];
    opened.store.append(&Append { only: Some("audit"), time_micros: -5, ..batch(9, &changes) }).unwrap();
    let mut seen = 0;
    let object = pod("a", "u1", 1);
    let mut visit = |head: &Head<'_>| {
        let expected = Head {
            sequence: 9,
            unit: UnitId(1),
            time_micros: -5,
            kind: ChangeKind::Added,
            cause: Some(Cause::Watch),
            tombstone: false,
            only: Some("audit"),
            key: object.key(),
            uid: Uid::Text("u1"),
            resource_version: "1",
            size: object.json().len() as u64,
            body: StoredBody::Own,
            old: Old::None,
            supersedes: None,
            recreates: false,
        };
        assert_eq!(*head, expected);
        seen += 1;
    };
    opened.store.heads(Sequence(8), &mut visit).unwrap();
    opened.store.heads(Sequence(9), &mut |_| panic!("there is nothing behind it")).unwrap();
    assert_eq!(seen, 1);
}

#[test]
fn repeated_append_changes_nothing() {
    let opened = fresh();
    let changes = [added("a", "u1", 1), updated("a", "u1", 1, 2)];
    opened.store.append(&batch(1, &changes)).unwrap();
    opened.store.append(&batch(3, &[updated("a", "u1", 2, 3)])).unwrap();
    opened.store.append(&batch(1, &changes)).unwrap();
    let opened = opened.crash();
    opened.store.append(&batch(1, &changes)).unwrap();
    assert_eq!(briefs(&opened.store, 1..=9), ["added u1/1", "updated u1/2<1", "updated u1/3<2"]);
    assert_eq!(states(&opened.store, 1), ["ns/a u1/3"]);
    opened.store.retain(Sequence(3)).unwrap();
    assert_eq!(briefs(&opened.store, 1..=9), ["updated u1/3<2"]);
}

#[test]
fn old_object_outlives_its_own_record() {
    let opened = fresh();
    opened.store.append(&batch(1, &[added("a", "u1", 1), added("b", "u2", 2)])).unwrap();
    opened.store.append(&batch(3, &[updated("a", "u1", 1, 3)])).unwrap();
    assert_eq!(opened.store.retain(Sequence(3)).unwrap(), Retained { first: Sequence(3), more: false });
    let opened = opened.crash();
    assert_eq!(opened.recovered.first, Sequence(3));
    assert_eq!(briefs(&opened.store, 0..=9), ["updated u1/3<1"]);
    assert_eq!(states(&opened.store, 1), ["ns/a u1/3", "ns/b u2/2"]);
    assert_eq!(bodies(&opened.store), 3);
    opened.store.retain(Sequence(100)).unwrap();
    assert_eq!(bodies(&opened.store), 2);
    assert_eq!(states(&opened.store, 1), ["ns/a u1/3", "ns/b u2/2"]);
    let opened = opened.crash();
    assert_eq!((opened.recovered.first, opened.recovered.last), (Sequence(4), Sequence(3)));
}

#[test]
fn recreated_object_is_another_object() {
    let opened = fresh();
    let changes = [added("a", "u1", 1), deleted("a", "u1", 2), added("a", "u2", 3), updated("a", "u2", 3, 4)];
    opened.store.append(&batch(1, &changes)).unwrap();
    for keep_from in 1..=4 {
        opened.store.retain(Sequence(keep_from)).unwrap();
        let all = ["added u1/1", "deleted u1/2", "added u2/3", "updated u2/4<3"];
        assert_eq!(briefs(&opened.store, 1..=4), all[usize::try_from(keep_from).unwrap() - 1..]);
        assert_eq!(states(&opened.store, 1), ["ns/a u2/4"]);
    }
    opened.store.retain(Sequence(5)).unwrap();
    assert_eq!(bodies(&opened.store), 1);
}

#[test]
fn returning_object_stores_its_body_again() {
    let changes = [added("a", "u1", 1), removed("a", "u1", 1), added("a", "u1", 1), updated("a", "u1", 1, 2)];
    for changes_an_append in 1..=4 {
        let opened = fresh();
        for (first, changes) in (1..).step_by(changes_an_append).zip(changes.chunks(changes_an_append)) {
            opened.store.append(&batch(first, changes)).unwrap();
        }
        opened.store.retain(Sequence(3)).unwrap();
        assert_eq!(briefs(&opened.store, 1..=4), ["added u1/1", "updated u1/2<1"], "{changes_an_append} an append");
        assert_eq!(states(&opened.store, 1), ["ns/a u1/2"]);
        assert_eq!(bodies(&opened.store), 2);
    }
}

#[test]
fn private_record_keeps_states_and_stores_no_body() {
    let opened = fresh();
    opened.store.append(&batch(1, &[added("a", "u1", 1)])).unwrap();
    let attaches = [Change::Added { object: pod("a", "u1", 1), cause: Cause::Replay }];
    opened.store.append(&Append { only: Some("late"), ..batch(2, &attaches) }).unwrap();
    let detaches = [Change::Removed { object: pod("a", "u1", 1), cause: Cause::Reload }];
    opened.store.append(&Append { only: Some("late"), ..batch(3, &detaches) }).unwrap();
    assert_eq!(states(&opened.store, 1), ["ns/a u1/1"]);
    // After a reload the same version may have another body, so the shown body is kept.
    assert_eq!(bodies(&opened.store), 2);
    opened.store.append(&batch(4, &[deleted("a", "u1", 2)])).unwrap();
    opened.store.retain(Sequence(2)).unwrap();
    assert_eq!(briefs(&opened.store, 1..=4), ["added u1/1", "removed u1/1", "deleted u1/2"]);
    opened.store.retain(Sequence(5)).unwrap();
    assert_eq!(bodies(&opened.store), 0);
}

/// Returns an Added object of some KB, much of it common to all of them.
fn big(n: u64) -> Change {
    let (name, version) = (format!("web-{n}"), n.to_string());
    let pairs: Vec<_> = (0..90).map(|i| format!(r#"{{"name":"KEY_{i}","value":"{}"}},"#, i * i * 7919)).collect();
    let value = pairs.concat();
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"{name}","uid":"u{n}","resourceVersion":"{version}"}},"env":[{value}{{}}]}}"#
    );
    let identity = Identity { namespace: "ns", name: &name, uid: &format!("u{n}"), resource_version: &version };
    let object = Object::assemble(identity, &[json.as_bytes()]);
    Change::Added { object, cause: Cause::Initial }
}

#[test]
fn compression_dictionary_survives_restart() {
    let opened = fresh();
    let changes: Vec<Change> = (1..=1500).map(big).collect();
    opened.store.append(&batch(1, &changes[..100])).unwrap();
    opened.store.append(&batch(101, &changes[100..])).unwrap();
    let length = |opened: &Opened, sequence: u64| {
        let value = |files: &Files| Ok(files.bodies.get(body::sequence_key(sequence))?.unwrap().len());
        opened.store.with("measure", |_, files| value(files)).unwrap()
    };
    assert!(length(&opened, 1200) * 4 < length(&opened, 10), "{} {}", length(&opened, 1200), length(&opened, 10));
    let opened = opened.crash();
    opened.store.append(&batch(1501, &[big(1501)])).unwrap();
    assert!(length(&opened, 1501) * 4 < length(&opened, 10));
    let loaded = opened.store.load(&[1, 1200, 1501]).unwrap();
    for (record, n) in loaded.iter().zip([1, 1200, 1501]) {
        assert_eq!(record.object().unwrap().json(), big(n).object().unwrap().json());
    }
}

#[test]
fn bodies_of_every_compression_stay_readable() {
    let mut opened = fresh();
    let ways = [Compression::Zstd, Compression::Lz4, Compression::None, Compression::Lz4];
    let mut next = 1;
    for (run, way) in ways.into_iter().enumerate() {
        opened.store.packer(UnitId(1)).set_compression(way);
        // the first run has enough objects for a dictionary
        let count = if run == 0 { 1500 } else { 5 };
        for part in (next..next + count).map(big).collect::<Vec<_>>().chunks(100) {
            opened.store.append(&batch(next, part)).unwrap();
            next += part.len() as u64;
        }
        // encodings are recognized without the configuration
        opened = opened.crash();
        let mut seen = 0;
        let mut visit = |object: Object| {
            let n = object.uid()[1..].parse().unwrap();
            assert_eq!(object.json(), big(n).object().unwrap().json());
            seen += 1;
        };
        opened.store.objects(UnitId(1), &mut visit).unwrap();
        assert_eq!(seen, next - 1);
    }
    let head = |sequence: u64| {
        let value = |files: &Files| {
            let body = files.bodies.get(body::sequence_key(sequence))?.unwrap();
            Ok((body[0], body[1] > 0))
        };
        opened.store.with("look", |_, files| value(files)).unwrap()
    };
    let expected = [(1, false), (1, true), (3, true), (2, false), (3, true)];
    assert_eq!([1, 1500, 1501, 1506, 1511].map(head), expected, "form, and whether it needs a dictionary");
    assert_eq!(fs::read_to_string(opened.dir.path().join("format")).unwrap(), "2\n", "of the current format");
}

#[test]
fn changed_by_is_stored_only_where_known() {
    let who = |kept: &Object| kept.changed_by().map(|who| (who.manager.into_owned(), who.subresource.into_owned()));
    let (key, plain) = (big(1), big(2));
    let told = Object::from_json(&key.object().unwrap().json()).unwrap().with_changed_by(&ChangedBy {
        manager: "kubelet".into(),
        subresource: "status".into(),
        ..ChangedBy::default()
    });
    for (way, form) in [(Compression::Zstd, 1), (Compression::None, 2), (Compression::Lz4, 3)] {
        let packer = Packer::of_store();
        packer.set_compression(way);
        let written = body::encode_body(&told, &packer);
        let read = |value: &[u8]| body::decode_body(told.key(), value, &packer);
        let back = read(&written).unwrap();
        assert_eq!(who(&back), Some(("kubelet".to_owned(), "status".to_owned())));
        assert_eq!((back.json(), back.identity()), (told.json(), told.identity()));
        assert_eq!(body::encode_body(&back, &packer), written, "also of what came from the state");
        for end in 0..written.len() {
            assert!(read(&written[..end]).is_err(), "{way:?} {end}");
        }
        // an earlier version of the program took the newest entry for the writer
        let marked = Object::from_json(&told.json()).unwrap().with_who(b"kubelet\xffUpdate\xff\xffstatus");
        assert_eq!(marked.who_to_store(), b"");
        let who = told.who();
        let at = written.windows(who.len()).position(|window| window == who).unwrap();
        let mut earlier = written.clone();
        earlier.splice(at - 1..at + who.len(), [&[22][..], b"kubelet\xffUpdate\xff\xffstatus"].concat());
        assert_eq!((read(&earlier).unwrap().json(), read(&earlier).unwrap().who()), (told.json(), &b""[..]), "{way:?}");
        let without = body::encode_body(plain.object().unwrap(), &packer);
        assert_eq!((without[0], written[0]), (form, form + 16));
    }
}

#[test]
fn damaged_or_foreign_body_is_error() {
    for way in [Compression::Zstd, Compression::Lz4] {
        let packer = Packer::of_store();
        packer.set_compression(way);
        let changes: Vec<Change> = (1..=1000).map(big).collect();
        let objects: Vec<Object> = changes.iter().filter_map(Change::object).cloned().collect();
        packer.look_at(objects.iter());
        let value = body::encode_body(&objects[0], &packer);
        let read = |value: &[u8], packer: &Packer| body::decode_body(objects[0].key(), value, packer);
        assert_eq!(read(&value, &packer).unwrap().json(), objects[0].json());
        for end in 0..value.len() {
            assert!(read(&value[..end], &packer).is_err(), "{way:?} {end}");
        }
        for form in [0, 4, 255] {
            assert!(read(&[&[form], &value[1..]].concat(), &packer).is_err(), "{way:?} {form}");
        }
        let other = Packer::of_store();
        assert!(read(&value, &other).unwrap_err().contains("dictionary 1 is missing"));
        other.set_compression(way);
        let others: Vec<Object> = (5000..6000).map(|n| big(n).object().unwrap().clone()).collect();
        other.look_at(others.iter());
        assert!(read(&value, &other).is_err(), "{way:?}: its dictionary 1 is another one");
    }
}

#[test]
fn units_and_readers_round_trip() {
    let mut opened = fresh();
    let pending: RoaringTreemap = [5, 9, 1 << 40].into_iter().collect();
    let mut reader = StoredReader {
        name: "nats/α".to_owned(),
        position: Sequence(4),
        pending: pending.clone(),
        attached: [UnitId(1), UnitId(9)].into(),
        given_up: [3].into_iter().collect(),
        compacted: RoaringTreemap::new(),
    };
    let other = StoredReader { name: "b".to_owned(), ..StoredReader::default() };
    for id in [1, 2] {
        opened.store.put_unit(&unit(id)).unwrap();
    }
    opened.store.put_readers(&[reader.clone(), other.clone()]).unwrap();
    opened = opened.crash();
    assert_eq!(opened.recovered.units, [unit(1), unit(2)]);
    assert_eq!(opened.recovered.readers, [other.clone(), reader.clone()]);

    let reached = Reached { generation: 4, resume_version: "12".into(), ..unit(1).reached };
    opened.store.append(&Append { reached: Some(&reached), ..batch(1, &[]) }).unwrap();
    opened.store.append(&Append { reached: Some(&unit(7).reached), unit: UnitId(7), ..batch(1, &[]) }).unwrap();
    reader.pending = RoaringTreemap::new();
    opened.store.put_readers(std::slice::from_ref(&reader)).unwrap();
    opened.store.remove_reader("b").unwrap();
    opened = opened.crash();
    assert_eq!(opened.recovered.units, [StoredUnit { reached, ..unit(1) }, unit(2)]);
    assert_eq!(opened.recovered.readers, [reader]);
    assert_eq!(opened.recovered.last, Sequence(0));
}

#[test]
fn forgotten_unit_leaves_nothing_behind() {
    let opened = fresh();
    opened.store.put_unit(&unit(1)).unwrap();
    opened.store.put_unit(&unit(2)).unwrap();
    opened.store.append(&batch(1, &[added("a", "u1", 1), added("b", "u2", 1)])).unwrap();
    opened.store.append(&batch(3, &[updated("b", "u2", 1, 2)])).unwrap();
    opened.store.append(&Append { unit: UnitId(2), ..batch(4, &[added("a", "u3", 1)]) }).unwrap();
    opened.store.retain(Sequence(2)).unwrap();
    opened.store.forget_unit(UnitId(1)).unwrap();
    let opened = opened.crash();
    assert_eq!(opened.recovered.units, [unit(2)]);
    assert!(states(&opened.store, 1).is_empty());
    opened.store.retain(Sequence(9)).unwrap();
    assert_eq!(bodies(&opened.store), 1);
    assert_eq!(states(&opened.store, 2), ["ns/a u3/1"]);
}

#[test]
fn retention_does_bounded_work_per_call() {
    let opened = fresh();
    let changes: Vec<Change> = (1..=5000).map(|n| added(&format!("p{n}"), "u", n)).collect();
    opened.store.append(&batch(1, &changes)).unwrap();
    let retained = opened.store.retain(Sequence(5001)).unwrap();
    assert_eq!(retained, Retained { first: Sequence(4097), more: true });
    assert_eq!(briefs(&opened.store, 4090..=4098).len(), 2);
    let retained = opened.store.retain(Sequence(5001)).unwrap();
    assert_eq!(retained, Retained { first: Sequence(5001), more: false });
    assert_eq!(states(&opened.store, 1).len(), 5000);
}

#[test]
fn journal_keeps_id_unless_tail_may_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let run = |group_fsync: bool, clean: bool| {
        let (store, recovered) = open_with(dir.path(), group_fsync).unwrap();
        if clean {
            store.close().unwrap();
        }
        recovered.journal_id
    };
    let first = run(true, false);
    assert_eq!(first.len(), 12);
    assert_eq!(run(false, true), first);
    assert_eq!(run(false, false), first);
    let second = run(true, false);
    assert_ne!(second, first);
    assert_eq!(run(false, true), second);
}

#[test]
fn sparse_body_files_are_released() {
    let opened = fresh();
    let filling = crate::journal::room_tests::noise(64 << 10);
    let object = |name: &str| {
        let head = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}},"data":""#);
        let identity = Identity { namespace: "ns", name, uid: name, resource_version: "1" };
        Object::assemble(identity, &[head.as_bytes(), filling.as_bytes(), br#""}"#])
    };
    // One body of each file is kept.
    let mut last = 0;
    let mut append = |changes: &[Change]| {
        opened.store.append(&batch(last + 1, changes)).unwrap();
        last += changes.len() as u64;
        opened.store.with("flush", |_, files| files.flush()).unwrap();
        last
    };
    let names = |file: u32| (0..20).map(move |number| format!("file{file}-{number}"));
    for file in 0..3 {
        let added = names(file).map(|name| Change::Added { object: object(&name), cause: Cause::Watch });
        append(&added.collect::<Vec<_>>());
    }
    let gone = (0..3).flat_map(|file| names(file).skip(1));
    let gone = gone.map(|name| Change::Deleted { object: object(&name), tombstone: false, cause: Cause::Watch });
    let last = append(&gone.collect::<Vec<_>>());
    while opened.store.retain(Sequence(last + 1)).unwrap().more {}
    assert_eq!(bodies(&opened.store), 3);
    let tables = || opened.store.with("count", |_, files| Ok(files.bodies.disk_space())).unwrap();
    let before = tables();
    for _ in 0..3 {
        opened.store.shrink().unwrap();
    }
    assert!(tables() < before / 10, "{before} bytes before, {} after", tables());
}
