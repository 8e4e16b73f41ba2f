//! Scenarios that need several processes: `cargo bench --bench scenarios -- outage --short`. See benches/README.md.

#[path = "../../tests/support/cluster.rs"]
mod cluster;
mod harness;
#[cfg(feature = "kafka")]
#[expect(dead_code, reason = "tests use the rest")]
#[path = "../../tests/support/kafka.rs"]
mod kafka;
#[expect(dead_code, reason = "tests use the rest")]
#[path = "../../tests/support/nats.rs"]
mod nats;
mod options;
mod outage;
mod peers;
mod restart;
mod sinks;
mod subscribers;
mod types;
mod world;

use clap::{CommandFactory, Parser, Subcommand};

use self::harness::Outcome;

#[derive(Debug, Parser)]
#[command(name = "scenarios", about = "Measures the engine in processes of its own")]
struct Cli {
    #[command(subcommand)]
    scenario: Option<Scenario>,
    /// Added by cargo.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// CPU and memory of the engine by its options, compared with clients that only read
    Options(options::Args),
    /// deltabus compared with client-go, controller-runtime and kube-rs; needs Go
    Peers(peers::Args),
    /// Start with a state directory, a backlog from disk, latency of single changes
    Restart(restart::Args),
    /// Many watched types: sync, connections, memory, CPU when idle
    Types(types::Args),
    /// A webhook that stalls, answers 500, then 429, and recovers
    Outage(outage::Args),
    /// Thousands of subscribers of /v1/events
    Subscribers(subscribers::Args),
    /// Handlers alone: NATS, webhook, and Kafka with the feature
    Sinks(sinks::Args),
    /// Another process of a scenario
    #[command(hide = true)]
    Role {
        name: String,
        #[arg(allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> Outcome<()> {
    match Cli::parse().scenario {
        Some(Scenario::Options(args)) => options::run(&args),
        Some(Scenario::Peers(args)) => peers::run(&args),
        Some(Scenario::Restart(args)) => restart::run(&args),
        Some(Scenario::Types(args)) => types::run(&args),
        Some(Scenario::Outage(args)) => outage::run(&args),
        Some(Scenario::Subscribers(args)) => subscribers::run(&args),
        Some(Scenario::Sinks(args)) => sinks::run(&args),
        Some(Scenario::Role { name, args }) => play(&name, &args),
        None => Ok(Cli::command().print_long_help()?),
    }
}

fn play(role: &str, args: &[String]) -> Outcome<()> {
    match (role, args) {
        ("restart", [url, pods, dir, how]) => restart::engine(url, pods.parse()?, dir, how == "first"),
        ("types", [url, types, objects, rest]) => types::engine(url, types.parse()?, objects.parse()?, rest.parse()?),
        ("outage", [url, hook, other, dir]) => outage::engine(url, hook, other, dir),
        ("subscribers", [url]) => subscribers::engine(url),
        (role, [url, pods, events, config]) => options::play(role, url, pods.parse()?, events.parse()?, config),
        (peer, [url, authority, strip, pods, events]) => {
            peers::play(peer, url, authority, strip.parse()?, pods.parse()?, events.parse()?)
        }
        _ => Err(format!("unexpected role {role:?} {args:?}").into()),
    }
}
