//! Tests of the handler with a hostile server.

use std::time::Duration;

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    sync::mpsc,
    time::timeout,
};

use super::{NatsHandler, NatsOptions};
use crate::{
    cloud_event::{
        Encoder,
        tests::{event, unit},
    },
    handler::{AsyncHandler as _, Form, HandlerError},
    journal::testing::added,
    notification::Notification,
};

/// Bytes after which the test gives up.
const SENT_MAX: usize = 200 << 20;

/// Starts a server that floods each connection after the handshake, and reads no more. Returns its URL, and the number of bytes that
/// each connection took.
async fn flood(start: &'static [u8], piece: &'static [u8]) -> (String, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let (taken, all) = mpsc::channel(8);
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (read, mut write) = socket.into_split();
            let mut lines = BufReader::new(read).lines();
            write.write_all(b"INFO {\"server_id\":\"x\",\"max_payload\":1048576,\"headers\":true}\r\n").await.unwrap();
            while let Ok(Some(line)) = lines.next_line().await
                && line != "PING"
            {}
            write.write_all(b"PONG\r\n").await.unwrap();
            let pieces = piece.repeat((1 << 20) / piece.len());
            let mut sent = 0;
            if write.write_all(start).await.is_ok() {
                while sent < SENT_MAX && write.write_all(&pieces).await.is_ok() {
                    sent += pieces.len();
                }
            }
            taken.send(sent).await.unwrap();
        }
    });
    (url, all)
}

async fn cuts_off(start: &'static [u8], piece: &'static [u8]) {
    let (url, mut all) = flood(start, piece).await;
    let options = NatsOptions { servers: vec![url], ..NatsOptions::default() };
    let handler = NatsHandler::new(options, Encoder::new("test", "0")).unwrap();
    let batch = Notification::new(vec![event(unit("", "pods", "Pod"), added("web", "u", 1))]);
    for _ in 0..2 {
        // a busy machine may need more than the timeout of one attempt
        for attempt in 1.. {
            let sent = handler.deliver(&batch, Form::Whole).await;
            let Err(HandlerError::Failed(error)) = &sent else { panic!("{sent:?}") };
            if error.contains("18 MiB that nothing waits for") {
                break;
            }
            assert!(attempt < 5, "{error}");
        }
        let taken = timeout(Duration::from_secs(20), all.recv()).await.unwrap().unwrap();
        assert!((10 << 20..SENT_MAX).contains(&taken), "{} MiB", taken >> 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_sends_endless_message_is_cut_off() {
    cuts_off(b"MSG a 1 4000000000\r\n", b"0123456789abcdef").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_ends_no_line_is_cut_off() {
    cuts_off(b"MSG ", b"0123456789abcdef").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_reads_no_pong_is_cut_off() {
    cuts_off(b"", b"PING 0123456789\r\n").await;
}
