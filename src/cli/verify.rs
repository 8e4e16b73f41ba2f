//! `deltabus verify`: proves that a running engine misses nothing, by the API server's own word.

mod compare;
mod unit;

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use deltabus::{list_watch::kube::ClusterAccess, list_watch::kube::raw::RawClient};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use self::{
    compare::{Difference, Different, Outcome},
    unit::{Parties, Resources, Unit, Verdict},
};
use super::{
    KubeArgs,
    engine_client::{EngineArgs, is_loopback},
    report,
};

/// Units that are verified at a time.
const AT_ONCE: usize = 8;

/// Differences of one unit that are named in the table.
const NAMED_MAX: usize = 20;

const EXAMPLES: &str = "\
For every type, the API server lists the metadata of all objects as of the version that the cache has; uid and
resourceVersion of each must be the cache's. Needs the right to list what the engine watches.

Examples:

  deltabus verify                                         the engine on this machine, kubectl's cluster or the demo's
  deltabus verify -c config.toml                          both as this configuration has them
  deltabus verify --engine http://127.0.0.1:9090 --wait 1m
  deltabus verify -o json | jq '.units[] | select(.verdict != \"equal\")'

Exit codes: 0 equal; 1 different, or not provable, and stdout says which; 2 bad usage or bad configuration.";

/// Proves that a running engine misses nothing.
///
/// The cluster is that of --kubeconfig, --context or -c. Without them it is kubectl's, but for an engine on this machine whose
/// API server is on this machine too and wants no credentials, as that of `deltabus demo`: there, it is the engine's.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    kube: KubeArgs,
    /// How long a type that is behind may take to catch up.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    wait: Duration,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// How the verdicts are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line a type, and one a difference.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = |_| "expected a duration like 10s or 1m".to_owned();
    text.parse::<jiff::SignedDuration>()
        .map_err(expected)?
        .try_into()
        .map_err(|_| "expected no negative time".to_owned())
}

/// Verifies, prints what came of it, and fails unless all is equal.
pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let config = args.engine.load()?;
    let is_named = config.is_some() || args.kube.is_given();
    let mut kube = config.as_ref().map(|config| config.kube.clone()).unwrap_or_default();
    args.kube.apply(&mut kube);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (url, server, verdicts) = runtime.block_on(async {
        let engine = args.engine.client(config.as_ref())?;
        let url = engine.url().to_owned();
        let Resources { server, resources: units } = unit::resources(&engine).await?;
        let is_open_here = |server: &&str| server.starts_with("http://") && is_loopback(server) && is_loopback(&url);
        let access = match server.as_deref().filter(is_open_here).filter(|_| !is_named) {
            Some(server) => ClusterAccess::without_credentials(server, "engine"),
            None => ClusterAccess::load(&kube.access()),
        };
        let access = access.context("the API server cannot be asked")?;
        let parties = Parties { engine, server: RawClient::new(&access)?, patience: args.wait };
        let (watched, waiting): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| unit.id.is_some());
        for unit in &waiting {
            report::note(&format!("[resources.{}] waits for {}: not verified", unit.name, unit.resource().plural));
        }
        let verdicts = stream::iter(watched).map(async |unit| {
            let verdict = unit.verify(&parties).await;
            (unit, verdict)
        });
        anyhow::Ok((url, access.server_url(), verdicts.buffered(AT_ONCE).collect::<Vec<_>>().await))
    })?;
    match args.output {
        Output::Table => print_table(&verdicts)?,
        Output::Json => {
            let document = document(&url, &server, &verdicts);
            writeln!(io::stdout(), "{document:#}")?;
        }
    }
    conclude(&verdicts)
}

/// Says what all verdicts come to.
fn conclude(verdicts: &[(Unit, Verdict)]) -> anyhow::Result<()> {
    if verdicts.is_empty() {
        bail!("nothing is proven: the engine watches no type yet");
    }
    // By name: a type that is watched in several namespaces is one.
    let (mut all, mut different, mut unproven) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut objects = 0;
    for (unit, verdict) in verdicts {
        let name = unit.resource().qualified_name();
        match verdict {
            Ok((_, outcome)) => {
                objects += outcome.objects;
                different.extend((outcome.different > 0).then(|| name.clone()));
            }
            Err(_) => drop(unproven.insert(name.clone())),
        }
        all.insert(name);
    }
    let types = |names: &BTreeSet<String>| report::counted(names.len(), "type");
    if !different.is_empty() {
        bail!("the cache differs from the server in {}", types(&different));
    }
    if !unproven.is_empty() {
        bail!("nothing is proven of {}", types(&unproven));
    }
    report::note(&format!("the cache equals the server: {}, {objects} objects", types(&all)));
    Ok(())
}

fn print_table(verdicts: &[(Unit, Verdict)]) -> io::Result<()> {
    let mut rows = vec![["TYPE", "NAMESPACE", "VERSION", "OBJECTS", "VERDICT"].map(str::to_owned)];
    for (unit, verdict) in verdicts {
        let namespace = unit.namespace.clone().unwrap_or_else(|| "*".to_owned());
        let resource = unit.resource().qualified_name();
        rows.push(match verdict {
            Ok((version, outcome)) => {
                [resource, namespace, version.to_string(), outcome.objects.to_string(), word(outcome)]
            }
            Err(why) => [resource, namespace, "-".to_owned(), "-".to_owned(), format!("not provable: {why:#}")],
        });
    }
    let mut out = io::stdout().lock();
    out.write_all(report::table(&rows).as_bytes())?;
    for (unit, verdict) in verdicts {
        let Ok((_, outcome)) = verdict else { continue };
        for different in outcome.named.iter().take(NAMED_MAX) {
            writeln!(out, "{} {}: {}", unit.resource(), different.key, sentence(different))?;
        }
        let more = outcome.different.saturating_sub(NAMED_MAX as u64);
        if more > 0 {
            writeln!(out, "{}: {more} more, see -o json", unit.resource())?;
        }
    }
    Ok(())
}

fn word(outcome: &Outcome) -> String {
    match outcome.different {
        0 => "equal".to_owned(),
        count => format!("different: {count}"),
    }
}

fn sentence(different: &Different) -> String {
    let state = |state: &Option<compare::State>| match state {
        Some(state) => format!("version {} of uid {}", state.resource_version, state.uid),
        None => "nothing".to_owned(),
    };
    let word = match different.kind {
        Difference::Missing => "missing",
        Difference::Extra => "extra",
        Difference::Stale => "stale",
    };
    format!("{word}, the cache has {}, the server {}", state(&different.cache), state(&different.server))
}

fn document(engine: &str, server: &str, verdicts: &[(Unit, Verdict)]) -> Value {
    let unit = |(unit, verdict): &(Unit, Verdict)| {
        let mut document = json!({
            "entry": unit.name,
            "type": unit.resource().qualified_name(),
            "apiVersion": unit.resource().api_version(),
            "namespace": unit.namespace,
            "unit": unit.id,
        });
        match verdict {
            Ok((version, outcome)) => {
                document["verdict"] = if outcome.different == 0 { "equal" } else { "different" }.into();
                document["resourceVersion"] = version.as_str().into();
                document["objects"] = outcome.objects.into();
                document["different"] = outcome.different.into();
                document["differences"] = json!(outcome.named);
            }
            Err(why) => {
                document["verdict"] = "unproven".into();
                document["reason"] = format!("{why:#}").into();
            }
        }
        document
    };
    let units: Vec<Value> = verdicts.iter().map(unit).collect();
    let has = |verdict: &str| units.iter().any(|unit| unit["verdict"] == verdict);
    let verdict = if has("different") {
        "different"
    } else if has("unproven") || units.is_empty() {
        "unproven"
    } else {
        "equal"
    };
    json!({"engine": engine, "server": server, "verdict": verdict, "units": units})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_mins(1)));
        assert!(parse_duration("10").is_err() && parse_duration("-1s").is_err() && parse_duration("").is_err());
    }
}
