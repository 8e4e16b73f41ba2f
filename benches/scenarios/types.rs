//! Resource usage per watched type: time to sync, connections, memory besides the objects, and CPU when idle.

use std::{fs, future::pending, time::Duration};

use deltabus::internals::{
    bench::measure,
    list_watch::kube::ClusterAccess,
    simulator::{Simulator, SimulatorOptions, Workload, bench_type},
};

use crate::harness::{Length, Outcome, Player, REST, float, now, start_engine};

/// Types of each row, and objects of each type.
const ROWS: [(usize, usize); 4] = [(1, 0), (300, 0), (300, 100), (1000, 10)];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    length: Length,
}

/// Resource usage of one engine.
struct Cost {
    types: usize,
    objects: usize,
    sync_nanos: u64,
    sync_cpu_nanos: u64,
    resident: u64,
    /// Part of `resident` that is bodies of objects, in bytes.
    bodies: u64,
    threads: u64,
    rest_cpu_nanos: u64,
    /// Number of thread wake-ups while idle.
    wakeups: u64,
    connections: [u64; 2],
    requests: usize,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let (rows, rest) = match (args.length.short, cfg!(debug_assertions)) {
        (_, true) => (&ROWS[..2], 1), // a smoke run
        (true, false) => (&ROWS[..3], 5),
        (false, false) => (&ROWS[..], 30),
    };
    println!("custom resources of 2 KB; {rest} s of rest; resident bytes above those of one empty type\n");
    println!(
        "| types × objects | sync s | µs CPU an object at sync | KB a type beside its objects | resident bytes an object \
         | CPU at rest, % of a core | wake-ups/s | threads | requests to sync | connections, peak → at rest |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    let mut before: Vec<Cost> = Vec::new();
    for &(types, objects) in rows {
        let cost = measure(types, objects, rest)?;
        println!("{}", line(&cost, &before, rest));
        before.push(cost);
    }
    Ok(())
}

/// Measures one engine during its sync and while idle.
fn measure(types: usize, objects: usize, rest: u64) -> Outcome<Cost> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    Workload::new(1).load_types(simulator.store(), types, objects)?;
    let args = [simulator.url(), types.to_string(), objects.to_string(), rest.to_string()];
    let mut engine = Player::start("types", &args)?;
    let [sync_nanos, sync_cpu_nanos, resident, bodies, threads] = engine.numbers()?;
    let (peak, requests) = (simulator.connections_peak(), simulator.requests().len());
    let [rest_cpu_nanos, wakeups] = engine.numbers()?;
    let connections = [peak, simulator.connections()].map(|connections| connections as u64);
    Ok(Cost {
        types,
        objects,
        sync_nanos,
        sync_cpu_nanos,
        resident,
        bodies,
        threads,
        rest_cpu_nanos,
        wakeups,
        connections,
        requests,
    })
}

/// Formats a row. The first of the rows before has one empty type; a row with as many empty types gives the share of objects.
fn line(cost: &Cost, before: &[Cost], rest: u64) -> String {
    let Cost { types, objects, .. } = *cost;
    let all = (types * objects) as u64;
    let per_object = |sum: u64| if all > 0 { format!("{:.0}", float(sum) / float(all)) } else { "–".to_owned() };
    let beside = before
        .first()
        .map(|one| float(cost.resident.saturating_sub(one.resident + cost.bodies)) / 1e3 / float(types as u64 - 1));
    let empty = before.iter().find(|other| (other.types, other.objects) == (types, 0));
    let seconds = float(rest);
    format!(
        "| {types} × {objects} | {:.2} | {} | {} | {} | {:.2} | {:.0} | {} | {} | {} → {} |",
        float(cost.sync_nanos) / 1e9,
        per_object(cost.sync_cpu_nanos / 1_000),
        beside.map_or("–".to_owned(), |beside| format!("{beside:.0}")),
        empty.map_or("–".to_owned(), |empty| per_object(cost.resident.saturating_sub(empty.resident))),
        float(cost.rest_cpu_nanos) / 1e7 / seconds,
        float(cost.wakeups) / seconds,
        cost.threads,
        cost.requests,
        cost.connections[0],
        cost.connections[1],
    )
}

/// Runs the measured engine.
pub(crate) fn engine(url: &str, types: usize, objects: u64, rest: u64) -> Outcome<()> {
    let names: Vec<String> = (0..types).map(bench_type).collect();
    let config = format!("[resources.all]\nmatch = {names:?}\n[handlers.out]\ntype = \"blackhole\"\n");
    let access = ClusterAccess::without_credentials(url, "bench")?;
    actix::System::new().block_on(async {
        let began = now();
        let engine = start_engine(access, &config).await?;
        engine.wait_for_sync().await;
        let wall = began.elapsed();
        let views = engine.registry().views();
        assert!(views.len() == types && views.iter().all(|view| view.objects == objects), "every type has its objects");
        let sync_cpu = measure::cpu();
        actix_rt::time::sleep(REST).await;
        let bodies: u64 = engine.registry().views().iter().map(|view| view.bytes).sum();
        let threads = fs::read_dir("/proc/self/task")?.count();
        println!("{} {sync_cpu} {} {bodies} {threads}", wall.as_nanos(), measure::resident());
        let before = (measure::cpu(), wakeups());
        actix_rt::time::sleep(Duration::from_secs(rest)).await;
        println!("{} {}", measure::cpu() - before.0, wakeups() - before.1);
        pending().await // until it is killed
    })
}

/// Returns the number of times that threads of this process have slept.
fn wakeups() -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_thread = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads.filter_map(|thread| of_thread(fs::read_to_string(thread.path().join("status")).ok()?)).sum()
}
