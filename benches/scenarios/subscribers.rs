//! Thousands of subscribers of `/v1/events`. Checks that each receives every event in order, and measures lag, memory
//! and CPU per subscriber, and the effect of subscribers that do not read.
//!
//! The engine has its own process. Config maps of 1 KB change at a steady rate. A round has three runs: without stalled
//! subscribers, with some, and without them again. The third run shows the difference between two equal runs.

mod audience;

use deltabus::internals::{
    bench::measure::{cpu, resident},
    config::Config,
    engine::Engine,
    list_watch::kube::ClusterAccess,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::audience::{Audience, Heard};
use crate::{
    harness::{Length, Outcome, Player, REST, float, median, orders},
    world::World,
};

/// Number of objects, which are changed in turn.
const OBJECTS: u64 = 1_000;
/// Number of subscribers that do not read, in every second run.
const STUCK: usize = 20;
/// Number of events buffered for all subscribers: small, so that the buffer fills quickly.
const BUFFER_EVENTS: u64 = 1_000;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 2_000)]
    subscribers: usize,
    /// Changes per second
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Changes of a run; 4,000, or 1,000 of a short one
    #[arg(long)]
    events: Option<u64>,
    #[command(flatten)]
    length: Length,
}

/// Resource usage of the engine between two runs.
#[derive(Clone, Copy)]
struct Look {
    resident: u64,
    cpu_nanos: u64,
}

/// One run: the received events and its resource usage.
struct Run {
    heard: Heard,
    /// CPU of the engine.
    cpu_nanos: u64,
    after: Look,
}

/// Processes of the scenario.
struct Stage {
    world: World,
    engine: Player,
    audience: Audience,
    subscribers: usize,
    rate: u64,
    events: u64,
    /// Resident bytes of the engine with one subscriber and a full buffer.
    base: u64,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let Args { subscribers, rate, .. } = *args;
    let events = args.events.unwrap_or(if args.length.short { 1_000 } else { 4_000 });
    open_as_many_files_as_allowed()?;
    let world = World::start(OBJECTS)?;
    let mut engine = Player::start("subscribers", &[world.url()])?;
    let audience = Audience::start(engine.line()?.parse()?)?;
    let mut stage = Stage { world, engine, audience, subscribers, rate, events, base: 0 };
    // Fill the shared buffer before memory is measured.
    stage.audience.join(1, 0)?;
    let first = stage.run(1, 2 * BUFFER_EVENTS, 5 * rate)?;
    stage.base = first.after.resident;
    stage.audience.join(subscribers - 1, 0)?;
    let idle = stage.look()?;
    println!("{subscribers} subscribers; {events} changes of config maps of 1 KB a run, {rate}/s");
    println!("at rest, before the first event: {:.1} KB a subscriber\n", stage.kilobytes_of_one(idle));
    println!(
        "| subscribers | heard all, in order | lag ms p50 / p99 / max | p50, p99 to the first run of the round | KB a \
         subscriber | engine's CPU, % of a core | µs CPU an event and subscriber |\n|---|---|---|---|---|---|---|"
    );
    let mut ratios: [Vec<[f64; 2]>; 2] = Default::default();
    for _ in 0..args.length.rounds() {
        let alone = stage.run(subscribers, events, rate)?;
        stage.line("", &alone, None);
        stage.audience.join(0, STUCK)?;
        for (who, ratios) in [" and 20 that do not read", " again"].into_iter().zip(&mut ratios) {
            let run = stage.run(subscribers, events, rate)?;
            let of = |lag: fn(&Heard) -> u64| float(lag(&run.heard)) / float(lag(&alone.heard));
            let ratio = [of(|heard| heard.p50), of(|heard| heard.p99)];
            stage.line(who, &run, Some(ratio));
            ratios.push(ratio);
            stage.audience.unstick()?;
        }
    }
    let [stuck, again] = ratios.map(|ratios| {
        let [p50, p99] = [0, 1].map(|at| median(ratios.iter().map(|ratio| ratio[at]).collect()));
        format!("{p50:.2}, {p99:.2}")
    });
    println!("\nmedians of p50, p99 to the first run: {stuck} beside {STUCK} that do not read, {again} again");
    Ok(())
}

impl Stage {
    /// Makes changes; returns once all subscribers have received them. Fails if a subscriber missed an event.
    fn run(&mut self, subscribers: usize, events: u64, rate: u64) -> Outcome<Run> {
        let before = self.look()?;
        self.world.run(events, rate)?;
        let heard = self.audience.lap(events)?;
        let after = self.look()?;
        let Heard { complete, disordered, gaps, .. } = heard;
        if (complete, disordered, gaps) != (subscribers as u64, 0, 0) {
            let found = format!("{complete} did, {disordered} events came out of order, {gaps} gaps");
            return Err(format!("expected that each of {subscribers} hears {events} events in order: {found}").into());
        }
        Ok(Run { heard, cpu_nanos: after.cpu_nanos - before.cpu_nanos, after })
    }

    /// Measures the idle engine.
    fn look(&mut self) -> Outcome<Look> {
        self.engine.tell("look")?;
        let [resident, cpu_nanos] = self.engine.numbers()?;
        Ok(Look { resident, cpu_nanos })
    }

    fn kilobytes_of_one(&self, look: Look) -> f64 {
        float(look.resident.saturating_sub(self.base)) / 1e3 / float(self.subscribers as u64 - 1)
    }

    fn line(&self, who: &str, run: &Run, ratio: Option<[f64; 2]>) {
        let Self { subscribers, rate, events, .. } = *self;
        let Heard { complete, p50, p99, max, .. } = run.heard;
        let [p50, p99, max] = [p50, p99, max].map(|micros| float(micros) / 1e3);
        let ratio = ratio.map_or("–".to_owned(), |[p50, p99]| format!("{p50:.2}, {p99:.2}"));
        let cpu_an_event = float(run.cpu_nanos) / 1e3 / float(events);
        println!(
            "| {subscribers}{who} | {complete} × {events} | {p50:.1} / {p99:.1} / {max:.1} | {ratio} | {:.1} | {:.0} | {:.2} |",
            self.kilobytes_of_one(run.after),
            cpu_an_event / 1e4 * float(rate),
            cpu_an_event / float(subscribers as u64),
        );
    }
}

/// Runs the measured engine: prints its address. Answers each line, when idle, with its resident bytes and CPU.
pub(crate) fn engine(url: &str) -> Outcome<()> {
    open_as_many_files_as_allowed()?;
    let mut config = Config::from_toml_str(&format!(
        "[resources.settings]\nmatch = [\"configmaps\"]\n[handlers.out]\ntype = \"blackhole\"\n\
         [subscribe]\nbuffer_events = {BUFFER_EVENTS}"
    ))?;
    config.http.listen = Some("127.0.0.1:0".parse()?);
    let access = ClusterAccess::without_credentials(url, "bench")?;
    let mut orders = orders();
    actix::System::new().block_on(async {
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        println!("{}", engine.addresses().first().ok_or("it listens nowhere")?);
        while orders.recv().await.is_some() {
            let spent = cpu();
            actix_rt::time::sleep(REST).await;
            println!("{} {spent}", resident());
        }
        Ok(())
    })
}

/// Raises this process's limit of open files to its maximum: each stream is a file.
fn open_as_many_files_as_allowed() -> Outcome<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
