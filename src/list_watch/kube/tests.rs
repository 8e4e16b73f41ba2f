//! Tests of the source against a scripted server: raw bytes over TCP, one connection after the other.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use super::*;
use crate::list_watch::WatchEvent;

/// A step of the server on a connection, after it has read a request.
#[derive(Clone)]
enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Ends the connection with RST instead of FIN.
    Reset,
    /// Stays silent until the client disconnects.
    Hold,
}

/// A server that runs the n-th script on the n-th connection, and the last script on all later ones.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let script = scripts[usize::min(number, scripts.len() - 1)].clone();
                tokio::spawn(play(socket, script, seen.clone()));
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn source(&self) -> KubeListWatch {
        self.source_of(Scope::default(), Limits { idle: Duration::from_secs(30), ..Limits::default() })
    }

    fn source_of(&self, scope: Scope, limits: Limits) -> KubeListWatch {
        source(&self.url, scope, limits)
    }
}

fn source(url: &str, scope: Scope, limits: Limits) -> KubeListWatch {
    let client = ClusterAccess::without_credentials(url, "test").unwrap().client();
    let pods = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Pod".into(),
        plural: "pods".into(),
        namespaced: true,
    };
    KubeListWatch::new(client, Arc::new(pods), scope, ScanPlan::default(), limits)
}

async fn play(mut socket: TcpStream, script: Vec<Step>, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    seen.lock().unwrap().push(String::from_utf8(head).unwrap());
    for step in script {
        match step {
            Step::Send(bytes) => {
                if socket.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Step::Wait(time) => sleep(time).await,
            Step::Reset => {
                socket.set_zero_linger().unwrap();
                return;
            }
            Step::Hold => {
                socket.read_u8().await.ok();
            }
        }
    }
}

fn send(text: impl AsRef<[u8]>) -> Step {
    Step::Send(text.as_ref().into())
}

/// Returns a complete answer with a content length.
fn answer(status: &str, headers: &str, body: &str) -> Vec<Step> {
    vec![send(format!(
        "HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))]
}

fn ok(body: &str) -> Vec<Step> {
    answer("200 OK", "", body)
}

/// Returns the head of a chunked HTTP/1.1 answer.
fn chunked() -> Step {
    send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
}

fn chunk(text: &str) -> Step {
    send(format!("{:x}\r\n{text}\r\n", text.len()))
}

fn pod(name: &str, rv: u32) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"a","uid":"u-{name}","resourceVersion":"{rv}"}}}}"#
    )
}

fn event(kind: &str, name: &str, rv: u32) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", pod(name, rv))
}

const POD_LIST: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"next"},"items":[
{"metadata":{"name":"web","namespace":"a","uid":"u","resourceVersion":"5"},"spec":{}}]}"#;

fn first_page() -> ListRequest {
    ListRequest { resource_version: "0".into(), limit: Some(500), continue_token: None }
}

fn from_seven() -> WatchRequest {
    WatchRequest { resource_version: "7".into(), initial_events: false, timeout_seconds: 300 }
}

/// Reads a watch to its end; returns the batch sizes, the events and the failure.
async fn drain(mut stream: WatchStream) -> (Vec<usize>, Vec<String>, Option<Failure>) {
    let (mut sizes, mut said) = (Vec::new(), Vec::new());
    while let Some(batch) = timeout(Duration::from_mins(1), stream.next()).await.expect("the stream goes on") {
        match batch {
            Ok(events) => {
                sizes.push(events.len());
                said.extend(events.iter().map(say));
            }
            Err(failure) => {
                assert!(stream.next().await.is_none(), "an error is the end");
                return (sizes, said, Some(failure));
            }
        }
    }
    (sizes, said, None)
}

fn say(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Added(object) => format!("+{}", object.name()),
        WatchEvent::Modified(object) => format!("~{}", object.name()),
        WatchEvent::Deleted(object) => format!("-{}", object.name()),
        WatchEvent::Bookmark { resource_version, .. } => format!("@{resource_version}"),
        WatchEvent::Error(status) => format!("!{}", status.code),
        WatchEvent::Skipped(_) => "skipped".into(),
        WatchEvent::PassedOver { .. } => "passed over".into(),
        WatchEvent::Undecodable(_) => "undecodable".into(),
    }
}

/// Rules: A-2, A-7.
#[tokio::test]
async fn list_is_requested_and_decoded() {
    let server = Server::start(vec![ok(POD_LIST)]).await;
    let page = server.source().list(first_page()).await.unwrap();
    assert_eq!((page.resource_version.as_str(), page.continue_token.as_deref()), ("9", Some("next")));
    let value = page.items[0].value().unwrap();
    assert_eq!((&value["kind"], &value["apiVersion"]), (&"Pod".into(), &"v1".into()));
    let request = server.requests().remove(0).to_lowercase();
    assert!(request.starts_with("get /api/v1/pods?limit=500&resourceversion=0 http/1.1\r\n"), "{request}");
    assert!(request.contains("\r\naccept: application/json\r\n"), "{request}");
}

/// Rule: T-6.
#[tokio::test]
async fn document_boundaries_are_not_chunk_boundaries() {
    let stream = event("ADDED", "x", 8) + &event("MODIFIED", "x", 9) + &event("DELETED", "x", 10);
    for size in [1, 7, 64, 1000] {
        let mut steps = vec![chunked()];
        for piece in stream.as_bytes().chunks(size) {
            steps.push(chunk(std::str::from_utf8(piece).unwrap()));
        }
        steps.push(send("0\r\n\r\n"));
        let server = Server::start(vec![steps]).await;
        let stream = server.source().watch(from_seven()).await.unwrap();
        let (_, said, end) = drain(stream).await;
        assert_eq!((said, end), (vec!["+x".to_owned(), "~x".into(), "-x".into()], None), "{size}");
        let request = server.requests().remove(0).to_lowercase();
        assert!(request.contains("\r\naccept-encoding: identity\r\n"), "{request}");
    }
}

#[tokio::test]
async fn arrived_chunks_form_one_batch() {
    let mut many = Vec::new();
    for number in 0..100 {
        let text = event("ADDED", &format!("p{number}"), 8 + number);
        many.extend_from_slice(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
    }
    let steps = vec![
        chunked(),
        Step::Send(many),
        Step::Wait(Duration::from_secs(1)),
        chunk(&event("ADDED", "last", 200)),
        send("0\r\n\r\n"),
    ];
    let server = Server::start(vec![steps]).await;
    // a LocalSet, like an arbiter, does not queue the connection's task with the reader
    let source = server.source();
    let local = tokio::task::LocalSet::new();
    let reader = local.spawn_local(async move {
        let stream = source.watch(from_seven()).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        drain(stream).await
    });
    let (sizes, said, end) = local.run_until(reader).await.unwrap();
    assert_eq!((said.len(), end), (101, None));
    assert!(sizes.len() <= 4, "{sizes:?}");
}

/// Rule: R-43.
#[tokio::test]
async fn truncated_stream_delivers_whole_documents() {
    let whole = event("ADDED", "x", 8);
    let half = event("MODIFIED", "x", 9)[..40].to_owned();
    // with the last chunk, and cut off without it
    let clean = vec![chunked(), chunk(&whole), chunk(&half), send("0\r\n\r\n")];
    let cut = vec![chunked(), chunk(&whole), chunk(&half)];
    let reset = vec![chunked(), chunk(&whole), Step::Wait(Duration::from_millis(500)), Step::Reset];
    for (steps, is_clean) in [(clean, true), (cut, false), (reset, false)] {
        let server = Server::start(vec![steps]).await;
        let (_, said, end) = drain(server.source().watch(from_seven()).await.unwrap()).await;
        assert_eq!(said, ["+x"]);
        match end {
            None => assert!(is_clean),
            Some(Failure::Disconnected(_)) => assert!(!is_clean),
            other => panic!("{other:?}"),
        }
    }
}

/// Rule: R-54.
#[tokio::test]
async fn undecodable_document_stops_reading() {
    let steps =
        vec![chunked(), chunk(&event("ADDED", "x", 8)), chunk("{\"type\":\"ODD\",\"object\":{}}\n"), Step::Hold];
    let server = Server::start(vec![steps]).await;
    let (_, said, end) = drain(server.source().watch(from_seven()).await.unwrap()).await;
    assert_eq!((said, end), (vec!["+x".to_owned(), "undecodable".into()], None));
}

/// Rules: T-6, R-54.
#[tokio::test]
async fn malformed_frame_ends_open_stream() {
    let unclosed = "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"x\n";
    let steps = vec![chunked(), chunk(&event("ADDED", "x", 8)), chunk(unclosed), Step::Hold];
    let server = Server::start(vec![steps]).await;
    let (_, said, end) = drain(server.source().watch(from_seven()).await.unwrap()).await;
    assert_eq!((said, end), (vec!["+x".to_owned(), "undecodable".into()], None));
}

#[tokio::test]
async fn oversized_frame_ends_stream_after_earlier_events() {
    let long = event("ADDED", "long", 9).replace("u-long", &"x".repeat(2000));
    let server = Server::start(vec![vec![chunked(), chunk(&(event("ADDED", "x", 8) + &long)), Step::Hold]]).await;
    let limits = Limits { max_frame: 1000, ..Limits::default() };
    let source = server.source_of(Scope::default(), limits);
    let (_, said, end) = drain(source.watch(from_seven()).await.unwrap()).await;
    let expected = Failure::FrameTooLong { max_bytes: 1000, object: Some("a/long".into()) };
    assert_eq!((said, end), (vec!["+x".to_owned()], Some(expected)));
}

/// Rule: R-54.
#[tokio::test]
async fn events_larger_than_batch_arrive_immediately() {
    let large =
        |rv| event("MODIFIED", "x", rv).replace("\"uid\"", &format!("\"x\":\"{}\",\"uid\"", "x".repeat(5 << 20)));
    let steps = vec![chunked(), chunk(&large(8)), chunk(&large(9)), chunk(&event("DELETED", "x", 10)), Step::Hold];
    let server = Server::start(vec![steps]).await;
    let mut stream = server.source().watch(from_seven()).await.unwrap();
    let mut said = Vec::new();
    while said.len() < 3 {
        let batch = timeout(Duration::from_mins(1), stream.next()).await.expect("the events arrive");
        said.extend(batch.expect("the stream is open").unwrap().iter().map(say));
    }
    assert_eq!(said, ["~x", "~x", "-x"]);
}

/// Rules: T-2, D-4.
#[tokio::test]
async fn expired_or_too_large_version_is_not_retried() {
    let expired = r#"{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old"}"#;
    let too_large = r#"{"kind":"Status","code":504,"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
    for (answer, expected) in [
        (answer("410 Gone", "", expired), (true, false)),
        (answer("410 Gone", "retry-after: 0\r\n", "gone, in prose"), (true, false)),
        (answer("504 Gateway Timeout", "retry-after: 1\r\n", too_large), (false, true)),
    ] {
        let server = Server::start(vec![answer]).await;
        for failure in [
            server.source().list(first_page()).await.unwrap_err(),
            server.source().watch(from_seven()).await.map(|_| ()).unwrap_err(),
        ] {
            let status = failure.status().unwrap_or_else(|| panic!("{failure:?}"));
            assert_eq!((status.is_expired(), status.too_large), expected);
        }
        assert_eq!(server.requests().len(), 2);
    }
}

/// Rules: T-1, T-3.
#[tokio::test]
async fn failed_request_is_returned_at_once() {
    let patience = r#"{"kind":"Status","code":503,"details":{"retryAfterSeconds":1}}"#;
    for (status, headers, body, delay) in [
        ("429 Too Many Requests", "retry-after: 7\r\n", "busy", Some(7)),
        ("503 Service Unavailable", "", patience, Some(1)),
        ("500 Internal Server Error", "", "", None),
        ("503 Service Unavailable", "retry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n", "", None),
        ("302 Found", "location: /login\r\n", "", None),
    ] {
        let server = Server::start(vec![answer(status, headers, body)]).await;
        let failure = server.source().list(first_page()).await.unwrap_err();
        let failure = failure.status().unwrap_or_else(|| panic!("{failure:?}"));
        assert_eq!(failure.code.to_string(), status[..3]);
        assert_eq!(failure.retry_after, delay.map(Duration::from_secs), "{status} {headers}");
        assert_eq!(server.requests().len(), 1, "{status}");
    }
    let half = vec![send("HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n"), send(&POD_LIST[..60])];
    for lost in [vec![Step::Reset], half] {
        let server = Server::start(vec![lost]).await;
        let failure = server.source().list(first_page()).await.unwrap_err();
        assert!(matches!(failure, Failure::Disconnected(_)), "{failure:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

/// Rule: R-40.
#[tokio::test]
async fn refused_connection_is_returned_at_once() {
    let source = source("http://127.0.0.1:1", Scope::default(), Limits::default());
    assert_eq!(source.list(first_page()).await.unwrap_err(), Failure::Refused);
    assert_eq!(source.watch(from_seven()).await.map(|_| ()).unwrap_err(), Failure::Refused);
}

#[tokio::test]
async fn tls_and_name_failures_fail_the_request() {
    let server = Server::start(vec![vec![send("HTTP/1.1 400 Bad Request\r\n\r\n")]]).await;
    // the scripted server waits for the end of a request that never comes; this listener answers any bytes at once
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            socket.read_u8().await.ok();
            sleep(Duration::from_secs(1)).await;
        }
    });
    for url in [&*url, "http://no-such-host.invalid"] {
        let failure = source(url, Scope::default(), Limits::default()).list(first_page()).await.unwrap_err();
        assert!(matches!(failure, Failure::Request(_)), "{failure:?}");
    }
    drop(server);
}

#[tokio::test]
async fn garbage_is_undecodable_and_foreign_answer_refused() {
    let garbage = vec![send("\x16\x03 this is not HTTP\r\n\r\n")];
    let html = ok("<html>login</html>");
    let table = ok(r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}"#);
    let status = ok(r#"{"kind":"Status","apiVersion":"v1","code":500}"#);
    let broken = ok(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":tru}]}"#);
    for (answer, is_undecodable) in [(garbage, true), (html, false), (table, false), (status, false), (broken, true)] {
        let server = Server::start(vec![answer]).await;
        let failure = server.source().list(first_page()).await.unwrap_err();
        let fits = if is_undecodable {
            matches!(failure, Failure::Undecodable(_))
        } else {
            matches!(failure, Failure::NotAList(_))
        };
        assert!(fits, "{failure:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn stalled_list_times_out_and_slow_one_continues() {
    let limits = Limits { idle: Duration::from_secs(1), ..Limits::default() };
    let head = send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", POD_LIST.len()));
    for steps in
        [vec![Step::Hold], vec![head.clone(), Step::Hold], vec![head.clone(), send(&POD_LIST[..90]), Step::Hold]]
    {
        let server = Server::start(vec![steps]).await;
        let failure = server.source_of(Scope::default(), limits).list(first_page()).await.unwrap_err();
        assert_eq!(failure, Failure::TimedOut(limits.idle));
        assert_eq!(server.requests().len(), 1);
    }
    let mut dripping = vec![head];
    for piece in POD_LIST.as_bytes().chunks(10) {
        dripping.extend([Step::Wait(Duration::from_millis(100)), send(piece)]);
    }
    let server = Server::start(vec![dripping]).await;
    assert!(server.source_of(Scope::default(), limits).list(first_page()).await.is_ok());
}

#[tokio::test]
async fn metadata_only_requests_partial_objects() {
    let list = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"items":[
        {"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web","namespace":"a"}}]}"#;
    let scope = Scope { metadata_only: true, ..Scope::default() };
    let server = Server::start(vec![ok(list)]).await;
    let page = server.source_of(scope.clone(), Limits::default()).list(first_page()).await.unwrap();
    assert_eq!(page.items[0].value().unwrap()["kind"], "Pod");
    assert!(server.requests()[0].contains("accept: application/json;as=PartialObjectMetadataList;"));

    let frame = "{\"type\":\"ADDED\",\"object\":{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"name\":\"web\"}}}\n";
    let server = Server::start(vec![vec![chunked(), chunk(frame), send("0\r\n\r\n")]]).await;
    let mut stream = server.source_of(scope, Limits::default()).watch(from_seven()).await.unwrap();
    match &stream.next().await.unwrap().unwrap()[..] {
        [WatchEvent::Added(object)] => assert_eq!(object.value().unwrap()["kind"], "Pod"),
        other => panic!("{other:?}"),
    }
    assert!(server.requests()[0].contains("accept: application/json;as=PartialObjectMetadata;"));
}

/// Rules: LW-3, R-46.
#[tokio::test]
async fn dropped_stream_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        assert!(socket.read(&mut buffer).await.unwrap() > 0);
        socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        socket.read(&mut buffer).await
    });
    let stream = source(&url, Scope::default(), Limits::default()).watch(from_seven()).await.unwrap();
    drop(stream);
    let read = timeout(Duration::from_secs(30), served).await.expect("the connection closes").unwrap();
    assert_eq!(read.unwrap_or(0), 0);
}
