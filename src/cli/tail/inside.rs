//! Engine inside this process, for users without a running engine.

use std::time::Duration;

use crate::{
    config::Config,
    discovery::Pattern,
    engine::{Engine, RunningEngine},
    subscribe::{cursor::Since, frame::StreamFormat, hub::SubscribeError, query::SubscriberQuery},
};
use anyhow::bail;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{Sink, sse::Reader};
use crate::cli::{BadUsage, KubeArgs, report, run::StopSignals, terminal};

/// Interval between two checks whether the types of the API server are known.
const LOOK: Duration = Duration::from_millis(20);

/// Default selection: all types except two whose changes come faster than a user can read.
const EVERYTHING: &str = "match = [\"*\"]\nexclude = [\"events\", \"leases.coordination.k8s.io\"]";

/// Returns the given configuration without its handlers, its state and its HTTP server. If `given` is `None`, returns a
/// configuration that watches `types`, or [`EVERYTHING`] if `types` is empty.
pub(super) fn configuration(given: Option<Config>, kube: &KubeArgs, types: &[String]) -> anyhow::Result<Config> {
    let selection = if types.is_empty() { EVERYTHING.to_owned() } else { format!("match = {types:?}") };
    let mut config = given.map_or_else(|| Config::from_toml_str(&format!("[resources.all]\n{selection}\n")), Ok)?;
    config.handlers.clear();
    config.state.dir = None; // the directory belongs to another engine
    (config.http.listen, config.http.probe_listen) = (None, None);
    kube.apply(&mut config.kube);
    Ok(config)
}

/// Prints changes until the reader of stdout closes it, or until a signal.
pub(super) async fn follow(
    config: Config,
    types: &[String],
    query: &str,
    sink: &mut Sink,
    told: &mut StopSignals,
) -> anyhow::Result<()> {
    terminal::start(&config.log);
    let engine = Engine::builder().config(config).noting_who_changed().start().await?;
    actix_rt::spawn(terminal::show_initial_syncs(engine.registry().clone()));
    let outcome = tokio::select! {
        outcome = listen(&engine, types, query, sink) => outcome,
        error = engine.failed() => Err(error.into()),
        () = told.recv() => Ok(()),
    };
    engine.stop().await;
    terminal::clear();
    outcome
}

async fn listen(engine: &RunningEngine, types: &[String], query: &str, sink: &mut Sink) -> anyhow::Result<()> {
    let mut query = SubscriberQuery::parse(query, None, Timestamp::now()).map_err(|error| BadUsage(error.into()))?;
    if std::mem::take(&mut query.since) != Since::Now {
        report::note(
            "--since has no effect: no engine answers, and the engine inside this command has no past changes; a running engine \
             with `[state] dir` keeps them",
        );
    }
    if query.filter.initial {
        // Existing objects are shown when all of them are known, not as they arrive.
        engine.wait_for_sync().await;
    }
    while (!types.is_empty() || sink.explainer.is_some()) && !engine.registry().is_discovered() {
        sleep(LOOK).await;
    }
    if let Some(explainer) = &mut sink.explainer {
        explainer.catalog = (*engine.registry().catalog()).clone();
    }
    for name in types {
        query.filter.resources.push(resolve(engine, name).map_err(BadUsage)?);
    }
    let subscribed = engine.subscribe(query, StreamFormat::Sse).await;
    let mut stream = subscribed.map_err(|error| match error {
        SubscribeError::When(_) => BadUsage(error.into()).into(),
        _ => anyhow::Error::from(error),
    })?;
    let mut reader = Reader::default();
    while let Some(piece) = stream.next().await {
        sink.take(&reader.push(&piece))?;
    }
    Ok(())
}

/// Returns the name of an entry unchanged. Returns the name of a type in full, with the group.
fn resolve(engine: &RunningEngine, name: &str) -> anyhow::Result<String> {
    if engine.config().resources.contains_key(name) {
        return Ok(name.to_owned());
    }
    match engine.registry().catalog().find_readable(&Pattern::parse(name)?) {
        Ok(served) => Ok(served.resource.qualified_name()),
        Err(near) if near.is_empty() => bail!("the API server has no type {name:?}"),
        Err(near) => bail!("the API server has no type {name:?}; did you mean {}?", near.join(" or ")),
    }
}
