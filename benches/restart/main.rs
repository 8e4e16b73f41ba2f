//! What a state directory costs in time: the start with a saved cache, a backlog that is read from disk, and how long a
//! change takes to a handler, beside what the disk takes to make a write durable.
//!
//! Three kinds of processes, all of them this program, new for each row: one coordinates, one is the simulated API
//! server, one the engine. `--pods` says how many there are, 200,000 if it does not; `--sample-size 10` or less is a tenth.

mod roles;
#[expect(dead_code, reason = "other benches ask more of an engine")]
#[path = "../support/with_server.rs"]
mod support;

use std::{env, error::Error, path::Path};

use self::support::{
    process::{Player, ROLE_FLAG, is_asked_for, sample_size},
    simulated::Server,
};

/// Pods of 9 KB.
const PODS: usize = 200_000;
/// Single changes whose way is timed.
const CHANGES: usize = if cfg!(debug_assertions) { 50 } else { 500 }; // a debug build is a smoke run

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return roles::play(role, rest);
    }
    if args.iter().any(|arg| arg == "--test") || !is_asked_for("restart", &args) {
        return Ok(());
    }
    let tenth = if sample_size(&args).is_some_and(|size| size <= 10) { 10 } else { 1 };
    let at = args.iter().position(|arg| arg == "--pods");
    let pods = at.map_or(Ok(PODS / tenth), |at| {
        args.get(at + 1).ok_or("a number is missing")?.parse().map_err(Box::<dyn Error>::from)
    })?;
    let dir = tempfile::tempdir_in(env::current_dir()?)?; // on a disk: the system's own may be memory
    restart(pods, dir.path())?;
    latency(dir.path())
}

/// Stops and starts an engine that watches pods.
#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn restart(pods: usize, dir: &Path) -> Outcome<()> {
    let mut server = Server::start(pods, true)?;
    let url = server.url().to_owned();
    let dir = dir.join("restart").display().to_string();
    let engine = |how: &str| Player::start("engine", &[url.clone(), pods.to_string(), dir.clone(), how.to_owned()]);
    println!("restart: {pods} pods of 9 KB");
    println!("| | s | s CPU | resident MB | events/s |\n|---|---|---|---|---|");
    let line = |title: &str, [wall, cpu, resident, events]: [u64; 4]| {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let rate = if events == 0 { "–".to_owned() } else { format!("{:.0}", events as f64 / seconds(wall)) };
        println!("| {title} | {:.2} | {:.2} | {} | {rate} |", seconds(wall), seconds(cpu), resident >> 20);
    };
    let mut first = engine("first")?;
    line("first list", first.numbers()?);
    server.churn(pods)?;
    line("as many updates, to the state: their handler is paused", first.numbers()?);
    first.tell("stop")?;
    line("clean stop", first.numbers()?);
    drop(first);
    let mut second = engine("again")?;
    line("start: all of it can be read, and the watch goes on", second.numbers()?);
    line("what waited is delivered, from disk", second.numbers()?);
    Ok(())
}

/// Times single changes, one at a time.
fn latency(dir: &Path) -> Outcome<()> {
    println!("\na change at rest, from the API server's store to a handler, {CHANGES} times");
    println!("| | p50 µs | p99 µs |\n|---|---|---|");
    for (title, dir) in [("in memory", None), ("with a state directory", Some(dir.join("latency")))] {
        let dir = dir.map(|dir| dir.display().to_string()).unwrap_or_default();
        let [median, high] = Player::start("latency", &[CHANGES.to_string(), dir])?.numbers()?;
        println!("| {title} | {median} | {high} |");
    }
    let [median, high] = Player::start("socket", &[CHANGES.to_string()])?.numbers()?;
    println!("| of that to a bare socket | {median} | {high} |");
    let [median, high] = Player::start("disk", &[CHANGES.to_string(), dir.display().to_string()])?.numbers()?;
    println!("| the disk alone: 4 KiB appended and `fdatasync` | {median} | {high} |");
    Ok(())
}
