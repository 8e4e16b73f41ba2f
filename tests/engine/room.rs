//! `[state] max_bytes`, reached while a handler's sink is down. The waiting events are coalesced and reading continues.
//! After the recovery the handler receives every last state and every deletion.
//!
//! Further tests: `src/journal/room_tests.rs`, and the models of the store beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::state_faults::world::World;
use crate::support::{
    engine::Engine,
    scripted::PATIENCE,
    simulated::{count, row},
    sink::{Manner, Sink as _},
};

const MAX_BYTES: u64 = 128 << 20;
const NAMES: u64 = 8;

/// Returns incompressible text of this length.
pub(super) fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letter = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        char::from(b'!' + u8::try_from(*state % 90).expect("it is small"))
    };
    let letters = std::iter::repeat_with(|| letter(&mut state)).filter(|letter| !"\"\\".contains(*letter));
    letters.take(bytes).collect()
}

fn disk_bytes(engine: &Engine) -> u64 {
    engine.json("/v1/handlers")["journal"]["diskBytes"].as_u64().expect("it is a number")
}

/// Changes all objects, and sometimes recreates one.
fn churn(world: &mut World, engine: &Engine, rounds: std::ops::Range<u64>, filling: &str) -> u64 {
    let mut largest = 0;
    for round in rounds {
        for name in 0..NAMES {
            let name = format!("o{name}");
            if round % 20 == 19 && name == format!("o{}", round / 20 % NAMES) {
                world.cluster.delete(&name);
            }
            world.cluster.put(&name, &format!("{round} {filling}"));
        }
        let bytes = disk_bytes(engine);
        largest = largest.max(bytes);
        if bytes > MAX_BYTES / 2 * 3 {
            // allow for a slow disk
            engine.wait_for("room", PATIENCE * 4, || disk_bytes(engine) <= MAX_BYTES);
        }
        engine.wait_for("reading", PATIENCE * 4, || {
            let last = &engine.json("/v1/handlers")["journal"]["last"];
            last.as_u64() >= Some(world.cluster.events() as u64)
        });
    }
    largest
}

/// Row 19 of the users' requests: changes while a sink is down.
#[test]
fn webhook_outage_uses_bounded_disk_without_loss() {
    let mut world = World::with_state(&format!("max_bytes = \"{MAX_BYTES}B\"\n"));
    let filling = noise(1, 128 << 10);
    let engine = world.run(&[]);
    churn(&mut world, &engine, 0..2, "little");
    world.wait_delivered(&engine);
    world.sink.be(Manner::Gone);
    let mut largest = churn(&mut world, &engine, 2..150, &filling);
    engine.wait_for_log("coalescing records of slow handlers");
    drop(engine); // SIGKILL

    let engine = world.run(&[]);
    largest = largest.max(churn(&mut world, &engine, 150..240, &filling));
    assert!(largest < 3 * MAX_BYTES, "near the bound: {largest}");
    engine.wait_for("below the bound", PATIENCE * 4, || disk_bytes(&engine) <= MAX_BYTES);
    assert!(count(&engine, "coalesced") > 500, "{}", row(&engine));
    world.sink.be(Manner::Well);
    engine.wait_for("all delivered", PATIENCE * 2, || count(&engine, "queued") == 0);
    assert_eq!(row(&engine)["dropped"], 0);

    // The last state of each object, and the deletion of each recreated one.
    let mut states: BTreeMap<String, String> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    for event in world.sink.arrived() {
        let of = |attribute: &str| event[attribute].as_str().expect("it is an attribute").to_owned();
        if of("type").ends_with("deleted") {
            ended.insert(of("id"));
            states.remove(&of("name"));
        } else {
            states.insert(of("name"), of("id"));
        }
    }
    let last = |story: &Vec<String>| story.last().cloned().expect("something happened");
    let expected: BTreeMap<_, _> =
        world.cluster.happened.iter().map(|(name, story)| (name.clone(), last(story))).collect();
    assert_eq!(states, expected);
    let ends = world.cluster.happened.values().flatten().filter(|id| id.ends_with("deleted"));
    assert_eq!(ended, ends.cloned().collect());
    assert!(ended.len() >= 11, "{}", ended.len());
}
