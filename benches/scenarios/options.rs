//! CPU per event of the whole engine, from socket to handler, and memory per object, by engine options.
//!
//! Each run is a new process with its own core. A server in this process sends generated pods.

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use deltabus::internals::{
    bench::{Generator, ReplayServer, Shape},
    list_watch::kube::ClusterAccess,
};
use futures_util::StreamExt;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, WatchEvent, WatchParams},
};

use crate::harness::{Core, Figures, Length, Meter, Outcome, Run, now, observe, thousands};

/// Directory of an in-memory file system.
const MEMORY: &str = "/dev/shm";

/// Path of the stream that the clients read.
const WATCH: &str = "/api/v1/pods?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&timeoutSeconds=600";

/// Silence of a socket after which all data counts as sent.
const SILENCE: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pods of 9 KB
    #[arg(long, default_value_t = 20_000)]
    pods: u64,
    /// Updates of randomly drawn pods
    #[arg(long, default_value_t = 50_000)]
    events: u64,
    /// Only the rows whose title contains one of these texts
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    length: Length,
}

/// One line of the table.
struct Row {
    title: &'static str,
    role: &'static str,
    shape: Shape,
    /// `[handlers.out]`; `MEMORY` stands for a directory of an in-memory file system.
    handler: &'static str,
    /// Rest of the configuration; `DIR` stands for a directory on a disk.
    config: &'static str,
}

impl Row {
    const fn engine(title: &'static str, shape: Shape, config: &'static str) -> Self {
        Self { title, role: "engine", shape, handler: BLACKHOLE, config }
    }

    const fn client(title: &'static str, role: &'static str) -> Self {
        Self { role, ..Self::engine(title, Shape::Pods, "") }
    }
}

const BLACKHOLE: &str = "type = \"blackhole\"";
/// Configuration that writes whole objects and their previous states.
const FILE: &str = "type = \"file\"\npath = \"MEMORY/events.jsonl\"";

const UNPACKED: &str = "[defaults.resources]\ncompression = \"none\"";
const GROUP: &str = "[state]\ndir = \"DIR\"";
const INTERVAL: &str = "[state]\ndir = \"DIR\"\nfsync = \"1s\"";

const ALL: &str = "[defaults.resources]\ndrop = []";
const ALL_UNPACKED: &str = "[defaults.resources]\ndrop = []\ncompression = \"none\"";

const ROWS: [Row; 12] = [
    Row::engine("**deltabus**, pods of one shape", Shape::Pods, ""),
    Row::engine("**deltabus**, diverse pods", Shape::Diverse, ""),
    Row::engine("`compression = \"none\"`, one shape", Shape::Pods, UNPACKED),
    Row::engine("`compression = \"none\"`, diverse", Shape::Diverse, UNPACKED),
    Row::engine("`drop = []`: nothing dropped, one shape", Shape::Pods, ALL),
    Row::engine("nothing dropped, `compression = \"none\"`", Shape::Pods, ALL_UNPACKED),
    Row { handler: FILE, ..Row::engine("a `file` handler with the default format, one shape", Shape::Pods, "") },
    Row::engine("with a state directory, one shape", Shape::Pods, GROUP),
    Row::engine("with a state directory, diverse", Shape::Diverse, GROUP),
    Row::engine("with `fsync = \"1s\"`, one shape", Shape::Pods, INTERVAL),
    Row::client("read the socket and drop", "drop"),
    Row::client("kube 5, decode to `DynamicObject` and drop", "kube"),
];

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let Args { pods, events, only, length } = args;
    let is_wanted = |row: &&Row| only.is_empty() || only.iter().any(|text| row.title.contains(&**text));
    let rows: Vec<&Row> = ROWS.iter().filter(is_wanted).collect();
    if rows.is_empty() {
        let titles: Vec<_> = ROWS.iter().map(|row| row.title).collect();
        return Err(format!("no row has the text of --only in its title; they are: {}", titles.join("; ")).into());
    }
    let core = Core::reserve()?;
    let mut runs: Vec<Vec<Run>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=length.rounds() {
        eprintln!("round {round} of {}", length.rounds());
        for (row, runs) in rows.iter().zip(&mut runs) {
            runs.push(measure(&core, row, *pods, *events)?);
        }
    }
    println!("{pods} pods of 9 KB, then {events} updates; medians of {}; one core for each row\n", length.rounds());
    println!(
        "| | µs CPU an event | µs CPU an object at sync | resident bytes an object → after the events | of these bodies \
         | events/s | bytes written an event |\n|---|---|---|---|---|---|---|"
    );
    for (row, runs) in rows.iter().zip(&runs) {
        println!("{}", line(row, &Figures::of(runs, *pods, *events)));
    }
    Ok(())
}

/// Measures one process while it receives the pods, then the events.
fn measure(core: &Core, row: &Row, pods: u64, events: u64) -> Outcome<Run> {
    let server = ReplayServer::start(Generator::new(row.shape, pods, 1))?;
    let dir = tempfile::tempdir_in(env::current_dir()?)?; // on a disk: /tmp may be in memory
    let memory = tempfile::tempdir_in(MEMORY)?;
    let handler = row.handler.replace("MEMORY", &memory.path().display().to_string());
    let more = row.config.replace("DIR", &dir.path().display().to_string());
    let config = format!("[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\n{handler}\n{more}");
    let mut process = core.start(row.role, &[server.url(), pods.to_string(), events.to_string(), config])?;
    let sync = process.phase()?;
    server.release(events);
    Ok(Run { sync, events: process.phase()? })
}

fn line(row: &Row, figures: &Figures) -> String {
    let if_so = |is_so: bool, text: String| if is_so { text } else { "–".to_owned() };
    let is_engine = row.role == "engine";
    let cells = [
        format!("{:.1}", figures.an_event),
        format!("{:.1}", figures.an_object),
        if_so(is_engine, format!("{} → {}", thousands(figures.resident_at_sync), thousands(figures.resident))),
        if_so(is_engine, thousands(figures.used)),
        thousands(figures.rate),
        if_so(row.config.contains("DIR"), thousands(figures.written)),
    ];
    format!("| {} | {} |", row.title, cells.join(" | "))
}

/// Runs a measured process.
pub(crate) fn play(role: &str, url: &str, pods: u64, events: u64, config: &str) -> Outcome<()> {
    match role {
        "engine" => observe(ClusterAccess::without_credentials(url, "bench")?, config, pods, events),
        "drop" => read_and_drop(url),
        "kube" => decode_and_drop(url, pods, events),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

fn read_and_drop(url: &str) -> Outcome<()> {
    let mut meter = Meter::start();
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address)?;
    write!(socket, "GET {WATCH} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..2 {
        socket.set_read_timeout(None)?;
        let began = now();
        let mut read = socket.read(&mut buffer);
        socket.set_read_timeout(Some(SILENCE))?;
        while matches!(read, Ok(1..)) {
            read = socket.read(&mut buffer);
        }
        meter.report(began.elapsed().saturating_sub(SILENCE), 0);
    }
    Ok(())
}

/// Does the minimum that a client based on the kube crate does before it handles an object.
fn decode_and_drop(url: &str, pods: u64, events: u64) -> Outcome<()> {
    let mut meter = Meter::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kube::Client::try_from(kube::Config::new(url.parse()?))?;
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api = Api::<DynamicObject>::all_with(client, &resource);
        let mut stream = api.watch(&WatchParams::default().initial_events(), "0").await?.boxed();
        for expected in [pods, events] {
            let (mut began, mut seen) = (None, 0);
            while seen < expected {
                let event = stream.next().await.ok_or("the watch has ended")??;
                began.get_or_insert_with(now);
                seen += u64::from(matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_)));
            }
            meter.report(began.map(|began| began.elapsed()).unwrap_or_default(), 0);
        }
        Ok(())
    })
}
