//! One unit of the process: reflector, queue and cache, connected as in an informer.

use std::{sync::Arc, time::Duration};

use super::{Hits, site::Site};
use crate::{
    change::Reached,
    delta_fifo::{DeltaFifo, QueueOrder},
    indexer::{
        Absence, FirstList, Indexer, IndexerOptions, Transaction,
        store::{EvmapStore, Meta, ReadStore as _},
    },
    journal::{Ticket, UnitId},
    list_watch::{Failure, ListRequest},
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
    pub(super) epoch: u64,
    /// Set to print the unit's inputs.
    pub(super) traces: bool,
    config: ReflectorConfig,
    reflector: Reflector,
    pending: ReflectorAction,
    stream: Option<Cursor>,
    pub(super) fifo: DeltaFifo,
    pub(super) indexer: Indexer,
    absence: Absence,
    /// Reports of the reflector.
    reports: Vec<ReflectorReport>,
    /// Set when the reflector has emitted a change of a watch.
    has_changed: bool,
    pub(super) in_flight: Option<(Transaction, Stage)>,
}

impl Unit {
    /// Creates a unit from the saved state of an earlier run.
    pub(super) fn restored(id: UnitId, config: ReflectorConfig, objects: &[Object], reached: &Reached) -> Self {
        let absence = if reached.synced { Absence::begun() } else { Absence::default() };
        let mut store = EvmapStore::new(7, []);
        for object in objects {
            store.put(object);
        }
        store.reach(Reached { generation: 1, ..reached.clone() });
        store.publish();
        let version = FieldPath::parse("metadata.resourceVersion").expect("it is a path");
        let ignored = Some(Arc::new(IgnoredPaths::new(&[version])));
        let indexer = Indexer::new(store, IndexerOptions { ignored, ..IndexerOptions::default() });
        let indexer = indexer.with_first_list(FirstList::default()).with_absence(absence.clone());
        let mut unit = Self {
            id,
            epoch: 0,
            traces: false,
            config,
            reflector: Reflector::new(config, ReflectorStart::Fresh),
            pending: ReflectorAction::Keep,
            stream: None,
            fifo: DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), false),
            indexer,
            absence,
            reports: Vec::new(),
            has_changed: false,
            in_flight: None,
        };
        unit.launch();
        unit
    }

    /// Starts the stages from the published cache, as at each start of a unit.
    pub(super) fn launch(&mut self) {
        self.epoch += 1;
        let Meta { synced, resume_version, .. } = self.indexer.store().meta().clone();
        let start = match synced {
            true if self.absence.lasts() => ReflectorStart::Saved(resume_version),
            true => ReflectorStart::Resume(resume_version),
            false => ReflectorStart::Fresh,
        };
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
                self.feed(ReflectorInput::Page(site.collection.list(&any, 6, true)), *now);
            }
            ReflectorAction::List(request) => {
                let answer = site.collection.list(&request, if calm { 0 } else { lag }, true);
                self.feed(ReflectorInput::Page(answer), *now);
            }
            ReflectorAction::OpenWatch(_) if fails => self.feed(ReflectorInput::Opened(Err(disconnected())), *now),
            ReflectorAction::OpenWatch(request) => {
                let opened = site.collection.watch(&request, true, if calm { 0 } else { lag });
                let opened = opened.map(|cursor| self.stream = Some(cursor));
                self.feed(ReflectorInput::Opened(opened), *now);
            }
            ReflectorAction::Read { .. } if fails => self.feed(ReflectorInput::Ended(Ok(())), *now),
            ReflectorAction::Read { until } if until <= *now => self.feed(ReflectorInput::Timer, *now),
            ReflectorAction::Read { .. } => {
                let cursor = self.stream.as_mut().expect("a read needs an open stream");
                let mut batch = site.collection.poll(cursor, 1 + random.below(4));
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
        at_end && self.fifo.is_empty() && self.in_flight.is_none()
    }

    /// Returns an object as readers of the cache see it.
    pub(super) fn lookup(&self, key: KeyRef<'_>) -> Option<Object> {
        self.indexer.store().reader().read(|snapshot| snapshot.get(key).cloned())
    }
}

/// Returns true if a list requests its first page and names a version: any state at least as new is accepted.
fn is_whole(request: &ListRequest) -> bool {
    !request.resource_version.is_unset() && request.continue_token.is_none()
}

fn disconnected() -> Failure {
    Failure::Disconnected("cut".into())
}
