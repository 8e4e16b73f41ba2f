//! What the processes do: serve many types, or watch them all and then nothing.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]

use std::{
    error::Error,
    fs,
    io::stdin,
    time::{Duration, Instant},
};

use deltabus::{
    config::Config,
    engine::Engine,
    list_watch::kube::ClusterAccess,
    simulator::{Simulator, SimulatorOptions, Workload, bench_type},
};

use crate::support::measure::{cpu, of_threads, resident};

/// Time for an engine to come to rest before its memory is looked at.
const SETTLE: Duration = Duration::from_secs(2);

/// Plays a role to its end.
pub(crate) fn play(role: &str, args: &[String]) -> Result<(), Box<dyn Error>> {
    match (role, args) {
        ("simulator", [types, objects]) => simulator(types.parse()?, objects.parse()?),
        ("engine", [url, types, objects, rest]) => engine(url, types.parse()?, objects.parse()?, rest.parse()?),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

fn simulator(types: usize, objects: usize) -> Result<(), Box<dyn Error>> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    Workload::new(1).load_types(simulator.store(), types, objects)?;
    println!("{}", simulator.url());
    for line in stdin().lines() {
        line?;
        println!("{} {} {}", simulator.connections(), simulator.connections_peak(), simulator.requests().len());
    }
    Ok(())
}

fn engine(url: &str, types: usize, objects: u64, rest: u64) -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = (0..types).map(bench_type).collect();
    // As `deltabus run` has it, with one handler; no HTTP server.
    let config = format!("[resources.all]\nmatch = {names:?}\n[handlers.out]\ntype = \"blackhole\"\n");
    let mut config = Config::from_toml_str(&config)?;
    config.http.listen = None;
    let access = ClusterAccess::without_credentials(url, "bench")?;
    actix::System::new().block_on(async {
        let began = Instant::now();
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        let wall = began.elapsed();
        let views = engine.registry().views();
        assert!(views.len() == types && views.iter().all(|view| view.objects == objects), "every type has its objects");
        let sync_cpu = cpu();
        actix_rt::time::sleep(SETTLE).await;
        let bodies: u64 = engine.registry().views().iter().map(|view| view.bytes).sum();
        let threads = fs::read_dir("/proc/self/task")?.count();
        println!("{} {} {} {bodies} {threads}", wall.as_nanos(), sync_cpu.as_nanos(), resident());
        let before = (cpu(), wakeups());
        actix_rt::time::sleep(Duration::from_secs(rest)).await;
        println!("{} {}", (cpu().saturating_sub(before.0)).as_nanos(), wakeups() - before.1);
        actix_rt::time::sleep(Duration::from_mins(1)).await; // until it is ended
        Ok(())
    })
}

/// Returns how often threads of this process have slept.
fn wakeups() -> u64 {
    of_threads("status", |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse().ok()
    })
}
