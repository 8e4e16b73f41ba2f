//! `deltabus bench`: measures the engine on this machine.

mod engine_process;
mod measuring;

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use crate::{
    bench::{Shape, chart, measure::machine, orders::EngineOptions, report},
    text::parse_duration,
};
use anyhow::{Context as _, bail};
use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use http::Uri;
use serde_json::json;

use super::{report::note, run::StopSignals};

/// Measures the engine on this machine: sync, CPU and memory per object and event, latency, reads.
///
/// Without --server, the command starts its own API server, which generates the same objects in every run. Server and
/// engine are separate processes that are started again for each run. CPU and memory figures are those of the engine alone.
/// The table goes to stdout. docs/benchmarks.md, "Measure this machine", explains each figure. Other load on the machine
/// distorts the figures.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Number of objects of each shape. For configmaps, which are 20 times larger than pods, it is divided by 20.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pods: u64,
    /// Number of changes, sent as fast as the engine accepts them. For configmaps it is divided by 20.
    #[arg(long, value_name = "M", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    events: u64,
    /// Shape of the objects. Shapes separated by commas are measured one after the other.
    #[arg(
        long,
        value_name = "SHAPE",
        value_parser = values(&SHAPES),
        value_delimiter = ',',
        default_value = "pods",
        conflicts_with = "server"
    )]
    shape: Vec<String>,
    /// Compression of the objects in the cache.
    #[arg(long, value_parser = values(&COMPRESSIONS), default_value = "zstd")]
    compression: String,
    /// Keeps managedFields and last-applied, which are removed by default.
    #[arg(long)]
    keep_all: bool,
    /// Keeps two indexes besides the index of namespaces.
    #[arg(long, conflicts_with = "server")]
    index: bool,
    /// Uses a state directory, which is created in DIR and removed at the end. Without DIR it is created in the system's
    /// temporary directory, which may be in memory.
    #[arg(long, value_name = "DIR")]
    #[expect(clippy::option_option, reason = "clap's type of an option with or without a value")]
    state: Option<Option<PathBuf>>,
    /// Rate of changes during the first sync, in changes per second.
    #[arg(long, value_name = "RATE", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000), conflicts_with = "server")]
    flow: u64,
    /// Number of runs of each measurement; with more than one, the table shows median and range.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Seed for the values of the objects and the order of their changes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Measures against this API server, without credentials. `kubectl proxy` provides such a server for any cluster. The
    /// server is only read.
    #[arg(long, value_name = "URL", value_parser = url)]
    server: Option<String>,
    /// Type to watch on --server, spelled as in `match` of a configuration.
    #[arg(long, value_name = "TYPE", default_value = "pods", requires = "server")]
    resource: String,
    /// Time during which events of --server are counted: 30s, 5m.
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = duration, requires = "server")]
    within: Duration,
    /// Prints one JSON document instead of the table.
    #[arg(long)]
    json: bool,
    /// Also draws the figures into an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Makes this process the engine that is measured, with these options. The bench starts itself again with this option.
    #[arg(long, hide = true, value_parser = |text: &str| serde_json::from_str::<EngineOptions>(text))]
    engine: Option<EngineOptions>,
}

const EXAMPLES: &str = "\
Examples:

  deltabus bench                                  20,000 pods, 50,000 changes: under a minute
  deltabus bench --shape all --runs 3 --plot bench.svg
  deltabus bench --pods 1000000 --index --flow 1000
  deltabus bench --server http://127.0.0.1:8001 --resource deployments.apps --for 5m";

/// Values of `--shape`.
const SHAPES: [(&str, &str); 6] = [
    ("pods", "Pods of 9 KB that share most values"),
    ("diverse", "Pods of 9 KB with distinct values"),
    ("custom", "Custom resources of 2 KB with sorted keys"),
    ("configmaps", "Config maps of 200 KB"),
    ("events", "Events of 1 KB"),
    ("all", "All of them"),
];

/// Values of `--compression`.
const COMPRESSIONS: [(&str, &str); 3] =
    [("zstd", "Compressed with a dictionary"), ("lz4", "Like zstd, but larger"), ("none", "Uncompressed")];

/// Returns a parser for the values of an option. Each pair is a value and the help for this value.
fn values(of: &[(&'static str, &'static str)]) -> PossibleValuesParser {
    of.iter().map(|(name, help)| PossibleValue::new(*name).help(*help)).collect::<Vec<_>>().into()
}

/// Parses the URL of a server.
fn url(text: &str) -> Result<String, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let is_url = uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    is_url.then(|| text.to_owned()).ok_or("expected a URL such as http://127.0.0.1:8001")
}

/// Parses a time of at least one second.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let time = parse_duration(text).filter(|time| *time >= Duration::from_secs(1));
    time.ok_or("expected a time of at least 1s, such as 30s or 5m")
}

impl BenchArgs {
    /// Returns the requested shapes, without repetitions.
    fn shapes(&self) -> Vec<Shape> {
        let is_asked = |shape: &Shape| self.shape.iter().any(|asked| asked == "all" || asked == shape.as_ref());
        Shape::ALL.into_iter().filter(is_asked).collect()
    }
}

/// Runs the measurements and prints the results.
pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(options) = &args.engine {
        return engine_process::run(options);
    }
    if cfg!(debug_assertions) {
        note("this is a debug build: its figures do not show the engine's speed");
    }
    if let Some(plot) = &args.plot {
        // If the file cannot be written, the command fails now, not after minutes of measuring.
        fs::write(plot, "").with_context(|| format!("failed to write {}", plot.display()))?;
    }
    let measured = super::block_on(async {
        let mut told = StopSignals::new()?;
        tokio::select! {
            measured = measuring::measure(args) => measured,
            () = told.recv() => bail!("stopped before the measurements were complete"),
        }
    });
    super::terminal::clear();
    let measured = measured?;
    let machine = machine();
    let mut stdout = io::stdout().lock();
    if args.json {
        let BenchArgs { server, compression, keep_all, index, state, flow, seed, .. } = args;
        let options = json!({
            "server": server, "compression": compression, "keepAll": keep_all, "index": index, "state": state.is_some(),
            "flow": flow, "seed": seed,
        });
        writeln!(stdout, "{:#}", report::document(&measured, &machine, &options))?;
    } else {
        writeln!(stdout, "{}\n\n{}", report::heading(&measured, &machine), report::table(&measured).trim_end())?;
    }
    if let Some(plot) = &args.plot {
        fs::write(plot, chart::svg(&measured, &machine))?;
        note(&format!("wrote the chart to {}", plot.display()));
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
    fn duplicate_shapes_are_measured_once() {
        let shapes = |text| parse(&["--shape", text]).unwrap().shapes();
        assert_eq!(shapes("events,pods,events"), [Shape::Pods, Shape::Events]);
        assert_eq!(shapes("pods,all"), Shape::ALL);
        assert_eq!(parse(&[]).unwrap().shapes(), [Shape::Pods]);
    }

    #[test]
    fn invalid_bench_arguments_are_refused_with_reason() {
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
    fn state_flag_takes_optional_directory() {
        assert_eq!(parse(&[]).unwrap().state, None);
        assert_eq!(parse(&["--state"]).unwrap().state, Some(None));
        assert_eq!(parse(&["--state", "/disk"]).unwrap().state, Some(Some(PathBuf::from("/disk"))));
    }
}
