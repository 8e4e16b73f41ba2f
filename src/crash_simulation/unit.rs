//! One unit of the process: reflector, queue and cache, connected as in an informer.

use std::{sync::Arc, time::Duration};

use super::{Hits, configuration::Shape, site::Site};
use crate::{
    delta_fifo::{DeltaFifo, QueueOrder},
    engine::plan::reconcile::{First, RunningSpec},
    indexer::{
        Absence, FirstList, Indexer, IndexerOptions, Transaction,
        store::{EvmapStore, Meta, ReadStore as _},
    },
    informer::{Seed, Start, reflector_start},
    journal::{Ticket, UnitId},
    list_watch::{Failure, ListPage, ListRequest, WatchEvent},
    object::{FieldPath, IgnoredPaths, KeyRef, Object, ResourceVersion},
    reflector::{
        EndCause, Reflector, ReflectorAction, ReflectorConfig, ReflectorEvent, ReflectorInput, ReflectorReport,
        ReflectorStart,
    },
    simulator::random::Random,
    testing::Cursor,
};

/// Progress of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Planned,
    /// The batch has its positions, and the `i64` is its time. The batch is not written yet.
    Appended(Ticket, i64),
    Written(Ticket),
    Published(Ticket),
}

pub(super) struct Unit {
    pub(super) id: UnitId,
    pub(super) shape: Shape,
    pub(super) first: First,
    /// `None` until the unit is started.
    pub(super) run: Option<Run>,
    /// Set if the unit is from an earlier run, and was not started in this one.
    pub(super) saved: bool,
    pub(super) generation: u64,
    /// Set to print the unit's inputs.
    pub(super) traces: bool,
    config: ReflectorConfig,
    reflector: Reflector,
    pending: ReflectorAction,
    stream: Option<Cursor>,
    pub(super) fifo: DeltaFifo,
    pub(super) indexer: Indexer,
    first_list: FirstList,
    absence: Absence,
    reports: Vec<ReflectorReport>,
    /// Set when the reflector has emitted a change of a watch.
    has_changed: bool,
    pub(super) in_flight: Option<(Transaction, Stage)>,
}

/// Progress of a started unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Running,
    /// The unit was asked to stop, and has journaled everything that it had read.
    Stopped,
}

impl Unit {
    /// Creates a unit like [`Informer::new`](crate::informer::Informer::new).
    pub(super) fn new(id: UnitId, shape: Shape, first: First, config: ReflectorConfig, seed: Option<Seed>) -> Self {
        let Start { objects, reached, first_list, absence } = Start::of(seed);
        let mut store = EvmapStore::new(7, []);
        for object in &objects {
            store.put(object);
        }
        store.reach(reached);
        store.publish();
        let version = FieldPath::parse("metadata.resourceVersion").expect("it is a path");
        let ignored = Some(Arc::new(IgnoredPaths::new(&[version])));
        let indexer = Indexer::new(store, IndexerOptions { ignored, ..IndexerOptions::default() });
        let indexer = indexer.with_first_list(first_list).with_absence(absence.clone());
        Self {
            id,
            shape,
            first,
            run: None,
            saved: false,
            generation: 0,
            traces: false,
            config,
            reflector: Reflector::new(config, ReflectorStart::Fresh(ResourceVersion::unset())),
            pending: ReflectorAction::Keep,
            stream: None,
            fifo: DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), false),
            indexer,
            first_list,
            absence,
            reports: Vec::new(),
            has_changed: false,
            in_flight: None,
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.run == Some(Run::Running)
    }

    /// Returns the spec as the engine reconciles it.
    pub(super) fn running(&self) -> RunningSpec {
        let sound = self.runs() || self.run.is_none() && self.saved;
        let first = if self.indexer.store().meta().synced { First::Done } else { self.first };
        RunningSpec { id: self.id, spec: self.shape.spec(), first, sound, gone: false }
    }

    /// Returns the seed with which another unit of the same scope continues.
    pub(super) fn seed(&self) -> Seed {
        let objects = self.indexer.objects();
        let Meta { synced, store_version, resume_version, .. } = self.indexer.store().meta().clone();
        if synced {
            Seed::Resume { objects, store_version, resume_version, saved: self.absence.lasts() }
        } else {
            Seed::Relist { objects, version: store_version, first_list: self.first_list }
        }
    }

    pub(super) fn has_bodies(&self) -> bool {
        self.indexer.store().meta().synced || self.first_list.bodies
    }

    pub(super) fn is_readable(&self) -> bool {
        self.indexer.store().meta().synced || self.first_list.complete
    }

    /// Starts the stages from the published cache, as at each start of a unit.
    pub(super) fn launch(&mut self) {
        self.run = Some(Run::Running);
        self.generation += 1;
        let meta = self.indexer.store().meta().clone();
        let synced = meta.synced;
        let start = reflector_start(meta, &self.absence);
        self.fifo = DeltaFifo::new(QueueOrder::Stream, self.indexer.objects().into_iter(), synced);
        self.reflector = Reflector::new(self.config, start);
        (self.reports, self.has_changed) = (Vec::new(), false);
        (self.stream, self.pending) = (None, ReflectorAction::Keep);
    }

    fn feed(&mut self, input: ReflectorInput, now: Duration) {
        if self.traces {
            println!("     unit {} receives {input:?}", self.id.0);
        }
        let step = self.reflector.step(input, now, 0.5);
        self.reports.extend(step.reports);
        let is_change = |event: &ReflectorEvent| {
            matches!(event, ReflectorEvent::Added(_) | ReflectorEvent::Updated(_) | ReflectorEvent::Deleted(_))
        };
        self.has_changed |= step.events.iter().any(is_change);
        step.events.into_iter().for_each(|event| self.fifo.push(event));
        match step.action {
            ReflectorAction::Keep => {}
            ReflectorAction::Compare => {
                let comparison = self.fifo.compare(&self.reflector.held().expect("a list"));
                self.feed(ReflectorInput::Compared(comparison), now);
            }
            action => {
                if !matches!(action, ReflectorAction::Read { .. }) {
                    self.stream = None;
                }
                self.pending = action;
            }
        }
    }

    /// Executes the reflector's action; if `calm`, the server answers correctly.
    pub(super) fn advance(&mut self, site: &Site, lag: u64, now: &mut Duration, random: &mut Random, calm: bool) {
        let fails = !calm && random.chance(0.08);
        match self.pending.clone() {
            ReflectorAction::Keep => self.feed(ReflectorInput::Start, *now),
            ReflectorAction::List(_) if fails => self.feed(ReflectorInput::Page(Err(disconnected())), *now),
            ReflectorAction::List(request) if !calm && is_whole(&request) && random.chance(0.3) => {
                // a replica with an older version than requested
                let any = ListRequest { resource_version: ResourceVersion::any(), ..request };
                self.feed(ReflectorInput::Page(self.list(site, &any, 6)), *now);
            }
            ReflectorAction::List(request) => {
                let answer = self.list(site, &request, if calm { 0 } else { lag });
                self.feed(ReflectorInput::Page(answer), *now);
            }
            ReflectorAction::OpenWatch(_) if fails => self.feed(ReflectorInput::Opened(Err(disconnected())), *now),
            ReflectorAction::OpenWatch(request) => {
                let opened = site.collection.watch(&request, true, if calm { 0 } else { lag });
                let shape = self.shape;
                let opened = opened.map(|mut cursor| {
                    cursor.initial.retain(|event| selects(shape, event));
                    self.stream = Some(cursor);
                });
                self.feed(ReflectorInput::Opened(opened), *now);
            }
            ReflectorAction::Read { .. } if fails => self.feed(ReflectorInput::Ended(Ok(())), *now),
            ReflectorAction::Read { until } if until <= *now => self.feed(ReflectorInput::Timer, *now),
            ReflectorAction::Read { .. } => {
                let cursor = self.stream.as_mut().expect("a read needs an open stream");
                let mut batch = site.collection.poll(cursor, 1 + random.below(4));
                batch.retain(|event| selects(self.shape, event));
                if batch.is_empty() && (calm || random.chance(0.5)) {
                    batch.extend(site.collection.bookmark(cursor));
                }
                self.feed(ReflectorInput::Received(batch), *now);
            }
            ReflectorAction::Wait { until } => {
                *now = until.max(*now);
                self.feed(ReflectorInput::Timer, *now);
            }
            ReflectorAction::Compare | ReflectorAction::Done => unreachable!("neither is left pending"),
        }
    }

    fn list(&self, site: &Site, request: &ListRequest, lag: u64) -> Result<ListPage, Failure> {
        let mut page = site.collection.list(request, lag, true)?;
        page.items.retain(|object| self.shape.covers(object.namespace()));
        Ok(page)
    }

    /// Counts in `hits` how the unit continued after a stop.
    pub(super) fn note_return(&self, hits: &mut Hits) {
        for report in &self.reports {
            match report {
                ReflectorReport::VersionRefused { failure: Failure::Status(status), .. }
                | ReflectorReport::WatchStartFailed(Failure::Status(status))
                | ReflectorReport::WatchEnded { cause: EndCause::Error(status), .. }
                    if self.absence.lasts() && status.is_expired() =>
                {
                    hits.add("return: history was compacted");
                }
                ReflectorReport::OlderListRefused { .. } => hits.add("an older list was refused"),
                _ => {}
            }
        }
        if self.absence.lasts() && self.has_changed {
            hits.add("return: the watch went on");
        }
    }

    /// Returns true if the unit has emitted everything that the server has.
    pub(super) fn is_level(&self, site: &Site) -> bool {
        let at_end = self.stream.as_ref().is_some_and(|at| {
            at.initial.is_empty()
                && at.version == site.collection.version()
                && matches!(self.pending, ReflectorAction::Read { .. })
        });
        self.runs() && at_end && self.fifo.is_empty() && self.in_flight.is_none()
    }

    /// Returns an object as readers of the cache see it.
    pub(super) fn lookup(&self, key: KeyRef<'_>) -> Option<Object> {
        self.indexer.store().reader().read(|snapshot| snapshot.get(key).cloned())
    }
}

/// Returns true if the server sends an event to a unit of this shape.
fn selects(shape: Shape, event: &WatchEvent) -> bool {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            shape.covers(object.namespace())
        }
        _ => true,
    }
}

/// Returns true if a list requests its first page and names a version: any state at least as new is accepted.
fn is_whole(request: &ListRequest) -> bool {
    !request.resource_version.is_unset() && request.continue_token.is_none()
}

fn disconnected() -> Failure {
    Failure::Disconnected("cut".into())
}
