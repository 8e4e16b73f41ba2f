//! Thousands of subscribers of `/v1/events`: whether each hears every event in order, how late, what one of them costs in
//! memory and CPU, and whether those that do not read disturb the others.
//!
//! Three processes, all of them this program: the simulated API server, the engine, and the audience, which holds one
//! socket for each subscriber. Config maps of 1 KB change at a steady rate. A round is three runs: alone, beside some that do
//! not read, and alone again, which says how much two runs differ by themselves. It takes `--subscribers`, `--rate` (changes a
//! second), `--events` and `--rounds`; `--sample-size 10` or less is a short run of one round.

mod audience;
#[path = "../outage/cluster.rs"]
mod cluster;
mod engine;
#[path = "../support/flags.rs"]
mod flags;
#[path = "../support/mod.rs"]
mod support;

use std::{env, error::Error, fmt, time::SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::{
    audience::Heard,
    flags::number,
    support::process::{Player, ROLE_FLAG, is_asked_for, sample_size},
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Objects, in the turn of which changes are drawn.
const OBJECTS: usize = 1_000;
/// Subscribers that do not read, in every second run.
const STUCK: usize = 20;

/// What the engine is asked for between the runs.
#[derive(Clone, Copy)]
struct Look {
    resident: u64,
    cpu_nanos: u64,
}

/// One run: what was heard, and what it cost.
struct Run {
    heard: Heard,
    /// CPU of the engine.
    cpu_nanos: u64,
    after: Look,
}

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = &args[..]
        && flag == ROLE_FLAG
    {
        return play(role, rest);
    }
    if args.iter().any(|arg| arg == "--test") || !is_asked_for("subscribers", &args) {
        return Ok(());
    }
    let is_short = sample_size(&args).is_some_and(|size| size <= 10);
    let (events, rounds) = if is_short { (1_000, 1) } else { (4_000, 3) };
    let (events, rounds) = (number(&args, "--events", events)?, number(&args, "--rounds", rounds)?);
    Scene { subscribers: number(&args, "--subscribers", 2_000)?, rate: number(&args, "--rate", 200)?, events }
        .play(rounds)
}

fn play(role: &str, args: &[String]) -> Outcome<()> {
    match (role, args) {
        ("simulator", [objects]) => cluster::play(objects.parse()?),
        ("engine", [url]) => engine::play(url),
        ("audience", [address]) => audience::play(address),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

#[derive(Clone, Copy)]
struct Scene {
    subscribers: usize,
    /// Changes a second.
    rate: usize,
    /// Changes of a run.
    events: usize,
}

/// The processes of a scene.
struct Stage {
    server: Player,
    engine: Player,
    audience: Player,
}

impl Scene {
    fn play(self, rounds: usize) -> Outcome<()> {
        let Self { subscribers, rate, events } = self;
        let mut server = Player::start("simulator", &[OBJECTS.to_string()])?;
        let mut engine = Player::start("engine", &[server.line()?])?;
        let audience = Player::start("audience", &[engine.line()?])?;
        let mut stage = Stage { server, engine, audience };
        // The buffer that all share is full before memory is looked at.
        stage.join(1, 0)?;
        let before = stage.run(2 * engine::BUFFER_EVENTS, 5 * rate)?;
        check("the first one", 1, 2 * engine::BUFFER_EVENTS, &before)?;
        stage.join(subscribers - 1, 0)?;
        let idle = stage.look()?;
        let of_one = |look: Look| growth(look.resident, before.after.resident) / count(subscribers - 1);
        println!("subscribers: {subscribers}; {events} changes of config maps of 1 KB a run, {rate}/s");
        println!("at rest, before the first event: {:.1} KB a subscriber", of_one(idle) / 1e3);
        println!(
            "| subscribers | heard all, in order | lag ms p50 / p99 / max | p50, p99 to the first run of the round | KB a subscriber | engine's CPU, \
             % of a core | µs CPU an event and subscriber |"
        );
        println!("|{}", "---|".repeat(7));
        let (mut beside_stuck, mut again) = (Ratios::default(), Ratios::default());
        for _ in 0..rounds {
            let alone = stage.run(events, rate)?;
            check("each", subscribers, events, &alone)?;
            self.line("", &alone, None, of_one(alone.after));
            stage.join(0, STUCK)?;
            let disturbed = stage.run(events, rate)?;
            check("each of the others", subscribers, events, &disturbed)?;
            let who = format!(" and {STUCK} that do not read");
            self.line(&who, &disturbed, Some(beside_stuck.note(&disturbed, &alone)), of_one(disturbed.after));
            stage.audience.tell("unstick")?;
            stage.audience.line()?;
            let control = stage.run(events, rate)?;
            check("each", subscribers, events, &control)?;
            self.line(" again", &control, Some(again.note(&control, &alone)), of_one(control.after));
        }
        println!("medians of p50, p99 to the first run: {beside_stuck} beside {STUCK} that do not read, {again} again");
        Ok(())
    }

    fn line(self, who: &str, run: &Run, ratios: Option<[f64; 2]>, of_one: f64) {
        let Self { subscribers, rate, events } = self;
        let Heard { p50, p99, max, .. } = run.heard;
        let ms = |micros: u64| format!("{:.1}", micros_of(micros) / 1e3);
        let ratio = ratios.map_or("–".to_owned(), |[p50, p99]| format!("{p50:.2}, {p99:.2}"));
        let cpu = micros_of(run.cpu_nanos) / 1e3;
        println!(
            "| {subscribers}{who} | {} × {events} | {} / {} / {} | {ratio} | {:.1} | {:.0} | {:.2} |",
            run.heard.complete,
            ms(p50),
            ms(p99),
            ms(max),
            of_one / 1e3,
            cpu / 1e4 * count(rate) / count(events),
            cpu / count(events) / count(subscribers),
        );
    }
}

/// What runs took, to the first of their rounds: median and 99th percentile of the lag.
#[derive(Default)]
struct Ratios(Vec<[f64; 2]>);

impl Ratios {
    fn note(&mut self, run: &Run, first: &Run) -> [f64; 2] {
        let of = |lag: fn(&Heard) -> u64| micros_of(lag(&run.heard)) / micros_of(lag(&first.heard));
        let ratios = [of(|heard| heard.p50), of(|heard| heard.p99)];
        self.0.push(ratios);
        ratios
    }
}

impl fmt::Display for Ratios {
    /// Writes the medians.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = |which: usize| {
            let mut all: Vec<f64> = self.0.iter().map(|ratios| ratios[which]).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
        };
        write!(f, "{:.2}, {:.2}", median(0), median(1))
    }
}

impl Stage {
    /// Lets so many more listen, and so many more that do not read; returns when all have heard that they do.
    fn join(&mut self, listening: usize, stuck: usize) -> Outcome<()> {
        self.audience.tell(&format!("join {listening} {stuck}"))?;
        self.audience.line().map(drop)
    }

    /// Makes changes; returns once all have heard them, or nothing more comes.
    fn run(&mut self, events: usize, rate: usize) -> Outcome<Run> {
        let before = self.look()?;
        self.server.tell(&format!("run {events} {rate}"))?;
        self.server.line()?;
        self.audience.tell(&format!("lap {events}"))?;
        let heard = Heard::read(self.audience.numbers()?);
        let after = self.look()?;
        Ok(Run { heard, cpu_nanos: after.cpu_nanos - before.cpu_nanos, after })
    }

    /// Looks at the engine, which is at rest then.
    fn look(&mut self) -> Outcome<Look> {
        self.engine.tell("look")?;
        let [resident, cpu_nanos] = self.engine.numbers()?;
        Ok(Look { resident, cpu_nanos })
    }
}

/// Fails where somebody has missed something.
fn check(who: &str, subscribers: usize, events: usize, run: &Run) -> Outcome<()> {
    let Heard { complete, disordered, gaps, .. } = run.heard;
    if (complete, disordered, gaps) == (u64::try_from(subscribers)?, 0, 0) {
        return Ok(());
    }
    let found = format!("{complete} did, {disordered} events came out of order, {gaps} gaps");
    Err(format!("expected that {who} of {subscribers} hears {events} events in order: {found}").into())
}

fn growth(now: u64, before: u64) -> f64 {
    micros_of(now.saturating_sub(before))
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn micros_of(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
fn count(number: usize) -> f64 {
    number as f64
}

/// Raises the limit of this process to what it may be: each stream is a file.
pub(crate) fn open_as_many_files_as_allowed() -> Outcome<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Microseconds since the Unix epoch: a clock that all processes share.
pub(crate) fn micros() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
