//! Effects of a bad server or network on a watch, and the engine's reaction: `deltabus run` against the
//! simulator. The reaction by lists is in `relist.rs`.

use std::time::Duration;

use crate::support::{
    clock::Clock,
    scripted::{FAST, PATIENCE, Scene},
};
use deltabus::internals::{
    object::ObjectKey,
    simulator::{RawObject, RequestKind, SeenRequest, ServerFault, SimulatorOptions, StreamFault, Times},
};
use tokio::time::Instant;

/// Runs a scene whose first watch has shown an event, so that its end is followed by a watch, not by a list (R-44).
fn watching() -> Scene {
    let mut scene = Scene::lists();
    scene.run_lists("");
    scene.put("a", "1");
    scene.settle();
    scene
}

/// Rule: T-1.
#[test]
fn retry_after_responses_repeat_the_same_query() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::List, Times::Next(1), ServerFault::Status { code: 503, retry_after: Some(1) });
    scene.fault(
        RequestKind::List,
        Times::After { skip: 1, n: 1 },
        ServerFault::Status { code: 429, retry_after: Some(1) },
    );
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::Status { code: 429, retry_after: Some(1) });
    scene.run_lists("");
    scene.finish();
    let asked = scene.asked();
    assert_eq!(asked[..3], ["list limit=500&resourceVersion=0"; 3]);
    assert_eq!(asked.len(), 5, "{asked:?}");
    let seen = scene.simulator.requests();
    let watches: Vec<&SeenRequest> = seen.iter().filter(|request| request.verb == RequestKind::Watch).collect();
    assert_eq!(watches[0], watches[1], "timeoutSeconds too");
}

/// Rule: R-40.
#[test]
fn refused_or_throttled_watch_needs_no_list() {
    let mut scene = watching();
    let last = scene.version();
    scene.simulator.go_down();
    scene.engine().wait_for("cut off", PATIENCE, || scene.simulator.open_watches() == 0);
    scene.put("a", "2");
    scene.delete("b");
    std::thread::sleep(Duration::from_millis(300));
    scene.fault(RequestKind::Watch, Times::Next(2), ServerFault::Status { code: 429, retry_after: None });
    scene.simulator.come_up();
    let ending = scene.finish();
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(scene.asked()[2..], vec![format!("watch resourceVersion={last}"); 3]);
    assert_eq!(ending.story("a"), ["added initial", "updated watch", "updated watch"]);
    assert_eq!(ending.story("b"), ["added initial", "deleted watch"]);
}

/// Rule: R-43.
#[test]
fn broken_stream_resumes_from_last_version() {
    for what in [StreamFault::End, StreamFault::Cut, StreamFault::Reset, StreamFault::Truncate] {
        let mut scene = watching();
        scene.next_watch(1, what);
        scene.simulator.close_connections();
        scene.wait_asked("watch", 2);
        scene.put("a", "2");
        scene.put("b", "2"); // half of it, with Truncate
        scene.put("c", "2");
        let ending = scene.finish();
        assert_eq!(scene.count("list"), 1, "{what:?}: {:?}", scene.asked());
        assert_eq!(scene.count("watch"), 3, "{what:?}: {:?}", scene.asked());
        for name in ["b", "c"] {
            assert_eq!(ending.story(name), ["added initial", "updated watch"], "{what:?}");
        }
    }
}

/// Rule: T-3.
#[test]
fn interrupted_list_is_repeated_and_delivers_no_half() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::List, Times::Next(1), ServerFault::ResetAfterBytes(700));
    scene.fault(RequestKind::List, Times::After { skip: 1, n: 1 }, ServerFault::CutAfterBytes(700));
    scene.run_lists("");
    let ending = scene.finish();
    assert_eq!(scene.asked()[..3], ["list limit=500&resourceVersion=0"; 3]);
    assert_eq!(ending.replay.events, 4, "three objects and synced");
}

/// Rules: R-45, R-54.
#[test]
fn stream_that_fails_is_followed_by_list() {
    let broken = [
        ("malformed", StreamFault::Malformed),
        ("unclosed", StreamFault::Unclosed),
        ("longer than max_frame", StreamFault::LongFrame(100_000)),
        ("410", StreamFault::Error(410)),
        ("500", StreamFault::Error(500)),
    ];
    for (name, what) in broken {
        let mut scene = Scene::lists();
        scene.run(&format!("streaming_lists = \"never\"\nmax_frame = \"64KiB\"\n{FAST}"), "");
        scene.ready();
        scene.put("a", "1");
        scene.settle();
        scene.next_watch(1, what);
        scene.simulator.close_connections();
        scene.wait_asked("watch", 2);
        scene.put("a", "2");
        let last = scene.version();
        scene.wait_asked("list", 2);
        scene.put("a", "3");
        let ending = scene.finish();
        assert_eq!(scene.count(&format!("list resourceVersion={last}")), 1, "{name}: {:?}", scene.asked());
        assert_eq!(scene.count("list"), 2, "{name}: {:?}", scene.asked());
        assert_eq!(ending.story("a").len(), 4, "{name}: {:?}", ending.story("a"));
    }
}

/// Rule: R-54.
#[test]
fn large_events_need_no_list() {
    let mut scene = watching();
    for value in ["2", "3", "4", "5", "6"] {
        scene.put("a", &value.repeat(3 << 20));
        scene.settle();
    }
    let ending = scene.finish();
    assert_eq!((scene.count("list"), scene.count("watch")), (1, 1), "{:?}", scene.asked());
    assert_eq!(ending.story("a")[1..], ["updated watch"; 6]);
}

/// Rule: R-54.
#[test]
fn oversized_objects_are_named_counted_and_relisted() {
    let mut scene = Scene::lists();
    scene.run(&format!("streaming_lists = \"never\"\nmax_frame = \"2MiB\"\n{FAST}"), "");
    scene.ready();
    scene.put("a", &"1".repeat(1 << 20));
    scene.settle();
    assert_eq!(scene.view()["unreadable"], 0);
    scene.put("a", &"2".repeat(3 << 20));
    scene.engine().wait_for_log("longer than 2097152 bytes, the limit of [kube] max_frame: default/a");
    scene.wait_asked("list", 2);
    scene.put("a", "3");
    scene.settle();
    let counted = scene.view()["unreadable"].as_u64().expect("a number");
    assert!(counted > 0);
    let (_, metrics) = scene.engine().get("/metrics").expect("it answers");
    assert!(metrics.contains("deltabus_unreadable_answers_total{"), "{metrics}");
    let ending = scene.finish();
    assert_eq!(ending.story("a")[1..], ["updated watch", "updated relist"]);
}

/// Rule: R-45.
#[test]
fn throttled_stream_resumes_without_list() {
    let mut scene = watching();
    scene.next_watch(1, StreamFault::Error(429));
    scene.simulator.close_connections();
    scene.wait_asked("watch", 2);
    scene.put("a", "2");
    let last = scene.version();
    scene.wait_asked(&format!("watch resourceVersion={last}"), 1);
    scene.put("a", "3");
    let ending = scene.finish();
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(ending.story("a")[1..], ["updated watch"; 3]);
}

/// Rules: R-50, R-55.
#[test]
fn foreign_documents_on_stream_are_counted_and_skipped() {
    let mut scene = watching();
    scene.next_watch(1, StreamFault::WrongKind);
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::At { events: 2, what: StreamFault::Table });
    scene.simulator.close_connections();
    scene.wait_asked("watch", 2);
    for value in ["2", "3", "4"] {
        scene.put("a", value);
    }
    scene.settle();
    assert_eq!(scene.view()["skipped"], 2);
    let ending = scene.finish();
    assert!(ending.story("stray").is_empty(), "foreign objects reach nobody");
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(ending.story("a")[1..], ["updated watch"; 4]);
}

/// Rules: R-44, D-1.
#[test]
fn immediately_closed_watches_do_not_storm_server() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::Watch, Times::Always, ServerFault::At { events: 0, what: StreamFault::End });
    scene.run("streaming_lists = \"never\"\nbackoff = { initial = \"200ms\", max = \"400ms\" }", "");
    scene.ready();
    let began = Instant::now();
    scene.simulator.clear_requests();
    std::thread::sleep(Duration::from_secs(3));
    scene.wait_asked("", 2);
    scene.wait_asked("list", 1); // very short watches cause lists
    let asked = scene.asked();
    let most = 2 * began.elapsed().as_millis() / 200;
    assert!(asked.len() as u128 <= most, "{} lists and watches, not {most}: {asked:?}", asked.len());
    scene.simulator.faults().clear();
    scene.finish();
}

/// Rules: R-43, D-1.
#[test]
fn watches_closed_after_bookmark_do_not_storm() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::Watch, Times::Always, ServerFault::At { events: 0, what: StreamFault::LongFrame(8) });
    scene.fault(RequestKind::Watch, Times::Always, ServerFault::At { events: 0, what: StreamFault::End });
    scene.run("streaming_lists = \"never\"\nbackoff = { initial = \"200ms\", max = \"400ms\" }", "");
    scene.ready();
    let began = Instant::now();
    scene.simulator.clear_requests();
    std::thread::sleep(Duration::from_secs(3));
    scene.wait_asked("watch", 2);
    let asked = scene.asked().len();
    let most = began.elapsed().as_millis() / 200;
    assert!(asked as u128 <= most, "{asked} watches, not {most}: the reference sends 7,000 a second");
    assert_eq!(scene.count("list"), 0, "one event makes it a normal end");
    scene.simulator.faults().clear();
    scene.finish();
}

/// Row 7 of the users' requests: it stops without an error.
///
/// Rules: T-5, D-6.
#[test]
fn stream_without_usual_bookmarks_is_reopened() {
    let mut scene =
        Scene::new(SimulatorOptions { bookmark_interval: Duration::from_millis(200), ..SimulatorOptions::default() });
    scene.run(&format!("streaming_lists = \"never\"\nstall_after = \"3s\"\n{FAST}"), "");
    scene.ready();
    scene.put("a", "1");
    std::thread::sleep(Duration::from_millis(1_500));
    scene.next_watch(1, StreamFault::Stall);
    scene.simulator.close_connections();
    scene.wait_asked("watch", 2);
    scene.put("a", "2");
    scene.put("a", "3");
    let stalls = || scene.view()["stalls"].as_u64().is_some_and(|stalls| stalls > 0);
    scene.engine().wait_for("seen as stalled", PATIENCE, stalls);
    let (_, metrics) = scene.engine().get("/metrics").expect("it answers");
    assert!(metrics.contains("deltabus_watch_last_activity_age_seconds{"), "{metrics}");
    let ending = scene.finish();
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(ending.story("a")[1..], ["updated watch"; 3]);
}

/// Rules: T-5, D-6.
#[test]
fn silent_stream_past_its_timeout_is_abandoned() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::At { events: 1, what: StreamFault::Stall });
    let clock = Clock::new(scene.dir.path());
    let kube = format!("streaming_lists = \"never\"\nwatch_timeout = \"2s\"\n{FAST}");
    scene.run_in(&clock.environment(), &kube, "");
    scene.ready();
    scene.put("a", "1");
    scene.engine().wait_for("one event in", PATIENCE, || scene.view()["events"]["updated"] == 1);
    scene.put("a", "2");
    assert_eq!(scene.view()["stalls"], 0);
    clock.skip(20); // 2 … 4 s and 15 s of grace
    scene.engine().wait_for("seen as stalled", PATIENCE, || scene.view()["stalls"] == 1);
    let ending = scene.finish();
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(ending.story("a").len(), 3);
}

/// Rule: T-3.
#[test]
fn watch_cut_off_while_opening_is_reopened() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::Close);
    scene.fault(RequestKind::Watch, Times::After { skip: 1, n: 1 }, ServerFault::Reset);
    scene.run_lists("");
    scene.put("a", "1");
    scene.finish();
    assert_eq!(scene.count("list"), 1, "{:?}", scene.asked());
    assert_eq!(scene.count("watch"), 3, "{:?}", scene.asked());
}

/// Rule: R-40.
#[test]
fn internal_error_on_opening_causes_list() {
    let mut scene = watching();
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::Status { code: 500, retry_after: None });
    scene.simulator.close_connections();
    scene.wait_asked("list", 2);
    scene.put("a", "2");
    let ending = scene.finish();
    assert_eq!(ending.story("a").len(), 3);
}

#[test]
fn unreachable_server_at_start_is_awaited() {
    let mut scene = Scene::lists();
    scene.simulator.go_down();
    scene.run(&format!("streaming_lists = \"never\"\n{FAST}"), "");
    let (ready, why) = scene.engine().get("/readyz").expect("it answers without the API server");
    assert_eq!(ready, 503, "{why}");
    std::thread::sleep(Duration::from_millis(500));
    scene.simulator.come_up();
    scene.finish();
}

#[test]
fn object_without_uid_is_named_by_path() {
    let mut scene = Scene::lists();
    let bare = |value: &str| RawObject {
        key: ObjectKey::new("default", "bare"),
        before: br#""metadata":{"name":"bare","namespace":"default","resourceVersion":""#.to_vec(),
        after: format!(r#""}},"data":{{"value":"{value}"}}}}"#).into_bytes(),
    };
    let ingest = |scene: &Scene, value| {
        scene.simulator.store().ingest("configmaps", [bare(value)]).expect("a served type");
    };
    ingest(&scene, "0");
    scene.run_lists("");
    ingest(&scene, "1");
    scene.settle();
    scene.simulator.go_down();
    scene.engine().wait_for("cut off", PATIENCE, || scene.simulator.open_watches() == 0);
    ingest(&scene, "2");
    scene.simulator.store().compact();
    scene.simulator.come_up();
    scene.settle();
    scene.delete("bare");
    let ending = scene.finish();
    assert_eq!(ending.story("bare"), ["added initial", "updated watch", "updated relist", "deleted watch"]);
}

/// Rule: F-10.
#[test]
fn per_key_order_ends_in_the_same_state() {
    let mut scene = Scene::lists();
    scene.run_lists("order = \"per-key\"");
    for round in 0..20 {
        for name in ["a", "b", "c", "d"] {
            scene.put(name, &round.to_string());
            if round % 3 == 0 {
                scene.delete(name);
            }
        }
        if round % 7 == 0 {
            scene.next_watch(2, StreamFault::Truncate);
            scene.simulator.close_connections();
        }
    }
    scene.finish();
}
