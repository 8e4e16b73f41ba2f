//! Faults of `[state] dir`: a full, read-only or failing disk, damaged files, an unknown format version, and a wall
//! clock that jumps. Each error says what is wrong, where, and what to do; nothing is lost silently.
//!
//! Elsewhere: the state of another cluster (`tests/engine/state.rs`), a server that was restored from a backup
//! (`tests/engine/guards.rs`), power failures (`tests/sinks/crash.rs`), the store alone (`src/journal/store/tests/faults.rs`).

#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

mod clock;
pub(crate) mod world;

use std::{fmt::Write as _, fs, path::Path};

use serde_json::json;

use crate::{
    scopes::{DEFINITIONS, apples},
    support::{
        disk::Trouble,
        scripted::PATIENCE,
        simulated::{count, row},
        sink::{Manner, Sink as _},
    },
};
use world::World;

/// Causes a disk fault while the engine runs. The engine reports it, stops reading, and continues by itself afterwards.
fn in_trouble_while_running(trouble: Trouble, says: &str) {
    let mut world = World::new();
    let engine = world.run(&[]);
    world.cluster.churn(10, 3);
    world.wait_delivered(&engine);
    world.disk.set(trouble);
    world.cluster.churn(20, 10);
    let journal = || engine.json("/v1/handlers")["journal"].clone();
    engine.wait_for("not writable", PATIENCE, || journal()["writable"] == false);
    let said = journal()["lastError"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("stopped reading") && said.contains(says) && said.contains(&world.state()), "{said}");
    let (code, ready) = engine.get("/readyz?verbose").expect("it answers");
    assert!(code == 200 && ready.contains("stopped reading"), "what is cached can be read: {code} {ready}");
    let (_, metrics) = engine.get("/metrics").expect("it answers");
    assert!(metrics.contains("deltabus_journal_writable 0"), "{metrics}");
    engine.wait_for_log("the state cannot be written; stopped reading");
    engine.wait_for("tried again", PATIENCE, || engine.log().contains("the state still cannot be written"));
    assert!(count(&engine, "delivered") < world.cluster.events() as u64, "what is not durable is not delivered");

    world.disk.set(Trouble::None);
    world.wait_delivered(&engine);
    engine.wait_for_log("the state can be written again");
    assert_eq!(row(&engine)["dropped"], 0);
    world.check_each_once();
    assert!(engine.terminate().success());

    world.cluster.churn(5, 1);
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_each_once();
}

#[test]
fn full_disk_blocks_reading_until_space_is_free() {
    in_trouble_while_running(Trouble::FullAfter(60_000), "free disk space");
}

#[test]
fn read_only_disk_blocks_reading_until_writable() {
    in_trouble_while_running(Trouble::ReadOnly, "give this user write access");
}

#[test]
fn failing_disk_blocks_reading_until_it_works() {
    in_trouble_while_running(Trouble::Failing, "failed to");
}

/// A type that appears while the disk is full waits for the store. Cached objects stay readable, so the engine stays ready.
#[test]
fn type_waiting_for_full_disk_keeps_engine_ready() {
    let world = World::with_state("[resources.fruit]\nmatch = [\"apples.acme.io\"]\n");
    let engine = world.run(&[]);
    engine.wait_ready(PATIENCE);
    world.disk.set(Trouble::FullAfter(0));
    let store = world.cluster.simulator.store();
    store.create(DEFINITIONS, apples()).expect("a valid definition");
    let fruit = || {
        let answer = engine.json("/v1/resources");
        let mut rows = answer["resources"].as_array().expect("a list of rows").iter();
        rows.find(|row| row["name"] == "fruit").cloned().unwrap_or_default()
    };
    engine.wait_for("found", PATIENCE, || fruit()["plural"] == "apples");
    engine.wait_for("not writable", PATIENCE, || engine.json("/v1/handlers")["journal"]["writable"] == false);
    let (code, ready) = engine.get("/readyz?verbose").expect("the engine answers");
    assert_eq!(code, 200, "{ready}");
    assert!(ready.contains("[+]resource/fruit/apples (listing, waits for the store)"), "{ready}");
    let row = fruit();
    let message = row["message"].as_str().unwrap_or_default();
    assert!(row["synced"] == false && message.contains("free disk space"), "{row}");

    world.disk.set(Trouble::None);
    engine.wait_for("synced", PATIENCE, || fruit()["synced"] == true);
    assert_eq!(fruit()["message"], json!(null));
}

/// Stops or kills an engine during a disk fault. A start then reports the fault and changes nothing. Once the disk works
/// again, nothing is missing.
fn ended_and_started_in_trouble(trouble: Trouble, says: &str, is_clean: bool) {
    let mut world = World::stopping_soon();
    let engine = world.run(&[]);
    world.cluster.churn(10, 3);
    world.wait_delivered(&engine);
    world.disk.set(trouble);
    world.cluster.churn(20, 10);
    engine.wait_for("not writable", PATIENCE, || engine.json("/v1/handlers")["journal"]["writable"] == false);
    let log = engine.log_handle();
    if is_clean {
        let status = engine.terminate();
        let log = log.lock().expect("not poisoned");
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("the state cannot be written; stopped reading"), "{log}");
    } else {
        drop(engine); // SIGKILL
    }
    world.cluster.churn(5, 1);
    for _ in 0..2 {
        let said = world.refusal();
        assert!(said.contains(says) && said.contains(&world.state()), "{said}");
    }
    world.disk.set(Trouble::None);
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_stories();
}

#[test]
fn stop_or_kill_on_full_disk_loses_nothing() {
    for is_clean in [true, false] {
        ended_and_started_in_trouble(Trouble::FullAfter(0), "free disk space", is_clean);
    }
}

#[test]
fn stop_or_kill_on_readonly_disk_loses_nothing() {
    for is_clean in [true, false] {
        ended_and_started_in_trouble(Trouble::ReadOnly, "give this user write access", is_clean);
    }
}

/// Kills an engine with waiting deliveries in its state.
fn killed_with_deliveries_that_wait() -> World {
    let mut world = World::new();
    let engine = world.run(&[]);
    for _ in 0..5 {
        world.cluster.churn(10, 2);
        world.wait_delivered(&engine);
    }
    world.sink.be(Manner::Gone);
    world.cluster.churn(10, 10);
    engine.wait_for("durable", PATIENCE, || {
        let journal = engine.json("/v1/handlers")["journal"].clone();
        count(&engine, "queued") == 100 && journal["durable"] == journal["last"]
    });
    drop(engine); // SIGKILL
    world.sink.be(Manner::Well);
    world
}

/// A damaged tail, as a crash may leave it after the last complete append.
#[test]
fn damaged_tail_is_truncated_and_read_again() {
    let mut world = killed_with_deliveries_that_wait();
    let journal = world.journal_file();
    let mut bytes = fs::read(&journal).expect("it is ours");
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes.extend(b"\x01 half of something");
    fs::write(&journal, bytes).expect("it is ours");
    world.cluster.churn(5, 1);
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_stories();
}

/// Missing files are not a torn tail: without them the engine would start empty and silently lose waiting events.
#[test]
fn missing_or_truncated_files_are_refused_by_name() {
    let mut world = World::new();
    let engine = world.run(&[]);
    world.cluster.churn(10, 2);
    world.wait_delivered(&engine);
    world.sink.be(Manner::Gone);
    world.cluster.churn(10, 10);
    let seal = Path::new(&world.state()).join("seal");
    engine.wait_for("sealed", PATIENCE, || {
        let journal = engine.json("/v1/handlers")["journal"].clone();
        let last = journal["last"].as_u64().expect("a number");
        let sealed = fs::read_to_string(&seal).unwrap_or_default();
        count(&engine, "queued") == 100 && sealed.contains(&format!("\"last\":{last},"))
    });
    drop(engine); // SIGKILL
    world.sink.be(Manner::Well);

    let refused = |world: &World, path: &Path, part: &str| {
        for _ in 0..2 {
            let said = world.refusal();
            let parts = ["has lost durable data", part, "move the directory", "undelivered events are lost"];
            for part in parts {
                assert!(said.contains(part), "{part}, without {}: {said}", path.display());
            }
        }
    };
    let aside = world.cluster.dir().join("aside");
    let db = Path::new(&world.state()).join("db");
    let journal = world.journal_file();
    let keyspaces =
        fs::read_dir(db.join("keyspaces")).expect("it is there").map(|entry| entry.expect("readable").path());
    let markers: Vec<_> = keyspaces.map(|keyspace| keyspace.join("current")).collect();
    assert!(markers.len() >= 8, "{markers:?}");
    for marker in markers {
        fs::rename(&marker, &aside).expect("the directory is writable");
        refused(&world, &marker, &format!("{} is missing", marker.display()));
        fs::rename(&aside, &marker).expect("the directory is writable");
    }
    fs::rename(&db, &aside).expect("the directory is writable");
    refused(&world, &db, "is missing");
    assert!(!db.exists(), "a refusal changes nothing");
    fs::rename(&aside, &db).expect("the directory is writable");
    // Writes made after the file was missing or shortened are not part of the state.
    let whole = fs::read(&journal).expect("it is ours");
    let short = whole[..whole.iter().rposition(|byte| *byte != 0).unwrap_or_default() / 2].to_vec();
    for content in [Some(short), None] {
        match content {
            Some(short) => fs::write(&journal, short).expect("it is ours"),
            None => fs::remove_file(&journal).expect("it is ours"),
        }
        refused(&world, &journal, "records up to ");
        fs::write(&journal, &whole).expect("it is ours");
    }
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_stories();
}

#[test]
fn damage_in_middle_names_file_and_changes_nothing() {
    let mut world = killed_with_deliveries_that_wait();
    let journal = world.journal_file();
    let whole = fs::read(&journal).expect("it is ours");
    let mut damaged = whole.clone();
    // Later writes prove that this part was synced.
    let middle = whole.iter().rposition(|byte| *byte != 0).unwrap_or_default() / 3;
    damaged[middle..middle + 100].fill(0x55);
    fs::write(&journal, &damaged).expect("it is ours");
    for _ in 0..2 {
        let said = world.refusal();
        for part in [journal.to_str().expect("text"), "is damaged", "move the directory", "undelivered events are lost"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!(fs::read(&journal).expect("it is ours") == damaged, "it is left as it is, for whoever wants to look");

    // The file is restored from a backup, or by a file system check.
    fs::write(&journal, whole).expect("it is ours");
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_stories();
    assert!(engine.terminate().success());

    // Follow the error message.
    fs::rename(world.state(), world.cluster.dir().join("state.damaged")).expect("the directory is writable");
    let engine = world.run(&[]);
    let objects = world.cluster.simulator.store().len("configmaps");
    engine.wait_for("listed anew", PATIENCE, || engine.json("/v1/resources")["resources"][0]["objects"] == objects);
    world.cluster.churn(5, 1);
    world.wait_delivered(&engine);
}

#[test]
fn unknown_format_is_refused_with_advice() {
    let world = killed_with_deliveries_that_wait();
    let format = world.cluster.dir().join("state/format");
    let known = fs::read_to_string(&format).expect("it is ours");
    let journal = fs::read(world.journal_file()).expect("it is ours");
    let newer = "run the newer deltabus that wrote it, or move the directory away";
    for (found, says) in [("3", newer), ("99", newer), ("0", "expected a format number"), ("", "is damaged")] {
        fs::write(&format, found).expect("it is ours");
        let said = world.refusal();
        assert!(said.contains(says) && said.contains(&world.state()), "{found:?}: {said}");
        assert_eq!(fs::read_to_string(&format).expect("it is ours"), found);
    }
    assert!(fs::read(world.journal_file()).expect("it is ours") == journal, "nothing was touched");
    fs::write(&format, known).expect("it is ours");
    let engine = world.run(&[]);
    world.wait_delivered(&engine);
    world.check_stories();
}

/// A file system that is not writable at the first start, and a path that is not a directory.
#[test]
fn unusable_directory_is_named_at_start() {
    let world = World::new();
    for trouble in [Trouble::ReadOnly, Trouble::FullAfter(0), Trouble::Failing] {
        world.disk.set(trouble);
        let said = world.refusal();
        let says = "let this user write there";
        assert!(said.contains(says) && said.contains(&world.state()), "{trouble:?}: {said}");
    }
    world.disk.set(Trouble::None);
    fs::remove_dir_all(world.state()).expect("it is ours");
    fs::write(world.state(), "").expect("it is ours");
    let said = world.refusal();
    assert!(said.contains(&world.state()), "{said}");
    fs::remove_file(world.state()).expect("it is ours");
    let engine = world.run(&[]);
    engine.wait_ready(PATIENCE);
}

/// Returns incompressible text.
fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::new();
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        write!(text, "{state:016x}").expect("memory");
    }
    text
}

/// Damage in parts that are not read at the start. Handlers that wait for them get the preceding events, and no wrong ones.
#[test]
fn damage_found_at_run_time_is_named() {
    const EVENTS: u64 = 1200;
    let mut world = World::stopping_soon();
    let engine = world.run(&[]);
    world.sink.be(Manner::Gone);
    for event in 0..EVENTS {
        world.cluster.put(&format!("o{}", event % 10), &noise(event, 10_000));
    }
    engine.wait_for("all read", PATIENCE * 2, || count(&engine, "queued") == EVENTS);
    assert!(engine.terminate().success());
    let bodies = world.files_in("blobs");
    assert!(!bodies.is_empty(), "bodies are in files of their own");
    for file in bodies {
        let mut bytes = fs::read(&file).expect("it is ours");
        let len = bytes.len();
        bytes[len / 4..len / 2].fill(0x55); // opening the file checks its end
        fs::write(&file, bytes).expect("it is ours");
    }

    world.sink.be(Manner::Well);
    let engine = world.run(&[]);
    let says = |said: &str| ["is damaged", "move the directory", &world.state()].iter().all(|part| said.contains(part));
    engine.wait_for("found", PATIENCE, || {
        let journal = engine.json("/v1/handlers")["journal"].clone();
        journal["writable"] == false && says(journal["lastError"].as_str().unwrap_or_default())
    });
    engine.wait_for("said", PATIENCE, || says(&engine.log()));
    // the events before the damage are delivered
    engine.wait_for("delivered", PATIENCE, || world.stories(true).values().any(|story| !story.is_empty()));
    for (name, story) in world.stories(true) {
        assert!(world.cluster.happened[&name].starts_with(&story), "{name}: {story:?}");
    }
    assert_eq!(count(&engine, "dropped"), 0, "it is still there, for whoever can mend it");
    assert!(engine.terminate().success());

    fs::rename(world.state(), world.cluster.dir().join("state.damaged")).expect("the directory is writable");
    let engine = world.run(&[]);
    let objects = world.cluster.simulator.store().len("configmaps");
    engine.wait_for("listed anew", PATIENCE, || engine.json("/v1/resources")["resources"][0]["objects"] == objects);
    world.cluster.put("o0", "after it");
    let id = world.cluster.happened["o0"].last().cloned().expect("it was just put");
    engine.wait_for("delivered", PATIENCE, || world.stories(true)["o0"].contains(&id));
}
