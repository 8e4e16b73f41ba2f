//! Tests of the server with the kube-rs client and with plain requests.
#![expect(clippy::disallowed_methods, reason = "tests measure time")]

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, Config, Error,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::{DynamicObject, PartialObjectMeta},
    discovery::Discovery,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{object::ObjectKey, simulator::*};

fn start() -> Simulator {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut SimulatorOptions)) -> Simulator {
    let mut options = SimulatorOptions {
        bookmark_interval: Duration::from_millis(100),
        fresh_timeout: Duration::from_millis(200),
        ..SimulatorOptions::default()
    };
    change(&mut options);
    Simulator::start(options).unwrap()
}

fn client(simulator: &Simulator) -> Client {
    let mut config = Config::new(simulator.url().parse().unwrap());
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn configmap(name: &str, value: &str) -> ConfigMap {
    let object = json!({"metadata": {"name": name, "labels": {"v": value}}, "data": {"v": value}});
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"nodeName": "n1", "containers": []}})
}

/// Sends one GET on its own connection; returns status line and headers, and the body received within `patience`.
async fn get(simulator: &Simulator, path: &str, accept: &str, patience: Duration) -> (String, String) {
    let mut stream = tokio::net::TcpStream::connect(simulator.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let read = async {
        let mut buffer = vec![0; 65536];
        while let Ok(len) = stream.read(&mut buffer).await
            && len > 0
        {
            text.extend_from_slice(&buffer[..len]);
        }
    };
    drop(tokio::time::timeout(patience, read).await);
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_owned(), body.to_owned())
}

/// Lists through a path; the body is in chunks, each after its length.
async fn list(simulator: &Simulator, path: &str) -> Value {
    let (_, body) = get(simulator, path, "application/json", PATIENT).await;
    let (mut rest, mut json) = (&*body, String::new());
    while let Some((length, chunk)) = rest.split_once("\r\n")
        && let Ok(length @ 1..) = usize::from_str_radix(length, 16)
    {
        json += &chunk[..length];
        rest = &chunk[length + 2..];
    }
    serde_json::from_str(if json.is_empty() { &body } else { &json }).unwrap()
}

const PATIENT: Duration = Duration::from_mins(1);

/// Returns the watch frames in a chunked body.
fn frames(body: &str) -> Vec<Value> {
    body.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
}

fn types(frames: &[Value]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn kube_client_performs_every_object_operation() {
    let simulator = start();
    let api: Api<ConfigMap> = Api::namespaced(client(&simulator), "default");
    let created = api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    assert!(created.metadata.uid.is_some());
    let error = api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap_err();
    assert!(matches!(error, Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists"));
    let patch = Patch::Merge(json!({"data": {"w": "2"}}));
    let patched = api.patch("a", &PatchParams::apply("tester"), &patch).await.unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    let error = api.replace("a", &PostParams::default(), &created).await.unwrap_err();
    assert!(matches!(error, Error::Api(status) if status.code == 409 && status.reason == "Conflict"));
    let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}));
    api.patch("b", &PatchParams::apply("tester"), &apply).await.unwrap();
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 2);
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let error = api.get("a").await.unwrap_err();
    assert!(matches!(error, Error::Api(status) if status.code == 404));
    let missing: Api<ConfigMap> = Api::namespaced(client(&simulator), "missing");
    let error = missing.create(&PostParams::default(), &configmap("a", "1")).await.unwrap_err();
    assert!(matches!(error, Error::Api(status) if status.code == 404 && status.message.contains("namespaces")));
}

/// Rule: A-3.
#[tokio::test]
async fn kube_client_watches_through_selector() {
    let simulator = start();
    let store = simulator.store();
    store.create("pods", pod("a", "web")).unwrap();
    let api: Api<Pod> = Api::namespaced(client(&simulator), "default");
    let params = WatchParams::default().labels("app=web");
    let watch = api.watch(&params, "0").await.unwrap();
    let mut watch =
        std::pin::pin!(watch.try_filter(|event| { std::future::ready(!matches!(event, WatchEvent::Bookmark(_))) }));
    let mut next = async || match watch.next().await.unwrap().unwrap() {
        WatchEvent::Added(pod) => ("ADDED", pod.metadata.name.unwrap()),
        WatchEvent::Modified(pod) => ("MODIFIED", pod.metadata.name.unwrap()),
        WatchEvent::Deleted(pod) => ("DELETED", pod.metadata.name.unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await, ("ADDED", "a".to_owned()));
    store.create("pods", pod("b", "api")).unwrap();
    store.patch("pods", "default", "b", json!({"metadata": {"labels": {"app": "web"}}})).unwrap();
    assert_eq!(next().await, ("ADDED", "b".to_owned()));
    store.patch("pods", "default", "a", json!({"status": {"phase": "Running"}})).unwrap();
    assert_eq!(next().await, ("MODIFIED", "a".to_owned()));
    store.patch("pods", "default", "a", json!({"metadata": {"labels": {"app": "api"}}})).unwrap();
    assert_eq!(next().await, ("DELETED", "a".to_owned()));
    store.delete("pods", "default", "a").unwrap();
    store.delete("pods", "default", "b").unwrap();
    assert_eq!(next().await, ("DELETED", "b".to_owned()));
}

/// Rule: A-4.
#[tokio::test]
async fn kube_client_gets_streaming_list_with_marker() {
    let simulator = start();
    for name in ["a", "b"] {
        simulator.store().create("pods", pod(name, "web")).unwrap();
    }
    let api: Api<Pod> = Api::all(client(&simulator));
    let watch = api.watch(&WatchParams::default().initial_events(), "0").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    let mut added = 0;
    loop {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Added(_) => added += 1,
            WatchEvent::Bookmark(bookmark) => {
                let marker = bookmark.metadata.annotations.get("k8s.io/initial-events-end");
                assert_eq!(marker.map(String::as_str), Some("true"));
                assert_eq!(bookmark.metadata.resource_version, simulator.store().version().to_string());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(added, 2);
    simulator.store().delete("pods", "default", "a").unwrap();
    while !matches!(watch.next().await.unwrap().unwrap(), WatchEvent::Deleted(_)) {}
}

#[tokio::test]
async fn older_servers_refuse_or_ignore_streaming_lists() {
    let path = "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let refused = start_with(|options| options.streaming_lists = StreamingSupport::Refused);
    let (head, body) = get(&refused, path, "application/json", PATIENT).await;
    assert!(head.starts_with("HTTP/1.1 422") && body.contains("sendInitialEvents"), "{head} {body}");
    let ignored = start_with(|options| options.streaming_lists = StreamingSupport::Ignored);
    ignored.store().create("pods", pod("a", "web")).unwrap();
    let (_, body) = get(&ignored, &format!("{path}&allowWatchBookmarks=true"), "application/json", PATIENT).await;
    assert!(types(&frames(&body)).contains(&"ADDED") && !body.contains("initial-events-end"), "{body}");
}

/// Rule: A-7.
#[tokio::test]
async fn lists_are_paged_and_omit_built_in_kinds() {
    let simulator = start();
    let mut workload = Workload::new(1);
    workload.populate(simulator.store(), Sizes { deployments: 5, ..Sizes::default() }).unwrap();
    let api: Api<Pod> = Api::all(client(&simulator));
    let first = api.list(&ListParams::default().limit(15)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (15, Some(33)));
    let token = first.metadata.continue_.unwrap();
    let second = api.list(&ListParams::default().limit(40).continue_token(&token)).await.unwrap();
    assert_eq!((second.items.len(), second.metadata.continue_), (33, None));
    let list = |path| list(&simulator, path);
    let pods = list("/api/v1/pods?resourceVersion=0&limit=1").await;
    assert_eq!(pods["kind"], "PodList");
    assert_eq!(pods["items"].as_array().unwrap().len(), 48, "the watch cache ignores limit at version 0 (A-2)");
    assert!(pods["items"][0].get("kind").is_none() && pods["items"][0]["metadata"]["name"].is_string());
    let sites = list("/apis/demo.deltabus.dev/v1/websites").await;
    assert_eq!((&sites["kind"], &sites["items"][0]["kind"]), (&json!("WebsiteList"), &json!("Website")));
    let one = list("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-0001,status.phase!%3DFailed").await;
    assert!(one["items"].as_array().unwrap().len() < 20);
    assert_eq!(list("/api/v1/pods?fieldSelector=spec.image=x").await["code"], 400);
    assert_eq!(list("/api/v1/pods?resourceVersion=5&continue=6e6f77").await["code"], 400);
}

#[tokio::test]
async fn metadata_only_requests_get_metadata_only() {
    let simulator = start();
    simulator.store().create("pods", pod("a", "web")).unwrap();
    let api: Api<PartialObjectMeta<Pod>> = Api::all(client(&simulator));
    let list = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(list.items[0].metadata.name.as_deref(), Some("a"));
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, body) = get(&simulator, "/api/v1/pods?watch=1&timeoutSeconds=1", accept, PATIENT).await;
    let frame = &frames(&body)[0]["object"];
    assert_eq!(frame["kind"], "PartialObjectMetadata");
    assert!(frame.get("spec").is_none() && frame["metadata"]["name"] == "a");
}

/// Rule: A-6.
#[tokio::test]
async fn expired_and_future_versions_are_refused() {
    let simulator = start();
    let store = simulator.store();
    store.create("pods", pod("a", "web")).unwrap();
    let old = store.version();
    store.create("pods", pod("b", "web")).unwrap();
    store.compact();
    let path = format!("/api/v1/pods?watch=true&resourceVersion={old}");
    let (head, body) = get(&simulator, &path, "application/json", PATIENT).await;
    let event = &frames(&body)[0];
    assert!(head.starts_with("HTTP/1.1 200"));
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let path = format!("/api/v1/pods?limit=5&resourceVersion={old}");
    let (head, _) = get(&simulator, &path, "application/json", PATIENT).await;
    assert!(head.starts_with("HTTP/1.1 410"), "limit with a version is exact (A-2): {head}");
    let before = Instant::now();
    let path = format!("/api/v1/pods?resourceVersion={}", old + 100);
    let (head, body) = get(&simulator, &path, "application/json", PATIENT).await;
    assert!(head.starts_with("HTTP/1.1 504") && head.to_lowercase().contains("retry-after: 1"), "{head}");
    assert!(body.contains("ResourceVersionTooLarge") && before.elapsed() >= Duration::from_millis(200));
}

/// Rule: A-5.
#[tokio::test]
async fn bookmarks_come_periodically_and_before_timeout() {
    let simulator = start();
    let version = simulator.store().version();
    let path = format!("/api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=1");
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        simulator.store().create("configmaps", json!({"metadata": {"name": name}})).unwrap();
    }
    let before = Instant::now();
    let (_, body) = get(&simulator, &path, "application/json", PATIENT).await;
    assert!((1.0..20.0).contains(&before.elapsed().as_secs_f64()));
    let frames = frames(&body);
    assert!((8..=12).contains(&frames.len()) && types(&frames).iter().all(|kind| *kind == "BOOKMARK"), "{body}");
    let last = &frames.last().unwrap()["object"];
    assert_eq!(last["metadata"]["resourceVersion"], (version + 7).to_string());
    assert!(body.ends_with("0\r\n\r\n"), "a timeout is a clean end");
}

#[tokio::test]
async fn definitions_appear_and_disappear_in_discovery_and_watches() {
    let simulator = start();
    let mut workload = Workload::new(1);
    workload.populate(simulator.store(), Sizes { websites: 2, ..Sizes::default() }).unwrap();
    let both = [
        Discovery::new(client(&simulator)).run().await.unwrap(),
        Discovery::new(client(&simulator)).run_aggregated().await.unwrap(),
    ];
    for discovery in &both {
        assert!(discovery.has_group("demo.deltabus.dev") && discovery.has_group(""));
        let kinds = |group: &str| discovery.get(group).unwrap().recommended_resources().len();
        assert_eq!((kinds(""), kinds("apps"), kinds("demo.deltabus.dev")), (10, 5, 1));
    }
    let group = both[1].get("demo.deltabus.dev").unwrap();
    let (resource, capabilities) = group.recommended_kind("Website").unwrap();
    assert!(capabilities.supports_operation("watch"));
    let api: Api<DynamicObject> = Api::all_with(client(&simulator), &resource);
    let watch = api.watch(&WatchParams::default().labels("team"), "0").await.unwrap();
    let name = "websites.demo.deltabus.dev";
    simulator.store().delete("customresourcedefinitions.apiextensions.k8s.io", "", name).unwrap();
    let events: Vec<_> = watch.map(Result::unwrap).collect().await;
    let deleted = events.iter().filter(|event| matches!(event, WatchEvent::Deleted(_))).count();
    assert_eq!(deleted, 2, "the watch shows the deletions and ends");
    let error = api.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(error, Error::Api(status) if status.code == 404));
    for path in ["/apis/demo.deltabus.dev/v1/websites", "/apis/demo.deltabus.dev/v1", "/apis/demo.deltabus.dev"] {
        let (head, body) = get(&simulator, path, "application/json", PATIENT).await;
        assert!(head.starts_with("HTTP/1.1 404") && head.contains("text/plain"), "{head}");
        assert_eq!(body, "404 page not found\n", "as the real server where no definition is left in the group");
    }
    let (_, body) = get(&simulator, "/apis/apps/v1/nothing", "application/json", PATIENT).await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["reason"], "NotFound");
    let discovery = Discovery::new(client(&simulator)).run_aggregated().await.unwrap();
    assert!(!discovery.has_group("demo.deltabus.dev"));
}

#[tokio::test]
async fn forbidden_requests_are_refused_like_rbac() {
    let simulator = start();
    let faults = simulator.faults();
    faults.forbid("list", "deployments.apps", Area::ClusterWide);
    faults.forbid("*", "pods", Area::Namespace("default".to_owned()));
    let check = async |path: &str, expected: &str| {
        let (head, body) = get(&simulator, path, "application/json", Duration::from_secs(2)).await;
        if expected.is_empty() {
            assert!(head.starts_with("HTTP/1.1 200"), "{path} {head} {body}");
        } else {
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")), "{path}");
            assert_eq!(status["message"], expected, "{path}");
        }
    };
    let deployments = r#"deployments.apps is forbidden: User "simulator" cannot list resource "deployments" in API group "apps" at the cluster scope"#;
    check("/apis/apps/v1/deployments", deployments).await;
    check("/apis/apps/v1/deployments?watch=1", "").await;
    check("/apis/apps/v1/namespaces/default/deployments", "").await;
    check("/api/v1/pods", "").await;
    check("/api/v1/namespaces/default/pods?watch=1", r#"pods is forbidden: User "simulator" cannot watch resource "pods" in API group "" in the namespace "default""#).await;
    check("/api/v1/namespaces/default/pods/x", r#"pods "x" is forbidden: User "simulator" cannot get resource "pods" in API group "" in the namespace "default""#).await;

    let api: Api<SelfSubjectAccessReview> = Api::all(client(&simulator));
    let may = async |verb: &str, group: &str, resource: &str, namespace: &str| {
        let attributes = json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
        let review = serde_json::from_value(json!({"spec": {"resourceAttributes": attributes}})).unwrap();
        api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    };
    assert!(!may("list", "apps", "deployments", "").await && may("list", "apps", "deployments", "default").await);
    assert!(!may("watch", "", "pods", "default").await && may("watch", "", "pods", "other").await);
    faults.allow("list", "deployments.apps", &Area::ClusterWide);
    assert!(may("list", "apps", "deployments", "").await);
    faults.clear();
    assert!(may("watch", "", "pods", "default").await);
}

#[tokio::test]
async fn requests_are_recorded_as_sent() {
    let simulator = start();
    get(&simulator, "/api/v1/pods?limit=5&labelSelector=a%3Db", "application/json", PATIENT).await;
    let requests = simulator.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!((&*requests[0].method, &*requests[0].path), ("GET", "/api/v1/pods"));
    assert_eq!(requests[0].query["labelSelector"], "a=b");
    simulator.clear_requests();
    assert!(simulator.requests().is_empty());
}

#[tokio::test]
async fn faults_replace_server_answers() {
    let simulator = start();
    simulator.store().create("pods", pod("a", "web")).unwrap();
    let faults = simulator.faults();
    let list = || get(&simulator, "/api/v1/pods", "application/json", Duration::from_secs(2));
    let cases = [
        (ServerFault::Close, ""),
        (ServerFault::Reset, ""),
        (ServerFault::Stall, ""),
        (ServerFault::Status { code: 429, retry_after: Some(7) }, "429 Too Many Requests"),
        (ServerFault::Status { code: 410, retry_after: None }, "410 Gone"),
        (ServerFault::Table, "200 OK"),
    ];
    for (fault, expected) in cases {
        faults.add("/api/v1/pods", RequestKind::List, Times::Next(1), fault.clone()).unwrap();
        let (head, body) = list().await;
        let line = head.lines().next().unwrap_or_default();
        assert_eq!(line.strip_prefix("HTTP/1.1 ").unwrap_or_default(), expected, "{fault:?}");
        assert_eq!(body.contains("Table"), fault == ServerFault::Table);
        assert_eq!(head.to_lowercase().contains("retry-after: 7"), expected.starts_with("429"));
        let (head, _) = list().await;
        assert!(head.starts_with("HTTP/1.1 200"), "after {fault:?}");
    }
    faults.add("*", RequestKind::Any, Times::Next(1), ServerFault::CutAfterBytes(10)).unwrap();
    let (_, body) = list().await;
    assert!(body.contains("{\"kind\":\"P") && !body.contains("PodList") && !body.contains("0\r\n\r\n"), "{body}");
}

#[tokio::test]
async fn reset_fault_resets_the_connection() {
    let simulator = start();
    simulator.faults().add("*", RequestKind::Any, Times::Next(1), ServerFault::Reset).unwrap();
    let mut stream = tokio::net::TcpStream::connect(simulator.address()).await.unwrap();
    stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let error = stream.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn stream_faults_strike_during_watch() {
    let simulator = start();
    for name in ["a", "b", "c", "d"] {
        simulator.store().create("pods", pod(name, "web")).unwrap();
    }
    let cases: [(StreamFault, &[&str], bool); 9] = [
        (StreamFault::End, &["ADDED", "ADDED"], true),
        (StreamFault::Cut, &["ADDED", "ADDED"], false),
        (StreamFault::Reset, &["ADDED", "ADDED"], false),
        (StreamFault::Stall, &["ADDED", "ADDED"], false),
        (StreamFault::Truncate, &["ADDED", "ADDED"], true),
        (StreamFault::Error(410), &["ADDED", "ADDED", "ERROR"], true),
        (StreamFault::Gap(1), &["ADDED", "ADDED", "ADDED"], true),
        (StreamFault::WrongKind, &["ADDED", "ADDED", "MODIFIED", "ADDED", "ADDED"], true),
        (StreamFault::LongFrame(100_000), &["ADDED", "ADDED", "BOOKMARK", "ADDED", "ADDED"], true),
    ];
    for (what, expected, clean) in cases {
        simulator.faults().clear();
        simulator.faults().add("*", RequestKind::Watch, Times::Always, ServerFault::At { events: 2, what }).unwrap();
        let path = "/api/v1/pods?watch=true&resourceVersion=0&timeoutSeconds=1";
        let (_, body) = get(&simulator, path, "application/json", Duration::from_secs(4)).await;
        assert_eq!(types(&frames(&body)), expected, "{what:?}");
        assert_eq!(body.ends_with("0\r\n\r\n"), clean, "{what:?}");
    }
    simulator.faults().clear();
    simulator
        .faults()
        .add("*", RequestKind::Watch, Times::Always, ServerFault::At { events: 0, what: StreamFault::End })
        .unwrap();
    let (head, body) = get(&simulator, "/api/v1/pods?watch=true", "application/json", PATIENT).await;
    assert!(head.starts_with("HTTP/1.1 200") && body == "0\r\n\r\n", "{body}");
}

#[tokio::test]
async fn marker_can_be_withheld() {
    let simulator = start();
    simulator.faults().add("*", RequestKind::Watch, Times::Always, ServerFault::NoMarker).unwrap();
    let path = "/api/v1/namespaces?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                &allowWatchBookmarks=true&timeoutSeconds=1";
    let (_, body) = get(&simulator, path, "application/json", PATIENT).await;
    let (frames, marker) = (frames(&body), "initial-events-end");
    assert!(types(&frames).starts_with(&["ADDED"; 4]) && !body.contains(marker), "{body}");
}

/// Rule: A-8.
#[tokio::test]
async fn slow_watcher_is_cut_off() {
    let simulator = start_with(|options| options.history = HistoryLimits { changes: 100, bytes: usize::MAX });
    let write = |pods: usize| {
        let after = format!(r#""}},"spec":{{"padding":"{}"}}}}"#, "x".repeat(9_000));
        let pod = |n: usize| RawObject {
            key: ObjectKey::new("a", &format!("pod-{n}")),
            before: format!(r#""metadata":{{"name":"pod-{n}","namespace":"a","uid":"{n}","resourceVersion":""#).into(),
            after: after.clone().into(),
        };
        simulator.store().ingest("pods", (0..pods).map(|n| pod(n % 100))).unwrap();
    };
    write(100);
    let version = simulator.store().version();
    let mut stream = tokio::net::TcpStream::connect(simulator.address()).await.unwrap();
    let request = format!("GET /api/v1/pods?watch=true&resourceVersion={version} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    for _ in 0..50 {
        write(50);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    write(1000);
    let mut text = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let end = tokio::time::timeout(PATIENT, async {
        while !text.ends_with(b"0\r\n\r\n") {
            let len = stream.read(&mut buffer).await.unwrap();
            text.extend_from_slice(&buffer[..len]);
        }
    });
    assert!(end.await.is_ok(), "the stream ends");
    assert!(frames(&String::from_utf8_lossy(&text)).len() < 3500);
}

#[tokio::test]
async fn server_restarts_with_its_objects() {
    let simulator = start();
    simulator.store().create("pods", pod("a", "web")).unwrap();
    let api: Api<Pod> = Api::all(client(&simulator));
    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    simulator.go_down();
    assert!(watch.count().await <= 2, "the watch breaks");
    let down = async {
        while tokio::net::TcpStream::connect(simulator.address()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENT, down).await.expect("connections are refused");
    simulator.come_up();
    let up = async {
        while api.list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENT, up).await.expect("the server is back");
    assert_eq!(simulator.store().len("pods"), 1);
}

#[tokio::test]
async fn list_plus_watch_equals_server_state() {
    let simulator = start();
    let mut workload = Workload::new(3);
    workload.populate(simulator.store(), Sizes::default()).unwrap();
    let key = |object: &Value| format!("{}/{}", object["metadata"]["namespace"], object["metadata"]["name"]);
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let list = list(&simulator, "/api/v1/pods").await;
    let mut seen: std::collections::BTreeMap<String, Value> =
        list["items"].as_array().unwrap().iter().map(|pod| (key(pod), version(pod))).collect();
    let running = workload.run(simulator.store().clone(), 2_000.0).unwrap();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/pods?watch=true&resourceVersion={from}&timeoutSeconds=5");
    let watch = get(&simulator, &path, "application/json", PATIENT);
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(running);
    };
    let ((_, body), ()) = tokio::join!(watch, stop);
    let frames = frames(&body);
    assert!(frames.len() > 20, "{}", frames.len());
    for frame in &frames {
        let object = &frame["object"];
        match frame["type"].as_str().unwrap() {
            "DELETED" => drop(seen.remove(&key(object))),
            _ => drop(seen.insert(key(object), version(object))),
        }
    }
    let held = simulator.store().list("pods");
    let held = held.iter().map(|pod| pod.value()).map(|pod| (key(&pod), version(&pod))).collect();
    assert_eq!(seen, held);
}

#[test]
fn dropped_server_stops() {
    let simulator = start();
    let address = simulator.address();
    simulator.stop();
    assert!(std::net::TcpStream::connect(address).is_err());
}
