//! Handlers of the configuration and of the program: their creation, changes and removal.

mod sinks;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

use actix::Recipient;
use tokio::time::Instant;

use super::{EngineError, StopReport, options::size};
use crate::{
    cloud_event::{Encoder, Formatter, template::Template},
    config::{self, Batch, Config, DeliveryOrder, HandlerConfig, HandlerOptions, Initial, SinkConfig},
    delivery::{
        core::CoreOptions,
        handlers::{Leftover, NewHandler, Remove, RunningHandlers},
        router::Router,
        schedule::ScheduleOptions,
        sink::Sink,
        table::Route,
        throttle::state::{ThrottleRule, Throttles},
        worker::{Open, OpenAsync, Worker},
    },
    handler::{AsyncHandler, Handler, HandlerError, file::FileHandler, stdout::Stdout},
    journal::{Attachment, Bounds, ChangeSet, EventName, UnitId},
    notification::Notification,
    object::FieldPath,
    registry::Registry,
    rules::{Rules, RulesOptions},
};

/// Limit for the bodies that a handler holds, in bytes. A handler with large batches has a higher limit: twice the size of its
/// largest batch.
const WINDOW_BYTES: usize = 16 << 20;

/// Handler that a program adds. It gets the changes of all resources.
pub(super) struct OwnHandler {
    /// Name of the handler, as in `/v1/handlers`.
    pub(super) name: String,
    /// Events that the handler gets, and limits of its buffer.
    pub(super) options: HandlerOptions,
    /// Destination of the handler's events.
    pub(super) sink: OwnSink,
}

impl OwnHandler {
    pub(super) fn new(name: &str, options: HandlerOptions, sink: OwnSink) -> Self {
        Self { name: name.to_owned(), options, sink }
    }
}

/// Destination of the events of a program's handler.
pub(super) enum OwnSink {
    /// Actor that gets the next batch after its response to the previous batch.
    Actor(Recipient<Notification>),
    /// Code that may block, on a separate thread.
    Closure(OwnClosure),
    /// Code that waits without blocking, on a separate thread, with several deliveries at a time.
    Async(Arc<dyn AsyncHandler>),
}

/// Closure that gets each batch. If the closure returns an error, the attempt to deliver the batch has failed.
pub(super) type OwnClosure = Box<dyn FnMut(&Notification) -> Result<(), HandlerError> + Send>;

/// Running handlers, and everything that is needed to create more.
pub(super) struct ConfiguredHandlers {
    pub(super) handlers: RunningHandlers,
    /// Definitions of the handlers of the configuration. A handler with an unchanged definition is not touched.
    plans: BTreeMap<String, HandlerConfig>,
    /// Entries that each handler of the last run read. Empty after the start.
    attached: BTreeMap<String, BTreeSet<String>>,
    encoder: Encoder,
    throttles: Throttles,
    /// Set if handlers may run programs.
    allow_exec: bool,
    hung_after: Duration,
}

/// Change of a handler, prepared so that it can no longer fail.
struct Step {
    name: String,
    plan: HandlerConfig,
    route: Route,
    /// Sink of a handler that is added or replaced; `None` if the handler keeps its sink.
    sink: Option<Sink>,
}

impl ConfiguredHandlers {
    /// Starts the enabled handlers, on the current arbiter. `attached` has the entries that each handler of the last run read. Also
    /// returns attachments, as [`ConfiguredHandlers::apply`] does.
    pub(super) fn start(
        config: &Config,
        cluster: &str,
        router: Router,
        attached: BTreeMap<String, BTreeSet<String>>,
        own_handlers: Vec<OwnHandler>,
        allow_exec: bool,
    ) -> Result<(Self, Vec<(UnitId, Attachment)>), EngineError> {
        let has_throttle = |name: &str| config.handlers.get(name).is_some_and(|handler| handler.options.is_throttled());
        let mut delivery = Self {
            encoder: Encoder::new(cluster, router.journal.id()),
            throttles: Throttles::new(config.state.dir.as_deref(), router.journal.id(), &has_throttle),
            handlers: RunningHandlers::new(router, config.supervision),
            plans: BTreeMap::new(),
            attached,
            allow_exec,
            hung_after: config.supervision.hung_after,
        };
        // Every step that can fail precedes the first actor.
        let enabled = config.handlers.iter().filter(|(_, handler)| handler.enabled);
        let mut taken: BTreeSet<_> = enabled.map(|(name, _)| name.clone()).collect();
        let own = |handler: OwnHandler| {
            let is_taken = !taken.insert(handler.name.clone());
            delivery.own(handler, is_taken)
        };
        let own: Vec<_> = own_handlers.into_iter().map(own).collect::<Result<_, _>>()?;
        let mut attachments = delivery.apply(config)?;
        delivery.attached.clear();
        for options in own {
            attachments.extend(delivery.put(options)?);
        }
        Ok((delivery, attachments))
    }

    /// Adds, removes and changes handlers to match `config`; the program's handlers stay. A removed handler delivers its waiting
    /// events within `shutdown_timeout`. Returns the attachments that add readers to units, or remove readers from units. Units
    /// must make the attachments in this order. The caller must repeat an attachment until its unit has made it. Call this before
    /// the units of a new entry are added.
    ///
    /// # Errors
    /// Fails, without any change, if a new sink cannot be created.
    pub(super) fn apply(&mut self, config: &Config) -> Result<Vec<(UnitId, Attachment)>, EngineError> {
        let mut attachments = Vec::new();
        for Step { name, plan, route, sink } in self.prepare(config)? {
            attachments.extend(match sink {
                Some(sink) => self.put(self.planned(&name, &plan, route, sink)?)?,
                None => self.handlers.set_route(&name, route, bounds(&plan.options)),
            });
            self.plans.insert(name, plan);
        }
        let is_gone = |name: &String, _: &mut _| !config.handlers.get(name).is_some_and(|handler| handler.enabled);
        for (name, _) in self.plans.extract_if(.., is_gone) {
            tracing::info!(handler = name, "removing the handler");
            self.handlers.remove(&name, Remove::Drain(Instant::now() + config.shutdown_timeout));
        }
        Ok(attachments)
    }

    /// Adds a program's handler to the running engine (S-5).
    ///
    /// # Errors
    /// Fails if the name is taken, or no thread can be started.
    pub(super) fn add_own(&self, handler: OwnHandler) -> Result<Vec<(UnitId, Attachment)>, EngineError> {
        let is_taken = self.handlers.status(&handler.name).is_some();
        self.put(self.own(handler, is_taken)?)
    }

    /// Removes a program's handler. The handler's current call is the last, and its waiting events are dropped. An unknown name has
    /// no effect (S-7).
    pub(super) fn remove_own(&self, name: &str) {
        if !self.plans.contains_key(name) {
            self.handlers.remove(name, Remove::Discard);
        }
    }

    /// Prepares the steps that turn the current handlers into the handlers of `config`. Changes no handler.
    fn prepare(&self, config: &Config) -> Result<Vec<Step>, EngineError> {
        let mut steps = Vec::new();
        for (name, plan) in self.plans(config) {
            let refused = |error: String| EngineError::Handler { name: name.clone(), error };
            let before = self.plans.get(&name);
            if before == Some(&plan) {
                continue;
            }
            if before.is_none() && self.handlers.status(&name).is_some() {
                return Err(refused("the program has a handler of this name: use another".to_owned()));
            }
            let route = route(&plan.resources, &plan.options, self.encoder.cluster()).map_err(refused)?;
            let sink = match before {
                Some(before) if keeps_its_sink(before, &plan) => None,
                _ => Some(self.sink(&name, &plan, before.is_none()).map_err(|error| refused(error.to_string()))?),
            };
            steps.push(Step { name, plan, route, sink });
        }
        Ok(steps)
    }

    /// Returns the definition of each enabled handler. In the definition, `resources` lists names of entries instead of patterns.
    /// The names of removed entries stay in the list, so that the handler gets the last events of these entries.
    fn plans(&self, config: &Config) -> BTreeMap<String, HandlerConfig> {
        let is_enabled = |name: &String| config.handlers.get(name).is_some_and(|handler| handler.enabled);
        let enabled = config.handlers.iter().filter(|(_, handler)| handler.enabled);
        let plan = |(name, handler): (&String, &HandlerConfig)| {
            let taken = config.resources.keys().filter(|entry| handler.takes(entry));
            let before = self.plans.get(name).into_iter().flat_map(|plan| &plan.resources);
            let before = before.chain(self.attached.get(name).into_iter().flatten());
            let no_more = before.filter(|entry| !config.resources.contains_key(*entry));
            let resources: BTreeSet<_> = taken.chain(no_more).cloned().collect();
            let dead_letter = handler.dead_letter.clone().filter(is_enabled);
            let plan = HandlerConfig { resources: resources.into_iter().collect(), dead_letter, ..handler.clone() };
            (name.clone(), plan)
        };
        enabled.map(plan).collect()
    }

    fn put(&self, options: NewHandler) -> Result<Vec<(UnitId, Attachment)>, EngineError> {
        let name = options.name.clone();
        self.handlers.put(options).map_err(|error| EngineError::Handler { name, error: error.to_string() })
    }

    /// Returns the options of a handler of the configuration.
    fn planned(&self, name: &str, plan: &HandlerConfig, route: Route, sink: Sink) -> Result<NewHandler, EngineError> {
        let mut core = self.core(&plan.options, &plan.batch(), plan.concurrency(), &sink);
        core.rate = plan.rate_limit;
        core.schedule.distinct = match &plan.sink {
            SinkConfig::Nats(nats) => nats.jetstream.is_some(),
            sink => matches!(sink, SinkConfig::Kafka(_)),
        };
        let (bounds, dead_letter) = (bounds(&plan.options), plan.dead_letter.clone());
        let throttle = self.throttle(name, &plan.options)?;
        let (name, kind) = (name.to_owned(), (&plan.sink).into());
        Ok(NewHandler { name, kind, route, bounds, core, sink, dead_letter, throttle })
    }

    /// Creates a program's handler.
    fn own(&self, handler: OwnHandler, is_taken: bool) -> Result<NewHandler, EngineError> {
        let OwnHandler { name, options, sink } = handler;
        let refused = |error: String| EngineError::Handler { name: name.clone(), error };
        if is_taken {
            return Err(refused("a handler of this name exists already: use another name".to_owned()));
        }
        let route = route(&["*".to_owned()], &options, self.encoder.cluster()).map_err(refused)?;
        let thread = |open| {
            let worker = Worker::new(&name, self.hung_after, open).start();
            worker.map(Sink::Thread).map_err(|error| refused(error.to_string()))
        };
        let is_concurrent = matches!(sink, OwnSink::Async(_)) && options.order != DeliveryOrder::Total;
        let concurrency = if is_concurrent { options.concurrency } else { 1 };
        let (kind, sink) = match sink {
            OwnSink::Actor(actor) => ("actor", Sink::Actor(actor, self.hung_after)),
            OwnSink::Closure(closure) => {
                let closure = Arc::new(Mutex::new(closure));
                let open = move |_: &_| {
                    let closure = Arc::clone(&closure);
                    Ok(boxed(move |batch: &Notification| call(&closure, batch)))
                };
                ("closure", thread(Open::Blocking(Arc::new(open)))?)
            }
            OwnSink::Async(handler) => ("async", thread(waits(sinks::shared(handler), concurrency, &options))?),
        };
        let core = self.core(&options, &Batch::WHAT_WAITS, concurrency, &sink);
        let (bounds, throttle) = (bounds(&options), self.throttle(&name, &options)?);
        Ok(NewHandler { name, kind, route, bounds, core, sink, dead_letter: None, throttle })
    }

    /// Returns the rule of `once_per`, if a handler has one. The last events of the handler's previous definition stay known.
    fn throttle(&self, name: &str, options: &HandlerOptions) -> Result<Option<ThrottleRule>, EngineError> {
        if !options.is_throttled() {
            return Ok(None);
        }
        let compiled = |text: &String| match Template::compile(text) {
            Ok(template) => Ok((template, text.clone())),
            Err(error) => Err(EngineError::Handler { name: name.to_owned(), error: format!("`once_key`: {error}") }),
        };
        let (period, key) = (options.once_per, options.once_key.as_ref().map(compiled).transpose()?);
        let (encoder, state) = (self.encoder.clone(), self.throttles.of(name));
        Ok(Some(ThrottleRule { period, key, encoder, state }))
    }

    /// Returns the options of a handler's core.
    fn core(&self, options: &HandlerOptions, batch: &Batch, concurrency: u32, sink: &Sink) -> CoreOptions {
        let (batch_events, batch_bytes, concurrency) =
            (size(batch.max_events), size(batch.max_bytes), concurrency as usize);
        let schedule = ScheduleOptions {
            order: options.order,
            concurrency,
            distinct: false,
            batch_events,
            batch_bytes,
            linger: batch.timeout,
            window_events: bounds(options).max_events,
            window_bytes: batch_bytes.saturating_mul(2).max(WINDOW_BYTES),
        };
        let (retry, is_async) = (options.retry, sink.is_async());
        CoreOptions { schedule, retry, rate: None, is_async, patience: self.hung_after }
    }

    /// Creates a sink. If `is_first` is set, the sink opens at once. Otherwise it opens after the previous sink of the handler has
    /// closed.
    fn sink(&self, name: &str, plan: &HandlerConfig, is_first: bool) -> io::Result<Sink> {
        plan.recheck_sink().map_err(io::Error::other)?;
        let formatter =
            || formatter(&self.encoder, plan.options.format, plan.template.as_deref()).map_err(io::Error::other);
        let waits = |open| waits(open, plan.concurrency(), &plan.options);
        let open = match &plan.sink {
            SinkConfig::Blackhole => {
                let drops_events = |_: &Notification| -> Result<(), HandlerError> { Ok(()) };
                return Ok(Sink::InPlace(Arc::new(Mutex::new(drops_events))));
            }
            SinkConfig::Stdout => {
                let formatter = formatter()?;
                Open::Blocking(Arc::new(move |_| Ok(boxed(Stdout::new(formatter.clone())))))
            }
            SinkConfig::Webhook(options) => waits(sinks::webhook(options, plan, formatter()?)?),
            SinkConfig::Nats(options) => waits(sinks::nats(options, formatter()?)?),
            SinkConfig::Exec(_) if !self.allow_exec => {
                return Err(io::Error::other("running programs is not allowed by default: start with --allow-exec"));
            }
            SinkConfig::Exec(options) => waits(sinks::exec(options, name, formatter()?)),
            SinkConfig::Kafka(options) => waits(sinks::kafka(options, plan, formatter()?)?),
            SinkConfig::File(options) => {
                let (options, formatter) = (options.clone(), formatter()?);
                FileHandler::check(&options).map_err(|error| {
                    io::Error::other(format!("{error}; set [handlers.{name}] path to a file that this user can write"))
                })?;
                Open::Blocking(Arc::new(move |replaced| {
                    Ok(boxed(FileHandler::new(options.clone(), formatter.clone(), replaced)?))
                }))
            }
        };
        let worker = Worker::new(name, self.hung_after, open);
        Ok(Sink::Thread(if is_first { worker.start()? } else { worker }))
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
}

/// Returns true if two definitions of a handler differ at most in the buffer and in the selection of events. The handler then keeps
/// its sink.
fn keeps_its_sink(before: &HandlerConfig, plan: &HandlerConfig) -> bool {
    let HandlerOptions { order, timeout, format, retry, .. } = plan.options;
    let options = &before.options;
    plan.sink == before.sink
        && plan.batch() == before.batch()
        && plan.concurrency() == before.concurrency()
        && plan.rate_limit == before.rate_limit
        && (plan.options.once_per, &plan.options.once_key) == (options.once_per, &options.once_key)
        && (order, timeout, format, retry) == (options.order, options.timeout, options.format, options.retry)
        && plan.template == before.template
        && plan.dead_letter == before.dead_letter
}

/// Makes the opener of an asynchronous handler from `open` and the options of the handler.
fn waits(open: OpenAsync, concurrency: u32, options: &HandlerOptions) -> Open {
    Open::Async { open, concurrency: concurrency as usize, timeout: options.timeout }
}

/// Calls a program's closure. If the thread of a handler is replaced, the new thread uses the same closure.
fn call(closure: &Mutex<OwnClosure>, batch: &Notification) -> Result<(), HandlerError> {
    match closure.try_lock() {
        Ok(mut closure) => closure(batch),
        // The closure panicked, and the panic was counted. The next call may still succeed.
        Err(TryLockError::Poisoned(closure)) => closure.into_inner()(batch),
        Err(TryLockError::WouldBlock) => Err(HandlerError::Failed("the last call has not returned yet".to_owned())),
    }
}

fn bounds(options: &HandlerOptions) -> Bounds {
    let buffer = &options.buffer;
    Bounds { max_events: size(buffer.max_events), max_bytes: size(buffer.max_bytes), when_full: buffer.when_full }
}

/// Compiles the rules of a handler; the error describes an invalid rule.
pub(super) fn rules(options: &HandlerOptions, cluster: &str) -> Result<Rules, String> {
    let changed = options.changed.iter().map(|path| FieldPath::parse(path)).collect::<Result<_, _>>();
    let changed = changed.map_err(|error| format!("`changed`: {error}"))?;
    let rules =
        RulesOptions { changed, when: options.when.clone(), cluster: cluster.to_owned(), ..RulesOptions::default() };
    Rules::compile(rules).map_err(|error| format!("`when`: {error}"))
}

/// Returns the formatter of a handler's events.
pub(super) fn formatter(
    encoder: &Encoder,
    format: config::DataFormat,
    template: Option<&str>,
) -> Result<Formatter, String> {
    if format != config::DataFormat::Template {
        return Ok(Formatter::new(encoder.clone(), format));
    }
    let template = Template::compile(template.ok_or("missing template")?);
    Ok(Formatter::of_template(encoder.clone(), template.map_err(|error| format!("template: {error}"))?))
}

/// Returns the route of a handler, which selects the events that the handler gets. The error describes an invalid option.
fn route(resources: &[String], options: &HandlerOptions, cluster: &str) -> Result<Route, String> {
    let resources = resources.iter().map(String::as_str);
    let route = Route::new(resources, changes(options), options.resync).map_err(|error| error.to_string())?;
    Ok(route.with_rules(rules(options, cluster)?))
}

/// Returns the kinds of changes that a handler gets if its rules accept them. With `initial = "skip"`, a handler does not get the
/// initial objects. It gets their next changes as updates or deletions (E2).
pub(super) fn changes(options: &HandlerOptions) -> ChangeSet {
    let on = options.on.iter().map(|event| ChangeSet::of(event.kind(), None));
    let on = on.fold(ChangeSet::default(), ChangeSet::with);
    let (added, updated) = (on.has(ChangeSet::ADDED), on.has(ChangeSet::UPDATED));
    let switches = [
        (ChangeSet::INITIAL, added && options.initial == Initial::Send),
        (ChangeSet::DOWNTIME, options.catch_up),
        (ChangeSet::UNCHANGED, updated && options.deliver_unchanged),
        (ChangeSet::RESYNC, updated && !options.resync.is_zero()),
    ];
    switches.into_iter().filter(|(_, is_on)| *is_on).fold(on, |all, (kind, _)| all.with(kind))
}

fn boxed(handler: impl Handler) -> Box<dyn Handler> {
    Box::new(handler)
}
