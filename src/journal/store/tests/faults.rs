//! External faults of a store: crashes, torn and damaged files, other processes, full disks.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    process::{Command, Stdio},
};

use super::*;

/// Makes 20 separate appends of three records each. Returns the directory, and its journal file without the zeros behind the last
/// append.
fn twenty_appends(sync: bool) -> (TempDir, Vec<u8>) {
    let opened = fresh();
    for n in 0..20 {
        let at = n * 3 + 1;
        let name = format!("p{n}");
        let changes = [added(&name, "u", at), updated(&name, "u", at, at + 1), updated(&name, "u", at + 1, at + 2)];
        opened.store.append(&batch(at, &changes)).unwrap();
        if sync {
            opened.store.sync().unwrap();
        }
    }
    let Opened { store, dir, .. } = opened;
    drop(store);
    let mut journal = fs::read(journal_file(dir.path())).unwrap();
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    (dir, journal)
}

/// Returns the ends of the batches in a journal file.
fn ends(journal: &[u8]) -> Vec<usize> {
    memchr::memmem::find_iter(journal, b"FJL\x03").map(|at| at + 4).collect()
}

fn check_prefix(dir: TempDir, records: u64) -> TempDir {
    let opened = reopened(dir);
    assert_eq!(opened.recovered.last, Sequence(records));
    assert_eq!(briefs(&opened.store, 1..=60).len() as u64, records);
    assert_eq!(states(&opened.store, 1).len() as u64, records / 3);
    // The store continues from there.
    opened.store.append(&batch(records + 1, &[added("next", "u", 1)])).unwrap();
    let opened = opened.crash();
    assert_eq!(opened.recovered.last, Sequence(records + 1));
    assert_eq!(briefs(&opened.store, [records + 1]), ["added u/1"]);
    drop(opened.store);
    opened.dir
}

#[test]
fn torn_tail_leaves_whole_appends() {
    let (mut dir, journal) = twenty_appends(false);
    let seal = fs::read(dir.path().join("seal")).unwrap();
    // Each time the directory is in the state after the crash.
    let write = |dir: &TempDir, journal: &[u8]| {
        fs::write(dir.path().join("seal"), &seal).unwrap();
        fs::write(journal_file(dir.path()), journal).unwrap();
    };
    let ends = ends(&journal);
    let (last, before) = (ends[ends.len() - 1], ends[ends.len() - 2]);
    assert_eq!(last, journal.len());
    let cuts = [before + 1, before + 13, before + 60, before.midpoint(last), last - 5, last - 1];
    let flips = [before, before + 3, before + 20, before.midpoint(last), last - 6, last - 1];
    for cut in cuts {
        write(&dir, &journal[..cut]);
        dir = check_prefix(dir, 57);
    }
    for flip in flips {
        let mut torn = journal.clone();
        torn[flip] ^= 0x55;
        torn.resize(1 << 20, 0);
        write(&dir, &torn);
        dir = check_prefix(dir, 57);
    }
    // Pages may reach the disk in any order.
    let mut torn = journal.clone();
    let hole = ends[ends.len() - 4];
    torn[hole + 20..hole + 60].fill(0);
    write(&dir, &torn);
    check_prefix(dir, 51);
}

#[test]
fn damage_to_synced_data_is_no_torn_tail() {
    let (dir, mut journal) = twenty_appends(true);
    let ends = ends(&journal);
    journal[ends[ends.len() - 4] + 30] ^= 0x55;
    let path = journal_file(dir.path());
    fs::write(&path, &journal).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(&error.fault, Fault::Corrupt { file, .. } if *file == path), "{error}");
    let text = error.to_string();
    for part in ["move the directory", "listed again", "undelivered events are lost", path.to_str().unwrap()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(fs::read(&path).unwrap(), journal, "it is left as it is, for whoever wants to look");
}

#[test]
fn damaged_or_missing_file_is_named() {
    let opened = fresh();
    let changes: Vec<Change> = (1..=3000).map(|n| added(&format!("p{n}"), "u", n)).collect();
    opened.store.append(&batch(1, &changes)).unwrap();
    opened.store.with("flush", |_, files| files.flush()).unwrap();
    let tables = opened.store.with("look", |_, files| Ok(files.records.path().join("tables"))).unwrap();
    let Opened { store, dir, .. } = opened;
    drop(store);
    let table = fs::read_dir(&tables).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&table).unwrap();
    let mut damaged = whole.clone();
    damaged[2000..2100].fill(0x55);
    fs::write(&table, damaged).unwrap();
    let read = open(dir.path()).and_then(|(store, _)| store.load(&(1..=3000).collect::<Vec<_>>()));
    let error = read.unwrap_err();
    assert!(matches!(error.fault, Fault::Corrupt { .. }), "{error}");
    fs::remove_file(&table).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error.fault, Fault::Corrupt { .. }), "{error}");
}

#[test]
fn second_process_is_refused() {
    let opened = fresh();
    let error = Store::open(opened.dir.path(), true).unwrap_err();
    assert!(matches!(error.fault, Fault::Locked(Some(pid)) if pid == std::process::id()), "{error}");
    let clone = opened.store.clone();
    opened.store.close().unwrap();
    assert!(matches!(clone.sync().unwrap_err().fault, Fault::Closed));
    assert!(matches!(clone.reopen().unwrap_err().fault, Fault::Closed));
    open(opened.dir.path()).unwrap();
}

#[test]
fn newer_or_unknown_format_is_refused_untouched() {
    let Opened { store, dir, .. } = fresh();
    drop(store);
    let journal = fs::metadata(journal_file(dir.path())).unwrap().modified().unwrap();
    fs::write(dir.path().join("format"), "3\n").unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(matches!(error.fault, Fault::NewerFormat { found: 3, known: 2 }), "{error}");
    for odd in ["", "0", "one"] {
        fs::write(dir.path().join("format"), odd).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(&error.fault, Fault::Corrupt { file, .. } if file.ends_with("format")), "{error}");
    }
    assert_eq!(fs::metadata(journal_file(dir.path())).unwrap().modified().unwrap(), journal);
}

#[test]
fn state_belongs_to_one_cluster() {
    let opened = fresh();
    opened.store.bind("cluster-1").unwrap();
    let opened = opened.crash();
    opened.store.bind("cluster-1").unwrap();
    let error = opened.store.bind("cluster-2").unwrap_err();
    assert!(matches!(&error.fault, Fault::OtherCluster { bound_to, .. } if bound_to == "cluster-1"), "{error}");
}

#[test]
fn unwritable_directory_is_named() {
    // No user can create a directory there, not even root.
    let error = open(Path::new("/sys/deltabus")).unwrap_err();
    assert!(error.to_string().starts_with("cannot write to the state directory"), "{error}");
    assert!(error.to_string().contains("/sys/deltabus"), "{error}");
}

/// Returns a command that runs `play` of [`child_process_plays_its_part`] in a child process.
fn child(play: &str, dir: &Path, wrapper: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut words: Vec<&str> = wrapper.to_vec();
    words.push(own.to_str().unwrap());
    words.extend(["--exact", "journal::store::tests::faults::child_process_plays_its_part", "--nocapture"]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("STORE_TEST_PLAY", play).env("STORE_TEST_DIR", dir);
    command
}

/// Runs the parts of the tests below that need a child process. Does nothing when run alone.
#[test]
fn child_process_plays_its_part() {
    let Ok(play) = std::env::var("STORE_TEST_PLAY") else { return };
    let dir = PathBuf::from(std::env::var("STORE_TEST_DIR").unwrap());
    match play.as_str() {
        "append" => append_for_ever(&dir),
        "full" => fill_the_disk(&dir),
        "read-only" => find_it_read_only(&dir),
        other => panic!("no such part: {other}"),
    }
}

fn append_for_ever(dir: &Path) {
    let (store, recovered) = open(dir).unwrap();
    for first in (recovered.last.0 + 1..).step_by(5) {
        let changes: Vec<Change> = (first..first + 5).map(|n| added(&format!("p{n}"), "u", n)).collect();
        store.append(&batch(first, &changes)).unwrap();
        store.sync().unwrap();
        println!("\nsynced {}", first + 4);
    }
}

#[test]
fn synced_records_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut promised = 0;
    for round in 1..=4 {
        let mut child = child("append", dir.path(), &[]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let target = promised + 40 * round;
        for line in lines.by_ref() {
            promised = line.strip_prefix("synced ").map_or(promised, |last| last.parse().unwrap());
            if promised >= target {
                break;
            }
        }
        child.kill().unwrap();
        promised = lines.filter_map(|line| line.strip_prefix("synced ")?.parse().ok()).last().unwrap_or(promised);
        child.wait().unwrap();
        assert!(promised >= target);
        let (store, recovered) = open(dir.path()).unwrap();
        assert!(recovered.last.0 >= promised, "{} of {promised}", recovered.last.0);
        assert!(!recovered.clean);
        assert_eq!(recovered.last.0 % 5, 0, "whole appends");
        assert_eq!(briefs(&store, 1..=recovered.last.0).len() as u64, recovered.last.0);
        promised = recovered.last.0;
    }
}

/// Runs `play` in a child process with a separate small file system. Fails if the operating system does not allow this.
fn in_a_small_file_system(play: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mount = r#"mount -t tmpfs -o size=24m tmpfs "$STORE_TEST_DIR" && exec "$@""#;
    let child = child(play, dir.path(), &["unshare", "-Urm", "sh", "-c", mount, "sh"]).output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("the part is played"), "{said}");
}

fn remount(dir: &Path, options: &str) {
    let status = Command::new("mount").args(["-o", options]).arg(dir).status().unwrap();
    assert!(status.success());
}

#[test]
fn store_continues_after_full_disk() {
    in_a_small_file_system("full");
}

/// Returns a change whose body does not compress.
fn noise(n: u64) -> Change {
    let mut noise = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut json = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{n}"}},"data":""#);
    for _ in 0..5000 {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        write!(json, "{noise:x}").unwrap();
    }
    json.push_str("\"}");
    let (name, version) = (format!("p{n}"), n.to_string());
    let identity = Identity { namespace: "ns", name: &name, uid: "u", resource_version: &version };
    Change::Added { object: Object::assemble(identity, &[json.as_bytes()]), cause: Cause::Watch }
}

fn fill_the_disk(dir: &Path) {
    let (store, _) = open(dir).unwrap();
    let mut last = 0;
    let is_full = |error: &StoreError| matches!(error.fault, Fault::Failed) || error.to_string().contains("is full");
    let error = loop {
        match store.append(&batch(last + 1, &[noise(last + 1), noise(last + 2)])).and_then(|()| store.sync()) {
            Ok(()) => last += 2,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error), "{error}");
    // While the disk is full there is an error, and no other harm.
    let ballast = dir.join("ballast");
    for _ in 0..3 {
        let reopened = store.reopen();
        let mut file = File::options().create(true).append(true).open(&ballast).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        let again = reopened.and_then(|()| store.append(&batch(last + 1, &vec![noise(last + 1); 100])));
        let error = again.unwrap_err();
        assert!(is_full(&error), "{error}");
    }
    remount(dir, "remount,size=200m");
    store.reopen().unwrap();
    for first in (last + 1..last + 100).step_by(2) {
        store.append(&batch(first, &[noise(first), noise(first + 1)])).unwrap();
        last = first + 1;
    }
    store.sync().unwrap();
    drop(store);
    let (store, recovered) = open(dir).unwrap();
    assert_eq!(recovered.last, Sequence(last));
    let loaded = store.load(&(1..=last).collect::<Vec<_>>()).unwrap();
    assert_eq!(loaded.len() as u64, last);
    assert!(
        loaded.iter().zip(1..).all(|(record, n)| record.object().unwrap().json() == noise(n).object().unwrap().json())
    );
    println!("the part is played");
}

#[test]
fn read_only_file_system_is_named() {
    in_a_small_file_system("read-only");
}

fn find_it_read_only(dir: &Path) {
    let (store, _) = open(dir).unwrap();
    store.append(&batch(1, &[added("a", "u", 1)])).unwrap();
    store.close().unwrap();
    remount(dir, "remount,ro");
    let error = open(dir).unwrap_err();
    assert!(error.to_string().starts_with("cannot write to the state directory"), "{error}");
    println!("the part is played");
}
