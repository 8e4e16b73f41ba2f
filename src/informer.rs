//! Unit of restart for one resource type: reflector → DeltaFIFO → indexer.
//!
//! An [`Informer`] contains the parts that survive its actors: the slot of the indexer, the read handles and the visible state.
//! [`Informer::launch`] starts the three actors on the current arbiter. The actors resume from the content of the cache.

pub(crate) mod actor;
mod running;
#[cfg(test)]
mod tests;

use std::{
    rc::Rc,
    sync::{Arc, Mutex, TryLockError, atomic::AtomicU32},
    time::Duration,
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tracing::error;

use crate::{
    change::{Change, Reached},
    delta_fifo::{DeltaFifo, QueueOrder, actor::DeltaFifoActor, messages::Consumer},
    indexer::{
        Absence, FirstList, Indexer, IndexerOptions,
        actor::IndexerActor,
        attachment_changes,
        index_func::IndexFunc,
        put_kept,
        siblings::Siblings,
        slot::{IndexerLease, IndexerSlot},
        store::{EvmapStore, Meta, ReadStore as _, ReaderFactory, StoreReader},
        view,
        writer::{IndexerWriter, finish, recover},
    },
    journal::{AppendError, Attachment, Journal, NotWritable, UnitId, UnitWriter},
    list_watch::{
        ListWatch,
        kube::Scope,
        scoped::{Gate, Scoped},
    },
    lister::Lister,
    mutex::lock,
    object::{Object, ResourceType, ResourceVersion, scan::ScanPlan},
    reflector::{
        Reflector, ReflectorConfig, ReflectorStart,
        actor::ReflectorActor,
        messages::{Queue, UnitHooks},
        run::ReflectorRun,
    },
    status::{Timings, UnitStatus},
    supervisor::{Supervision, arbiters::Arbiters, child::spawn},
};
pub use running::Actors;

/// Options of one unit.
#[derive(Clone, Debug, Default)]
pub struct InformerOptions {
    /// Options of the reflector.
    pub reflector: ReflectorConfig,
    /// Objects that the reflector requests.
    pub scope: Scope,
    /// Filter and transformation of arriving objects.
    pub gate: Gate,
    /// Parts that are cut from objects.
    pub plan: ScanPlan,
    /// Order of the queue.
    pub order: QueueOrder,
    /// Limit for the queued objects, in bytes. Above the limit, the socket is not read.
    pub fifo_max_bytes: usize,
    /// Options of the cache. A cache without bodies has no resync and no replay, because it holds no objects to deliver again.
    pub indexer: IndexerOptions,
    /// Indexes in addition to the index of namespaces.
    pub indexers: Vec<IndexFunc>,
    /// Warnings about filtered or cut data, for readers of the whole type. They are sent in the HTTP header `Warning: 299`.
    pub warnings: Vec<String>,
}

/// Initial content of a unit's cache, from the units that this unit replaces. Readers see the content at once.
#[derive(Clone, Debug)]
pub enum Seed {
    /// The unit fetches the same data as before. The watch continues, without a list and without events.
    Resume {
        /// All cached objects.
        objects: Vec<Object>,
        /// See [`Meta::store_version`].
        store_version: ResourceVersion,
        /// See [`Meta::resume_version`]. If it is unset, the unit starts with a list.
        resume_version: ResourceVersion,
        /// Set if the objects were saved by an earlier run of the process. The watch then continues only if the server is not older
        /// than the objects. If the server first sends a list, the differences between list and objects have the cause
        /// [`Downtime`](crate::change::Cause::Downtime).
        saved: bool,
    },
    /// The unit fetches other data than before, or no version allows resuming. The first list is compared with the objects.
    Relist {
        /// Objects in the scope of the unit.
        objects: Vec<Object>,
        /// Newest version of the caches that contained the objects. The first list must not be older, because it would delete newer
        /// objects. Unset if no version is known.
        version: ResourceVersion,
        /// Cause of the differences, and properties of the cache that contained the objects.
        first_list: FirstList,
    },
}

/// Content of a new cache, from a [`Seed`] or without one.
pub(crate) struct Start {
    pub(crate) objects: Vec<Object>,
    /// Versions that the objects have. If they are synced, the unit continues with a watch.
    pub(crate) reached: Reached,
    pub(crate) first_list: FirstList,
    pub(crate) absence: Absence,
}

impl Start {
    pub(crate) fn of(seed: Option<Seed>) -> Self {
        let (mut reached, mut absence) = (Reached { generation: 1, ..Reached::default() }, Absence::default());
        let (objects, first_list) = match seed {
            None => (Vec::new(), FirstList::default()),
            Some(Seed::Relist { objects, version, first_list }) => {
                reached.store_version = version;
                (objects, first_list)
            }
            Some(Seed::Resume { objects, store_version, resume_version, saved }) => {
                reached = Reached { store_version, resume_version, synced: true, ..reached };
                if saved {
                    absence = Absence::begun();
                }
                (objects, FirstList::default())
            }
        };
        Self { objects, reached, first_list, absence }
    }
}

/// Returns the start of the reflector of a unit whose cache has this metadata.
pub(crate) fn reflector_start(meta: Meta, absence: &Absence) -> ReflectorStart {
    match meta.synced {
        true if absence.lasts() => ReflectorStart::Saved(meta.resume_version),
        true => ReflectorStart::Resume(meta.resume_version),
        false => ReflectorStart::Fresh(meta.store_version),
    }
}

/// Factory of a unit's source, called on the arbiter that uses the source.
pub trait SourceFactory: Send + Sync {
    /// Returns a source for `informer`'s type in its scope. An error is text for the log.
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String>;
}

/// Parts that all units of an engine share.
#[derive(Clone)]
pub struct Shared {
    /// Journal to which changes are appended.
    pub journal: Journal,
    /// Factory of the sources of objects.
    pub sources: Arc<dyn SourceFactory>,
    /// Permits for `max_concurrent_lists`.
    pub list_permits: Arc<Semaphore>,
    /// Histograms of the units.
    pub timings: Arc<Timings>,
    /// Threads of the units.
    pub arbiters: Arc<Arbiters>,
    /// Options of the supervisors.
    pub supervision: Supervision,
}

/// Unit that watches one resource type: the parts that survive the unit's actors.
pub struct Informer {
    /// Id of the unit in this engine.
    pub id: UnitId,
    /// Name of the unit's `[resources.*]` entry.
    pub entry: String,
    /// Type of the objects.
    pub resource: Arc<ResourceType>,
    /// Options of the unit.
    pub options: InformerOptions,
    /// Visible status.
    pub status: Arc<UnitStatus>,
    siblings: Arc<Siblings>,
    first_list: FirstList,
    absence: Absence,
    /// Number of the last resync, counted from 1.
    round: Arc<AtomicU32>,
    slot: ArcSwap<IndexerSlot>,
    readers: ArcSwap<ReaderFactory>,
    /// Latest generation. Only a start with a later generation may take the indexer.
    generation: Mutex<u64>,
}

impl Informer {
    /// Creates an informer whose cache contains the objects of `seed`, or nothing. `siblings` are the units of its type.
    pub fn new(
        id: UnitId,
        entry: &str,
        resource: Arc<ResourceType>,
        options: InformerOptions,
        siblings: Arc<Siblings>,
        seed: Option<Seed>,
    ) -> Self {
        let Start { mut objects, reached, first_list, absence } = Start::of(seed);
        if !reached.synced {
            // Another unit admitted these objects: they may contain values that must be redacted now.
            objects = objects.into_iter().filter_map(|object| options.gate.pass_cached(object)).collect();
        }
        let mut store = EvmapStore::new(rand::random(), options.indexers.clone());
        if !objects.is_empty() || reached.synced || !reached.store_version.is_unset() {
            for object in &objects {
                put_kept(&mut store, &options.indexer.keep, object);
            }
            store.reach(reached);
            store.publish();
        }
        let status = UnitStatus::new(entry, &resource, options.scope.namespace.as_deref());
        let status = Arc::new(status.with_redact_errors(Arc::clone(&options.gate.doubts)));
        view::show(&mut status.lock(), store.meta());
        siblings.join(id, store.meta().synced, store.meta().objects);
        let readers = store.reader_factory();
        let indexer = Indexer::new(store, options.indexer.clone());
        let indexer = indexer.with_first_list(first_list).with_absence(absence.clone());
        Self {
            id,
            entry: entry.to_owned(),
            resource,
            options,
            status,
            siblings,
            first_list,
            absence,
            round: Arc::default(),
            readers: ArcSwap::from_pointee(readers),
            slot: ArcSwap::from(IndexerSlot::new(indexer)),
            generation: Mutex::default(),
        }
    }

    /// Returns every object that readers see, in no particular order.
    pub fn objects(&self) -> Vec<Object> {
        self.readers.load().reader().read(|snapshot| {
            let mut objects = Vec::new();
            snapshot.for_each(&mut |object| objects.push(object.clone()));
            objects
        })
    }

    /// Returns true if reads can be answered: the unit has synced, or continues with the cache of an earlier unit.
    pub fn is_readable(&self) -> bool {
        self.first_list.complete || self.meta().synced
    }

    /// Gives watch events the cause [`Downtime`](crate::change::Cause::Downtime) if their changes happened before the server's first
    /// answer. Changes from the first list have this cause anyway. Call this function before the actors start.
    pub fn name_what_was_missed(&self) {
        self.absence.be_named();
    }

    /// Returns the seed with which another unit of the same scope continues. The actors of this unit must have ended.
    pub fn seed(&self) -> Seed {
        let objects = self.objects();
        let Meta { synced, store_version, resume_version, .. } = self.meta();
        if synced {
            Seed::Resume { objects, store_version, resume_version, saved: self.absence.lasts() }
        } else {
            Seed::Relist { objects, version: store_version, first_list: self.first_list }
        }
    }

    /// Returns true if the cache has the bodies of all its objects. A unit of another scope, or with other options, can then
    /// compare its first list with these bodies.
    pub fn has_bodies(&self) -> bool {
        self.options.indexer.keep.is_whole() && (self.meta().synced || self.first_list.bodies)
    }

    /// Appends and releases the last records of a unit whose actors have ended for good: see
    /// [`retirement`](crate::indexer::retirement). If only this unit was not synced yet, its type becomes synced. Afterwards
    /// no actor of the unit can append anything. After an error, call `retire` again when the journal is
    /// [writable](Journal::writable).
    ///
    /// If a restart finds that the unit continues, because it was not marked as retired, it lists again: its saved objects no
    /// longer include those of `changes`.
    pub fn retire(&self, journal: &Journal, changes: &[Change]) -> Result<(), NotWritable> {
        self.end(journal, |writer| {
            let ticket = self.siblings.leave(self.id, |total| {
                let mut reached = self.meta().reached();
                let is_synced =
                    total.map(|objects| Change::Synced { objects, resource_version: reached.store_version.clone() });
                reached.synced &= changes.is_empty();
                let changes: Vec<_> = changes.iter().cloned().chain(is_synced).collect();
                journal.append(writer, &changes, &reached, Timestamp::now())
            })?;
            journal.release(ticket);
            Ok(())
        })
    }

    /// Attaches a reader to the unit, or detaches it, while no actor of the unit runs: before the first start, or after the last
    /// stop. See [`AttachReader`](crate::indexer::actor::AttachReader). An error changes nothing.
    pub fn attach_reader(&self, journal: &Journal, asked: Attachment) -> Result<(), NotWritable> {
        let generation = lock(&self.generation); // no actor starts meanwhile
        let changes = attachment_changes(asked.kind, &self.options.indexer.keep, || self.objects());
        match journal.attach(asked, self.id.writer(*generation), &changes, Timestamp::now()) {
            Err(AppendError::NotWritable(why)) => return Err(why),
            Err(AppendError::Fenced(fenced)) => {
                error!(resource = %self.resource, error = %fenced, "failed to add or remove a handler of a unit that does not run");
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Starts a new generation, and calls `append` with its writer. Actors of earlier generations can then append nothing. If a later generation
    /// has begun, nothing is appended, and the error is logged.
    fn end(
        &self,
        journal: &Journal,
        append: impl FnOnce(UnitWriter) -> Result<(), AppendError>,
    ) -> Result<(), NotWritable> {
        let mut current = lock(&self.generation);
        *current += 1;
        let writer = self.id.writer(*current);
        journal.fence(writer);
        match append(writer) {
            Err(AppendError::NotWritable(why)) => return Err(why),
            Err(AppendError::Fenced(fenced)) => {
                error!(resource = %self.resource, error = %fenced, "failed to append the last events of a stopped unit to the journal");
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Returns the metadata of the cache, in the version that readers see now.
    pub fn meta(&self) -> Meta {
        self.readers.load().reader().read(|snapshot| snapshot.meta().clone())
    }

    /// Returns the factory of readers of this unit's present cache. Readers of a whole type also follow the replacement of units:
    /// see [`Caches`](crate::indexer::union::Caches).
    pub fn reader_factory(&self) -> ReaderFactory {
        ReaderFactory::clone(&self.readers.load())
    }

    /// Returns a reader of the cache. Each thread needs its own: clone it, or call this again.
    pub fn lister(&self) -> Lister<StoreReader> {
        Lister::new(self.readers.load().reader(), Arc::clone(&self.resource))
    }

    /// Starts the three actors on the current arbiter.
    ///
    /// The indexer is taken from its slot. If a hung actor still holds the indexer, a new indexer is made.
    ///
    /// # Errors
    /// Fails if no client can be created, if another start is in progress, or if a newer one has begun. A start that fails does
    /// not take the indexer.
    pub fn launch(&self, generation: u64, shared: &Shared) -> Result<Actors, String> {
        let source = shared.sources.source(self).map_err(|error| format!("cannot create a client: {error}"))?;
        let source = Scoped::wrap(source, &self.options.gate);
        let mut lease = self.lease(generation, &shared.journal).ok_or("another start is in progress")?;

        let meta = lease.indexer().store().meta().clone();
        let synced = meta.synced;
        let start = reflector_start(meta, &self.absence);
        let keep = &self.options.indexer.keep;
        let fifo = DeltaFifo::new(self.options.order, self.objects().into_iter(), synced).keeping(keep.clone());
        let status = || Arc::clone(&self.status);

        let siblings = Arc::clone(&self.siblings);
        let indexer = IndexerActor::new(IndexerWriter::new(
            lease,
            shared.journal.clone(),
            self.id.writer(generation),
            siblings,
            status(),
        ));
        let (indexer, indexer_exit) = spawn(indexer);
        let consumer = Consumer { apply: indexer.clone().recipient(), repacked: indexer.clone().recipient() };
        let timings = || Arc::clone(&shared.timings);
        let fifo = DeltaFifoActor::new(fifo, consumer, self.options.fifo_max_bytes, status(), timings());
        let (fifo, fifo_exit) = spawn(fifo);
        let mut config = self.options.reflector;
        if !keep.is_whole() {
            config.resync_period = Duration::ZERO;
        }
        let reflector = Reflector::new(config, start);
        let permits = Arc::clone(&shared.list_permits);
        let (journal, unit, absence) = (shared.journal.clone(), self.id, self.absence.clone());
        let reflector = ReflectorRun::new(
            reflector,
            source,
            Queue { events: fifo.clone().recipient(), compare: fifo.clone().recipient() },
            permits,
            Arc::clone(&self.resource),
            keep.clone(),
            UnitHooks {
                status: status(),
                timings: timings(),
                round: Arc::clone(&self.round),
                is_due: Box::new(move |round| journal.is_resync_due(unit, round)),
                server_is_at: Box::new(move |version| absence.server_is_at(version)),
            },
        );
        let (reflector, reflector_exit) = spawn(ReflectorActor::new(reflector));
        Ok(Actors { reflector, fifo, indexer, exits: [reflector_exit, fifo_exit, indexer_exit] })
    }

    fn lease(&self, generation: u64, journal: &Journal) -> Option<IndexerLease> {
        let mut current = match self.generation.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None, // a blocked start must not block others
        };
        if generation <= *current {
            return None;
        }
        *current = generation;
        journal.fence(self.id.writer(generation));
        if let Some(mut lease) = self.slot.load().lease() {
            recover(&mut lease, journal, self.id, &self.status);
            return Some(lease);
        }
        self.replace_indexer(journal);
        self.slot.load().lease()
    }

    /// Finishes the work of a hung actor. `generation` is a fence: the actor can no longer append to the journal. A new indexer starts
    /// with the objects that readers see. The new indexer publishes and releases the records that the actor has appended.
    pub fn take_over(&self, generation: u64, journal: &Journal) {
        drop(self.lease(generation, journal));
    }

    /// Makes a new indexer from the objects that readers see (a new generation). All readers continue with the new indexer. The
    /// hung actor keeps the old one. Set the fence first: the hung actor then cannot append, and can only finish the records that
    /// it has appended.
    fn replace_indexer(&self, journal: &Journal) {
        // Read the transaction before the ticket. If the actor finishes between the two reads, there is no ticket. If it finishes
        // later, its transaction is applied a second time, which does no harm.
        let in_flight = self.slot.load().in_flight();
        let ticket = journal.outstanding(self.id);
        let meta = self.meta();
        let mut store = EvmapStore::new(rand::random(), meta.indexes.as_slice().iter().cloned());
        self.objects().into_iter().for_each(|object| store.put(&object));
        store.reach_position(meta.position);
        store.reach(Reached { generation: meta.generation + 1, ..meta.reached() });
        store.publish();
        let indexer = Indexer::new(store, self.options.indexer.clone());
        let mut indexer = indexer.with_first_list(self.first_list).with_absence(self.absence.clone());
        finish(&mut indexer, in_flight.as_deref(), ticket, &self.status);
        let readers = indexer.store().reader_factory();
        self.readers.swap(Arc::new(readers.clone())).lead_to(readers);
        self.slot.store(IndexerSlot::new(indexer));
        if let Some(ticket) = ticket {
            journal.release(ticket);
        }
    }
}

impl std::fmt::Debug for Informer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer").field("id", &self.id).field("resource", &self.resource).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Units for tests.

    use super::*;
    use crate::{backoff::BackoffConfig, reflector::StreamingLists};

    /// Returns options with short delays. Lists are paged, because the objects of a streaming list have no fixed order.
    pub(crate) fn options() -> InformerOptions {
        let short = Duration::from_millis(5);
        let backoff =
            BackoffConfig { initial: short, factor: 1.0, jitter: 0.0, max: short, ..BackoffConfig::default() };
        let reflector =
            ReflectorConfig { backoff, streaming_lists: StreamingLists::Never, ..ReflectorConfig::default() };
        InformerOptions { reflector, fifo_max_bytes: 1 << 20, ..InformerOptions::default() }
    }
}
