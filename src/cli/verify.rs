//! `deltabus verify`: compares the cache of a running engine with the API server.

mod compare;
mod unit;

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    time::Duration,
};

use crate::{
    list_watch::kube::{ClusterAccess, raw::RawClient},
    printable::printable,
    text::parse_duration,
};
use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use self::{
    compare::{Different, Outcome},
    unit::{Parties, Resources, Unit, Verdict},
};
use super::{
    KubeArgs,
    engine_client::{EngineArgs, is_loopback},
    report::{self, TableOutput},
};

/// Maximum number of units that are verified at the same time.
const AT_ONCE: usize = 8;

/// Maximum number of differences of one unit that the table lists.
const NAMED_MAX: usize = 20;

const EXAMPLES: &str = "\
Examples:

  deltabus verify                                         verify the engine on this machine
  deltabus verify -c config.toml                          verify the engine of this configuration
  deltabus verify --engine http://127.0.0.1:9090 --wait 1m
  deltabus verify -o json | jq '.units[] | select(.verdict != \"equal\")'

Exit codes: 0 all types are equal; 1 a type differs or could not be verified; 2 bad usage or bad configuration.";

/// Verifies that the cache of a running engine equals the API server.
///
/// For every type that the engine watches, the command waits until the cache has caught up. Then it lists the metadata of all
/// objects, from the cache and from the API server, at the version of the cache. Each object must have the same uid and
/// resourceVersion on both sides. A difference is `missing` (only the server has the object), `extra` (only the cache has it)
/// or `stale` (their versions differ). A type is not verified if its lists cannot be compared, for example because this
/// user may not list it.
///
/// The command asks the cluster of --kubeconfig, --context or -c; the default is the current cluster of kubectl. There is
/// one exception: if the engine and its API server both run on this machine, and that server needs no credentials, the
/// command asks that server. This is the case for `deltabus demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    kube: KubeArgs,
    /// Time limit for a type to catch up.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    wait: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: TableOutput,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("expected a duration like 10s or 1m")
}

/// Verifies all types and prints the verdicts. Fails unless the cache equals the server for every type.
pub(crate) async fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let config = args.engine.load()?;
    let is_named = config.is_some() || args.kube.is_given();
    let mut kube = config.as_ref().map(|config| config.kube.clone()).unwrap_or_default();
    args.kube.apply(&mut kube);
    let engine = args.engine.client(config.as_ref())?;
    let url = engine.url.clone();
    let Resources { server, resources: units } = engine.get_json("/v1/resources").await?;
    let is_open_here = |server: &&str| server.starts_with("http://") && is_loopback(server) && is_loopback(&url);
    let access = match server.as_deref().filter(is_open_here).filter(|_| !is_named) {
        Some(server) => ClusterAccess::without_credentials(server, "engine"),
        None => ClusterAccess::load(&kube.access()),
    };
    let access = access.context("cannot reach the API server")?;
    access.log_in().await.context("cannot reach the API server")?;
    let parties = Parties { engine, server: RawClient::new(&access), patience: args.wait };
    let (watched, waiting): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| unit.id.is_some());
    for unit in &waiting {
        report::note(&format!("[resources.{}] waits for {}: not verified", unit.name, unit.resource().plural));
    }
    let verdicts = stream::iter(watched).map(async |unit| {
        let removed = format!("[resources.{}] no longer watches {}: not verified", unit.name, unit.resource());
        let verified = unit.verify(&parties).await;
        if verified.is_none() {
            report::note(&removed);
        }
        verified
    });
    let verdicts = verdicts.buffered(AT_ONCE).filter_map(std::future::ready).collect::<Vec<_>>().await;
    match args.output {
        TableOutput::Table => print_table(&verdicts)?,
        TableOutput::Json => report::print_json(&document(&url, &access.server_url(), &verdicts))?,
    }
    conclude(&verdicts)
}

/// Returns the word for a verdict: `equal`, `different` or `unproven`.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Ok((_, outcome)) if outcome.different == 0 => "equal",
        Ok(_) => "different",
        Err(_) => "unproven",
    }
}

/// Fails if any type is different or could not be verified. Otherwise prints how many types are equal.
fn conclude(verdicts: &[(Unit, Verdict)]) -> anyhow::Result<()> {
    // Types are counted by name, so a type in several namespaces counts once.
    let types = |is_meant: fn(&'static str) -> bool| {
        let meant = verdicts.iter().filter(|(_, verdict)| is_meant(word(verdict)));
        let names: BTreeSet<_> = meant.map(|(unit, _)| unit.resource().qualified_name()).collect();
        (!names.is_empty()).then(|| report::counted(names.len(), "type"))
    };
    let Some(all) = types(|_| true) else { bail!("nothing was verified: the engine watches no type yet") };
    if let Some(different) = types(|word| word == "different") {
        bail!("the cache differs from the server in {different}");
    }
    if let Some(unproven) = types(|word| word == "unproven") {
        bail!("could not verify {unproven}");
    }
    let objects: usize = verdicts.iter().flat_map(|(_, verdict)| verdict).map(|(_, outcome)| outcome.objects).sum();
    report::note(&format!("the cache equals the server: {all}, {objects} objects"));
    Ok(())
}

fn print_table(verdicts: &[(Unit, Verdict)]) -> io::Result<()> {
    let mut rows = vec![["TYPE", "NAMESPACE", "VERSION", "OBJECTS", "VERDICT"].map(str::to_owned)];
    for (unit, verdict) in verdicts {
        let namespace = unit.namespace.clone().unwrap_or_else(|| "*".to_owned());
        let resource = unit.resource().qualified_name();
        rows.push(match verdict {
            Ok((version, Outcome { objects, different, .. })) => {
                let word = if *different == 0 { "equal".to_owned() } else { format!("different: {different}") };
                [resource, namespace, version.to_string(), objects.to_string(), word]
            }
            Err(why) => [resource, namespace, "-".to_owned(), "-".to_owned(), format!("not verified: {why:#}")],
        });
    }
    let mut out = io::stdout().lock();
    out.write_all(report::table(&rows).as_bytes())?;
    for (unit, verdict) in verdicts {
        let Ok((_, outcome)) = verdict else { continue };
        for different in outcome.named.iter().take(NAMED_MAX) {
            writeln!(out, "{} {}: {}", unit.resource(), printable(&different.key), sentence(different))?;
        }
        let more = outcome.different.saturating_sub(NAMED_MAX);
        if more > 0 {
            writeln!(out, "{}: {more} more, see -o json", unit.resource())?;
        }
    }
    Ok(())
}

fn sentence(different: &Different) -> String {
    let state = |state: &Option<compare::State>| match state {
        Some(state) => format!("version {} of uid {}", state.resource_version, state.uid),
        None => "nothing".to_owned(),
    };
    let Different { kind, cache, server, .. } = different;
    format!("{kind}: the cache has {}, the server has {}", state(cache), state(server))
}

fn document(engine: &str, server: &str, verdicts: &[(Unit, Verdict)]) -> Value {
    let unit = |(unit, verdict): &(Unit, Verdict)| {
        let mut document = json!({
            "entry": unit.name,
            "type": unit.resource().qualified_name(),
            "apiVersion": unit.resource().api_version(),
            "namespace": unit.namespace,
            "unit": unit.id,
            "verdict": word(verdict),
        });
        match verdict {
            Ok((version, outcome)) => {
                document["resourceVersion"] = version.as_str().into();
                document["objects"] = outcome.objects.into();
                document["different"] = outcome.different.into();
                document["differences"] = json!(outcome.named);
            }
            Err(why) => document["reason"] = format!("{why:#}").into(),
        }
        document
    };
    let has = |wanted: &&str| verdicts.iter().any(|(_, verdict)| word(verdict) == *wanted);
    let verdict = ["different", "unproven", "equal"].into_iter().find(has).unwrap_or("unproven");
    let units: Vec<Value> = verdicts.iter().map(unit).collect();
    json!({"engine": engine, "server": server, "verdict": verdict, "units": units})
}
