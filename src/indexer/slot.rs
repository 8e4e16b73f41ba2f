//! Owner of a unit's indexer while no actor uses it.

use std::sync::{Arc, Mutex};

use super::{Indexer, Transaction};
use crate::mutex::lock;

/// Storage of a unit's indexer while no actor leases it.
pub(crate) struct IndexerSlot {
    content: Mutex<Option<Indexer>>,
    /// Transaction of the current batch. It is set before its append, and removed after its release. If the actor hangs, the next
    /// actor finds the transaction here.
    in_flight: Mutex<Option<Arc<Transaction>>>,
}

impl IndexerSlot {
    /// Returns a slot with `indexer`.
    pub(crate) fn new(indexer: Indexer) -> Arc<Self> {
        Arc::new(Self { content: Mutex::new(Some(indexer)), in_flight: Mutex::default() })
    }

    /// Takes the indexer out; `None` while an actor has it. A hung actor never returns it.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<IndexerLease> {
        let indexer = lock(&self.content).take()?;
        Some(IndexerLease { slot: Arc::clone(self), indexer: Some(indexer) })
    }

    /// Returns the transaction of the current batch: appended and not yet released, or about to be appended.
    pub(crate) fn in_flight(&self) -> Option<Arc<Transaction>> {
        lock(&self.in_flight).clone()
    }
}

/// Lease of the indexer. When the lease is dropped, the indexer returns to its slot.
pub(crate) struct IndexerLease {
    pub(super) slot: Arc<IndexerSlot>,
    indexer: Option<Indexer>,
}

const LEASED: &str = "a lease holds its indexer until it is dropped";

impl IndexerLease {
    pub(super) fn get(&self) -> &Indexer {
        self.indexer.as_ref().expect(LEASED)
    }

    /// Returns the leased indexer.
    pub(crate) fn indexer(&mut self) -> &mut Indexer {
        self.indexer.as_mut().expect(LEASED)
    }

    pub(super) fn set_in_flight(&self, transaction: Option<Arc<Transaction>>) {
        *lock(&self.slot.in_flight) = transaction;
    }
}

impl Drop for IndexerLease {
    fn drop(&mut self) {
        *lock(&self.slot.content) = self.indexer.take();
    }
}
