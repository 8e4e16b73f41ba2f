//! Handlers for other systems, without an engine: a real NATS server compared with NATS' own client, a webhook to a fast
//! server, and with the feature `kafka` a real Kafka broker compared with Kafka's own producer.
//!
//! Each handler has one thread, as in the engine. The rows of a round follow one another. A percentage compares the median
//! rates of two rows.
//!
//! NATS' Go client works like `nats bench js pub async`: asynchronous publishing with acknowledgements, 1,000 at a
//! time. Its messages have as many bytes and subjects as the handler's in binary mode, and the stream has the same options.
//! There are three rows: payload only, with an id in `Nats-Msg-Id`, and with as many headers of the same length as the
//! handler's. It makes no events, so payload, subject and headers need no encoding.
//!
//! The CPU of a row is that of this process, the server and the Go client together, including their start. On a shared
//! machine it is more reliable than the rate.

#[cfg(feature = "kafka")]
mod kafka_rows;

use std::{process::Command, time::Duration};

use deltabus::internals::{
    change::{Cause, Change},
    cloud_event::{
        ContentMode::{self, Binary, Structured},
        DATA_CONTENT_TYPE, Encoder, Formatter, id,
    },
    handler::{
        AsyncHandler, Form,
        nats::{ExpectLast, NatsHandler},
        webhook::{Webhook, WebhookOptions},
    },
    notification::{Event, Notification},
    secret::PlainOrSecret,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::{
    cluster,
    harness::{Length, Outcome, SMOKE, float, median, now, serve, thousands},
    nats::{self, Keys, NatsServer},
};

/// Config maps of 1 KB, and the number of events per run.
const OBJECTS: u64 = 10_000 / SMOKE;
const EVENTS: u64 = 100_000 / SMOKE;
/// Concurrent deliveries: the engine's default.
const CONCURRENCY: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the rows of this system: NATS, webhook, Kafka
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(flatten)]
    length: Length,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let (thousand, fifty, single) = (batches(1000 / SMOKE), batches(50), batches(1));
    let size = MessageSize::of(&thousand);
    let MessageSize { payload, headers, header } = size;
    let rounds = args.length.rounds();
    println!("{EVENTS} events of config maps of 1 KB, {OBJECTS} objects; medians of {rounds}");
    println!("a message of NATS: {payload} bytes of payload, {headers} headers of {header} bytes\n");
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
    rows.retain(|(name, _)| name.to_lowercase().contains(&args.only.to_lowercase()));
    if rows.iter().any(|(name, _)| name.to_lowercase().contains("nats")) {
        cluster::build("nats")?; // build first: its CPU must not count in a row
    }
    let mut rates = vec![Vec::new(); rows.len()];
    let mut costs = rates.clone();
    for _ in 0..rounds {
        for (at, (_, run)) in rows.iter().enumerate() {
            let before = cpu_ticks();
            let Took { events, rate } = run()?;
            costs[at].push((cpu_ticks() - before) * MICROS_PER_TICK / float(events));
            rates[at].push(rate);
        }
    }
    let rates: Vec<_> = rates.into_iter().map(median).collect();
    println!("| | events/s | % of the system's own client | µs CPU per event, both sides |\n|---|---|---|---|");
    for (at, ((name, _), costs)) in rows.iter().zip(costs).enumerate() {
        let percent = 100.0 * rates[at] / rates[own_client(&rows, at)];
        println!("| {name} | {} | {percent:.0} | {:.1} |", thousands(rates[at]), median(costs));
    }
    Ok(())
}

/// Title of a row, and a function that runs it once.
type Row<'a> = (&'a str, Box<dyn Fn() -> Outcome<Took> + 'a>);

/// Result of a run.
struct Took {
    events: u64,
    /// Events per second.
    rate: f64,
}

/// Returns the row of the system's own client: for Kafka the nearest row with large batches, otherwise NATS'.
fn own_client(rows: &[Row<'_>], row: usize) -> usize {
    let is_large = |(name, _): &Row<'_>| name.starts_with("Kafka's") && name.ends_with("large batches");
    if rows[row].0.starts_with("Kafka's") {
        return row + rows[row..].iter().position(is_large).unwrap_or(0);
    }
    rows[..row].iter().rposition(is_large).unwrap_or(0)
}

/// Microseconds per clock tick: Linux reports CPU in hundredths of a second (`USER_HZ`, proc(5)).
const MICROS_PER_TICK: f64 = 10_000.0;

/// Returns the CPU used by this process and its ended children, in ticks.
fn cpu_ticks() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields 14 to 17, after the name in parentheses, are utime, stime, cutime and cstime.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

/// Average size of messages, in bytes.
#[derive(Clone, Copy)]
struct MessageSize {
    payload: usize,
    /// Number of headers, and the length of each with its name and separators.
    headers: usize,
    header: usize,
}

impl MessageSize {
    /// Measures the handler's messages in binary mode. Besides the attributes they have `content-type`, `Nats-Msg-Id` and
    /// `Nats-Expected-Stream`.
    fn of(batches: &[Notification]) -> Self {
        let formatter = Formatter::from(Encoder::new("prod", "9f2c"));
        let (mut events, mut payload, mut headers, mut header_bytes) = (0, 0, 0, 0);
        let mut add = |name: &str, value: &str| {
            headers += 1;
            header_bytes += name.len() + value.len() + ": \r\n".len();
        };
        for event in batches.iter().flat_map(Notification::events) {
            events += 1;
            payload += formatter.body(event, Form::Whole, Binary).expect("events can be encoded").bytes.len();
            formatter.encoder().each_attribute(event, |attribute, value| add(attribute.header(), value));
            add("content-type", DATA_CONTENT_TYPE);
            add("Nats-Msg-Id", &id(event));
            add("Nats-Expected-Stream", "K8S");
        }
        Self { payload: payload / events, headers: headers / events, header: header_bytes / headers }
    }

    fn total(self) -> usize {
        self.payload + self.headers * self.header
    }
}

/// Returns all events in batches of `size`. Objects take turns, and each event adds one in a new version with its own body.
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
    deliver(&NatsHandler::new(options, Encoder::new("prod", "9f2c"))?, batches, 1, concurrency)
}

fn to_webhook(is_array: bool, batches: &[Notification]) -> Outcome<Took> {
    let url = serve(async |request: Request<Incoming>| {
        request.into_body().collect().await?;
        Ok(Response::default())
    })?;
    let options = WebhookOptions { url: PlainOrSecret::Plain(url), ..WebhookOptions::default() };
    let timeout = Duration::from_secs(30);
    deliver(&Webhook::new(options, is_array, timeout, Encoder::new("prod", "9f2c"))?, batches, 1, CONCURRENCY)
}

/// Delivers all batches `times` times, with `concurrency` deliveries at a time, in order.
fn deliver(handler: &dyn AsyncHandler, batches: &[Notification], times: u32, concurrency: usize) -> Outcome<Took> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A busy broker knows a new topic only after a while. The first delivery, which also connects, is not measured.
        let mut tries = 0;
        while let Err(error) = handler.deliver(&batches[0], Form::Whole).await {
            tries += 1;
            if tries == 50 {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let (begin, events) = (now(), EVENTS * u64::from(times));
        let batches = (0..times).flat_map(|_| batches);
        let attempts = batches.map(|batch| handler.deliver(batch, Form::Whole));
        stream::iter(attempts).buffered(concurrency).try_collect::<Vec<()>>().await?;
        let rate = float(events) / begin.elapsed().as_secs_f64();
        handler.close().await?;
        Ok(Took { events, rate })
    })
}
