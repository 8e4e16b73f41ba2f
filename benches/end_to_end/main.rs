//! From socket to handler: what the whole engine costs an event, and what it keeps an object.
//!
//! Three kinds of processes, all of them this program: one coordinates, one is the simulated API server, one is what is
//! measured, new for every run. So CPU and memory are those of the engine and of nothing else. It takes the flags of
//! the other benches: `--sample-size 10` or less means one run of each row instead of three.

mod measure;
mod process;
mod roles;
#[path = "../support/mod.rs"]
mod support;

use std::{env, error::Error};

use self::{
    measure::{Phase, Run},
    process::{Observer, Server},
    support::process::{ROLE_FLAG, is_asked_for, sample_size},
};

const PODS: usize = 20_000;
const EVENTS: usize = 50_000;

/// One line of the table.
struct Row {
    title: &'static str,
    role: &'static str,
    diverse: bool,
}

const ROWS: [Row; 4] = [
    Row { title: "deltabus, pods of one shape", role: "engine", diverse: false },
    Row { title: "deltabus, diverse pods", role: "engine", diverse: true },
    Row { title: "read the socket and drop", role: "drop", diverse: false },
    Row { title: "kube 5, decode to DynamicObject and drop", role: "kube", diverse: false },
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
    let rounds = if sample_size(&args).is_some_and(|size| size <= 10) { 1 } else { 3 };
    println!("end_to_end: {PODS} pods of 9 KB, then {EVENTS} updates; medians of {rounds}");
    println!(
        "| | µs CPU an event | µs CPU an object at sync | resident bytes an object → after the events | of these bodies | events/s |"
    );
    println!("|---|---|---|---|---|---|");
    for row in &ROWS {
        let runs = (0..rounds).map(|_| run(row)).collect::<Result<Vec<_>, _>>()?;
        println!("{}", line(row, &runs));
    }
    Ok(())
}

/// Lets one observer see the pods, then the events.
fn run(row: &Row) -> Result<Run, Box<dyn Error>> {
    let mut server = Server::start(PODS, row.diverse)?;
    let mut observer = Observer::start(row.role, server.url(), PODS, EVENTS)?;
    let sync = observer.next_phase()?;
    server.churn(EVENTS)?;
    let events = observer.next_phase()?;
    Ok(Run { sync, events })
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn line(row: &Row, runs: &[Run]) -> String {
    let median = |of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let per = |phase: &Phase, count: usize| phase.cpu.as_secs_f64() * 1e6 / count as f64;
    let (resident, bodies) = if row.role == "engine" {
        let resident = |of: &dyn Fn(&Run) -> Phase| median(&|run| of(run).resident as f64 / PODS as f64);
        let bodies = median(&|run| run.events.bodies as f64 / PODS as f64);
        (format!("{:.0} → {:.0}", resident(&|run| run.sync), resident(&|run| run.events)), format!("{bodies:.0}"))
    } else {
        ("–".to_owned(), "–".to_owned())
    };
    let rate = median(&|run| EVENTS as f64 / run.events.wall.as_secs_f64());
    let (event, object) = (median(&|run| per(&run.events, EVENTS)), median(&|run| per(&run.sync, PODS)));
    format!("| {} | {event:.1} | {object:.1} | {resident} | {bodies} | {rate:.0} |", row.title)
}
