//! The cases. Each runs with every handler.

use crate::{
    contract::bench::{BUFFER, Bench},
    support::{
        scripted::PATIENCE,
        simulated::{count, row, wait_above},
        sink::Manner,
    },
};

/// Rule: S-3.
pub(crate) fn events_of_each_object_arrive_in_order(mut bench: Bench) {
    let engine = bench.run();
    bench.churn(20, 5);
    bench.delete("o3");
    bench.put("o3", "under the same name");
    bench.delete("o3");
    bench.churn(20, 2);
    let arrived = bench.settle(&engine);
    assert_eq!(arrived.repeated(), 0, "nothing comes twice where nothing fails");
    assert!(engine.terminate().success());
}

pub(crate) fn refused_events_are_retried_until_accepted(mut bench: Bench) {
    let engine = bench.run();
    bench.churn(10, 2);
    bench.settle(&engine);
    bench.be(Manner::Refuses);
    bench.churn(10, 3);
    wait_above(&engine, "retried", 4);
    bench.churn(10, 2);
    let row = row(&engine);
    assert!(row["lastError"].is_string() && row["queued"].as_u64() > Some(0), "it says why: {row}");
    bench.be(Manner::Well);
    bench.settle(&engine);
    let log = engine.log_handle();
    assert!(engine.terminate().success());
    let log = log.lock().expect("not poisoned");
    assert!(log.lines().any(|line| line.contains("delivers again") && line.contains("out")), "it says so:\n{log}");
    let failures: Vec<_> = log.lines().filter(|line| line.contains("failed to deliver")).collect();
    assert!((1..=2).contains(&failures.len()), "one a minute:\n{log}");
    for field in
        [r#""handler":"out""#, r#""event":"updated default/o"#, r#""attempt":1"#, r#""retry_in":""#, r#""error":""#]
    {
        assert!(failures[0].contains(field), "{field}: {}", failures[0]);
    }
}

/// Rule: G-6.
pub(crate) fn repeated_event_keeps_its_id(mut bench: Bench) {
    let engine = bench.run();
    bench.churn(10, 1);
    bench.settle(&engine);
    bench.be(Manner::Mute);
    bench.churn(10, 2);
    wait_above(&engine, "retried", 0);
    bench.be(Manner::Well);
    let arrived = bench.settle(&engine);
    assert_eq!(arrived.repeated() > 0, bench.sink.shows_repetitions(), "{:?}", arrived.times);
    assert!(engine.terminate().success());
}

/// Rule: S-14.
pub(crate) fn stop_during_batch_loses_nothing(mut bench: Bench) {
    let engine = bench.run();
    bench.churn(10, 3);
    let acknowledged = bench.settle(&engine).times;
    bench.be(Manner::Stuck);
    bench.churn(10, 3);
    wait_above(&engine, "inFlight", 0);
    let log = engine.log_handle();
    assert!(engine.terminate().success(), "a stop that was asked for is success");
    let log = log.lock().expect("not poisoned");
    assert!(
        log.lines().any(|line| line.contains("undelivered events: they are kept") && line.contains("out")),
        "what is left is named:\n{log}"
    );
    drop(log);
    bench.churn(10, 1);
    bench.be(Manner::Well);
    let engine = bench.run();
    let arrived = bench.settle(&engine);
    for id in acknowledged.keys() {
        assert_eq!(arrived.times[id], 1, "E4: {id} was acknowledged before the stop");
    }
    assert!(engine.terminate().success());
}

/// Rule: S-14.
pub(crate) fn stop_during_deliveries_repeats_nothing(mut bench: Bench) {
    bench.stop_at_leisure();
    for _ in 0..3 {
        let engine = bench.run();
        bench.churn(10, 10);
        assert!(engine.terminate().success());
    }
    let engine = bench.run();
    let arrived = bench.settle(&engine);
    assert_eq!(arrived.repeated(), 0);
    assert!(engine.terminate().success());
}

pub(crate) fn unreachable_sink_at_start_is_awaited(mut bench: Bench) {
    bench.be(Manner::Gone);
    let engine = bench.run();
    bench.churn(10, 3);
    engine.wait_for("failing", PATIENCE, || row(&engine)["lastError"].is_string());
    assert_eq!(count(&engine, "delivered"), 0);
    bench.be(Manner::Well);
    bench.settle(&engine);
    assert!(engine.terminate().success());
}

pub(crate) fn sink_gets_everything_after_outage(mut bench: Bench) {
    let engine = bench.run();
    for round in 0..2 {
        bench.churn(10, 4);
        wait_above(&engine, "delivered", round * 60);
        let retried = count(&engine, "retried");
        bench.be(Manner::Gone);
        bench.churn(10, 2);
        wait_above(&engine, "retried", retried);
        bench.be(Manner::Well);
    }
    bench.churn(10, 1);
    bench.settle(&engine);
    assert!(engine.terminate().success());
}

/// Rules: S-2, D-11.
pub(crate) fn stalled_sink_uses_disk_and_delays_none(mut bench: Bench) {
    const EVENTS: usize = 600;
    let engine = bench.run();
    bench.be(Manner::Stuck);
    bench.churn(20, EVENTS / 20);
    let of = |name: &str, what: &str| {
        let rows = engine.json("/v1/handlers");
        let mut rows = rows["handlers"].as_array().expect("a list of rows").iter();
        rows.find(|row| row["name"] == name).expect("it is configured")[what].as_u64().expect("it is a number")
    };
    let all_free = || of("free", "delivered") == EVENTS as u64 && of("free", "queued") == 0;
    engine.wait_for("all with the other handler", PATIENCE, all_free);
    assert!(of("out", "queued") > 4 * BUFFER, "more waits than memory holds: {}", row(&engine));
    bench.be(Manner::Well);
    bench.settle(&engine);
    assert!(engine.terminate().success());
}

pub(crate) fn kill_during_deliveries_loses_nothing(mut bench: Bench) {
    for _ in 0..3 {
        let engine = bench.run();
        bench.churn(10, 8);
        wait_above(&engine, "delivered", 5);
        drop(engine); // SIGKILL
        bench.churn(5, 1);
        bench.delete("o4");
    }
    let engine = bench.run();
    bench.settle(&engine);
    assert!(engine.terminate().success());
}
