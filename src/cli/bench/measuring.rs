//! Measurements in their order: who is told what, and what becomes of the answers.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use deltabus::{
    bench::{
        Shape,
        figures::{Latency, Reads, Run, per_second},
        measure::monotonic,
        orders::{EngineAnswer, EngineOptions, EngineOrder, Reached, Role, ServerAnswer, ServerOrder, Stamp, Synced},
        report::{Measured, grouped},
    },
    list_watch::kube::{ClusterAccess, raw::RawClient},
};
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use super::{BenchArgs, processes::Player};
use crate::cli::terminal::{SCREEN, colours};

/// Single changes, and the time between them: the engine comes to rest.
const TICKS: u64 = 600;
const TICK_EVERY: Duration = Duration::from_millis(4);
/// How long is read in each way.
const READ: Duration = Duration::from_secs(1);
/// How long a server may take for its version.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a flood goes on before reads beside it begin.
const FLOOD_BEGINS: Duration = Duration::from_millis(200);

/// Measures everything that was asked for.
pub(super) async fn measure(args: &BenchArgs) -> anyhow::Result<Vec<Measured>> {
    let progress = Progress::new();
    let mut measured = Vec::new();
    if let Some(server) = &args.server {
        let mut of = Measured { name: args.resource.clone(), title: format!("of {server}"), runs: Vec::new() };
        for run in 1..=args.runs {
            progress.begin(&args.resource, run, args.runs);
            of.runs.push(watch_as_it_is(args, server, &progress).await?);
        }
        measured.push(of);
        return Ok(measured);
    }
    for shape in args.shapes() {
        let mut of = Measured { name: shape.to_string(), title: shape.title().to_owned(), runs: Vec::new() };
        for run in 1..=args.runs {
            progress.begin(shape.name(), run, args.runs);
            of.runs.push(replay(args, shape, &progress).await.with_context(|| format!("failed to measure {shape}"))?);
        }
        measured.push(of);
    }
    Ok(measured)
}

/// One run against a server of our own.
async fn replay(args: &BenchArgs, shape: Shape, progress: &Progress) -> anyhow::Result<Run> {
    let (objects, changes) = (shape.scaled(args.pods), shape.scaled(args.events));
    let mut server = Player::start(&Role::Server { shape, objects, seed: args.seed })?;
    let ServerAnswer::Listening { url, object_bytes } = server.answer().await? else { return unexpected() };
    let flow_began = monotonic();
    if args.flow > 0 {
        server.tell(&ServerOrder::Flow(args.flow)).await?;
    }
    let indexes = if args.index { shape.indexes().map(str::to_owned).to_vec() } else { Vec::new() };
    let state = state_dir(args.state.as_ref())?;
    let resource = shape.resource().qualified_name();
    let mut engine = Engine::start(options(args, url, resource, indexes, state.as_ref()), progress)?;

    let synced = engine.synced().await?;
    let (meanwhile, at) = hold(&mut server).await?;
    let flow = (args.flow > 0).then(|| per_second(meanwhile, monotonic() - flow_began));
    engine.begin(at, "catching up").await?;
    engine.reached("catching up").await?;

    let target = at + changes;
    engine.begin(target, "events").await?;
    server.tell(&ServerOrder::Release(changes)).await?;
    let events = engine.reached("events").await?;

    engine.tell(&EngineOrder::Note).await?;
    engine.ready("single changes").await?;
    let every_micros = u64::try_from(TICK_EVERY.as_micros())?;
    server.tell(&ServerOrder::Tick { changes: TICKS, every_micros }).await?;
    let ServerAnswer::Sent(sent) = server.answer().await? else { return unexpected() };
    let latency = Latency::of(&sent, engine.arrivals(target + TICKS).await?);

    let (reads, _) = engine.read("reads", false).await?;
    server.tell(&ServerOrder::Flood).await?;
    tokio::time::sleep(FLOOD_BEGINS).await;
    let beside = engine.read("reads beside a writer", true).await?;
    Ok(Run {
        object_bytes,
        synced,
        flow,
        changes,
        events: Some(events),
        latency,
        reads: Some(reads),
        reads_beside_writer: Some(beside),
    })
}

/// One run against a server that is as it is.
async fn watch_as_it_is(args: &BenchArgs, server: &str, progress: &Progress) -> anyhow::Result<Run> {
    check_reach(server).await?;
    let state = state_dir(args.state.as_ref())?;
    let options = options(args, server.to_owned(), args.resource.clone(), Vec::new(), state.as_ref());
    let mut engine = Engine::start(options, progress)?;
    let synced = engine.synced().await?;
    engine.tell(&EngineOrder::Follow(u64::try_from(args.within.as_millis())?)).await?;
    let events = engine.reached("events as they come").await?;
    let (reads, _) = engine.read("reads", false).await?;
    Ok(Run { synced, events: Some(events), reads: Some(reads), ..Run::default() })
}

/// Fails where an engine would try again and again.
async fn check_reach(server: &str) -> anyhow::Result<()> {
    let access = ClusterAccess::without_credentials(server, "bench")?;
    let answer = RawClient::new(&access)?.get("/version", "application/json", ANSWER_TIMEOUT).await;
    let code = answer.with_context(|| format!("failed to reach {server} (--server)"))?.code;
    match code {
        401 | 403 => bail!("{server} wants to know who asks ({code}): let `kubectl proxy` ask it, and measure that"),
        400.. => bail!("{server} answers {code} to /version: is it an API server?"),
        _ => Ok(()),
    }
}

fn options(
    args: &BenchArgs,
    server: String,
    resource: String,
    indexes: Vec<String>,
    state: Option<&TempDir>,
) -> EngineOptions {
    EngineOptions {
        server,
        resource,
        compression: args.compression.name(),
        keep_all: args.keep_all,
        indexes,
        state: state.map(|dir| dir.path().join("state")),
    }
}

/// Makes a directory that is removed when this is dropped: in a place, or where the system keeps such.
fn state_dir(asked: Option<&Option<PathBuf>>) -> anyhow::Result<Option<TempDir>> {
    let Some(place) = asked else { return Ok(None) };
    let place = place.clone().unwrap_or_else(env::temp_dir);
    let made = tempfile::Builder::new().prefix("deltabus-bench-").tempdir_in(&place);
    made.map(Some).with_context(|| format!("failed to make a directory in {} (--state)", place.display()))
}

/// Ends the changes of a server; returns how many there were, and the version of the last.
async fn hold(server: &mut Player) -> anyhow::Result<(u64, u64)> {
    server.tell(&ServerOrder::Hold).await?;
    match server.answer().await? {
        ServerAnswer::Head { changes, version } => Ok((changes, version)),
        _ => unexpected(),
    }
}

fn unexpected<T>() -> anyhow::Result<T> {
    bail!("a process of the measurement has answered something else than it was asked")
}

/// The process that is measured.
struct Engine<'a> {
    player: Player,
    progress: &'a Progress,
}

impl<'a> Engine<'a> {
    fn start(options: EngineOptions, progress: &'a Progress) -> anyhow::Result<Self> {
        Ok(Self { player: Player::start(&Role::Engine(options))?, progress })
    }

    async fn tell(&mut self, order: &EngineOrder) -> anyhow::Result<()> {
        self.player.tell(order).await
    }

    /// Waits for an answer; shows how far it has come until then.
    async fn answer(&mut self, phase: &str) -> anyhow::Result<EngineAnswer> {
        self.progress.say(phase);
        loop {
            match self.player.answer().await? {
                EngineAnswer::Progress { done, wrong } => self.progress.count(phase, done, wrong.as_deref()),
                EngineAnswer::Failed(error) => bail!(error),
                answer => return Ok(answer),
            }
        }
    }

    async fn synced(&mut self) -> anyhow::Result<Synced> {
        match self.answer("sync").await? {
            EngineAnswer::Synced(synced) => Ok(synced),
            _ => unexpected(),
        }
    }

    async fn ready(&mut self, phase: &str) -> anyhow::Result<()> {
        match self.answer(phase).await? {
            EngineAnswer::Ready => Ok(()),
            _ => unexpected(),
        }
    }

    /// Lets it measure until a version.
    async fn begin(&mut self, version: u64, phase: &str) -> anyhow::Result<()> {
        self.tell(&EngineOrder::Reach(version)).await?;
        self.ready(phase).await
    }

    async fn reached(&mut self, phase: &str) -> anyhow::Result<Reached> {
        match self.answer(phase).await? {
            EngineAnswer::Reached(reached) => Ok(reached),
            _ => unexpected(),
        }
    }

    async fn arrivals(&mut self, version: u64) -> anyhow::Result<Vec<Stamp>> {
        self.tell(&EngineOrder::Arrivals(version)).await?;
        match self.answer("single changes").await? {
            EngineAnswer::Arrived(arrived) => Ok(arrived),
            _ => unexpected(),
        }
    }

    async fn read(&mut self, phase: &str, by_key_only: bool) -> anyhow::Result<(Reads, f64)> {
        self.tell(&EngineOrder::Read { millis: u64::try_from(READ.as_millis())?, by_key_only }).await?;
        match self.answer(phase).await? {
            EngineAnswer::Read(reads, events) => Ok((reads, events)),
            _ => unexpected(),
        }
    }
}

/// A line on the terminal.
struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new() -> Self {
        let template = if colours() {
            "{spinner:.cyan} {elapsed} {prefix}: {wide_msg}"
        } else {
            "{spinner} {elapsed} {prefix}: {wide_msg}"
        };
        let style = ProgressStyle::with_template(template).expect("the template is right");
        let bar = SCREEN.add(ProgressBar::new_spinner().with_style(style));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    fn begin(&self, what: &str, run: u32, runs: u32) {
        let prefix = if runs > 1 { format!("{what}, run {run} of {runs}") } else { what.to_owned() };
        self.bar.set_prefix(prefix);
        self.say("starting");
    }

    fn say(&self, phase: &str) {
        self.bar.set_message(phase.to_owned());
    }

    /// Shows how far a phase is; what comes at once in the end is not counted before.
    fn count(&self, phase: &str, done: u64, wrong: Option<&str>) {
        let count = if done > 0 { format!(", {}", grouped(done)) } else { String::new() };
        let wrong = wrong.map_or_else(String::new, |wrong| format!(" ({wrong})"));
        self.bar.set_message(format!("{phase}{count}{wrong}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
