//! `deltabus tail`: shows changes as they happen.

mod diff;
mod explain;
mod fields;
mod inside;
mod remote;
mod show;
mod sse;

use std::{
    io::{self, Write as _},
    process, thread,
    time::Duration,
};

use crate::discovery::{self, Catalog, Pattern};
use actix::System;
use clap::{Args, builder::NonEmptyStringValueParser};
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

  deltabus tail                                 all changes, in all namespaces
  deltabus tail pods,deploy -n shop             changes of two types, in one namespace
  deltabus tail pods -l app=web --initial       existing objects, then changes
  deltabus tail pods --type deleted             deletions only
  deltabus tail pods --when 'object.status.phase == \"Failed\"'
                                                changes for which a CEL expression is true
  deltabus tail --since 1d                      also past changes: the engine needs [state] dir
  deltabus tail deploy -o diff                  everything that each update changed
  deltabus tail deploy --explain -c config.toml which handlers get each event, and why others do not
  deltabus tail pods -o json | jq .data.object  as CloudEvents, one per line
  deltabus tail pods --kubeconfig ~/.kube/config
                                                without a running engine: start one inside";

/// Time limit for an orderly end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// Shows changes as they happen, from a running engine or from an engine inside this command.
///
/// With a running engine, TYPE is any type that it watches, spelled as for kubectl, or an entry of [resources]. If no engine
/// listens, and -c, --kubeconfig or --context is given, the command runs an engine inside. This engine watches the types of
/// the configuration, or the named types. It has no handlers, no state and no HTTP server.
///
/// If the stream breaks, the command resumes it at the same position. It reports missing events.
///
/// Exit codes: 0 on SIGTERM, on ctrl-c and when the reader of stdout closes it; 1 if there is no engine; 2 if a type, an
/// event, an expression, a selector or a position is invalid.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TailArgs {
    /// Types, or entries of [resources], separated by commas or blanks; all if none is given.
    #[arg(value_name = "TYPE", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    types: Vec<String>,
    /// Namespaces; all if none is given. Cluster-scoped objects are in no namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Shows all namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Label selector, for instance 'app in (web,api),!legacy'. An update is shown if the object matches before or after it.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Shows only changes for which this CEL expression is true. Like `when` of a handler, it uses `object`, `old`, `type`,
    /// `changes`, `changed_by` and `cluster`: 'object.spec.replicas > 10'.
    #[arg(long, value_name = "CEL")]
    when: Option<String>,
    /// Shows only these events: added, updated, deleted, removed, synced.
    #[arg(long = "type", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<String>,
    /// Start of the stream: a duration such as 10m or 1d, a time, or a position. A position is SEQUENCE, or JOURNAL.SEQUENCE as
    /// in the SSE field `id:` of /v1/events. Past changes are kept in `[state] dir` of the engine; without it, only the newest.
    #[arg(long, value_name = "POSITION|DURATION|TIME", conflicts_with = "initial")]
    since: Option<String>,
    /// Shows existing objects first.
    #[arg(long)]
    initial: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: TailOutput,
    /// Shows under each event which handlers of the configuration get it, and why others do not.
    #[arg(long, requires = "files")]
    explain: bool,
    #[command(flatten)]
    kube: KubeArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Shows changes until SIGTERM or ctrl-c, or until the reader of stdout closes it.
pub(crate) fn tail(args: &TailArgs) -> anyhow::Result<()> {
    if args.explain && args.output == TailOutput::Json {
        return Err(BadUsage::of("--explain has no JSON output: use -o pretty or -o diff").into());
    }
    let config = args.engine.load()?;
    let explainer = config.clone().filter(|_| args.explain).map(Explainer::new);
    end_in_any_case()?;
    let mut sink = Sink { printer: Printer::new(args.output), explainer, out: Vec::new() };
    System::new().block_on(async {
        let mut told = StopSignals::new()?; // before others can see that the command runs
        let can_watch = !args.engine.is_named() && (config.is_some() || args.kube.is_given());
        let address = config.as_ref().and_then(|config| config.http.listen);
        match args.engine.client(config.as_ref()) {
            Ok(engine) => {
                let absent = tokio::select! {
                    absent = follow(&engine, args, &mut sink) => absent?,
                    () = told.recv() => None,
                };
                let Some(error) = absent else { return Ok(()) };
                if !can_watch {
                    return Err(if args.engine.is_named() && config.is_some() {
                        anyhow::anyhow!("{error}; or omit --engine: -c FILE alone watches without a running engine")
                    } else if args.engine.is_named() {
                        error
                    } else {
                        anyhow::anyhow!(
                            "{error}; or watch a cluster without an engine: use --kubeconfig FILE or -c FILE"
                        )
                    });
                }
            }
            Err(_) if can_watch && address.is_none_or(|address| address.port() == 0) => {} // no engine to ask
            Err(error) => return Err(error),
        }
        let config = inside::configuration(config, &args.kube, &args.types)?;
        inside::follow(config, &args.types, &args.query(&[]), &mut sink, &mut told).await
    })
}

/// Starts a thread that ends the process `GRACE` after a signal. Without this thread, a command that waits for space in a full pipe
/// might never end.
pub(super) fn end_in_any_case() -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut told = {
        let _entered = runtime.enter(); // `block_on` is not allowed within another runtime
        StopSignals::new()?
    };
    let wait = move || {
        runtime.block_on(async {
            told.recv().await;
            sleep(GRACE).await;
        });
        process::exit(0);
    };
    thread::Builder::new().name("stop".to_owned()).spawn(wait).map(drop)
}

/// Shows the stream of a running engine. If no engine runs, returns `Ok(Some(error))`: an error with advice for the user.
async fn follow(engine: &EngineClient, args: &TailArgs, sink: &mut Sink) -> anyhow::Result<Option<anyhow::Error>> {
    if let Some(absent) = engine.absent().await? {
        return Ok(Some(absent));
    }
    let needs_catalog = !args.types.is_empty() || args.when.is_some() || sink.explainer.is_some();
    let catalog = if needs_catalog { discovery::discover(&engine.access.client()).await? } else { Catalog::default() };
    let types: Vec<String> = args.types.iter().map(|text| qualified(&catalog, text)).collect();
    if let Some(when) = &args.when {
        fields::warn(engine, &catalog, &types, when).await;
    }
    if let Some(explainer) = &mut sink.explainer {
        explainer.catalog = catalog;
    }
    let path = format!("/v1/events?{}", args.query(&types));
    remote::follow(engine, &path, sink).await.map(|()| None)
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

/// Returns the engine's name of the type that `text` names. If `text` names no type, returns `text` unchanged, because it may be
/// the name of an entry.
fn qualified(catalog: &Catalog, text: &str) -> String {
    let pattern = Pattern::parse(text).ok().filter(|pattern| !pattern.is_wildcard());
    let served = pattern.and_then(|pattern| catalog.find_readable(&pattern).ok());
    served.map_or_else(|| text.to_owned(), |served| served.resource.qualified_name())
}

/// Output of events: stdout, with one write for all events that arrived together.
struct Sink {
    printer: Printer,
    explainer: Option<Explainer>,
    out: Vec<u8>,
}

impl Sink {
    /// Prints messages.
    ///
    /// # Errors
    /// Fails if stdout cannot be written, or if the engine has ended the stream for good.
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
            anyhow::bail!("the engine ended the stream: see its message above");
        }
        Ok(())
    }
}
