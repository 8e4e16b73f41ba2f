//! What handlers that speak to other systems take, without an engine: a real NATS server beside what NATS' own client
//! does in the same run, a webhook to a server that answers at once, and with the feature `kafka` a real Kafka broker
//! beside Kafka's own producer.
//!
//! Each handler has one thread, as in the engine. `--sample-size 10` or less makes one run of each in place of three, and
//! `--only TEXT` the rows alone whose system is called so: NATS, webhook, Kafka. The rows of a run follow one another, and a
//! ratio is of two rows of one run.
//!
//! NATS' Go client does what `nats bench js pub async` does: asynchronous publishing with acknowledgements, 1,000 at a
//! time. It sends as many bytes a message as the handler does in binary mode, over as many subjects, to a stream of the
//! same options: first as payload alone, then with an id in `Nats-Msg-Id`, and then as the handler does, with as many
//! headers of the same length. It makes no events: payload, subject and headers need no encoding.
//!
//! The CPU of a row is that of this process, of the server and of the Go client together, their start included. It says
//! more than the rate where other work shares the machine.
#[path = "../tests/support/cluster.rs"]
mod cluster;
#[cfg(feature = "kafka")]
#[expect(dead_code, reason = "tests use the rest")]
#[path = "../tests/support/kafka.rs"]
mod kafka;
#[cfg(feature = "kafka")]
#[path = "sinks/kafka_rows.rs"]
mod kafka_rows;
#[expect(dead_code, reason = "tests use the rest")]
#[path = "../tests/support/nats.rs"]
mod nats;

use std::{env, error::Error, process::Command, thread, time::Instant};

use bytes::Bytes;
use deltabus::{
    cloud_event::{
        ContentMode::{self, Binary, Structured},
        DATA_CONTENT_TYPE, Encoder,
    },
    handler::{
        AsyncHandler, Form,
        nats::{ExpectLast, NatsHandler},
        webhook::{TlsOptions, Webhook, WebhookOptions},
    },
    indexer::{Cause, Change},
    notification::{Event, Notification},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use nats::{Keys, NatsServer};

/// Divides the work of a debug build, which only shows that the bench runs: its figures mean nothing.
const SMOKE: u64 = if cfg!(debug_assertions) { 100 } else { 1 };
/// Config maps of 1 KB, and the events that each run delivers.
const OBJECTS: u64 = 10_000 / SMOKE;
const EVENTS: u64 = 100_000 / SMOKE;
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
    let (thousand, fifty, single) = (batches(1000), batches(50), batches(1));
    let size = MessageSize::of(&thousand);
    let MessageSize { payload, headers, header } = size;
    println!("sinks: {EVENTS} events of config maps of 1 KB, {OBJECTS} objects; median of {runs}");
    println!("a message of NATS: {payload} bytes of payload, {headers} headers of {header} bytes");
    let (plain, alike) = (MessageSize { payload: size.total(), headers: 0, header: 0 }, size);
    let nats = |expect_last, mode, concurrency| to_nats(expect_last, mode, &thousand, concurrency);
    let mut rows: Vec<Row<'_>> = vec![
        ("NATS' Go client, 1,000 at a time", Box::new(|| go_client(plain, false))),
        ("NATS' Go client, with `Nats-Msg-Id`", Box::new(|| go_client(plain, true))),
        ("NATS' Go client, with the same headers", Box::new(|| go_client(alike, true))),
        ("**nats**, `expect_last = \"off\"`", Box::new(|| nats(ExpectLast::Off, Binary, CONCURRENCY))),
        ("**nats**, `per-subject`", Box::new(|| nats(ExpectLast::PerSubject, Binary, CONCURRENCY))),
        ("**nats**, `off`, `structured`", Box::new(|| nats(ExpectLast::Off, Structured, CONCURRENCY))),
        ("**nats**, `off`, one delivery of 1,000 at a time", Box::new(|| nats(ExpectLast::Off, Binary, 1))),
        ("**webhook**, batches of 1", Box::new(|| to_webhook(false, &single))),
        ("**webhook**, batches of 50", Box::new(|| to_webhook(true, &fifty))),
    ];
    #[cfg(feature = "kafka")]
    rows.extend(kafka_rows::rows(&thousand));
    if let Some(only) = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1)) {
        let only = only.to_lowercase();
        rows.retain(|(name, _)| name.to_lowercase().contains(&only));
    }
    let mut rates = vec![Vec::new(); rows.len()];
    let (mut ratios, mut costs) = (rates.clone(), rates.clone());
    for _ in 0..runs {
        for (at, (_, run)) in rows.iter().enumerate() {
            let before = cpu_ticks();
            let Took { events, rate } = run()?;
            costs[at].push((cpu_ticks() - before) * MICROS_PER_TICK / count(events));
            rates[at].push(rate);
            let own_client = rates[own_client(&rows, at)].last().copied().unwrap_or(rate);
            ratios[at].push(100.0 * rate / own_client);
        }
    }
    println!("| | events/s | % of the system's own client | µs CPU an event, both sides |\n|---|---|---|---|");
    for ((name, _), ((rates, ratios), costs)) in rows.iter().zip(rates.into_iter().zip(ratios).zip(costs)) {
        println!("| {name} | {:.0} | {:.0} | {:.1} |", median(rates), median(ratios), median(costs));
    }
    Ok(())
}

/// What a row of the table is called, and one run of it.
type Row<'a> = (&'a str, Box<dyn Fn() -> Outcome<Took> + 'a>);

/// What a system took in a run.
struct Took {
    events: u64,
    /// Events a second.
    rate: f64,
}

/// Returns the row of the own client of the system that a row is of: Kafka's for its rows, NATS' for all others.
fn own_client(rows: &[Row<'_>], row: usize) -> usize {
    let own_client = rows[..=row].iter().rposition(|(name, _)| name.starts_with("Kafka's"));
    own_client.unwrap_or(0)
}

/// Linux counts CPU for programs in hundredths of a second, whatever it does itself (`USER_HZ`, proc(5)).
const MICROS_PER_TICK: f64 = 10_000.0;

/// Returns the CPU that this process has used, and those of its children that have ended, in ticks.
fn cpu_ticks() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in parentheses: utime, stime, cutime and cstime are the fields 14 to 17 of all.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

#[expect(clippy::cast_precision_loss, reason = "it is small")]
fn count(number: u64) -> f64 {
    number as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long messages are on the average, in bytes.
#[derive(Clone, Copy)]
struct MessageSize {
    payload: usize,
    /// How many headers, and how long each is with its name and what is around it.
    headers: usize,
    header: usize,
}

impl MessageSize {
    /// Measures what the handler sends in binary mode: beside the attributes there are `content-type`, `Nats-Msg-Id` and
    /// `Nats-Expected-Stream`.
    fn of(batches: &[Notification]) -> Self {
        let encoder = Encoder::new("prod", "9f2c");
        let (mut events, mut payload, mut headers, mut header_bytes) = (0, 0, 0, 0);
        let mut add = |name: &str, value: &str| {
            headers += 1;
            header_bytes += name.len() + value.len() + ": \r\n".len();
        };
        for event in batches.iter().flat_map(Notification::events) {
            let binary = encoder.binary(event, Form::Whole);
            events += 1;
            payload += binary.data.len();
            for (name, value) in &binary.attributes {
                add(&format!("ce-{name}"), value);
            }
            add("content-type", DATA_CONTENT_TYPE);
            add("Nats-Msg-Id", &binary.attributes["id"]);
            add("Nats-Expected-Stream", "K8S");
        }
        Self { payload: payload / events, headers: headers / events, header: header_bytes / headers }
    }

    fn total(self) -> usize {
        self.payload + self.headers * self.header
    }
}

/// Returns all events in batches of `size`: objects in turn, each `added` in a new version: one body an event.
fn batches(size: u64) -> Vec<Notification> {
    let change = |at: u64| {
        let (name, version) = (format!("map-{}", at % OBJECTS), at / OBJECTS + 1);
        let change = Change::Added { object: nats::config_map(&name, version, 860), cause: Cause::Watch };
        nats::event(at + 1, change)
    };
    let of = |begin: u64| Notification::new((begin..begin + size).map(change).collect::<Vec<Event>>());
    (0..EVENTS / size).map(|batch| of(batch * size)).collect()
}

fn server() -> Outcome<NatsServer> {
    NatsServer::start_or_skip("sinks", Keys::jetstream).ok_or_else(|| "there is no NATS server to measure with".into())
}

fn go_client(size: MessageSize, with_ids: bool) -> Outcome<Took> {
    let server = server()?;
    let MessageSize { payload, headers, header } = size;
    let mut command = Command::new(cluster::build("nats")?);
    command.args(["bench", "-url", &format!("nats://{}", server.address()), "-batch", "1000"]);
    for (flag, value) in [("-messages", EVENTS), ("-subjects", OBJECTS)] {
        command.args([flag, &value.to_string()]);
    }
    for (flag, value) in
        [("-size", payload), ("-headers", headers.saturating_sub(usize::from(with_ids))), ("-header-size", header)]
    {
        command.args([flag, &value.to_string()]);
    }
    if with_ids {
        command.arg("-ids");
    }
    let output = command.output()?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let rate = line["per_second"].as_f64().ok_or_else(|| String::from_utf8_lossy(&output.stderr))?;
    Ok(Took { events: EVENTS, rate })
}

fn to_nats(expect_last: ExpectLast, mode: ContentMode, batches: &[Notification], concurrency: usize) -> Outcome<Took> {
    let server = server()?;
    let mut options = server.options();
    options.mode = mode;
    options.jetstream.as_mut().expect("it has a stream").expect_last = expect_last;
    deliver(&NatsHandler::new(options, Encoder::new("prod", "9f2c")), batches, 1, concurrency)
}

fn to_webhook(is_array: bool, batches: &[Notification]) -> Outcome<Took> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    thread::spawn(move || answer(listener));
    let options = WebhookOptions {
        url,
        method: Method::POST,
        mode: ContentMode::Structured,
        batched: is_array,
        headers: Vec::new(),
        idempotency_header: Some("idempotency-key".parse()?),
        reject: Vec::new(),
        auth: None,
        tls: TlsOptions::default(),
        timeout: std::time::Duration::from_secs(30),
    };
    deliver(&Webhook::new(options, Encoder::new("prod", "9f2c"))?, batches, 1, CONCURRENCY)
}

/// Delivers all batches so many times over, so many at a time but in their order.
fn deliver(handler: &dyn AsyncHandler, batches: &[Notification], times: u32, concurrency: usize) -> Outcome<Took> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (begin, events) = (now(), EVENTS * u64::from(times));
        let batches = (0..times).flat_map(|_| batches);
        let attempts = batches.map(|batch| handler.deliver(batch, Form::Whole));
        stream::iter(attempts).buffered(concurrency).try_collect::<Vec<()>>().await?;
        let rate = count(events) / begin.elapsed().as_secs_f64();
        handler.close().await?;
        Ok(Took { events, rate })
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
