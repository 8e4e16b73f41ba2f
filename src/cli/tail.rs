//! `deltabus tail`: what happens, as it happens.

mod diff;
mod explain;
mod inside;
mod remote;
mod show;
mod sse;

use std::{
    io::{self, Write as _},
    process, thread,
    time::Duration,
};

use actix::System;
use clap::Args;
use deltabus::{
    config::Config,
    discovery::{self, Pattern},
};
use tokio::{runtime, time::sleep};

use self::{
    explain::Explainer,
    show::{Printer, TailOutput},
};
use super::{
    BadUsage, KubeArgs,
    engine_client::{EngineArgs, EngineClient},
    run::StopSignals,
};

const EXAMPLES: &str = "\
Examples:

  deltabus tail                                 everything that changes, in all namespaces
  deltabus tail pods deploy -n shop             of two types, in one namespace
  deltabus tail pods -l app=web --initial       what exists first, then what changes
  deltabus tail pods --type deleted             what goes away
  deltabus tail pods --when 'object.status.phase == \"Failed\"'
                                                what an expression in CEL is true of
  deltabus tail --since 10m                     and what happened before, as far as it is kept
  deltabus tail deploy -o diff                  what each update changed
  deltabus tail deploy --explain -c config.toml which handlers are sent it, and why others are not
  deltabus tail pods -o json | jq .data.object  as CloudEvents, a line each
  deltabus tail pods --kubeconfig ~/.kube/config
                                                without an engine at work: one inside watches";

/// How long it may take to end by itself once it is told to.
const GRACE: Duration = Duration::from_secs(2);

/// Shows what happens: the stream of a running engine, or of one inside where none listens.
///
/// With a running engine every type that it watches can be named, as kubectl spells it, or an entry of [resources]. Where
/// none listens, and -c, --kubeconfig or --context is given, an engine inside watches what the configuration says, or the types that
/// are named; it has no handlers, no state and serves nothing.
///
/// A stream that breaks is taken up where it was. What is missing is said.
///
/// Ends with 0 on SIGTERM, on ctrl-c, and when nobody reads stdout any more; with 2 where a type, an event, an expression, a
/// selector or a place is none, and with 1 where there is no engine.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TailArgs {
    /// Types, or entries of [resources]; all without any.
    #[arg(value_name = "TYPE")]
    types: Vec<String>,
    /// The namespaces; all without any. Cluster-scoped objects are in none.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// All namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Label selector, for instance 'app in (web,api),!legacy'. An update is shown where the object matches before or after.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only changes for which this CEL expression is true, of `object`, `old`, `type`, `changes`, `changed_by` and `cluster`, as
    /// `when` of a handler: 'object.spec.replicas > 10'.
    #[arg(long, value_name = "CEL")]
    when: Option<String>,
    /// Only these events: added, updated, deleted, removed, synced.
    #[arg(long = "type", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<String>,
    /// From where on: a place (JOURNAL.SEQUENCE, as `id:` has it, or SEQUENCE), a duration such as 10m, or a time.
    #[arg(long, value_name = "PLACE|DURATION|TIME", conflicts_with = "initial")]
    since: Option<String>,
    /// What exists first.
    #[arg(long)]
    initial: bool,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: TailOutput,
    /// Says under each event which handlers of the configuration are sent it, and why others are not.
    #[arg(long, requires = "files")]
    explain: bool,
    #[command(flatten)]
    kube: KubeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Shows what was asked for until SIGTERM or ctrl-c, or until nobody reads stdout any more.
pub(crate) fn tail(args: &TailArgs) -> anyhow::Result<()> {
    if args.explain && args.output == TailOutput::Json {
        return Err(BadUsage::of("--explain is for people: expected -o pretty or -o diff").into());
    }
    let config = args.engine.load()?;
    let explainer = config.clone().filter(|_| args.explain).map(Explainer::new);
    end_in_any_case()?;
    let mut sink = Sink { printer: Printer::new(args.output), explainer, out: Vec::new() };
    System::new().block_on(async {
        let mut told = StopSignals::new()?; // before anybody can see that it runs
        let can_watch = !args.engine.is_named() && (config.is_some() || args.kube.is_given());
        let engine = args.engine.client(config.as_ref());
        match engine {
            Ok(engine) => {
                let followed = tokio::select! {
                    followed = follow(&engine, args, &mut sink) => followed?,
                    () = told.recv() => true,
                };
                if followed {
                    return Ok(());
                }
                if !can_watch {
                    let error = engine.absent();
                    return Err(if args.engine.is_named() {
                        error
                    } else {
                        anyhow::anyhow!("{error}; or watch a cluster without one: --kubeconfig FILE, or -c FILE")
                    });
                }
            }
            // A configuration that serves nothing is good enough for an engine inside.
            Err(error) if !can_watch || listens(config.as_ref()) => return Err(error),
            Err(_) => {}
        }
        let config = inside::configuration(config, &args.kube, &args.types)?;
        inside::follow(config, &args.types, &args.query(&[]), &mut sink, &mut told).await
    })
}

/// Ends the process some time after it is told to, from a thread of its own: one that writes to a full pipe hears of nothing,
/// and whoever has that pipe may never read again.
fn end_in_any_case() -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut told = runtime.block_on(async { StopSignals::new() })?;
    let wait = move || {
        runtime.block_on(async {
            told.recv().await;
            sleep(GRACE).await;
        });
        process::exit(0);
    };
    thread::Builder::new().name("stop".to_owned()).spawn(wait).map(drop)
}

/// Shows what a running engine tells; returns false where none runs.
async fn follow(engine: &EngineClient, args: &TailArgs, sink: &mut Sink) -> anyhow::Result<bool> {
    if !engine.is_there().await? {
        return Ok(false);
    }
    let types = resolve(engine, &args.types).await?;
    if let Some(explainer) = &mut sink.explainer {
        explainer.set_catalog(discovery::discover(&engine.access().client()?).await?);
    }
    let path = format!("/v1/events?{}", args.query(&types));
    remote::follow(engine, &path, sink).await.map(|()| true)
}

impl TailArgs {
    fn query(&self, types: &[String]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let lists = [("resource", types), ("namespace", &self.namespace), ("type", &self.events)];
        for (name, values) in lists {
            query.extend_pairs(values.iter().map(|value| (name, value)));
        }
        query.extend_pairs(self.selector.iter().map(|selector| ("labelSelector", selector)));
        query.extend_pairs(self.when.iter().map(|when| ("when", when)));
        query.extend_pairs(self.since.iter().map(|since| ("since", since)));
        if self.initial {
            query.append_pair("initial", "true");
        }
        query.finish()
    }
}

/// Returns whether an engine with this configuration can be asked.
fn listens(config: Option<&Config>) -> bool {
    config.and_then(|config| config.http.listen).is_some_and(|address| address.port() != 0)
}

/// Returns types as the engine spells them; what is none may be the name of an entry, which the engine knows.
async fn resolve(engine: &EngineClient, types: &[String]) -> anyhow::Result<Vec<String>> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let catalog = discovery::discover(&engine.access().client()?).await?;
    let name = |text: &String| {
        let pattern = Pattern::parse(text).ok().filter(|pattern| !pattern.is_wildcard());
        let served = pattern.and_then(|pattern| catalog.find_readable(&pattern).ok());
        served.map_or_else(|| text.clone(), |served| served.resource.qualified_name())
    };
    Ok(types.iter().map(name).collect())
}

/// Where events are printed: stdout, a write for all that came at once.
struct Sink {
    printer: Printer,
    explainer: Option<Explainer>,
    out: Vec<u8>,
}

impl Sink {
    /// Prints messages.
    ///
    /// # Errors
    /// When stdout cannot be written, or the engine has ended the stream for good.
    fn take(&mut self, messages: &[sse::Message]) -> anyhow::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        self.out.clear();
        for message in messages {
            self.printer.print(&mut self.out, &message.word, &message.data);
            if let Some(explainer) = &mut self.explainer {
                explainer.explain(&mut self.out, &message.word, &message.data)?;
            }
        }
        let mut stdout = super::terminal::AboveTheBars(io::stdout);
        stdout.write_all(&self.out)?;
        stdout.flush()?;
        if messages.iter().any(|message| message.word == "error") {
            anyhow::bail!("the engine has ended the stream, see above");
        }
        Ok(())
    }
}
