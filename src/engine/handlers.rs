//! Handlers of the configuration: their creation, changes and removal.

pub(super) mod pace;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
    time::Duration,
};

use actix::Recipient;
use tokio::time::Instant;

use self::pace::Pace;
use super::{EngineError, StopReport, options, sinks};
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::{
    child::Heartbeat,
    fault::{Fault, Harm, Moment},
};
use crate::{
    change::Cause,
    cloud_event::{Encoder, Formatter, template::Template},
    config::{self, Config, HandlerDefaults},
    delivery::{
        core::CoreOptions,
        handlers::{self, Handlers, Leftover, Remove},
        parts::{HandlerParts, HandlerSlot},
        route::{Route, RouteOptions},
        router::Router,
        sink::Sink,
        status::{Control, HandlerStatus, HandlerView},
        table::Rerouted,
        worker::{Open, Worker},
    },
    handler::{AsyncHandler, Handler, HandlerError, blackhole::Blackhole, file::FileHandler, stdout::Stdout},
    journal::{Bounds, ChangeSet, EventName, Journal, Move, MoveKind, OpenReaderError, ReaderId, UnitId},
    mutex::lock,
    notification::Notification,
    object::FieldPath,
    registry::Registry,
    rules::{Rules, RulesOptions},
};

/// Function that returns the current views of the handlers.
pub(super) type Statuses = Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>;

/// Handler that a program adds.
pub struct OwnHandler {
    /// Name of the handler, as in `/v1/handlers`.
    pub name: String,
    /// Names or globs of `[resources.*]` entries.
    pub resources: Vec<String>,
    /// Events that it gets, and limits of its buffer.
    pub options: HandlerDefaults,
    /// Destination of its events.
    pub sink: OwnSink,
}

impl OwnHandler {
    /// Creates a handler that gets the changes of all resources.
    pub(super) fn new(name: &str, options: HandlerDefaults, sink: OwnSink) -> Self {
        Self { name: name.to_owned(), resources: vec!["*".to_owned()], options, sink }
    }
}

/// Destination of the events of a program's handler.
pub enum OwnSink {
    /// Actor that gets the next batch after its response to the last one.
    Actor(Recipient<Notification>),
    /// Code that may block, on a separate thread.
    Closure(OwnClosure),
    /// Code that waits without blocking, on a separate thread, with several deliveries at a time.
    Async(Arc<dyn AsyncHandler>),
}

/// Closure as a handler; an error is a failed attempt.
pub type OwnClosure = Box<dyn FnMut(&Notification) -> Result<(), HandlerError> + Send>;

/// Status of all handlers.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusBoard {
    handlers: Arc<Mutex<Vec<Arc<HandlerStatus>>>>,
}

impl StatusBoard {
    pub(super) fn views(&self) -> Vec<HandlerView> {
        let now = jiff::Timestamp::now();
        self.lock().iter().map(|status| status.view(now)).collect()
    }

    /// Pauses, resumes or replays a handler; returns the number of replayed events, and the handler's view. Returns `None` if
    /// no handler has this name.
    pub(super) fn control(&self, name: &str, control: Control) -> Option<(u64, HandlerView)> {
        let status = self.lock().iter().find(|status| status.name() == name).cloned()?;
        let replayed = status.control(control);
        tracing::info!(handler = name, ?control, replayed, "changed the handler on request");
        Some((replayed, status.view(jiff::Timestamp::now())))
    }

    /// Adds the status of a handler, or replaces that of the same name.
    fn show(&self, status: Arc<HandlerStatus>) {
        let mut handlers = self.lock();
        match handlers.iter_mut().find(|shown| shown.name() == status.name()) {
            Some(shown) => *shown = status,
            None => handlers.push(status),
        }
    }

    fn remove(&self, name: &str) {
        self.lock().retain(|status| status.name() != name);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<HandlerStatus>>> {
        lock(&self.handlers)
    }
}

/// Running handlers, the last stage of the stream.
pub(super) struct Delivery {
    handlers: Handlers,
    pub(super) board: StatusBoard,
    maker: Maker,
    running: BTreeMap<String, Running>,
    /// Time limit for a removed handler to deliver its waiting events.
    drain_within: Duration,
}

/// Running handler.
struct Running {
    status: Arc<HandlerStatus>,
    slot: HandlerSlot,
    #[cfg(any(test, feature = "testing"))]
    sink: Sink,
    /// Plan from the configuration; a program's handler has none.
    plan: Option<Plan>,
}

/// Definition of a handler. A handler with an unchanged plan is not touched.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    sink: config::SinkConfig,
    /// Names of `[resources.*]`.
    resources: BTreeSet<String>,
    options: HandlerDefaults,
    template: Option<String>,
    pace: Pace,
    dead_letter: Option<String>,
    takes_dead_letters: bool,
}

impl Plan {
    /// Returns the plan of each enabled handler. A handler still takes what is left of entries that it took before and that
    /// no longer exist.
    fn all(config: &Config, running: &BTreeMap<String, Running>) -> BTreeMap<String, Self> {
        let enabled = || config.handlers.iter().filter(|(_, handler)| handler.enabled);
        let is_enabled = |name: &String| enabled().any(|(other, _)| other == name);
        let feeds = |name: &str| enabled().any(|(_, handler)| handler.dead_letter.as_deref() == Some(name));
        let taken_before = |name: &String| {
            let plan = running.get(name).and_then(|running| running.plan.as_ref());
            plan.into_iter().flat_map(|plan| &plan.resources)
        };
        let plan = |(name, handler): (&String, &config::HandlerConfig)| {
            let taken = config.resources.keys().filter(|entry| handler.takes(entry));
            let no_more = taken_before(name).filter(|entry| !config.resources.contains_key(*entry));
            let resources: BTreeSet<String> = taken.chain(no_more).cloned().collect();
            let plan = Self {
                sink: handler.sink.clone(),
                resources,
                options: handler.options.clone(),
                template: handler.template.clone(),
                pace: Pace::of(handler),
                dead_letter: handler.dead_letter.clone().filter(is_enabled),
                takes_dead_letters: feeds(name),
            };
            (name.clone(), plan)
        };
        enabled().map(plan).collect()
    }

    /// Returns true if the handler can keep its sink, because only its events differ.
    fn keeps_its_sink(&self, before: &Self) -> bool {
        self.sink == before.sink
            && self.pace == before.pace
            && self.options.retry == before.options.retry
            && self.options.format == before.options.format
            && self.template == before.template
            && self.dead_letter == before.dead_letter
            && self.takes_dead_letters == before.takes_dead_letters
    }
}

/// Prepared change that can no longer fail.
struct Step {
    name: String,
    kind: StepKind,
    route: Route,
    plan: Plan,
}

enum StepKind {
    Add(Sink),
    Replace(Sink),
    Reroute,
}

/// Part of a handler in which a fault is injected.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Actor of the handler, at once.
    Actor,
    /// Thread of the handler, with the next batch.
    Thread,
}

impl Delivery {
    /// Adds, removes and changes handlers to match `config`; the program's handlers stay. Returns in order which units have to
    /// introduce or dismiss which reader; the caller must repeat this for units that were not running. Call it before the
    /// units of a new entry are added. A removed handler delivers its waiting events within `shutdown_timeout`.
    ///
    /// # Errors
    /// Fails, without any change, if a new sink cannot be created or if the engine is stopping.
    pub(super) fn apply(&mut self, config: &Config) -> Result<Vec<(UnitId, Move)>, EngineError> {
        if self.handlers.is_stopping() {
            return Err(EngineError::Stopping);
        }
        let plans = Plan::all(config, &self.running);
        let steps = self.maker.prepare(&self.running, plans.clone())?;
        self.drain_within = config.shutdown_timeout;
        let is_gone = |(name, running): &(&String, &Running)| running.plan.is_some() && !plans.contains_key(*name);
        let gone: Vec<_> = self.running.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        let moves = self.carry_out(steps)?;
        for name in gone {
            self.running.remove(&name);
            self.board.remove(&name);
            tracing::info!(handler = name, "removing the handler");
            self.handlers.remove(&name, Remove::Drain(Instant::now() + self.drain_within));
        }
        Ok(moves)
    }

    /// Adds a program's handler to the running engine (S-5).
    ///
    /// # Errors
    /// Fails if the name is taken, a glob is invalid, no thread can be started, or the engine is stopping (S-6).
    pub(super) fn add_own(&mut self, handler: OwnHandler) -> Result<Vec<(UnitId, Move)>, EngineError> {
        if self.handlers.is_stopping() {
            return Err(EngineError::Stopping);
        }
        let taken = self.running.keys().cloned().collect();
        self.start_handler(self.maker.own(handler, &taken)?)
    }

    /// Removes a program's handler: its current call ends, and waiting events are dropped. An unknown name has no
    /// effect (S-7).
    pub(super) fn remove_own(&mut self, name: &str) {
        if self.running.get(name).is_some_and(|running| running.plan.is_none()) {
            self.running.remove(name);
            self.board.remove(name);
            self.handlers.remove(name, Remove::Discard);
        }
    }

    /// Returns true if a handler has finished the initial state of everything that it takes (S-8); `None` for an
    /// unknown name.
    pub(super) fn has_synced(&self, name: &str) -> Option<bool> {
        self.running.get(name).map(|running| running.status.has_synced())
    }

    fn carry_out(&mut self, steps: Vec<Step>) -> Result<Vec<(UnitId, Move)>, EngineError> {
        // Dead letters are reached through the slots of all handlers, the new ones included.
        let names = steps.iter().map(|step| &step.name);
        let slots: BTreeMap<_, _> = names
            .map(|name| (name.clone(), self.running.get(name).map(|running| running.slot.clone()).unwrap_or_default()))
            .chain(self.running.iter().map(|(name, running)| (name.clone(), running.slot.clone())))
            .collect();
        let mut moves = Vec::new();
        for Step { name, kind, route, plan } in steps {
            let sink = match kind {
                StepKind::Reroute => {
                    let Some((reader, rerouted)) = self.handlers.reroute(&name, route, bounds(&plan.options)) else {
                        continue; // the handler has ended
                    };
                    moves.extend(moves_of(reader, &rerouted));
                    self.running.get_mut(&name).expect("it is rerouted because it runs").plan = Some(plan);
                    continue;
                }
                StepKind::Add(sink) | StepKind::Replace(sink) => sink,
            };
            let made = Made {
                kind: (&plan.sink).into(),
                route,
                options: plan.options.clone(),
                pace: plan.pace.clone(),
                sink,
                slot: slots[&name].clone(),
                dead_letter: plan.dead_letter.as_ref().and_then(|name| slots.get(name)).cloned(),
                takes_dead_letters: plan.takes_dead_letters,
                plan: Some(plan),
                name,
            };
            moves.extend(self.start_handler(made)?);
        }
        Ok(moves)
    }

    /// Starts a handler, or replaces the one of the same name.
    fn start_handler(&mut self, made: Made) -> Result<Vec<(UnitId, Move)>, EngineError> {
        let Made { name, kind, route, options, pace, sink, slot, dead_letter, takes_dead_letters, plan } = made;
        // A handler stays paused when it is replaced.
        let pause = self.running.get(&name).map(|running| running.status.switch().clone()).unwrap_or_default();
        let status = Arc::new(HandlerStatus::with_switch(&name, kind, pause));
        let bounds = bounds(&options);
        let core = CoreOptions {
            schedule: pace.schedule(&bounds),
            retry: options.retry,
            rate: pace.rate,
            smallest: sink.smallest_form(),
            can_cancel: sink.can_cancel(),
            patience: self.maker.hung_after,
        };
        let parts = HandlerParts { core, sink: sink.clone(), dead_letter, status: Arc::clone(&status) };
        let handler = || handlers::DeliveryOptions {
            name: name.clone(),
            route: route.clone(),
            bounds,
            parts: parts.clone(),
            slot: slot.clone(),
            takes_dead_letters,
            is_pipe: kind == "stdout",
        };
        let replaced = self.running.get(&name).and_then(|_| self.handlers.replace(handler()));
        let (reader, moves) = if let Some((reader, rerouted)) = replaced {
            (reader, moves_of(reader, &rerouted))
        } else {
            let refused =
                |error: OpenReaderError| EngineError::Handler { name: name.clone(), error: error.to_string() };
            let (reader, joins) = self.handlers.add(handler()).map_err(refused)?;
            let cause = (options.initial == config::Initial::Send).then_some(Cause::Replay);
            let join = Move { reader, kind: MoveKind::Join(cause) };
            (reader, joins.into_iter().map(|unit| (unit, join)).collect())
        };
        status.attach(self.router().clone(), reader);
        self.board.show(Arc::clone(&status));
        let running = Running {
            status,
            slot,
            #[cfg(any(test, feature = "testing"))]
            sink,
            plan,
        };
        self.running.insert(name, running);
        Ok(moves)
    }

    /// Returns the router of the handlers' readers.
    pub(super) fn router(&self) -> &Router {
        self.handlers.router()
    }

    /// Logs events that were dropped since the last call.
    pub(super) fn report_losses(&self) {
        self.handlers.report_losses();
    }

    /// Delivers waiting events until the deadline, and closes the handlers.
    pub(super) async fn stop(&self, within: Duration, registry: &Registry) -> StopReport {
        let leftovers = self.handlers.shut_down(Instant::now() + within).await;
        let named = |leftover: Leftover| {
            let name = |event: &EventName| match registry.find_unit(event.unit) {
                Some(unit) => format!("{} {event}", unit.resource),
                None => event.to_string(),
            };
            let names = leftover.named.iter().map(name).collect();
            (leftover.handler, leftover.events, names)
        };
        StopReport { undelivered: leftovers.into_iter().map(named).collect() }
    }

    /// Injects a fault into a handler.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn sabotage_handler(&self, name: &str, spot: Spot, harm: Harm) {
        match self.running.get(name) {
            Some(Running { sink: Sink::Thread(worker), .. }) if spot == Spot::Thread => worker.sabotage(harm),
            Some(running) => {
                if let Some(contact) = running.slot.get() {
                    drop(contact.heartbeats.try_send(Heartbeat(Fault::new(harm, Moment::Now))));
                }
            }
            None => {}
        }
    }
}

/// Starts the enabled handlers, on the current arbiter.
pub(super) fn start(
    config: &Config,
    cluster: &str,
    journal: &Journal,
    own_handlers: Vec<OwnHandler>,
    allow_exec: bool,
) -> Result<Delivery, EngineError> {
    let supervision = options::supervisor(&config.supervision);
    let maker = Maker {
        cluster: cluster.to_owned(),
        encoder: Encoder::new(cluster, journal.id()),
        allow_exec,
        hung_after: supervision.hung_after,
    };
    // Every step that can fail precedes the first actor.
    let steps = maker.prepare(&BTreeMap::new(), Plan::all(config, &BTreeMap::new()))?;
    let mut taken: BTreeSet<_> = steps.iter().map(|step| step.name.clone()).collect();
    let mut own = Vec::new();
    for handler in own_handlers {
        let made = maker.own(handler, &taken)?;
        taken.insert(made.name.clone());
        own.push(made);
    }
    let handlers = Handlers::new(Router::new(journal.clone()), supervision);
    let (board, running, drain_within) = (StatusBoard::default(), BTreeMap::new(), config.shutdown_timeout);
    let mut delivery = Delivery { handlers, board, maker, running, drain_within };
    delivery.carry_out(steps)?;
    for made in own {
        delivery.start_handler(made)?;
    }
    Ok(delivery)
}

/// Factory of handlers.
struct Maker {
    /// Name of the cluster.
    cluster: String,
    encoder: Encoder,
    /// Set if handlers may run programs.
    allow_exec: bool,
    hung_after: Duration,
}

/// Handler that was created but not started.
struct Made {
    name: String,
    kind: &'static str,
    route: Route,
    options: HandlerDefaults,
    pace: Pace,
    sink: Sink,
    slot: HandlerSlot,
    dead_letter: Option<HandlerSlot>,
    takes_dead_letters: bool,
    plan: Option<Plan>,
}

impl Maker {
    /// Creates everything that the planned handlers need; changes nothing.
    fn prepare(
        &self,
        running: &BTreeMap<String, Running>,
        plans: BTreeMap<String, Plan>,
    ) -> Result<Vec<Step>, EngineError> {
        let mut steps = Vec::new();
        for (name, plan) in plans {
            let refused = |error: String| EngineError::Handler { name: name.clone(), error };
            let make = |is_first| self.sink(&name, &plan, is_first).map_err(|error| refused(error.to_string()));
            let kind = match running.get(&name).map(|running| &running.plan) {
                None => StepKind::Add(make(true)?),
                Some(None) => return Err(refused("the program has a handler of this name: use another".to_owned())),
                Some(Some(before)) if *before == plan => continue,
                Some(Some(before)) if plan.keeps_its_sink(before) => StepKind::Reroute,
                Some(Some(_)) => StepKind::Replace(make(false)?),
            };
            let route = self.route(&plan.resources, &plan.options).map_err(&refused)?;
            steps.push(Step { name, kind, route, plan });
        }
        Ok(steps)
    }

    /// Creates a program's handler.
    fn own(&self, handler: OwnHandler, taken: &BTreeSet<String>) -> Result<Made, EngineError> {
        let OwnHandler { name, resources, options, sink } = handler;
        let refused = |error: String| EngineError::Handler { name: name.clone(), error };
        if taken.contains(&name) {
            return Err(refused("a handler of this name exists already: use another name".to_owned()));
        }
        let route = self.route(&resources, &options).map_err(refused)?;
        let pace = Pace::own(&sink, &options);
        let thread = |open| {
            let worker = Worker::spawn(&name, self.hung_after, open);
            worker.map(Sink::Thread).map_err(|error| refused(error.to_string()))
        };
        let (kind, sink) = match sink {
            OwnSink::Async(handler) => ("async", thread(pace.opens(Arc::new(move || Ok(Arc::clone(&handler)))))?),
            OwnSink::Actor(actor) => ("actor", Sink::Actor(actor, self.hung_after)),
            OwnSink::Closure(closure) => {
                let closure = Arc::new(Mutex::new(closure));
                ("closure", thread(Open::Blocking(Arc::new(move || Ok(boxed(Closure(Arc::clone(&closure)))))))?)
            }
        };
        let (slot, dead_letter, takes_dead_letters, plan) = (HandlerSlot::default(), None, false, None);
        Ok(Made { name, kind, route, options, pace, sink, slot, dead_letter, takes_dead_letters, plan })
    }

    /// Returns the route of a handler, which decides its events. The error describes an invalid option.
    fn route<'a>(
        &self,
        resources: impl IntoIterator<Item = &'a String>,
        options: &HandlerDefaults,
    ) -> Result<Route, String> {
        let rules = rules(options, &self.cluster)?;
        let route = Route::new(&route(resources, options)).map_err(|error| error.to_string())?;
        Ok(route.with_rules(rules))
    }

    /// Creates a sink. If it replaces another sink of its handler, it opens after that one has closed.
    fn sink(&self, name: &str, plan: &Plan, is_first: bool) -> io::Result<Sink> {
        let formatter =
            || formatter(&self.encoder, plan.options.format, plan.template.as_deref()).map_err(io::Error::other);
        let open = match &plan.sink {
            config::SinkConfig::Blackhole => return Ok(Sink::InPlace(Arc::new(Mutex::new(Blackhole::default())))),
            config::SinkConfig::Stdout => {
                let formatter = formatter()?;
                Open::Blocking(Arc::new(move || Ok(boxed(Stdout::new(formatter.clone())))))
            }
            config::SinkConfig::Webhook(options) => plan.pace.opens(sinks::webhook(options, &plan.pace, formatter()?)?),
            config::SinkConfig::Nats(options) => plan.pace.opens(sinks::nats(options, &self.cluster, formatter()?)?),
            config::SinkConfig::Exec(_) if !self.allow_exec => {
                return Err(io::Error::other("running programs is not allowed by default: start with --allow-exec"));
            }
            config::SinkConfig::Exec(options) => {
                plan.pace.opens(sinks::exec(options, name, &self.cluster, formatter()?)?)
            }
            config::SinkConfig::Kafka(options) => {
                plan.pace.opens(sinks::kafka(options, &self.cluster, &plan.pace, formatter()?)?)
            }
            config::SinkConfig::File(options) => {
                let (options, formatter) = (options.clone(), formatter()?);
                FileHandler::check(&options).map_err(|error| {
                    io::Error::other(format!("{error}; set [handlers.{name}] path to a file that this user can write"))
                })?;
                Open::Blocking(Arc::new(move || Ok(boxed(FileHandler::new(options.clone(), formatter.clone())?))))
            }
        };
        let worker = if is_first {
            Worker::spawn(name, self.hung_after, open)?
        } else {
            Worker::reserve(name, self.hung_after, open)
        };
        Ok(Sink::Thread(worker))
    }
}

/// Program's closure, shared by all threads that its handler ever has.
struct Closure(Arc<Mutex<OwnClosure>>);

impl Handler for Closure {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        match self.0.try_lock() {
            Ok(mut closure) => closure(notification),
            // The closure panicked, and the panic was counted. The next call may still succeed.
            Err(TryLockError::Poisoned(closure)) => closure.into_inner()(notification),
            Err(TryLockError::WouldBlock) => Err(HandlerError::Failed("the last call has not returned yet".to_owned())),
        }
    }
}

/// Returns the moves that a changed route requires from running units.
fn moves_of(reader: ReaderId, rerouted: &Rerouted) -> Vec<(UnitId, Move)> {
    let leave = Move { reader, kind: MoveKind::Leave };
    let join = Move { reader, kind: MoveKind::Join(Some(Cause::Reload)) };
    let leaves = rerouted.leaves.iter().map(|unit| (*unit, leave));
    leaves.chain(rerouted.joins.iter().map(|unit| (*unit, join))).collect()
}

fn bounds(options: &HandlerDefaults) -> Bounds {
    let buffer = &options.buffer;
    Bounds {
        max_events: usize::try_from(buffer.max_events).unwrap_or(usize::MAX),
        max_bytes: usize::try_from(buffer.max_bytes).unwrap_or(usize::MAX),
        when_full: buffer.when_full,
    }
}

/// Compiles the rules of a handler; the error describes an invalid rule.
pub(super) fn rules(options: &HandlerDefaults, cluster: &str) -> Result<Rules, String> {
    let changed = options.changed.iter().map(|path| FieldPath::parse(path)).collect::<Result<_, _>>();
    let changed = changed.map_err(|error| format!("`changed`: {error}"))?;
    let rules =
        RulesOptions { changed, when: options.when.clone(), cluster: cluster.to_owned(), ..RulesOptions::default() };
    Rules::compile(rules).map_err(|error| format!("`when`: {error}"))
}

/// Returns the formatter of a handler's events.
pub(super) fn formatter(
    encoder: &Encoder,
    format: config::FormatSettings,
    template: Option<&str>,
) -> Result<Formatter, String> {
    match (format, template) {
        (config::FormatSettings::Template, None) => Err("missing template".to_owned()),
        (config::FormatSettings::Template, Some(text)) => {
            let template = Template::compile(text).map_err(|error| format!("template: {error}"))?;
            Ok(Formatter::of_template(encoder.clone(), template))
        }
        (format, _) => Ok(Formatter::new(encoder.clone(), format)),
    }
}

/// Returns the changes that a handler gets before its rules are applied.
pub(super) fn route<'a>(resources: impl IntoIterator<Item = &'a String>, options: &HandlerDefaults) -> RouteOptions {
    let changes = options.on.iter().map(|event| ChangeSet::of(event.kind(), None));
    RouteOptions {
        resources: resources.into_iter().cloned().collect(),
        on: changes.fold(ChangeSet::default(), ChangeSet::with),
        initial: options.initial == config::Initial::Send,
        catch_up: options.catch_up,
        deliver_unchanged: options.deliver_unchanged,
        resync: options.resync,
    }
}

fn boxed(handler: impl Handler) -> Box<dyn Handler> {
    Box::new(handler)
}
