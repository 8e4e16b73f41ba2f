//! Webhooks: a local HTTP server that sometimes fails.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::Response;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::{
    engine::{request, text},
    receiver::{Seen, Server, replace},
    scripted::PATIENCE,
    simulated::{Simulated, count, row, wait_all},
};

/// A server, and its accepted events in order of arrival.
struct Hook {
    server: Server,
    taken: Arc<Mutex<Vec<Value>>>,
    _runtime: Runtime,
}

impl Hook {
    /// Starts a server that answers with the status and headers from `answer`; `None` means no answer.
    fn start(
        answer: impl Fn(&Seen) -> Option<(u16, Vec<(&'static str, &'static str)>)> + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
        let taking = Arc::clone(&taken);
        let server = runtime.block_on(Server::start(None, move |seen| {
            let (status, headers) = answer(seen)?;
            if status < 300 {
                let mut taking = taking.lock().unwrap();
                match seen.json() {
                    Value::Array(events) => taking.extend(events),
                    event => taking.push(event),
                }
            }
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            Some(response.body(String::new()).unwrap())
        }));
        Self { server, taken, _runtime: runtime }
    }

    fn handler(&self, more: &str) -> String {
        format!("type = \"webhook\"\nurl = \"http://{}/\"\n{more}", self.server.address)
    }

    fn taken(&self) -> Vec<Value> {
        self.taken.lock().unwrap().clone()
    }

    /// Returns the accepted ids of each object, in order.
    fn ids(&self) -> BTreeMap<String, Vec<String>> {
        let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in self.taken() {
            let of = |attribute: &str| event[attribute].as_str().unwrap().to_owned();
            ids.entry(of("name")).or_default().push(of("id"));
        }
        ids
    }
}

#[test]
fn flaky_webhook_gets_each_change_once_in_order() {
    for options in ["batch = { max_events = 10 }", "", "order = \"total\"\nbatch = { max_events = 50 }"] {
        let requests = AtomicUsize::new(0);
        let fifth_fails = move |_: &Seen| {
            let is_fifth = requests.fetch_add(1, Ordering::SeqCst) % 5 == 4;
            Some((if is_fifth { 500 } else { 200 }, vec![]))
        };
        let hook = Hook::start(fifth_fails);
        let mut cluster = Simulated::start();
        let engine = cluster.run(&hook.handler(options));
        cluster.churn(20, 10);
        cluster.delete("o3");
        cluster.churn(20, 2);
        wait_all(&engine, 241);
        assert_eq!(hook.ids(), cluster.happened);
        assert!(count(&engine, "retried") > 0);
        assert_eq!((count(&engine, "delivered"), count(&engine, "dropped")), (241, 0));
        assert!(engine.terminate().success());
    }
}

#[test]
fn oversized_event_is_reduced_then_given_up() {
    let limit = |seen: &Seen| {
        let is_never = String::from_utf8_lossy(&seen.body).contains("\"name\":\"never\"");
        Some((if seen.body.len() > 3000 || is_never { 413 } else { 204 }, vec![]))
    };
    let hook = Hook::start(limit);
    let mut cluster = Simulated::start();
    let lost = text(cluster.dir(), "lost.jsonl");
    let handler = hook.handler(&format!(
        "batch = {{ max_events = 50 }}\ndead_letter = \"lost\"\n[handlers.lost]\ntype = \"file\"\nresources = []\n\
         path = {lost:?}"
    ));
    let engine = cluster.run(&handler);
    cluster.put("small", "x");
    cluster.put("grows", &"x".repeat(1500));
    cluster.put("grows", &"y".repeat(1600));
    cluster.put("huge", &"x".repeat(5000));
    cluster.put("never", "x");
    wait_all(&engine, 5);
    let counts = ["withoutOld", "references", "tooLarge", "deadLettered", "dropped", "delivered"];
    let counts = counts.map(|what| count(&engine, what));
    assert_eq!(counts, [1, 1, 1, 1, 0, 4], "{}", row(&engine));
    let taken = hook.taken();
    let data: Vec<_> = taken
        .iter()
        .map(|event| {
            let members: Vec<_> = event["data"].as_object().unwrap().keys().map(String::as_str).collect();
            (event["name"].as_str().unwrap(), members.join(" "))
        })
        .collect();
    let expected = [("small", "object"), ("grows", "object"), ("grows", "object"), ("huge", "")];
    assert_eq!(data, expected.map(|(name, members)| (name, members.to_owned())));
    assert!(engine.terminate().success());
    let lost: Value = serde_json::from_str(&fs::read_to_string(lost).unwrap()).unwrap();
    assert_eq!(lost["name"], "never");
}

#[test]
fn busy_receiver_is_left_alone_as_requested() {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen_at = Arc::clone(&times);
    let hook = Hook::start(move |_| {
        #[expect(clippy::disallowed_methods, reason = "it says how long by the clock")]
        let now = Instant::now();
        let mut times = seen_at.lock().unwrap();
        times.push(now);
        Some(if times.len() == 1 { (429, vec![("retry-after", "5")]) } else { (200, vec![]) })
    });
    let mut cluster = Simulated::start();
    let engine = cluster.run(&hook.handler(""));
    cluster.put("a", "x");
    engine.wait_for("limited", PATIENCE, || row(&engine)["rateLimited"] == true);
    cluster.put("b", "x");
    wait_all(&engine, 2);
    assert_eq!(hook.ids(), cluster.happened);
    let times = times.lock().unwrap();
    assert!(times[1] - times[0] >= Duration::from_secs(5), "{:?}", times[1] - times[0]);
    assert_eq!(times.len(), 3, "nobody else asked meanwhile");
}

#[test]
fn hung_receiver_is_asked_again() {
    let requests = AtomicUsize::new(0);
    let hook = Hook::start(move |_| (requests.fetch_add(1, Ordering::SeqCst) > 0).then(|| (200, vec![])));
    let mut cluster = Simulated::start();
    let engine = cluster.run(&hook.handler("timeout = \"2s\""));
    cluster.put("a", "x");
    cluster.put("a", "y");
    wait_all(&engine, 2);
    assert_eq!(hook.ids(), cluster.happened);
    assert_eq!((count(&engine, "retried"), count(&engine, "restarts")), (1, 0));
    engine.wait_for_log("no answer within 2s");
}

#[test]
fn paused_webhook_gets_everything_after_resume() {
    let hook = Hook::start(|_| Some((200, vec![])));
    let mut cluster = Simulated::start();
    let engine = cluster.run(&hook.handler("batch = { max_events = 7 }"));
    assert_eq!(request(&engine.http, "POST", "/v1/handlers/out/pause", &[]).unwrap().code, 200);
    cluster.churn(5, 4);
    engine.wait_for("queued", PATIENCE, || count(&engine, "queued") == 20);
    assert_eq!((row(&engine)["state"].as_str(), hook.taken().len()), (Some("paused"), 0));
    assert_eq!(request(&engine.http, "POST", "/v1/handlers/out/resume", &[]).unwrap().code, 200);
    wait_all(&engine, 20);
    assert_eq!(hook.ids(), cluster.happened);
}

#[test]
fn rejected_credentials_wait_for_new_token() {
    for status in [401, 403, 407] {
        let hook = Hook::start(move |seen| {
            Some((if seen.header("authorization") == "Bearer new" { 200 } else { status }, vec![]))
        });
        let mut cluster = Simulated::start();
        let token = cluster.dir().join("token");
        replace(&token, "old");
        let auth = format!("auth = {{ bearer = {{ file = {:?} }} }}", text(cluster.dir(), "token"));
        let engine = cluster.run(&hook.handler(&auth));
        cluster.put("a", "x");
        engine.wait_for("refused", PATIENCE, || count(&engine, "retried") > 1);
        replace(&token, "new");
        wait_all(&engine, 1);
        assert_eq!(hook.ids(), cluster.happened);
        assert_eq!((count(&engine, "dropped"), count(&engine, "delivered")), (0, 1));
    }
}

/// Row 18 of the users' requests: retries of webhooks, and the fate of events that are never accepted.
#[test]
fn long_refused_event_is_dead_letter_and_replayable() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let hook = Hook::start(move |_| Some((if well.load(Ordering::SeqCst) { 200 } else { 503 }, vec![])));
    let mut cluster = Simulated::start();
    let lost = text(cluster.dir(), "lost.jsonl");
    let handler = hook.handler(&format!(
        "dead_letter = \"lost\"\n[handlers.lost]\ntype = \"file\"\nresources = []\npath = {lost:?}\n\
         [defaults.handlers.retry]\ngive_up_after = \"3s\""
    ));
    let engine = cluster.run(&handler);
    cluster.put("a", "x");
    wait_all(&engine, 1);
    assert!(count(&engine, "retried") > 1, "{}", row(&engine));
    assert_eq!((count(&engine, "deadLettered"), count(&engine, "dropped")), (1, 0));
    let letter = || serde_json::from_str::<Value>(&fs::read_to_string(&lost).unwrap_or_default()).ok();
    engine.wait_for("a dead letter", PATIENCE, || letter().is_some());
    assert_eq!(letter().unwrap()["id"], cluster.happened["a"][0]);
    let (_, metrics) = engine.get("/metrics").unwrap();
    let counted = "deltabus_handler_events_total{handler=\"out\",outcome=\"dead_letter\"} 1";
    assert!(metrics.contains(counted), "{metrics}");

    is_well.store(true, Ordering::SeqCst);
    let replayed = request(&engine.http, "POST", "/v1/handlers/out/replay", &[]).unwrap();
    assert_eq!(replayed.json()["replayed"], 1);
    engine.wait_for("sent again", PATIENCE, || hook.ids() == cluster.happened);
}

/// An ingress during a redeployment answers 404; a gateway may answer 401 or 403.
#[test]
fn statuses_outside_reject_lose_no_event() {
    let (statuses, requests) = ([404, 405, 409, 410, 404, 401, 403, 404], AtomicUsize::new(0));
    let hook = Hook::start(move |_| {
        let number = requests.fetch_add(1, Ordering::SeqCst);
        Some((statuses.get(number).copied().unwrap_or(200), vec![]))
    });
    let mut cluster = Simulated::start();
    let engine = cluster.run(&hook.handler(""));
    cluster.churn(12, 3);
    wait_all(&engine, 36);
    assert_eq!((count(&engine, "delivered"), count(&engine, "dropped")), (36, 0), "{}", row(&engine));
    assert_eq!(hook.ids(), cluster.happened);
}

#[test]
fn given_up_events_are_replayed_after_restart() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let hook = Hook::start(move |_| Some((if well.load(Ordering::SeqCst) { 200 } else { 409 }, vec![])));
    let mut cluster = Simulated::start();
    let state = text(cluster.dir(), "state");
    let handler = hook.handler(&format!("reject = [409]\n[state]\ndir = {state:?}"));
    let engine = cluster.run(&handler);
    cluster.put("a", "x");
    cluster.put("b", "x");
    wait_all(&engine, 2);
    assert_eq!((count(&engine, "delivered"), count(&engine, "dropped")), (0, 2), "{}", row(&engine));
    let log = engine.log();
    for name in ["a", "b"] {
        let is_named =
            |line: &str| line.contains("gave up an event") && line.contains(&format!("added default/{name} "));
        assert!(log.lines().any(is_named), "{name} is not named in\n{log}");
    }
    assert!(engine.terminate().success());

    is_well.store(true, Ordering::SeqCst);
    let engine = cluster.run(&handler);
    let replayed = request(&engine.http, "POST", "/v1/handlers/out/replay", &[]).unwrap();
    assert_eq!(replayed.json()["replayed"], 2);
    engine.wait_for("sent again", PATIENCE, || hook.ids() == cluster.happened);
}
