//! The HTTP edge with hostile clients: incomplete requests, unread answers, web pages, guessed tokens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::support::{
    command::deltabus,
    engine::{Engine, request, text},
    scripted::PATIENCE,
    simulated::Simulated,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

/// A list request whose answer the client may leave unread.
const LIST: &str = "GET /api/v1/configmaps HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A request for a stream.
const STREAM: &str = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n";

const SINK: &str = "type = \"blackhole\"";

/// Runs an engine with some config maps of 2 KB, and with these lines in `[http]`.
fn run(world: &Simulated, objects: usize, http: &str) -> Engine {
    let data = "x".repeat(2000);
    for number in 0..objects {
        let map = json!({"metadata": {"namespace": "default", "name": format!("m{number}")}, "data": {"x": data}});
        world.simulator.store().put("configmaps", map).unwrap();
    }
    configure(world, http);
    let engine = Engine::run_again(world.dir(), &[]);
    engine.wait_ready(PATIENCE);
    engine
}

/// Writes the configuration, with these lines in `[http]`.
fn configure(world: &Simulated, http: &str) {
    let config = format!("{}\n[http]\nlisten = \"127.0.0.1:0\"\n{http}", world.config(SINK));
    fs::write(world.dir().join("config.toml"), config).unwrap();
}

/// Opens a connection and sends some bytes.
fn send(address: &str, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream
}

/// Waits until the engine closes a connection; returns the bytes received.
fn read_to_close(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    let ended = stream.read_to_end(&mut read);
    let is_open = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(!is_open, "the connection stays open");
    String::from_utf8_lossy(&read).into_owned()
}

/// Returns true if a connection is open.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn connection_waiting_for_client_is_closed_in_time() {
    let world = Simulated::start();
    let engine = run(&world, 2000, "header_timeout = \"1s\"\nidle_timeout = \"1s\"\nwrite_timeout = \"1s\"\n");
    assert_eq!(read_to_close(send(&engine.http, "")), "", "nothing was sent");
    assert_eq!(read_to_close(send(&engine.http, "GET /livez HTTP/1.1\r\nHost: loc")), "", "half a head");
    let kept_alive = read_to_close(send(&engine.http, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(kept_alive.starts_with("HTTP/1.1 200 ") && kept_alive.ends_with("\r\n\r\nok"), "{kept_alive}");

    // The client reads nothing of a list. The kernels buffer a part of it, and its end never arrives.
    let unread = send(&engine.http, LIST);
    let other = send(&engine.http, STREAM);
    std::thread::sleep(Duration::from_secs(4)); // longer than any of the timeouts
    assert!(!read_to_close(unread).ends_with("0\r\n\r\n"), "the end came, too");
    let head = &mut [0; 15];
    (&other).read_exact(head).unwrap();
    assert_eq!(head, b"HTTP/1.1 200 OK", "a stream is not cut");
    assert!(engine.terminate().success());
}

#[test]
fn request_head_is_bounded() {
    let world = Simulated::start();
    let engine = run(&world, 0, "");
    let padding = |bytes: usize| format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(bytes));
    let mut first = [0; 12];
    send(&engine.http, &padding(30 << 10)).read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // The engine stops reading after some 32 KiB, so not all bytes can be sent.
    let mut stream = TcpStream::connect(&engine.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _sent = stream.write_all(padding(1 << 20).as_bytes());
    let refused = read_to_close(stream);
    assert!(refused.starts_with("HTTP/1.1 431 ") || refused.is_empty(), "{refused}");
    assert!(engine.terminate().success());
}

#[test]
fn new_connection_replaces_longest_waiting_one() {
    let world = Simulated::start();
    let engine = run(&world, 0, "max_connections = 3\n");
    let first = send(&engine.http, "");
    std::thread::sleep(Duration::from_millis(50)); // so that this connection has waited longest
    let stream = send(&engine.http, STREAM);
    let second = send(&engine.http, "");
    assert!(request(&engine.http, "GET", "/livez", &[]).is_ok_and(|answer| answer.code == 200));
    assert_eq!(read_to_close(first), "");
    assert!(is_open(&second));
    // Streams must not use the last free connection.
    let other = send(&engine.http, STREAM);
    let more = request(&engine.http, "GET", "/v1/events", &[]).unwrap();
    assert_eq!((more.code, more.header("retry-after")), (429, "1"), "{}", more.body);
    assert!(more.json()["message"].as_str().unwrap().contains("[http] max_connections"));
    assert!(request(&engine.http, "GET", "/livez", &[]).is_ok_and(|answer| answer.code == 200));
    drop((stream, other));
    assert!(engine.terminate().success());
}

#[test]
fn unread_lists_leave_room_for_other_requests() {
    let world = Simulated::start();
    let engine = run(&world, 2000, "max_response_bytes = \"10MiB\"\n");
    let refused = || request(&engine.http, "GET", "/api/v1/configmaps", &[]).unwrap();
    let mut unread = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let answer = loop {
        unread.push(send(&engine.http, LIST));
        // The kernels buffer a part of each answer.
        let answer = refused();
        if answer.code == 429 {
            break answer;
        }
        assert_eq!(answer.code, 200, "{}", answer.body);
        assert!(Instant::now() < deadline && unread.len() < 100, "{} lists of 4 MB were begun", unread.len());
    };
    assert!(unread.len() >= 3, "10 MiB hold two lists and a part of one");
    assert_eq!((answer.header("retry-after"), answer.json()["reason"].as_str()), ("1", Some("TooManyRequests")));
    assert!(answer.json()["message"].as_str().unwrap().contains("[http] max_response_bytes"));
    for path in ["/livez", "/api/v1/namespaces/default/configmaps/m7", "/v1/resources", "/metrics"] {
        assert_eq!(engine.get(path).unwrap().0, 200, "{path}");
    }
    drop(unread);
    engine.wait_for("list", PATIENCE, || refused().code == 200);
    assert!(engine.terminate().success());
}

#[test]
fn dns_rebinding_page_reads_nothing() {
    let world = Simulated::start();
    let engine = run(&world, 1, "probe_listen = \"127.0.0.1:0\"\nallowed_hosts = [\"engine.example.com\"]\n");
    let port = engine.http.rsplit_once(':').unwrap().1;
    let code = |address: &str, host: &str, headers: &str| {
        let head = format!("GET /livez HTTP/1.1\r\nConnection: close\r\nHost: {host}\r\n{headers}\r\n");
        read_to_close(send(address, &head)).split(' ').nth(1).unwrap().to_owned()
    };
    for host in [&engine.http, &format!("localhost:{port}"), "localhost", "engine.example.com:443"] {
        assert_eq!(code(&engine.http, host, ""), "200", "{host}");
    }
    assert_eq!(code(&engine.http, &format!("evil.example:{port}"), ""), "421");
    assert_eq!(code(&engine.http, "localhost", "Origin: http://evil.example\r\n"), "403");
    assert_eq!(code(&engine.http, "localhost", "Sec-Fetch-Site: cross-site\r\n"), "403");
    let rebound = format!("GET /api/v1/configmaps HTTP/1.1\r\nConnection: close\r\nHost: evil.example:{port}\r\n\r\n");
    let refused = read_to_close(send(&engine.http, &rebound));
    assert!(refused.contains("\"kind\":\"Status\"") && refused.contains("[http] allowed_hosts"), "{refused}");
    assert!(!refused.contains("xxx"), "an object was shown");
    // Kubelet and Prometheus reach the probes by any address.
    let probes = engine.probes();
    assert_eq!(code(&probes, "evil.example", "Origin: http://evil.example\r\n"), "200");
    assert!(engine.terminate().success());
}

#[test]
fn tokens_have_scopes_and_control_is_logged() {
    let world = Simulated::start();
    let (reads, controls) = ("a-token-that-reads", "a-token-that-controls");
    fs::write(world.dir().join("reads"), reads).unwrap();
    fs::write(world.dir().join("controls"), controls).unwrap();
    let [read_file, control_file] = ["reads", "controls"].map(|name| text(world.dir(), name));
    let http = format!(
        "auth = \"token\"\nprobe_listen = \"127.0.0.1:0\"\ntokens = [\n\
         {{ name = \"grafana\", token = {{ file = {read_file:?} }} }},\n\
         {{ name = \"ops\", token = {{ file = {control_file:?} }}, scope = \"control\" }},\n]\n"
    );
    configure(&world, &http);
    let engine = Engine::run_again(world.dir(), &[]);
    let ask = |method: &str, path: &str, token: &str| {
        request(&engine.http, method, path, &[("Authorization", &format!("Bearer {token}"))]).unwrap()
    };
    engine.wait_for("ready", PATIENCE, || ask("GET", "/readyz", reads).code == 200);
    let pause = "/v1/handlers/out/pause";
    let refused = ask("POST", pause, reads);
    assert_eq!((refused.code, refused.json()["reason"].as_str()), (403, Some("Forbidden")));
    assert!(refused.json()["message"].as_str().unwrap().contains("grafana"), "{}", refused.body);
    assert_eq!(ask("POST", pause, controls).code, 200);
    engine.wait_for_log("handler control requested over HTTP");
    let log = engine.log();
    let line = log.lines().find(|line| line.contains("handler control requested")).unwrap();
    for part in ["127.0.0.1:", "ops", "pause", "out"] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }

    // The rate of guesses is limited; neither they nor an unreadable file flood the log.
    let codes: Vec<_> = (0..30).map(|_| ask("GET", "/livez", "wrong").code).collect();
    assert!(codes[..10].iter().all(|code| *code == 401) && codes.contains(&429), "{codes:?}");
    assert_eq!(ask("GET", "/livez", reads).code, 200, "a right token is accepted in any case");
    fs::remove_file(world.dir().join("reads")).unwrap();
    for _ in 0..20 {
        assert_eq!(request(&engine.http, "GET", "/livez", &[]).unwrap().code, 500);
    }
    engine.wait_for_log("cannot read a token of [http]");
    let log = engine.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!((lines("cannot read a token"), lines("wrong token")), (1, 1), "{log}");
    assert!(!log.contains(reads) && !log.contains(controls));
    assert!(engine.terminate().success());
}

#[test]
fn short_token_fails_the_start() {
    let world = Simulated::start();
    fs::write(world.dir().join("token"), "fifteen-bytes-1").unwrap();
    let token = text(world.dir(), "token");
    configure(&world, &format!("auth = \"token\"\ntoken = {{ file = {token:?} }}\n"));
    let config = text(world.dir(), "config.toml");
    let (code, _, said) = deltabus(world.dir(), &world.dir().join("kubeconfig"), &["run", "-c", &config], &[]);
    assert_eq!(code, 1);
    assert!(said.contains("[http] token: expected at least 16 bytes, found 15"), "{said}");
}

/// Opens a stream with an expression.
fn stream(engine: &Engine, when: &str) -> TcpStream {
    let when: String = form_urlencoded::byte_serialize(when.as_bytes()).collect();
    let path = format!("/v1/events?initial=true&when={when}");
    send(&engine.http, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

#[test]
fn client_expression_is_bounded() {
    let world = Simulated::start();
    let engine = run(&world, 10, "");
    let large = json!({"metadata": {"namespace": "default", "name": "large"}, "data": {"x": "x".repeat(200_000)}});
    world.simulator.store().put("configmaps", large).unwrap();
    engine.wait_for("cached", PATIENCE, || engine.get("/api/v1/namespaces/default/configmaps/large").unwrap().0 == 200);
    for when in ["object.data.x.split('').all(a, 'y'.split('').all(b, a == b))", "'a'.matches(object.data.x)", "1 +"] {
        let refused = read_to_close(stream(&engine, when));
        assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("when: Invalid value"), "{refused}");
    }
    let shown = read_to_close(stream(&engine, "object.data.x.split('').all(x, x == 'x')"));
    assert!(shown.starts_with("HTTP/1.1 200 "), "{shown}");
    let (before, error) = shown.split_once("event: error\n").unwrap_or_else(|| panic!("no error: {shown}"));
    assert!(error.contains("dev.deltabus.stream.error") && error.contains("`when`: it took more than "), "{error}");
    assert!(before.matches("event: added").count() <= 10 && !error.contains("event: added"), "{before}");
    assert!(engine.terminate().success());
}

#[test]
fn client_expressions_can_be_disabled() {
    let world = Simulated::start();
    let engine = run(&world, 1, "[subscribe]\nwhen = false\n");
    let refused = read_to_close(stream(&engine, "true"));
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("[subscribe] when = false"), "{refused}");
    assert_eq!(engine.get("/v1/events?when=true").unwrap().0, 403);
    assert!(engine.terminate().success());
}

/// Returns the engine's memory in bytes, without program pages, which the system may reclaim at any time.
fn memory(engine: &Engine) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", engine.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Incomplete heads, unread lists, probe connections and expensive expressions together. `/livez` answers, events are
/// delivered, and memory is limited and released.
#[test]
fn connection_attack_leaves_engine_working() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let world = Simulated::start();
    let engine =
        run(&world, 10_000, "probe_listen = \"127.0.0.1:0\"\nheader_timeout = \"5s\"\nwrite_timeout = \"5s\"\n");
    let probes = engine.probes();
    let before = memory(&engine);
    let (mut held, mut slowest, mut most) = (Vec::new(), Duration::ZERO, 0);
    // Each evaluation stays within its limits.
    let patterns: Vec<_> = (0..8).map(|number| format!("object.data.x.matches('(x{{50}}{number})')")).collect();
    held.extend((0..50).map(|_| stream(&engine, &patterns.join(" || "))));
    held.extend((0..50).map(|_| stream(&engine, "object.data.x.split('').all(x, x.contains('x'))")));
    let delivered = || engine.json("/v1/handlers")["handlers"][0]["delivered"].as_u64().unwrap();
    let (delivered_before, mut lag) = (delivered(), Duration::ZERO);
    for round in 0..200 {
        held.extend((0..3).map(|_| send(&engine.http, "GET /livez HTTP/1.1\r\nHost: loc")));
        held.extend((0..10).map(|_| send(&engine.http, LIST)));
        held.push(send(&probes, "GET /livez HTTP/1.1\r\n"));
        if round % 4 == 0 {
            let asked = Instant::now();
            assert_eq!(engine.get("/livez").unwrap().0, 200);
            slowest = slowest.max(asked.elapsed());
            most = most.max(memory(&engine));
        }
        if round % 20 == 0 {
            let put = Instant::now();
            let map = json!({"metadata": {"namespace": "default", "name": format!("new{round}")}, "data": {}});
            world.simulator.store().put("configmaps", map).unwrap();
            let expected = delivered_before + round / 20 + 1;
            engine.wait_for("delivered", PATIENCE, || delivered() >= expected);
            lag = lag.max(put.elapsed());
        }
    }
    let grown = most.saturating_sub(before) >> 20;
    println!("/livez took {slowest:?} at most, an event {lag:?}; {grown} MiB more");
    assert!(lag < Duration::from_secs(2), "an event took {lag:?}");
    assert!(slowest < Duration::from_secs(2), "/livez took {slowest:?}"); // other tests use the cores
    assert!(grown <= 64, "{grown} MiB more");
    drop(held);
    let is_back =
        || memory(&engine).saturating_sub(before) < 32 << 20 && engine.get("/api/v1/configmaps").unwrap().0 == 200;
    engine.wait_for("back", Duration::from_mins(1), is_back);
    assert!(engine.terminate().success());
}
