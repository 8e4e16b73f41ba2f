//! `deltabus run`: the engine.

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use actix::System;
use clap::Args;
use deltabus::{
    config::{Config, Initial, Loaded},
    engine::{Engine, EngineBuilder, EngineError, RunningEngine, StopReport},
    handler::status::{HandlerState, HandlerView},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use super::{ConfigArgs, report, terminal};

/// Signals within this time are one request: a process group is often told together with its leader.
const SAME_REQUEST: Duration = Duration::from_secs(1);
/// How often is looked whether anybody reads stdout.
const LOOK_AT_HANDLERS: Duration = Duration::from_millis(200);

/// Runs the engine: watches, caches, and sends changes.
///
/// SIGTERM or ctrl-c stops it: what was accepted is delivered, within `shutdown_timeout`; a second one stops at once.
/// Where stdout is the only handler, it also ends when nobody reads that any more.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Runs the engine until it is told to stop.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    terminal::start(&config.log);
    report::warnings(&warnings);
    hint_at_silence(&config);
    let started = |engine: &RunningEngine| {
        actix_rt::spawn(terminal::show_initial_syncs(engine.registry().clone()));
    };
    block_on(|| Engine::builder(config), started)?;
    tracing::info!("stopped");
    Ok(())
}

/// Starts an engine inside a new actix system and runs it until it is told to stop.
pub(crate) fn block_on(
    builder: impl FnOnce() -> EngineBuilder,
    started: impl FnOnce(&RunningEngine),
) -> anyhow::Result<()> {
    System::new().block_on(async {
        let engine = builder().start().await?;
        started(&engine);
        let outcome = until_told_to_stop(engine).await;
        terminal::clear();
        outcome
    })
}

/// Why an engine is stopped.
enum Cause {
    Asked,
    Failed(EngineError),
    NobodyReads,
}

/// Waits for a reason to stop, then stops the engine and says what it left.
async fn until_told_to_stop(mut engine: RunningEngine) -> anyhow::Result<()> {
    let cause = cause_to_stop(&mut engine).await?;
    if !matches!(cause, Cause::NobodyReads) {
        tracing::info!("stopping: what was accepted is delivered first; a second signal stops at once");
    }
    let again = async {
        sleep(SAME_REQUEST).await;
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        io::Result::Ok(())
    };
    let report = tokio::select! {
        report = engine.stop() => report,
        again = again => {
            again?;
            anyhow::bail!("stopped by a second signal, before everything was delivered");
        }
    };
    match cause {
        Cause::Failed(failure) => Err(failure.into()),
        Cause::NobodyReads => Ok(()),
        Cause::Asked => {
            tell_undelivered(&report);
            Ok(())
        }
    }
}

async fn cause_to_stop(engine: &mut RunningEngine) -> io::Result<Cause> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(Cause::Asked),
            _ = interrupt.recv() => return Ok(Cause::Asked),
            failure = engine.failed() => return Ok(Cause::Failed(failure)),
            () = sleep(LOOK_AT_HANDLERS) => {}
        }
        if nobody_reads(&engine.handlers()) {
            return Ok(Cause::NobodyReads);
        }
    }
}

/// Returns whether stdout is all there is, and closed: `deltabus run … | head` has seen enough.
fn nobody_reads(handlers: &[HandlerView]) -> bool {
    let is_closed = |handler: &HandlerView| handler.kind == "stdout" && handler.state == HandlerState::Stopped;
    !handlers.is_empty() && handlers.iter().all(is_closed)
}

/// Names what was left (I4). The stop itself was asked for, so the exit code stays 0.
fn tell_undelivered(report: &StopReport) {
    for (handler, events, named) in &report.undelivered {
        tracing::error!(handler, events, first = ?named, "stopped with undelivered events");
    }
}

/// Says so where a person would wait in front of an empty screen.
fn hint_at_silence(config: &Config) {
    let mut enabled = config.handlers.iter().filter(|(_, handler)| handler.enabled).peekable();
    let some = enabled.peek().is_some();
    if some && io::stderr().is_terminal() && enabled.all(|(_, handler)| handler.options.initial == Initial::Skip) {
        report::note("objects that exist already are not shown; initial = \"send\" in a handler shows them");
    }
}
