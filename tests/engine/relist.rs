//! Lists after the first one: when they happen, their requests and their results. `deltabus run` against the simulator.

use std::time::Duration;

use crate::support::scripted::{FAST, PATIENCE, Scene};
use deltabus::internals::simulator::{
    RequestKind, ServerFault, Simulator, SimulatorOptions, StreamFault, StreamingSupport, Times,
};

/// Ends the watch and expires its history. Meanwhile `a` is updated, `b` deleted, `c` recreated and `d` created.
fn lose_history(scene: &Scene) {
    scene.simulator.go_down();
    scene.engine().wait_for("cut off", PATIENCE, || scene.simulator.open_watches() == 0);
    scene.put("a", "1");
    scene.delete("b");
    scene.delete("c");
    scene.put("c", "1");
    scene.put("d", "1");
    scene.simulator.store().compact();
    scene.simulator.come_up();
}

/// Rules.
#[test]
fn relist_asks_for_last_version_without_limit() {
    let mut scene = Scene::lists();
    let listed = scene.version();
    scene.run_lists("");
    scene.settle();
    lose_history(&scene);
    let ending = scene.finish();
    let asked = scene.asked();
    assert_eq!(asked[0], "list limit=500&resourceVersion=0");
    assert_eq!(asked[1], format!("watch resourceVersion={listed}"));
    let relist = asked.iter().skip(1).position(|asked| asked.starts_with("list")).expect("there was a relist") + 1;
    assert_eq!(asked[relist], format!("list resourceVersion={listed}"), "{asked:?}");
    assert_eq!(asked[relist + 1], format!("watch resourceVersion={}", scene.version()), "{asked:?}");
    assert_eq!(asked.len(), relist + 2, "{asked:?}");
    assert_eq!(ending.story("a"), ["added initial", "updated relist"]);
}

/// Rows 4 and 5 of the users' requests: updates and deletions missed between two watches.
///
/// Rule: C-10.
#[test]
fn relist_finds_deleted_new_and_recreated_objects() {
    for order in ["stream", "per-key"] {
        let mut scene = Scene::lists();
        scene.run_lists(&format!("order = \"{order}\""));
        scene.settle();
        lose_history(&scene);
        let ending = scene.finish();
        assert_eq!(ending.story("a"), ["added initial", "updated relist"], "{order}");
        assert_eq!(ending.story("b"), ["added initial", "deleted relist"], "{order}");
        assert_eq!(ending.story("c"), ["added initial", "deleted relist", "added relist"], "{order}");
        assert_eq!(ending.story("d"), ["added relist"], "{order}");
        assert!(ending.is_tombstone("b") && ending.is_tombstone("c"), "{order}");
    }
}

/// Rule: K-3.
#[test]
fn recreated_update_mode_shows_new_uid_as_update() {
    let mut scene = Scene::lists();
    scene.run_lists("recreated = \"update\"");
    scene.settle();
    lose_history(&scene);
    scene.settle();
    let status = scene.engine.take().expect("it runs").terminate();
    assert_eq!(status.code(), Some(0));
    let events = crate::support::stream::read_events(&scene.dir.path().join("out.jsonl"));
    let story: Vec<_> = events.iter().filter(|event| event["name"] == "c").map(|event| event["type"].clone()).collect();
    assert_eq!(story, ["dev.deltabus.resource.added", "dev.deltabus.resource.updated"]);
}

/// Rule: A-6.
#[test]
fn expired_watch_opening_is_followed_by_list() {
    let mut scene = Scene::lists();
    scene.run_lists("");
    scene.put("a", "1");
    scene.settle();
    let last = scene.version();
    scene.fault(RequestKind::Watch, Times::Next(1), ServerFault::Status { code: 410, retry_after: None });
    scene.simulator.close_connections();
    scene.wait_asked("list", 2);
    scene.put("a", "2");
    let ending = scene.finish();
    let asked = scene.asked();
    assert_eq!(asked[2..4], [format!("watch resourceVersion={last}"), format!("list resourceVersion={last}")]);
    assert_eq!(ending.story("a").len(), 3, "{:?}", ending.story("a"));
}

/// Rule: R-22.
#[test]
fn expired_list_is_repeated_once_without_version() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::List, Times::Next(1), ServerFault::Status { code: 410, retry_after: None });
    scene.run_lists("");
    scene.settle();
    assert_eq!(scene.asked()[..2], ["list limit=500&resourceVersion=0", "list limit=500"]);
    scene.fault(RequestKind::List, Times::Next(1), ServerFault::Status { code: 410, retry_after: None });
    let last = scene.version();
    lose_history(&scene);
    scene.finish();
    let lists: Vec<_> = scene.asked().into_iter().filter(|asked| asked.starts_with("list")).skip(2).collect();
    assert_eq!(lists, [format!("list resourceVersion={last}"), "list ".to_owned()], "neither version nor limit");
}

/// Rule: P-4.
#[test]
fn expired_continue_token_causes_full_list() {
    let mut scene = Scene::new(SimulatorOptions { watch_cache: false, ..SimulatorOptions::default() });
    (0..1200).for_each(|i| scene.put(&format!("n{i}"), "0"));
    scene.fault(
        RequestKind::List,
        Times::After { skip: 1, n: 1 },
        ServerFault::Status { code: 410, retry_after: None },
    );
    scene.run_lists("");
    let ending = scene.finish();
    let asked = scene.asked();
    assert_eq!(asked[0], "list limit=500&resourceVersion=0");
    assert!(asked[1].starts_with("list continue=") && asked[1].ends_with("&limit=500"), "{asked:?}");
    assert_eq!(asked[2], "list resourceVersion=0", "no limit, no continue");
    assert_eq!(ending.replay.events, 1204, "each object once, and synced");
}

/// Rules: P-2, R-21.
#[test]
fn lists_without_watch_cache_are_always_paged() {
    let mut scene = Scene::new(SimulatorOptions { watch_cache: false, ..SimulatorOptions::default() });
    (0..1200).for_each(|i| scene.put(&format!("n{i}"), "0"));
    scene.run_lists("");
    scene.put("a", "1"); // a watch that ends at once without an event would cause a list
    scene.settle();
    let last = scene.version();
    scene.next_watch(0, StreamFault::Error(410));
    scene.simulator.close_connections();
    scene.wait_asked("list", 6);
    scene.finish();
    let lists: Vec<_> = scene.asked().into_iter().filter(|asked| asked.starts_with("list")).collect();
    assert_eq!(lists.len(), 6, "{lists:?}");
    assert_eq!(lists[0], "list limit=500&resourceVersion=0");
    assert_eq!(lists[3], format!("list limit=500&resourceVersion={last}"));
    for page in [1, 2, 4, 5] {
        assert!(lists[page].starts_with("list continue=") && !lists[page].contains("Version"), "{lists:?}");
    }
}

/// Rule: P-3.
#[test]
fn changes_between_pages_come_from_watch() {
    let mut scene = Scene::new(SimulatorOptions { watch_cache: false, ..SimulatorOptions::default() });
    (0..1200).for_each(|i| scene.put(&format!("n{i:04}"), "0"));
    scene.fault(RequestKind::List, Times::After { skip: 1, n: 2 }, ServerFault::Delay(Duration::from_millis(400)));
    scene.run(&format!("streaming_lists = \"never\"\n{FAST}"), "");
    scene.wait_asked("list continue", 1);
    scene.delete("a");
    scene.delete("n1199");
    scene.put("n0700", "1");
    scene.put("z", "1");
    let ending = scene.finish();
    assert_eq!(ending.story("a"), ["added initial", "deleted watch"]);
    assert_eq!(ending.story("n1199"), ["added initial", "deleted watch"]);
    assert_eq!(ending.story("n0700"), ["added initial", "updated watch"]);
    assert_eq!(ending.story("z"), ["added watch"]);
    assert!(!ending.is_tombstone("a"));
}

/// Rules, D-4, D-5.
#[test]
fn restored_etcd_is_followed_backwards() {
    let options = |port| SimulatorOptions {
        port,
        streaming_lists: StreamingSupport::Refused,
        fresh_timeout: Duration::from_millis(200),
        ..SimulatorOptions::default()
    };
    let mut scene = Scene::new(options(0));
    let backup = scene.server();
    // An event's id is uid and version: a return to a state shown before would repeat an id.
    (1..6).for_each(|i| scene.put("a", &i.to_string()));
    scene.run_lists("");
    scene.put("late", "0");
    scene.settle();
    let last = scene.version();

    let port = scene.simulator.address().port();
    scene.simulator.go_down();
    scene.engine().signal("-STOP"); // the engine must not see the server half restored
    let other = Simulator::start(options(0)).expect("a loopback port is free");
    std::mem::replace(&mut scene.simulator, other).stop();
    scene.simulator = Simulator::start(options(port)).expect("the port is free again");
    for name in ["a", "b", "c"] {
        scene.put(name, "0");
    }
    assert_eq!(scene.server(), backup, "the same seed makes the same objects");
    scene.next_watch(0, StreamFault::Error(410));
    scene.engine().signal("-CONT");
    let ending = scene.finish();
    let lists: Vec<_> = scene.asked().into_iter().filter(|asked| asked.starts_with("list")).collect();
    assert_eq!(lists, [format!("list resourceVersion={last}"), "list ".to_owned()]);
    assert_eq!(ending.story("a").last().map(String::as_str), Some("updated relist"), "back to an older state");
    assert_eq!(ending.story("late"), ["added watch", "deleted relist"]);
}

/// Rule: A-8.
#[test]
fn events_never_sent_are_found_by_list() {
    let mut scene = Scene::lists();
    scene.run_lists("");
    scene.put("c", "1"); // a watch that ends at once without an event would cause a list
    scene.settle();
    scene.next_watch(0, StreamFault::Gap(3));
    scene.next_watch(1, StreamFault::Error(410));
    scene.simulator.close_connections();
    scene.wait_asked("watch", 2);
    scene.put("lost", "0");
    scene.delete("a");
    scene.put("b", "1");
    scene.put("seen", "0");
    scene.wait_asked("list", 2);
    let ending = scene.finish();
    assert_eq!(ending.story("a"), ["added initial", "deleted relist"]);
    assert!(ending.is_tombstone("a"));
    assert_eq!(ending.story("b"), ["added initial", "updated relist"]);
    assert_eq!(ending.story("lost"), ["added relist"]);
    assert_eq!(ending.story("seen"), ["added watch"]);
}

/// Rule: R-24.
#[test]
fn wrong_list_kind_fails_only_that_cycle() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::List, Times::Next(1), ServerFault::Table);
    scene.fault(RequestKind::List, Times::After { skip: 1, n: 1 }, ServerFault::WrongList);
    scene.run_lists("");
    scene.finish();
    assert_eq!(scene.count("list limit=500&resourceVersion=0"), 3);
}

/// Rule: R-25.
#[test]
fn forbidden_state_is_shown_and_recovers() {
    let mut scene = Scene::lists();
    scene.fault(RequestKind::Any, Times::Always, ServerFault::Status { code: 403, retry_after: None });
    scene.run(&format!("streaming_lists = \"never\"\n{FAST}"), "");
    scene.wait_state("forbidden");
    let (ready, _) = scene.engine().get("/readyz").expect("it answers");
    assert_eq!(ready, 200, "what is not allowed does not keep the engine from being ready");
    assert_eq!(scene.view()["synced"], false);
    scene.simulator.faults().clear();
    scene.finish();
}

/// Rule: R-25.
#[test]
fn lost_rights_or_type_keep_cache_readable() {
    for (code, state) in [(403, "forbidden"), (404, "waiting")] {
        let mut scene = Scene::lists();
        scene.run_lists("");
        scene.settle();
        let before = scene.cached();
        scene.fault(RequestKind::Any, Times::Always, ServerFault::Status { code, retry_after: None });
        scene.simulator.close_connections();
        scene.wait_state(state);
        scene.put("a", "1");
        assert_eq!(scene.cached(), before, "{code}: still served");
        scene.simulator.faults().clear();
        let ending = scene.finish();
        assert!(!ending.replay.counts.keys().any(|(kind, _)| kind == "deleted"), "{code}: {:?}", ending.replay.counts);
    }
}

/// Row 10 of the users' requests: whole lists in memory at the start.
///
/// Rule: R-33.
#[test]
fn streaming_list_is_one_request_continued_as_watch() {
    let mut scene = Scene::new(SimulatorOptions::default());
    scene.run(FAST, "");
    scene.ready();
    scene.put("a", "1");
    scene.delete("b");
    let ending = scene.finish();
    assert_eq!(scene.asked(), ["watch resourceVersionMatch=NotOlderThan&sendInitialEvents=true"]);
    assert_eq!(ending.story("a"), ["added initial", "updated watch"]);
    assert_eq!(ending.story("b"), ["added initial", "deleted watch"]);
}

/// Rule: R-8.
#[test]
fn streaming_list_after_lost_history_matches_list() {
    let mut scene = Scene::new(SimulatorOptions::default());
    scene.run(FAST, "");
    scene.ready();
    scene.settle();
    let last = scene.version();
    lose_history(&scene);
    let ending = scene.finish();
    let streaming = format!("watch resourceVersion={last}&resourceVersionMatch=NotOlderThan&sendInitialEvents=true");
    assert_eq!(scene.count(&streaming), 1, "{:?}", scene.asked());
    assert_eq!(scene.count("list"), 0);
    assert_eq!(ending.story("c"), ["added initial", "deleted relist", "added relist"]);
}

/// Rules: R-10, D-2.
#[test]
fn server_refusing_streaming_lists_is_asked_once() {
    let mut scene = Scene::lists();
    scene.run(FAST, "");
    scene.ready();
    scene.settle();
    lose_history(&scene);
    scene.finish();
    assert_eq!(scene.count("watch resourceVersionMatch=NotOlderThan&sendInitialEvents=true"), 1);
    assert_eq!(scene.count("list limit=500&resourceVersion=0"), 1, "in the same cycle");
    assert!(!scene.asked().iter().skip(1).any(|asked| asked.contains("sendInitialEvents")), "{:?}", scene.asked());
}

/// Rule: D-2.
#[test]
fn markerless_streams_fall_back_to_paged_lists() {
    let without_marker = |options: SimulatorOptions, silent: bool| {
        let mut scene = Scene::new(options);
        if silent {
            scene.fault(RequestKind::Watch, Times::Next(3), ServerFault::NoMarker);
        }
        scene.run(&format!("watch_timeout = \"1s\"\n{FAST}"), "");
        scene.ready();
        scene.put("a", "1");
        let ending = scene.finish();
        assert_eq!(scene.count("watch resourceVersionMatch=NotOlderThan&sendInitialEvents=true"), 3);
        assert_eq!(scene.count("list"), 1);
        assert_eq!(ending.story("a"), ["added initial", "updated watch"]);
    };
    let ignored = SimulatorOptions { streaming_lists: StreamingSupport::Ignored, ..SimulatorOptions::default() };
    // Each run waits for the ends of three streams.
    std::thread::scope(|scope| {
        scope.spawn(|| without_marker(ignored, false));
        without_marker(SimulatorOptions::default(), true);
    });
}
