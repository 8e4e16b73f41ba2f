//! Makes handlers and their lanes of the configuration.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::Recipient;
use tokio::time::Instant;

use super::{EngineError, StopReport, options};
use crate::{
    cloud_event::Encoder,
    config::{self, Config, EventType, HandlerOptions},
    dispatcher::{
        Notification, Route, RouteOptions,
        actor::{DispatcherActor, LaneOptions, LaneSlot, Lanes},
    },
    handler::{
        Handler, HandlerError, RetryPolicy,
        actor::{LaneActorOptions, Sink},
        blackhole::Blackhole,
        file::{Compression, FileHandler, FileOptions, Fsync},
        lane::{OpenHandler, Worker},
        status::{HandlerStatus, HandlerView},
        stdout::Stdout,
    },
    journal::{Bounds, ChangeSet, EventName, Journal, WhenFull},
    registry::Registry,
    supervisor::{
        child::{Harm, Inject, Moment},
        keeper::Keeper,
    },
};

/// Largest batch a handler is given: events.
const BATCH_EVENTS: usize = 1_000;
/// Largest batch a handler is given: bytes of bodies.
const BATCH_BYTES: usize = 8 << 20;

/// A handler of the library's user: an actor that takes [`Notification`]s.
pub struct OwnHandler {
    /// Its name, as `/v1/handlers` shows it.
    pub name: String,
    /// Names or globs of `[resources.*]`.
    pub resources: Vec<String>,
    /// What it gets, and what may wait for it.
    pub options: HandlerOptions,
    /// The actor.
    pub actor: Recipient<Notification>,
}

/// What all handlers show.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusBoard {
    handlers: Vec<Arc<HandlerStatus>>,
}

impl StatusBoard {
    pub(super) fn views(&self) -> Vec<HandlerView> {
        let now = jiff::Timestamp::now();
        self.handlers.iter().map(|status| status.view(now)).collect()
    }
}

/// The running end of the stream.
pub(super) struct Delivery {
    pub(super) lanes: Lanes,
    pub(super) board: StatusBoard,
    dispatcher: Keeper<DispatcherActor>,
    hooks: HashMap<String, (LaneSlot, Sink)>,
}

/// Test hook: where harm is done to a handler.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// In the actor at the end of its lane, at once.
    Lane,
    /// On its thread, with the next batch.
    Thread,
}

impl Delivery {
    /// Delivers what is left until the deadline, and closes the handlers. It needs no dispatcher that lives.
    pub(super) async fn stop(&self, within: Duration, registry: &Registry) -> StopReport {
        self.dispatcher.release();
        let leftovers = self.lanes.clone().shut_down(Instant::now() + within).await;
        self.dispatcher.end().await;
        let named = |leftover: crate::dispatcher::actor::Leftover| {
            let name = |event: &EventName| match registry.find_unit(event.unit) {
                Some(unit) => format!("{} {event}", unit.resource),
                None => event.to_string(),
            };
            let names = leftover.named.iter().map(name).collect();
            (leftover.handler, leftover.events, names)
        };
        StopReport { undelivered: leftovers.into_iter().map(named).collect() }
    }

    /// Test hook: does harm to the dispatcher.
    pub(super) fn sabotage_dispatcher(&self, harm: Harm) {
        drop(self.dispatcher.address().try_send(Inject(harm, Moment::Now)));
    }

    /// Test hook: does harm to a handler.
    pub(super) fn sabotage_handler(&self, name: &str, spot: Spot, harm: Harm) {
        match self.hooks.get(name) {
            Some((_, Sink::Thread(worker))) if spot == Spot::Thread => worker.sabotage(harm),
            Some((lane, _)) => {
                if let Some(hook) = lane.get().and_then(|address| address.hook) {
                    drop(hook.try_send(Inject(harm, Moment::Now)));
                }
            }
            None => {}
        }
    }
}

/// Starts the dispatcher with a lane for each enabled handler.
pub(super) fn start(
    config: &Config,
    cluster: &str,
    journal: &Journal,
    own_handlers: &[OwnHandler],
) -> Result<Delivery, EngineError> {
    let enabled = || config.handlers.iter().filter(|(_, handler)| handler.enabled);
    let slots: HashMap<&str, LaneSlot> = enabled().map(|(name, _)| (name.as_str(), LaneSlot::default())).collect();
    let takes_dead_letters = |name: &str| enabled().any(|(_, handler)| handler.dead_letter.as_deref() == Some(name));
    let supervision = options::supervisor(&config.supervision);
    let mut lanes = Builder {
        lanes: Lanes::new(journal.clone(), supervision),
        journal,
        board: StatusBoard::default(),
        hooks: HashMap::new(),
    };
    for (name, handler) in enabled() {
        let sink = sink(name, &handler.sink, supervision.hung_after, &Encoder::new(cluster, journal.id()))
            .map_err(|error| EngineError::Handler { name: name.clone(), error: error.to_string() })?;
        lanes.add(NewLane {
            name,
            kind: handler.sink.type_name(),
            resources: &entries_of(config, handler),
            options: &handler.options,
            sink,
            slot: slots[name.as_str()].clone(),
            dead_letter: handler.dead_letter.as_deref().and_then(|name| slots.get(name)).cloned(),
            takes_dead_letters: takes_dead_letters(name),
        })?;
    }
    for OwnHandler { name, resources, options, actor } in own_handlers {
        lanes.add(NewLane {
            name,
            kind: "actor",
            resources,
            options,
            sink: Sink::Actor(actor.clone(), supervision.hung_after),
            slot: LaneSlot::default(),
            dead_letter: None,
            takes_dead_letters: false,
        })?;
    }
    let Builder { lanes, board, hooks, .. } = lanes;
    let kept = lanes.clone();
    let dispatcher = Keeper::start("dispatcher", &supervision, move || DispatcherActor::new(kept.clone()));
    Ok(Delivery { lanes, board, dispatcher, hooks })
}

struct NewLane<'a> {
    name: &'a str,
    kind: &'a str,
    resources: &'a [String],
    options: &'a HandlerOptions,
    sink: Sink,
    slot: LaneSlot,
    dead_letter: Option<LaneSlot>,
    takes_dead_letters: bool,
}

struct Builder<'a> {
    lanes: Lanes,
    journal: &'a Journal,
    board: StatusBoard,
    hooks: HashMap<String, (LaneSlot, Sink)>,
}

impl Builder<'_> {
    fn add(&mut self, lane: NewLane<'_>) -> Result<(), EngineError> {
        let refused = |error: String| EngineError::Handler { name: lane.name.to_owned(), error };
        let route = Route::new(&route(lane.resources, lane.options)).map_err(|error| refused(error.to_string()))?;
        let status = Arc::new(HandlerStatus::new(lane.name, lane.kind));
        self.hooks.insert(lane.name.to_owned(), (lane.slot.clone(), lane.sink.clone()));
        let actor = LaneActorOptions {
            sink: lane.sink,
            retry: retry(&lane.options.retry),
            dead_letter: lane.dead_letter,
            status: Arc::clone(&status),
        };
        let buffer = &lane.options.buffer;
        let reader = self
            .lanes
            .add_lane(LaneOptions {
                name: lane.name.to_owned(),
                route,
                bounds: Bounds {
                    max_events: usize::try_from(buffer.max_events).unwrap_or(usize::MAX),
                    max_bytes: usize::try_from(buffer.max_bytes).unwrap_or(usize::MAX),
                    when_full: match buffer.when_full {
                        config::WhenFull::Coalesce => WhenFull::Coalesce,
                        config::WhenFull::DropOldest => WhenFull::DropOldest,
                        config::WhenFull::DropNewest => WhenFull::DropNewest,
                    },
                },
                batch_events: BATCH_EVENTS,
                batch_bytes: BATCH_BYTES,
                dead_letter: lane.takes_dead_letters,
                slot: lane.slot,
                start: Box::new(move || actor.start()),
            })
            .map_err(|error| refused(error.to_string()))?;
        status.attach(self.journal.clone(), reader);
        self.board.handlers.push(status);
        Ok(())
    }
}

/// Returns the names of the `[resources.*]` that a handler takes.
fn entries_of(config: &Config, handler: &config::Handler) -> Vec<String> {
    config.resources.keys().filter(|entry| handler.takes(entry)).cloned().collect()
}

fn route(resources: &[String], options: &HandlerOptions) -> RouteOptions {
    let changes = options.on.iter().map(|event| match event {
        EventType::Added => ChangeSet::ADDED,
        EventType::Updated => ChangeSet::UPDATED,
        EventType::Deleted => ChangeSet::DELETED,
        EventType::Removed => ChangeSet::REMOVED,
        EventType::Synced => ChangeSet::SYNCED,
    });
    RouteOptions {
        resources: resources.to_vec(),
        on: changes.fold(ChangeSet::default(), ChangeSet::with),
        initial: options.initial == config::Initial::Send,
        deliver_unchanged: options.deliver_unchanged,
        resync: !options.resync.is_zero(),
    }
}

fn retry(retry: &config::Retry) -> RetryPolicy {
    RetryPolicy { initial: retry.initial, max: retry.max, jitter: retry.jitter, give_up_after: retry.give_up_after }
}

fn sink(name: &str, sink: &config::Sink, hung_after: Duration, encoder: &Encoder) -> std::io::Result<Sink> {
    let encoder = encoder.clone();
    let open: OpenHandler = match sink {
        config::Sink::Blackhole => return Ok(Sink::InPlace(Arc::new(Mutex::new(Blackhole::default())))),
        config::Sink::Stdout => Box::new(move || Ok(boxed(Stdout::new(encoder.clone())))),
        config::Sink::File(options) => {
            let options = file_options(options);
            FileHandler::check(&options).map_err(|error| {
                io::Error::other(format!("{error}; set [handlers.{name}] path to a file that this user can write"))
            })?;
            Box::new(move || Ok::<_, HandlerError>(boxed(FileHandler::new(options.clone(), encoder.clone())?)))
        }
    };
    Ok(Sink::Thread(Worker::spawn(name, hung_after, open)?))
}

fn boxed(handler: impl Handler) -> Box<dyn Handler> {
    Box::new(handler)
}

fn file_options(sink: &config::FileSink) -> FileOptions {
    let rotate = sink.rotate.as_ref();
    FileOptions {
        path: sink.path.clone(),
        max_bytes: rotate.map(|rotate| rotate.max_bytes),
        keep: rotate.map(|rotate| rotate.keep as usize),
        compression: match rotate.map(|rotate| rotate.compress) {
            Some(config::Compress::Zstd) => Compression::Zstd,
            Some(config::Compress::None) | None => Compression::None,
        },
        fsync: match sink.fsync {
            config::Fsync::Always => Fsync::Always,
            config::Fsync::Never => Fsync::Never,
            config::Fsync::Interval(interval) => Fsync::Interval(interval),
        },
    }
}
