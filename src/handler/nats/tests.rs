//! Tests of the handler with servers that send too much.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::stream::Config;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::mpsc,
    time::timeout,
};

use super::{ExpectLast, JetStreamOptions, NatsHandler, NatsOptions};
use crate::{
    cloud_event::{
        Encoder,
        tests::{event, unit},
    },
    handler::{AsyncHandler as _, Form, HandlerError},
    journal::testing::added,
    notification::Notification,
};

/// Bytes after which a flood ends. They exceed the limit and all buffers of the sockets.
const FLOOD: usize = 512 << 20;

/// Lengths of the floods that have ended.
type Floods = mpsc::UnboundedReceiver<usize>;

/// Point of a connection at which a server sends more than it should.
#[derive(Clone, Copy, PartialEq)]
enum When {
    AtOnce,
    InHandshake,
    AfterHandshake,
    /// After each acknowledgement. The server then continues to read.
    Acknowledging,
    /// After the first acknowledgement. The server then closes the connection.
    Acknowledged,
}

/// A server that accepts one connection after the other.
#[derive(Clone, Copy)]
struct Server {
    when: When,
    /// Bytes that it sends once.
    start: &'static [u8],
    /// Bytes that it sends `times` times.
    piece: &'static [u8],
    times: usize,
    /// Length of the spaces in an acknowledgement.
    padding: usize,
    /// Address of another server, which it announces.
    other: Option<SocketAddr>,
}

impl Server {
    /// Floods each connection until this is closed, and does not read.
    fn flood(when: When, start: &'static [u8], piece: &'static [u8]) -> Self {
        Self { start, piece, times: FLOOD / piece.len(), ..Self::friendly(when) }
    }

    fn friendly(when: When) -> Self {
        Self { when, start: b"", piece: b"", times: 0, padding: 0, other: None }
    }

    /// Starts the server. Returns its address, the number of its connections, and the length of each flood.
    async fn start(self) -> (SocketAddr, Arc<AtomicUsize>, Floods) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (taken, floods) = mpsc::unbounded_channel();
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                self.talk(socket, &taken).await;
            }
        });
        (address, connections, floods)
    }

    /// Talks with a client until an error.
    async fn talk(self, socket: TcpStream, taken: &mpsc::UnboundedSender<usize>) {
        let (read, mut write) = socket.into_split();
        let mut lines = BufReader::new(read);
        if self.when == When::AtOnce {
            return self.send(&mut write, taken).await;
        }
        let urls = self.other.map(|other| other.to_string()).into_iter().collect::<Vec<_>>();
        let info = json!({ "server_id": "x", "max_payload": 1 << 20, "headers": true, "connect_urls": urls });
        let (mut line, mut sid) = (String::new(), String::new());
        let mut is_open = write.write_all(format!("INFO {info}\r\n").as_bytes()).await.is_ok();
        while is_open {
            line.clear();
            if lines.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["PING"] if self.when == When::InHandshake => return self.send(&mut write, taken).await,
                ["PING"] => {
                    is_open = write.write_all(b"PONG\r\n").await.is_ok();
                    if self.when == When::AfterHandshake {
                        return self.send(&mut write, taken).await;
                    }
                }
                ["SUB", _, id] => sid = id.to_owned(),
                ["PUB", subject, reply, length] | ["HPUB", subject, reply, _, length] => {
                    let mut payload = vec![0; length.parse::<usize>().unwrap() + 2];
                    lines.read_exact(&mut payload).await.unwrap();
                    let (sid, answer) = if subject.starts_with("$JS.") {
                        ("0", stream_info())
                    } else {
                        (&*sid, format!("{{\"stream\":\"K8S\",\"seq\":1{}}}", " ".repeat(self.padding)))
                    };
                    let answer = format!("MSG {reply} {sid} {}\r\n{answer}\r\n", answer.len());
                    is_open = write.write_all(answer.as_bytes()).await.is_ok();
                    match self.when {
                        When::Acknowledging if sid != "0" => self.send(&mut write, taken).await,
                        When::Acknowledged if sid != "0" => return self.send(&mut write, taken).await,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    async fn send(self, write: &mut OwnedWriteHalf, taken: &mpsc::UnboundedSender<usize>) {
        let pieces = self.piece.repeat((1 << 20) / self.piece.len().max(1) + 1);
        let (mut left, mut sent) = (self.times * self.piece.len(), 0);
        if write.write_all(self.start).await.is_ok() {
            while left > 0 && write.write_all(&pieces[..left.min(pieces.len())]).await.is_ok() {
                sent += left.min(pieces.len());
                left -= left.min(pieces.len());
            }
        }
        taken.send(sent).ok();
    }
}

fn handler(server: SocketAddr) -> NatsHandler {
    let (stream, expect_last) = ("K8S".to_owned(), ExpectLast::Off);
    let jetstream = Some(JetStreamOptions { stream, expect_last, create: false, ..JetStreamOptions::default() });
    let options = NatsOptions { servers: vec![format!("nats://{server}")], jetstream, ..NatsOptions::default() };
    NatsHandler::new(options, Encoder::new("test", "0")).unwrap()
}

fn stream_info() -> String {
    let subjects = vec!["k8s.>".to_owned()];
    let config = Config { name: "K8S".to_owned(), subjects, ..Config::default() };
    let time = "2026-01-01T00:00:00Z";
    let state = json!({ "messages": 0, "bytes": 0, "first_seq": 0, "first_ts": time, "last_seq": 0, "last_ts": time, "consumer_count": 0 });
    json!({ "type": "io.nats.jetstream.api.v1.stream_info_response", "config": config, "created": time, "state": state })
        .to_string()
}

async fn deliver(handler: &NatsHandler, events: usize) -> Result<(), HandlerError> {
    let events = (0..events).map(|i| event(unit("", "pods", "Pod"), added(&format!("web-{i}"), "u", 1))).collect();
    handler.deliver(&Notification::new(events), Form::Whole).await
}

/// Checks that each connection is ended long before the server has sent everything, and that the handler connects again.
async fn ends_connection(server: Server) {
    let (address, _, mut floods) = server.start().await;
    let handler = handler(address);
    for _ in 0..2 {
        // a busy machine may need more than the timeout of one attempt
        for attempt in 1.. {
            let sent = deliver(&handler, 1).await;
            let Err(HandlerError::Failed(error)) = &sent else { panic!("{sent:?}") };
            if error.contains("more than 16 MiB that nothing waits for") {
                break;
            }
            assert!(attempt < 5, "{error}");
        }
        let flood = timeout(Duration::from_secs(20), floods.recv()).await.unwrap().unwrap();
        assert!((10 << 20..FLOOD).contains(&flood), "{} MiB", flood >> 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_line_without_end_ends_connection() {
    ends_connection(Server::flood(When::AtOnce, b"INFO ", b"0123456789abcdef")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_message_in_handshake_ends_connection() {
    ends_connection(Server::flood(When::InHandshake, b"MSG a 1 4000000000\r\n", b"0123456789abcdef")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_message_ends_connection() {
    ends_connection(Server::flood(When::AfterHandshake, b"MSG a 1 4000000000\r\n", b"0123456789abcdef")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_without_end_ends_connection() {
    ends_connection(Server::flood(When::AfterHandshake, b"MSG ", b"0123456789abcdef")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_pongs_end_connection() {
    let ping = b"PING 0123456789012345678901234567890123456789012345678901234567\r\n";
    ends_connection(Server::flood(When::AfterHandshake, b"", ping)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_errors_ends_connection() {
    let error = b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n";
    ends_connection(Server::flood(When::AfterHandshake, b"", error)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_unread_inbox_ends_connection() {
    let message = b"MSG a 1 64\r\n0123456789012345678901234567890123456789012345678901234567890123\r\n";
    let (address, _, mut floods) = Server::flood(When::Acknowledged, b"", message).start().await;
    let handler = handler(address);
    for _ in 0..2 {
        // on a busy machine, the connection may end before the attempt has read the acknowledgement
        drop(deliver(&handler, 1).await);
        let flood = timeout(Duration::from_mins(1), floods.recv()).await.unwrap().unwrap();
        assert!((10 << 20..FLOOD).contains(&flood), "{} MiB", flood >> 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_connects_again_after_panic_of_client() {
    let start = b"MSG a 1 18446744073709551615\r\n"; // the client adds to this length
    let server = Server { start, ..Server::friendly(When::AfterHandshake) };
    let (address, connections, _floods) = server.start().await;
    let handler = handler(address);
    let replaced = async {
        while connections.load(Ordering::Relaxed) < 3 {
            drop(deliver(&handler, 1).await);
        }
    };
    timeout(Duration::from_mins(1), replaced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_do_not_end_connection() {
    let server = Server { padding: 64 << 10, ..Server::friendly(When::Acknowledging) };
    let (address, connections, _floods) = server.start().await;
    let handler = handler(address);
    for _ in 0..8 {
        deliver(&handler, 50).await.unwrap();
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1, "25 MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignored_bytes_replace_connection_between_attempts() {
    let server = Server { piece: b"+OK\r\n", times: 1 << 18, ..Server::friendly(When::Acknowledging) };
    let (address, connections, _floods) = server.start().await;
    let handler = handler(address);
    let replaced = async {
        while connections.load(Ordering::Relaxed) < 3 {
            deliver(&handler, 1).await.unwrap();
        }
    };
    timeout(Duration::from_mins(1), replaced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_server_is_replaced_by_announced_one() {
    let (other, connections, _floods) = Server::friendly(When::Acknowledging).start().await;
    let server = Server { other: Some(other), ..Server::friendly(When::Acknowledged) };
    let (address, _, _floods) = server.start().await;
    let handler = handler(address);
    let replaced = async {
        while connections.load(Ordering::Relaxed) == 0 {
            drop(deliver(&handler, 1).await); // it fails while the connection is lost
        }
    };
    timeout(Duration::from_mins(1), replaced).await.unwrap();
}
