//! `deltabus demo`: runs the engine with an embedded API server that simulates a changing cluster.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cloud_event::Encoder,
    config::{Config, HandlerOptions, Initial},
    engine::{Engine, EngineBuilder, RunningEngine},
    handler::{
        Handler as _,
        stdout::{Look, Stdout},
    },
    list_watch::kube::ClusterAccess,
    simulator::{News, Simulator, SimulatorOptions, Sizes, Workload},
};
use clap::Args;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::{
    ConfigArgs, FileArgs, KubeArgs,
    engine_client::DEFAULT_ADDRESS,
    report,
    run::{self, OnHangup, RunArgs},
    table, terminal,
};

const CONFIG: &str = r#"
    [log]
    level = "warn"

    [resources.cluster]
    match = ["*"]
    exclude = ["events", "leases.coordination.k8s.io"]
    index = ["spec.nodeName"]
"#;

const STDOUT: &str = r#"
    [handlers.out]
    type = "stdout"
    initial = "send"
"#;

/// Runs the engine against an embedded API server with a simulated cluster; needs nothing else.
///
/// On a terminal, the command draws a live table below the newest events. Otherwise it writes events to stdout as lines of
/// JSON. It also prints commands to try in another terminal: kubectl with a temporary kubeconfig for the simulated cluster, and
/// deltabus commands for this engine.
///
/// With -c, the engine has the configuration of these files, as with `deltabus run`; only its cluster is the simulated one.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Configuration to run: a TOML file, or a directory of *.toml files; can be repeated.
    #[arg(short = 'c', long = "config", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// With -c: lets handlers of type `exec` run programs.
    #[arg(long, requires = "files")]
    allow_exec: bool,
    /// Address of the HTTP server; port 0 takes any free port. Default: 127.0.0.1:8080, or with -c that of the configuration.
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    listen: Option<SocketAddr>,
    /// Steps of the workload per second. Each step makes one to about ten writes.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = rate)]
    rate: f64,
    /// Seed for the changes in the cluster.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Parses a loopback address, so that only this machine can connect.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let expected =
        || "expected a loopback address and a port, such as 127.0.0.1:0 (reads are not authenticated)".to_owned();
    text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback()).ok_or_else(expected)
}

/// Parses a rate.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.1..=10_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number from 0.1 to 10000".to_owned())
}

/// Runs the demo until a signal stops it.
pub(crate) fn demo(args: &DemoArgs) -> anyhow::Result<()> {
    let simulator = Simulator::start(SimulatorOptions { seed: args.seed, ..SimulatorOptions::default() })?;
    let mut workload = Workload::new(args.seed);
    workload.populate(simulator.store(), Sizes::default())?;
    let news = workload.news();
    let living = workload.run(simulator.store().clone(), args.rate)?;

    let access = ClusterAccess::without_credentials(&simulator.url(), "demo")?;
    // A container image may have no temporary directory.
    let unwritten = |error: io::Error| {
        let advice = "set TMPDIR to a writable directory";
        report::note(&format!("cannot write a kubeconfig for this cluster: {error}; {advice}"));
    };
    let kubeconfig = kubeconfig(&simulator).map_err(unwritten).ok();
    let kubeconfig = kubeconfig.as_ref().map(NamedTempFile::path);
    let outcome = if args.files.is_empty() {
        run_all_types(args, access, kubeconfig, news)
    } else {
        let mut run = args.as_run();
        // The simulated cluster ends with this process. The state of one run would be of no use to the next.
        let has_state = run.config.load()?.config.state.dir.is_some();
        let state = has_state.then(|| tempfile::Builder::new().prefix("deltabus-demo-").tempdir()).transpose()?;
        if let Some(state) = &state {
            report::note("the state goes to a temporary directory, since the simulated cluster ends with the demo");
            // The engine creates this directory for its user alone.
            run.state_dir = Some(state.path().join("state").to_string_lossy().into_owned());
        }
        run::run_on(&run, Some(access), |engine| announce(engine, kubeconfig))
    };
    drop(living);
    simulator.stop();
    outcome
}

impl DemoArgs {
    /// Returns the arguments of `run` for the configuration of this demo.
    fn as_run(&self) -> RunArgs {
        RunArgs {
            config: ConfigArgs { file: FileArgs { files: self.files.clone() }, kube: KubeArgs::default() },
            allow_exec: self.allow_exec,
            compact_state: false,
            listen: self.listen.map(|address| address.to_string()),
            state_dir: None,
        }
    }
}

/// Runs the engine with the configuration of the demo: a live table on a terminal, events as JSON elsewhere.
fn run_all_types(args: &DemoArgs, access: ClusterAccess, kubeconfig: Option<&Path>, news: News) -> anyhow::Result<()> {
    let on_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
    let handlers = if on_terminal { "" } else { STDOUT };
    let mut config = Config::from_toml_str(&format!("{CONFIG}{handlers}"))?;
    config.http.listen = args.listen.or(config.http.listen);
    terminal::start(&config.log);
    let engine = Engine::builder().config(config).cluster(access);
    if on_terminal {
        return run_with_table(engine, kubeconfig, news);
    }
    run::block_on(engine, OnHangup::Stop, |engine, _| announce(engine, kubeconfig)).map(drop)
}

/// Prints what the user can try.
fn announce(engine: &RunningEngine, kubeconfig: Option<&Path>) {
    for place in places(engine.addresses().first(), kubeconfig) {
        report::note(&place);
    }
}

/// Writes a kubeconfig that only this user can read. Dropping the returned value removes the file.
fn kubeconfig(simulator: &Simulator) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("deltabus-demo-").suffix(".kubeconfig").tempfile()?;
    file.write_all(simulator.kubeconfig().as_bytes())?;
    Ok(file)
}

/// Returns lines that tell the user what to try: URLs of the engine, and commands for another terminal.
fn places(http: Option<&SocketAddr>, kubeconfig: Option<&Path>) -> Vec<String> {
    let cluster = kubeconfig.map(|file| format!("cluster: kubectl --kubeconfig {} get pods -A", file.display()));
    let Some(http) = http.map(ToString::to_string) else { return cluster.into_iter().collect() };
    let program = env::args().next().unwrap_or_else(|| "deltabus".to_owned());
    let engine = if http == DEFAULT_ADDRESS { String::new() } else { format!(" --engine {http}") };
    let command = |command: &str| format!("try: {program} {command}{engine}");
    let reads = format!("reads: http://{http}/v1/resources, http://{http}/api/v1/pods");
    let commands = ["tail pods", "get pods -A", "verify"].map(command);
    [reads].into_iter().chain(cluster).chain(commands).collect()
}

/// Runs the engine, and draws a live table and the newest events.
fn run_with_table(engine: EngineBuilder, kubeconfig: Option<&Path>, news: News) -> anyhow::Result<()> {
    let options = HandlerOptions { initial: Initial::Skip, ..HandlerOptions::default() };
    let started = Instant::now();
    let recent = table::Recent::default();
    let shown = recent.clone();
    let mut lines = Stdout::to(Box::new(recent), Look::of_stdout(), Encoder::new("demo", ""));
    let engine = engine.on_change("screen", options, move |notification| lines.deliver(&table::newest(notification)));
    let registry = run::block_on(engine, OnHangup::Stop, |engine, _| {
        let mut footer = places(engine.addresses().first(), kubeconfig);
        footer.push("ctrl-c stops".to_owned());
        actix_rt::spawn(table::draw(Arc::clone(engine.registry()), shown, news, footer));
    })?;
    let views = registry.views();
    let events: u64 = views.iter().map(table::events).sum();
    let (types, seconds) = (views.len(), started.elapsed().as_secs());
    report::note(&format!("stopped after {seconds} s: {events} changes of objects of {types} types"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_watches_types_that_come_and_go() {
        Config::from_toml_str(CONFIG).unwrap();
        for seasonal in Workload::seasonal_types() {
            assert!(CONFIG.contains(&format!("\"{seasonal}\"")) || CONFIG.contains("\"*\""), "{seasonal}");
        }
    }
}
