//! From socket to handler: what the whole engine costs an event, and what it keeps an object.
//!
//! Three kinds of processes, all of them this program: one coordinates, one is the simulated API server, one is what is
//! measured, new for every run. So CPU and memory are those of the engine and of nothing else. It takes `--pods`, `--events`,
//! `--only` (rows whose title has one of these texts, separated by commas) and the flag of the other benches:
//! `--sample-size 10` or less means one run of each row instead of three, `--rounds` any other number.
//!
//! Each row has a core to itself. Behind the CPU of all runs stands what it is in the moments in which nobody else was on
//! that core (see `support::core`): this takes many rounds on a machine whose host is busy.

#[path = "../support/flags.rs"]
mod flags;
mod roles;
#[expect(dead_code, reason = "another bench reads lines of numbers")]
#[path = "../support/with_server.rs"]
mod support;

use std::{env, error::Error};

use self::{
    flags::number,
    support::{
        core::{Core, Slice, on_whole_core, widest},
        observer::Phase,
        process::{ROLE_FLAG, is_asked_for, sample_size, value_of},
        simulated::Server,
    },
};

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// How much an observer sees.
#[derive(Clone, Copy)]
struct Scale {
    pods: usize,
    events: usize,
}

/// What one observer cost.
struct Run {
    sync: Phase,
    events: Phase,
    sync_slices: Vec<Slice>,
    events_slices: Vec<Slice>,
}

/// One line of the table.
struct Row {
    title: &'static str,
    role: &'static str,
    diverse: bool,
    /// Its handler.
    handler: &'static str,
    /// What the engine's configuration says beside the rest; `DIR` in it is a directory on a disk.
    config: &'static str,
}

impl Row {
    const fn engine(title: &'static str, diverse: bool, config: &'static str) -> Self {
        Self { title, role: "engine", diverse, handler: BLACKHOLE, config }
    }

    const fn client(title: &'static str, role: &'static str) -> Self {
        Self { title, role, diverse: false, handler: BLACKHOLE, config: "" }
    }
}

const BLACKHOLE: &str = "type = \"blackhole\"";
/// Whole objects, and what they were before, in a file system in memory: `MEMORY` is a directory of it.
const FILE: &str = "type = \"file\"\npath = \"MEMORY/events.jsonl\"";

const UNPACKED: &str = "[defaults.resources]\ncompression = \"none\"";
const GROUP: &str = "[state]\ndir = \"DIR\"";
const INTERVAL: &str = "[state]\ndir = \"DIR\"\nfsync = \"1s\"";

const ALL: &str = "[defaults.resources]\ndrop = []";
const ALL_UNPACKED: &str = "[defaults.resources]\ndrop = []\ncompression = \"none\"";

const ROWS: [Row; 12] = [
    Row::engine("**deltabus**, pods of one shape", false, ""),
    Row::engine("**deltabus**, diverse pods", true, ""),
    Row::engine("`compression = \"none\"`, one shape", false, UNPACKED),
    Row::engine("`compression = \"none\"`, diverse", true, UNPACKED),
    Row::engine("`drop = []`: nothing dropped, one shape", false, ALL),
    Row::engine("nothing dropped, `compression = \"none\"`", false, ALL_UNPACKED),
    Row { handler: FILE, ..Row::engine("to a `file` with objects and olds, one shape", false, "") },
    Row::engine("with a state directory, one shape", false, GROUP),
    Row::engine("with a state directory, diverse", true, GROUP),
    Row::engine("with `fsync = \"1s\"`, one shape", false, INTERVAL),
    Row::client("read the socket and drop", "drop"),
    Row::client("kube 5, decode to `DynamicObject` and drop", "kube"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return roles::play(role, rest);
    }
    if !is_asked_for("end_to_end", &args) {
        return Ok(());
    }
    let is_short = sample_size(&args).is_some_and(|size| size <= 10);
    let rounds = number(&args, "--rounds", if is_short { 1 } else { 3 })?.max(1);
    let scale = Scale { pods: number(&args, "--pods", 20_000)?, events: number(&args, "--events", 50_000)? };
    let only = value_of("--only", &args);
    let is_wanted = |row: &&Row| only.is_none_or(|only| only.split(',').any(|text| row.title.contains(text)));
    let rows: Vec<&Row> = ROWS.iter().filter(is_wanted).collect();
    if rows.is_empty() {
        let titles: Vec<_> = ROWS.iter().map(|row| row.title).collect();
        return Err(format!("no row has the text of --only in its title; they are: {}", titles.join("; ")).into());
    }
    let core = Core::reserve()?;
    let mut runs: Vec<Vec<Run>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (row, runs) in rows.iter().zip(&mut runs) {
            runs.push(run(&core, row, scale)?);
        }
    }
    let widest = widest(runs.iter().flatten().flat_map(|run| run.sync_slices.iter().chain(&run.events_slices)));
    println!("end_to_end: {} pods of 9 KB, then {} updates; medians of {rounds}", scale.pods, scale.events);
    println!(
        "one core for each row; behind µs CPU: of slices of 5 ms in which the core was whole (slices), {widest:.1} adds a cycle"
    );
    println!(
        "| | µs CPU an event | µs CPU an object at sync | resident bytes an object → after the events | of these bodies | events/s | bytes written an event |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (row, runs) in rows.iter().zip(&runs) {
        println!("{}", line(row, scale, runs, widest));
    }
    Ok(())
}

/// Lets one observer see the pods, then the events.
fn run(core: &Core, row: &Row, Scale { pods, events }: Scale) -> Result<Run, Box<dyn Error>> {
    let mut server = Server::start(pods, row.diverse)?;
    let dir = tempfile::tempdir_in(env::current_dir()?)?; // on a disk: the system's own may be memory
    let memory = tempfile::tempdir_in(MEMORY)?;
    let config = row.config.replace("DIR", &dir.path().display().to_string());
    let handler = row.handler.replace("MEMORY", &memory.path().display().to_string());
    let args = [server.url().to_owned(), pods.to_string(), events.to_string(), handler, config];
    let mut observer = core.start(row.role, &args)?;
    let (sync, sync_slices) = core.next_phase(&mut observer)?;
    server.begin_churn(events)?;
    let (events, events_slices) = core.next_phase(&mut observer)?; // looked at while it goes on, not afterwards
    server.end_churn()?;
    Ok(Run { sync, events, sync_slices, events_slices })
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn line(row: &Row, Scale { pods, events }: Scale, runs: &[Run], widest: f64) -> String {
    let median = |of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let per = |phase: &Phase, count: usize| phase.cpu.as_secs_f64() * 1e6 / count as f64;
    let (resident, bodies) = if row.role == "engine" {
        let resident = |of: &dyn Fn(&Run) -> Phase| median(&|run| of(run).resident as f64 / pods as f64);
        let bodies = median(&|run| run.events.used as f64 / pods as f64);
        (format!("{:.0} → {:.0}", resident(&|run| run.sync), resident(&|run| run.events)), format!("{bodies:.0}"))
    } else {
        ("–".to_owned(), "–".to_owned())
    };
    let written = if row.config.contains("DIR") {
        format!("{:.0}", median(&|run| run.events.written as f64 / events as f64))
    } else {
        "–".to_owned()
    };
    let rate = median(&|run| events as f64 / run.events.wall.as_secs_f64());
    let cpu = |phases: Vec<(Phase, &[Slice])>, median: f64, count: usize| match on_whole_core(&phases, count, widest) {
        Some((nanos, slices)) => format!("{median:.1}; {:.1} ({slices})", nanos / 1e3),
        None => format!("{median:.1}; –"),
    };
    let phases = runs.iter().map(|run| (run.events, &*run.events_slices)).collect();
    let event = cpu(phases, median(&|run| per(&run.events, events)), events);
    let phases = runs.iter().map(|run| (run.sync, &*run.sync_slices)).collect();
    let object = cpu(phases, median(&|run| per(&run.sync, pods)), pods);
    format!("| {} | {event} | {object} | {resident} | {bodies} | {rate:.0} | {written} |", row.title)
}
