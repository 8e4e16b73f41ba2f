//! What a watched type costs: time to sync, connections, memory beside the objects, and the CPU of doing nothing.
//!
//! Three kinds of processes, all of them this program: one coordinates, one is the simulated API server, one is the
//! engine, new for every row. `--sample-size 10` or less shortens the rest to five seconds and leaves rows out.

mod roles;
#[path = "../support/mod.rs"]
mod support;

use std::{env, error::Error, time::Duration};

use self::support::process::{Player, ROLE_FLAG, is_asked_for, sample_size};

/// Types of each row, and objects of each type.
const ROWS: [(u32, u32); 4] = [(1, 0), (300, 0), (300, 100), (1000, 10)];
/// How long the engine is at rest for its CPU and wake-ups to be counted.
const REST_SECONDS: u32 = 30;

/// What an engine cost.
struct Cost {
    sync: Duration,
    sync_cpu: Duration,
    resident: u64,
    /// Bytes of the objects among these.
    bodies: u64,
    threads: u64,
    rest_cpu: Duration,
    /// Times a thread of it was woken at rest.
    wakeups: u64,
    connections_peak: u64,
    connections_at_rest: u64,
    requests: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return roles::play(role, rest);
    }
    if !is_asked_for("many_types", &args) {
        return Ok(());
    }
    let is_short = sample_size(&args).is_some_and(|size| size <= 10);
    let (rows, rest) = match (is_short, cfg!(debug_assertions)) {
        (_, true) => (&ROWS[..2], 1), // a smoke run
        (true, false) => (&ROWS[..3], 5),
        (false, false) => (&ROWS[..], REST_SECONDS),
    };
    println!("many_types: custom resources of 2 KB; {rest} s of rest; resident bytes above those of one empty type");
    println!(
        "| types × objects | sync s | µs CPU an object at sync | KB a type beside its objects | resident bytes an object \
         | CPU at rest, % of a core | wake-ups/s | threads | requests to sync | connections, peak → at rest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut one = None;
    let mut empty = None;
    for &(types, objects) in rows {
        let cost = run(types, objects, rest)?;
        let base = *one.get_or_insert(cost.resident);
        println!("{}", line(types, objects, rest, &cost, base, empty));
        if objects == 0 {
            empty = Some((types, cost.resident));
        }
    }
    Ok(())
}

/// Lets one engine sync and rest.
fn run(types: u32, objects: u32, rest: u32) -> Result<Cost, Box<dyn Error>> {
    let mut server = Player::start("simulator", &[types.to_string(), objects.to_string()])?;
    let url = server.line()?;
    let mut engine = Player::start("engine", &[url, types.to_string(), objects.to_string(), rest.to_string()])?;
    let [sync, sync_cpu, resident, bodies, threads] = engine.numbers()?;
    let mut ask = || {
        server.tell("connections")?;
        server.numbers()
    };
    let [_, connections_peak, requests] = ask()?;
    let [rest_cpu, wakeups] = engine.numbers()?;
    let [connections_at_rest, ..] = ask()?;
    Ok(Cost {
        sync: Duration::from_nanos(sync),
        sync_cpu: Duration::from_nanos(sync_cpu),
        resident,
        bodies,
        threads,
        rest_cpu: Duration::from_nanos(rest_cpu),
        wakeups,
        connections_peak,
        connections_at_rest,
        requests,
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn line(types: u32, objects: u32, rest: u32, cost: &Cost, one: u64, empty: Option<(u32, u64)>) -> String {
    let all = f64::from(types * objects);
    let per_object = |sum: f64| if all > 0.0 { format!("{:.1}", sum / all) } else { "–".to_owned() };
    let beside = cost.resident.saturating_sub(one + cost.bodies) as f64 / 1000.0 / f64::from(types.max(2) - 1);
    let an_object = match empty {
        Some((of, resident)) if of == types => per_object(cost.resident.saturating_sub(resident) as f64),
        _ => "–".to_owned(),
    };
    let seconds = f64::from(rest);
    format!(
        "| {types} × {objects} | {:.2} | {} | {} | {an_object} | {:.2} | {:.0} | {} | {} | {} → {} |",
        cost.sync.as_secs_f64(),
        per_object(cost.sync_cpu.as_secs_f64() * 1e6),
        if types == 1 { "–".to_owned() } else { format!("{beside:.0}") },
        cost.rest_cpu.as_secs_f64() / seconds * 100.0,
        cost.wakeups as f64 / seconds,
        cost.threads,
        cost.requests,
        cost.connections_peak,
        cost.connections_at_rest,
    )
}
