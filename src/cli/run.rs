//! `deltabus run`: runs the engine.

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    config::{
        Config, ConfigErrors, EventType, Finding, FlagValue, HandlerConfig, Initial, Loaded, SinkConfig, StateConfig,
    },
    delivery::status::{HandlerState, HandlerView},
    engine::{Applied, Engine, EngineBuilder, EngineHandle, RunningEngine, StopReport, reload::ConfigFiles},
    handler::exec::kill_all,
    journal::{Journal, store::Store},
    list_watch::kube::ClusterAccess,
    mutex::lock,
    registry::Registry,
    trace,
};
use actix::System;
use anyhow::Context as _;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};

use super::{
    ConfigArgs, KubeArgs,
    hangup::{Hangup, HangupMeaning},
    orphans::Reaper,
    report, terminal,
};

/// Time after a signal in which a further signal counts as the same request to stop. A process often gets a signal twice: directly,
/// and as a member of its process group.
const SAME_REQUEST: Duration = Duration::from_secs(1);
/// Time limit for sending the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);
/// Interval between two checks whether the reader of stdout has closed it.
const LOOK_AT_HANDLERS: Duration = Duration::from_millis(200);

/// Interval between two checks for changed configuration files.
const LOOK_AT_FILES: Duration = Duration::from_secs(1);
/// Interval between two checks of a changed file that may still be incomplete.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs the engine: watches and caches resources, and sends changes to handlers.
///
/// Changed configuration files are applied while the engine runs, unless `[reload] watch` is false. SIGHUP applies them at
/// once. Files with errors are reported, and the running configuration stays in effect.
///
/// SIGTERM, ctrl-c or the end of the terminal stops the engine: it delivers accepted events, for at most `shutdown_timeout`. A second signal, at least a
/// second after the first, stops it at once. If stdout is the only handler, the engine also stops when the reader of stdout has
/// closed it. Started with `nohup`, it outlives its terminal.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Lets handlers of type `exec` run programs. Anyone who can change the configuration can then run programs as this user.
    #[arg(long)]
    pub(crate) allow_exec: bool,
    /// First rewrites `[state] dir`, so that its files contain no removed values. Changes stay from the first one that waits for a
    /// handler. Needs free disk space for a copy.
    #[arg(long)]
    pub(crate) compact_state: bool,
    /// Address of the HTTP server, instead of `[http] listen`. Port 0 takes any free port; "" serves nothing.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) listen: Option<String>,
    /// State directory, instead of `[state] dir`.
    #[arg(skip)]
    pub(crate) state_dir: Option<String>,
}

/// Checks the text of an address.
fn address(text: &str) -> Result<String, String> {
    let is_valid = text.is_empty() || text.parse::<SocketAddr>().is_ok();
    let expected = "expected an IP address and a port, such as 127.0.0.1:8080, or \"\"";
    is_valid.then(|| text.to_owned()).ok_or_else(|| expected.to_owned())
}

/// Runs the engine until a signal stops it.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    run_on(args, None, |_| {})
}

/// Runs the engine until a signal stops it. A `cluster` replaces that of the configuration. Calls `announce` after the start.
pub(crate) fn run_on(
    args: &RunArgs,
    cluster: Option<ClusterAccess>,
    announce: impl FnOnce(&RunningEngine),
) -> anyhow::Result<()> {
    let listen = args.listen.clone().map(|value| FlagValue { flag: "--listen", keys: &["http", "listen"], value });
    let state = args.state_dir.clone().map(|value| FlagValue { flag: "demo", keys: &["state", "dir"], value });
    let flags = listen.into_iter().chain(state).collect();
    let (mut files, kube) = (args.config.files().with_flags(flags), args.config.kube.clone());
    let mut loaded = files.load()?;
    kube.apply(&mut loaded.config.kube);
    refuse_programs(&loaded, args.allow_exec)?;
    let Loaded { config, warnings, .. } = loaded;
    terminal::start(&config.log);
    report::warnings(&warnings);
    hint_at_silence(&config);
    if args.compact_state {
        compact(&config.state)?;
    }
    let telemetry = config.telemetry.spans_to().map(|endpoint| trace::start(endpoint, config.cluster.name.as_deref()));
    let telemetry = telemetry.transpose().map_err(anyhow::Error::msg)?;
    let started = |engine: &RunningEngine, hangup| {
        announce(engine);
        actix_rt::spawn(terminal::show_initial_syncs(engine.registry().clone()));
        actix_rt::spawn(follow(files, kube, engine.handle(), hangup));
        if std::process::id() == 1 {
            actix_rt::spawn(reap_orphans());
        }
    };
    let builder = Engine::builder().config(config).allow_exec(args.allow_exec);
    let builder = match cluster {
        Some(cluster) => builder.cluster(cluster),
        None => builder,
    };
    let ran = block_on(builder, OnHangup::StopWithTerminal, started);
    if let Some(telemetry) = telemetry {
        telemetry.stop(LAST_SPANS);
    }
    ran?;
    tracing::info!("stopped");
    Ok(())
}

/// Rewrites the state directory.
fn compact(state: &StateConfig) -> anyhow::Result<()> {
    let dir = state.dir.as_ref().context("--compact-state needs `[state] dir`")?;
    let waiting = Journal::compact(&Store::home(dir), state.journal)?;
    tracing::info!(dir = %dir.display(), "rewrote the state directory");
    if waiting > 0 {
        tracing::warn!(
            changes = waiting,
            "the state may still contain removed values: changes stay from the first one that waits for a handler"
        );
    }
    Ok(())
}

/// Reaps ended processes whose parents have ended, as process 1 must. Programs of `exec` handlers may leave such processes.
async fn reap_orphans() {
    let mut reaper = Reaper::default();
    loop {
        sleep(Reaper::INTERVAL).await;
        reaper.look();
    }
}

/// Raises the soft limit of open files to the hard limit: connections and the store need more than the usual 1024.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "failed to raise the limit of open files");
    }
}

/// Treatment of SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnHangup {
    /// SIGHUP stops the engine.
    Stop,
    /// SIGHUP stops the engine if its terminal was closed.
    StopWithTerminal,
}

/// Starts an engine inside a new actix system, and calls `started` with the engine and a receiver of SIGHUP. Runs the engine until a
/// signal stops it. Returns the registry of the engine.
pub(crate) fn block_on(
    builder: EngineBuilder,
    on_hangup: OnHangup,
    started: impl FnOnce(&RunningEngine, Hangup),
) -> anyhow::Result<Arc<Registry>> {
    raise_file_limit();
    System::new().block_on(async {
        let hangup = Hangup::new()?; // before others can see that the engine runs
        let told = (StopSignals::new()?, hangup.again()?, on_hangup);
        let engine = builder.start().await?;
        started(&engine, hangup);
        let registry = Arc::clone(engine.registry());
        let outcome = until_told_to_stop(engine, told).await;
        terminal::clear();
        outcome.map(|()| registry)
    })
}

/// Watches the configuration files, and applies each change to the engine. If `kube` names a cluster, it replaces the cluster in
/// the files.
async fn follow(mut files: ConfigFiles, kube: KubeArgs, engine: EngineHandle, mut hangup: Hangup) {
    let mut pause = LOOK_AT_FILES;
    loop {
        let asked = tokio::select! {
            meaning = hangup.recv() => match meaning {
                HangupMeaning::Requested => true,
                HangupMeaning::TerminalClosed => return, // the engine stops
            },
            () = sleep(pause) => false,
        };
        if !asked && !engine.config().reload.watch {
            continue;
        }
        let looked = spawn_blocking(move || {
            let loaded = (asked || files.has_changed()).then(|| files.load());
            (files, loaded)
        });
        let loaded;
        (files, loaded) = match looked.await {
            Ok(looked) => looked,
            Err(error) => return tracing::error!(%error, "changed configuration files are no longer applied"),
        };
        pause = if files.is_settling() { LOOK_AGAIN } else { LOOK_AT_FILES };
        if let Some(mut loaded) = loaded {
            if let Ok(loaded) = &mut loaded {
                kube.apply(&mut loaded.config.kube);
            }
            apply(loaded, &engine);
        }
    }
}

/// Applies a configuration, or logs its errors.
fn apply(loaded: Result<Loaded, ConfigErrors>, engine: &EngineHandle) {
    let Loaded { config, warnings, .. } = match loaded {
        Ok(loaded) => loaded,
        Err(errors) => {
            let first = errors.errors.first().map(ToString::to_string).unwrap_or_default();
            lock(&engine.registry().reloads).count(Err(first));
            for finding in &errors.errors {
                tracing::error!(%finding, "error in the changed configuration");
            }
            return tracing::error!(
                errors = errors.errors.len() + errors.more,
                "refused the changed configuration; the previous one stays in effect"
            );
        }
    };
    for finding in &warnings {
        tracing::warn!(%finding, "warning about the changed configuration");
    }
    let log = config.log.clone();
    match engine.apply(config) {
        Ok(Applied { needs_restart }) => {
            terminal::change_level(&log);
            for option in needs_restart {
                tracing::warn!(option, "option changed; restart to apply");
            }
            tracing::info!("applied the changed configuration");
        }
        Err(error) => tracing::error!(%error, "refused the changed configuration; the previous one stays in effect"),
    }
}

/// Waits for a signal, for a failure of the engine, or until the reader of stdout closes it. Then stops the engine, and logs
/// undelivered events.
async fn until_told_to_stop(
    engine: RunningEngine,
    (mut told, mut hangup, on_hangup): (StopSignals, Hangup, OnHangup),
) -> anyhow::Result<()> {
    let (mut failure, mut is_read) = (None, true);
    loop {
        tokio::select! {
            () = told.recv() => break,
            meaning = hangup.recv() => if on_hangup == OnHangup::Stop || meaning == HangupMeaning::TerminalClosed {
                break;
            },
            error = engine.failed() => {
                failure = Some(error);
                break;
            }
            () = sleep(LOOK_AT_HANDLERS) => {}
        }
        if nobody_reads(&engine.handlers()) {
            is_read = false;
            break;
        }
    }
    if is_read {
        tracing::info!(
            "stopping: accepted events are delivered first; a second signal stops at once, if it comes at least a \
             second after the first"
        );
    }
    let again = async {
        sleep(SAME_REQUEST).await;
        StopSignals::new()?.recv().await;
        io::Result::Ok(())
    };
    let is_kept = engine.config().state.dir.is_some();
    let report = tokio::select! {
        report = engine.stop() => report,
        again = again => {
            again?;
            kill_all();
            anyhow::bail!("stopped by a second signal before all events were delivered");
        }
    };
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    if is_read {
        tell_undelivered(&report, is_kept);
    }
    Ok(())
}

/// Receiver of the signals that stop the process. A signal that arrives between `new` and `recv` is not lost.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn recv(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

/// Returns true if all handlers write to stdout and stdout is closed, as in `deltabus run … | head`.
fn nobody_reads(handlers: &[HandlerView]) -> bool {
    let is_closed = |handler: &HandlerView| handler.kind == "stdout" && handler.state == HandlerState::Stopped;
    !handlers.is_empty() && handlers.iter().all(is_closed)
}

/// Logs the events that were not delivered before the stop (E4). The exit code stays 0, because the user requested the stop.
fn tell_undelivered(report: &StopReport, is_kept: bool) {
    for (handler, events, named) in &report.undelivered {
        let first = named.join(", ");
        if is_kept {
            tracing::warn!(
                handler,
                events,
                first,
                "stopped with undelivered events: they are kept and will be sent after the next start"
            );
        } else {
            tracing::error!(
                handler,
                events,
                first,
                "stopped with undelivered events: they are lost because [state] dir is not set"
            );
        }
    }
}

/// Fails if a handler runs a program and programs are not allowed.
pub(crate) fn refuse_programs(loaded: &Loaded, allow_exec: bool) -> Result<(), ConfigErrors> {
    match programs(loaded) {
        refused if !allow_exec && !refused.is_empty() => Err(ConfigErrors::new(refused, Vec::new())),
        _ => Ok(()),
    }
}

/// Returns an error for each handler that runs a program.
pub(crate) fn programs(loaded: &Loaded) -> Vec<Finding> {
    let handlers = loaded.config.handlers.iter();
    let running = handlers.filter(|(_, handler)| handler.enabled && matches!(handler.sink, SinkConfig::Exec(_)));
    let refused = |(name, _): (&String, _)| {
        loaded.finding(
            &["handlers", name, "type"],
            "handlers of type \"exec\" run programs, which is not allowed by default: pass --allow-exec",
        )
    };
    running.map(refused).collect()
}

/// Prints a note on a terminal if no handler shows existing objects. Without the note, an empty screen could look like a fault.
fn hint_at_silence(config: &Config) {
    let shows_added = |handler: &&HandlerConfig| handler.enabled && handler.options.on.contains(&EventType::Added);
    let mut showing = config.handlers.values().filter(shows_added).peekable();
    let some = showing.peek().is_some();
    if some && io::stderr().is_terminal() && showing.all(|handler| handler.options.initial == Initial::Skip) {
        report::note("existing objects are not shown; set initial = \"send\" in a handler to show them");
    }
}
