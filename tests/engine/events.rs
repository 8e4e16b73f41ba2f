//! `/v1/events` of `deltabus run`: the events of a subscriber, its position after a reconnect, and its errors.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::support::{
    engine::{Engine, request, text},
    listener::{Block, Heard, Listener},
    scripted::PATIENCE,
    simulated::Simulated,
};
use serde_json::{Value, json};

const NOWHERE: &str = "type = \"blackhole\"";

/// Returns a configuration with a state directory.
fn with_state(world: &Simulated, more: &str) -> String {
    format!("[state]\ndir = {:?}\n{more}\n{}", text(world.dir(), "state"), world.config(NOWHERE))
}

fn run(world: &Simulated, config: &str) -> Engine {
    let engine = Engine::run(world.dir(), config);
    engine.wait_ready(PATIENCE);
    engine
}

fn listen(engine: &Engine, query: &str) -> Listener {
    Listener::open(&engine.http, query, &[]).placed()
}

fn metric(engine: &Engine, name: &str) -> u64 {
    let (_, text) = engine.get("/metrics").unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

/// Returns the largest send buffer of an engine connection: bytes unsent or not acknowledged.
#[cfg(target_os = "linux")]
fn unsent(engine: &Engine) -> u64 {
    let port: u16 = engine.http.rsplit(':').next().unwrap().parse().unwrap();
    let is_local = |address: &str| address.ends_with(&format!(":{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_engine = rows.filter(|row| is_local(row[1]) && row[3] == "01");
    let queues = of_engine.map(|row| u64::from_str_radix(row[4].split(':').next().unwrap(), 16).unwrap());
    queues.max().expect("it has connections")
}

#[test]
fn subscriber_gets_each_change_in_order() {
    let mut world = Simulated::start();
    world.put("before", "1");
    let engine = world.run(NOWHERE);
    let mut listener = listen(&engine, "");
    assert!(listener.head.contains("200 OK") && listener.head.contains("content-type: text/event-stream"));
    world.put("a", "1");
    world.put("a", "2");
    world.delete("a");
    let heard: Vec<_> = (0..3).map(|_| listener.next().unwrap()).collect();
    let said: Vec<_> = heard.iter().map(Heard::say).collect();
    assert_eq!(said, ["added watch a", "updated watch a", "deleted watch a"], "what existed before is no news");
    let ids: Vec<_> = heard.iter().map(|heard| heard.event["id"].as_str().unwrap()).collect();
    assert_eq!(ids, world.happened["a"]);
    for heard in &heard {
        let place =
            format!("{}.{}", heard.event["journal"].as_str().unwrap(), heard.event["sequence"].as_str().unwrap());
        assert_eq!(heard.id, place);
        assert_eq!(heard.event["type"], format!("dev.deltabus.resource.{}", heard.word));
    }
    assert!(heard.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!(heard[1].event["data"]["old"]["data"]["x"], "1");
    assert_eq!(metric(&engine, "deltabus_subscribers "), 1);
    assert_eq!(metric(&engine, "deltabus_subscriber_events_total "), 3);
    assert!(engine.terminate().success());
    assert_eq!(listener.next(), None, "the stream ends with the engine");
}

#[test]
fn json_lines_carry_the_same_events() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut sse = listen(&engine, "");
    let mut lines = Listener::open(&engine.http, "", &[("Accept", "application/x-ndjson")]);
    assert!(lines.head.contains("content-type: application/x-ndjson"));
    assert_eq!(lines.line().unwrap(), "", "a line at once: the stream is open");
    world.put("a", "1");
    let line: Value = serde_json::from_str(&lines.line().unwrap()).unwrap();
    assert_eq!(line, sse.next().unwrap().event);
}

#[test]
fn initial_state_comes_first_without_duplicates() {
    let mut world = Simulated::start();
    world.churn(20, 1);
    let engine = world.run(NOWHERE);
    let mut first = listen(&engine, ""); // fills the ring before the other one connects
    for round in 0..3 {
        world.churn(5, 2);
        let mut listener = Listener::open(&engine.http, "?initial=true", &[]);
        let name = format!("live-{round}");
        world.put(&name, "1");
        let mut versions = BTreeMap::new();
        let mut synced = false;
        loop {
            let heard = listener.next().unwrap();
            if heard.word == "synced" {
                assert!(!synced && heard.event["data"]["objects"].as_u64() >= Some(20));
                synced = true;
                continue;
            }
            assert_eq!(heard.event["cause"] == "replay", !synced, "what exists comes first: {}", heard.say());
            assert_eq!(heard.id.is_empty(), !synced, "there is no place to go on from before all of it has come");
            let version: u64 = heard.event["resourceversion"].as_str().unwrap().parse().unwrap();
            let key = heard.event["name"].as_str().unwrap().to_owned();
            let before = versions.insert(key.clone(), version);
            assert!(before < Some(version), "{key}: {before:?} then {version}");
            if synced && key == name {
                break;
            }
            if !synced && key == name {
                // the object existed before, so only later changes must be received
                world.put(&name, "2");
            }
        }
        assert!(versions.len() >= 21);
    }
    assert!(first.next().is_some());
}

#[test]
fn reconnecting_subscriber_gets_exactly_missed_events() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut listener = listen(&engine, "");
    world.churn(3, 2);
    assert_eq!(listener.hear(4).len(), 4);
    let id = listener.last_id.clone();
    drop(listener);
    world.churn(3, 1);
    let expected = ["updated watch o1", "updated watch o2", "updated watch o0", "updated watch o1", "updated watch o2"];
    let mut again = Listener::open(&engine.http, "?since=5m&initial=true", &[("Last-Event-ID", &id)]);
    assert_eq!(again.hear(5), expected, "the header counts more than the address, and nothing is shown anew");
    let mut since = Listener::open(&engine.http, &format!("?since={id}"), &[]);
    assert_eq!(since.hear(5), expected);
    let sequence = id.split_once('.').unwrap().1;
    assert_eq!(Listener::open(&engine.http, &format!("?since={sequence}"), &[]).hear(5), expected);
}

#[test]
fn engine_restart_with_state_loses_no_event() {
    let mut world = Simulated::start();
    let config = with_state(&world, "");
    let engine = run(&world, &config);
    let mut listener = listen(&engine, "");
    world.churn(3, 2);
    listener.hear(2);
    let id = listener.last_id.clone();
    engine.wait_for("all of it journaled", PATIENCE, || metric(&engine, "deltabus_subscriber_events_total ") >= 6);
    assert!(engine.terminate().success());
    world.put("o0", "down"); // without any subscriber
    world.delete("o1");
    let engine = run(&world, &config);
    let mut again = Listener::open(&engine.http, "", &[("Last-Event-ID", &id)]);
    let heard: Vec<_> = (0..6).map(|_| again.next().unwrap()).collect();
    let mut ids: Vec<_> = heard.iter().map(|heard| heard.event["id"].as_str().unwrap().to_owned()).collect();
    let mut expected: Vec<_> = world.happened.values().flatten().cloned().collect();
    let before: Vec<_> = ["o0", "o1"].iter().map(|name| world.happened[*name][0].clone()).collect();
    expected.retain(|id| !before.contains(id));
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected, "everything behind the place, each once");
    assert!(heard.is_sorted_by(|a, b| a.id < b.id));
    // a time is also a valid position
    let mut recent = Listener::open(&engine.http, "?since=1h", &[]);
    assert_eq!(recent.hear(1).len(), 1);
    assert_eq!(recent.head.lines().next().unwrap(), "HTTP/1.0 200 OK");
}

#[test]
fn killed_engine_with_state_loses_no_event() {
    let mut world = Simulated::start();
    let config = with_state(&world, "");
    let mut id = String::new();
    let mut heard: Vec<Heard> = Vec::new();
    for _ in 0..3 {
        let engine = run(&world, &config);
        let headers = [("Last-Event-ID", id.as_str())];
        let mut listener = Listener::open(&engine.http, "", if id.is_empty() { &[] } else { &headers }).placed();
        world.churn(3, 2);
        heard.extend((0..2).map(|_| listener.next().unwrap())); // and no later event
        id.clone_from(&listener.last_id);
        drop(engine); // SIGKILL
    }
    world.put("o0", "down");
    let engine = run(&world, &config);
    let mut listener = Listener::open(&engine.http, "", &[("Last-Event-ID", &id)]);
    let last = world.happened["o0"].last().unwrap().clone();
    while heard.last().is_none_or(|heard| heard.event["id"] != last.as_str()) {
        heard.push(listener.next().unwrap());
    }
    assert!(heard.iter().all(|heard| heard.word != "gap"));
    assert!(heard.is_sorted_by(|a, b| a.id < b.id), "nothing comes again");
    for (name, happened) in &world.happened {
        let of_object = heard.iter().filter(|heard| heard.event["name"] == name.as_str());
        let version = |id: &str| id.rsplit_once('.').map(|(_, version)| version.parse::<u64>().unwrap());
        let versions: Vec<_> = of_object.map(|heard| version(heard.event["id"].as_str().unwrap())).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{name}: {versions:?}");
        assert_eq!(versions.last(), Some(&version(happened.last().unwrap())), "the last state of {name}");
    }
}

#[test]
fn gap_is_reported_on_resume() {
    let mut world = Simulated::start();
    let config = format!("[subscribe]\nbuffer_events = 20\n{}", world.config(NOWHERE));
    let engine = run(&world, &config);
    let mut listener = listen(&engine, "");
    world.put("a", "1");
    assert_eq!(listener.hear(1), ["added watch a"]);
    let id = listener.last_id.clone();
    let mut other = listen(&engine, "");
    drop(listener);
    for _ in 0..6 {
        world.churn(10, 1); // more than the buffer holds, one round at a time
        other.hear(10);
    }
    let mut again = Listener::open(&engine.http, "", &[("Last-Event-ID", &id)]);
    let gap = again.next().unwrap();
    assert_eq!((gap.word.as_str(), &gap.event["type"]), ("gap", &json!("dev.deltabus.stream.gap")), "{gap:?}");
    let data = &gap.event["data"];
    assert_eq!(data["asked"], id.as_str(), "{data}");
    assert!(gap.id > id, "who comes again with it has been told");
    assert_eq!((data["reason"].as_str(), gap.say()), (Some("expired"), "gap expired".to_owned()));
    // the stream continues after the gap, with the last state of each object
    let mut last = BTreeMap::new();
    let newest = |last: &BTreeMap<String, String>| {
        (0..10).all(|object| last.get(&format!("o{object}")) == world.happened[&format!("o{object}")].last())
    };
    while !newest(&last) {
        let heard = again.next().unwrap();
        assert!(heard.id.rsplit_once('.').unwrap().1 > data["to"].as_str().unwrap(), "{heard:?}");
        let text = |key: &str| heard.event[key].as_str().unwrap().to_owned();
        last.insert(text("name"), text("id"));
    }
    // a client that was notified of the gap and reconnects with its position is not notified again
    let mut told = Listener::open(&engine.http, "", &[("Last-Event-ID", &gap.id)]);
    assert_ne!(told.next().unwrap().word, "gap");
}

#[test]
fn foreign_journal_is_gap_followed_by_state() {
    let mut world = Simulated::start();
    world.put("a", "1");
    let engine = world.run(NOWHERE);
    let foreign = [("Last-Event-ID", "0123456789ab.00000000000000000007")];
    let mut listener = Listener::open(&engine.http, "?initial=true", &foreign);
    assert_eq!(listener.hear(3), ["gap journal", "added replay a", "synced configmaps"]);
    let mut plain = Listener::open(&engine.http, "", &foreign);
    let gap = plain.next().unwrap();
    assert_eq!((gap.say(), &gap.event["type"]), ("gap journal".into(), &json!("dev.deltabus.stream.gap")));
    assert_eq!(gap.event["data"]["asked"], foreign[0].1);
    world.put("a", "2");
    assert_eq!(plain.hear(1), ["updated watch a"]);
    let mut lines = Listener::open(&engine.http, "?since=ffff.1", &[("Accept", "application/x-ndjson")]);
    assert_eq!(lines.line().unwrap(), "");
    let line: Value = serde_json::from_str(&lines.line().unwrap()).unwrap();
    assert_eq!((&line["type"], &line["data"]["reason"]), (&json!("dev.deltabus.stream.gap"), &json!("journal")));
    assert_eq!(metric(&engine, "deltabus_subscriber_gaps_total "), 3);
}

#[test]
fn stalled_subscriber_delays_none_and_gets_gap() {
    let mut world = Simulated::start();
    let config = format!("[subscribe]\nbuffer_events = 50\n{}", world.config(NOWHERE));
    let engine = run(&world, &config);
    let mut stuck = listen(&engine, "");
    let mut listener = listen(&engine, "");
    let large = "x".repeat(100_000);
    // more than a socket holds: a client that does not read falls behind
    for round in 0..20 {
        for object in 0..15 {
            world.put(&format!("o{object}"), &format!("{round}{large}"));
        }
        listener.hear(15);
        #[cfg(target_os = "linux")]
        assert!(unsent(&engine) < 1_000_000, "the kernel keeps {} bytes for who does not read", unsent(&engine));
    }
    let mut said = Vec::new();
    let last = world.happened["o14"].last().unwrap().clone();
    loop {
        let heard = stuck.next().unwrap();
        said.push(heard.say());
        if heard.event["id"] == last.as_str() {
            break;
        }
    }
    assert!(said.contains(&"gap behind".to_owned()), "{} heard", said.len());
    assert!(said.len() < 300);
    assert!(metric(&engine, "deltabus_subscriber_gaps_total ") >= 1);
}

#[test]
fn stalled_subscriber_is_served_from_state_directory() {
    let mut world = Simulated::start();
    let config = with_state(&world, "[subscribe]\nbuffer_events = 20");
    let engine = run(&world, &config);
    let mut stuck = listen(&engine, "");
    let large = "x".repeat(100_000);
    for round in 0..20 {
        for object in 0..10 {
            world.put(&format!("o{object}"), &format!("{round}{large}"));
        }
    }
    let mut ids = Vec::new();
    while ids.len() < world.events() {
        let heard = stuck.next().unwrap();
        assert_ne!(heard.word, "gap");
        ids.push(heard.event["id"].as_str().unwrap().to_owned());
    }
    (0..10).for_each(|object| {
        let expected = &world.happened[&format!("o{object}")];
        let heard: Vec<_> = ids.iter().filter(|id| expected.contains(id)).cloned().collect();
        assert_eq!(heard, *expected, "each change of o{object}, in order");
    });
}

#[test]
fn filters_select_events() {
    let world = Simulated::start();
    let engine = run(&world, &world.config(NOWHERE).replace("[\"configmaps\"]", "[\"configmaps\", \"secrets\"]"));
    let put = |resource: &str, namespace: &str, name: &str, app: &str| {
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"app": app}});
        world.simulator.store().put(resource, json!({"metadata": metadata})).unwrap();
    };
    let mut listeners = [
        ("?resource=secrets", vec!["added watch s"]),
        ("?resource=maps&namespace=a,b&type=added", vec!["added watch one", "added watch two", "added watch s"]),
        ("?labelSelector=app%3Dweb", vec!["added watch one", "added watch s", "updated watch one"]),
        ("?type=updated", vec!["updated watch one"]),
    ]
    .map(|(query, expected)| (listen(&engine, query), expected));
    put("configmaps", "a", "one", "web");
    put("configmaps", "b", "two", "db");
    put("configmaps", "c", "three", "db");
    put("secrets", "a", "s", "web");
    put("configmaps", "a", "one", "api"); // the object loses the label, which is an event
    for (listener, expected) in &mut listeners {
        let mut heard = listener.hear(expected.len());
        expected.sort_unstable();
        heard.sort(); // across types the order is that of arrival
        assert_eq!(heard, *expected);
    }
}

#[test]
fn invalid_queries_get_helpful_status() {
    let world = Simulated::start();
    let config = format!("[subscribe]\nmax_subscribers = 1\n{}", world.config(NOWHERE));
    let engine = run(&world, &config);
    let refused = |query: &str, headers: &[(&str, &str)]| {
        let answer = request(&engine.http, "GET", &format!("/v1/events{query}"), headers).unwrap();
        let status = answer.json();
        assert_eq!(status["kind"], "Status");
        (answer.code, status["message"].as_str().unwrap().to_owned())
    };
    let (code, message) = refused("?watch=1", &[]);
    assert_eq!(code, 400);
    assert!(message.contains("unknown parameter \"watch\": expected one of resource"), "{message}");
    let (code, message) = refused("?resource=banana", &[]);
    assert_eq!((code, message.contains("expected one of `configmaps`, `maps`")), (400, true), "{message}");
    let (code, message) = refused("?resource=confgmaps", &[]);
    assert_eq!((code, message.ends_with("did you mean `configmaps`?")), (400, true), "{message}");
    assert_eq!(refused("?since=soon", &[]).0, 400);
    assert_eq!(refused("", &[("Last-Event-ID", "soon")]).0, 400);
    assert_eq!(refused("", &[("Accept", "application/json")]).0, 406);
    let listener = listen(&engine, "");
    let (code, message) = refused("", &[]);
    assert_eq!((code, message.contains("max_subscribers")), (429, true), "{message}");
    assert_eq!(metric(&engine, "deltabus_subscribers_refused_total "), 1);
    drop(listener);
    engine.wait_for("the place free again", PATIENCE, || metric(&engine, "deltabus_subscribers ") == 0);
}

#[test]
fn quiet_stream_sends_heartbeats_with_position() {
    let mut world = Simulated::start();
    let config = format!("[subscribe]\nheartbeat = \"1s\"\n{}", world.config(NOWHERE));
    let engine = run(&world, &config);
    let mut listener = listen(&engine, "?type=deleted");
    let begin = listener.last_id.clone();
    world.put("a", "1");
    while listener.last_id == begin {
        assert_eq!(listener.block(), Block::Comment, "an added object was not asked for");
    }
    assert!(listener.last_id > begin, "what was not wanted is behind it");
}

#[test]
fn fully_filtered_stream_still_sends_heartbeats() {
    let mut world = Simulated::start();
    let config = format!("[subscribe]\nheartbeat = \"1s\"\n{}", world.config(NOWHERE));
    let engine = run(&world, &config);
    let mut listener = listen(&engine, "?type=deleted");
    let has_heard = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut round = 0;
            while !has_heard.load(Ordering::Relaxed) {
                round += 1;
                world.put("a", &round.to_string()); // the stream is never silent for a second
                thread::sleep(Duration::from_millis(20));
            }
            round
        });
        let mut places = vec![listener.last_id.clone()];
        let mut blocks = Vec::new();
        while places.len() < 4 && blocks.iter().all(|block| *block == Block::Comment) {
            blocks.push(listener.block());
            if places.last() != Some(&listener.last_id) {
                places.push(listener.last_id.clone());
            }
        }
        has_heard.store(true, Ordering::Relaxed);
        assert!(blocks.iter().all(|block| *block == Block::Comment), "nothing of it was asked for: {blocks:?}");
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert!(traffic.join().unwrap() > 3);
    });
}

#[test]
fn hundreds_of_subscribers_get_each_event_once() {
    let mut world = Simulated::start();
    let engine = world.run(NOWHERE);
    let mut listeners: Vec<_> = (0..300).map(|_| listen(&engine, "")).collect();
    let stuck: Vec<_> = (0..20).map(|_| listen(&engine, "")).collect();
    world.churn(20, 5);
    let mut first = Vec::new();
    for listener in &mut listeners {
        let heard: Vec<_> = (0..100).map(|_| listener.next().unwrap()).collect();
        assert!(heard.is_sorted_by(|a, b| a.id < b.id));
        let ids: Vec<_> = heard.iter().map(|heard| heard.event["id"].as_str().unwrap().to_owned()).collect();
        if first.is_empty() {
            first.clone_from(&ids);
        }
        assert_eq!(ids, first);
    }
    let mut expected: Vec<_> = world.happened.values().flatten().cloned().collect();
    expected.sort();
    first.sort();
    assert_eq!(first, expected);
    assert_eq!(metric(&engine, "deltabus_subscribers "), 320);
    assert_eq!(metric(&engine, "deltabus_subscriber_gaps_total "), 0);
    drop(stuck);
}
