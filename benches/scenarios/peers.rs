//! Comparison with peers: an event and an object in client-go, controller-runtime, kube-rs and deltabus.
//!
//! One server from the Go module in `peers/go` has recorded a watch of generated pods and sends it to each peer. The peer
//! chooses JSON or protobuf, and a streaming list or pages and a watch. Each run is a new process, and a round is
//! one run of each row. CPU and memory are those of the peer's process alone.

mod go;
#[cfg(feature = "peers")]
mod kube_rs;
mod replay;
mod roles;
mod rows;
mod table;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use deltabus::internals::bench::{chart, measure::machine};

use self::{go::GoPeers, replay::Replay, rows::Row, table::Results};
use crate::harness::{Figures, Length, Outcome, Run, SMOKE, thousands};

pub(crate) use roles::play;

const PODS: u64 = 20_000 / SMOKE;
const EVENTS: u64 = 50_000 / SMOKE;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the rows whose name, PEER/VARIANT, contains one of these texts
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// Also draw the first table into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    length: Length,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let Args { only, plot, length } = args;
    let is_meant = |row: &Row| only.is_empty() || only.iter().any(|part| row.name().contains(&**part));
    let rows: Vec<Row> = rows::all().into_iter().filter(is_meant).collect();
    if rows.is_empty() {
        let names: Vec<String> = rows::all().into_iter().map(Row::name).collect();
        return Err(format!("--only names no row; there are: {}", names.join(" ")).into());
    }
    if cfg!(not(feature = "peers")) && rows.iter().copied().any(Row::is_kube_rs) {
        return Err("the reflectors of kube-rs need `cargo bench --features peers`; --only chooses other rows".into());
    }
    let go = GoPeers::build()?;
    let results = measure(&go, &rows, length.rounds())?;
    println!("{}\n{}", conditions(&go, length.rounds())?, table::tables(&results));
    if let Some(plot) = plot {
        fs::write(plot, chart::bars("Peers side by side", &table::panels(&results)))?;
    }
    Ok(())
}

/// Runs all rows in turn, `rounds` times.
fn measure(go: &GoPeers, rows: &[Row], rounds: usize) -> Outcome<Results> {
    eprintln!("peers: recording {PODS} pods and {EVENTS} updates");
    let mut replay = Replay::start(go, PODS, EVENTS)?;
    let mut results: Results = BTreeMap::new();
    for round in 1..=rounds {
        for &row in rows {
            let (run, reads) = run_row(go, &mut replay, row).map_err(|error| format!("{}: {error}", row.name()))?;
            let figures = Figures::of(&[run], PODS, EVENTS);
            let bytes = thousands(figures.resident);
            let name = row.name();
            eprintln!(
                "round {round} of {rounds}: {name}: {:.1} µs an event, {bytes} bytes an object",
                figures.an_event
            );
            let result = results.entry(row).or_default();
            result.runs.push(run);
            result.reads = reads;
        }
    }
    Ok(results)
}

/// Runs one peer over the pods, then the events; returns its resource usage, and its kind of requests.
fn run_row(go: &GoPeers, replay: &mut Replay, row: Row) -> Outcome<(Run, String)> {
    let (strip, pods, events) = (row.strips().to_string(), PODS.to_string(), EVENTS.to_string());
    let args = [replay.url(row.is_secured()), replay.authority(), &strip, &pods, &events].map(str::to_owned);
    let mut peer = row.peer().start(go, &args)?;
    let sync = peer.phase()?;
    replay.send_events()?;
    let events = peer.phase()?;
    drop(peer);
    Ok((Run { sync, events }, replay.reset()?))
}

/// Describes the load, the machine and the versions.
fn conditions(go: &GoPeers, rounds: usize) -> Outcome<String> {
    let rustc = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?;
    let rustc = rustc.split(' ').nth(1).unwrap_or("unknown");
    let machine = machine();
    let (_, kube) = include_str!("../../Cargo.lock").split_once("name = \"kube\"\nversion = \"").ok_or("no kube")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!(
        "{} pods of 9 KB, then {} updates; medians of {rounds}. {} × {}, {} GiB, Linux {}; {}, Rust {rustc}, kube {}, \
         deltabus {}.\n",
        thousands(crate::harness::float(PODS)),
        thousands(crate::harness::float(EVENTS)),
        machine.cpus,
        machine.model,
        machine.memory_bytes.div_ceil(1 << 30),
        kernel.trim(),
        go.versions()?.join(", "),
        kube.split('"').next().unwrap_or_default(),
        env!("CARGO_PKG_VERSION"),
    ))
}
