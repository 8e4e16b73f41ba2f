//! What handlers that speak to other systems take, without an engine: a real NATS server beside what NATS' own client
//! does in the same run, and a webhook to a server that answers at once.
//!
//! Each handler has one thread, as in the engine. `--sample-size 10` or less makes one run of each in place of three.

#[path = "../tests/support/cluster.rs"]
mod cluster;
#[expect(dead_code, reason = "tests use the rest")]
#[path = "../tests/support/nats.rs"]
mod nats;

use std::{env, error::Error, process::Command, thread, time::Instant};

use bytes::Bytes;
use deltabus::{
    cloud_event::{ContentMode, Encoder},
    dispatcher::{Event, Notification},
    handler::{
        AsyncHandler, Form,
        nats::{ExpectLast, NatsHandler},
        webhook::{TlsOptions, Webhook, WebhookOptions},
    },
    indexer::{Cause, Change},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use nats::{Keys, NatsServer};

/// Config maps of 1 KB, and the events that each run delivers.
const OBJECTS: u64 = 10_000;
const EVENTS: u64 = 100_000;
/// Deliveries at a time: the engine's default.
const CONCURRENCY: usize = 8;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") {
        return Ok(());
    }
    let size = args.iter().position(|arg| arg == "--sample-size").and_then(|at| args.get(at + 1)?.parse().ok());
    let runs = if size.is_some_and(|size: u32| size <= 10) { 1 } else { 3 };
    let thousand = batches(1000);
    println!("sinks: {EVENTS} events of config maps of 1 KB, {OBJECTS} objects; median of {runs}");
    println!("| | events/s |\n|---|---|");
    let row = |name: &str, run: &dyn Fn() -> Outcome<f64>| -> Outcome<()> {
        let mut rates = (0..runs).map(|_| run()).collect::<Outcome<Vec<_>>>()?;
        rates.sort_by(f64::total_cmp);
        println!("| {name} | {:.0} |", rates[rates.len() / 2]);
        Ok(())
    };
    row("NATS' Go client, 1,000 at a time", &|| go_client(&[]))?;
    row("NATS' Go client, with `Nats-Msg-Id`", &|| go_client(&["-ids"]))?;
    for (name, expect_last) in [("off", ExpectLast::Off), ("per-subject", ExpectLast::PerSubject)] {
        row(&format!("**nats**, `expect_last = \"{name}\"`"), &|| to_nats(expect_last, &thousand, CONCURRENCY))?;
    }
    row("**nats**, one delivery of 1,000 at a time", &|| to_nats(ExpectLast::Off, &thousand, 1))?;
    for size in [1, 50] {
        let batches = batches(size);
        row(&format!("**webhook**, batches of {size}"), &|| to_webhook(size > 1, &batches))?;
    }
    Ok(())
}

/// Returns all events in batches of `size`: objects in turn, each an `added` and then updates.
fn batches(size: u64) -> Vec<Notification> {
    let change = |at: u64| {
        let (name, version) = (format!("map-{}", at % OBJECTS), at / OBJECTS + 1);
        let object = |version| nats::config_map(&name, version, 860);
        let change = match version {
            1 => Change::Added { object: object(1), cause: Cause::Watch },
            _ => Change::Unchanged { object: object(version), cause: Cause::Watch },
        };
        nats::event(at + 1, change)
    };
    let of = |begin: u64| Notification::new((begin..begin + size).map(change).collect::<Vec<Event>>());
    (0..EVENTS / size).map(|batch| of(batch * size)).collect()
}

fn server() -> Outcome<NatsServer> {
    NatsServer::start_or_skip("sinks", Keys::jetstream).ok_or_else(|| "there is no NATS server to measure with".into())
}

fn go_client(more: &[&str]) -> Outcome<f64> {
    let server = server()?;
    let output = Command::new(cluster::build("nats")?)
        .args(["bench", "-url", &format!("nats://{}", server.address())])
        .args(["-messages", &EVENTS.to_string(), "-size", "1024", "-batch", "1000", "-subjects", &OBJECTS.to_string()])
        .args(more)
        .output()?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    line["per_second"].as_f64().ok_or_else(|| String::from_utf8_lossy(&output.stderr).into())
}

fn to_nats(expect_last: ExpectLast, batches: &[Notification], concurrency: usize) -> Outcome<f64> {
    let server = server()?;
    let mut options = server.options();
    options.jetstream.as_mut().expect("it has a stream").expect_last = expect_last;
    rate(&NatsHandler::new(options, Encoder::new("prod", "9f2c")), batches, concurrency)
}

fn to_webhook(is_array: bool, batches: &[Notification]) -> Outcome<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    thread::spawn(move || answer(listener));
    let options = WebhookOptions {
        url,
        method: Method::POST,
        mode: ContentMode::Structured,
        batched: is_array,
        headers: HeaderMap::new(),
        idempotency_header: Some("idempotency-key".parse()?),
        auth: None,
        tls: TlsOptions::default(),
        timeout: std::time::Duration::from_secs(30),
    };
    rate(&Webhook::new(options, Encoder::new("prod", "9f2c"))?, batches, CONCURRENCY)
}

/// Delivers all batches, so many at a time but in their order; returns events a second.
fn rate(handler: &dyn AsyncHandler, batches: &[Notification], concurrency: usize) -> Outcome<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let begin = now();
        let attempts = batches.iter().map(|batch| handler.deliver(batch, Form::Whole));
        stream::iter(attempts).buffered(concurrency).try_collect::<Vec<()>>().await?;
        #[expect(clippy::cast_precision_loss, reason = "it is small")]
        let events = EVENTS as f64;
        let rate = events / begin.elapsed().as_secs_f64();
        handler.close().await?;
        Ok(rate)
    })
}

/// Reads requests and answers each with 200.
fn answer(listener: std::net::TcpListener) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        listener.set_nonblocking(true).expect("an open socket");
        let listener = tokio::net::TcpListener::from_std(listener).expect("an open socket");
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(async |request: Request<Incoming>| {
                request.into_body().collect().await?;
                Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::default()))
            });
            drop(tokio::spawn(async move {
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
            }));
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "a bench measures")]
fn now() -> Instant {
    Instant::now()
}
