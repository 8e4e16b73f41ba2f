//! Wires one resource type: reflector → DeltaFIFO → indexer, the unit of restart (D6).
//!
//! An [`Informer`] is what outlives its actors: the slot that holds the indexer, the read handles, the visible state.
//! [`Informer::launch`] starts the three actors on the current arbiter, resuming from what the cache holds.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, TryLockError},
};

use actix::Addr;
use arc_swap::ArcSwap;
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::{
    delta_fifo::{DeltaFifo, Order, actor::DeltaFifoActor},
    indexer::{
        Indexer, IndexerOptions,
        actor::{IndexerActor, IndexerLease, IndexerSlot, finish},
        index_func::IndexFunc,
        store::{EvmapStore, IndexStore as _, Meta, Reached, ReadStore as _, ReaderFactory},
    },
    journal::{Journal, UnitId},
    list_watch::{ListWatch, kube::Scope},
    lister::Lister,
    object::{ResourceType, SharedObject, scan::ScanPlan},
    reflector::{Reflector, ReflectorConfig, Start, actor::ReflectorActor},
    status::UnitStatus,
    supervisor::child::spawn,
};

/// How one unit is watched and kept.
#[derive(Clone, Debug)]
pub struct InformerOptions {
    /// Of the reflector.
    pub reflector: ReflectorConfig,
    /// What is asked for.
    pub scope: Scope,
    /// What is cut from objects.
    pub plan: ScanPlan,
    /// Of the queue.
    pub order: Order,
    /// Bytes of queued objects at which the socket is not read.
    pub fifo_max_bytes: usize,
    /// Of the cache.
    pub indexer: IndexerOptions,
    /// Indexes beside the one by namespace.
    pub indexers: Vec<IndexFunc>,
    /// What a reader of the whole type should know: what is filtered or cut. Sent as `Warning: 299`.
    pub warnings: Vec<String>,
    /// Only metadata is kept because values must not travel (D11).
    pub hides_values: bool,
}

/// Makes the source of a unit, on the arbiter that will use it.
pub trait SourceFactory: Send + Sync {
    /// Returns a source for `informer`'s type in its scope.
    ///
    /// # Errors
    /// A sentence for people, when no client can be made.
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String>;
}

/// What the units of an engine share.
#[derive(Clone)]
pub struct Shared {
    /// Where changes are appended.
    pub journal: Journal,
    /// Where objects come from.
    pub sources: Arc<dyn SourceFactory>,
    /// `max_concurrent_lists`.
    pub list_permits: Arc<Semaphore>,
}

/// One watched resource type: what stays while its actors come and go.
pub struct Informer {
    /// Its number in this engine.
    pub id: UnitId,
    /// Name of the `[resources.*]` entry it belongs to.
    pub entry: String,
    /// Its type.
    pub resource: Arc<ResourceType>,
    /// Its options.
    pub options: InformerOptions,
    /// What is visible of it.
    pub status: Arc<UnitStatus>,
    slot: ArcSwap<IndexerSlot>,
    readers: ArcSwap<ReaderFactory>,
    /// The epoch that may take the indexer.
    epoch: Mutex<u64>,
}

/// Why the actors of a unit could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no client for the unit.
    #[error("failed to make a client: {0}")]
    Source(String),
    /// Another start is under way, or has overtaken this one.
    #[error("another start is under way")]
    Overtaken,
}

/// The running actors of a unit. Their exits are the supervisor's to await.
#[derive(Debug)]
pub struct Actors {
    /// First stage.
    pub reflector: Addr<ReflectorActor>,
    /// Second stage.
    pub fifo: Addr<DeltaFifoActor>,
    /// Third stage.
    pub indexer: Addr<IndexerActor>,
    /// One for each stage, in the same order; a panic shows as a `JoinError`.
    pub exits: [JoinHandle<()>; 3],
}

impl Informer {
    /// Makes an informer with an empty cache.
    pub fn new(id: UnitId, entry: &str, resource: Arc<ResourceType>, options: InformerOptions) -> Self {
        let indexer = Indexer::new(EvmapStore::new(rand::random(), options.indexers.clone()), options.indexer);
        let readers = indexer.store().reader_factory();
        let status = Arc::new(UnitStatus::new(entry, &resource));
        Self {
            id,
            entry: entry.to_owned(),
            resource,
            options,
            status,
            readers: ArcSwap::from_pointee(readers),
            slot: ArcSwap::from(IndexerSlot::new(indexer)),
            epoch: Mutex::default(),
        }
    }

    /// Returns a reader of the cache. Readers are one per thread: clone them, or ask again.
    pub fn lister(&self) -> Lister {
        Lister::new(self.readers.load().reader(), Arc::clone(&self.resource))
    }

    /// Starts the three actors on the current arbiter.
    ///
    /// The indexer is taken from its slot. Where a hung actor still holds it, it is taken over.
    ///
    /// # Errors
    /// When no source can be made, or another start was faster; the indexer is in its slot then.
    pub fn launch(&self, epoch: u64, shared: &Shared) -> Result<Actors, LaunchError> {
        let source = shared.sources.source(self).map_err(LaunchError::Source)?;
        let mut lease = self.lease(epoch, &shared.journal).ok_or(LaunchError::Overtaken)?;

        let Meta { synced, resume_version, .. } = lease.indexer().store().meta().clone();
        let start = if synced { Start::Resume(resume_version) } else { Start::Fresh };
        let fifo = DeltaFifo::new(self.options.order, self.cached().into_iter(), synced);
        let status = || Arc::clone(&self.status);

        let indexer = IndexerActor::new(lease, shared.journal.clone(), self.id, epoch, status());
        let (indexer, indexer_exit) = spawn(indexer);
        let fifo = DeltaFifoActor::new(fifo, indexer.clone().recipient(), self.options.fifo_max_bytes, status());
        let (fifo, fifo_exit) = spawn(fifo);
        let reflector = Reflector::new(self.options.reflector, start);
        let permits = Arc::clone(&shared.list_permits);
        let reflector = ReflectorActor::new(
            reflector,
            source,
            fifo.clone().recipient(),
            permits,
            Arc::clone(&self.resource),
            status(),
        );
        let (reflector, reflector_exit) = spawn(reflector);
        Ok(Actors { reflector, fifo, indexer, exits: [reflector_exit, fifo_exit, indexer_exit] })
    }

    /// Returns every object that readers see.
    fn cached(&self) -> Vec<SharedObject> {
        self.readers.load().reader().read(|snapshot| {
            let mut objects = Vec::new();
            snapshot.for_each(&mut |object| objects.push(Arc::clone(object)));
            objects
        })
    }

    fn lease(&self, epoch: u64, journal: &Journal) -> Option<IndexerLease> {
        let mut current = match self.epoch.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None, // a start that hangs shall not make others hang
        };
        if epoch <= *current {
            return None;
        }
        *current = epoch;
        journal.fence(self.id, epoch);
        if let Some(mut lease) = self.slot.load().lease() {
            lease.recover(journal, self.id, &self.status);
            return Some(lease);
        }
        self.replace_indexer(journal);
        self.slot.load().lease()
    }

    /// Ends what a hung actor has begun, without it: `epoch` fences it off the journal, what it had appended is
    /// published by a new indexer, made of what readers see, and released.
    pub fn take_over(&self, epoch: u64, journal: &Journal) {
        drop(self.lease(epoch, journal));
    }

    /// Replaces an indexer that a hung actor holds by one made of what readers see (a new generation, D5), who all go
    /// on there. The fence must stand: what is in flight then stays that, or is done.
    fn replace_indexer(&self, journal: &Journal) {
        // In this order: where the actor wakes up and finishes meanwhile, there is no ticket, or all is done twice.
        let in_flight = self.slot.load().in_flight();
        let ticket = journal.outstanding(self.id);
        let meta = self.readers.load().reader().read(|snapshot| snapshot.meta().clone());
        let mut store = EvmapStore::new(rand::random(), meta.indexes.as_slice().iter().cloned());
        self.cached().into_iter().for_each(|object| store.put(object));
        store.reach(Reached {
            generation: meta.generation + 1,
            store_version: meta.store_version,
            resume_version: meta.resume_version,
            synced: meta.synced,
        });
        store.publish(meta.published_micros);
        let mut indexer = Indexer::new(store, self.options.indexer);
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
