//! `deltabus bench`: what this machine takes.

mod measuring;
mod processes;
mod roles;

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use deltabus::bench::{Shape, chart, measure::machine, orders::Role, report};
use http::Uri;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::report::note;

/// Measures the engine on this machine: sync, CPU and memory an object and an event, latency, reads.
///
/// Without --server it measures against a server of its own, which makes up its objects: the same in every run. Server
/// and engine are processes of their own, new for each run; CPU and memory are the engine's alone. The table goes to
/// stdout. What each figure means: docs/benchmarks.md, "Measure this machine". Other work on the machine spoils all of
/// them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// How many objects of each shape; of configmaps a twentieth of it, which is as many bytes.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pods: u64,
    /// How many changes come as fast as the engine takes them; of configmaps a twentieth.
    #[arg(long, value_name = "M", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    events: u64,
    /// What the objects look like; several, with commas between them, are measured one after the other.
    #[arg(
        long,
        value_name = "SHAPE",
        value_parser = values(&SHAPES.map(|(name, help, _)| (name, help))),
        value_delimiter = ',',
        default_value = "pods",
        conflicts_with = "server"
    )]
    shape: Vec<String>,
    /// How bodies are kept in the cache.
    #[arg(long, value_parser = values(&COMPRESSIONS), default_value = "zstd")]
    compression: String,
    /// Keeps managedFields and last-applied, which are dropped by default.
    #[arg(long)]
    keep_all: bool,
    /// With two indexes more than that of namespaces.
    #[arg(long, conflicts_with = "server")]
    index: bool,
    /// With a state directory, made in DIR and removed in the end; without DIR where the system keeps temporary files,
    /// which may be memory.
    #[arg(long, value_name = "DIR")]
    #[expect(clippy::option_option, reason = "clap's way to say: with or without a value")]
    state: Option<Option<PathBuf>>,
    /// So many changes a second go on while the engine syncs.
    #[arg(long, value_name = "RATE", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000), conflicts_with = "server")]
    flow: u64,
    /// How often each is measured; more than one give a median and a range.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Decides the values of the objects and the order of their changes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Measures against this API server as it is, without credentials: `kubectl proxy` makes one of any cluster. It is
    /// only read.
    #[arg(long, value_name = "URL", value_parser = url)]
    server: Option<String>,
    /// Which type of --server, as `match` of a configuration has it.
    #[arg(long, value_name = "TYPE", default_value = "pods", requires = "server")]
    resource: String,
    /// How long events of --server are counted: 30s, 5m.
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = duration, requires = "server")]
    within: Duration,
    /// Prints one JSON document instead of the table.
    #[arg(long)]
    json: bool,
    /// Also draws the figures into an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Role of this process, where another one started it.
    #[arg(long, hide = true, value_parser = role)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
Examples:

  deltabus bench                                  20,000 pods, 50,000 changes: under a minute
  deltabus bench --shape all --runs 3 --plot bench.svg
  deltabus bench --pods 1000000 --index --flow 1000
  deltabus bench --server http://127.0.0.1:8001 --resource deployments.apps --for 5m";

/// Values of `--shape`.
const SHAPES: [(&str, &str, &[Shape]); 6] = [
    ("pods", "Pods of 9 KB that share most values", &[Shape::Pods]),
    ("diverse", "Pods of 9 KB with values of their own", &[Shape::Diverse]),
    ("custom", "Custom resources of 2 KB with sorted keys", &[Shape::Custom]),
    ("configmaps", "Config maps of 200 KB", &[Shape::Configmaps]),
    ("events", "Events of 1 KB", &[Shape::Events]),
    ("all", "All of them", &Shape::ALL),
];

/// Values of `--compression`.
const COMPRESSIONS: [(&str, &str); 3] =
    [("zstd", "Packed with a dictionary"), ("lz4", "Packed with a dictionary, larger"), ("none", "As they come")];

/// Takes one of some values, each with its help.
fn values(of: &[(&'static str, &'static str)]) -> PossibleValuesParser {
    of.iter().map(|(name, help)| PossibleValue::new(*name).help(*help)).collect::<Vec<_>>().into()
}

/// Options in the document: those that change figures.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Options<'a> {
    server: Option<&'a str>,
    compression: &'a str,
    keep_all: bool,
    index: bool,
    state: bool,
    flow: u64,
    seed: u64,
}

fn role(text: &str) -> Result<Role, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Reads the address of a server.
fn url(text: &str) -> Result<String, String> {
    let uri: Option<Uri> = text.parse().ok();
    let is_url = uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    if is_url { Ok(text.to_owned()) } else { Err("expected a URL such as http://127.0.0.1:8001".to_owned()) }
}

/// Reads a time of at least a second.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time of at least 1s, such as 30s or 5m".to_owned();
    let span: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    let time = Duration::try_from(span).map_err(|_| expected())?;
    if time < Duration::from_secs(1) { Err(expected()) } else { Ok(time) }
}

impl BenchArgs {
    /// Returns the shapes asked for, each once, in their order.
    fn shapes(&self) -> Vec<Shape> {
        let is_asked = |name: &str| self.shape.iter().any(|asked| asked == name);
        let asked = SHAPES.iter().filter(|(name, ..)| is_asked(name));
        let mut shapes: Vec<Shape> = asked.flat_map(|(.., shapes)| *shapes).copied().collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes
    }

    fn options(&self) -> Options<'_> {
        Options {
            server: self.server.as_deref(),
            compression: &self.compression,
            keep_all: self.keep_all,
            index: self.index,
            state: self.state.is_some(),
            flow: self.flow,
            seed: self.seed,
        }
    }
}

/// Measures, and says what came out.
pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(role) = &args.role {
        return roles::play(role);
    }
    if cfg!(debug_assertions) {
        note("this is a debug build: its figures say nothing of the engine's speed");
    }
    if let Some(plot) = &args.plot {
        // Sooner than after minutes of measuring.
        fs::write(plot, "").map_err(|error| anyhow::anyhow!("failed to write {}: {error}", plot.display()))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            measured = measuring::measure(args) => measured,
            _ = terminate.recv() => Err(anyhow::anyhow!("stopped before everything was measured")),
            _ = interrupt.recv() => Err(anyhow::anyhow!("stopped before everything was measured")),
        }
    });
    super::terminal::clear();
    let measured = measured?;
    let machine = machine();
    let mut stdout = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut stdout, &report::document(&measured, &machine, &args.options()))?;
        writeln!(stdout)?;
    } else {
        writeln!(stdout, "{}\n\n{}", report::heading(&measured, &machine), report::table(&measured).trim_end())?;
    }
    if let Some(plot) = &args.plot {
        fs::write(plot, chart::svg(&measured, &machine))?;
        note(&format!("the picture is in {}", plot.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(arguments: &[&str]) -> Result<BenchArgs, clap::Error> {
        let cli = Cli::try_parse_from([&["deltabus", "bench"], arguments].concat())?;
        let Command::Bench(args) = cli.command else { panic!("another command") };
        Ok(*args)
    }

    #[test]
    fn shapes_are_measured_once_each_and_all_are_all() {
        let shapes = |text| parse(&["--shape", text]).unwrap().shapes();
        assert_eq!(shapes("events,pods,events"), [Shape::Pods, Shape::Events]);
        assert_eq!(shapes("pods,all"), Shape::ALL);
        assert_eq!(parse(&[]).unwrap().shapes(), [Shape::Pods]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_is_expected() {
        for (arguments, said) in [
            (&["--pods", "0"][..], "1..=9999999"),
            (&["--events", "many"], "invalid digit"),
            (&["--shape", "cats"], "configmaps"),
            (&["--runs", "0"], "1..=99"),
            (&["--compression", "gzip"], "zstd"),
            (&["--for", "30s"], "--server"),
            (&["--server", "http://x", "--for", "soon"], "30s or 5m"),
            (&["--server", "http://x", "--for", "10ms"], "30s or 5m"),
            (&["--server", "http://x", "--shape", "pods"], "cannot be used with"),
            (&["--server", "nowhere"], "http://127.0.0.1:8001"),
            (&["--server", "ftp://x"], "http://127.0.0.1:8001"),
            (&["--resource", "pods"], "--server"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
            assert!(error.to_string().contains(said), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn a_state_directory_may_have_a_place() {
        assert_eq!(parse(&[]).unwrap().state, None);
        assert_eq!(parse(&["--state"]).unwrap().state, Some(None));
        assert_eq!(parse(&["--state", "/disk"]).unwrap().state, Some(Some(PathBuf::from("/disk"))));
    }
}
