//! The handler that only counts: the cases that can be checked by counters.

use crate::support::{
    engine::{Engine, request, text},
    scripted::PATIENCE,
    simulated::{Simulated, count, row, wait_all},
};

#[test]
fn restart_counts_only_unacknowledged_events() {
    let mut cluster = Simulated::start();
    let state = text(cluster.dir(), "state");
    let config = cluster.config(&format!("type = \"blackhole\"\n[state]\ndir = {state:?}"));
    let engine = Engine::run(cluster.dir(), &config);
    engine.wait_ready(PATIENCE);
    cluster.churn(10, 3);
    wait_all(&engine, 30);
    assert_eq!(request(&engine.http, "POST", "/v1/handlers/out/pause", &[]).expect("it answers").code, 200);
    cluster.churn(10, 2);
    engine.wait_for("queued", PATIENCE, || count(&engine, "queued") == 20);
    assert!(engine.terminate().success());

    cluster.churn(10, 1);
    let engine = Engine::run_again(cluster.dir(), &[]);
    wait_all(&engine, 30);
    assert_eq!((count(&engine, "delivered"), count(&engine, "dropped")), (30, 0), "{}", row(&engine));
    assert!(engine.terminate().success());
}
