//! Sequence of the measurements.

use std::time::Duration;

use crate::{
    bench::{
        Generator, ReplayServer, Shape,
        figures::{Latency, Run, per_second},
        measure::monotonic,
        orders::{EngineOrder, EventsCost},
        report::Measured,
    },
    list_watch::kube::{ClusterAccess, raw::RawClient},
};
use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::{BenchArgs, engine_process::EngineProcess};
use crate::cli::terminal::{SCREEN, colours};

/// Number of single changes that are sent to measure the latency.
const TICKS: u64 = 600;
/// Interval between two single changes. It is long enough for the engine to become idle.
const TICK_EVERY: Duration = Duration::from_millis(4);
/// Time limit for the response to the request for `/version`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between the start of a flood of changes and the start of the concurrent reads.
const FLOOD_BEGINS: Duration = Duration::from_millis(200);

/// Runs the requested measurements.
pub(super) async fn measure(args: &BenchArgs) -> anyhow::Result<Vec<Measured>> {
    let progress = progress();
    let begin = |what: &str, run: u32| {
        let prefix = if args.runs > 1 { format!("{what}, run {run} of {}", args.runs) } else { what.to_owned() };
        progress.set_prefix(prefix);
        progress.set_message("starting");
    };
    let mut measured = Vec::new();
    if let Some(server) = &args.server {
        let mut runs = Vec::new();
        for run in 1..=args.runs {
            begin(&args.resource, run);
            runs.push(watch_as_it_is(args, server, &progress).await?);
        }
        return Ok(vec![Measured { name: args.resource.clone(), title: format!("objects of {server}"), runs }]);
    }
    for shape in args.shapes() {
        let mut of = Measured { name: shape.to_string(), title: shape.title().to_owned(), runs: Vec::new() };
        for run in 1..=args.runs {
            begin(shape.as_ref(), run);
            of.runs.push(replay(args, shape, &progress).await.with_context(|| format!("failed to measure {shape}"))?);
        }
        measured.push(of);
    }
    Ok(measured)
}

/// Runs one measurement. The API server is a simulated one in this process.
async fn replay(args: &BenchArgs, shape: Shape, progress: &ProgressBar) -> anyhow::Result<Run> {
    let (objects, changes) = (shape.scaled(args.pods), shape.scaled(args.events));
    let server = ReplayServer::start(Generator::new(shape, objects, args.seed))?;
    let generator = server.generator();
    let flow_began = monotonic();
    server.flow(args.flow);
    let indexes = if args.index { shape.indexes().map(str::to_owned).to_vec() } else { Vec::new() };
    let mut engine = EngineProcess::start(args, server.url(), shape.resource().qualified_name(), indexes, progress)?;

    let synced = engine.result("sync").await?;
    let meanwhile = server.hold();
    let flow = per_second(meanwhile, monotonic() - flow_began);
    let at = generator.version(meanwhile);
    engine.ask::<()>(&EngineOrder::Reach(at), "catching up").await?;
    engine.result::<EventsCost>("catching up").await?;

    let target = at + changes;
    engine.ask::<()>(&EngineOrder::Reach(target), "events").await?;
    server.release(changes);
    let events = engine.result("events").await?;

    engine.ask::<()>(&EngineOrder::Note(target + TICKS), "single changes").await?;
    let sent = server.tick(TICKS, TICK_EVERY).await;
    let latency = Latency::of(&sent, engine.result("single changes").await?);

    let (reads, _): (_, f64) = engine.ask(&EngineOrder::Read { by_key_only: false }, "reads").await?;
    server.flood();
    tokio::time::sleep(FLOOD_BEGINS).await;
    let reads_beside_writer = engine.ask(&EngineOrder::Read { by_key_only: true }, "reads during writes").await?;
    Ok(Run {
        object_bytes: generator.object_bytes() as u64,
        synced,
        flow,
        changes,
        events,
        latency,
        reads,
        reads_beside_writer,
    })
}

/// Runs one measurement against an existing server.
async fn watch_as_it_is(args: &BenchArgs, server: &str, progress: &ProgressBar) -> anyhow::Result<Run> {
    check_reach(server).await?;
    let mut engine = EngineProcess::start(args, server.to_owned(), args.resource.clone(), Vec::new(), progress)?;
    let synced = engine.result("sync").await?;
    let follow = EngineOrder::Follow(u64::try_from(args.within.as_millis())?);
    let events = engine.ask(&follow, "live events").await?;
    let (reads, _): (_, f64) = engine.ask(&EngineOrder::Read { by_key_only: false }, "reads").await?;
    Ok(Run { synced, events, reads, ..Run::default() })
}

/// Fails if the server cannot be reached or answers with an error. Without this check, the engine would retry forever.
async fn check_reach(server: &str) -> anyhow::Result<()> {
    let access = ClusterAccess::without_credentials(server, "bench")?;
    let answer = RawClient::new(&access).get("/version", "application/json", ANSWER_TIMEOUT).await;
    let code = answer.with_context(|| format!("failed to reach {server} (--server)"))?.code;
    match code {
        401 | 403 => bail!("{server} requires credentials ({code}): run `kubectl proxy` and measure against that"),
        400.. => bail!("{server} answers {code} to /version: is it an API server?"),
        _ => Ok(()),
    }
}

/// Adds a progress line to the terminal. Dropping the last clone of the returned value erases the line.
fn progress() -> ProgressBar {
    let spinner = if colours() { "{spinner:.cyan}" } else { "{spinner}" };
    let template = format!("{spinner} {{elapsed}} {{prefix}}: {{wide_msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is right");
    let line = ProgressBar::new_spinner().with_style(style).with_finish(ProgressFinish::AndClear);
    let line = SCREEN.add(line);
    line.enable_steady_tick(Duration::from_millis(200));
    line
}
