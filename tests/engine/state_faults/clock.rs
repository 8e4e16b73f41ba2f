//! A wall clock that jumps by more than `retention` and `give_up_after`, which are both one day.

use std::{collections::BTreeSet, path::PathBuf};

use crate::support::{
    clock::Clock,
    engine::Engine,
    scripted::PATIENCE,
    simulated::{count, row, wait_above},
    sink::{Manner, Sink as _},
};

use super::world::World;

const DAY: i64 = 24;

fn journal(engine: &Engine, what: &str) -> u64 {
    engine.json("/v1/handlers")["journal"][what].as_u64().expect("it is a number")
}

fn runs(world: &World, clock: &Clock) -> Engine {
    let environment: Vec<(&'static str, PathBuf)> = clock.environment();
    world.run(&environment)
}

/// Deliveries wait while the clock jumps, returns after a restart, and jumps in the other direction.
fn jumps(hours: i64) {
    let mut world = World::stopping_soon();
    let clock = Clock::new(world.cluster.dir());
    let engine = runs(&world, &clock);
    world.cluster.churn(10, 3);
    world.wait_delivered(&engine);
    world.sink.be(Manner::Gone);
    world.cluster.churn(10, 10);
    assert_waits(&engine, 100);
    assert!(engine.terminate().success());
    // Events that are one day old a day after a start are those of the start.
    let engine = runs(&world, &clock);
    let needed = journal(&engine, "needed");

    clock.set_ahead(hours);
    if hours > 0 {
        engine.wait_for("what nobody needs is removed", PATIENCE, || journal(&engine, "first") == needed);
    }
    wait_above(&engine, "retried", count(&engine, "retried") + 3);
    world.cluster.churn(10, 2);
    assert_waits(&engine, 120);
    assert!(journal(&engine, "first") <= needed, "what waits is kept: {}", engine.json("/v1/handlers"));
    assert!(engine.terminate().success());

    clock.set_ahead(0);
    let engine = runs(&world, &clock);
    wait_above(&engine, "retried", 1);
    world.cluster.churn(10, 1);
    assert_waits(&engine, 130);
    clock.set_ahead(-hours);
    wait_above(&engine, "retried", count(&engine, "retried") + 3);
    world.cluster.churn(10, 1);
    assert_waits(&engine, 140);

    world.sink.be(Manner::Well);
    world.wait_delivered(&engine);
    world.check_stories();
    assert_eq!((count(&engine, "dropped"), count(&engine, "deadLettered")), (0, 0), "{}", row(&engine));
    let times: BTreeSet<String> = world.sink.arrived().iter().map(|event| event["time"].to_string()).collect();
    let days: BTreeSet<&str> = times.iter().map(|time| &time[..11]).collect();
    assert!(days.len() >= 3, "the clock jumped: {days:?}");
    assert!(engine.terminate().success());
}

/// Asserts that this number of events wait, none was given up, and their age is plausible.
fn assert_waits(engine: &Engine, events: u64) {
    engine.wait_for("all read", PATIENCE, || count(engine, "queued") >= events);
    let row = row(engine);
    assert_eq!(
        (&row["queued"], &row["dropped"], &row["deadLettered"]),
        (&events.into(), &0.into(), &0.into()),
        "{row}"
    );
    assert!(row["oldestUndeliveredAgeSeconds"].as_f64().is_some_and(|age| age >= 0.0), "{row}");
    assert_ne!(row["state"], "hung", "{row}");
}

#[test]
fn clock_jump_ahead_loses_no_waiting_event() {
    jumps(DAY + 1);
}

#[test]
fn clock_jump_back_loses_no_waiting_event() {
    jumps(-DAY - 1);
}

#[test]
fn retention_survives_clock_set_back() {
    let mut world = World::new();
    let clock = Clock::new(world.cluster.dir());
    clock.set_ahead(DAY + 1);
    let engine = runs(&world, &clock);
    world.cluster.churn(10, 10);
    world.wait_delivered(&engine);
    let last = journal(&engine, "last");
    assert!(engine.terminate().success());
    // The clock is correct again: no event counts as old.
    clock.set_ahead(0);
    let engine = runs(&world, &clock);
    world.cluster.churn(10, 2);
    world.wait_delivered(&engine);
    assert_eq!(journal(&engine, "first"), 1);
    clock.set_ahead(DAY + 1);
    engine.wait_for("removed", PATIENCE, || journal(&engine, "first") > last);
    world.cluster.churn(10, 1);
    world.wait_delivered(&engine);
    world.check_each_once();
    assert!(engine.terminate().success());
}
