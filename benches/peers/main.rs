//! Peers side by side: what an event and an object cost client-go, controller-runtime, kube-rs and deltabus.
//!
//! ```sh
//! cargo bench --bench peers                           # three rounds of all rows
//! cargo bench --bench peers -- --sample-size 10       # one round
//! cargo bench --bench peers -- --only kube-,/tls      # the rows whose name, PEER/VARIANT, holds one of these
//! cargo bench --bench peers -- --docs                 # and writes the figures into docs/benchmarks.md
//! ```
//!
//! One server, of the Go module in `benches/peers/go`, has recorded a watch of the simulated API server and sends it to
//! each peer, in JSON and in protobuf, by a streaming list or by pages and a watch, as the peer asks. Each run is a new
//! process, and a round is one run of each row. CPU and memory are those of the peer's process alone.

mod chart;
mod docs;
mod go;
mod replay;
mod roles;
mod rows;
#[expect(dead_code, reason = "another bench reads lines of numbers")]
#[path = "../support/with_server.rs"]
mod support;
mod table;

use std::{collections::BTreeMap, env, error::Error, fs};

use self::{
    go::GoPeers,
    replay::Replay,
    rows::Row,
    support::{
        observer::{Observer, Run},
        process::{ROLE_FLAG, is_asked_for, sample_size, value_of},
    },
    table::Results,
};

/// Divides the work of a debug build, which only shows that the bench runs: its figures mean nothing.
const SMOKE: usize = if cfg!(debug_assertions) { 100 } else { 1 };
const PODS: usize = 20_000 / SMOKE;
const EVENTS: usize = 50_000 / SMOKE;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return roles::play(role, rest);
    }
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--test") || !is_asked_for("peers", &args) {
        return Ok(());
    }
    let only = value_of("--only", &args);
    let is_meant = |row: &Row| only.is_none_or(|only| only.split(',').any(|part| row.name().contains(part)));
    let rows: Vec<Row> = rows::all().into_iter().filter(is_meant).collect();
    if rows.is_empty() {
        let names: Vec<String> = rows::all().into_iter().map(Row::name).collect();
        return Err(format!("--only {} names no row; there are: {}", only.unwrap_or_default(), names.join(" ")).into());
    }
    if has("--docs") && only.is_some() {
        return Err("--docs needs all rows: leave --only out".into());
    }
    let rounds = if sample_size(&args).is_some_and(|size| size <= 10) { 1 } else { 3 };
    let go = GoPeers::build()?;
    let results = measure(&go, &rows, rounds)?;
    let text = format!("{}\n{}", docs::conditions(&go, rounds)?, table::tables(&results));
    let chart = chart::svg(&results);
    fs::write(go::target_dir().join("peers.svg"), &chart)?;
    println!("{text}");
    if has("--docs") {
        docs::write(&text, &chart)?;
    }
    Ok(())
}

/// Runs all rows in turn, so many times.
fn measure(go: &GoPeers, rows: &[Row], rounds: usize) -> Result<Results, Box<dyn Error>> {
    eprintln!("peers: recording {PODS} pods and {EVENTS} updates");
    let mut replay = Replay::start(go, PODS, EVENTS)?;
    let mut results: Results = BTreeMap::new();
    for round in 1..=rounds {
        for &row in rows {
            let (run, reads) = run(go, &mut replay, row).map_err(|error| format!("{}: {error}", row.name()))?;
            eprintln!("peers: round {round} of {rounds}: {}", table::progress(row, &run));
            let result = results.entry(row).or_default();
            result.runs.push(run);
            result.reads = reads;
        }
    }
    Ok(results)
}

/// Lets one peer see the pods, then the events; returns what it cost, and how it has read.
fn run(go: &GoPeers, replay: &mut Replay, row: Row) -> Result<(Run, String), Box<dyn Error>> {
    let (strip, pods, events) = (row.strips().to_string(), PODS.to_string(), EVENTS.to_string());
    let args = [replay.url(row.is_secured()), replay.authority(), &strip, &pods, &events].map(str::to_owned);
    let mut observer = Observer::new(row.peer().start(go, &args)?);
    let sync = observer.next_phase()?;
    replay.send_events()?;
    let events = observer.next_phase()?;
    drop(observer);
    Ok((Run { sync, events }, replay.reset()?))
}
